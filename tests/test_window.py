"""The experiment window: plateau and ceiling over W, against the arithmetic, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from tests.test_simulated import BASE, Linear
from workbench.bound import KVBound, plateau
from workbench.engine.simulated import SimulatedEngine
from workbench.experiments import experiment
from workbench.experiments import window as module
from workbench.experiments._steady import Steady
from workbench.runs import Runs

SMALL = BASE.with_(sessions=4)
ASKED = {"windows": "64,128", "sessions": 4, "frames": 5}


@dataclass
class Long(Linear):
    """Steps whose length hangs on the context that they read."""

    def step_s(self, prefill, decoding, context, encoder_s, prefill_pairs):
        return super().step_s(prefill, decoding, context, encoder_s, prefill_pairs) + 1e-4 * context


@pytest.fixture
def engines(monkeypatch):
    from workbench import sessions

    def use(costs):
        monkeypatch.setattr(sessions, "make_engine", lambda profile: SimulatedEngine(profile, costs=costs))

    use(Linear())
    return use


def run(**more):
    return experiment("window")(SMALL, runs=Runs(workers=1), **{**ASKED, **more})


def test_plateau_ceiling_and_latency_of_each_window(engines):
    result = run()
    assert result.holds, [claim for claim in result.claims if not claim.holds]
    small, large = result.metrics["points"]
    for point, window in ((small, 64), (large, 128)):
        each = plateau(KVBound(window, 16), 16, 26, 4)
        assert (point["window"], point["n"], point["frames"]) == (window, 4, 4 * 5)
        assert point["memory_ceiling"] == 200 // each.most
        assert point["plateau_predicted_usage"] == pytest.approx(4 * each.mean / 200)
        assert abs(point["plateau_usage"] - point["plateau_predicted_usage"]) <= 4 / 200
        assert point["n_star"] is None and point["capped"] == point["empty"] == 0
    assert small["latency_p50_s"] == large["latency_p50_s"] > 0.1
    assert set(result.frames["run"]) == {"W = 64"}
    assert result.metrics["paper"]["usage"]["1024"] == 0.064


def test_a_latency_that_hangs_on_the_window_fails_the_claim_that_it_is_flat(engines):
    engines(Long())
    failed = {claim.name: claim.value for claim in run().claims if not claim.holds}
    assert list(failed) == ["latency is flat from W = 64 to 128"]
    assert failed["latency is flat from W = 64 to 128"] > module.FLAT


def test_a_plateau_that_is_not_the_arithmetics_fails_its_claim(engines, monkeypatch):
    real = module.steady

    def off(*args) -> Steady:
        seen = real(*args)
        return Steady(**{**vars(seen), "plateau_usage": seen.plateau_usage + 1.5 * seen.n / 200})

    monkeypatch.setattr(module, "steady", off)
    assert [claim.name for claim in run().claims if not claim.holds] == [
        "the plateau is that of the arithmetic, at every window"
    ]


def test_the_full_form_finds_n_star(engines):
    # 10 + 26 N + 30 + 6 N milliseconds within 300: N = 8.
    result = run(full=True, windows="64", frames=5, target=0.15)
    assert result.metrics["points"][0]["n_star"] == 8


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"windows": "64,x"}, "windows must be whole numbers"),
        ({"windows": "64,64"}, "windows names one twice"),
        ({"windows": "0"}, "window must be positive"),
        ({"windows": "-64"}, "window must be positive"),
        ({"windows": "8"}, "smaller than one block"),
        ({"windows": "3190"}, "more than max_model_len"),
        ({"windows": "2048"}, "the plateaus of 4 sessions do not fit the pool of 200 blocks, 1 do"),
        ({"frames": 0}, "frames must be 1 or more"),
        ({"sessions": 0}, "sessions must be positive"),
        ({"target": math.nan}, "wait cap"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line_before_any_engine_starts(wrong, said, monkeypatch):
    from workbench import sessions

    monkeypatch.setattr(sessions, "make_engine", lambda profile: pytest.fail("an engine was made"))
    with pytest.raises(ValueError, match=said) as error:
        run(**wrong)
    assert "\n" not in str(error.value)


def test_a_real_profile_and_replies_that_end_early_are_refused():
    with pytest.raises(ValueError, match="give a sim: profile"):
        experiment("window")(SMALL.with_(executor="vllm"), **ASKED)
    with pytest.raises(ValueError, match="eos_chance"):
        experiment("window")(SMALL.with_(eos_chance=0.1), **ASKED)
