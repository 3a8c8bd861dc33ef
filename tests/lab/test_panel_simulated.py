"""The panel on simulated engines, in JupyterLab and in Voila: to the wall at speed, side by side, the pace.

The tests in JupyterLab share one kernel, each with a cell and a workbench of its own.
"""

from __future__ import annotations

import re

import nbformat
import pytest

from workbench.lab import NOTEBOOKS, PANEL
from workbench.live.bins import MOST_BINS
from workbench.plots_live import LINES

from .conftest import VIEWPORT
from .driver import NotebookPage, wait_for, write_notebook
from .panel_page import trace, wait_drawn_past, wait_status

START_S = 150.0
UP = r"no sessions: add some"
SMALL = """
base = "sim:qwen3-omni@rtx-pro-6000"
name = "sim:small"
pool_blocks = 4000
max_model_len = 20000
sessions = 32
"""
CALL = "('sim:qwen3-omni@rtx-pro-6000', pool_blocks=4000, max_model_len=20000, speed={speed}, folder={folder!r})\nwb"
IMPORT = "from workbench.panel import SideBySide, Workbench"
CELLS = {
    "wall": "wb = Workbench" + CALL.replace("{speed}", "60"),
    "pace": "wb = Workbench" + CALL.replace("{speed}", "10"),
    "both": "wb = SideBySide" + CALL.replace("{speed}", "60"),
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="module")
def notebook(chromium, lab, served_folder, tables):
    """A notebook with a cell for each test, in one kernel."""
    cells = [IMPORT, *(code.replace("{folder!r}", repr(str(tables / name))) for name, code in CELLS.items())]
    with chromium.new_context(viewport=VIEWPORT) as context:
        page = NotebookPage(context, lab)
        page.open(write_notebook(served_folder / "simulated.ipynb", cells))
        page.run_cell(0)
        yield page
        left = page.errors
    lab.shut_sessions()
    assert left == []


@pytest.fixture
def panel(notebook, request):
    """The panel of the cell that a test names, alone on the page."""
    name = request.param
    notebook.run_cell(1 + list(CELLS).index(name))
    wait_status(notebook, UP, START_S)
    yield notebook
    assert notebook.kernel_eval("wb.live.faults") == "[]"
    notebook.kernel_eval("wb.end()")
    notebook._promise(
        """async () => {
            jupyterapp.shell.currentWidget.content.activeCellIndex = 0;
            await jupyterapp.commands.execute('notebook:clear-all-cell-outputs');
        }"""
    )


@pytest.mark.parametrize("panel", ["wall"], indirect=True)
def test_an_engine_driven_to_the_wall_says_so_and_the_bound_brings_it_back(panel):
    panel.set_number("sessions", 32)
    panel.click("add")
    wait_status(panel, r"pool full in \d+")
    wait_status(panel, r"wall: 32 of 32 sessions silent, 0 deadline misses")
    panel.wait_text("32 sessions: 32 stalled")
    panel.page.wait_for_function(_DELIVERED_NOTHING)
    panel.screenshot("panel-6-wall")
    # What a usual dashboard shows stays within the deadline; what is so is drawn beside it.
    assert trace(panel, "latency, longest")[1][-1] <= 2000
    assert trace(panel, "content lag, mean")[1][-1] > 2
    panel.click("bound all")
    wait_status(panel, r"beating; pool \d+% used, every session bounded: a plateau")
    panel.wait_text("32 sessions: 32 on beat")
    panel.screenshot("panel-7-back")
    # However long the run, a page holds so many points and no more.
    wait_drawn_past(panel, "occupancy", trace(panel, "occupancy")[0][-1] + 600)
    points = "() => Number(document.querySelector('.metronome-view').dataset.points)"
    assert panel.page.evaluate(points) <= MOST_BINS * len(LINES)


_PLOT = "[...document.querySelectorAll('.metronome-view .js-plotly-plot')].at(-1)"
_DELIVERED_NOTHING = f"() => {_PLOT}.data[{[line.line for line in LINES].index('delivered')}].y.at(-1) === 0"


@pytest.mark.parametrize("panel", ["pace"], indirect=True)
def test_time_stands_still_goes_a_step_and_on_and_whoever_is_shed_is_told_why(panel):
    now = "wb.manager().now()"
    assert float(panel.kernel_eval(now)) == 0.0
    panel.set_checkbox("admission", True)
    panel.set_number("sessions", 5)
    panel.click("add")
    panel.wait_text(re.compile(r"4 of 5 shed: 1 sessions open, admission cap 1 \(AIMD\)"))
    panel.wait_text(re.compile(r"cap \d+, 4 shed"))
    panel.click("pause")
    panel.wait_text("paused")
    stood = float(panel.kernel_eval(now))
    panel.click("step")
    wait_for(lambda: float(panel.kernel_eval(now)) > stood, 30, lambda: "no step was made")
    assert float(panel.kernel_eval(now)) <= stood + 2.0 + 1e-6
    panel.click("pause")
    wait_for(lambda: float(panel.kernel_eval(now)) > stood + 4, 30, lambda: "time did not go on")


@pytest.mark.parametrize("panel", ["both"], indirect=True)
def test_both_arms_side_by_side_and_what_is_taken_away(panel, tables):
    panel.set_number("sessions", 32)
    panel.click("add")
    wait_status(panel, r"unbounded: wall: 32 of 32 sessions silent, 0 deadline misses")
    wait_status(panel, r"bounded: beating; pool \d+% used, every session bounded")
    panel.page.wait_for_function(_DELIVERED_NOTHING)
    panel.screenshot("panel-8-side-by-side")
    panel.page.get_by_role("tab", name="export").click()
    for label, name in (("tables as CSV", ".csv.zip"), ("view as HTML", ".html")):
        with panel.page.expect_download() as download:
            panel.click(label)
        assert download.value.suggested_filename.endswith(name)
    assert list((tables / "both").glob("*.csv.zip"))
    assert "simulated" in next(iter((tables / "both").glob("*.html"))).read_text()


def lesson_of(folder) -> str:
    """The checkout's own notebook, on simulated engines with small pools."""
    notebook = nbformat.read(NOTEBOOKS / PANEL, as_version=4)
    (given,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    (folder / "small.toml").write_text(SMALL)
    given.source += f"\nprofile = {str(folder / 'small.toml')!r}\npair_blocks = 4000\n"
    # At speed, and the tables not among the user's.
    shown = '{"speed": speed}'
    (helpers,) = [cell for cell in notebook.cells if shown in cell.source]
    ours = f'{{"speed": MOST_SPEED, "folder": Path({str(folder)!r}) / "tables" / folder}}'
    helpers.source = helpers.source.replace(shown, ours)
    nbformat.write(notebook, folder / PANEL)
    return PANEL


def walk_through(page, served_sessions: int = 32) -> None:
    """Predict, run, compare, in the notebook that is open: the first panel on the page is the lesson's."""
    wait_status(page, UP, START_S)
    page.wait_text("How many seconds later is the pool full?")
    field = page.page.get_by_placeholder("a number, in s").first
    field.fill("soon")
    page.button("check").first.click()
    page.wait_text("type a number, in s, such as 12.5")
    field.fill("120")
    page.button("check").first.click()
    page.wait_text("120 s is written down")
    sessions = page.control("sessions").first.locator("input")
    sessions.fill(str(served_sessions))
    sessions.press("Enter")
    page.button("add").first.click()
    wait_status(page, r"wall: 32 of 32 sessions silent, 0 deadline misses")
    page.button("check").first.click()
    page.wait_text(re.compile(r"right: it is \d.*by hand \d"))


def test_the_lesson_in_jupyterlab(chromium, lab, served_folder):
    with chromium.new_context(viewport=VIEWPORT) as context:
        page = NotebookPage(context, lab)
        page.open(lesson_of(served_folder))
        page.run_all(START_S)
        walk_through(page)
        page.screenshot("panel-10-lesson")
        left = page.errors
    lab.shut_sessions()
    assert left == []


def test_the_same_notebook_in_voila(voila_page, served_folder):
    voila_page.open(lesson_of(served_folder))
    walk_through(voila_page)
    voila_page.screenshot("panel-9-voila")
