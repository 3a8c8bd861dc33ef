"""The forecast of the pool, on staircases made by the arithmetic of blocks."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.saturation import Forecaster, replay

B, BLOCK = 2.0, 32


def frames_of(sessions, at):
    """Frames fallen due of each session (start, end) that is open at ``at``."""
    return [max(0, math.floor((at - start) / B + 1e-9)) for start, end in sessions if start <= at < end]


def blocks_of(sessions, at, growth):
    return sum(-(-frame * growth // BLOCK) for frame in frames_of(sessions, at))


def tokens_of(sessions, at, growth):
    return sum(frame * growth for frame in frames_of(sessions, at))


def first_refusal(sessions, growth, total):
    """The tick at which the pool is asked for more than it has."""
    ticks = sorted({start + k * B for start, _ in sessions for k in range(1, 4000)})
    return next(t for t in ticks if blocks_of(sessions, t, growth) > total)


def forecast(sessions, growth, total, until, period=0.25):
    forecaster, said, at = Forecaster(B, BLOCK), None, 0.1
    while at <= until:
        starts = [start for start, end in sessions if start <= at < end]
        said = forecaster.update(at, tokens_of(sessions, at, growth), total, starts, settled=True)
        at += period
    return said


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
    assert forecaster.update(0.1, 0, 100, [], settled=True) is None
    said = [forecaster.update(2.1 + k / 10, 50, 100, [0.0], settled=True) for k in range(10)]
    assert said[:3] == [None] * 3 and said[3] is not None


def test_samples_taken_while_the_engine_works_are_not_fitted():
    sessions = [(0.0, math.inf)] * 4
    clean, dirty = Forecaster(B, BLOCK), Forecaster(B, BLOCK)
    for k in range(40):
        at = 0.2 + k / 4
        used, starts = tokens_of(sessions, at, 50), [0.0] * 4
        said = clean.update(at, used, 400, starts, settled=True)
        dirty.update(at - 0.1, used + 7, 400, starts, settled=False)
        assert dirty.update(at, used, 400, starts, settled=True) == said


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
        used = tokens_of(sessions, at, 53)
        running = int(k % 5 == 0)
        said.append(forecaster.update(at, used, 300, starts, settled=not running))
        rows.append({"at_s": at, "resident_tokens": used, "blocks_total": 300, "running": running, "waiting": 0})
    table = pd.DataFrame(
        {
            "offered_at_s": [start for start, _ in sessions],
            "opened_at_s": [start for start, _ in sessions],
            "ended_at_s": [None if math.isinf(end) else end for _, end in sessions],
        }
    ).astype("float64")
    pool = pd.DataFrame(rows)
    for k in (30, 50, 79):
        assert replay(pool, table, B, BLOCK, until_s=pool["at_s"][k]) == pytest.approx(said[k], rel=1e-12)
