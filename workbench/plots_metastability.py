"""Figures of the metastability experiment: P(wall) over N x duration, how far the walls lie apart, and what moves them.

``metrics`` are the experiment's. Everything is simulated and says so. Raises PlotError for metrics that lack something.
"""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Any

from workbench._figures import (
    BOUNDED,
    GREY,
    INK,
    LOOKS,
    MARGIN_PX,
    SIMULATED,
    UNBOUNDED,
    Label,
    Look,
    PlotError,
    finish,
)
from workbench.wilson import wilson

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from workbench.experiments import Result

Metrics = dict[str, Any]
# Colours of Okabe and Ito; the symbols tell the sources apart in grey.
SOURCE_LOOKS = {
    "none": Look(INK, "solid", "circle", 9),
    "start_jitter": Look("#56B4E9", "solid", "triangle-up", 9),
    "eos": Look("#009E73", "solid", "square", 8),
    "step_noise": Look("#CC79A7", "solid", "triangle-down", 9),
    "churn": Look("#E69F00", "solid", "star", 10),
    "replies": Look("#0072B2", "solid", "cross", 9),
    "all": Look("#D55E00", "solid", "diamond", 9),
}
_CAPTION_WIDTH = 95
_ROW_PX, _FRAME_PX = 26, 240
_COLUMNS, _PANEL_PX, _GAP_PX = 4, 150, 40
_NEEDED = ("cells", "predicted", "runs", "paper")


def label_of_runs(result: Result) -> Label:
    """The caption of every figure of ``result``: executor, profile, seed, sessions, pool and strengths."""
    params = result.params
    strengths = ", ".join(f"{key} {value:g}" for key, value in params["strengths"].items())
    frame = f"{params['tokens_in']} tokens in and {params['tokens_owed']} owed per frame"
    lines = (
        f"{result.executor} · profile {result.profile} · seed {result.seed} · a fresh engine for each run",
        f"B = {params['frame_budget_s']:g} s · {frame}",
        f"pool of {params['pool_blocks']} blocks of {params['block_size']} tokens · bound W = {params['window']}, "
        + f"S = {params['sinks']} tokens",
        f"strengths: {strengths}",
    )
    wrapped = (part for line in lines for part in wrap(line, _CAPTION_WIDTH, break_on_hyphens=False))
    return Label("<br>".join(wrapped), simulated=result.executor == SIMULATED)


def collapse_map(metrics: Metrics, *, label: Label) -> Figure:
    """Walls of runs by source and N (rows) and duration (columns, parts of Eq. 1's time); bounded runs of all sources
    together, in the rows at the bottom."""
    rows: dict[str, dict[float, tuple[int, int]]] = {}
    for cell in _parted(metrics):
        row = rows.setdefault(_row_of(cell), {})
        walled, runs = row.get(cell["part"], (0, 0))
        row[cell["part"]] = walled + cell["walled"], runs + cell["runs"]
    columns = sorted({part for row in rows.values() for part in row})
    counts = [[row.get(part) for part in columns] for row in rows.values()]
    figure = _new()
    figure.add_heatmap(
        x=[f"{part:g}" for part in columns],
        y=list(rows),
        z=[[None if each is None else each[0] / each[1] for each in row] for row in counts],
        text=[["" if each is None else f"{each[0]} of {each[1]}" for each in row] for row in counts],
        texttemplate="%{text}",
        hovertemplate="%{y}, %{x}: walled %{text}<extra></extra>",
        colorscale=[[0, "#F4F7FA"], [1, LOOKS[UNBOUNDED].colour]],
        zmin=0,
        zmax=1,
        xgap=2,
        ygap=2,
        colorbar={"title": {"text": "P(wall)"}, "tickformat": ".0%", "thickness": 14},
        name=SIMULATED,
    )
    figure.update_xaxes(type="category")
    figure.update_yaxes(autorange="reversed", automargin=True)
    title = "Walls of runs, by source of variance and duration"
    return finish(figure, title, _DURATION, None, label, height=_FRAME_PX + _ROW_PX * len(rows))


def collapse_curves(metrics: Metrics, n: int, *, label: Label) -> Figure:
    """P(wall) of ``n`` sessions against the duration with 95 % Wilson intervals, a panel per source, bounded runs in
    one. Dotted: the paper's duration, where it lies among those."""
    from plotly.subplots import make_subplots

    lines: dict[str, dict[float, tuple[int, int]]] = {}
    for cell in _parted(metrics):
        if cell["n"] == n:
            line = lines.setdefault(BOUNDED if cell["policy"] == BOUNDED else cell["variance"], {})
            walled, runs = line.get(cell["part"], (0, 0))
            line[cell["part"]] = walled + cell["walled"], runs + cell["runs"]
    if not lines:
        raise PlotError(f"no cell has n = {n}: choose one of those that the experiment served")
    rows = -(-len(lines) // _COLUMNS)
    plot = rows * _PANEL_PX + (rows - 1) * _GAP_PX
    figure = make_subplots(
        rows=rows,
        cols=_COLUMNS,
        shared_xaxes="all",
        shared_yaxes="all",
        vertical_spacing=_GAP_PX / plot if rows > 1 else 0,
        horizontal_spacing=0.02,
        subplot_titles=[f"{name}, {max(runs for _, runs in line.values())} runs" for name, line in lines.items()],
        x_title=_DURATION,
        y_title="runs that walled",
    )
    figure.update_annotations(font_size=12)
    first, last = min(map(min, lines.values())), max(map(max, lines.values()))
    at = metrics["paper"]["duration_s"] / next(row["eq1_s"] for row in metrics["predicted"] if row["n"] == n)
    for i, (name, line) in enumerate(lines.items()):
        place = {"row": i // _COLUMNS + 1, "col": i % _COLUMNS + 1}
        look = LOOKS[BOUNDED] if name == BOUNDED else SOURCE_LOOKS[name]
        share = [walled / runs for walled, runs in line.values()]
        ends = [wilson(walled, runs) for walled, runs in line.values()]
        figure.add_scatter(
            x=list(line),
            y=share,
            name=f"{name}, {SIMULATED}",
            mode="lines+markers",
            line={"color": look.colour, "dash": look.dash, "width": 1.5},
            marker={"color": look.colour, "symbol": look.symbol, "size": look.size},
            error_y={
                "array": [high - p for p, (_, high) in zip(share, ends, strict=True)],
                "arrayminus": [p - low for p, (low, _) in zip(share, ends, strict=True)],
                "thickness": 1.2,
                "width": 3,
            },
            showlegend=False,
            **place,
        )
        if first <= at <= last:
            figure.add_vline(at, line={"color": GREY, "dash": "dot", "width": 1.2}, **place)
    figure.update_yaxes(tickformat=".0%", range=[-0.05, 1.05])
    title = f"P(wall), N = {n}, with 95 % intervals"
    figure = finish(figure, title, None, None, label, height=plot + MARGIN_PX)
    return figure.update_xaxes(rangemode="normal", range=[first - 0.05, last + 0.05])


def walls_apart(metrics: Metrics, *, label: Label) -> Figure:
    """The start of the wall of every unbounded run, over Eq. 1's time for its N; hollow: no wall when the run ended."""
    eq1_s = {row["n"]: row["eq1_s"] for row in metrics["predicted"]}
    figure = _new()
    sources = [source for source in SOURCE_LOOKS if any(row["variance"] == source for row in _unbounded(metrics))]
    for source in sources:
        for walled in (True, False):
            rows = [
                r for r in _unbounded(metrics) if r["variance"] == source and (r["wall_at_s"] is not None) == walled
            ]
            if not rows:
                continue
            look = SOURCE_LOOKS[source]
            figure.add_scatter(
                x=[(row["wall_at_s"] if walled else row["ended_at_s"]) / eq1_s[row["n"]] for row in rows],
                y=[source] * len(rows),
                mode="markers",
                name=f"{'wall' if walled else 'no wall by then'}, {SIMULATED}",
                text=[f"N = {row['n']}, seed {row['seed']}" for row in rows],
                hovertemplate="%{text}: %{x:.3f}<extra></extra>",
                marker={
                    "color": look.colour,
                    "symbol": look.symbol if walled else f"{look.symbol}-open",
                    "size": 10,
                    "opacity": 0.75,
                },
                showlegend=False,
            )
    figure.add_vline(1, line={"color": GREY, "dash": "dash", "width": 1.2})
    figure.update_yaxes(categoryorder="array", categoryarray=sources[::-1], automargin=True, type="category")
    figure = finish(
        figure,
        "When each run walled",
        "start of the wall / Eq. 1's t_full (dashed: 1)",
        None,
        label,
        height=_FRAME_PX + 34 * len(sources),
    )
    return figure.update_xaxes(rangemode="normal")


def growth_decides(metrics: Metrics, *, label: Label) -> Figure:
    """t_full of every run with a fixed N against its growth, on Eq. 1's line for each N; the paper's 300 s."""
    figure = _new()
    runs = [r for r in _unbounded(metrics) if r["variance"] not in ("churn", "all") and r["full_at_s"] is not None]
    if not runs:
        raise PlotError("no run with a fixed N filled its pool: give longer durations")
    # The line ends a little outside of what was seen.
    growths = [row["growth"] for row in runs]
    low, high = 0.97 * min(growths), 1.03 * max(growths)
    of_line = [low + (high - low) * i / 60 for i in range(61)]
    for n in sorted({row["n"] for row in runs}):
        # Eq. 1 by the runs' own N and pool: tokens x seconds per frame over N sessions.
        at = next(row for row in metrics["predicted"] if row["n"] == n)
        figure.add_scatter(
            x=of_line,
            y=[at["eq1_s"] * at["growth"] / growth for growth in of_line],
            name=f"Eq. 1, N = {n}",
            mode="lines",
            line={"color": GREY, "width": 1.5, "dash": "solid" if n == max(r["n"] for r in runs) else "dash"},
        )
    for source, look in SOURCE_LOOKS.items():
        mine = [row for row in runs if row["variance"] == source]
        if mine:
            figure.add_scatter(
                x=[row["growth"] for row in mine],
                y=[row["full_at_s"] for row in mine],
                name=f"{source}, {SIMULATED}",
                mode="markers",
                text=[f"N = {row['n']}, seed {row['seed']}" for row in mine],
                hovertemplate="%{text}: %{y:.1f} s<extra></extra>",
                marker={"color": look.colour, "symbol": look.symbol, "size": look.size + 1, "opacity": 0.8},
            )
    figure = finish(
        figure,
        "The growth that a run had decides when its pool is full",
        "growth of a session, tokens per frame",
        "first refused allocation (s)",
        label,
    )
    return figure.update_xaxes(rangemode="normal")


_DURATION = "duration, as a part of Eq. 1's t_full"


def _new() -> Figure:
    from plotly.graph_objects import Figure

    return Figure()


def _check(metrics: Metrics) -> None:
    for key in _NEEDED:
        if key not in metrics:
            raise PlotError(f"the metrics have no {key!r}: pass those of the metastability experiment")


def _parted(metrics: Metrics) -> list[dict[str, Any]]:
    """The cells whose duration is a part of Eq. 1's time."""
    _check(metrics)
    return [cell for cell in metrics["cells"] if cell["part"] is not None]


def _unbounded(metrics: Metrics) -> list[dict[str, Any]]:
    _check(metrics)
    return [row for row in metrics["runs"] if row["policy"] == UNBOUNDED]


def _row_of(cell: dict[str, Any]) -> str:
    return f"{cell['variance'] if cell['policy'] == UNBOUNDED else BOUNDED}, N = {cell['n']}"
