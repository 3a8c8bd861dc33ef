"""The harness itself: real servers and a real browser do, see and leave behind what its methods say."""

from __future__ import annotations

import ast
import re
from urllib.error import HTTPError

import psutil
import pytest

from .driver import LIMIT_S, LabServer, NotebookPage, PageError, ServerError, runs, wait_for, write_notebook

PANEL = """
import threading
import ipywidgets as widgets

button, label = widgets.Button(description="Count", icon="play"), widgets.HTML("idle")
broken, thread = widgets.Button(description="Break"), widgets.Button(description="Break a thread")

def count():
    for number in range(3):
        label.value = f"counted {number}"
    label.value = "counted <b>all</b>"

def fail(_):
    raise KeyError("callback")

def fail_late():
    raise ValueError("thread")

button.on_click(lambda _: threading.Thread(target=count).start())
broken.on_click(fail)
thread.on_click(lambda _: threading.Thread(target=fail_late).start())
widgets.VBox([button, broken, thread, label])
"""
CONTROLS = """
model = widgets.Dropdown(description="Model", options=["tiny", "small"])
users = widgets.IntText(1, description="Users")
rate = widgets.BoundedFloatText(1.0, max=10.0, description="Rate")
window = widgets.IntSlider(2, max=50, description="Window")
name = widgets.Text(description="Name")
loop = widgets.Checkbox(False, description="Loop")
kind = widgets.ToggleButtons(options=["bounded", "stock"], description="Kind")
clip = widgets.FileUpload(description="Clip")
widgets.VBox([model, users, rate, window, name, loop, kind, clip])
"""
VALUES = """
print([model.value, users.value, rate.value, window.value, name.value, loop.value, kind.value])
print([bytes(file.content) for file in clip.value])
"""
CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
"""
WAIT = "import time\nprint('begun', flush=True)\ntime.sleep(600)"


@pytest.fixture
def panel(notebook_page, served_folder):
    """The panel's notebook, open, with its first cell run."""
    notebook_page.open(write_notebook(served_folder / "panel.ipynb", [PANEL, CONTROLS, VALUES, "1 / 0", WAIT]))
    notebook_page.run_cell(0)
    return notebook_page


def test_a_press_reaches_the_kernel_and_its_thread_reaches_the_page(panel):
    panel.wait_text("idle")
    panel.click("Count")
    assert panel.wait_text(re.compile(r"counted (a\w+)")).group(1) == "all"
    assert panel.errors == []
    assert panel.outside == []


def test_controls_are_set_by_their_descriptions(panel, tmp_path):
    clip = tmp_path / "clip.wav"
    clip.write_bytes(b"RIFF")
    panel.run_cell(1)
    panel.select("Model", "small")
    panel.set_number("Users", 12)
    panel.set_number("Rate", 2.5)
    assert panel.set_slider("Window", 40) == "40"
    panel.set_text("Name", "fleet")
    panel.set_checkbox("Loop", True)
    panel.click("stock")
    panel.upload(clip, "Clip (0)")
    panel.wait_text("Clip (1)")
    values, files = panel.run_cell(2).splitlines()
    assert ast.literal_eval(values) == ["small", 12, 2.5, 40, "fleet", True, "stock"]
    assert ast.literal_eval(files) == [b"RIFF"]


def test_errors_are_seen_wherever_they_happen(panel):
    assert "ZeroDivisionError" in panel.run_cell(3)
    assert panel.forget_errors() == ["ZeroDivisionError: division by zero"]
    panel.click("Break")
    panel.click("Break a thread")
    wait_for(lambda: len(panel.errors) == 2, LIMIT_S, lambda: f"heard {panel.errors}")
    assert set(panel.forget_errors()) == {"KeyError: 'callback'", "stderr: ValueError: thread"}
    panel.page.evaluate("console.error('from the page')")
    assert panel.forget_errors() == ["console: from the page"]
    assert panel.errors == []


def test_the_kernel_is_interrupted_outlives_its_tab_and_is_restarted(panel):
    kernel = panel.kernel_process()
    panel.start_cell(4)
    panel.wait_text("begun")
    panel.interrupt()
    wait_for(lambda: panel.errors, LIMIT_S, lambda: "no interrupt was seen")
    assert panel.forget_errors() == ["KeyboardInterrupt: "]
    assert panel.kernel_eval("__import__('os').getpid()") == str(kernel.pid)
    panel.click("Count")
    panel.wait_text("counted all")
    panel.save()
    panel.close_tab()
    assert panel.kernel_process() == kernel
    panel.reopen()
    assert panel.kernel_eval("label.value") == "'counted <b>all</b>'"
    panel.wait_text("counted all")
    panel.restart()
    assert panel.kernel_process() != kernel
    with pytest.raises(PageError, match="^label: NameError"):
        panel.kernel_eval("label")
    panel.shut_kernel()
    assert panel.server.kernels() == []


def test_a_failure_tells_what_is_shown_and_keeps_it(panel, tmp_path, monkeypatch):
    with pytest.raises(PageError, match=r"no 'no such text' within 0 s; errors: \[\]; shown: .*Count"):
        panel.wait_text("no such text", timeout_s=0)
    monkeypatch.setenv("METRONOME_SHOTS", str(tmp_path / "shots"))
    picture, text = panel.keep_evidence("tests/lab::one[two]")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "Kernel started" in text.read_text()
    assert {picture.parent, text.parent} == {tmp_path / "shots"}


def test_a_closed_server_leaves_no_process_and_no_folder(tmp_path):
    with LabServer(tmp_path) as server:
        kernel = server.kernel_process(server.request("api/kernels", method="POST")["id"])
        assert kernel in server.processes()
        assert server.home.is_dir()
        with pytest.raises(HTTPError, match="403"):
            server.request("api/kernels", token=False)
    assert not runs(kernel)
    assert server.processes() == []
    assert not server.home.exists()


def test_a_process_that_outlives_its_kernel_is_told_and_ended(chromium, tmp_path):
    name = write_notebook(tmp_path / "child.ipynb", [CHILD])
    server = LabServer(tmp_path, linger_s=1)
    told = pytest.raises(ServerError, match=r"^JupyterLab left \d+ of its processes behind: ")
    with chromium.new_context() as context, told as failure, server:
        page = NotebookPage(context, server)
        page.open(name)
        page.run_cell(0)
        child = psutil.Process(int(page.kernel_eval("child.pid")))
    assert not runs(child)
    assert str(child.pid) in str(failure.value)


def test_a_server_that_cannot_start_says_why(lab, tmp_path):
    told = pytest.raises(ServerError, match=r"JupyterLab ended with status 1 \(.*not available")
    with told, LabServer(tmp_path, port=lab.port):
        pass


def test_voila_runs_the_notebook_and_ends_its_kernel_with_the_tab(voila_page, voila, served_folder):
    voila_page.open(write_notebook(served_folder / "shown.ipynb", [PANEL, "1 / 0"]))
    assert voila_page.forget_errors() == ["ZeroDivisionError: division by zero"]
    voila_page.click("Count")
    voila_page.wait_text("counted all")
    voila_page.click("Break")
    wait_for(lambda: voila_page.errors, LIMIT_S, lambda: "no error was heard")
    assert voila_page.forget_errors() == ["KeyError: 'callback'"]
    with pytest.raises(HTTPError, match="403"):
        voila.request("voila/api/contents", token=False)
    kernel = voila_page.kernel_process()
    voila_page.close_tab()
    wait_for(lambda: not runs(kernel), LIMIT_S, lambda: "the kernel outlived its tab")
