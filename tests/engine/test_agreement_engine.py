"""The simulator beside the real engine on the tiny profile: the pool fills and walls when the twin says so."""

from __future__ import annotations

import pytest

from tests.made_up import made_up
from workbench.experiments import experiment
from workbench.profiles import load_profile

PROFILE = load_profile("tiny")


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    # When the pool fills does not hang on how long a step takes, as long as the engine keeps up.
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("calibration")
        patch.setattr("workbench.costs.CALIBRATIONS", folder)
        made_up("tiny").save(folder / "tiny.json")
        return experiment("agreement")(PROFILE, n_star=False)


def test_both_fill_and_wall_within_a_frame(result):
    times, frame = result.metrics, PROFILE.frame_budget_s
    for name in ("t_full", "t_wall"):
        assert abs(times[f"{name}_simulated_s"] - times[f"{name}_measured_s"]) <= frame


def test_both_hold_the_same_tokens_and_blocks_when_each_rests(result):
    rests = result.pool.query("running == 0 and waiting == 0 and blocks_used < blocks_total")
    steps = rests.groupby(["run", "resident_tokens"])["blocks_used"].first().unstack("run").dropna()
    assert len(steps) > 10 and (steps["measured"] == steps["simulated"]).all()


def test_it_says_which_is_which(result):
    assert (result.executor, set(result.pool["run"])) == ("vllm-cpu", {"measured", "simulated"})
    assert result.metrics["n_star_simulated"] is None and "calibration of tiny" in result.params["costs"]
