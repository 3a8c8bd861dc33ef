"""What the panel shows, as its tests read it off the page: status, lines of the plots, controls."""

from __future__ import annotations

import re

import psutil

from .driver import LIMIT_S, NotebookPage, WidgetPage

# The last panel's plot on the page; traces are in the order of workbench.plots_live.LINES.
_TRACE = """trace => {
    const plots = document.querySelectorAll('.metronome-view .js-plotly-plot');
    const data = plots[plots.length - 1]?.data?.[trace];
    return data ? [Array.from(data.x), Array.from(data.y)] : [[], []];
}"""
_LONGER = f"([trace, x]) => (({_TRACE})(trace)[0].at(-1) ?? -1) > x"
# The engine's own processes are told by the main module they were given.
ENGINE_NAMES = ("VLLM::", "EngineCore", "multiprocessing")


def trace(page: WidgetPage, line: str, arm: int = 0) -> tuple[list[float], list[float]]:
    """The points of a line of the newest panel, as drawn."""
    return tuple(page.page.evaluate(_TRACE, _number(line, arm)))


def wait_drawn_past(page: WidgetPage, line: str, x: float, arm: int = 0) -> None:
    """Wait until a line is drawn past ``x``."""
    page.page.wait_for_function(_LONGER, arg=[_number(line, arm), x], timeout=LIMIT_S * 1000)


def wait_status(page: WidgetPage, wanted: str, timeout_s: float = LIMIT_S) -> str:
    """Wait until the status lines match a pattern; what it matched comes back."""
    return page.wait_text(re.compile(wanted), timeout_s)[0]


def engine_processes(page: NotebookPage) -> list[psutil.Process]:
    """The processes that the notebook's kernel has started and that live."""
    return [each for each in page.kernel_process().children(recursive=True) if _is_engine(each)]


def _is_engine(process: psutil.Process) -> bool:
    try:
        words = " ".join([process.name(), *process.cmdline()])
    except psutil.NoSuchProcess:
        return False
    return "resource_tracker" not in words and any(name in words for name in ENGINE_NAMES)


def _number(line: str, arm: int) -> int:
    from workbench.plots_live import LINES

    return arm * len(LINES) + [each.line for each in LINES].index(line)
