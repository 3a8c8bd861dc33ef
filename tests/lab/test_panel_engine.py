"""The panel on a real vLLM engine, in a real JupyterLab: what a person does in a sitting, and what may befall it.

The tests share one engine and are told in the order in which they run; each leaves the engine up.
"""

from __future__ import annotations

import re

import psutil
import pytest

from workbench.audio import sample_clip
from workbench.profiles import load_profile
from workbench.telemetry import load_tables

from .conftest import VIEWPORT
from .driver import NotebookPage, wait_for, write_notebook
from .panel_page import engine_processes, trace, wait_drawn_past, wait_status

PROFILE = load_profile("tiny")
START_S = 240.0
UP = r"no sessions: add some"
CELLS = [
    "from workbench.panel import Workbench\nwb = Workbench('tiny', folder=FOLDER)\nwb",
    "held = await wb.until('wall', seconds=600)\nheld",
    "sum(i * i for i in range(10))",
]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="module")
def panel(chromium, lab, served_folder, tables):
    """The notebook, its panel shown and its engine up."""
    cells = [CELLS[0].replace("FOLDER", repr(str(tables))), *CELLS[1:]]
    name = write_notebook(served_folder / "panel.ipynb", cells)
    with chromium.new_context(viewport=VIEWPORT) as context:
        page = NotebookPage(context, lab)
        page.open(name)
        page.run_cell(0)
        # The cell has returned while the engine starts: the kernel is free.
        wait_status(page, r"(starting|loading|warming|engine ready).*\(\d+ s\)")
        assert "285" in page.run_cell(2)
        wait_status(page, UP, START_S)
        yield page
        left = page.errors
    lab.shut_sessions()
    assert left == []


@pytest.fixture(autouse=True)
def no_error_is_left(panel):
    """Said of the test in which it happened."""
    yield
    assert panel.errors == []


def occupancy(panel) -> float:
    return trace(panel, "occupancy")[1][-1]


def test_four_sessions_make_the_plots_grow(panel):
    panel.set_number("sessions", 4)
    panel.click("add")
    wait_status(panel, r"beating; pool full in \d+")
    first = trace(panel, "occupancy")
    wait_drawn_past(panel, "occupancy", first[0][-1] + 2.0)
    wait_drawn_past(panel, "latency, mean", first[0][-1])
    assert occupancy(panel) > first[1][-1]
    assert max(trace(panel, "sessions")[1]) == 4
    panel.wait_text(re.compile(r"4 sessions: 4 on beat"))
    panel.screenshot("panel-1-four-sessions")


def test_the_bound_makes_a_plateau_and_without_it_the_pool_fills_on(panel):
    from workbench.bound import plateau

    panel.click("bound on")
    wait_status(panel, r"every session bounded: a plateau")
    most = 4 * plateau(PROFILE.bound, PROFILE.block_size, PROFILE.frame_tokens, PROFILE.tokens_owed).most
    limit = 100 * most / PROFILE.pool_blocks
    panel.page.wait_for_function(_BELOW, arg=limit + 0.01)
    settled = trace(panel, "occupancy")[0][-1]
    # Ten frame budgets on it is still there.
    wait_drawn_past(panel, "occupancy", settled + 10 * PROFILE.frame_budget_s)
    x, y = trace(panel, "occupancy")
    plateau_seen = [value for at, value in zip(x, y, strict=True) if at > settled + PROFILE.frame_budget_s]
    assert max(plateau_seen) <= limit + 0.01
    panel.screenshot("panel-2-plateau")
    panel.click("bound off")
    panel.page.wait_for_function(_ABOVE, arg=limit + 8)
    panel.click("bound on")
    panel.page.wait_for_function(_BELOW, arg=limit + 0.01)
    panel.screenshot("panel-3-bound-off-and-on")


_LAST = "[...document.querySelectorAll('.metronome-view .js-plotly-plot')].at(-1).data[0].y.at(-1)"
_BELOW, _ABOVE = f"limit => {_LAST} <= limit", f"limit => {_LAST} >= limit"


def test_the_words_of_a_load_generator_are_labelled_as_what_they_are(panel):
    panel.wait_text("these words mean nothing")


def test_a_bad_upload_is_refused_in_one_line_and_a_good_one_becomes_a_clip(panel, tmp_path):
    import soundfile

    (tmp_path / "notes.txt").write_text("no audio")
    (tmp_path / "broken.wav").write_bytes(b"RIFF this is no audio")
    soundfile.write(tmp_path / "mine.wav", sample_clip("goforward").samples, 16_000)
    panel.upload(tmp_path / "notes.txt")
    panel.wait_text(re.compile(r"notes\.txt: .*choose"))
    panel.upload(tmp_path / "broken.wav")
    panel.wait_text(re.compile(r"broken\.wav: not audio, or damaged"))
    panel.screenshot("panel-4-bad-upload")
    panel.upload(tmp_path / "mine.wav")
    panel.wait_text(re.compile(r"mine: uploaded"))
    assert panel.control("clip").locator("select").evaluate("select => select.selectedOptions[0].label") == "mine"
    panel.set_number("sessions", 1)
    panel.click("add")
    panel.wait_text(re.compile(r"5 sessions: "))


def test_the_chosen_clip_is_played_and_one_session_alone_gets_another_window(panel):
    panel.select("clip", "goforward")
    panel.click("listen")
    panel.page.wait_for_function("() => document.querySelector('.jp-OutputArea audio')?.duration > 1")
    panel.click("selected")
    panel.set_slider("W", 96)
    windows = "[s.bound.window for s in wb.manager().beat.sessions.values()]"
    wanted = str([96] + 4 * [PROFILE.window])
    wait_for(lambda: panel.kernel_eval(windows) == wanted, 30, lambda: f"windows are {panel.kernel_eval(windows)}")
    panel.click("all")


def test_an_interrupted_wait_says_so_and_the_engine_goes_on(panel):
    panel.start_cell(1)
    panel.page.wait_for_function("() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'busy'")
    panel.interrupt()
    panel.wait_text(re.compile(r"interrupted: .*the engine goes on"))
    wait_drawn_past(panel, "occupancy", trace(panel, "occupancy")[0][-1] + 1.0)


def test_the_cell_run_again_shows_the_same_engine_in_another_panel(panel):
    before = engine_processes(panel)
    panel.run_cell(0)
    panel.wait_text(re.compile(r"5 sessions: "))
    assert before
    assert engine_processes(panel) == before
    assert panel.kernel_eval("len(wb.live.listeners)") == "2"


def test_a_closed_tab_changes_nothing_and_a_new_one_shows_it_all(panel):
    panel.save()
    panel.reopen()
    last = trace(panel, "occupancy")[0]
    wait_drawn_past(panel, "occupancy", (last or [0.0])[-1] + 2.0)
    panel.wait_text(re.compile(r"5 sessions: "))


def test_an_engine_that_is_killed_is_told_and_restarted_and_its_tables_are_there(panel, tables):
    killed = engine_processes(panel)
    for process in killed:
        process.kill()
    wait_status(panel, r"engine died: .*the tables are saved")
    panel.screenshot("panel-5-engine-died")
    assert {name: len(table) > 0 for name, table in load_tables(tables / "run-1").items()} == dict.fromkeys(
        ("sessions", "frames", "pool"), True
    )
    panel.set_number("sessions", 1)
    panel.click("add")
    panel.wait_text("the engine is dead: restart it")
    panel.button("restart engine").first.click()
    wait_status(panel, UP, START_S)
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in killed)
    panel.button("add").first.click()
    panel.wait_text(re.compile(r"1 session: 1 on beat"))


def test_a_kernel_restart_leaves_no_process_and_loses_no_table(panel, tables):
    engine = engine_processes(panel)
    assert engine
    panel.restart()
    wait_for(lambda: not any(p.is_running() for p in engine), 60, lambda: f"engine processes were left: {engine}")
    # The old kernel is gone when the new one answers, and what it had to save is saved.
    assert "285" in panel.run_cell(2)
    assert len(load_tables(tables / "run-2")["frames"]) > 0
