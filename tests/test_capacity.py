"""The capacity experiment on a small simulated profile: what it finds, claims and refuses."""

from __future__ import annotations

import math

import pytest

from tests.test_simulated import BASE, Linear
from workbench.cards import CardError
from workbench.engine.simulated import SimulatedEngine
from workbench.experiments import ExperimentError, experiment
from workbench.experiments._capacity import (
    PRECISION,
    burst_frames,
    burst_room,
    cycle,
    find_slowdown,
    is_prompted,
    most_plateaus,
    roomy,
    slowest,
)
from workbench.experiments.capacity import PAPER_BURST, PROFILE
from workbench.profiles import load_profile
from workbench.runs import Runs

run = experiment("capacity")
SMALL = BASE.with_(window=64, sinks=16)


@pytest.fixture(scope="module")
def result():
    """Latency of N sessions that fall due together: 40 + 32 N ms, so that 17 keep 0.6 s. 25 plateaus fit the pool."""
    from workbench import sessions

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "make_engine", lambda profile: SimulatedEngine(profile, costs=Linear()))
        yield run(SMALL, models="none", runs=Runs(workers=1), seconds=20.0, frames=24, what_if="4")


def test_a_point_says_what_holds_and_what_limits_it(result):
    (point,) = result.metrics["points"]
    assert (point["n_star"], point["fails_at"], point["limit"]) == (17, 18, "latency")
    assert point["latency_p99_s"] == pytest.approx(0.040 + 17 * 0.032)
    assert (point["memory_ceiling"], point["memory_at_most"]) == (25, 40)
    assert 25 <= point["memory_ceiling_measured"] <= 40
    assert point["frames_judged"] == 17 * 24  # N* itself, not only the search


def test_a_burst_ends_where_eq_1_says(result):
    (point,) = result.metrics["points"]
    assert (point["burst"], point["burst_by_eq1"], point["burst_limit"]) == (10, 10, "memory")
    assert point["burst_fails_at"] == 11 and "burst_90s" not in point


def test_slowdowns_stretch_the_latency_to_the_target(result):
    (four,) = result.metrics["what_if"]
    assert four["latency_p99_s"] == pytest.approx(0.040 + 4 * 0.032)
    exact = 0.6 / four["latency_p99_s"]
    assert exact / (1 + PRECISION) <= four["slowdown"] <= exact


def test_every_claim_holds_and_the_result_says_who_served(result):
    assert result.holds, [claim for claim in result.claims if not claim.holds]
    assert (result.executor, result.params["costs"], result.vllm != "") == ("simulated", "made up", True)
    assert result.params["search_frames"] == 20 and result.params["target"] == 0.3
    assert result.sessions.empty and result.frames.empty and result.pool.empty


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        ({"memory_ceiling_measured": 41}, "test, W = 64: memory ends where the plateaus say"),
        ({"n_star": 41}, "test, W = 64: N* fits memory"),
        ({"n_star": 0}, "test, W = 64: N* fits memory"),
        ({"burst": 8}, "test, W = 64: Eq. 1 predicts the burst"),
    ],
)
def test_a_claim_can_fail(result, change, claim):
    from workbench.experiments.capacity import _claims

    rows = [result.metrics["points"][0] | change]
    assert [each.name for each in _claims(rows, [], 0.01) if not each.holds] == [claim]


def test_a_slowdown_that_rises_with_n_fails_its_claim(result):
    from workbench.experiments.capacity import _claims

    slow = [{"n": n, "slowdown": k, "burst_seconds": None} for n, k in ((2, 1.0), (4, 2.0))]
    failed = [each.name for each in _claims(result.metrics["points"], slow, 0.01) if not each.holds]
    assert failed == ["the more sessions, the smaller the slowdown they bear"]


@pytest.mark.parametrize("truth", [0.3, 1.0, 1.7, 40.0])
def test_a_slowdown_is_found_to_its_precision(truth):
    assert truth / (1 + PRECISION) <= slowest(lambda k: k <= truth) <= truth


@pytest.mark.parametrize("answer", [True, False])
def test_no_slowdown_is_found_where_all_or_none_hold(answer):
    assert slowest(lambda k: answer) is None


def test_the_arithmetic_of_a_card():
    qwen, minicpm, moshi = (load_profile(f"sim:{m}@rtx-pro-6000") for m in ("qwen3-omni", "minicpm-o-4.5", "moshi"))
    # 45 frames of 32 tokens, 90 of 15, 1125 of 1: in blocks of 16.
    assert [burst_frames(each, 90) for each in (qwen, minicpm, moshi)] == [45, 90, 1125]
    assert burst_room(qwen, 90) == qwen.pool_blocks // 90
    assert burst_room(minicpm, 90) == minicpm.pool_blocks // math.ceil(90 * 15 / 16)
    assert [cycle(each) for each in (qwen, minicpm, moshi)] == [1, 16, 16]
    assert most_plateaus(qwen) == qwen.pool_blocks // 65
    assert not is_prompted(qwen) and is_prompted(minicpm) and is_prompted(moshi)
    assert roomy(load_profile("sim:qwen2.5-omni@rtx-pro-6000"), 90).max_sessions > 1230


def test_the_default_profile_is_one_of_the_paper_s():
    assert load_profile(PROFILE).model in PAPER_BURST


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"models": "gpt"}, CardError, "qwen3-omni"),
        ({"models": "moshi,moshi"}, ExperimentError, "twice"),
        ({"models": "moshi", "hardware": "abacus"}, CardError, "rtx-pro-6000"),
        ({"models": "moshi", "hardware": "none"}, ExperimentError, "hardware"),
        ({"models": "moshi", "windows": "1024,many"}, ExperimentError, "whole numbers"),
        ({"models": "moshi", "windows": "0"}, ExperimentError, "above 0"),
        ({"models": "moshi", "windows": "-5"}, ExperimentError, "above 0"),
        ({"models": "moshi", "windows": "3000"}, ExperimentError, "max_model_len"),
        ({"models": "qwen3-omni", "windows": "10000000"}, ExperimentError, "max_model_len"),
        ({"models": "moshi", "slowdowns": "nan"}, ExperimentError, "above 0"),
        ({"models": "moshi", "slowdowns": "0"}, ExperimentError, "above 0"),
        ({"models": "moshi", "slowdowns": "5000"}, ValueError, "slowdown"),
        ({"what_if": "-1"}, ExperimentError, "above 0"),
        ({"what_if": "2.5"}, ExperimentError, "whole numbers"),
        ({"target": 0.9}, ExperimentError, "wait cap"),
        ({"target": math.nan}, ExperimentError, "wait cap"),
        ({"frames": 0}, ExperimentError, "frames"),
        ({"seconds": math.nan}, ExperimentError, "seconds"),
        ({"seconds": 0.0}, ExperimentError, "seconds"),
        ({"seconds": 1e6}, ExperimentError, "fewer seconds"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(monkeypatch, options, error, words):
    monkeypatch.setattr(Runs, "map", lambda *a: pytest.fail("an engine was started"))
    with pytest.raises(error, match=words) as refused:
        run(SMALL, **{"models": "none", **options})
    assert "\n" not in str(refused.value)


def test_a_real_engine_is_refused_with_what_measures_it():
    with pytest.raises(ExperimentError, match="agreement"):
        run(load_profile("smollm2"), models="none")


def test_sessions_that_fit_no_pool_bear_no_slowdown(monkeypatch):
    monkeypatch.setattr("workbench.sessions.make_engine", lambda profile: pytest.fail("an engine was made"))
    profile = load_profile("sim:minicpm-o-4.5@rtx-pro-6000", pool_blocks=400, max_model_len=3200, max_sessions=64)
    for n, seconds in ((most_plateaus(profile) + 1, None), (burst_room(profile, 20.0) + 1, 20.0)):
        assert find_slowdown(profile, n, 0.3, seconds) == {"n": n, "slowdown": None, "latency_p99_s": None}
