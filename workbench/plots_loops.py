"""Figures of the loops experiment: the pool and the latency of both arms over time, a panel per loop.

``pool`` and ``frames`` are the tables of a loops result, whose runs are named "LOOP, ARM"; ``loops`` is what its
metrics hold under that name, ``served`` what its params do. Times in seconds. Raises PlotError where something lacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench._figures import (
    GREY,
    INK,
    LOOKS,
    MARGIN_PX,
    SIMULATED,
    Label,
    Look,
    PlotError,
    add_to_panel,
    arms_of,
    faded,
    finish,
)

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

    from workbench.experiments import Result

# More samples than a panel is wide show nothing more and make the notebook large.
MOST_SAMPLES = 500
SLICES = 60  # of a loop's time, in each of which latency is summed up
_ARMS = ("unbounded", "bounded")
_UNBOUNDED_KEYS = ("t_full_predicted_s", "low", "high", "predicted_at_s", "t_full_measured_s", "t_wall_s")
_SERVED_KEYS = ("sessions", "frame_budget_s", "tokens_owed", "tokens_in_mean")
_CAPTION_WIDTH = 95
_PANEL_PX, _GAP_PX = 210, 62


def label_of_loops(result: Result) -> Label:
    """The caption of a loops result: what served, and what each loop asked for."""
    params = result.params
    memory = f"pool of {params['pool_blocks']} blocks of {params['block_size']} tokens"
    lines = [
        f"{result.executor} · profile {result.profile} · seed {result.seed}",
        f"{memory} · bound W = {params['window']}, S = {params['sinks']} tokens",
        *(
            f"{name}: {each['front_end']}, {each['sessions']} sessions, B = {each['frame_budget_s']:g} s, "
            f"{each['tokens_owed']} tokens owed, EOS chance {each['eos_chance']:g}"
            for name, each in params["loops"].items()
        ),
        f"step times: {params['costs']}",
    ]
    wrapped = (piece for line in lines for piece in wrap(line, _CAPTION_WIDTH, break_on_hyphens=False))
    return Label("<br>".join(wrapped), simulated=result.executor == SIMULATED)


def loop_pools(pool: pd.DataFrame, loops: dict[str, Any], served: dict[str, Any], *, label: Label) -> Figure:
    """Blocks used / total over time: the forecast that counts and its 95 % interval, the first refusal and the wall."""
    figure = _panels(loops, served, "time since the arm began (s)", "blocks used / blocks total")
    for place, name, arm, rows, look in _arms(pool, "pool", loops, "at_s", "blocks_used", "blocks_total"):
        rows = rows.sort_values("at_s")
        rows = rows.iloc[np.unique(np.linspace(0, len(rows) - 1, MOST_SAMPLES).astype(int))]
        usage = rows["blocks_used"] / rows["blocks_total"]
        add_to_panel(figure, place, rows["at_s"], usage, arm, look, shape="hv")
        if arm == "unbounded":
            _add_cliff(figure, place, rows["at_s"], usage, loops[name][arm])
    figure.update_yaxes(tickformat=".0%", range=[0, 1.12])
    return finish(figure, "How full the pool is", None, None, label, height=_height(loops), headroom=20)


def _add_cliff(figure: Figure, place, at, usage, cliff: dict[str, Any]) -> None:
    predicted, full_s, wall_s = (cliff[key] for key in ("t_full_predicted_s", "t_full_measured_s", "t_wall_s"))
    if predicted is not None:
        begins = float(usage[at <= cliff["predicted_at_s"]].iloc[-1])
        line = [cliff["predicted_at_s"], predicted], [begins, 1.0]
        dotted = Look(INK, "dot", "circle-open", 8)
        add_to_panel(figure, place, *line, "forecast that counts", dotted, width=1.5, marks=True)
        interval = Look(INK, "solid", "line-ns-open", 9)
        ends = [cliff["low"], cliff["high"]]
        add_to_panel(figure, place, ends, [1.0, 1.0], "its 95 % interval", interval, width=1.5, marks=True)
    if full_s is not None:
        star = Look(INK, "solid", "star", 12)
        add_to_panel(figure, place, [full_s], [1.0], "first refused allocation", star, width=0, marks=True)
    if wall_s is not None:
        row, column = place
        shade = {"fillcolor": LOOKS["unbounded"].colour, "opacity": 0.10, "line_width": 0}
        words = {"annotation_text": "at the wall", "annotation_position": "bottom left", "annotation_font_size": 12}
        figure.add_vrect(wall_s, float(at.max()), row=row, col=column, **shade, **words)


def loop_latencies(
    frames: pd.DataFrame, loops: dict[str, Any], served: dict[str, Any], wait_cap: float, *, label: Label
) -> Figure:
    """Median latency of the frames that fell due in each slice of time; the shade reaches to 9 in 10 of them.

    A frame that was capped counts with the wait cap, ``wait_cap`` B, at which it returned.
    """
    figure = _panels(loops, served, "end of the frame's input (s since the arm began)", "frame latency (s)")
    columns = ("due_at_s", "latency_s", "status")
    for place, name, arm, rows, look in _arms(frames, "frames", loops, *columns):
        # Of the dropped ones as well: a frame returns at the cap whether or not its tokens were ever read.
        returned = rows[rows["latency_s"].notna() & (rows["status"] != "closed")]
        width = _ends(frames, name) / SLICES
        slices = returned.groupby((returned["due_at_s"] / width).astype(int))
        x, latency = slices["due_at_s"].median(), slices["latency_s"]
        add_to_panel(figure, place, x, latency.median(), f"{arm}, median", look)
        shade = {"fill": "tonexty", "fillcolor": faded(look.colour)}
        add_to_panel(
            figure, place, x, latency.quantile(0.9), f"{arm}, to the 90th percentile", look, width=0.5, **shade
        )
    for (row, column), name in zip(_places(loops), loops, strict=True):
        budget = served[name]["frame_budget_s"]
        cap = f"wait cap {wait_cap:g} B = {wait_cap * budget:g} s"
        line = {"line": {"color": GREY, "dash": "dash", "width": 1}, "annotation_text": cap}
        figure.add_hline(wait_cap * budget, row=row, col=column, annotation_position="top right", **line)
        figure.update_yaxes(range=[0, 1.2 * wait_cap * budget], row=row, col=column)
    return finish(figure, "Frame latency", None, None, label, height=_height(loops), headroom=20)


def _ends(frames: pd.DataFrame, name: str) -> float:
    own = frames[frames["run"].str.startswith(f"{name}, ")]
    return float(own["due_at_s"].max())


# -- a panel per loop --------------------------------------------------------------------------------------------------


def _arms(table: pd.DataFrame, kind: str, loops, *columns: str) -> Iterator[tuple]:
    """Place, loop, arm, rows and look of each run, the arms in one order."""
    runs = {run: rows for run, rows, _ in arms_of(table, kind, *columns)}
    for place, name in zip(_places(loops), loops, strict=True):
        for arm in _ARMS:
            if f"{name}, {arm}" not in runs:
                raise PlotError(f"the {kind} table has no run '{name}, {arm}': pass the one of the loops experiment")
            yield place, name, arm, runs[f"{name}, {arm}"], LOOKS[arm]


def _places(loops) -> list[tuple[int, int]]:
    return [(i + 1, 1) for i in range(len(loops))]


def _height(loops) -> int:
    return _plot_px(loops) + MARGIN_PX


def _plot_px(loops) -> int:
    return len(loops) * _PANEL_PX + (len(loops) - 1) * _GAP_PX


def _panels(loops: dict[str, Any], served: dict[str, Any], x: str, y: str) -> Figure:
    from plotly.subplots import make_subplots

    for name, arms in loops.items():
        for where, keys in (
            (arms.get("unbounded", {}), _UNBOUNDED_KEYS),
            (served.get(name, {}), _SERVED_KEYS),
        ):
            for key in keys:
                if key not in where:
                    raise PlotError(f"loop {name} has no {key!r}: pass metrics and params of the loops experiment")
    titles = [
        f"{name}: {served[name]['tokens_in_mean']:.0f} tokens in on average, up to {served[name]['tokens_owed']} out, "
        f"every {served[name]['frame_budget_s']:g} s, N = {served[name]['sessions']}"
        for name in loops
    ]
    figure = make_subplots(
        rows=len(loops), cols=1, subplot_titles=titles, vertical_spacing=_GAP_PX / _plot_px(loops), x_title=x, y_title=y
    )
    figure.update_annotations(font_size=12)
    return figure
