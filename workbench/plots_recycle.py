"""Figures of the experiments recycle and window: what a re-encode costs, and what a larger window does.

``points`` are those of the experiments' metrics, ``frames`` is the table of ``workbench.telemetry``. Every trace or
caption says whether it was simulated or measured. Raises PlotError for points or a table that lack something.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench._figures import (
    BOUNDED,
    GREY,
    HEIGHT,
    INK,
    LOOKS,
    MEASURED,
    OTHER_LOOKS,
    SIMULATED,
    UNBOUNDED,
    Label,
    Look,
    PlotError,
    add_line,
    add_to_panel,
    arms_of,
    finish,
    label_of,
    new_figure,
    returned_of,
)

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

    from workbench.experiments import Result

Points = list[dict[str, Any]]
RECYCLED = "recycled"
_LOOKS = {
    UNBOUNDED: replace(LOOKS[UNBOUNDED], size=6),
    BOUNDED: replace(LOOKS[BOUNDED], dash="solid"),
    RECYCLED: OTHER_LOOKS[0],
}
# For a window each, told apart in grey as well.
_BY_WINDOW = (*OTHER_LOOKS, LOOKS[MEASURED])
_FACTORS = [1, 1.5, 2, 3, 5, 10, 20, 50, 100]
_RECYCLE_KEYS = ("executor", "window", "slack", "factor", "prefill_factor", "sessions_that_fit")
_WINDOW_KEYS = (
    "window",
    "latency_p50_s",
    "latency_p99_s",
    "plateau_usage",
    "plateau_predicted_usage",
    "memory_ceiling",
    "n",
)


def label_of_policies(result: Result) -> Label:
    """The caption of a recycle result: that of its profile, and what ran in the other windows."""
    slacks = ", ".join(f"{share:g}" for share in result.params["slacks"])
    return _label(result, f"windows {', '.join(map(str, result.params['windows']))} · slack {slacks} W")


def label_of_shown(result: Result) -> Label:
    """The caption of the tables of a recycle result, which are those of one window and one slack."""
    shown = result.params["shown"]
    return _label(result, f"W = {shown['window']} · recycled with a slack of {shown['slack']} tokens")


def label_of_windows(result: Result) -> Label:
    """The caption of a window result: that of its profile, but for the one window."""
    return _label(result, f"windows {', '.join(map(str, result.params['windows']))}")


def _label(result: Result, windows: str) -> Label:
    """The caption of the profile, with ``windows`` in place of the profile's own."""
    label = label_of(result)
    return replace(label, text=label.text.replace(f"bound W = {result.params['window']}", windows))


def words_of(executor: str) -> str:
    """Whether figures of this executor were simulated or measured."""
    return SIMULATED if executor == SIMULATED else f"{MEASURED} ({executor})"


def latency_by_frame(frames: pd.DataFrame, *, label: Label) -> Figure:
    """Median frame latency over the sessions of each policy, against the number of the frame. See label_of_shown."""
    figure = new_figure()
    for run, arm, look in arms_of(frames, "frames", "frame", "latency_s", "status"):
        median = 1e3 * returned_of(arm).groupby("frame")["latency_s"].median()
        add_line(figure, median.index, median, f"{run}, median", _LOOKS.get(run, look), width=2)
    return finish(figure, "Latency, frame by frame", "frame", "frame latency (ms)", label)


def factor_over_slack(points: Points, *, label: Label) -> Figure:
    """Compute per frame, recycled over bounded, against the slack in windows, a line per window; below it what slack
    costs: how many sessions fit, as a part of those that fit without any."""
    from plotly.subplots import make_subplots

    _check(points, _RECYCLE_KEYS, "recycle")
    figure = make_subplots(rows=2, shared_xaxes=True, vertical_spacing=0.08, row_heights=[0.62, 0.38])
    groups: dict[tuple[str, int], Points] = {}
    for point in points:
        groups.setdefault((point["executor"], point["window"]), []).append(point)
    for i, ((executor, window), group) in enumerate(groups.items()):
        group = sorted(group, key=lambda each: each["slack"])
        look, name = _BY_WINDOW[i % len(_BY_WINDOW)], f"W = {window}, {words_of(executor)}"
        slack = [each["slack"] / window for each in group]
        add_to_panel(figure, (1, 1), slack, [each["factor"] for each in group], name, look, marks=True)
        fit = [each["sessions_that_fit"] / group[0]["sessions_that_fit"] for each in group]
        add_to_panel(figure, (2, 1), slack, fit, name, look, marks=True)
    figure.add_hline(1, line={"color": GREY, "dash": "dash", "width": 1}, row=1, col=1)
    figure.update_yaxes(
        type="log", tickvals=_FACTORS, title_text="compute per frame,<br>recycled / bounded", row=1, col=1
    )
    figure.update_yaxes(tickformat=".0%", rangemode="tozero", title_text="sessions that fit", row=2, col=1)
    figure.update_yaxes(title_font_size=12, automargin=True)
    figure.update_xaxes(title_text="slack / W", row=2, col=1)
    return finish(figure, "What recycling costs, and what slack costs", None, None, label, height=HEIGHT + 110)


def over_windows(points: Points, *, label: Label) -> Figure:
    """Latency, plateau and memory ceiling against W (log axis), one below the other; measured plateaus on those of the
    arithmetic."""
    from plotly.subplots import make_subplots

    _check(points, _WINDOW_KEYS, "window")
    points = sorted(points, key=lambda each: each["window"])
    figure = make_subplots(rows=3, shared_xaxes=True, vertical_spacing=0.05)
    windows = [each["window"] for each in points]
    middle, high, ruled = _LOOKS[BOUNDED], OTHER_LOOKS[1], Look(INK, "dot", "circle-open", 11)
    for row, key, name, look, times, width in (
        (1, "latency_p50_s", "latency p50", middle, 1e3, 2),
        (1, "latency_p99_s", "latency p99", high, 1e3, 2),
        (2, "plateau_predicted_usage", "plateau by the arithmetic", ruled, 1, 1.5),
        (2, "plateau_usage", "plateau of the run", middle, 1, 0),
        (3, "memory_ceiling", "memory ceiling", OTHER_LOOKS[0], 1, 2),
    ):
        values = [times * each[key] for each in points]
        add_to_panel(figure, (row, 1), windows, values, name, look, marks=True, width=width)
    for row, title, format_ in (
        (1, "frame latency (ms)", None),
        (2, f"pool in use, N = {points[0]['n']}", ".0%"),
        (3, "sessions that fit", None),
    ):
        figure.update_yaxes(
            title_text=title, title_font_size=12, rangemode="tozero", tickformat=format_, row=row, col=1
        )
    finish(figure, "What a larger window does", None, None, label, height=HEIGHT + 180)
    figure.update_xaxes(type="log", tickvals=windows, ticktext=list(map(str, windows)), rangemode="normal")
    figure.update_xaxes(title_text="window W (tokens)", row=3, col=1)
    return figure


def _check(points: Points, keys: tuple[str, ...], experiment: str) -> None:
    if not points:
        raise PlotError(f"there are no points to draw: pass those of the {experiment} experiment")
    for point in points:
        for key in keys:
            if key not in point:
                raise PlotError(f"a point has no {key!r}: pass those of the {experiment} experiment")
