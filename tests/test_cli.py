"""The command line: what it takes, what it refuses, what it leaves on stdout, on stderr and as exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from workbench import _cli_run, experiments
from workbench._cli_options import read_profile
from workbench.cli import main

FAKE = '''
"""Shows what it was given.

More about it.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd

from workbench.experiments import Claim, Result


def run(
    profile,
    *,
    progress=None,
    tables_dir: Path | None = None,
    frames: int | None = None,
    rate: float = 1.5,
    live: bool = False,
    clip: str = "a",
    points: tuple[int, ...] = (1, 2),
    raises: str = "",
) -> Result:
    (Path(__file__).parent / "ran").touch()
    print("noise of Python")
    os.write(1, b"noise of a C library")
    os.system("echo noise of a child")
    progress("serving", None)
    progress("served", 1.0)
    if raises:
        module, _, kind = raises.rpartition(".")
        raise getattr(import_module(module), kind)("first line\\n  second line")
    claims = (Claim("rate is low", rate < 2, rate, "under 2"),)
    params = {"frames": frames, "rate": rate, "live": live, "clip": clip}
    metrics = {"infinite": float("inf"), "count": np.int64(3), "pool_blocks": profile.pool_blocks}
    table = pd.DataFrame({"run": ["bounded"]})
    return Result(
        "fake", profile.name, "simulated", "0.0", profile.seed, params, metrics, claims, table, table, table
    )
'''


@pytest.fixture
def fake(tmp_path, monkeypatch) -> Path:
    """An experiment called fake; the file ``ran`` in the folder returned says that it was started."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "fake_experiment.py").write_text(FAKE)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(experiments.EXPERIMENTS, "fake", "fake_experiment")
    monkeypatch.delitem(sys.modules, "fake_experiment", raising=False)
    yield folder
    sys.modules.pop("fake_experiment", None)


def metrics_of(capfd) -> dict:
    """What is on stdout, which has to be one JSON text and nothing else."""
    return json.loads(capfd.readouterr().out)


def refusal(capfd, *argv: str, status: int = 2) -> str:
    """The one line on stderr with which a command line is refused."""
    try:
        assert main(list(argv)) == status
    except SystemExit as end:
        assert end.code == status
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    return err


# -- values -----------------------------------------------------------------------------------------------------------


def test_parameters_are_read_as_what_they_take(fake, capfd):
    assert (
        main(["run", "fake", "-p", "frames=12", "-p", "rate=1", "-p", "live=yes", "-p", "clip=7", "--json", "-"]) == 0
    )
    assert metrics_of(capfd)["params"] == {"frames": 12, "rate": 1.0, "live": True, "clip": "7"}


def test_none_is_a_value_where_none_is_taken(fake, capfd):
    assert main(["run", "fake", "-p", "frames=none", "--json", "-"]) == 0
    assert metrics_of(capfd)["params"]["frames"] is None


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ("frames=many", "parameter frames must be a whole number or none, not 'many'"),
        ("rate=nan", "parameter rate must be a number, not 'nan'"),
        ("rate=none", "parameter rate must be a number, not 'none'"),
        ("live=1", "parameter live must be true or false, not '1'"),
        ("points=3", "parameter points cannot be given as text"),
        ("frames", "-p frames: give it as key=value"),
        ("tables_dir=x", "no parameter 'tables_dir': choose from frames, rate, live, clip, points, raises"),
    ],
)
def test_a_bad_parameter_is_named(fake, capfd, pair, words):
    assert words in refusal(capfd, "run", "fake", "-p", pair)
    assert not (fake / "ran").exists()


def test_a_parameter_comes_once(fake, capfd):
    assert "-p rate is given twice" in refusal(capfd, "run", "fake", "-p", "rate=1", "-p", "rate=2")


# -- profiles ---------------------------------------------------------------------------------------------------------


def test_profile_fields_can_be_changed(fake, capfd):
    changes = ["--set", "pool_blocks=99", "--set", "name=wide"]
    assert main(["run", "fake", "--profile", "tiny", *changes, "--json", "-"]) == 0
    metrics = metrics_of(capfd)
    assert metrics["profile"] == "wide"
    assert metrics["metrics"]["pool_blocks"] == 99


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--profile", "nope"], "no profile 'nope'"),
        (["--set", "pool=1"], "no field 'pool'"),
        (["--set", "self=1"], "no field 'self'"),
        (["--set", "pool_blocks=many"], "profile field pool_blocks must be a whole number, not 'many'"),
        (["--set", "wait_cap=2"], "wait_cap must lie between 0 and 1"),
    ],
)
def test_a_bad_profile_is_refused(fake, capfd, argv, words):
    assert words in refusal(capfd, "run", "fake", *argv)
    assert not (fake / "ran").exists()


def test_an_experiment_names_the_profile_that_is_served_when_nobody_does(fake, capfd):
    with (fake / "fake_experiment.py").open("a") as file:
        file.write('\nPROFILE = "sim:moshi@rtx-pro-6000"\n')
    assert main(["run", "fake", "--json", "-"]) == 0
    assert metrics_of(capfd)["profile"] == "sim:moshi@rtx-pro-6000"
    assert main(["run", "fake", "--profile", "tiny", "--json", "-"]) == 0
    assert metrics_of(capfd)["profile"] == "tiny"


def test_what_an_experiment_changes_in_its_profile_can_be_set_back(fake, capfd, monkeypatch):
    with (fake / "fake_experiment.py").open("a") as file:
        file.write('\nPROFILE, PROFILE_CHANGES = "sim:moshi@rtx-pro-6000", {"slowdown": 2.0}\n')
    served = []
    monkeypatch.setattr(_cli_run, "read_profile", lambda *asked: served.append(read_profile(*asked)) or served[-1])
    for argv in ([], ["--set", "slowdown=1"], ["--set", "window=512"], ["--profile", "sim:moshi@rtx-pro-6000"]):
        assert main(["run", "fake", "--json", "-", *argv]) == 0
        capfd.readouterr()
    assert [profile.slowdown for profile in served] == [2.0, 1.0, 2.0, 1.0]


# -- many runs --------------------------------------------------------------------------------------------------------

MANY = '''
"""Doubles numbers, each a run."""

from pathlib import Path

from workbench.experiments import Result


def double(number: int) -> int:
    (Path(__file__).parent / "doubled").open("a").write(f"{number}\\n")
    return 2 * number


def run(profile, *, progress=None, tables_dir=None, runs=None, full: bool = False, seed: int = 0) -> Result:
    doubled = runs.map(double, [{"number": number} for number in range(4 if full else 2)], progress)
    return Result("many", profile.name, "simulated", "0.0", seed, {}, {"sum": sum(doubled)}, (), None, None, None)
'''


@pytest.fixture
def many(tmp_path, monkeypatch) -> Path:
    """An experiment called many, made of runs that write into the file ``doubled`` of the folder returned."""
    (tmp_path / "many_experiment.py").write_text(MANY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(experiments.EXPERIMENTS, "many", "many_experiment")
    monkeypatch.setattr(_cli_run, "POINTS", tmp_path / "points")
    monkeypatch.delitem(sys.modules, "many_experiment", raising=False)
    yield tmp_path
    sys.modules.pop("many_experiment", None)


def doubled(folder: Path) -> list[str]:
    return sorted((folder / "doubled").read_text().split())


def test_finished_points_are_found_and_that_is_said(many, capfd):
    assert main(["run", "many", "--workers", "1", "--json", "-"]) == 0
    assert metrics_of(capfd)["metrics"] == {"sum": 2}
    assert main(["run", "many", "--workers", "1", "--full", "--json", "-"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["metrics"] == {"sum": 12}
    found = f"workbench: 2 of 4 points were found in {many / 'points'}: --fresh computes them again"
    assert found in err.splitlines()
    assert doubled(many) == ["0", "1", "2", "3"]
    assert main(["run", "many", "--workers", "1", "--fresh", "--json", "-"]) == 0
    assert "were found" not in capfd.readouterr().err
    assert doubled(many) == ["0", "0", "1", "1", "2", "3"]


def test_points_are_computed_by_other_processes(many, capfd):
    assert main(["run", "many", "--workers", "2", "--json", "-"]) == 0
    assert metrics_of(capfd)["metrics"] == {"sum": 2}
    assert doubled(many) == ["0", "1"]


@pytest.mark.parametrize("argv", [["--workers", "2"], ["--fresh"], ["--ray", "local"]])
def test_an_experiment_that_is_one_run_has_no_points(fake, capfd, argv):
    assert "experiment fake is not made of points: leave out" in refusal(capfd, "run", "fake", *argv)
    assert not (fake / "ran").exists()


def test_an_experiment_of_one_form_has_no_long_one(fake, capfd):
    assert "experiment fake has one form only: leave out --full" in refusal(capfd, "run", "fake", "--full")


def test_the_long_form_is_asked_for_once(many, capfd):
    assert "full is given twice" in refusal(capfd, "run", "many", "--full", "-p", "full=true")


@pytest.mark.parametrize("number", ["0", "-1", "many", "1.5"])
def test_a_bad_number_of_workers_is_one_line(many, capfd, number):
    assert f"{number} is no number of workers: give 1 or more" in refusal(capfd, "run", "many", f"--workers={number}")


def test_a_ray_address_that_is_none_is_one_line(many, capfd):
    assert "no Ray cluster 'there': give local, auto or HOST:PORT" in refusal(capfd, "run", "many", "--ray", "there")


# -- what a run leaves ------------------------------------------------------------------------------------------------


def test_stdout_holds_the_json_alone(fake, capfd):
    assert main(["run", "fake", "--json", "-"]) == 0
    out, err = capfd.readouterr()
    written = json.loads(out)
    assert set(written) == {"experiment", "profile", "executor", "vllm", "seed", "params", "metrics", "claims"}
    assert written["metrics"]["infinite"] is None
    assert written["metrics"]["count"] == 3
    for noise in ("noise of Python", "noise of a C library", "noise of a child", "served"):
        assert noise in err


def test_a_metrics_file_is_what_stdout_would_hold(fake, tmp_path, capfd):
    main(["run", "fake", "--json", "-"])
    on_stdout = metrics_of(capfd)
    assert main(["run", "fake", "--json", str(tmp_path / "m.json")]) == 0
    assert json.loads((tmp_path / "m.json").read_text()) == on_stdout


def test_a_summary_says_what_served_and_which_claims_held(fake, capfd):
    assert main(["run", "fake"]) == 0
    out = capfd.readouterr().out
    assert "fake on smollm2, simulated" in out
    assert ["yes", "rate", "is", "low", "1.5", "under", "2"] in [line.split() for line in out.splitlines()]


def test_a_failed_claim_is_named_and_status_1(fake, capfd):
    assert main(["run", "fake", "-p", "rate=3", "--json", "-"]) == 1
    out, err = capfd.readouterr()
    assert json.loads(out)["claims"][0]["holds"] is False
    assert "workbench: claim failed: rate is low: 3.0, where under 2" in err.splitlines()


def test_tables_are_saved(fake, tmp_path, capfd):
    assert main(["run", "fake", "--tables", str(tmp_path / "new" / "tables")]) == 0
    names = sorted(path.name for path in (tmp_path / "new" / "tables").iterdir())
    assert names == ["frames.parquet", "pool.parquet", "sessions.parquet"]


@pytest.mark.parametrize("option", ["--json", "--tables"])
def test_an_output_that_cannot_be_written_is_refused_before_the_run(fake, tmp_path, capfd, option):
    (tmp_path / "file").touch()
    place = str(tmp_path / "file" / "in-a-file")
    assert f"cannot write {place}: Not a directory" in refusal(capfd, "run", "fake", option, place)
    assert not (fake / "ran").exists()


def test_a_disk_that_fills_up_is_one_line(fake, capfd):
    assert main(["run", "fake", "--json", "/dev/full"]) == 2
    assert capfd.readouterr().err.splitlines()[-1].startswith("workbench: cannot write /dev/full: No space left")


def test_a_folder_is_no_metrics_file(fake, tmp_path, capfd):
    assert f"cannot write {tmp_path}: Is a directory" in refusal(capfd, "run", "fake", "--json", str(tmp_path))


def test_a_refused_run_leaves_no_metrics_file(fake, tmp_path, capfd):
    assert main(["run", "fake", "--json", str(tmp_path / "m.json"), "-p", "raises=workbench.bound.BoundError"]) == 2
    assert not (tmp_path / "m.json").exists()


def test_a_refused_run_keeps_the_metrics_file_that_was_there(fake, tmp_path, capfd):
    (tmp_path / "m.json").write_text("kept")
    assert main(["run", "fake", "--json", str(tmp_path / "m.json"), "-p", "raises=workbench.bound.BoundError"]) == 2
    assert (tmp_path / "m.json").read_text() == "kept"


# -- what ends a run --------------------------------------------------------------------------------------------------

ONE_LINERS = (
    "audio.AudioError",
    "bound.BoundError",
    "costs.CostError",
    "engine.EngineDead",
    "engine.EngineError",
    "experiments.ExperimentError",
    "frontends.FrontEndError",
    "profiles.ProfileError",
    "report.ReportError",
    "weights.WeightsError",
)


@pytest.mark.parametrize("error", ONE_LINERS)
def test_the_workbenchs_own_errors_are_one_line_and_status_2(fake, capfd, error):
    assert main(["run", "fake", "-p", f"raises=workbench.{error}"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == "workbench: first line second line"
    assert "Traceback" not in err


def test_an_interrupt_is_one_line_and_status_130(fake, capfd):
    assert main(["run", "fake", "-p", "raises=builtins.KeyboardInterrupt"]) == 130
    assert capfd.readouterr().err.splitlines()[-1] == "workbench: interrupted"


def test_a_fault_of_the_workbench_is_not_hidden(fake, capfd):
    with pytest.raises(RuntimeError, match="first line"):
        main(["run", "fake", "-p", "raises=builtins.RuntimeError"])


def test_stdout_is_given_back_after_an_error(fake, capfd):
    main(["run", "fake", "-p", "raises=builtins.KeyboardInterrupt"])
    os.write(1, b"back")
    assert capfd.readouterr().out == "back"


def test_a_missing_package_is_one_line(fake, monkeypatch, capfd):
    (fake / "fake_experiment.py").write_text("import no_such_package")
    assert "the Python package no_such_package is missing: run `make setup`" in refusal(capfd, "run", "fake")


def test_nobody_reading_stdout_is_no_traceback(fake):
    lines = (
        "import sys",
        f"sys.path.insert(0, {str(fake)!r})",
        "from workbench import cli, experiments",
        "experiments.EXPERIMENTS['fake'] = 'fake_experiment'",
        "sys.exit(cli.main(['run', 'fake', '--json', '-']))",
    )
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], check=False, stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


# -- lists, help and refusals -----------------------------------------------------------------------------------------


def test_run_without_a_name_lists_experiments(fake, monkeypatch, capfd):
    monkeypatch.setattr(experiments, "EXPERIMENTS", {"fake": "fake_experiment"})
    assert main(["run"]) == 0
    assert capfd.readouterr().out.splitlines()[1:] == ["fake        Shows what it was given."]


def test_params_lists_parameters_and_runs_nothing(fake, capfd):
    assert main(["run", "fake", "--params"]) == 0
    lines = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert lines[0] == ["parameter", "takes", "default"]
    assert ["frames", "int", "or", "None", "None"] in lines
    assert ["points", "no", "text", "(1,", "2)"] in lines
    assert not (fake / "ran").exists()


def test_an_unknown_experiment_lists_those_there_are(fake, capfd):
    assert "no experiment 'nope': choose from" in refusal(capfd, "run", "nope")


@pytest.mark.parametrize("argv", [[], ["bogus"], ["lab", "--port", "0"], ["run", "--profile"], ["bench", "extra"]])
def test_bad_arguments_are_one_line(capfd, argv):
    assert refusal(capfd, *argv).startswith("workbench")


@pytest.mark.parametrize(
    ("command", "default"), [("run", "the experiment's own"), ("sweep", "the experiment's own"), ("report", "smollm2")]
)
def test_help_says_the_default_profile(capsys, command, default):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert f"default: {default}" in " ".join(capsys.readouterr().out.split())


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.startswith("workbench ")


def test_the_command_imports_nothing_heavy():
    heavy = ("vllm", "torch", "pandas", "plotly", "numpy", "transformers")
    code = f"import sys, workbench.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
