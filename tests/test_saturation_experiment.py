"""The saturation experiment on simulated profiles: what it measures, claims and refuses."""

from __future__ import annotations

import pytest

from tests.test_simulated import Linear
from workbench.cards import CardError
from workbench.experiments import ExperimentError, experiment
from workbench.profiles import load_profile
from workbench.saturation import Forecast, Prediction

run = experiment("saturation")


@pytest.fixture(scope="module")
def small():
    """Qwen3-Omni's card on a pool that 40 sessions fill within some frames."""
    return load_profile("sim:qwen3-omni@h100").with_(sessions=40, pool_blocks=3000, phase_groups=8, max_model_len=4000)


@pytest.fixture(scope="module")
def result(small):
    return run(small.with_(eos_chance=0.05, start_jitter=0.3, step_noise=0.2, shared_prefix=32), models="none")


def test_t_full_is_predicted_with_every_source_of_variance_on(result):
    assert result.holds, [claim for claim in result.claims if not claim.holds]
    model = result.metrics["models"]["qwen3-omni"]
    assert model["low"] <= model["t_full_predicted_s"] <= model["high"]
    assert abs(model["t_full_predicted_s"] - model["t_full_measured_s"]) <= max(
        0.02 * model["t_full_measured_s"], model["frame_budget_s"]
    )


def test_what_it_says_of_itself(result):
    assert (result.experiment, result.executor) == ("saturation", "simulated")
    assert result.params["eos_chance"] == 0.05 and "roofline" in result.params["costs"]
    assert set(result.pool["run"]) == {"qwen3-omni"}


def test_a_prediction_that_is_off_fails_its_claim(small, monkeypatch):
    monkeypatch.setattr(
        "workbench.experiments.saturation.prediction", lambda *a: Prediction(Forecast(1.0, 1.0, 1.0), 0.5, True)
    )
    result = run(small, models="none")
    assert [claim.name for claim in result.claims if not claim.holds] == ["qwen3-omni: t_full is predicted"]


def test_a_prediction_that_does_not_replay_fails_its_claim(small, monkeypatch):
    from workbench.saturation import prediction

    def forged(*tables):
        made = prediction(*tables)
        return Prediction(made.forecast, made.at_s, replays=False)

    monkeypatch.setattr("workbench.experiments.saturation.prediction", forged)
    assert ["replay" in claim.name for claim in run(small, models="none").claims if not claim.holds] == [True]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"models": "gpt"}, CardError, "qwen3-omni"),
        ({"models": "moshi,moshi"}, ExperimentError, "twice"),
        ({"hardware": "abacus"}, CardError, "rtx-pro-6000"),
        ({"models": "moshi", "eos_chance": 2.0}, ValueError, "eos_chance"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(small, options, error, words):
    with pytest.raises(error, match=words):
        run(small, **options)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sessions": 600, "max_sessions": 600}, "too soon"),
        ({"sessions": 2}, "max_model_len"),
    ],
)
def test_a_run_that_could_show_nothing_is_refused(small, changes, words):
    with pytest.raises(ExperimentError, match=words):
        run(small.with_(**changes), models="none")


def test_too_few_sessions_for_a_models_context_are_made_enough(small):
    from workbench.experiments.saturation import paper_profile

    moshi = paper_profile("moshi", "rtx-pro-6000", 0, {})
    frames = moshi.pool_tokens / (moshi.sessions * moshi.growth)
    assert frames * moshi.growth < moshi.max_model_len and moshi.sessions > 32


def test_linear_costs_are_no_part_of_the_answer(small):
    """The fill of the pool does not hang on how long a step takes, as long as the engine keeps up."""
    from workbench.engine.simulated import SimulatedEngine
    from workbench.sessions import SessionManager
    from workbench.workload import caller, play

    full = []
    for t0 in (0.001, 0.005):
        with SessionManager(small, engine=SimulatedEngine(small, costs=Linear(t0=t0))) as manager:
            beat = manager.beat
            play(manager, 200.0, caller(manager), stop=lambda beat=beat: beat.first_refused_at_s is not None)
        full.append(beat.first_refused_at_s)
    assert abs(full[0] - full[1]) < small.frame_budget_s
