"""The panel on simulated engines, in JupyterLab and in Voila: to the wall at speed, side by side, the pace.

The tests in JupyterLab share one kernel, each with a cell and a workbench of its own.
"""

from __future__ import annotations

import re

import pytest

from workbench.live.bins import MOST_BINS
from workbench.plots_live import LINES

from .conftest import VIEWPORT
from .driver import NotebookPage, wait_for, write_notebook
from .panel_page import trace, wait_drawn_past, wait_status

START_S = 150.0
UP = r"no sessions: add some"
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


def test_the_same_notebook_in_voila(voila_page, served_folder, tmp_path):
    cell = f"{IMPORT}\n{CELLS['wall']}".replace("{folder!r}", repr(str(tmp_path)))
    voila_page.open(write_notebook(served_folder / "voila.ipynb", [cell]))
    wait_status(voila_page, UP, START_S)
    voila_page.set_number("sessions", 32)
    voila_page.click("add")
    wait_status(voila_page, r"wall: 32 of 32 sessions silent, 0 deadline misses")
    voila_page.page.wait_for_function(_DELIVERED_NOTHING)
    assert trace(voila_page, "occupancy")[1][-1] > 99
    voila_page.screenshot("panel-9-voila")
