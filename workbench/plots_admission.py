"""Figures of the admission experiment: sessions under their cap, latency and failures, how full the pool is, per arm.

``arms``: name -> what the metrics hold of it, in which ``trace`` has a row for each interval at whose end the cap was
set. Times in seconds. Raises PlotError where something lacks.
"""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Any

from workbench._figures import GREY, INK, LOOKS, MARGIN_PX, SIMULATED, Label, Look, PlotError, add_to_panel, finish

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from workbench.experiments import Result

_ROW = ("at_s", "sessions", "cap", "p99_s", "returned", "failures", "shed", "usage")
_CAPTION_WIDTH = 95
_PANEL_PX, _GAP_PX = 180, 60
OPEN = Look("#0072B2", "solid", "circle", 4)
CAP = Look("#E69F00", "dash", "diamond", 4)
FAILED = Look("#D55E00", "solid", "x", 5)
TARGET = Look(INK, "dot", "line-ew")


def label_of_admission(result: Result) -> Label:
    """The caption of an admission result: what served, who called, who stood before it."""
    params = result.params
    pool = f"pool of {params['pool_blocks']} blocks of {params['block_size']} tokens"
    aimd = (
        f"target {params['target']:g} B, step {params['step']:g}, factor {params['factor']:g}, start {params['start']}"
    )
    lines = [
        f"{result.executor} · profile {result.profile}, slowdown {params.get('slowdown', 1):g} · seed {result.seed}",
        f"B = {params['frame_budget_s']:g} s · {pool} · bound W = {params['window']}, S = {params['sinks']} tokens",
        f"{params['arrivals_per_s']:.3g} sessions offered a second, each for {params['holding_s']:g} s on average",
        f"{params['controller']}: {aimd}; headroom: horizon {params['horizon_s']:g} s",
        f"step times: {params.get('costs', 'measured')}",
    ]
    wrapped = (piece for line in lines for piece in wrap(line, _CAPTION_WIDTH, break_on_hyphens=False))
    return Label("<br>".join(wrapped), simulated=result.executor == SIMULATED)


def label_of_paper_run(result: Result) -> Label:
    """The caption of the paper's own run within an admission result."""
    paper = result.metrics["paper"]
    offered = f"{paper['offered']} sessions offered at {paper['rate']:g} a second, nobody leaves"
    served = f"simulated · profile {paper['profile']} · seed {result.seed}"
    return Label(f"{served}<br>{offered} · step times: a roofline, which no kernel reaches", simulated=True)


def sessions_and_caps(
    arms: dict[str, dict[str, Any]], levels: dict[str, dict[str, float]], *, title: str, label: Label
) -> Figure:
    """Open sessions and the cap over time, a panel per arm. ``levels``: of an arm, named numbers of sessions."""
    figure = _panels(arms, "time since the arm began (s)", "sessions")
    for row, (name, arm) in enumerate(arms.items(), 1):
        trace = _trace(name, arm)
        at = [each["at_s"] for each in trace]
        most = max(each["sessions"] for each in trace)
        most = max([most, *levels.get(name, {}).values()])
        # A cap that nobody comes near would press all else to the ground.
        ceiling = 1.25 * most
        caps = [min(each["cap"], ceiling) for each in trace]
        add_to_panel(figure, (row, 1), at, caps, "admission cap", CAP, shape="hv", width=1.8)
        add_to_panel(figure, (row, 1), at, [each["sessions"] for each in trace], "open sessions", OPEN)
        for words, level in levels.get(name, {}).items():
            line = {"line": {"color": GREY, "dash": "dashdot", "width": 1.2}, "annotation_text": words}
            figure.add_hline(level, row=row, col=1, annotation_position="bottom right", **line)
        figure.update_yaxes(range=[0, 1.2 * most], row=row, col=1)
        _mark_full(figure, row, arm)
    return finish(figure, title, None, None, label, height=_height(arms), headroom=20)


def latency_and_failures(arms: dict[str, dict[str, Any]], target_s: float, *, title: str, label: Label) -> Figure:
    """p99 of the frames that came whole, per interval, against the target; and the part of all frames that failed."""
    figure = _panels(arms, "time since the arm began (s)", "seconds; part of all frames")
    for row, (name, arm) in enumerate(arms.items(), 1):
        trace = _trace(name, arm)
        heard = [each for each in trace if each["p99_s"] is not None]
        at, p99 = [each["at_s"] for each in heard], [each["p99_s"] for each in heard]
        add_to_panel(figure, (row, 1), at, p99, "p99 of whole frames (s)", OPEN, width=1.2, marks=True)
        counted = [each for each in trace if each["returned"] + each["failures"]]
        failed = [each["failures"] / (each["returned"] + each["failures"]) for each in counted]
        at = [each["at_s"] for each in counted]
        add_to_panel(figure, (row, 1), at, failed, "part of frames capped or empty", FAILED)
        ends = [0.0, trace[-1]["at_s"]]
        add_to_panel(figure, (row, 1), ends, [target_s] * 2, f"target {target_s:g} s", TARGET, width=1.5)
        _mark_full(figure, row, arm)
    figure.update_yaxes(rangemode="tozero")
    return finish(figure, title, None, None, label, height=_height(arms), headroom=20)


def pool_of_arms(arms: dict[str, dict[str, Any]], *, title: str, label: Label) -> Figure:
    """Blocks used / blocks total over time, a panel per arm."""
    figure = _panels(arms, "time since the arm began (s)", "blocks used / blocks total")
    for row, (name, arm) in enumerate(arms.items(), 1):
        trace = _trace(name, arm)
        look = LOOKS["bounded" if name.startswith("bounded") else "unbounded"]
        usage = [each["usage"] for each in trace]
        words = "bounded sessions" if name.startswith("bounded") else "unbounded sessions"
        add_to_panel(figure, (row, 1), [each["at_s"] for each in trace], usage, words, look)
        _mark_full(figure, row, arm)
    figure.update_yaxes(tickformat=".0%", range=[0, 1.12])
    return finish(figure, title, None, None, label, height=_height(arms), headroom=20)


def _mark_full(figure: Figure, row: int, arm: dict[str, Any]) -> None:
    if arm["t_full_s"] is not None:
        line = {"line": {"color": INK, "dash": "dot", "width": 1}, "annotation_text": "pool full"}
        figure.add_vline(arm["t_full_s"], row=row, col=1, annotation_position="top left", **line)


def _trace(name: str, arm: dict[str, Any]) -> list[dict[str, Any]]:
    trace = arm.get("trace")
    if not trace:
        raise PlotError(f"arm {name} has no trace: pass the metrics of the admission experiment")
    for key in _ROW:
        if key not in trace[0]:
            raise PlotError(f"the trace of arm {name} has no {key!r}: pass the metrics of the admission experiment")
    return trace


def _panels(arms: dict[str, Any], x: str, y: str) -> Figure:
    from plotly.subplots import make_subplots

    titles = [f"{name} ({arm.get('controller', '')})" for name, arm in arms.items()]
    figure = make_subplots(
        rows=len(arms), cols=1, subplot_titles=titles, vertical_spacing=_GAP_PX / _plot_px(arms), x_title=x, y_title=y
    )
    figure.update_annotations(font_size=12)
    return figure


def _plot_px(arms) -> int:
    return len(arms) * _PANEL_PX + (len(arms) - 1) * _GAP_PX


def _height(arms) -> int:
    return _plot_px(arms) + MARGIN_PX
