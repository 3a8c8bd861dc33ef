"""The experiment end to end, as a user runs it: both arms on the tiny profile, metrics alone on stdout."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.saturation import replay
from workbench.telemetry import load_tables

REPO = Path(__file__).parents[2]
PARTS = {
    "unbounded": "walled t_full_predicted_s t_full_measured_s t_wall_s deadline_misses capped_frames empty_frames owed "
    "delivered max_content_lag_s peak_usage",
    "bounded": "walled ingested_over_pool plateau_usage plateau_predicted_usage deadline_misses capped_frames "
    "empty_frames owed delivered latency_age_ratio max_content_lag_s",
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    tables = tmp_path_factory.mktemp("cliff") / "tables"
    command = [sys.executable, "-m", "workbench.cli", "run", "cliff", "--profile", "tiny", "--json", "-"]
    done = subprocess.run([*command, "--tables", str(tables)], capture_output=True, text=True, cwd=REPO, check=False)
    return done, tables


@pytest.fixture(scope="module")
def written(ran):
    return json.loads(ran[0].stdout)


# What a busy machine can upset: it belongs to reports, not to tests.
ON_THE_CLOCK = {"owed = delivered", "no frame is capped", "from the wall on content lag grows second by second"}
ON_THE_CLOCK |= {"from the wall on no deadline is missed"}


def test_it_ran_and_what_is_not_on_the_clock_held(ran, written):
    claims = {c["name"]: c["holds"] for c in written["claims"]}
    assert len(claims) >= 12 and claims.keys() > ON_THE_CLOCK
    assert [name for name, holds in claims.items() if not holds and name not in ON_THE_CLOCK] == []
    assert ran[0].returncode == (0 if all(claims.values()) else 1), ran[0].stderr[-2000:]


def test_the_metrics_file_is_the_contract(written):
    assert (written["experiment"], written["profile"], written["executor"]) == ("cliff", "tiny", "vllm-cpu")
    assert written["vllm"] == "0.32.0" and written["seed"] == 0
    for arm, keys in PARTS.items():
        assert set(written["metrics"][arm]) >= set(keys.split())


def test_the_cliff_and_the_slope_in_frames_tokens_and_blocks(written):
    unbounded, bounded = written["metrics"]["unbounded"], written["metrics"]["bounded"]
    assert unbounded["walled"] and unbounded["peak_usage"] > 0.97 and unbounded["delivered"] < unbounded["owed"]
    assert unbounded["empty_frames"] > 0
    assert not bounded["walled"] and bounded["delivered"] >= 0.9 * bounded["owed"]
    assert bounded["ingested_over_pool"] >= 2
    slack = written["params"]["sessions"] / written["params"]["pool_blocks"]
    assert abs(bounded["plateau_usage"] - bounded["plateau_predicted_usage"]) <= slack


def test_both_arms_heard_the_same(ran):
    tables = load_tables(ran[1])
    clips = tables["sessions"].groupby("run")["clip"].apply(list)
    assert clips["bounded"] == clips["unbounded"]
    frames = tables["frames"]
    assert frames[frames["run"] == "unbounded"]["window"].isna().all()
    assert (frames[frames["run"] == "bounded"]["window"] == 64).all()


def test_the_prediction_stands_in_the_tables_and_its_replay_agrees(ran, written):
    tables = load_tables(ran[1] / "unbounded")
    pool = tables["pool"]
    predicted = written["metrics"]["unbounded"]["t_full_predicted_s"]
    early = pool[(pool["blocks_used"] > 0.3 * pool["blocks_total"]).cummax().eq(False)]
    assert early["t_full_predicted_s"].iloc[-1] == predicted
    assert replay(pool, tables["sessions"], 0.4, 32, until_s=early["at_s"].iloc[-1]).t_full_s == predicted
