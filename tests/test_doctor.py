"""The doctor: what it finds here, and how it says what is missing. The engine is a stand-in; see tests/engine."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from workbench import _machine, browser, doctor
from workbench.cli import main
from workbench.doctor import Check, Missing, examine, healthy, render
from workbench.engine import EngineError

GOOD = (("part", lambda: "found", "", True),)


class FakeEngine:
    """Starts at once; ``stopped`` counts how often any of them was stopped."""

    stopped = 0
    start_error: Exception | None = None
    facts = SimpleNamespace(
        executor="vllm-cpu", vllm="0.0", scheduler="kernels_patch.Bounded", runner="vllm.V1Runner", threads=2
    )

    def __init__(self, profile) -> None:
        assert profile.name == "tiny"

    async def start(self, say) -> None:
        say("starting")
        if self.start_error is not None:
            raise self.start_error

    async def snapshot(self):
        return SimpleNamespace(free_blocks=48, blocks_total=48)

    async def stop(self) -> None:
        type(self).stopped += 1


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setattr("workbench.engine.vllm.VllmEngine", FakeEngine)
    monkeypatch.setattr(FakeEngine, "stopped", 0)
    monkeypatch.setattr(FakeEngine, "start_error", None)
    monkeypatch.setattr(doctor, "_PROBES", ())
    return FakeEngine


# -- this machine -----------------------------------------------------------------------------------------------------


def test_what_make_setup_installs_is_found():
    checks = {check.name: check for check in examine(engine=False)}
    assert "engine" not in checks
    for name in ("Python", "packages", "vLLM", "plugin", "weights", "audio", "front end"):
        assert checks[name].ok, checks[name]


def test_packages_are_held_against_what_the_distribution_requires(monkeypatch):
    requires = ["numpy>=2", "tqdm>=9999", "no-such-package>=1", "torch==0; extra == 'cpu'"]
    monkeypatch.setattr(doctor, "_distribution", lambda: SimpleNamespace(requires=requires))
    with pytest.raises(Missing, match=r"^tqdm \S+ is not >=9999; no-such-package is not installed$"):
        doctor._packages()


def test_a_workbench_that_was_not_installed_is_said(monkeypatch):
    monkeypatch.setattr(doctor, "DISTRIBUTION", "no-such-distribution")
    check = doctor._examined("Python", doctor._python, "", True)
    assert (check.ok, check.fix) == (False, "run `make setup`")


def test_a_cpu_without_avx2_is_refused_for_the_cpu_build(tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text("model name\t: Old CPU\nflags\t\t: sse2\n")
    monkeypatch.setattr(_machine, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(doctor.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(doctor, "_installed", lambda name: name == "vllm-cpu")
    with pytest.raises(Missing, match="Old CPU: none of avx2, avx512, amx, bf16"):
        doctor._processor()
    monkeypatch.setattr(doctor, "_installed", lambda name: name == "vllm")
    assert doctor._processor().startswith("Old CPU")


def nvidia_smi(folder, monkeypatch, status: int) -> None:
    command = folder / "nvidia-smi"
    command.write_text(f"#!/bin/sh\necho 'Some GPU, 9 MiB, 1.0'\nexit {status}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_a_gpu_is_named_and_its_absence_is_no_fault(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "_installed", lambda name: False)
    nvidia_smi(tmp_path, monkeypatch, status=1)
    assert doctor._gpu() == "none, the CPU serves"
    nvidia_smi(tmp_path, monkeypatch, status=0)
    assert doctor._gpu().startswith("Some GPU, 9 MiB, 1.0 (not used")


def test_the_cuda_build_without_a_gpu_is_a_fault(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "_installed", lambda name: name == "vllm")
    nvidia_smi(tmp_path, monkeypatch, status=1)
    with pytest.raises(Missing, match="CUDA build"):
        doctor._gpu()
    nvidia_smi(tmp_path, monkeypatch, status=0)
    assert doctor._gpu() == "Some GPU, 9 MiB, 1.0"


def test_too_little_memory_is_said(monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=1 << 30, total=8 << 30))
    with pytest.raises(Missing, match=r"1\.0 of 8\.0 GiB available"):
        doctor._memory()


def test_weights_that_cannot_be_had_are_said_in_their_own_words(monkeypatch):
    monkeypatch.setattr("workbench.weights.available", lambda name: (False, f"{name}: do this"))
    assert doctor._examined("weights", doctor._weights, "never shown", True) == Check(
        "weights", False, "smollm2: do this", ""
    )


def test_chromium_is_looked_for_as_tests_look_for_it(monkeypatch):
    monkeypatch.setattr(browser, "find_chromium", lambda: "/somewhere/chromium")
    assert doctor._chromium() == "/somewhere/chromium"


# -- failures ---------------------------------------------------------------------------------------------------------


def failing(error: Exception):
    def probe() -> str:
        raise error

    return probe


def test_whatever_a_part_raises_becomes_a_line():
    check = doctor._examined("part", failing(OSError("no\nlibrary")), "install it", True)
    assert check == Check("part", False, "OSError: no library", "install it")


def test_an_error_that_says_what_to_do_gets_no_second_advice():
    check = doctor._examined("part", failing(EngineError("do this")), "never shown", True)
    assert check == Check("part", False, "do this", "")


def test_one_failure_does_not_end_the_examination(monkeypatch):
    monkeypatch.setattr(doctor, "_PROBES", (("broken", failing(KeyError("x")), "", True), *GOOD))
    assert [check.ok for check in examine(engine=False)] == [False, True]


def test_only_needed_parts_count():
    good, useful, needed = Check("a", True, ""), Check("b", False, "", needed=False), Check("c", False, "")
    assert healthy([good, useful])
    assert not healthy([good, useful, needed])


def test_every_line_says_ok_or_missing_and_what_to_do():
    text = render(
        [Check("long name", True, "d1"), Check("b", False, "d2", "fix"), Check("c", False, "d3", needed=False)]
    )
    assert [line.split() for line in text.splitlines()] == [
        ["ok", "long", "name", "d1"],
        ["missing", "b", "d2"],
        ["->", "fix"],
        ["absent", "c", "d3"],
    ]


# -- the engine -------------------------------------------------------------------------------------------------------


def test_the_engine_names_scheduler_and_runner_and_is_stopped(engine):
    said = []
    (check,) = examine(progress=said.append)
    assert check.ok
    assert "kernels_patch.Bounded, positions hooked in vllm.V1Runner" in check.detail
    assert engine.stopped == 1
    assert said == ["starting the tiny engine, some 20 s", "starting"]


def test_an_engine_that_does_not_start_is_a_line_and_is_stopped(engine, monkeypatch):
    monkeypatch.setattr(engine, "start_error", EngineError("no plugin: do this"))
    (check,) = examine()
    assert (check.ok, check.detail) == (False, "no plugin: do this")
    assert engine.stopped == 1


def test_a_notebook_with_its_own_loop_can_ask(engine):
    async def cell() -> list[Check]:
        return examine()

    assert [check.ok for check in asyncio.run(cell())] == [True]


# -- the command ------------------------------------------------------------------------------------------------------


def test_doctor_exits_0_when_all_is_there(engine, capfd):
    assert main(["doctor"]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("ok")
    assert "some 20 s" in err


def test_doctor_without_engine_starts_none(engine, monkeypatch, capfd):
    monkeypatch.setattr(doctor, "_PROBES", GOOD)
    assert main(["doctor", "--no-engine"]) == 0
    assert engine.stopped == 0


def test_doctor_exits_2_and_names_what_is_missing(monkeypatch, capfd):
    monkeypatch.setattr(doctor, "_PROBES", (("broken", failing(KeyError("x")), "mend it", True), *GOOD))
    assert main(["doctor", "--no-engine"]) == 2
    out, err = capfd.readouterr()
    assert "-> mend it" in out
    assert err == "workbench: missing: broken\n"


def test_doctor_as_json(monkeypatch, capfd):
    monkeypatch.setattr(doctor, "_PROBES", GOOD)
    assert main(["doctor", "--no-engine", "--json"]) == 0
    expected = {"name": "part", "ok": True, "detail": "found", "fix": "", "needed": True}
    assert json.loads(capfd.readouterr().out) == [expected]
