"""Sweeps: the grid and what it refuses, what is a result and what an error, the files, the command."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd
import pytest

from workbench import experiments
from workbench._cli_sweep import read_seeds
from workbench._terminal import duration, ends_at
from workbench._values import ValueRefused
from workbench._workers import Here, Local
from workbench.cli import main
from workbench.profiles import ProfileError, load_profile
from workbench.runs import Runs, RunsError
from workbench.sweep import SweepError, grid_points, one_point, sweep

FAKE = '''
"""Adds up what it is given."""

from pathlib import Path

from workbench.experiments import Claim, ExperimentError, Result

PROFILE = "sim:moshi@rtx-pro-6000"


def run(
    profile, *, progress=None, tables_dir=None, runs=None, rate: float = 1.0, text: str = "", seed: int | None = None,
    full: bool = False,
) -> Result:
    calls = Path(__file__).parent / "calls"
    calls.mkdir(exist_ok=True)
    (calls / f"{rate} {text} {seed} {profile.window} {full} {runs.workers}").touch()
    if text == "refused":
        raise ExperimentError("not like this:\\n  otherwise")
    if text == "fault":
        raise ZeroDivisionError("a bug")
    metrics = {"sum": rate + profile.window, "deep": {"rate": rate, "each": [1, 2]}, "rate": 2 * rate, "full": full}
    claims = (Claim("low", rate < 3, rate, "below 3"),)
    params = {"rate": rate, "text": text}
    return Result("fake", profile.name, "simulated", "0", seed or 0, params, metrics, claims, None, None, None)
'''
SIM = load_profile("sim:moshi@rtx-pro-6000")
HERE = Runs(workers=1)


@pytest.fixture
def fake(tmp_path, monkeypatch) -> Path:
    """An experiment called fake; the folder returned gets a file for each call of it."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "fake_sweep.py").write_text(FAKE)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(experiments.EXPERIMENTS, "fake", "fake_sweep")
    monkeypatch.delitem(sys.modules, "fake_sweep", raising=False)
    yield folder / "calls"
    sys.modules.pop("fake_sweep", None)


def calls(folder: Path) -> int:
    return len(list(folder.iterdir())) if folder.exists() else 0


# -- the grid ---------------------------------------------------------------------------------------------------------


def test_the_grid_is_every_value_with_each_and_the_seeds_vary_fastest(fake):
    swept = sweep("fake", SIM, {"rate": [1.0, 2.0], "window": [512, 1024]}, seeds=[3, 4], runs=HERE)
    wanted = [(rate, window, seed) for rate in (1.0, 2.0) for window in (512, 1024) for seed in (3, 4)]
    assert [tuple(point.values.values()) for point in swept.points] == wanted
    assert [point.result["metrics"]["sum"] for point in swept.points] == [rate + window for rate, window, _ in wanted]
    assert [point.result["seed"] for point in swept.points] == [3, 4] * 4
    assert calls(fake) == 8


def test_a_key_is_a_parameter_first_and_a_field_of_the_profile_else(fake):
    (point,) = grid_points("fake", SIM, {"rate": [2.0], "seed": [5], "window": [256], "step_noise": [0.5]})
    assert point.params == {"rate": 2.0, "seed": 5}
    assert (point.profile.window, point.profile.step_noise, point.profile.seed) == (256, 0.5, SIM.seed)


def test_seeds_reach_an_experiment_without_such_a_parameter_by_the_profile():
    points = grid_points("cliff", SIM, {}, seeds=[7, 8])
    assert [point.profile.seed for point in points] == ([7, 8] if "seed" not in points[0].params else [0, 0])
    assert [point.values for point in points] == [{"seed": 7}, {"seed": 8}]


@pytest.mark.parametrize(
    ("grid", "options", "error", "words"),
    [
        ({}, {}, SweepError, "nothing to sweep over"),
        ({"nope": [1]}, {}, SweepError, "'nope' is neither a parameter of fake"),
        ({"tables_dir": ["x"]}, {}, SweepError, "'tables_dir' is neither"),
        ({"rate": []}, {}, SweepError, "rate has no values"),
        ({"rate": [1.0, 2.0, 1.0]}, {}, SweepError, "rate 1.0 is given twice"),
        ({"rate": [1.0]}, {"params": {"rate": 2.0}}, SweepError, "rate is given twice, as a parameter and in the grid"),
        ({"seed": [1]}, {"seeds": [2]}, SweepError, "the seeds are given twice"),
        ({}, {"seeds": []}, SweepError, "seed has no values"),
        ({"window": [0]}, {}, ProfileError, "window must be positive"),
        ({"sessions": [4, 10**9]}, {}, ProfileError, "more than max_sessions"),
        ({"full": [True]}, {"full": True}, SweepError, "full is given twice"),
    ],
)
def test_a_bad_grid_is_refused_before_any_point(fake, grid, options, error, words):
    with pytest.raises(error, match=words) as refused:
        sweep("fake", SIM, grid, runs=HERE, **options)
    assert "\n" not in str(refused.value)
    assert calls(fake) == 0


def test_points_of_a_real_engine_stay_on_this_machine(fake):
    sweep("fake", load_profile("tiny"), {"rate": [1.0, 2.0]}, runs=Runs(workers=2))
    assert calls(fake) == 2
    with pytest.raises(RunsError, match="a real engine serves on this machine alone"):
        sweep("fake", load_profile("tiny"), {"rate": [1.0]}, runs=Runs(ray="local"))


# -- results ----------------------------------------------------------------------------------------------------------


def test_a_claim_that_fails_is_a_result_and_an_error_stops_nothing(fake):
    swept = sweep("fake", SIM, {"rate": [3.5, 1.0], "text": ["a", "refused", "fault", "z"]}, runs=HERE)
    assert [point.holds for point in swept.points] == [False] * 3 + [False, True, False, False, True]
    assert swept.points[1].error == "not like this: otherwise"
    assert swept.points[2].error.startswith("ZeroDivisionError: a bug")
    assert "fake_sweep.py" in swept.points[2].trace
    assert not swept.holds
    assert swept.failures()[:2] == [
        "rate 3.5, text a: claim failed: low: 3.5, where below 3",
        "rate 3.5, text refused: not like this: otherwise",
    ]
    assert len(swept.failures()) == 6


def test_the_frame_has_the_grid_then_every_single_metric(fake):
    frame = sweep("fake", SIM, {"rate": [1.0, 2.0], "text": ["a", "refused"]}, runs=HERE).frame()
    assert list(frame.columns) == [
        "rate", "text", "executor", "holds", "error", "sum", "deep.rate", "metrics.rate", "full"
    ]  # fmt: skip
    assert frame["deep.rate"].tolist()[::2] == [1.0, 2.0]
    assert frame["metrics.rate"].tolist()[::2] == [2.0, 4.0]
    assert frame["executor"].tolist()[0] == "simulated"
    assert frame["deep.rate"].isna().tolist() == [False, True, False, True]


def test_what_an_experiment_is_made_of_is_computed_within_its_point(fake):
    sweep("fake", SIM, seeds=[1], runs=HERE)
    assert [path.name.split()[-1] for path in fake.iterdir()] == ["1"]


def test_points_are_found_again_and_errors_are_tried_again(fake, tmp_path):
    grid = {"text": ["a", "refused"]}
    first = sweep("fake", SIM, grid, runs=Runs(tmp_path / "points", workers=1))
    for path in fake.iterdir():
        path.unlink()
    runs = Runs(tmp_path / "points", workers=1)
    assert sweep("fake", SIM, grid, runs=runs) == first
    assert (runs.reused, runs.computed) == (1, 1)
    assert [path.name.split()[1] for path in fake.iterdir()] == ["refused"]


SMALL = SIM.with_(name="sim:small", sessions=4, window=128, pool_blocks=120, block_size=16, max_model_len=1800)


def test_another_process_simulates_the_same():
    points = [{"name": "cliff", "profile": SMALL, "params": {"frames": 60}}]
    (here,) = Here().compute(one_point, points)
    assert here[1].error is None
    assert list(Local(1).compute(one_point, points)) == [here]


# -- the command ------------------------------------------------------------------------------------------------------


def test_the_command_leaves_its_files_and_a_summary(fake, tmp_path, capfd):
    out = tmp_path / "out"
    argv = ["sweep", "fake", "--grid", "rate=1,2", "--seeds", "0-1", "--workers", "1", "--out", str(out)]
    assert main(argv) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "fake, 4 points, simulated"
    assert lines[2].split() == ["rate", "seed", "holds", "sum", "deep.rate", "metrics.rate"]
    assert lines[3].split() == ["1", "0", "yes", "1025", "1", "2"]
    written = json.loads((out / "sweep.json").read_text())
    assert [point["values"] for point in written["points"]] == [
        {"rate": rate, "seed": seed} for rate in (1.0, 2.0) for seed in (0, 1)
    ]
    assert written["points"][0]["result"]["executor"] == "simulated"
    assert pd.read_csv(out / "sweep.csv")["sum"].tolist() == [1025.0, 1025.0, 1026.0, 1026.0]
    assert main(argv) == 0
    err = capfd.readouterr().err
    assert f"workbench: 4 of 4 points were found in {out / 'points'}: --fresh computes them again" in err.splitlines()
    assert main([*argv, "--fresh"]) == 0
    assert "found in" not in capfd.readouterr().err


def test_status_1_names_every_failure(fake, tmp_path, capfd):
    argv = ["sweep", "fake", "--grid", "rate=1,4", "--grid", "text=a,refused", "--workers", "1", "--json", "-"]
    assert main([*argv, "--out", str(tmp_path)]) == 1
    out, err = capfd.readouterr()
    assert len(json.loads(out)["points"]) == 4
    named = [line for line in err.splitlines() if line.startswith("workbench: ")]
    assert named == [
        "workbench: rate 1.0, text refused: not like this: otherwise",
        "workbench: rate 4.0, text a: claim failed: low: 4.0, where below 3",
        "workbench: rate 4.0, text refused: not like this: otherwise",
    ]


def test_values_with_commas_are_parted_by_semicolons(fake, capfd):
    assert main(["sweep", "fake", "--grid", "text=a,b;c", "--dry-run"]) == 0
    assert capfd.readouterr().out.splitlines() == ["text", "a,b", "c"]


def test_a_dry_run_lists_the_points_and_leaves_nothing(fake, tmp_path, capfd):
    out = tmp_path / "out"
    argv = ["sweep", "fake", "--grid", "window=512,1024", "--seeds", "0,3", "--dry-run", "--out", str(out)]
    assert main(argv) == 0
    listed = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert listed == [["window", "seed"], ["512", "0"], ["512", "3"], ["1024", "0"], ["1024", "3"]]
    assert calls(fake) == 0
    assert not out.exists()


def test_the_long_form_and_parameters_reach_every_point(fake, tmp_path):
    argv = ["sweep", "fake", "--seeds", "0,1", "--full", "-p", "rate=2", "--workers", "1", "--out", str(tmp_path)]
    assert main(argv) == 0
    assert {tuple(path.name.split()[i] for i in (0, -2)) for path in fake.iterdir()} == {("2.0", "True")}


def test_a_real_engine_is_said_to_take_turns(fake, tmp_path, capfd):
    assert main(["sweep", "fake", "--seeds", "0,1", "--profile", "tiny", "--out", str(tmp_path)]) == 0
    assert "workbench: a real engine takes all cores: its points run one at a time" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "nothing to sweep over"),
        (["--grid", "rate"], "--grid rate: give it as key=value"),
        (["--grid", "rate="], "--grid rate=: a value is missing"),
        (["--grid", "rate=1,,2"], "a value is missing"),
        (["--grid", "rate=1,x"], "parameter rate must be a number, not 'x'"),
        (["--grid", "rate=1,nan"], "parameter rate must be a number, not 'nan'"),
        (["--grid", "rate=1,1.0"], "rate 1.0 is given twice"),
        (["--grid", "rate=1", "--grid", "rate=2"], "--grid rate is given twice"),
        (["--grid", "nope=1"], "'nope' is neither a parameter of fake (rate, text, seed, full) nor a field"),
        (["--grid", "window=0"], "window must be positive"),
        (["--grid", "window=1.5"], "profile field window must be a whole number"),
        (["--seeds", "4-0"], "--seeds 4-0 goes down: give 0-4"),
        (["--seeds", "0,0"], "seed 0 is given twice"),
        (["--seeds", "x"], "--seeds x: give whole numbers from 0 on"),
        (["--seeds", "0-99999"], "are more than 10000: give fewer"),
        (["--seeds", "0", "--workers", "0"], "0 is no number of workers"),
        (["--seeds", "0", "--ray", "somewhere"], "no Ray cluster 'somewhere': give local, auto or HOST:PORT"),
        (["--seeds", "0", "--ray", "local", "--profile", "tiny"], "a real engine serves on this machine alone"),
        (["--seeds", "0", "--out", "/dev/null/x"], "cannot write /dev/null/x"),
    ],
)
def test_a_bad_sweep_is_one_line(fake, tmp_path, capfd, argv, words):
    out = [] if "--out" in argv else ["--out", str(tmp_path / "out")]
    try:
        status = main(["sweep", "fake", *argv, *out])
    except SystemExit as end:
        status = end.code
    printed, err = capfd.readouterr()
    assert (status, printed) == (2, "")
    assert words in err.splitlines()[-1]
    assert calls(fake) == 0


def test_an_unknown_experiment_is_one_line(capfd):
    assert main(["sweep", "nope", "--seeds", "0"]) == 2
    assert "no experiment 'nope': choose from" in capfd.readouterr().err


# -- seeds and time ---------------------------------------------------------------------------------------------------


def test_seeds_are_ranges_and_lists():
    assert read_seeds("0-3") == [0, 1, 2, 3]
    assert read_seeds("7, 1-2,5-5") == [7, 1, 2, 5]
    with pytest.raises(ValueRefused):
        read_seeds("-1")


def test_the_time_left_is_told_from_the_first_progress_on():
    assert ends_at(began=100.0, now=110.0, done=0.0) is None
    assert ends_at(began=100.0, now=110.0, done=0.25) == 140.0
    assert ends_at(began=100.0, now=110.0, done=1.0) == 110.0


def test_the_time_left_is_said_in_words():
    said = [duration(seconds) for seconds in (-5.0, 0.4, 40.2, 99.0, 100.0, 3600.0, 12000.0)]
    assert said == ["", "", "40 s", "99 s", "2 min", "60 min", "3 h 20 min"]
