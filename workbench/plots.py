"""Tables in, plotly figures out: pool occupancy, frame latency, content lag, tokens owed and delivered.

Every function takes a table of ``workbench.telemetry`` (column ``run`` names the arm) and a ``Label``, which says on
the figure itself what was served and how. Times in seconds. Raises PlotError for a table that lacks a column.
The figures of the saturation and agreement experiments are in ``workbench.plots_saturation``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench._figures import (
    BOUNDED,
    INK,
    UNBOUNDED,
    Label,
    PlotError,
    add_line,
    add_mark,
    add_note,
    add_points,
    add_rule,
    arms_of,
    faded,
    finish,
    label_of,
    new_figure,
    returned_of,
    span,
)

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

__all__ = [
    "BOUNDED",
    "UNBOUNDED",
    "Label",
    "PlotError",
    "content_lag",
    "frame_latency",
    "label_of",
    "owed_delivered",
    "pool_occupancy",
]

_ROUNDING = 1e-6
_AUDIO_END = "end of the frame's audio (s since the arm began)"


def pool_occupancy(
    pool: pd.DataFrame,
    *,
    label: Label,
    t_full_predicted_s: float | None = None,
    predicted_at_s: float | None = None,
    t_full_measured_s: float | None = None,
    t_wall_s: float | None = None,
    plateau_predicted_usage: float | None = None,
) -> Figure:
    """Blocks used / total over time, a line per arm; the forecast, the refusal and the wall are the unbounded arm's.

    The dashed line is Eq. 1 (Metronome, arXiv:2607.02640: rho(t) = rho0 + N r t) from the sample at ``predicted_at_s``,
    by default the first whose forecast was ``t_full_predicted_s``, to that instant. The star is the first refused
    allocation, the shade the wall.
    """
    import numpy as np

    figure = new_figure()
    arms = {run: (arm, look) for run, arm, look in arms_of(pool, "pool", "at_s", "blocks_used", "blocks_total")}
    for run, (arm, look) in arms.items():
        arm = arm.sort_values("at_s")
        usage = arm["blocks_used"] / arm["blocks_total"]
        hover = "%{x:.1f} s: %{customdata[0]} of %{customdata[1]} blocks"
        add_line(figure, arm["at_s"], usage, run, look, customdata=arm[["blocks_used", "blocks_total"]], hover=hover)
        if run != UNBOUNDED:
            continue
        if t_full_predicted_s is not None and "t_full_predicted_s" in arm:
            _forecast(figure, arm, usage, t_full_predicted_s, predicted_at_s)
        if t_full_measured_s is not None:
            height = float(np.interp(t_full_measured_s, arm["at_s"], usage))
            add_mark(figure, t_full_measured_s, height, f"first refused allocation, {t_full_measured_s:.1f} s", "star")
        if t_wall_s is not None:
            figure.add_vrect(t_wall_s, float(arm["at_s"].max()), fillcolor=look.colour, opacity=0.10, line_width=0)
            add_note(figure, t_wall_s, 0.03, f" unbounded: at the wall from {t_wall_s:.1f} s", look.colour)
    if plateau_predicted_usage is not None and BOUNDED in arms:
        ends = [float(pool["at_s"].min()), float(pool["at_s"].max())]
        add_rule(figure, ends, plateau_predicted_usage, "plateau predicted for the bounded arm", in_legend=True)
    figure.update_yaxes(tickformat=".0%", range=[0, 1.06])
    return finish(figure, "How full the pool is", "time since the arm began (s)", "blocks used / blocks total", label)


def _forecast(
    figure: Figure, arm: pd.DataFrame, usage: pd.Series, t_full_predicted_s: float, predicted_at_s: float | None
) -> None:
    made = arm.dropna(subset=["t_full_predicted_s"])
    if predicted_at_s is None:
        miss = (made["t_full_predicted_s"] - t_full_predicted_s).abs()
    else:
        miss = (made["at_s"] - predicted_at_s).abs()
    if miss.empty:
        return
    start = miss.idxmin()
    at = float(arm.loc[start, "at_s"])
    name = f"Eq. 1, forecast from {at:.1f} s on: full at {t_full_predicted_s:.1f} s"
    figure.add_scatter(
        x=[at, t_full_predicted_s],
        y=[float(usage[start]), 1.0],
        name=name,
        mode="lines+markers",
        line={"color": INK, "dash": "dash", "width": 1.5},
        marker={"color": INK, "symbol": "circle-open", "size": 9},
    )


def frame_latency(frames: pd.DataFrame, frame_budget_s: float, wait_cap: float, *, label: Label) -> Figure:
    """Latency of every frame against the end of its audio, on a log axis, under the wait cap and the deadline B.

    ``frame_budget_s``: B in seconds; ``wait_cap``: the part of B after which a frame returns. Capped frames are
    hollow. Frames that ended with their session never returned: they are not drawn, the legend counts them.
    """
    figure = new_figure()
    for run, arm, look in arms_of(frames, "frames", "due_at_s", "latency_s", "capped", "status"):
        returned = returned_of(arm)
        capped = returned["capped"].astype(bool)
        for part, words, symbol in (
            (returned[~capped], "on time", look.symbol),
            (returned[capped], "capped", f"{look.symbol}-open"),
        ):
            if not part.empty:
                add_points(figure, part["due_at_s"], part["latency_s"], f"{run}, {words} ({len(part)})", look, symbol)
        if len(returned) < len(arm):
            add_points(
                figure, [None], [None], f"{run}, not returned ({len(arm) - len(returned)})", look, "line-ew-open"
            )
    ends = span(frames["due_at_s"])
    if ends:
        cap_s = wait_cap * frame_budget_s
        add_rule(figure, ends, frame_budget_s, f"deadline B = {frame_budget_s:g} s", dash="solid")
        add_rule(figure, ends, cap_s, f"wait cap {wait_cap:g} B = {cap_s:g} s")
    ticks = [digit * 10.0**power for power in range(-4, 3) for digit in (1, 2, 5)]
    figure.update_yaxes(type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    return finish(figure, "Frame latency, under the deadline", _AUDIO_END, "frame latency (s, log scale)", label)


def content_lag(frames: pd.DataFrame, frame_budget_s: float, *, label: Label) -> Figure:
    """Content lag in each frame budget: the line is the arm's median session, the shade reaches up to the worst one."""
    figure = new_figure()
    for run, arm, look in arms_of(frames, "frames", "due_at_s", "content_lag_s", "status"):
        returned = returned_of(arm)
        # Sessions join at different times: what they share is the budget in which a frame falls due, not its number.
        ticks = returned.groupby((returned["due_at_s"] / frame_budget_s + _ROUNDING).astype("int64"))
        x, lag = ticks["due_at_s"].median(), ticks["content_lag_s"]
        if x.empty:
            continue
        add_line(figure, x, lag.median(), f"{run}, median session", look)
        figure.add_scatter(
            x=x,
            y=lag.max(),
            name=f"{run}, worst session",
            mode="lines",
            fill="tonexty",
            fillcolor=faded(look.colour),
            line={"color": look.colour, "dash": look.dash, "width": 0.7},
        )
    ends = span(frames["due_at_s"])
    if ends:
        add_rule(figure, ends, frame_budget_s, f"frame budget B = {frame_budget_s:g} s")
    figure.update_yaxes(rangemode="tozero")
    title = "Content lag: how old the newest audio is that delivered tokens had seen"
    return finish(figure, title, _AUDIO_END, "content lag (s)", label)


def owed_delivered(frames: pd.DataFrame, *, label: Label) -> Figure:
    """Tokens owed (thin) and delivered (thick) by the frames due so far, summed over the sessions of each arm."""
    figure = new_figure()
    for run, arm, look in arms_of(frames, "frames", "due_at_s", "status", "tokens_owed", "tokens_delivered"):
        sums = returned_of(arm).groupby("due_at_s")[["tokens_owed", "tokens_delivered"]].sum().cumsum()
        if sums.empty:
            continue
        x, owed, delivered = sums.index, sums["tokens_owed"], sums["tokens_delivered"]
        add_line(figure, x, owed, f"{run}, owed ({int(owed.iloc[-1])})", look, width=1, zorder=1)
        add_line(figure, x, delivered, f"{run}, delivered ({int(delivered.iloc[-1])})", look, width=3)
    figure.update_yaxes(rangemode="tozero")
    title = "Tokens owed and tokens delivered"
    return finish(figure, title, _AUDIO_END, "tokens since the arm began", label)
