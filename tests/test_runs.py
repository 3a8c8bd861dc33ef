"""Points: computed by this process, by others or by Ray with the same results; kept, found again, given up."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from workbench import _ray, _workers, runs
from workbench._files import OutputError
from workbench._workers import Local, WorkerError
from workbench.bound import BoundError
from workbench.experiments import ExperimentError
from workbench.profiles import load_profile
from workbench.runs import Runs, RunsError, code_version

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Size:
    width: int


class Odd(ExperimentError):
    """An error that pickle cannot make again: its constructor takes more than its message."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


# As the package's own modules have them.
Odd.__module__ = "workbench.experiments"


def draw(seed: int, size: Size | int = 3) -> dict:
    count = size.width if isinstance(size, Size) else size
    return {"drawn": np.random.default_rng(seed).random(count), "none": math.nan, "pair": (1, Path("a"))}


def counted(folder: str, number: int) -> int | None:
    """Leaves a file at each call; odd numbers have no result."""
    (Path(folder) / f"{number}-{time.monotonic_ns()}").touch()
    return None if number % 2 else number


def failing(number: int, error: str) -> int:
    if number == 1:
        raise {"own": BoundError("give less"), "odd": Odd("one", "two"), "fault": KeyError("nobody's")}[error]
    return number


def linger(folder: str, number: int) -> int:
    """The first returns, the others stay until they are ended; each leaves its process's number."""
    # Whole as soon as it is there, for somebody waits for it.
    part = Path(folder) / f"{number}.part"
    part.write_text(str(os.getpid()))
    part.replace(part.with_suffix(".pid"))
    if number:
        time.sleep(600)
    return number


def end_its_process(number: int, of: str) -> int:
    if number == 2:
        deadline = time.monotonic() + 60
        while len(list(Path(of).rglob("*.json"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def quiet(message, fraction) -> None:
    pass


def kept(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.json"))


def calls(folder: Path) -> int:
    return len([path for path in folder.iterdir() if path.is_file()])


def points(folder: Path, count: int) -> list[dict]:
    return [{"folder": str(folder), "number": number} for number in range(count)]


SEEDS = [{"seed": seed, "size": Size(2)} for seed in (3, 1, 2)]


# -- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_points_as_json_has_them(workers):
    results = Runs(workers=workers).map(draw, SEEDS, quiet)
    assert [each["drawn"] for each in results] == [np.random.default_rng(seed).random(2).tolist() for seed in (3, 1, 2)]
    assert results[0]["none"] is None
    assert results[0]["pair"] == [1, "a"]


def test_a_point_given_twice_is_computed_once(tmp_path):
    made = Runs(workers=1)
    assert made.map(counted, [*points(tmp_path, 3), *points(tmp_path, 3)], quiet) == [0, None, 2] * 2
    assert calls(tmp_path) == made.computed == 3


def test_no_points_are_no_work():
    told = []
    assert Runs(workers=2, ray="local").map(draw, [], lambda *heard: told.append(heard)) == []
    assert told == [("0 of 0 points", 1.0)]


def test_progress_goes_from_nothing_to_all(tmp_path):
    told = []
    Runs(workers=1).map(counted, points(tmp_path, 2), lambda *heard: told.append(heard))
    assert told == [("0 of 2 points", 0.0), ("1 of 2 points", 0.5), ("2 of 2 points", 1.0)]


# -- kept and found ---------------------------------------------------------------------------------------------------


def test_finished_points_are_found_also_those_without_a_result(tmp_path):
    folder = tmp_path / "kept"
    assert Runs(folder, workers=1).map(counted, points(tmp_path, 2), quiet) == [0, None]
    told, again = [], Runs(folder, workers=1)
    assert again.map(counted, points(tmp_path, 3), lambda *heard: told.append(heard)) == [0, None, 2]
    assert (again.reused, again.computed, calls(tmp_path)) == (2, 1, 3)
    assert again.found() == f"2 of 3 points were found in {folder}"
    assert told[0] == ("0 of 1 points, 2 found", 0.0)


def test_fresh_computes_again_but_not_what_it_computed_itself(tmp_path):
    folder = tmp_path / "kept"
    Runs(folder, workers=1).map(counted, points(tmp_path, 2), quiet)
    fresh = Runs(folder, workers=1, fresh=True)
    for _ in range(2):
        fresh.map(counted, points(tmp_path, 2), quiet)
    assert calls(tmp_path) == 4


def test_another_function_point_or_version_is_not_found(tmp_path, monkeypatch):
    Runs(tmp_path, workers=1).map(draw, [{"seed": 1, "size": Size(2)}], quiet)
    for function, point in ((draw, {"seed": 1, "size": Size(3)}), (draw, {"seed": 2, "size": Size(2)})):
        other = Runs(tmp_path, workers=1)
        other.map(function, [point], quiet)
        assert other.reused == 0
    monkeypatch.setattr(runs, "code_version", lambda: "f" * 64)
    other = Runs(tmp_path, workers=1)
    other.map(draw, [{"seed": 1, "size": Size(2)}], quiet)
    assert other.reused == 0


def test_a_calibration_made_anew_makes_the_simulated_points_anew(tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.costs.CALIBRATIONS", tmp_path)
    point = {"profile": load_profile("sim:smollm2")}
    names = [runs._name(draw, point)]
    for text in ("one", "two"):
        (tmp_path / "smollm2.json").write_text(text)
        names.append(runs._name(draw, point))
    assert len(set(names)) == 3
    on_a_card = {"profile": load_profile("sim:moshi@rtx-pro-6000")}
    before = runs._name(draw, on_a_card)
    (tmp_path / "smollm2.json").unlink()
    assert runs._name(draw, on_a_card) == before


@pytest.mark.parametrize("text", ["", '{"result": 1', "[]", '{"other": 1}'])
def test_half_a_file_is_computed_again(tmp_path, text):
    folder = tmp_path / "kept"
    Runs(folder, workers=1).map(counted, points(tmp_path, 1), quiet)
    (file,) = kept(folder)
    file.write_text(text)
    assert Runs(folder, workers=1).map(counted, points(tmp_path, 1), quiet) == [0]
    assert json.loads(file.read_text())["point"] == points(tmp_path, 1)[0]
    assert calls(tmp_path) == 2


def test_versions_unused_for_long_are_removed_and_nothing_else(tmp_path):
    others = ["code-0123456789ab", "code-bbbbbbbbbbbb", "code-of-mine", "notes"]
    for name in others:
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.json").touch()
    long_ago = time.time() - (runs.UNUSED_DAYS + 1) * 86400
    for name in ("code-0123456789ab", "code-of-mine", "notes", f"code-{code_version()[:12]}"):
        (tmp_path / name).mkdir(exist_ok=True)
        os.utime(tmp_path / name, (long_ago, long_ago))
    Runs(tmp_path, workers=1).map(draw, [{"seed": 1}], quiet)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == sorted({*others[1:], f"code-{code_version()[:12]}"})


def test_nothing_is_left_but_whole_files(tmp_path):
    Runs(tmp_path, workers=1).map(draw, SEEDS, quiet)
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} == {".json"}


def test_processes_that_write_one_folder_at_once_leave_whole_results(tmp_path):
    folder = tmp_path / "kept"
    runs = f"Runs(Path({str(folder)!r}), workers=1, fresh=True)"
    line = f"from tests.test_runs import *; {runs}.map(draw, SEEDS * 50, quiet)"
    both = [subprocess.Popen([sys.executable, "-c", line], cwd=ROOT) for _ in range(2)]
    assert [each.wait(120) for each in both] == [0, 0]
    assert len({path.name for path in kept(folder)}) == 3
    assert Runs(folder, workers=1).map(draw, SEEDS, quiet) == Runs(workers=1).map(draw, SEEDS, quiet)


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("error", "kind", "line"),
    [("own", BoundError, "give less"), ("odd", WorkerError, "one and two"), ("fault", KeyError, "nobody's")],
)
def test_an_error_of_a_point_reaches_the_caller(workers, error, kind, line):
    asked = [{"number": 1, "error": error}, {"number": 0, "error": error}]
    with pytest.raises(kind, match=line) as raised:
        Runs(workers=workers).map(failing, asked, quiet)
    assert ("in failing" in "".join(getattr(raised.value, "__notes__", []))) == (error == "fault")


def test_points_finished_before_an_error_are_kept(tmp_path):
    asked = [{"number": number, "error": "own"} for number in (0, 2, 1, 3)]
    with pytest.raises(BoundError):
        Runs(tmp_path, workers=1).map(failing, asked, quiet)
    assert len(kept(tmp_path)) == 2


def test_an_error_can_be_a_result_which_is_not_kept(tmp_path):
    asked = [{"number": number, "error": "own"} for number in (0, 1, 2)]
    results = Runs(tmp_path, workers=1).map(failing, asked, quiet, instead=str)
    assert results == [0, "give less", 2]
    assert len(kept(tmp_path)) == 2


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, "2"])
def test_a_bad_number_of_workers_is_refused(workers):
    with pytest.raises(RunsError, match="workers must be a whole number from 1 on"):
        Runs(workers=workers)


def test_what_no_worker_could_import_is_refused():
    with pytest.raises(RunsError, match="cannot be imported by a worker"):
        Runs(workers=1).map(lambda: 1, [{}], quiet)


def test_a_point_that_has_no_name_is_refused():
    with pytest.raises(RunsError, match="a point cannot hold <object"):
        Runs(workers=1).map(draw, [{"seed": object()}], quiet)


def test_a_folder_that_cannot_be_made_is_refused_before_any_point(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write"):
        Runs(tmp_path / "file" / "in-a-file", workers=1).map(counted, points(tmp_path, 1), quiet)
    assert calls(tmp_path) == 1


# -- processes --------------------------------------------------------------------------------------------------------


def test_a_worker_that_dies_is_one_line_and_the_finished_points_stay(tmp_path):
    asked = [{"number": number, "of": str(tmp_path)} for number in range(4)]
    with pytest.raises(WorkerError, match="a worker process died"):
        Runs(tmp_path, workers=2).map(end_its_process, asked, quiet)
    assert len(kept(tmp_path)) >= 2


def test_workers_are_ended_when_nobody_asks_for_more(tmp_path):
    outcomes = Local(2).compute(linger, points(tmp_path, 2))
    assert next(outcomes)[0] == 0
    outcomes.close()
    wait_until_gone(int((tmp_path / "0.pid").read_text()))


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state == "Z":
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} lives on")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_it_keeps_what_is_finished_and_leaves_no_process(tmp_path, number):
    """By a script without a main guard."""
    folder = tmp_path / "kept"
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from tests.test_runs import Runs, linger, points, quiet\n"
        f"Runs(Path({str(folder)!r}), workers=2).map(linger, points(Path({str(tmp_path)!r}), 3), quiet)\n"
    )
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    parent = subprocess.Popen([sys.executable, script], env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not ((tmp_path / "1.pid").exists() and (tmp_path / "2.pid").exists() and kept(folder)):
        assert parent.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    workers = {int((tmp_path / f"{n}.pid").read_text()) for n in (1, 2)}
    parent.send_signal(number)
    assert parent.wait(30) != 0
    parent.stderr.close()
    assert len(workers) == 2
    for pid in workers:
        wait_until_gone(pid)
    assert [json.loads(path.read_text())["result"] for path in kept(folder)] == [0]


# -- Ray --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ray():
    """A Ray of two workers on this machine, joined by whatever asks for one."""
    pytest.importorskip("ray")
    with _ray._joined("local", 2) as joined:
        yield joined


def test_ray_computes_the_same_and_its_points_are_found(ray, tmp_path):
    on_ray = Runs(tmp_path, workers=2, ray="local")
    assert on_ray.map(draw, SEEDS, quiet) == Runs(workers=1).map(draw, SEEDS, quiet)
    assert on_ray.computed == 3
    here = Runs(tmp_path, workers=1)
    here.map(draw, SEEDS, quiet)
    assert here.reused == 3


@pytest.mark.parametrize(
    ("error", "kind", "line"),
    [("own", BoundError, "give less"), ("odd", WorkerError, "one and two"), ("fault", KeyError, "nobody's")],
)
def test_an_error_of_a_point_reaches_the_caller_from_ray(ray, error, kind, line):
    with pytest.raises(kind, match=line):
        Runs(ray="local").map(failing, [{"number": 1, "error": error}], quiet)


def test_ray_workers_of_another_version_are_refused(ray, monkeypatch):
    monkeypatch.setattr(runs, "code_version", lambda: "of another checkout")
    with pytest.raises(WorkerError, match="another version of the workbench: a cluster needs the same"):
        Runs(ray="local").map(draw, SEEDS, quiet)


def test_a_ray_that_runs_is_joined_and_not_ended(ray):
    Runs(ray="auto").map(draw, SEEDS, quiet)
    assert ray.is_initialized()
    assert ray.cluster_resources()["CPU"] == 2


@pytest.mark.parametrize("address", ["", "nowhere", "ray://here:1", "host:port", "host:1:2"])
def test_a_ray_address_that_is_none_is_refused(address):
    with pytest.raises(WorkerError, match="give local, auto or HOST:PORT"):
        Runs(ray=address)


def test_without_ray_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(_ray, "find_spec", lambda name: None)
    with pytest.raises(WorkerError, match=r"Ray is not installed: run pip install 'metronome-workbench\[ray\]'"):
        Runs(ray="local")


def test_a_cluster_that_does_not_answer_is_one_line():
    with pytest.raises(WorkerError, match="no Ray cluster answers at 127.0.0.1:1"):
        _ray._join(None, "127.0.0.1:1")


def test_points_that_need_the_whole_machine_do_not_go_to_ray():
    with pytest.raises(RunsError, match="a real engine serves on this machine alone"):
        Runs(ray="local").map(draw, SEEDS, quiet, alone=True)


def test_points_that_need_the_whole_machine_hire_nobody(monkeypatch):
    monkeypatch.setattr(_workers, "_hire", None)
    assert len(Runs(workers=2).map(draw, SEEDS, quiet, alone=True)) == 3
