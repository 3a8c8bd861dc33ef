"""Tables in, plotly figures out: pool occupancy, frame latency, content lag, tokens owed and delivered.

Every function takes a table of ``workbench.telemetry`` (column ``run`` names the arm) and a ``Label``, which says on
the figure itself what was served and how. Times in seconds. Raises PlotError for a table that lacks a column.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.telemetry import RETURNED

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

    from workbench.experiments import Result

UNBOUNDED, BOUNDED = "unbounded", "bounded"


class PlotError(ValueError):
    """A table that cannot be drawn; one line that names what it lacks."""


@dataclass(frozen=True)
class Label:
    """The caption of a figure. ``simulated`` writes that word across the plot as well."""

    text: str
    simulated: bool = False


def label_of(result: Result) -> Label:
    """The caption of every figure of ``result``: executor, profile, seed and the main parameters."""
    params = result.params
    served = (
        result.executor,
        f"profile {result.profile}",
        f"seed {result.seed}",
        f"{params['sessions']} sessions",
        f"B = {params['frame_budget_s']:g} s",
        f"{params['tokens_owed']} tokens owed per frame",
    )
    memory = (
        f"{params['front_end']} front end",
        f"pool of {params['pool_blocks']} blocks of {params['block_size']} tokens",
        f"bound W = {params['window']}, S = {params['sinks']} tokens",
    )
    return Label("<br>".join(map(" · ".join, (served, memory))), simulated=result.executor == "simulated")


@dataclass(frozen=True)
class _Look:
    colour: str
    dash: str
    symbol: str
    size: int = 6


# Colours of Okabe and Ito, which stay apart for colour-blind readers; dash and symbol tell the arms apart in grey.
_LOOKS = {UNBOUNDED: _Look("#D55E00", "solid", "diamond", 9), BOUNDED: _Look("#0072B2", "dot", "circle")}
_OTHER_LOOKS = (
    _Look("#009E73", "dash", "square"),
    _Look("#CC79A7", "dashdot", "diamond"),
    _Look("#56B4E9", "longdash", "triangle-up"),
    _Look("#E69F00", "longdashdot", "star"),
)
_INK, _GREY = "#222222", "#666666"
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
    by default the first whose forecast was ``t_full_predicted_s``, to that instant. The star is the first refused allocation, the shade the wall.
    """
    import numpy as np

    figure = _figure()
    arms = {run: (arm, look) for run, arm, look in _arms(pool, "pool", "at_s", "blocks_used", "blocks_total")}
    for run, (arm, look) in arms.items():
        arm = arm.sort_values("at_s")
        usage = arm["blocks_used"] / arm["blocks_total"]
        hover = "%{x:.1f} s: %{customdata[0]} of %{customdata[1]} blocks"
        _line(figure, arm["at_s"], usage, run, look, customdata=arm[["blocks_used", "blocks_total"]], hover=hover)
        if run != UNBOUNDED:
            continue
        if t_full_predicted_s is not None and "t_full_predicted_s" in arm:
            _forecast(figure, arm, usage, t_full_predicted_s, predicted_at_s)
        if t_full_measured_s is not None:
            height = float(np.interp(t_full_measured_s, arm["at_s"], usage))
            _mark(figure, t_full_measured_s, height, f"first refused allocation, {t_full_measured_s:.1f} s", "star")
        if t_wall_s is not None:
            figure.add_vrect(t_wall_s, float(arm["at_s"].max()), fillcolor=look.colour, opacity=0.10, line_width=0)
            _note(figure, t_wall_s, 0.03, f" unbounded: at the wall from {t_wall_s:.1f} s", look.colour)
    if plateau_predicted_usage is not None and BOUNDED in arms:
        ends = [float(pool["at_s"].min()), float(pool["at_s"].max())]
        _rule(figure, ends, plateau_predicted_usage, "plateau predicted for the bounded arm", in_legend=True)
    figure.update_yaxes(tickformat=".0%", range=[0, 1.06])
    return _finish(figure, "How full the pool is", "time since the arm began (s)", "blocks used / blocks total", label)


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
        line={"color": _INK, "dash": "dash", "width": 1.5},
        marker={"color": _INK, "symbol": "circle-open", "size": 9},
    )


def frame_latency(frames: pd.DataFrame, frame_budget_s: float, wait_cap: float, *, label: Label) -> Figure:
    """Latency of every frame against the end of its audio, on a log axis, under the wait cap and the deadline B.

    ``frame_budget_s``: B in seconds; ``wait_cap``: the part of B after which a frame returns. Capped frames are
    hollow. Frames that ended with their session never returned: they are not drawn, the legend counts them.
    """
    figure = _figure()
    for run, arm, look in _arms(frames, "frames", "due_at_s", "latency_s", "capped", "status"):
        returned = _returned(arm)
        capped = returned["capped"].astype(bool)
        for part, words, symbol in (
            (returned[~capped], "on time", look.symbol),
            (returned[capped], "capped", f"{look.symbol}-open"),
        ):
            if not part.empty:
                _points(figure, part["due_at_s"], part["latency_s"], f"{run}, {words} ({len(part)})", look, symbol)
        if len(returned) < len(arm):
            _points(figure, [None], [None], f"{run}, not returned ({len(arm) - len(returned)})", look, "line-ew-open")
    ends = _span(frames["due_at_s"])
    if ends:
        cap_s = wait_cap * frame_budget_s
        _rule(figure, ends, frame_budget_s, f"deadline B = {frame_budget_s:g} s", dash="solid")
        _rule(figure, ends, cap_s, f"wait cap {wait_cap:g} B = {cap_s:g} s")
    ticks = [digit * 10.0**power for power in range(-4, 3) for digit in (1, 2, 5)]
    figure.update_yaxes(type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    return _finish(figure, "Frame latency, under the deadline", _AUDIO_END, "frame latency (s, log scale)", label)


def content_lag(frames: pd.DataFrame, frame_budget_s: float, *, label: Label) -> Figure:
    """Content lag in each frame budget: the line is the arm's median session, the shade reaches up to the worst one."""
    figure = _figure()
    for run, arm, look in _arms(frames, "frames", "due_at_s", "content_lag_s", "status"):
        returned = _returned(arm)
        # Sessions join at different times: what they share is the budget in which a frame falls due, not its number.
        ticks = returned.groupby((returned["due_at_s"] / frame_budget_s + _ROUNDING).astype("int64"))
        x, lag = ticks["due_at_s"].median(), ticks["content_lag_s"]
        if x.empty:
            continue
        _line(figure, x, lag.median(), f"{run}, median session", look)
        figure.add_scatter(
            x=x,
            y=lag.max(),
            name=f"{run}, worst session",
            mode="lines",
            fill="tonexty",
            fillcolor=_faded(look.colour),
            line={"color": look.colour, "dash": look.dash, "width": 0.7},
        )
    ends = _span(frames["due_at_s"])
    if ends:
        _rule(figure, ends, frame_budget_s, f"frame budget B = {frame_budget_s:g} s")
    figure.update_yaxes(rangemode="tozero")
    title = "Content lag: how old the newest audio is that delivered tokens had seen"
    return _finish(figure, title, _AUDIO_END, "content lag (s)", label)


def owed_delivered(frames: pd.DataFrame, *, label: Label) -> Figure:
    """Tokens owed (thin) and delivered (thick) by the frames due so far, summed over the sessions of each arm."""
    figure = _figure()
    for run, arm, look in _arms(frames, "frames", "due_at_s", "status", "tokens_owed", "tokens_delivered"):
        sums = _returned(arm).groupby("due_at_s")[["tokens_owed", "tokens_delivered"]].sum().cumsum()
        if sums.empty:
            continue
        x, owed, delivered = sums.index, sums["tokens_owed"], sums["tokens_delivered"]
        _line(figure, x, owed, f"{run}, owed ({int(owed.iloc[-1])})", look, width=1, zorder=1)
        _line(figure, x, delivered, f"{run}, delivered ({int(delivered.iloc[-1])})", look, width=3)
    figure.update_yaxes(rangemode="tozero")
    title = "Tokens owed and tokens delivered"
    return _finish(figure, title, _AUDIO_END, "tokens since the arm began", label)


# -- the shared look ---------------------------------------------------------------------------------------------------


def _arms(table: pd.DataFrame, name: str, *columns: str) -> Iterator[tuple[str, pd.DataFrame, _Look]]:
    for column in ("run", *columns):
        if column not in table:
            raise PlotError(f"the {name} table has no column {column!r}: pass the one that workbench.telemetry makes")
    runs = list(dict.fromkeys(table["run"]))
    others = [run for run in runs if run not in _LOOKS]
    for run in runs:
        look = _LOOKS.get(run) or _OTHER_LOOKS[others.index(run) % len(_OTHER_LOOKS)]
        yield str(run), table[table["run"] == run], look


def _figure() -> Figure:
    from plotly.graph_objects import Figure

    return Figure()


def _returned(arm: pd.DataFrame) -> pd.DataFrame:
    return arm[arm["status"].isin(RETURNED)]


def _line(figure, x, y, name, look, *, width=2.5, zorder=0, customdata=None, hover=None) -> None:
    figure.add_scatter(
        x=x,
        y=y,
        name=name,
        mode="lines",
        zorder=zorder,
        line={"color": look.colour, "dash": look.dash, "width": width},
        customdata=customdata,
        hovertemplate=hover,
    )


def _points(figure, x, y, name, look, symbol) -> None:
    marker = {"color": look.colour, "symbol": symbol, "size": look.size, "opacity": 0.75}
    figure.add_scatter(x=x, y=y, name=name, mode="markers", marker=marker)


def _mark(figure: Figure, x: float, y: float, name: str, symbol: str) -> None:
    figure.add_scatter(x=[x], y=[y], name=name, mode="markers", marker={"color": _INK, "symbol": symbol, "size": 13})


def _rule(figure: Figure, ends: list[float], y: float, name: str, dash: str = "dashdot", in_legend=False) -> None:
    """A level line with its name on it, or in the legend where data would cross the name."""
    # The name is a trace's text: an annotation on a log axis would want the logarithm of its height.
    figure.add_scatter(
        x=ends,
        y=[y, y],
        name=name,
        mode="lines" if in_legend else "lines+text",
        text=[name, ""],
        textposition="top right",
        textfont={"size": 12, "color": _GREY},
        line={"color": _GREY, "dash": dash, "width": 1.2},
        showlegend=in_legend,
    )


def _note(figure: Figure, x: float, y: float, text: str, colour: str) -> None:
    font = {"color": colour, "size": 12}
    figure.add_annotation(x=x, y=y, text=text, showarrow=False, xanchor="left", yanchor="bottom", font=font)


def _span(times: pd.Series) -> list[float]:
    times = times.dropna()
    return [] if times.empty else [float(times.min()), float(times.max())]


def _faded(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"


def _finish(figure: Figure, title: str, x: str, y: str, label: Label) -> Figure:
    paper = {"xref": "paper", "yref": "paper", "showarrow": False}
    caption = {"x": 0, "y": 0, "xanchor": "left", "yanchor": "top", "yshift": -56, "align": "left"}
    figure.add_annotation(text=label.text, name="caption", font={"size": 11, "color": _GREY}, **paper, **caption)
    if label.simulated:
        across = {"x": 0.5, "y": 0.5, "opacity": 0.25, "font": {"size": 56, "color": _GREY}}
        figure.add_annotation(text="simulated", name="simulated", **paper, **across)
    figure.update_layout(
        template="plotly_white",
        title={"text": title, "x": 0, "xref": "paper", "y": 0.96, "yanchor": "top", "font": {"size": 17}},
        font={"size": 13, "color": _INK},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        margin={"l": 70, "r": 20, "t": 115, "b": 100},
        height=490,
    )
    figure.update_xaxes(title_text=x, rangemode="tozero")
    figure.update_yaxes(title_text=y)
    return figure
