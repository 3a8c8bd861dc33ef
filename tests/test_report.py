"""Small notebooks are really executed; what they leave behind is read as a reader and a browser would."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tests.test_plots import synthetic_result
from workbench.browser import FLAGS
from workbench.profiles import ProfileError
from workbench.report import CHECKOUT, ReportError, find_notebooks, make_report, save_result, write_index

FIRST = CHECKOUT / "notebooks" / "01_cliff_and_slope.ipynb"
CHROMIUM = shutil.which("chromium")

PARAMETERS = "profile = None\nout_dir = None\nfull = False"
LEAVES_METRICS = """
import json, os, pathlib, sys
out = pathlib.Path(out_dir)
metrics = {"experiment": "x", "profile": profile, "executor": EXECUTOR, "seed": 7, "claims": CLAIMS}
(out / "metrics.json").write_text(json.dumps(metrics))
seen = {"python": sys.executable, "ipython": os.environ["IPYTHONDIR"], "cwd": os.getcwd(), "pid": os.getpid()}
(out / "seen.json").write_text(json.dumps(seen | {"full": full}))
"""
PLOT = """
import plotly.graph_objects as go, plotly.io as pio
pio.renderers.default = "plotly_mimetype"
go.Figure(go.Scatter(y=[1, 2], name="</script><b>")).show()
"""


def write_notebook(path: Path, title: str, *sources: str, parameters: str | None = PARAMETERS) -> Path:
    cells = [new_markdown_cell(f"# {title}")]
    if parameters is not None:
        cells.append(new_code_cell(parameters, metadata={"tags": ["parameters"]}))
    cells += [new_code_cell(source) for source in sources]
    # No kernelspec: a notebook that says nothing of its kernel, or the wrong thing, must run all the same.
    nbformat.write(new_notebook(cells=cells, metadata={"widgets": {"state": {"a": 1}}}), path)
    return path


def leaves_metrics(claims: list[dict], executor: str = "vllm-cpu") -> str:
    return LEAVES_METRICS.replace("EXECUTOR", repr(executor)).replace("CLAIMS", repr(claims))


def claim(name: str, holds: bool) -> dict:
    return {"name": name, "holds": holds, "value": {"blocks": 1.23456789, "at": None}, "bound": "< 2"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("notebooks")
    held = leaves_metrics([claim("pool stays <flat>", True)], "simulated")
    write_notebook(folder / "01_good.ipynb", "Good & *plain*", held, "print('hello', flush=True)", PLOT, PLOT)
    write_notebook(
        folder / "02_fails.ipynb", "Fails", leaves_metrics([]), "x = 1", "assert x == 2, 'x is\\n<one>'", PLOT
    )
    write_notebook(folder / "03_endless.ipynb", "Endless", leaves_metrics([]), "while True: pass")
    write_notebook(folder / "04_dies.ipynb", "Dies", "import os\nos._exit(3)", parameters=None)
    write_notebook(folder / "05_claims.ipynb", "Claims", leaves_metrics([claim("a", True), claim("b", False)]))
    write_notebook(folder / "05_metrics.ipynb", "Metrics", "open(out_dir + '/metrics.json', 'w').write('{}')")
    return folder


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("reports") / "new"


@pytest.fixture(scope="module")
def hostile_home(tmp_path_factory):
    """A user whose own kernel is called python3 and does not start, and whose IPython start-up file breaks."""
    home = tmp_path_factory.mktemp("home")
    spec = home / "kernels" / "python3"
    spec.mkdir(parents=True)
    kernel = {"argv": ["false", "{connection_file}"], "display_name": "Python 3", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(kernel))
    startup = home / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "00.py").write_text("import os\nos._exit(1)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(home))
        patch.setenv("IPYTHONDIR", str(home / "ipython"))
        yield home


@pytest.fixture(scope="module")
def steps() -> list:
    return []


@pytest.fixture(scope="module")
def report(folder, out, hostile_home, steps):
    finite = ["01", "02", "04", "05_claims", "05_metrics"]
    return make_report(finite, "tiny", out, full=True, progress=steps.append, folder=folder)


@pytest.fixture(scope="module")
def stopped(folder, report, out):
    return make_report(["03"], "tiny", out, progress=lambda step: None, cell_timeout_s=3, folder=folder)


def run_of(report, name: str):
    (found,) = [run for run in report.runs if run.notebook == name]
    return found


# -- what a run leaves -------------------------------------------------------------------------------------------------


def test_a_notebook_that_holds_leaves_notebook_page_and_metrics(report, out):
    run = run_of(report, "01_good")
    assert run.error is None and run.title == "Good & plain"
    assert run.metrics["seed"] == 7 and run.metrics["profile"] == "tiny"
    assert {"01_good.ipynb", "01_good.html", "metrics.json", "run.json"} <= {
        f.name for f in (out / "01_good").iterdir()
    }


def test_its_kernel_is_this_python_in_the_notebook_s_folder_and_free_of_the_user_s_ipython(
    report, out, folder, hostile_home
):
    seen = json.loads((out / "01_good" / "seen.json").read_text())
    assert seen["python"] == sys.executable
    assert Path(seen["cwd"]) == folder
    assert seen["full"] is True
    assert not seen["ipython"].startswith(str(hostile_home)) and not Path(seen["ipython"]).exists()


def test_a_failing_cell_is_named_in_one_line_and_the_rest_is_not_run(report, out):
    assert run_of(report, "02_fails").error == "cell 6 (Fails): AssertionError: x is <one>"
    page = (out / "02_fails" / "02_fails.html").read_text()
    assert "<strong>failed</strong> cell 6 (Fails): AssertionError: x is &lt;one&gt;" in page
    partial = nbformat.read(out / "02_fails" / "02_fails.ipynb", as_version=4)
    last = partial.cells[-1]
    assert last.source.strip() == PLOT.strip() and last.outputs == []


def test_an_endless_cell_is_stopped_and_its_kernel_is_gone(stopped, out):
    assert run_of(stopped, "03_endless").error == "cell 5 (Endless): stopped after 3 s, the time-out of a cell"
    pid = json.loads((out / "03_endless" / "seen.json").read_text())["pid"]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert "time-out of a cell" in (out / "03_endless" / "03_endless.html").read_text()


def test_a_kernel_that_dies_is_a_failure_and_leaves_the_partial_notebook(report, out):
    assert run_of(report, "04_dies").error == "cell 2 (Dies): its kernel died"
    assert (out / "04_dies" / "04_dies.html").is_file()


def test_a_claim_that_failed_fails_the_report_by_name(report):
    assert run_of(report, "05_claims").error == "claims that failed: b"
    assert not report.ok
    assert "05_claims: claims that failed: b" in report.failures


def test_a_metrics_file_that_is_none_is_a_failure(report):
    assert run_of(report, "05_metrics").error == "metrics.json has no proper 'executor'"


def test_every_step_names_the_cell_in_hand_and_what_it_printed(report, steps):
    good = [step for step in steps if step.notebook == "01_good"]
    assert [step.done for step in good if not step.said] == list(range(7))
    assert {step.cells for step in good} == {7}
    assert "01_good cell 5 of 7: Good & plain: hello" in [str(step) for step in good]


def test_the_whole_notebook_has_a_time_out_of_its_own(folder, tmp_path, capfd):
    report = make_report(["03"], "tiny", tmp_path, timeout_s=1, folder=folder)
    assert report.failures[0].endswith("stopped after 1 s, the time-out of a notebook")
    told = capfd.readouterr()
    assert told.out == "" and "03_endless cell" in told.err
    assert not re.search(r"Kernel|Traceback|WARNING|ERROR|Debugger", told.err)


# -- the pages ---------------------------------------------------------------------------------------------------------


def test_a_page_carries_plotly_once_and_no_widget_state(report, out):
    page = (out / "01_good" / "01_good.html").read_text()
    assert page.count("Plotly.newPlot(") == 2
    assert page.count("plotly.js v") == 1
    assert "widget-state" not in page and "</script><b>" not in page
    executed = (out / "01_good" / "01_good.ipynb").read_text()
    assert "application/vnd.plotly.v1+json" in executed and "plotly.js v" not in executed


def test_the_index_names_what_served_and_what_failed_and_escapes_it(report, stopped):
    index = stopped.index.read_text()
    for text in (
        "Good &amp; plain",
        "pool stays &lt;flat&gt;",
        "x is &lt;one&gt;",
        "claims that failed: b",
        "stopped after 3 s",
        "blocks 1.235, at None",
        '<span class="badge simulated">simulated</span>',
        "<dt>seed</dt><dd>7</dd>",
        'href="01_good/01_good.html"',
    ):
        assert text in index
    assert "<one>" not in index and "<flat>" not in index


def test_a_second_report_keeps_the_first_and_forgets_what_the_same_notebook_left(folder, tmp_path):
    leftover = tmp_path / "04_dies" / "tables" / "frames.parquet"
    leftover.parent.mkdir(parents=True)
    leftover.write_text("of an earlier run")
    (tmp_path / "04_dies" / "metrics.json").write_text("of an earlier run")
    (tmp_path / "00_other").mkdir()
    record = {"notebook": "00_other", "title": "Other", "error": None, "started_at": "then", "duration_s": 61}
    (tmp_path / "00_other" / "run.json").write_text(json.dumps(record))
    (tmp_path / "09_broken").mkdir()
    (tmp_path / "09_broken" / "run.json").write_text("{")
    index = make_report(["04_dies"], "tiny", tmp_path, progress=lambda step: None, folder=folder).index.read_text()
    assert index.index("Other") < index.index("Dies") < index.index("run.json cannot be read")
    assert "1 min 1 s" in index
    assert not leftover.exists() and not (tmp_path / "04_dies" / "metrics.json").exists()


def test_an_index_of_nothing_says_so(tmp_path):
    assert "No notebook has been run here yet." in write_index(tmp_path).read_text()


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_pages_draw_with_the_network_off_and_ask_for_nothing(report, out):
    from playwright.sync_api import sync_playwright

    asked, broken = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page = browser.new_page()
        page.context.set_offline(True)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: broken.append(str(error)))
        page.goto((out / "01_good" / "01_good.html").as_uri())
        for number in range(2):
            plot = page.locator(f"#figure-{number}.js-plotly-plot .main-svg").first
            plot.wait_for(state="attached", timeout=60_000)
        page.goto(report.index.as_uri())
        page.get_by_role("link", name="report").first.click()
        page.wait_for_url("**/01_good.html")
        page.set_viewport_size({"width": 360, "height": 640})
        page.goto(report.index.as_uri())
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        browser.close()
    assert broken == [] and overflow == 0
    assert asked and [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


# -- what is refused, in one line --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["01_good", "01_good.ipynb", "01", "01_g"])
def test_a_notebook_is_found_by_name_and_by_prefix(folder, name):
    assert find_notebooks([name, name], folder) == [folder / "01_good.ipynb"]


def test_without_names_all_notebooks_in_order_and_a_file_by_its_path(folder, tmp_path):
    assert [path.stem[:2] for path in find_notebooks([], folder)] == ["01", "02", "03", "04", "05", "05"]
    elsewhere = write_notebook(tmp_path / "mine.ipynb", "Mine")
    assert find_notebooks([str(elsewhere)], folder) == [elsewhere]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("05", "'05' may mean 05_claims, 05_metrics: write more of the name"),
        ("7", "no notebook '7': choose from 01_good, 02_fails"),
        ("", "no notebook '': choose from"),
    ],
)
def test_an_unknown_or_ambiguous_name_lists_those_there_are(folder, name, line):
    with pytest.raises(ReportError, match=re.escape(line)):
        find_notebooks([name], folder)


def test_what_cannot_run_is_refused_before_anything_does(folder, tmp_path):
    (tmp_path / "bad.ipynb").write_text("no notebook")
    (tmp_path / "file").write_text("")
    odd = write_notebook(tmp_path / "odd.ipynb", "Odd", parameters="a = ")
    refused = [
        ({"profile": "nothing"}, ProfileError, "no profile 'nothing'"),
        ({"out": tmp_path / "file"}, ReportError, "cannot write a report into"),
        ({"parameters": {"depth": 1}}, ReportError, "01_good has no parameter 'depth': it has full, out_dir, profile"),
        ({"notebooks": [str(tmp_path / "bad.ipynb")]}, ReportError, "bad.ipynb cannot be read as a notebook"),
        ({"notebooks": [str(odd)]}, ReportError, "odd.ipynb is no Python"),
        ({"notebooks": [], "folder": tmp_path / "none"}, ReportError, "no notebooks in"),
    ]
    for asked, error, line in refused:
        with pytest.raises(error, match=re.escape(line)) as refusal:
            make_report(**{"notebooks": ["01"], "profile": "tiny", "out": tmp_path / "out", "folder": folder, **asked})
        assert "\n" not in str(refusal.value)
        assert not list((tmp_path / "out").glob("*/*"))


def test_a_notebook_is_never_written_over_by_its_report(tmp_path):
    (tmp_path / "mine").mkdir()
    mine = write_notebook(tmp_path / "mine" / "mine.ipynb", "Mine")
    with pytest.raises(ReportError, match="would be written over"):
        make_report([str(mine)], "tiny", tmp_path)
    assert nbformat.read(mine, as_version=4).cells[0].source == "# Mine"


# -- notebook 01 -------------------------------------------------------------------------------------------------------


def test_01_is_kept_clean_and_takes_the_parameters_of_a_report():
    notebook = nbformat.read(FIRST, as_version=4)
    nbformat.validate(notebook)
    assert "widgets" not in notebook.metadata and notebook.metadata.kernelspec.name == "python3"
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in codes)
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    (parameters,) = [cell for cell in codes if "parameters" in cell.metadata.get("tags", [])]
    names = [node.targets[0].id for node in ast.parse(parameters.source).body]
    assert names == ["profile", "out_dir", "full", "seed"]
    assert 'pio.renderers.default = "plotly_mimetype"' in codes[0].source
    for cell in codes:
        compile(cell.source, cell.id, "exec")


def test_01_writes_no_number_of_a_run_into_its_prose():
    notebook = nbformat.read(FIRST, as_version=4)
    prose = " ".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    # What is left: the notebook's own number, the paper's, Eq. 1 and its constants.
    numbers = set(re.findall(r"\d[\d.]*\d|\d", re.sub(r"arXiv:[\d.]+|codec2", "", prose)))
    assert numbers == {"1"}


@pytest.mark.parametrize("holds", [True, False])
def test_01_tells_its_story_and_asserts_its_claims(tmp_path, holds):
    """Run on a result worked out on paper, in place of the engine, by a cell put in front."""
    notebook = nbformat.read(FIRST, as_version=4)
    notebook.cells.insert(
        0,
        new_code_cell(f"""
import sys, types
sys.path.insert(0, {str(CHECKOUT)!r})
from tests.test_plots import synthetic_result
def run(profile, *, progress=None, tables_dir=None, frames=None, sessions=None, window=None, sinks=None, seed=None):
    assert profile.name == "tiny" and seed is None and tables_dir.name == "tables"
    progress("unbounded arm", 0.5)
    return synthetic_result(holds={holds})
sys.modules["workbench.experiments.cliff"] = types.SimpleNamespace(run=run)
"""),
    )
    nbformat.write(notebook, tmp_path / FIRST.name)
    steps = []
    report = make_report(["01"], "tiny", tmp_path / "out", progress=steps.append, folder=tmp_path)
    (run,) = report.runs
    name = "the bounded arm <never> caps a frame"
    assert (run.error is None) is holds and (holds or f"AssertionError: claims that failed: {name}" in run.error)
    assert [c["holds"] for c in run.metrics["claims"]] == [True, holds]
    assert {f.stem for f in (run.folder / "tables").iterdir()} == {"sessions", "frames", "pool"}
    assert "50% unbounded arm" in [step.said for step in steps]
    page = (run.folder / f"{FIRST.stem}.html").read_text()
    assert page.count("Plotly.newPlot(") == 4 and "no model ran" in page


def test_save_result_writes_the_metrics_file_and_the_tables(tmp_path):
    result = synthetic_result()
    save_result(result, tmp_path / "new")
    assert json.loads((tmp_path / "new" / "metrics.json").read_text()) == result.to_dict()
    assert len(list((tmp_path / "new" / "tables").glob("*.parquet"))) == 3
