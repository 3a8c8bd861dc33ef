"""The experiment recycle: exact counts of prefilled tokens, compute by hand, and what it refuses."""

from __future__ import annotations

import pytest

from tests.test_simulated import BASE, Linear
from workbench.engine.recycling import Recycling
from workbench.experiments import ExperimentError, _recycle, experiment
from workbench.experiments._recycle import BOUNDED, RECYCLED, UNBOUNDED, serve, span
from workbench.runs import Runs

# S' + W = 80, growth 29; window 64 with slack 0 is full with frame 4, when the bound is full too.
SMALL = BASE.with_(window=64, sinks=16, sessions=3, phase_groups=2)
ASKED = {"windows": "64", "slacks": "0,1", "sessions": 3, "frames": 6}


@pytest.fixture
def linear(monkeypatch):
    """10 ms a step, 1 ms a prefilled token, 2 ms a sequence that decodes."""
    monkeypatch.setattr(_recycle, "costs_of", lambda profile: Linear())


@pytest.fixture(scope="module")
def result():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_recycle, "costs_of", lambda profile: Linear())
        return experiment("recycle")(SMALL, runs=Runs(workers=1), **ASKED)


def quiet(message, fraction):
    pass


def test_prefill_and_compute_are_those_of_the_arithmetic(result):
    assert result.holds, [claim for claim in result.claims if not claim.holds]
    at_once, seldom = result.metrics["points"]
    assert [p["slack"] for p in (at_once, seldom)] == [0, 64]
    for point in (at_once, seldom):
        each = Recycling(SMALL.bound, point["slack"], 16, 26, 4)
        assert point["period_frames"] == each.period
        assert point[RECYCLED]["prefill_per_frame"] == pytest.approx(each.prefill_per_frame)
        assert point[BOUNDED]["prefill_per_frame"] == point[UNBOUNDED]["prefill_per_frame"] == 26
        for policy, count in point["prefill_tokens"].items():
            assert count["measured"] == count["predicted"], policy
        assert point["prefill_factor"] == pytest.approx(each.prefill_per_frame / 26)
    # Beside the chunk's own 26 ms: three decoded tokens, less the least step of 12 ms in each of the four steps that
    # two groups of two and one sessions take, which begin with 10.
    bounded = at_once[BOUNDED]["compute_per_frame_s"]
    assert at_once[RECYCLED]["compute_per_frame_s"] - bounded == pytest.approx(0.080)
    assert bounded == pytest.approx((3 * 0.026 + 9 * 0.002 - 8 * 0.002) / 3)
    assert at_once["factor"] == pytest.approx(1 + 0.080 / bounded)


def test_what_a_re_encode_adds_to_the_latency_is_seen_where_it_happens(result):
    at_once, seldom = result.metrics["points"]
    assert at_once["between_p50_s"] is None
    # The median session shares its step with one more of its group.
    assert seldom["recycled_frame_p50_s"] - seldom["between_p50_s"] == pytest.approx(0.160)
    assert seldom[BOUNDED]["latency_p50_s"] == pytest.approx(seldom["between_p50_s"])
    assert seldom[RECYCLED]["usage_most"] > 1.3 * seldom[BOUNDED]["usage_most"]
    assert (at_once["sessions_that_fit"], seldom["sessions_that_fit"]) == (200 // 7, 200 // 11)


def test_the_tables_are_of_all_three_policies_and_end_with_the_last_frame(result):
    frames = result.frames
    most = max(span(SMALL, slack, 6).end for slack in (0, 64))
    for policy in (UNBOUNDED, BOUNDED, RECYCLED):
        arm = frames[frames["run"] == policy]
        assert arm.groupby("session").size().tolist() == [most] * 3 and (arm["status"] == "on_time").all()
    assert result.frames.loc[frames["run"] == UNBOUNDED, "resident_tokens"].max() == most * 29
    assert result.executor == "simulated" and result.params["slacks"] == [0.0, 1.0]
    assert result.params["shown"] == {"window": 64, "slack": 64}
    assert result.metrics["paper"]["latency_p90_s"] == 0.036


def test_a_count_that_is_off_fails_the_claim(linear, monkeypatch):
    monkeypatch.setattr(Recycling, "prefill", lambda self, frames: frames * self.tokens_in)
    result = experiment("recycle")(SMALL, runs=Runs(workers=1), **{**ASKED, "slacks": "0"})
    failed = [claim.name for claim in result.claims if not claim.holds]
    assert failed == ["prefilled tokens are those of the arithmetic"]


def test_a_slower_engine_computes_longer_and_counts_the_same(linear):
    one, two = (serve(SMALL.with_(slowdown=times), BOUNDED, 8, quiet) for times in (1.0, 2.0))
    which = span(SMALL, 0, 2)
    assert two.prefill_tokens == one.prefill_tokens == 3 * 8 * 26
    ratio = two.judged(which)["compute_per_frame_s"] / one.judged(which)["compute_per_frame_s"]
    assert ratio == pytest.approx(2)
    assert two.judged(which)["busy"] == pytest.approx(2 * one.judged(which)["busy"])


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"slacks": "-1"}, "slacks must be 0 to"),
        ({"slacks": "nan"}, "slacks must be 0 to"),
        ({"slacks": "1e400"}, "slacks must be 0 to"),
        ({"slacks": "much"}, "slacks must be parts of the window"),
        ({"slacks": "1,1.0"}, "slacks names one twice"),
        ({"windows": ""}, "windows must be whole numbers"),
        ({"windows": "64,64"}, "windows names one twice"),
        ({"windows": "0"}, "window must be positive"),
        ({"windows": "8"}, "smaller than one block"),
        ({"windows": "4000"}, "more than max_model_len"),
        (
            {"slacks": "60"},
            "a session recycled with a slack of 3840 tokens would hold .* max_model_len 3200: lower slacks",
        ),
        ({"frames": 0}, "frames must be 1 or more"),
        ({"frames": 200}, "an unbounded session would hold"),
        ({"sessions": 0}, "sessions must be positive"),
        ({"sessions": 20, "slacks": "0"}, "20 times an unbounded session would hold .* more than the pool's 200"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line_before_any_engine_starts(wrong, said, monkeypatch):
    monkeypatch.setattr(_recycle, "costs_of", lambda profile: pytest.fail("an engine was made"))
    with pytest.raises(ValueError, match=said) as error:
        experiment("recycle")(SMALL, runs=Runs(workers=1), **{**ASKED, **wrong})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("front_end", "budget"), [("omni:qwen3-omni", 2.0), ("moshi", 0.08)])
@pytest.mark.parametrize("executor", ["simulated", "vllm"])
def test_a_front_end_that_hears_by_the_model_is_refused_before_any_engine_starts(
    front_end, budget, executor, monkeypatch
):
    for made in ("RecordedSimulation", "RecordedVllm"):
        monkeypatch.setattr(_recycle, made, lambda profile: pytest.fail("an engine was made"))
    profile = SMALL.with_(front_end=front_end, frame_budget_s=budget, executor=executor)
    with pytest.raises(ExperimentError) as refused:
        experiment("recycle")(profile, runs=Runs(workers=1), **ASKED)
    assert str(refused.value) == (
        f"a recycled session cannot be fed audio, as front end {front_end} does: use a front end of tokens"
    )


@pytest.mark.parametrize("varied", ["eos_chance", "arrivals_per_s", "holding_s"])
def test_what_would_spoil_the_count_is_refused(varied):
    with pytest.raises(ExperimentError, match=f"{varied} is of no use here"):
        experiment("recycle")(SMALL.with_(**{varied: 0.1}), runs=Runs(workers=1), **ASKED)
