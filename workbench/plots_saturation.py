"""Figures of the saturation experiment: forecasts of t_full beside the first refusals, a model at a time.

``pool`` is the table of ``workbench.telemetry``, ``models`` what the experiment's metrics hold under that name. Every
trace says whether it was simulated or measured. Raises PlotError for a table or metrics that lack something.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench._figures import (
    GREY,
    INK,
    LOOKS,
    MARGIN_PX,
    MEASURED,
    OTHER_LOOKS,
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

Models = dict[str, dict[str, Any]]
_PAPER = "the paper, measured on its GPU"
# More samples than a panel is wide show nothing more and make the notebook large.
MOST_SAMPLES = 500
_KEYS = (
    "executor",
    "sessions",
    "frame_budget_s",
    "t_full_predicted_s",
    "low",
    "high",
    "predicted_at_s",
    "t_full_measured_s",
)
_CAPTION_WIDTH = 95
_COLUMNS, _PANEL_PX, _GAP_PX = 2, 165, 62


def label_of_models(result: Result) -> Label:
    """The caption of a saturation result: what was simulated, on which card, and what the engine at hand served."""
    names: dict[str, list[str]] = {}
    for name, model in result.metrics["models"].items():
        names.setdefault(model["executor"], []).append(name)
    served = " · ".join(f"{executor}: {', '.join(each)}" for executor, each in names.items())
    lines = [served, f"profile {result.profile} · seed {result.seed}"]
    if SIMULATED in names:
        variance = ", ".join(f"{key} {value:g}" for key, value in result.params["variance_of_models"].items())
        lines.append(f"model cards on {result.params['hardware_of_models']} with {variance}")
    wrapped = (part for line in lines for part in wrap(line, _CAPTION_WIDTH, break_on_hyphens=False))
    return Label("<br>".join(wrapped), simulated=set(names) == {SIMULATED})


def pool_fills(pool: pd.DataFrame, models: Models, *, label: Label) -> Figure:
    """Usage over time, a panel per model: the forecast from when it was made (dotted) and the first refusal (star).

    Drawn are MOST_SAMPLES samples of a run at most.
    """
    panels = _panels(pool, models, "blocks_used", "blocks_total")
    figure = _grid(models, "time since the run began (s)", "blocks used / blocks total")
    for panel in panels:
        at, usage, model = panel.arm["at_s"], panel.usage, panel.model
        add_to_panel(figure, panel.place, at, usage, f"usage, {panel.words}", panel.look, shape="hv")
        predicted, measured = model["t_full_predicted_s"], model["t_full_measured_s"]
        if predicted is not None:
            made = at <= model["predicted_at_s"]
            line = [model["predicted_at_s"], predicted], [float(usage[made].iloc[-1]), 1.0]
            look = Look(INK, "dot", "circle-open", 8)
            add_to_panel(figure, panel.place, *line, "Eq. 1, from when it was forecast", look, width=1.5, marks=True)
        if measured is not None:
            star = Look(INK, "solid", "star", 12)
            add_to_panel(figure, panel.place, [measured], [1.0], "first refused allocation", star, width=0, marks=True)
    figure.update_yaxes(tickformat=".0%", range=[0, 1.12])
    return _finish_grid(figure, "How full the pool is", models, label)


def forecast_narrows(pool: pd.DataFrame, models: Models, error: float, *, label: Label) -> Figure:
    """How far each forecast of a run was off, against when it was made, up to t_full; a panel per model.

    The shade is the 95 % interval. Dotted: what the claim allows, ``error`` (a part of t_full) or one frame; the axis
    ends at twice that. The dashed line is the forecast that counts. Drawn as in ``pool_fills``.
    """
    panels = _panels(pool, models, "t_full_predicted_s", "t_full_low_s", "t_full_high_s")
    figure = _grid(models, "when the forecast was made / measured t_full", "forecast / measured - 1")
    for panel in panels:
        measured, place = panel.model["t_full_measured_s"], {"row": panel.place[0], "col": panel.place[1]}
        if measured is None:
            continue
        made = panel.arm[panel.arm["at_s"] <= measured].dropna(subset=["t_full_predicted_s"])
        low, high, said = (made[f"t_full_{part}_s"] / measured - 1 for part in ("low", "high", "predicted"))
        at, band = made["at_s"] / measured, f"95 % interval, {panel.words}"
        add_to_panel(figure, panel.place, at, low, f"{band}, low", panel.look, width=0.5, showlegend=False)
        shade = {"fill": "tonexty", "fillcolor": faded(panel.look.colour)}
        add_to_panel(figure, panel.place, at, high, band, panel.look, width=0.5, **shade)
        add_to_panel(figure, panel.place, at, said, f"forecast, {panel.words}", panel.look, width=2)
        allowed = max(error, panel.model["frame_budget_s"] / measured)
        for height in (-allowed, allowed):
            figure.add_hline(height, line={"color": GREY, "dash": "dot", "width": 1}, **place)
        if panel.model["predicted_at_s"] is not None:
            counts = panel.model["predicted_at_s"] / measured
            figure.add_vline(counts, line={"color": GREY, "dash": "dash", "width": 1}, **place)
        figure.update_yaxes(range=[-2 * allowed, 2 * allowed], **place)
    figure.update_yaxes(tickformat="+.0%")
    figure.update_xaxes(tickformat=".0%", range=[0, 1])
    return _finish_grid(figure, "Every forecast of a run, as the pool fills", models, label)


def forecast_errors(models: Models, paper: dict[str, tuple[float, float]], error: float, *, label: Label) -> Figure:
    """Predicted / measured - 1 of t_full, a row per model, with the 95 % interval, and the paper's own below.

    ``paper``: (predicted, measured) in seconds by model. ``error``: as in ``forecast_narrows``, the shade.
    """
    from plotly.graph_objects import Figure

    figure = Figure()
    _check(models)
    rows: dict[str, list[tuple]] = {}
    looks = {_PAPER: OTHER_LOOKS[0]}
    for name, model in models.items():
        predicted, measured = model["t_full_predicted_s"], model["t_full_measured_s"]
        if predicted is not None and measured is not None:
            words, looks[words] = _words(model), _look(model)
            ends = (model["high"] - predicted) / measured, (predicted - model["low"]) / measured
            rows.setdefault(words, []).append((name, predicted / measured - 1, *ends))
    for name, (predicted, measured) in paper.items():
        rows.setdefault(_PAPER, []).append((f"{name}, the paper", predicted / measured - 1, 0.0, 0.0))
    for words, points in rows.items():
        names, off, more, less = zip(*points, strict=True)
        figure.add_scatter(
            x=off,
            y=names,
            name=words,
            mode="markers+text",
            text=[f"{100 * each:+.2g} %" for each in off],
            textposition="top center",
            error_x={"array": more, "arrayminus": less, "thickness": 1.5},
            marker={"color": looks[words].colour, "symbol": looks[words].symbol, "size": 11},
        )
    figure.add_vrect(-error, error, fillcolor=GREY, opacity=0.12, line_width=0)
    figure.update_xaxes(tickformat="+.0%")
    count = sum(map(len, rows.values()))
    # The topmost row first, with room for its figure.
    figure.update_yaxes(range=[count - 0.5, -0.8], automargin=True)
    return finish(figure, "How far the predicted t_full was off", "predicted / measured - 1", None, label)


# -- a panel per model -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Panel:
    model: dict[str, Any]
    arm: pd.DataFrame
    place: tuple[int, int]

    @property
    def usage(self) -> pd.Series:
        return self.arm["blocks_used"] / self.arm["blocks_total"]

    @property
    def words(self) -> str:
        return _words(self.model)

    @property
    def look(self) -> Look:
        return _look(self.model)


def _words(model: dict[str, Any]) -> str:
    return SIMULATED if model["executor"] == SIMULATED else f"{MEASURED} ({model['executor']})"


def _look(model: dict[str, Any]) -> Look:
    # Solid, for what was simulated and what was measured do not share a panel.
    return replace(LOOKS[SIMULATED if model["executor"] == SIMULATED else MEASURED], dash="solid")


def _check(models: Models) -> None:
    for name, model in models.items():
        for key in _KEYS:
            if key not in model:
                raise PlotError(f"the metrics of {name} have no {key!r}: pass those of the saturation experiment")


def _panels(pool: pd.DataFrame, models: Models, *columns: str) -> Iterator[_Panel]:
    """The runs in the order of ``models``, thinned."""
    _check(models)
    arms = {run: arm for run, arm, _ in arms_of(pool, "pool", "at_s", *columns)}
    for i, (name, model) in enumerate(models.items()):
        if name not in arms:
            raise PlotError(f"the pool table has no run {name!r}: pass the one of the saturation experiment")
        arm = arms[name].sort_values("at_s")
        kept = np.unique(np.linspace(0, len(arm) - 1, MOST_SAMPLES).astype(int)) if len(arm) else []
        yield _Panel(model, arm.iloc[kept], _place(i))


def _place(i: int) -> tuple[int, int]:
    return i // _COLUMNS + 1, i % _COLUMNS + 1


def _grid(models: Models, x: str, y: str) -> Figure:
    from plotly.subplots import make_subplots

    columns = max(1, min(_COLUMNS, len(models)))
    rows = max(1, -(-len(models) // _COLUMNS))
    titles = [f"{n}, N = {m['sessions']}, B = {m['frame_budget_s']:g} s, {_words(m)}" for n, m in models.items()]
    plot = _plot_px(models)
    specs = [[{} if row * columns + column < len(models) else None for column in range(columns)] for row in range(rows)]
    figure = make_subplots(
        rows=rows,
        cols=columns,
        specs=specs,
        subplot_titles=titles,
        vertical_spacing=_GAP_PX / plot,
        horizontal_spacing=0.09,
        x_title=x,
        y_title=y,
    )
    figure.update_annotations(font_size=12)
    return figure


def _plot_px(models: Models) -> int:
    rows = max(1, -(-len(models) // _COLUMNS))
    return rows * _PANEL_PX + (rows - 1) * _GAP_PX


def _finish_grid(figure: Figure, title: str, models: Models, label: Label) -> Figure:
    return finish(figure, title, None, None, label, height=_plot_px(models) + MARGIN_PX, headroom=20)
