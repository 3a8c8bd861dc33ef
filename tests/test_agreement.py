"""The agreement experiment's arithmetic: the search for N*, what counts as holding, and what is refused."""

from __future__ import annotations

import pytest

from workbench.costs import CostError
from workbench.experiments import ExperimentError, experiment
from workbench.experiments._steady import Steady
from workbench.experiments.agreement import FARTHEST, _step_from
from workbench.profiles import load_profile

run = experiment("agreement")


@pytest.mark.parametrize("start", range(1, 12))
def test_the_search_finds_the_n_that_holds_while_the_next_does_not(start):
    asked = []

    def holds(n):
        asked.append(n)
        return n <= 6

    found = _step_from(start, holds, most=64)
    # Upwards one more has to be seen to fail.
    assert found == (6 if start - FARTHEST <= 6 < start + FARTHEST else None)
    assert len(set(asked)) == len(asked)


def test_the_search_keeps_within_what_the_profile_serves():
    assert _step_from(3, lambda n: True, most=4) == 4
    assert _step_from(2, lambda n: False, most=4) == 0


@pytest.mark.parametrize(
    ("changes", "holds"), [({}, True), ({"capped": 1}, False), ({"empty": 1}, False), ({"latency_p99_s": 0.61}, False)]
)
def test_n_holds_by_its_definition(changes, holds):
    steady = Steady(
        **{
            "executor": "x",
            "n": 2,
            "latency_p50_s": 0.1,
            "latency_p99_s": 0.6,
            "capped": 0,
            "empty": 0,
            "frames": 9,
            **changes,
        }
    )
    assert steady.holds(0.6) is holds


@pytest.mark.parametrize(
    ("profile", "options", "error", "words"),
    [
        ("sim:tiny", {}, ValueError, "simulated already"),
        ("tiny", {"target": 0.9}, ExperimentError, "wait cap"),
        ("tiny", {"frames": 0}, ExperimentError, "frames"),
        ("tiny", {}, CostError, "workbench calibrate"),
    ],
)
def test_bad_input_is_refused_before_an_engine_starts(profile, options, error, words, tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.costs.CALIBRATIONS", tmp_path)
    with pytest.raises(error, match=words):
        run(load_profile(profile), **options)
