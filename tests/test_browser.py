"""The finder of Chromium, on a machine that has only what a test gives it; nothing is downloaded."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from workbench import browser


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with nothing on PATH but what a test puts into the folder returned, and no download by playwright."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(browser, "_playwright_chromium", lambda: None)
    monkeypatch.setattr(browser, "_ways", list)
    return tmp_path


def put(folder: Path, name: str, script: str = "exit 0") -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_the_chromium_on_path_is_found(machine):
    found = put(machine, "chromium")
    assert browser.find_chromium() == found


def test_a_command_that_does_not_start_is_passed_over(machine):
    put(machine, "chromium", "echo install me first; exit 10")
    found = put(machine, "google-chrome")
    assert browser.find_chromium() == found


def test_playwrights_download_is_found_where_path_has_none(machine, monkeypatch):
    (machine / "elsewhere").mkdir()
    found = put(machine / "elsewhere", "chrome")
    monkeypatch.setattr(browser, "_playwright_chromium", lambda: found)
    assert browser.find_chromium() == found


def test_no_chromium_is_one_line_that_says_what_to_do(machine, monkeypatch):
    monkeypatch.setattr(browser, "_playwright_chromium", lambda: str(machine / "not there"))
    with pytest.raises(browser.BrowserError, match=r"^no Chromium here: run `make browser`, or install chromium and"):
        browser.find_chromium()


def test_one_way_after_the_other_is_tried(machine, monkeypatch):
    bad = put(machine, "bad-installer", "echo first; echo no network >&2; exit 1")
    idle = put(machine, "idle-installer")
    good = put(machine, "good-installer", f"/bin/cp {idle} {machine}/chromium")
    monkeypatch.setattr(browser, "_ways", lambda: [("A", [[bad], [good]]), ("B", [[idle]]), ("C", [[idle], [good]])])
    said = []
    assert browser.ensure_chromium(said.append) == str(machine / "chromium")
    assert said == ["no Chromium here: A", "no Chromium here: B", "no Chromium here: C"]


def test_when_no_way_leads_there_each_is_named_with_its_reason(machine, monkeypatch, capsys):
    bad = put(machine, "bad-installer", "echo no network >&2; exit 1")
    monkeypatch.setattr(browser, "_ways", lambda: [("A", [[bad]]), ("B", [[put(machine, "idle-installer")]])])
    assert browser.main() == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert "A failed (no network); B failed (what it installed does not start)" in last


def test_nothing_is_installed_where_chromium_is(machine, monkeypatch, capsys):
    found = put(machine, "chromium")
    monkeypatch.setattr(browser, "_ways", lambda: pytest.fail("asked for ways to install"))
    assert browser.main() == 0
    assert capsys.readouterr().out == f"Chromium: {found}\n"


@pytest.mark.parametrize(("user", "first"), [(0, ["apt-get", "update"]), (1000, [sys.executable, "-m", "playwright"])])
def test_only_root_asks_the_package_manager(tmp_path, monkeypatch, user, first):
    put(tmp_path, "apt-get")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    _, commands = browser._ways()[0]
    assert commands[0][: len(first)] == first
