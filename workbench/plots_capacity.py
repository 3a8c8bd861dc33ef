"""Figures of the capacity experiment: capacities by point, bursts, and the slowdown that so many sessions bear.

``points`` and ``what_if`` are what the experiment's metrics hold under these names. Every figure says simulated. Raises
PlotError for metrics that lack something.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from workbench._figures import (
    GREY,
    INK,
    LOOKS,
    MARGIN_PX,
    OTHER_LOOKS,
    SIMULATED,
    Label,
    Look,
    PlotError,
    add_rule,
    finish,
    new_figure,
)
from workbench.experiments.capacity import label_of_point

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from workbench.experiments import Result

Rows = list[dict[str, Any]]
_PAPER = "the paper's GPU"
_LATENCY = replace(OTHER_LOOKS[1], size=10)
_PAPER_LOOK = Look(INK, "solid", "star", 13)
_LIMITS = {"memory": LOOKS[SIMULATED], "latency": _LATENCY, None: OTHER_LOOKS[0]}
_CAPTION_WIDTH = 95
_ROW_PX, _LEAST_ROWS = 44, 5


def label_of_capacity(result: Result) -> Label:
    """The caption of a capacity result: executor, profile, seed, what was asked, and where the step times are from."""
    params = result.params
    lines = [
        f"{result.executor} · profile {result.profile} · seed {result.seed}",
        (
            f"p99 within {params['target']:g} B, no capped or empty frame · N* over {params['n_star_frames']} frames "
            f"of each session · burst of {params['burst_s']:g} s"
        ),
        f"steps: {params['costs']}",
    ]
    wrapped = (part for line in lines for part in wrap(line, _CAPTION_WIDTH, break_on_hyphens=False))
    return Label("<br>".join(wrapped), simulated=result.executor == SIMULATED)


def capacities(points: Rows, *, label: Label) -> Figure:
    """N* (filled) and memory's ceiling as measured (open), a row per point, with the paper's of the same point."""
    _check(points, "n_star", "limit", "memory_ceiling_measured", "paper_n_star", "paper_memory_ceiling")
    names = [label_of_point(point) for point in points]
    figure = new_figure()
    _dots(
        figure,
        names,
        [p["memory_ceiling_measured"] for p in points],
        "ceiling, simulated",
        _opened(),
        "top right",
    )
    for limit, look in _LIMITS.items():
        mine = [(name, p["n_star"]) for name, p in zip(names, points, strict=True) if p["limit"] == limit]
        if mine:
            words = limit or "no limit found"
            _dots(figure, *zip(*mine, strict=True), f"N*, simulated ({words})", look, "bottom left")
    for key, words, symbol in (
        ("paper_memory_ceiling", "ceiling", "star-open"),
        ("paper_n_star", "N*", "star"),
    ):
        mine = [(name, p[key]) for name, p in zip(names, points, strict=True) if p[key] is not None]
        if mine:
            look = Look(INK, "solid", symbol, 13)
            _dots(figure, *zip(*mine, strict=True), f"{words}, {_PAPER}", look, "top center")
    return _rows(figure, names, "Bounded sessions that a GPU holds", label)


def bursts(points: Rows, *, label: Label) -> Figure:
    """The largest burst beside what Eq. 1 allows and what the paper prints, with a bar down to its least figure."""
    _check(points, "burst_by_eq1", "burst_limit", "paper_burst_low", "paper_burst_high", "paper_burst_words")
    points = _one_of_each_burst(points)
    names = [_burst_name(point) for point in points]
    figure = new_figure()
    _dots(figure, names, [p["burst_by_eq1"] for p in points], "Eq. 1", _opened(), "top right")
    for limit, look in _LIMITS.items():
        mine = [(name, _burst(p)) for name, p in zip(names, points, strict=True) if p["burst_limit"] == limit]
        if mine:
            words = limit or "no limit found"
            _dots(figure, *zip(*mine, strict=True), f"burst, simulated ({words})", look, "bottom left")
    paper = [(name, p) for name, p in zip(names, points, strict=True) if p["paper_burst_low"] is not None]
    if paper:
        lows = [p["paper_burst_low"] for _, p in paper]
        highs = [p["paper_burst_high"] or p["paper_burst_low"] for _, p in paper]
        figure.add_scatter(
            x=highs,
            y=[name for name, _ in paper],
            name=_PAPER,
            mode="markers+text",
            text=[_paper_words(p) for _, p in paper],
            textposition="top center",
            error_x={
                "array": [0] * len(paper),
                "arrayminus": [high - low for low, high in zip(lows, highs, strict=True)],
                "thickness": 2,
            },
            marker={"color": INK, "symbol": "star", "size": _PAPER_LOOK.size},
        )
    return _rows(figure, names, "Unbounded sessions that a fresh engine serves in a burst", label)


def slowdowns(what_if: Rows, points: Rows, paper_n: int | None, *, label: Label) -> Figure:
    """N against the slowdown that N bounded sessions bear, and N* of ``points`` of that model, hardware and window.

    A what-if: 1 is the roofline, and no engine was measured at any other. ``paper_n``: the paper's N*, a level line.
    """
    _check(what_if, "model", "hardware", "window", "n", "slowdown", "burst_seconds")
    curve = [each for each in what_if if each["burst_seconds"] is None and each["slowdown"] is not None]
    figure = new_figure()
    keys = {(each["model"], each["hardware"], each["window"]) for each in curve}
    same = [p for p in points if (p["model"], p["hardware"], p["window"]) in keys]
    borne = sorted((each["slowdown"], each["n"]) for each in curve)
    # Not joined: where memory limits N*, it stays so up to the slowdown at which latency takes over.
    for found, name, look, place in (
        (borne, "what-if, simulated: the slowdown that N sessions bear", LOOKS[SIMULATED], "top right"),
        ([(p["slowdown"], p["n_star"]) for p in same], "N*, simulated", _LATENCY, "top left"),
    ):
        if not found:
            continue
        x, y = zip(*found, strict=True)
        figure.add_scatter(
            x=x,
            y=y,
            name=name,
            mode="lines+markers+text" if found is borne else "markers+text",
            text=[f"{n} at {slowdown:.3g}" for slowdown, n in found],
            textposition=place,
            line={"color": look.colour, "dash": look.dash},
            marker={"color": look.colour, "symbol": look.symbol, "size": look.size},
            cliponaxis=False,
        )
    if figure.data:
        farthest = max(x for trace in figure.data for x in trace.x)
        highest = max(y for trace in figure.data for y in trace.y)
        if paper_n is not None:
            add_rule(figure, [0, 1.25 * farthest], paper_n, f"N* of about {paper_n}, {_PAPER}", in_legend=True)
        figure.update_xaxes(range=[0, 1.25 * farthest])
        figure.update_yaxes(range=[0, 1.2 * max(highest, paper_n or 0)])
    title = "If every step took longer than the roofline"
    return finish(figure, title, "slowdown: how many times the roofline's step", "sessions N", label)


# -- parts -------------------------------------------------------------------------------------------------------------


def _check(rows: Rows, *keys: str) -> None:
    for row in rows:
        for key in keys:
            if key not in row:
                raise PlotError(f"the metrics have no {key!r}: pass those of the capacity experiment")


def _opened() -> Look:
    return Look(GREY, "solid", "circle-open", 13)


def _dots(figure, names: Iterable[str], values: Iterable[float], name: str, look: Look, place: str) -> None:
    values = list(values)
    figure.add_scatter(
        x=values,
        y=list(names),
        name=name,
        mode="markers+text",
        text=[f"{value:,.0f}" for value in values],
        textposition=place,
        textfont={"color": look.colour, "size": 12},
        marker={"color": look.colour, "symbol": look.symbol, "size": look.size, "line": {"width": 2}},
    )


def _rows(figure: Figure, names: list[str], title: str, label: Label) -> Figure:
    # The topmost row first, with room above for its figures.
    figure.update_yaxes(range=[len(names) - 0.4, -0.7], categoryorder="array", categoryarray=names, automargin=True)
    # Room for a figure at the right of the largest.
    largest = max((x for trace in figure.data for x in trace.x), default=1)
    figure.update_xaxes(range=[0, 1.12 * largest])
    height = MARGIN_PX + _ROW_PX * max(_LEAST_ROWS, len(names))
    return finish(figure, title, "sessions", None, label, height=height, headroom=10)


def _burst(point: dict[str, Any]) -> int:
    return point["burst_90s"] if "burst_90s" in point else point["burst"]


def _one_of_each_burst(points: Rows) -> Rows:
    """A burst is unbounded, so points that differ in their window share one; the one with the paper's beside it."""
    kept: dict[str, dict[str, Any]] = {}
    for point in points:
        name = _burst_name(point)
        if name not in kept or point["paper_burst_low"] is not None:
            kept[name] = point
    return list(kept.values())


def _burst_name(point: dict[str, Any]) -> str:
    where = f" on {point['hardware']}" if point["hardware"] else ""
    slow = f", slowdown {point['slowdown']:g}" if point["slowdown"] != 1 else ""
    return f"{point['model']}{where}{slow}"


def _paper_words(point: dict[str, Any]) -> str:
    low, high = point["paper_burst_low"], point["paper_burst_high"]
    if high is None:
        return f"≥ {low}"
    return f"{low}" if low == high else f"{low} to {high}"
