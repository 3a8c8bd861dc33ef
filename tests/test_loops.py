"""The loops experiment: what its loops amount to, its claims on a small pool, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd
import pytest

from tests.test_simulated import BASE, Linear, make, play
from workbench.bound import BoundError, KVBound, plateau
from workbench.experiments import ExperimentError, experiment
from workbench.experiments._loop_metrics import bounded, coverage, forecast, held_as_reckoned, unbounded
from workbench.experiments.loops import Loop, forecast_against_refusal
from workbench.frontends import FrontEndError
from workbench.profiles import ProfileError, load_profile
from workbench.runs import Runs
from workbench.saturation import Forecast, Prediction

run = experiment("loops")
SIZES = {
    "window": 128,
    "scratchpad_sessions": 12,
    "scratchpad_budget_s": 2.0,
    "scratchpad_shortest": 4,
    "scratchpad_longest": 64,
    "scratchpad_owed": 12,
    "scratchpad_eos_chance": 0.1,
    "video_sessions": 12,
    "video_tokens": 31,
    "video_owed": 4,
}


@pytest.fixture(scope="module")
def small():
    """Qwen3-Omni's card on a pool of 12,800 tokens."""
    return load_profile("sim:qwen3-omni@h100", pool_blocks=800, max_model_len=2500)


@pytest.fixture(scope="module")
def result(small):
    """In its full form, with two more seeds."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("workbench.experiments.loops.SEEDS", 2)
        return run(small, **SIZES, full=True, runs=Runs(workers=1))


def test_each_loop_has_its_cliff_and_its_slope(result):
    assert result.holds, [claim for claim in result.claims if not claim.holds]
    assert set(result.metrics["loops"]) == {"scratchpad", "video"}
    for loop in result.metrics["loops"].values():
        cliff, slope = loop["unbounded"], loop["bounded"]
        # The wall begins with the last token, which may be said just before the chunk that is refused comes.
        assert cliff["walled"] and abs(cliff["t_full_measured_s"] - cliff["t_wall_s"]) < 4.0
        assert cliff["peak_usage"] > 0.97
        assert cliff["deadline_misses"] == 0 and cliff["empty_frames"] > 0
        assert not slope["walled"] and slope["ingested_over_pool"] >= 2
        assert slope["capped_frames"] == slope["empty_frames"] == 0
        assert slope["plateau_usage"] == pytest.approx(slope["plateau_predicted_usage"], rel=0.05)
        assert slope["latency_p50_s"] <= slope["latency_p99_s"]
        assert slope["latency_age_ratio"] == pytest.approx(1, abs=0.2)


def test_it_says_what_was_served_and_that_it_was_simulated(result):
    assert (result.experiment, result.executor) == ("loops", "simulated")
    assert "roofline" in result.params["costs"]
    scratchpad, video = (result.params["loops"][name] for name in ("scratchpad", "video"))
    assert (scratchpad["front_end"], scratchpad["tokens_owed"]) == ("scratchpad:4-64:0", 12)
    assert (video["front_end"], video["tokens_in_mean"], video["tokens_in_most"]) == ("video:31", 33, 33)
    runs = ["scratchpad, unbounded", "scratchpad, bounded", "video, unbounded", "video, bounded"]
    assert list(dict.fromkeys(result.pool["run"])) == runs


def chunks(result, run):
    frames = result.frames[result.frames["run"] == run]
    return frames.set_index(["session", "frame"])["tokens_in"].to_dict()


def test_both_arms_are_fed_the_same_chunks_and_they_are_irregular(result):
    one, other = (chunks(result, f"scratchpad, {arm}") for arm in ("unbounded", "bounded"))
    shared = one.keys() & other.keys()
    assert len(shared) > 300 and all(one[key] == other[key] for key in shared)
    lengths = pd.Series(other)
    assert lengths.between(4, 64).all() and lengths.nunique() == 61
    mean = result.params["loops"]["scratchpad"]["tokens_in_mean"]
    assert lengths.mean() == pytest.approx(mean, rel=0.05)


def test_replies_are_as_long_as_the_chance_of_their_end_says(result):
    frames = result.frames[(result.frames["run"] == "scratchpad, bounded") & (result.frames["status"] == "on_time")]
    expected = sum(0.9**k for k in range(12))
    loop = result.params["loops"]["scratchpad"]
    assert loop["growth_mean"] == pytest.approx(loop["tokens_in_mean"] + expected - 1)
    assert frames["tokens_delivered"].mean() == pytest.approx(expected, rel=0.05)
    assert result.metrics["loops"]["scratchpad"]["bounded"]["ended_early"] == pytest.approx(1 - 0.9**12, abs=0.05)


def test_the_plateau_of_chunks_of_one_length_is_that_of_the_bounds_arithmetic(small):
    profile = small.with_(window=128, sessions=10, front_end="video:31", tokens_owed=3)
    exact = plateau(profile.bound, profile.block_size, 33, 3).mean * 10 / profile.pool_blocks
    assert Loop("video", profile, 33, 33).plateau_usage == pytest.approx(exact)


def test_the_full_form_counts_how_often_the_interval_held(result):
    over = result.metrics["loops"]["scratchpad"]["unbounded"]["forecast_over_seeds"]
    assert (over["runs"], over["seeds_from_to"]) == (2, [1, 2])
    assert 0 <= over["in_interval"] <= 2 and 0 < over["error_median"] <= over["error_most"] < 0.5


def test_a_seed_counted_is_the_run_with_that_seed_and_no_other_is(small, result):
    asked = {"front_end": "scratchpad:4-64:9", "frame_budget_s": 2.0, "tokens_owed": 12, "eos_chance": 0.1}
    profile = small.with_(window=128, sessions=12, phase_groups=8, **asked)
    cliff = result.metrics["loops"]["scratchpad"]["unbounded"]
    same, other = (forecast_against_refusal(profile, seed) for seed in (0, 1))
    for key in ("t_full_measured_s", "t_full_predicted_s", "low", "high", "predicted_at_s"):
        assert same[key] == cliff[key]
    assert same["low"] < same["high"] and other["t_full_measured_s"] != same["t_full_measured_s"]


def failed(claims):
    return {claim.name for claim in claims if not claim.holds}


@pytest.mark.parametrize(("step_s", "answered"), [(0.5, True), (3.0, False)])
def test_an_engine_that_cannot_keep_up_fails_by_name(step_s, answered):
    profile = BASE.with_(front_end="video:24", window=64)
    loop = Loop("video", profile, 26, 26)
    slow = play(profile, seconds=60.0, bound=profile.bound, costs=Linear(t0=step_s))
    metrics, claims = bounded(loop, slow)
    assert {"no frame is capped", "at least twice the pool was ingested"} <= failed(claims)
    assert "the arm does not wall" not in failed(claims)
    assert metrics["capped_frames"] > 0 and (metrics["delivered"] > 0) == answered
    metrics, claims = unbounded(loop, slow)
    assert "the arm walls" in failed(claims) and not metrics["walled"]


def test_an_interval_holds_t_full_or_not_and_a_point_says_nothing():
    def held(low, high, full):
        return forecast(Prediction(Forecast(10.0, low, high), 3.0, True), full)["in_interval"]

    assert (held(9.0, 11.0, 10.9), held(9.0, 11.0, 11.1)) == (True, False)
    assert held(10.0, 10.0, 10.0) is None and held(9.0, 11.0, None) is None
    assert forecast(None, 10.0)["t_full_predicted_s"] is None
    made = forecast(Prediction(Forecast(10.0, 9.0, 11.0), 3.0, True), 8.0)
    assert (made["error"], made["predicted_at_s"]) == (0.25, 3.0)
    over = coverage([{"seed": 1, **made}, {"seed": 2, **made, "in_interval": True, "error": 0.1}])
    assert (over["in_interval"], over["error_most"]) == (1, 0.25)


def test_a_token_too_many_is_found():
    bound, block = KVBound(32, 0), 16
    # 32 tokens of window and up to 15 beyond stay; each frame adds 20 + 5 - 1.
    held = [24, 48, 56, 64, 56]
    frames = pd.DataFrame(
        {"session": "s0", "frame": range(5), "tokens_in": 20, "tokens_delivered": 5, "resident_tokens": held}
    )
    assert held_as_reckoned(frames, bound, block) == (5, 5)
    assert held_as_reckoned(frames.assign(resident_tokens=[24, 48, 57, None, 56]), bound, block) == (3, 4)


@dataclass
class Heard(Linear):
    """Notes the seconds of audio that it is asked about."""

    front_end_s: float = 0.1
    seconds: set = field(default_factory=set)

    def step_s(self, prefill, decoding, context, encoder_s, prefill_pairs):
        self.seconds.add(round(encoder_s, 6))
        return super().step_s(prefill, decoding, context, encoder_s, prefill_pairs)


@pytest.mark.parametrize(
    ("front_end", "seconds", "first_s"),
    [("load:26", {0.0, 2.0}, 0.236), ("video:24", {0.0}, 0.036), ("scratchpad:26-26", {0.0}, 0.036)],
)
def test_only_what_stands_for_audio_is_encoded(front_end, seconds, first_s):
    costs = Heard()
    with make(BASE.with_(front_end=front_end), costs) as manager:
        manager.add(None)
        manager.wait_for(seconds=9.0)
        frames = manager.frames().dropna(subset=["first_token_at_s"])
    assert costs.seconds == seconds
    assert (frames["first_token_at_s"] - frames["due_at_s"]).round(6).unique().tolist() == [first_s]


@pytest.mark.parametrize(
    ("params", "error", "says"),
    [
        ({"window": 48}, BoundError, "smaller than one frame of 64"),
        ({"window": 8}, BoundError, "smaller than one block"),
        ({"window": 1600}, ExperimentError, "scratchpad: the bounded arm cannot hold its plateau"),
        ({"scratchpad_shortest": 0}, FrontEndError, "no range of tokens"),
        ({"scratchpad_shortest": 65}, FrontEndError, "no range of tokens"),
        ({"scratchpad_longest": -1}, FrontEndError, "no range of tokens"),
        ({"scratchpad_eos_chance": 1.0}, ProfileError, "eos_chance must be"),
        ({"scratchpad_budget_s": float("nan")}, ProfileError, "frame_budget_s"),
        ({"scratchpad_sessions": 200}, ExperimentError, "too soon to predict"),
        ({"scratchpad_sessions": 1}, ExperimentError, "max_model_len"),
        ({"video_sessions": 0}, ProfileError, "sessions must be positive"),
        ({"video_tokens": 0}, FrontEndError, "no count of tokens"),
        ({"video_tokens": -3}, FrontEndError, "no count of tokens"),
        ({"video_owed": 0}, ProfileError, "tokens_owed"),
        ({"seed": -1}, ProfileError, "seed"),
    ],
)
def test_bad_input_is_refused_in_one_line_before_an_engine_starts(small, monkeypatch, params, error, says):
    monkeypatch.setattr("workbench.experiments.loops.SessionManager", None)
    with pytest.raises(error, match=says) as refused:
        run(small, **{**SIZES, **params})
    assert "\n" not in str(refused.value)


def test_a_bounded_session_that_would_grow_too_old_is_refused(small):
    with pytest.raises(ExperimentError, match="max_positions 2500 before the bounded arm"):
        run(small.with_(max_positions=2500), **{**SIZES, "scratchpad_sessions": 10})


def test_what_does_not_stay_or_is_real_is_refused(small):
    with pytest.raises(ExperimentError, match="holding_s"):
        run(small.with_(holding_s=3.0), **SIZES)
    with pytest.raises(ExperimentError, match="give a sim: profile"):
        run(load_profile("smollm2"))
