"""Figures of the experiments sinks and distance: what a bound costs in quality, by age, by policy and by distance.

``by_age`` and ``policies`` are what the metrics of sinks hold under these names, ``metrics`` are those of distance.
Ages in tokens, NLL and excess in nats per token. Raises PlotError for lists that are empty or lack something.
"""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from workbench._figures import (
    GREY,
    HEIGHT,
    INK,
    LOOKS,
    OTHER_LOOKS,
    SIMULATED,
    UNBOUNDED,
    Label,
    Look,
    PlotError,
    add_to_panel,
    faded,
    finish,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from workbench.experiments import Result

Rows = list[dict[str, Any]]
# What the experiment calls each kind of session -> its name in a legend. Each pins what the one above does, and more.
KINDS = {
    None: UNBOUNDED,
    "nothing": "no sinks",
    "header": "header",
    "content": "+ first turn",
    "reply": "+ reply block",
}
FREE_RUNNING = "free-running"
_NO_SINKS, _SINKS = Look(INK, "dot", "circle", 6), Look("#0072B2", "dash", "square", 6)
_MORE_SINKS, _MOST_SINKS = Look("#009E73", "longdash", "triangle-up", 7), Look("#CC79A7", "dashdot", "star", 8)
_UNBOUNDED = Look(LOOKS[UNBOUNDED].colour, LOOKS[UNBOUNDED].dash, LOOKS[UNBOUNDED].symbol, 6)
_LOOKS = dict(zip(KINDS, (_UNBOUNDED, _NO_SINKS, _SINKS, _MORE_SINKS, _MOST_SINKS), strict=True))
_POLICY_LOOKS = {UNBOUNDED: _UNBOUNDED, "no sinks": _NO_SINKS, "sinks": _SINKS, "moving sinks": _MORE_SINKS}
_NLL = "negative log-likelihood (nats per token)"
_AGE_KEYS = ("window", "pinned", "regime", "age_tokens")
_POLICY_KEYS = (
    *("window", "pinned", "regime"),
    *("excess", "excess_low", "excess_high"),
    *("answered", "answered_low", "answered_high"),
)
_CAPTION_WIDTH = 95
_TICKS = 4
_INTERVALS = "intervals over seeds"


def label_of_sinks(result: Result) -> Label:
    """The caption of a sinks result: executor, model, seeds, age, windows and the size of a block."""
    params = result.params
    windows = ", ".join(str(window) for window in params["windows"] if window is not None)
    served = (f"model {params['model']}", _seeds(result), f"sessions of {params['age']} tokens")
    return _label(result, served, (f"windows {windows}", f"blocks of {params['block_size']} tokens", _INTERVALS))


def label_of_distance(result: Result) -> Label:
    """The caption of a distance result: executor, profile, seeds, window, the model's context and how far beyond."""
    params = result.params
    served = (f"profile {result.profile}", _seeds(result), f"W = {params['window']} tokens")
    far = f"context of {result.metrics['context']} tokens, times {', '.join(f'{each:g}' for each in params['factors'])}"
    return _label(result, served, (far, _INTERVALS))


def nll_by_age(by_age: Rows, *, label: Label, regime: str) -> Figure:
    """NLL against the age of the session, a panel per window, a line per what is pinned, the interval as a band."""
    title = f"How well each session predicts, {regime}"
    return _over_age(by_age, "nll", title, _NLL, label, regime, band=True)


def answered_by_age(by_age: Rows, *, label: Label, regime: str) -> Figure:
    """Share of the questions that were answered against the age of the session; drawn as ``nll_by_age``."""
    figure = _over_age(
        by_age, "answered", f"What each session can answer, {regime}", "questions answered", label, regime
    )
    return figure.update_yaxes(tickformat=".0%", range=[-0.04, 1.04])


def distinct_by_age(by_age: Rows, *, label: Label) -> Figure:
    """Distinct bigrams / bigrams (Li et al., 2016, arXiv:1510.03055) of what sessions say when they run free, against
    their age; drawn as ``nll_by_age``."""
    title, y = f"How varied the replies are, {FREE_RUNNING}", "distinct bigrams / bigrams"
    figure = _over_age(by_age, "distinct_2", title, y, label, FREE_RUNNING)
    return figure.update_yaxes(range=[-0.04, 1.04])


def quality_over_policies(policies: Rows, *, label: Label, regime: str) -> Figure:
    """Excess NLL over unbounded and, below it, the share answered, with intervals, by window and what is pinned.

    A panel of which no policy has a value is left out.
    """
    from plotly.subplots import make_subplots

    rows = _of_regime(policies, _POLICY_KEYS, regime)
    panels = [key for key in ("excess", "answered") if any(row[key] is not None for row in rows)]
    if not panels:
        raise PlotError(f"no {regime} policy has an excess or a share answered: choose the other regime")
    figure = make_subplots(rows=len(panels), shared_xaxes=True, vertical_spacing=0.07)
    for at, key in enumerate(panels, 1):
        for pinned, name in KINDS.items():
            mine = [row for row in rows if row["pinned"] == pinned and row[key] is not None]
            if mine:
                # Unbounded stands alone over its name; the others share the place of a window.
                beside = {"alignmentgroup": name if pinned is None else "bounded", "offsetgroup": name}
                bars = _error_bars(mine, key, _LOOKS[pinned])
                x, y = [_window_name(row["window"]) for row in mine], [row[key] for row in mine]
                add_to_panel(figure, (at, 1), x, y, name, _LOOKS[pinned], width=0, marks=True, error_y=bars, **beside)
        if key == "excess":
            figure.add_hline(0, line={"color": GREY, "dash": "dash", "width": 1}, row=at, col=1)
            figure.update_yaxes(title_text="excess over unbounded<br>(nats per token)", row=at, col=1)
        else:
            figure.update_yaxes(title_text="questions answered", tickformat=".0%", range=[-0.04, 1.04], row=at, col=1)
    names = [_window_name(window) for window in _windows(rows)]
    names += [UNBOUNDED] * any(row["window"] is None for row in rows)
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=names)
    figure.update_xaxes(title_text="window W (tokens)", row=len(panels), col=1)
    figure.update_yaxes(title_font_size=12, automargin=True)
    figure.update_layout(scattermode="group", scattergap=0.5)
    return finish(figure, f"What a bound costs, {regime}", None, None, label, height=HEIGHT + 130 * (len(panels) - 1))


def nll_over_distance(metrics: dict[str, Any], *, label: Label) -> Figure:
    """NLL against age / the model's context, a line per policy, the interval as a band, a rule at 1 context."""
    from plotly.subplots import make_subplots

    _check([metrics], ("context", "sessions"), "distance")
    _check(metrics["sessions"], ("policy", "nll_by_age"), "distance")
    figure = make_subplots()
    others = (each["policy"] for each in metrics["sessions"] if each["policy"] not in _POLICY_LOOKS)
    looks = {**dict(zip(dict.fromkeys(others), OTHER_LOOKS, strict=False)), **_POLICY_LOOKS}
    for session in metrics["sessions"]:
        rows, policy = session["nll_by_age"], session["policy"]
        _check(rows, ("age_tokens", "nll", "nll_low", "nll_high"), "distance")
        if policy not in looks:
            raise PlotError(f"no colour is left for {policy!r}: draw fewer policies")
        rows = [{**row, "contexts": row["age_tokens"] / metrics["context"]} for row in rows]
        _add_kind(figure, (1, 1), rows, "contexts", "nll", policy, looks[policy], band=True)
    _add_age_rule(figure, 1, 1, f"the model's context, {metrics['context']} tokens", in_legend=True)
    return finish(figure, "How far a session can go", "session age / the model's context", _NLL, label)


def _over_age(by_age: Rows, key: str, title: str, y: str, label: Label, regime: str, *, band: bool = False) -> Figure:
    """``key`` against age, a panel per window; ``band``: with the interval from key_low to key_high."""
    from plotly.subplots import make_subplots

    ends = (f"{key}_low", f"{key}_high") if band else ()
    rows = _of_regime(by_age, (*_AGE_KEYS, key, *ends), regime)
    windows = _windows(rows)
    if not windows:
        raise PlotError(f"no {regime} session is bounded: pass the rows of all windows of the sinks experiment")
    if all(row[key] is None for row in rows):
        raise PlotError(f"no {regime} session has {key!r}: choose another figure or the other regime")
    names = [f"W = {window}" for window in windows]
    x = "session age (tokens)"
    figure = make_subplots(
        cols=len(windows), shared_yaxes=True, horizontal_spacing=0.03, subplot_titles=names, x_title=x
    )
    for column, window in enumerate(windows, 1):
        for pinned, name in KINDS.items():
            at = None if pinned is None else window
            mine = [row for row in rows if row["pinned"] == pinned and row["window"] == at]
            _add_kind(figure, (1, column), mine, "age_tokens", key, name, _LOOKS[pinned], band=band)
        _add_age_rule(figure, column, window, "age = W", in_legend=column == 1)
    figure.update_yaxes(title_text=y, col=1)
    # Few enough that they stand upright where four panels share the width of a notebook.
    figure.update_xaxes(nticks=_TICKS, tickangle=0)
    return finish(figure, title, None, None, label, headroom=22)


def _add_kind(figure: Figure, place: tuple[int, int], rows: Rows, x: str, key: str, name: str, look: Look, *, band):
    """One kind of session in one panel, in order of ``x``, without the rows that have no value."""
    rows = sorted((row for row in rows if row[key] is not None), key=lambda row: row[x])
    if not rows:
        return
    sure = [row for row in rows if band and row[f"{key}_low"] is not None and row[f"{key}_high"] is not None]
    for end, fill in (("low", {}), ("high", {"fill": "tonexty", "fillcolor": faded(look.colour)})):
        if sure:
            at, ends = [row[x] for row in sure], [row[f"{key}_{end}"] for row in sure]
            more = {"hoverinfo": "skip", "legendgroup": name, "showlegend": False, **fill}
            add_to_panel(figure, place, at, ends, f"{name}, {end}", look, width=0.3, **more)
    add_to_panel(figure, place, [row[x] for row in rows], [row[key] for row in rows], name, look, width=2, marks=True)


def _add_age_rule(figure: Figure, column: int, age: float, name: str, *, in_legend: bool) -> None:
    line = {"color": GREY, "dash": "dash", "width": 1.2}
    legend = {"name": name, "legendgroup": name, "showlegend": in_legend}
    figure.add_vline(age, line=line, row=1, col=column, exclude_empty_subplots=False, **legend)


def _error_bars(rows: Rows, key: str, look: Look) -> dict[str, Any]:
    # An interval of few seeds may miss its mean; a bar can't start away from its point, so it ends there.
    above, below = (
        [None if row[f"{key}_{end}"] is None else max(0.0, sign * (row[f"{key}_{end}"] - row[key])) for row in rows]
        for end, sign in (("high", 1), ("low", -1))
    )
    return {"type": "data", "array": above, "arrayminus": below, "color": look.colour, "thickness": 1.5, "width": 4}


def _of_regime(rows: Rows, keys: Iterable[str], regime: str) -> Rows:
    """The rows of ``regime``, of kinds that there are. Raises PlotError."""
    _check(rows, keys, "sinks")
    for row in rows:
        if row["pinned"] not in KINDS:
            pinned = ", ".join(filter(None, KINDS))
            raise PlotError(f"pinned is {row['pinned']!r}: draw rows with one of {pinned}, or None for unbounded")
        if (row["pinned"] is None) != (row["window"] is None):
            raise PlotError(f"pinned {row['pinned']!r} with window {row['window']!r}: give both, or None for unbounded")
    mine = [row for row in rows if row["regime"] == regime]
    if not mine:
        there = ", ".join(dict.fromkeys(row["regime"] for row in rows))
        raise PlotError(f"no row has the regime {regime!r}: choose from {there}")
    return mine


def _check(rows: Rows, keys: Iterable[str], experiment: str) -> None:
    if not rows:
        raise PlotError(f"there are no rows to draw: pass those of the {experiment} experiment")
    for row in rows:
        for key in keys:
            if key not in row:
                raise PlotError(f"a row has no {key!r}: pass those of the {experiment} experiment")


def _windows(rows: Rows) -> list[int]:
    return sorted({row["window"] for row in rows if row["window"] is not None})


def _window_name(window: int | None) -> str:
    return UNBOUNDED if window is None else str(window)


def _seeds(result: Result) -> str:
    """The seeds of the sessions: that of the run, and those after it."""
    first, count = result.seed, result.params["seeds"]
    return f"seed {first}" if count == 1 else f"seeds {first} to {first + count - 1}"


def _label(result: Result, served: Iterable[str], texts: Iterable[str]) -> Label:
    lines = (" · ".join(parts) for parts in ((result.executor, *served), texts))
    wrapped = (piece for line in lines for piece in wrap(line, _CAPTION_WIDTH, break_on_hyphens=False))
    return Label("<br>".join(wrapped), simulated=result.executor == SIMULATED)
