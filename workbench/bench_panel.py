"""What the panel costs the engine beside it, and how often a page draws it: a real JupyterLab and a real Chromium.

The kernel of a notebook measures (workbench.bench_panel_kernel); this process opens and closes the page when the kernel
asks for it, by files in a folder that both know.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

from workbench.bench_panel_kernel import (
    CLOSED,
    OFF,
    SETTLE_S,
    SHOWN,
    START_S,
    TURN_S,
    TURNS,
    PanelBenchError,
    read,
    write,
)
from workbench.browser import FLAGS, BrowserError, find_chromium
from workbench.lab import lab_command
from workbench.profiles import Profile, load_profile

# Sessions and frames that the engine is never done with: what it serves then is all that it can.
SATURATED = {"sessions": 32, "window": 64, "frame_budget_s": 0.48}
REDRAW_PROFILE, REDRAW_SESSIONS, REDRAW_S = "sim:qwen3-omni@rtx-pro-6000", 32, 60.0
BENCH_FLAGS = (
    *FLAGS,
    # Else the size of the heap is told in coarse steps.
    "--enable-precise-memory-info",
)


def panel_rows(say: Callable[[str, float], None], profile: Profile, redraw_s: float = REDRAW_S) -> list[dict]:
    """Throughput of the engine with and without the panel, and redraws a second over ``redraw_s`` seconds.

    Raises PanelBenchError where there is no browser to measure with.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise PanelBenchError("playwright is not installed: run `make setup`") from None
    try:
        chromium = find_chromium()
    except BrowserError as error:
        raise PanelBenchError(str(error)) from None
    with tempfile.TemporaryDirectory(prefix="metronome-bench-") as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, headless=True, args=list(BENCH_FLAGS))
        try:
            with _lab(Path(folder)) as address:
                page = _Page(browser, address, Path(folder))
                rows = _throughput_rows(page, profile, lambda words, part: say(words, 0.7 * part))
                rows += _redraw_rows(page, redraw_s, lambda words, part: say(words, 0.7 + 0.3 * part))
        finally:
            browser.close()
    return rows


def _throughput_rows(page: _Page, profile: Profile, say) -> list[dict]:
    figures = page.run("throughput", {"profile": profile.name, **SATURATED}, say)
    rates = figures["tokens_per_s"]
    rows = []
    for what in (CLOSED, SHOWN):
        ratios = [a / b for a, b in zip(rates[what], rates[OFF], strict=True)]
        low, _, high = quantiles(ratios, n=4)
        rows.append(
            {
                "name": f"engine throughput, {what} / {OFF}",
                "value": median(ratios),
                "low": low,
                "high": high,
                "unit": "ratio",
                "turns": len(ratios),
                "rates": {each: median(values) for each, values in rates.items()},
                "executor": figures["executor"],
                "profile": profile.name,
                "params": {**SATURATED, "turn_s": TURN_S, "seed": profile.seed},
            }
        )
    return rows


def _redraw_rows(page: _Page, seconds: float, say) -> list[dict]:
    params = {"profile": REDRAW_PROFILE, "sessions": REDRAW_SESSIONS, "seconds": seconds}
    figures = page.run("redraws", params, say)
    shared = {
        "executor": "simulated",
        "profile": REDRAW_PROFILE,
        "params": {**params, "seed": load_profile(REDRAW_PROFILE).seed},
    }
    lags = sorted(figures["lags_s"])
    rows = [
        ("redraws of the page per second", figures["redraws"] / figures["seconds"], "1/s"),
        ("lag of the page, median", median(lags), "s"),
        ("lag of the page, 99 of 100 within", lags[min(len(lags) - 1, int(0.99 * len(lags)))], "s"),
        ("points on the page", figures["points"], "points"),
        ("JavaScript heap of the page, last / first", figures["heap_last"] / figures["heap_first"], "ratio"),
    ]
    return [{"name": name, "value": value, "unit": unit, **shared} for name, value, unit in rows]


# -- the server and the page --------------------------------------------------------------------------------------------


class _Page:
    """Opens a notebook when the kernel's side asks for a page and closes it when it asks for none."""

    def __init__(self, browser, address: Callable[[str], str], folder: Path) -> None:
        self.browser, self.address, self.folder = browser, address, folder

    def run(self, kind: str, params: dict, say) -> dict:
        """Have ``kind`` measured in the kernel of a notebook of its own; its figures."""
        import nbformat

        shared = self.folder / kind
        shared.mkdir()
        (shared / "params.json").write_text(json.dumps(params))
        code = f"from workbench.bench_panel_kernel import in_kernel\nin_kernel({kind!r}, {str(shared)!r})"
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
        notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, self.folder / f"{kind}.ipynb")
        page = self._open(kind)
        page.evaluate("() => jupyterapp.commands.execute('notebook:run-cell')")
        heaps: list[float] = []
        ends = time.monotonic() + START_S + 6 * TURNS * (TURN_S + SETTLE_S) + params.get("seconds", 0.0)
        try:
            while not (shared / "figures.json").exists():
                if time.monotonic() > ends:
                    raise PanelBenchError(f"the panel's {kind} was not measured in time: look at the machine's load")
                asked = read(shared / "asked")
                if asked != read(shared / "done"):
                    page = self._follow(asked, kind, page)
                    write(shared / "done", asked)
                say(read(shared / "said") or f"panel: starting for {kind}", float(read(shared / "part") or 0.0))
                if page is not None:
                    heaps.append(page.evaluate("() => performance.memory.usedJSHeapSize"))
                time.sleep(0.2)
        finally:
            if page is not None:
                page.context.close()
        figures = json.loads((shared / "figures.json").read_text())
        if "error" in figures:
            raise PanelBenchError(f"the panel's {kind} was not measured: {figures['error']}")
        tenth = max(1, len(heaps) // 10)
        # The first tenth is the page's own start; garbage makes single readings jump.
        return figures | {"heap_first": median(heaps[tenth : 2 * tenth] or heaps), "heap_last": median(heaps[-tenth:])}

    def _follow(self, asked: str, kind: str, page):
        if asked.endswith(SHOWN) and page is None:
            page = self._open(kind)
        elif not asked.endswith(SHOWN) and page is not None:
            page.context.close()
            page = None
        return page

    def _open(self, kind: str):
        page = self.browser.new_context(viewport={"width": 1400, "height": 1000}).new_page()
        page.goto(self.address(f"{kind}.ipynb"), timeout=START_S * 1e3)
        page.wait_for_function(
            "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.connectionStatus"
            " === 'connected' && jupyterapp.shell.currentWidget.content.widgets.length > 0",
            timeout=START_S * 1e3,
        )
        return page


@contextmanager
def _lab(folder: Path) -> Iterator[Callable[[str], str]]:
    """A JupyterLab of its own on ``folder``; gives the address of a notebook."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token, home = secrets.token_hex(16), folder / "home"
    home.mkdir()
    environment = {**os.environ, "JUPYTER_TOKEN": token, "IPYTHONDIR": str(home / "ipython")}
    environment |= {f"JUPYTER_{kind}_DIR": str(home / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")}
    command = [
        *lab_command(port, browser=False, folder=folder),
        "--LabApp.expose_app_in_browser=True",
        "--LabApp.extension_manager=readonly",
        "--LabApp.news_url=",
    ]
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _await_port(port, server)
        yield lambda name: f"http://127.0.0.1:{port}/doc/tree/{name}?token={token}&reset"
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _await_port(port: int, server: subprocess.Popen) -> None:
    ends = time.monotonic() + START_S
    while time.monotonic() < ends and server.poll() is None:
        with socket.socket() as there:
            if there.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise PanelBenchError("JupyterLab did not start: try `make lab`")
