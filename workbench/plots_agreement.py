"""Figures of the agreement experiment: the simulated twin of a profile beside the engine that it stands for.

``pool`` is the table of ``workbench.telemetry`` with the runs "simulated" and "measured", ``metrics`` and ``points``
are those of the experiment. Times in seconds. Raises PlotError for a table or metrics that lack something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench._figures import (
    HEIGHT,
    INK,
    LOOKS,
    MEASURED,
    SIMULATED,
    Label,
    Look,
    PlotError,
    add_rule,
    add_to_panel,
    arms_of,
    finish,
    label_of,
    new_figure,
)

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

    from workbench.experiments import Result

# As many numbers of sessions as can stand side by side on the axis.
_MOST_TICKS = 20
_POINT = ("executor", "n", "latency_p50_s", "latency_p99_s", "holds")
_TOP, _BOTTOM = (1, 1), (2, 1)
# Times and usage, each of shape (samples of the run,).
_Usage = tuple[np.ndarray, np.ndarray]


def label_of_twins(result: Result) -> Label:
    """The caption of an agreement result, of which one half is simulated."""
    costs, noise = result.params["costs"], result.params["step_noise"]
    twin = f"the simulated twin's step costs: {costs}, with noise of sigma {noise:.2g}"
    return Label(f"{label_of(result).text}<br>{twin}")


def twin_pools(pool: pd.DataFrame, metrics: dict[str, Any], *, label: Label) -> Figure:
    """Usage of both runs over time, with t_full and t_wall of each; below it the difference, simulated - measured.

    The difference is taken at each sample of either run, to the end of the shorter one.
    """
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=2, shared_xaxes=True, vertical_spacing=0.08, row_heights=[0.66, 0.34])
    usage = _usage(pool)
    for run, (times, values) in usage.items():
        add_to_panel(figure, _TOP, times, values, f"usage, {run}", LOOKS[run], shape="hv", width=2)
    for run, each in usage.items():
        _add_ends(figure, run, each, metrics)
    look = Look(INK, "solid", "circle")
    name = "usage, simulated - measured"
    add_to_panel(figure, _BOTTOM, *_difference(usage), name, look, shape="hv", width=1.2, showlegend=False)
    figure.update_yaxes(tickformat=".0%", range=[0, 1.06], title_text="blocks used / blocks total", row=1, col=1)
    figure.update_yaxes(tickformat="+.0%", title_text="simulated - measured", row=2, col=1)
    figure.update_yaxes(title_font_size=12)
    figure.update_xaxes(title_text="time since the run began (s)", row=2, col=1)
    return finish(figure, "The same sessions, simulated and measured", None, None, label, height=HEIGHT + 150)


def parted(pool: pd.DataFrame) -> tuple[float, float, float]:
    """How far the runs part: the largest difference as a part of the pool, when, and for how many seconds one lasts."""
    at, difference = _difference(_usage(pool))
    apart = np.abs(difference)
    most = int(np.argmax(apart))
    return float(apart[most]), float(at[most]), float(np.diff(at)[apart[:-1] > 0].sum())


def _add_ends(figure: Figure, run: str, usage: _Usage, metrics: dict[str, Any]) -> None:
    """Mark t_full and t_wall of a run, where there are any."""
    at, words, symbols = [], [], []
    for name, what, symbol in (("t_full", "first refusal", "star"), ("t_wall", "wall", "x")):
        key = f"{name}_{run}_s"
        if key not in metrics:
            raise PlotError(f"the metrics have no {key!r}: pass those of the agreement experiment")
        if metrics[key] is not None:
            at.append(metrics[key])
            words.append(f"{what} {at[-1]:.2f} s")
            symbols.append(symbol)
    if at:
        marks = Look(LOOKS[run].colour, "solid", symbols, 12)
        name = f"{run}: {', '.join(words)}"
        add_to_panel(figure, _TOP, at, _held(*usage, np.array(at)), name, marks, width=0, marks=True)


def _apart(values: list[int], least: float) -> list[int]:
    """Those of rising ``values`` that stand ``least`` apart on a log axis, from the first on."""
    kept: list[int] = []
    for value in values:
        if not kept or np.log10(value / kept[-1]) >= least:
            kept.append(value)
    return kept


def latency_against_n(
    points: list[dict[str, Any]], n_star: dict[str, int | None], target_s: float, *, label: Label
) -> Figure:
    """p50 and p99 of frame latency against N of bounded sessions, and N* of both runs as a ring on the target.

    ``points``: hollow where N does not hold: a frame was capped or empty, or p99 lies above ``target_s``. ``n_star``:
    of the runs "simulated" and "measured"; None where it was not found.
    """
    for point in points:
        for key in _POINT:
            if key not in point:
                raise PlotError(f"a point has no {key!r}: pass those of the agreement experiment's metrics")
    figure = new_figure()
    for run in (SIMULATED, MEASURED):
        look = LOOKS[run]
        of_run = [point for point in points if (point["executor"] == SIMULATED) == (run == SIMULATED)]
        of_run.sort(key=lambda point: point["n"])
        symbols = [look.symbol if point["holds"] else f"{look.symbol}-open" for point in of_run]
        for part, width, dash in (("p99", 2.5, "solid"), ("p50", 1.2, "dot")):
            if of_run:
                figure.add_scatter(
                    x=[point["n"] for point in of_run],
                    y=[point[f"latency_{part}_s"] for point in of_run],
                    name=f"{part}, {run}",
                    mode="lines+markers",
                    line={"color": look.colour, "width": width, "dash": dash},
                    marker={"color": look.colour, "size": look.size + 2, "symbol": symbols},
                )
    tested = sorted({point["n"] for point in points})
    if tested:
        ends = np.log10([tested[0] / 1.15, tested[-1] * 1.15])
        named = _apart(tested, (ends[1] - ends[0]) / _MOST_TICKS)
        figure.update_xaxes(type="log", tickvals=named, ticktext=[str(n) for n in named], range=ends.tolist())
        add_rule(
            figure, [tested[0] / 1.15, tested[-1] * 1.15], target_s, f"target for p99: {target_s:g} s", in_legend=True
        )
    for run, size in ((SIMULATED, 26), (MEASURED, 18)):
        found = n_star.get(run)
        if found is not None:
            ring = {"color": LOOKS[run].colour, "symbol": "circle-open", "size": size, "line": {"width": 3}}
            # A log axis has no place for 0: the legend alone says it.
            at = [found or None]
            figure.add_scatter(x=at, y=[target_s], name=f"N* {run} = {found}", mode="markers", marker=ring)
    figure.update_yaxes(rangemode="tozero")
    title = "Frame latency against the number of bounded sessions"
    return finish(figure, title, "sessions N (log scale)", "frame latency (s)", label)


def _usage(pool: pd.DataFrame) -> dict[str, _Usage]:
    arms = {
        run: arm.sort_values("at_s") for run, arm, _ in arms_of(pool, "pool", "at_s", "blocks_used", "blocks_total")
    }
    for run in (MEASURED, SIMULATED):
        if run not in arms:
            raise PlotError(f"the pool table has no run {run!r}: pass the one of the agreement experiment")
    return {
        run: (arms[run]["at_s"].to_numpy(), (arms[run]["blocks_used"] / arms[run]["blocks_total"]).to_numpy())
        for run in (MEASURED, SIMULATED)
    }


def _difference(usage: dict[str, _Usage]) -> _Usage:
    """Times at which both runs were there, and simulated - measured usage from each to the next."""
    (one, _), (other, _) = usage.values()
    at = np.union1d(one, other)
    at = at[(at >= max(one[0], other[0])) & (at <= min(one[-1], other[-1]))]
    return at, _held(*usage[SIMULATED], at) - _held(*usage[MEASURED], at)


def _held(times: np.ndarray, values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The value of the last sample at or before each instant, the first one's before it."""
    return values[np.maximum(0, np.searchsorted(times, at, side="right") - 1)]
