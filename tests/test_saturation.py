"""The forecast of the pool, on staircases made by the arithmetic of blocks."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.saturation import Forecast, Forecaster, Grown, replay

B, BLOCK = 2.0, 32


def frames_of(sessions, at):
    """Frames fallen due of each session (start, end) that is open at ``at``."""
    return [max(0, math.floor((at - start) / B + 1e-9)) for start, end in sessions if start <= at < end]


def blocks_of(sessions, at, growth):
    return sum(-(-frame * growth // BLOCK) for frame in frames_of(sessions, at))


def tokens_of(sessions, at, growth):
    return sum(frame * growth for frame in frames_of(sessions, at))


def grown_of(sessions, at, growth):
    """What the scheduler has counted of sessions that all grow alike, also of those that are gone."""
    ended = [max(0, math.floor((min(at, end) - start) / B + 1e-9)) for start, end in sessions]
    frames = sum(max(0, each - 1) for each in ended)
    return Grown(frames, frames * growth, frames * growth * growth)


def first_refusal(sessions, growth, total):
    """The tick at which the pool is asked for more than it has."""
    ticks = sorted({start + k * B for start, _ in sessions for k in range(1, 4000)})
    return next(t for t in ticks if blocks_of(sessions, t, growth) > total)


def forecast(sessions, growth, total, until, period=0.25):
    forecaster, said, at = Forecaster(B, BLOCK), None, 0.1
    while at <= until:
        starts = [start for start, end in sessions if start <= at < end]
        tokens, blocks = tokens_of(sessions, at, growth), blocks_of(sessions, at, growth)
        said = forecaster.update(at, tokens, blocks, total, grown_of(sessions, at, growth), starts, settled=True)
        at += period
    return said and said.t_full_s


@settings(max_examples=60, deadline=None)
@given(
    growth=st.integers(20, 80),
    n=st.integers(3, 8),
    joins=st.lists(st.integers(1, 4), max_size=3),
    groups=st.sampled_from([1, 2, 4]),
)
def test_the_forecast_is_right_within_two_percent_or_one_frame(growth, n, joins, groups):
    sessions = [((i % groups) * B / groups, math.inf) for i in range(n)]
    sessions += [(B * j, math.inf) for j in joins]
    sessions.append((0.0, 5 * B))  # one leaves again
    total = 20 * len(sessions) * growth // BLOCK
    full = first_refusal(sessions, growth, total)
    said = forecast(sessions, growth, total, until=0.3 * full)
    assert said is not None
    assert abs(said - full) <= max(0.02 * full, B)


def test_nothing_is_said_before_there_are_samples():
    forecaster = Forecaster(B, BLOCK)
    assert forecaster.update(0.1, 0, 0, 100, Grown(0, 0, 0), [], settled=True) is None
    sessions = [(0.0, math.inf)]
    said = [
        forecaster.update(at, 50 * k, 2 * k, 100, grown_of(sessions, at, 50), [0.0], settled=True)
        for k, at in enumerate((0.1, 2.1, 4.1, 6.1, 8.1))
    ]
    assert said[:4] == [None] * 4 and said[4] is not None


def test_samples_taken_while_the_engine_works_are_not_fitted():
    sessions = [(0.0, math.inf)] * 4
    clean, dirty = Forecaster(B, BLOCK), Forecaster(B, BLOCK)
    for k in range(40):
        at = 0.2 + k / 4
        tokens, blocks, starts = tokens_of(sessions, at, 50), blocks_of(sessions, at, 50), [0.0] * 4
        grown = grown_of(sessions, at, 50)
        said = clean.update(at, tokens, blocks, 400, grown, starts, settled=True)
        dirty.update(at - 0.1, tokens + 7, blocks + 1, 400, grown, starts, settled=False)
        assert dirty.update(at, tokens, blocks, 400, grown, starts, settled=True) == said


def test_replies_that_end_early_fill_the_pool_later():
    """Growth varies from frame to frame; what counts is its mean."""
    short, long = (forecast([(0.0, math.inf)] * 4, growth, 300, until=14.0) for growth in (53, 40))
    assert long > short


def test_a_replay_of_the_tables_says_what_was_said():
    sessions = [(0.0, math.inf), (0.0, math.inf), (4.0, math.inf), (0.0, 9.0)]
    forecaster, rows, said = Forecaster(B, BLOCK), [], []
    for k in range(80):
        at = 0.1 + k / 4
        starts = [start for start, end in sessions if start <= at < end]
        tokens, blocks = tokens_of(sessions, at, 53), blocks_of(sessions, at, 53)
        running = int(k % 5 == 0)
        grown = grown_of(sessions, at, 53)
        said.append(forecaster.update(at, tokens, blocks, 300, grown, starts, settled=not running))
        row = {"at_s": at, "resident_tokens": tokens, "blocks_used": blocks, "blocks_total": 300}
        row |= {"grown_frames": grown.frames, "grown_tokens": grown.tokens, "grown_squares": grown.squares}
        rows.append({**row, "running": running, "waiting": 0})
    table = pd.DataFrame(
        {
            "offered_at_s": [start for start, _ in sessions],
            "opened_at_s": [start for start, _ in sessions],
            "ended_at_s": [None if math.isinf(end) else end for _, end in sessions],
        }
    ).astype("float64")
    pool = pd.DataFrame(rows)
    for k in (30, 50, 79):
        assert replay(pool, table, B, BLOCK, until_s=pool["at_s"][k]) == said[k]


def varied(growth, sd, n, total, seed, header=0, shared=0):
    """A run whose frames grow by a random count, until the pool is full; t_full, and the forecast at usage 0.3."""
    draw = np.random.default_rng(seed)
    held, forecaster, said = np.zeros(n), Forecaster(B, BLOCK), None
    frames = tokens = squares = 0
    for frame in range(1, 10_000):
        grown = np.maximum(1, np.round(draw.normal(growth, sd, n))).astype(int)
        held += grown + (header if frame == 1 else 0)
        if frame > 1:
            frames, tokens, squares = frames + n, tokens + int(grown.sum()), squares + int((grown**2).sum())
        blocks = int(np.ceil(held / BLOCK).sum()) - shared * (n - 1)
        if blocks > total:
            return frame * B, said
        if blocks <= 0.3 * total:
            seen = Grown(frames, tokens, squares)
            said = forecaster.update(frame * B + 0.5, int(held.sum()), blocks, total, seen, [0.0] * n, settled=True)


def test_the_interval_holds_t_full_as_often_as_it_says():
    inside = 0
    for seed in range(200):
        full, said = varied(50, 25, 8, 8 * 60, seed)
        inside += said.low_s <= full <= said.high_s
        assert said.low_s <= said.t_full_s <= said.high_s
    # 95 % of 200, within what chance and whole frames leave: the interval is in frames and so a little wide.
    assert 180 <= inside <= 200


def test_growth_that_does_not_vary_needs_no_interval():
    _, said = varied(50, 0, 8, 1000, seed=0)
    assert said.low_s == said.t_full_s == said.high_s


@pytest.mark.parametrize(("header", "shared"), [(64, 0), (100, 0), (160, 5)])
def test_a_header_held_beside_the_frames_does_not_mislead(header, shared):
    full, said = varied(53, 0, 6, 400, seed=0, header=header, shared=shared)
    assert abs(said.t_full_s - full) <= B


def test_a_session_that_starts_much_later_does_not_hide_the_others_frames():
    full = first_refusal([(0.0, math.inf), (40.0, math.inf)], 50, 100)
    assert forecast([(0.0, math.inf), (40.0, math.inf)], 50, 100, until=12.0) != full  # it is not known of yet
    forecaster = Forecaster(B, BLOCK)
    for k in range(6):
        grown = Grown(k, 50 * k, 2500 * k)
        blocks = -(-50 * (k + 1) // BLOCK)
        said = forecaster.update(2.1 + k * B, 50 * (k + 1), blocks, 100, grown, [0.0, 40.0], settled=True)
    assert said.t_full_s == full


def test_an_engine_that_never_rests_is_forecast_all_the_same():
    """Fully staggered, some frame is always in the making."""
    n, growth, total = 20, 50, 2000
    sessions = [(k * B / n, math.inf) for k in range(n)]
    full = first_refusal(sessions, growth, total)
    forecaster, starts, at = Forecaster(B, BLOCK), [start for start, _ in sessions], 0.13
    while at < 0.3 * full:
        # One frame is on its way in.
        tokens, blocks = tokens_of(sessions, at, growth) - 20, blocks_of(sessions, at, growth) - 1
        said = forecaster.update(at, tokens, blocks, total, grown_of(sessions, at, growth), starts, settled=False)
        at += 0.25
    assert abs(said.t_full_s - full) <= B


def test_what_the_engine_counted_before_the_run_is_no_part_of_it():
    sessions, starts = [(0.0, math.inf)] * 6, [0.0] * 6
    clean, warmed = Forecaster(B, BLOCK), Forecaster(B, BLOCK)
    for k in range(7):
        at = 0.1 + k * B
        tokens, blocks, grown = tokens_of(sessions, at, 53), blocks_of(sessions, at, 53), grown_of(sessions, at, 53)
        more = Grown(grown.frames + 1, grown.tokens + 35, grown.squares + 35 * 35)
        said = clean.update(at, tokens, blocks, 200, grown, starts, settled=True)
        assert warmed.update(at, tokens, blocks, 200, more, starts, settled=True) == said
    assert said == Forecast(40.0, 40.0, 40.0)
