"""Figures are read back as data: what a reader would see in them, and that the caption is on every one."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from workbench.bound import KVBound, blocks_for, growth_per_frame, plateau
from workbench.experiments import Claim, Result
from workbench.plots import (
    BOUNDED,
    UNBOUNDED,
    Label,
    PlotError,
    content_lag,
    frame_latency,
    label_of,
    owed_delivered,
    pool_occupancy,
)
from workbench.telemetry import CAPPED, CLOSED, ON_TIME, FrameRow, PoolRow, SessionRow, Tables

B, WAIT_CAP, BLOCK, POOL_BLOCKS, N, FRAMES = 2.0, 0.8, 32, 60, 3, 30
TOKENS_IN, OWED, BOUND = 50, 4, KVBound(window=128, sinks=4)
GROWTH = growth_per_frame(TOKENS_IN, OWED)
T_FULL_PREDICTED_S = (POOL_BLOCKS * BLOCK // (N * GROWTH) + 1) * B


class Arm:
    """One arm on paper: N sessions tick together, a frame that finds no blocks stops its session for good."""

    def __init__(self, run: str, bound: KVBound | None) -> None:
        self.tables, self.bound, self.t_full_s, self.refused = Tables(run), bound, None, set()
        self.resident, self.heard_until_s = dict.fromkeys(range(N), 0), dict.fromkeys(range(N), 0.0)
        for n in range(N):
            self.tables.session_rows[f"s{n}"] = SessionRow(run, f"s{n}", "numbers", 0.0, 0.0, FRAMES * B + B, "closed")
        for k in range(FRAMES):
            due = (k + 1) * B
            for n in range(N):
                self.tables.frame_rows.append(self.frame(n, k, due))
            self.tables.pool_rows.append(self.sample(k, due))
        last = FRAMES * B + B
        closed = FrameRow(run, "s0", FRAMES, last, last, None, last + 0.1, 0.1, CLOSED, tokens_owed=OWED, empty=True)
        self.tables.frame_rows.append(closed)

    def used(self) -> int:
        return sum(blocks_for(tokens, BLOCK) for tokens in self.resident.values())

    def frame(self, n: int, k: int, due: float) -> FrameRow:
        resident = self.resident[n]
        if self.bound is not None:
            resident -= self.bound.evictable(resident, BLOCK)
        grown = resident + GROWTH
        if self.used() - blocks_for(self.resident[n], BLOCK) + blocks_for(grown, BLOCK) > POOL_BLOCKS:
            self.refused.add(n)
            self.t_full_s = due if self.t_full_s is None else self.t_full_s
        served = n not in self.refused
        if served:
            self.resident[n], self.heard_until_s[n] = grown, due
        latency = 0.3 + 0.05 * n if served else WAIT_CAP * B
        return FrameRow(
            run=self.tables.run,
            session=f"s{n}",
            frame=k,
            due_at_s=due,
            submitted_at_s=due,
            first_token_at_s=due + latency / 2 if served else None,
            returned_at_s=due + latency,
            latency_s=latency,
            status=ON_TIME if served else CAPPED,
            capped=not served,
            empty=not served,
            tokens_in=TOKENS_IN,
            tokens_owed=OWED,
            tokens_delivered=OWED if served else 0,
            content_lag_s=due + latency - self.heard_until_s[n],
        )

    def sample(self, k: int, due: float) -> PoolRow:
        forecast = T_FULL_PREDICTED_S if self.bound is None and k >= 2 else None
        at = due + 0.5
        tokens = self.used() * BLOCK
        return PoolRow(
            self.tables.run, at, self.used(), POOL_BLOCKS, 0, 0, N, 0, N, tokens, t_full_predicted_s=forecast
        )

    def metrics(self) -> dict:
        frames = self.tables.frames()
        frames = frames[frames["status"] != CLOSED]
        counts = {
            "deadline_misses": int(frames["missed"].sum()),
            "capped_frames": int(frames["capped"].sum()),
            "empty_frames": int(frames["empty"].sum()),
            "owed": int(frames["tokens_owed"].sum()),
            "delivered": int(frames["tokens_delivered"].sum()),
            "max_content_lag_s": float(frames["content_lag_s"].max()),
        }
        peak = max(row.blocks_used for row in self.tables.pool_rows) / POOL_BLOCKS
        if self.bound is None:
            wall = None if self.t_full_s is None else self.t_full_s + 2 * B
            times = {"t_full_predicted_s": T_FULL_PREDICTED_S, "t_full_measured_s": self.t_full_s, "t_wall_s": wall}
            made = next(row.at_s for row in self.tables.pool_rows if row.t_full_predicted_s is not None)
            times["predicted_at_s"] = made
            return {"walled": self.t_full_s is not None, **times, **counts, "peak_usage": peak}
        predicted = N * plateau(self.bound, BLOCK, TOKENS_IN, OWED).mean / POOL_BLOCKS
        settled = [row.blocks_used for row in self.tables.pool_rows[-FRAMES // 3 :]]
        return {
            "walled": False,
            "ingested_over_pool": N * FRAMES * GROWTH / (POOL_BLOCKS * BLOCK),
            "plateau_usage": sum(settled) / len(settled) / POOL_BLOCKS,
            "plateau_predicted_usage": predicted,
            **counts,
            "latency_age_ratio": 1.0,
        }


def synthetic_result(executor: str = "simulated", holds: bool = True) -> Result:
    """A Result with the tables and keys of the cliff experiment, worked out on paper."""
    arms = {UNBOUNDED: Arm(UNBOUNDED, None), BOUNDED: Arm(BOUNDED, BOUND)}
    tables = {
        name: pd.concat([getattr(arm.tables, name)() for arm in arms.values()], ignore_index=True)
        for name in ("sessions", "frames", "pool")
    }
    metrics = {run: arm.metrics() for run, arm in arms.items()}
    params = {
        "frame_budget_s": B,
        "wait_cap": WAIT_CAP,
        "pool_blocks": POOL_BLOCKS,
        "block_size": BLOCK,
        "sessions": N,
        "window": BOUND.window,
        "sinks": BOUND.sinks,
        "tokens_owed": OWED,
        "front_end": "codec2",
    }
    claims = (
        Claim("the unbounded arm walls", metrics[UNBOUNDED]["walled"], metrics[UNBOUNDED]["t_wall_s"], "a time"),
        Claim("the bounded arm <never> caps a frame", holds, metrics[BOUNDED]["capped_frames"], "0"),
    )
    return Result("cliff", "smollm2", executor, "0.32.0", 7, params, metrics, claims, **tables)


RESULT = synthetic_result()
LABEL = label_of(RESULT)
CLIFF = RESULT.metrics[UNBOUNDED]


def occupancy(result: Result = RESULT):
    cliff = result.metrics[UNBOUNDED]
    return pool_occupancy(
        result.pool,
        label=label_of(result),
        t_full_predicted_s=cliff["t_full_predicted_s"],
        t_full_measured_s=cliff["t_full_measured_s"],
        t_wall_s=cliff["t_wall_s"],
        plateau_predicted_usage=result.metrics[BOUNDED]["plateau_predicted_usage"],
    )


def all_figures(result: Result = RESULT) -> list:
    return [
        occupancy(result),
        frame_latency(result.frames, B, WAIT_CAP, label=label_of(result)),
        content_lag(result.frames, B, label=label_of(result)),
        owed_delivered(result.frames, label=label_of(result)),
    ]


def trace(figure, start: str):
    (found,) = [t for t in figure.data if t.name.startswith(start)]
    return found


def notes(figure) -> dict[str, str]:
    return {a.name: a.text for a in figure.layout.annotations if a.name}


def test_the_unbounded_arm_of_the_synthetic_result_walls_and_the_bounded_does_not():
    assert CLIFF["walled"] and CLIFF["delivered"] < CLIFF["owed"]
    assert RESULT.metrics[BOUNDED]["owed"] == RESULT.metrics[BOUNDED]["delivered"]


def test_every_figure_says_what_was_served():
    for figure in all_figures():
        caption = notes(figure)["caption"]
        for part in ("simulated", "profile smollm2", "seed 7", "3 sessions", "B = 2 s", "W = 128, S = 4"):
            assert part in caption


def test_a_simulated_figure_says_so_across_the_plot_and_a_real_one_does_not():
    assert [notes(f).get("simulated") for f in all_figures()] == ["simulated"] * 4
    assert [notes(f).get("simulated") for f in all_figures(synthetic_result("vllm-cpu"))] == [None] * 4


def test_axes_carry_units_and_arms_differ_in_colour_and_in_dash():
    for figure in all_figures():
        assert "(s" in figure.layout.xaxis.title.text and figure.layout.yaxis.title.text
    figure = occupancy()
    one, other = trace(figure, UNBOUNDED), trace(figure, BOUNDED)
    assert one.line.color != other.line.color and one.line.dash != other.line.dash


def test_arms_of_frame_latency_differ_in_colour_and_in_marker():
    figure = frame_latency(RESULT.frames, B, WAIT_CAP, label=LABEL)
    one, other = trace(figure, f"{UNBOUNDED}, on time"), trace(figure, f"{BOUNDED}, on time")
    assert one.marker.color != other.marker.color and one.marker.symbol != other.marker.symbol


def test_pool_occupancy_is_blocks_used_over_blocks_total():
    line = trace(occupancy(), BOUNDED)
    rows = RESULT.pool[RESULT.pool["run"] == BOUNDED]
    assert list(line.y) == [used / POOL_BLOCKS for used in rows["blocks_used"]]
    rule = trace(occupancy(), "plateau predicted").y
    assert set(rule) == {RESULT.metrics[BOUNDED]["plateau_predicted_usage"]}
    assert abs(rule[0] - RESULT.metrics[BOUNDED]["plateau_usage"]) <= N / POOL_BLOCKS


def test_the_forecast_runs_from_the_sample_that_made_it_to_a_full_pool():
    forecast = trace(occupancy(), "Eq. 1")
    samples = RESULT.pool[(RESULT.pool["run"] == UNBOUNDED) & RESULT.pool["t_full_predicted_s"].notna()]
    first = samples.iloc[0]
    assert list(forecast.x) == [first["at_s"], T_FULL_PREDICTED_S]
    assert list(forecast.y) == [first["blocks_used"] / POOL_BLOCKS, 1.0]


def test_the_first_refusal_is_marked_on_the_unbounded_line():
    star = trace(occupancy(), "first refused")
    assert star.x == (CLIFF["t_full_measured_s"],)
    assert 0.9 < star.y[0] <= 1.0


def test_the_forecast_can_be_drawn_from_when_it_was_made():
    at = RESULT.pool[RESULT.pool["run"] == UNBOUNDED]["at_s"].iloc[6]
    unbounded = RESULT.metrics["unbounded"]
    figure = pool_occupancy(
        RESULT.pool, label=LABEL, t_full_predicted_s=unbounded["t_full_predicted_s"], predicted_at_s=at
    )
    assert list(trace(figure, "Eq. 1").x) == [at, T_FULL_PREDICTED_S]


def test_an_arm_without_a_wall_gets_no_mark_no_forecast_and_no_shade():
    figure = pool_occupancy(RESULT.pool, label=LABEL)
    assert [t.name for t in figure.data] == [UNBOUNDED, BOUNDED] and not figure.layout.shapes


def test_frame_latency_counts_capped_frames_and_those_that_never_returned():
    figure = frame_latency(RESULT.frames, B, WAIT_CAP, label=LABEL)
    capped = trace(figure, f"{UNBOUNDED}, capped")
    assert len(capped.y) == CLIFF["capped_frames"] > 0
    assert set(capped.y) == {WAIT_CAP * B}
    assert trace(figure, f"{BOUNDED}, not returned").name.endswith("(1)")
    assert not [t for t in figure.data if t.name.startswith(f"{BOUNDED}, capped")]


def test_frame_latency_is_on_a_log_axis_with_deadline_and_wait_cap():
    figure = frame_latency(RESULT.frames, B, WAIT_CAP, label=LABEL)
    assert figure.layout.yaxis.type == "log"
    assert set(trace(figure, "deadline").y) == {B}
    assert set(trace(figure, "wait cap").y) == {WAIT_CAP * B}


def test_content_lag_shows_the_worst_session_of_each_tick():
    figure = content_lag(RESULT.frames, B, label=LABEL)
    assert max(trace(figure, f"{UNBOUNDED}, worst").y) == CLIFF["max_content_lag_s"]
    assert max(trace(figure, f"{BOUNDED}, worst").y) == RESULT.metrics[BOUNDED]["max_content_lag_s"]
    assert len(trace(figure, f"{UNBOUNDED}, median").x) == FRAMES


def test_owed_and_delivered_end_at_the_sums_of_the_metrics():
    figure = owed_delivered(RESULT.frames, label=LABEL)
    for run in (UNBOUNDED, BOUNDED):
        assert trace(figure, f"{run}, owed").y[-1] == RESULT.metrics[run]["owed"]
        assert trace(figure, f"{run}, delivered").y[-1] == RESULT.metrics[run]["delivered"]


def test_frames_of_sessions_that_joined_late_count_where_they_fall_due():
    late = RESULT.frames["session"] == "s2"
    moved = RESULT.frames.assign(frame=RESULT.frames["frame"].where(~late, RESULT.frames["frame"] - 5))
    for draw in (
        lambda frames: owed_delivered(frames, label=LABEL),
        lambda frames: content_lag(frames, B, label=LABEL),
    ):
        assert draw(moved).to_dict() == draw(RESULT.frames).to_dict()


def test_arms_of_other_names_get_looks_of_their_own():
    pool = pd.concat([RESULT.pool[RESULT.pool["run"] == BOUNDED].assign(run=name) for name in "abc"])
    lines = pool_occupancy(pool, label=LABEL).data
    assert [line.name for line in lines] == ["a", "b", "c"]
    assert len({(line.line.color, line.line.dash) for line in lines}) == 3


def test_empty_tables_make_empty_figures():
    tables, label = Tables("run"), Label("nothing yet")
    for figure in (
        pool_occupancy(tables.pool(), label=label, t_full_predicted_s=3.0, t_wall_s=4.0),
        frame_latency(tables.frames(), B, WAIT_CAP, label=label),
        content_lag(tables.frames(), B, label=label),
        owed_delivered(tables.frames(), label=label),
    ):
        assert not figure.data and notes(figure)["caption"] == "nothing yet"


@pytest.mark.parametrize("column", ["run", "blocks_total"])
def test_a_table_without_a_column_is_refused_by_name(column):
    with pytest.raises(PlotError, match=f"pool table has no column '{column}'") as refusal:
        pool_occupancy(RESULT.pool.drop(columns=column), label=LABEL)
    assert "\n" not in str(refusal.value)


def test_figures_survive_the_trip_through_json():
    for figure in all_figures():
        assert json.loads(figure.to_json())["layout"]["annotations"]
