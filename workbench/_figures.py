"""What all figures share: the caption, the look of an arm, and the small parts that a figure is put together from."""

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
MEASURED, SIMULATED = "measured", "simulated"


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
        f"bound W = {params['window']}, S = {params['sinks']} tokens"
        + (" that move" if params.get("moving_sinks") else ""),
    )
    return Label("<br>".join(map(" · ".join, (served, memory))), simulated=result.executor == "simulated")


@dataclass(frozen=True)
class Look:
    colour: str
    dash: str
    symbol: str
    size: int = 6


# Colours of Okabe and Ito, which stay apart for colour-blind readers; dash and symbol tell the arms apart in grey.
LOOKS = {
    UNBOUNDED: Look("#D55E00", "solid", "diamond", 9),
    BOUNDED: Look("#0072B2", "dot", "circle"),
    MEASURED: Look("#0072B2", "solid", "circle"),
    SIMULATED: Look("#E69F00", "dash", "diamond", 9),
}
OTHER_LOOKS = (
    Look("#009E73", "dash", "square"),
    Look("#CC79A7", "dashdot", "diamond"),
    Look("#56B4E9", "longdash", "triangle-up"),
    Look("#E69F00", "longdashdot", "star"),
)
INK, GREY = "#222222", "#666666"
HEIGHT = 490
# At the bottom there is room for two lines of caption.
_MARGIN = {"l": 70, "r": 20, "t": 115, "b": 100}
_LINE_PX = 15
MARGIN_PX = _MARGIN["t"] + _MARGIN["b"]


def arms_of(table: pd.DataFrame, name: str, *columns: str) -> Iterator[tuple[str, pd.DataFrame, Look]]:
    for column in ("run", *columns):
        if column not in table:
            raise PlotError(f"the {name} table has no column {column!r}: pass the one that workbench.telemetry makes")
    runs = list(dict.fromkeys(table["run"]))
    others = [run for run in runs if run not in LOOKS]
    for run in runs:
        look = LOOKS.get(run) or OTHER_LOOKS[others.index(run) % len(OTHER_LOOKS)]
        yield str(run), table[table["run"] == run], look


def new_figure() -> Figure:
    from plotly.graph_objects import Figure

    return Figure()


def returned_of(arm: pd.DataFrame) -> pd.DataFrame:
    return arm[arm["status"].isin(RETURNED)]


def add_line(figure, x, y, name, look, *, width=2.5, zorder=0, customdata=None, hover=None) -> None:
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


def add_to_panel(figure, place, x, y, name, look, *, width=2.5, marks=False, shape="linear", **more) -> None:
    """A line in the subplot ``place`` (row, column), with ``marks`` at its points; each name is in the legend once."""
    row, column = place
    seen = any(trace.name == name for trace in figure.data)
    figure.add_scatter(
        x=x,
        y=y,
        name=name,
        mode="+".join(["lines"] * (width > 0) + ["markers"] * marks),
        line={"color": look.colour, "dash": look.dash, "width": width, "shape": shape},
        marker={"color": look.colour, "symbol": look.symbol, "size": look.size},
        row=row,
        col=column,
        **{"legendgroup": name, "showlegend": not seen, **more},
    )


def add_points(figure, x, y, name, look, symbol) -> None:
    marker = {"color": look.colour, "symbol": symbol, "size": look.size, "opacity": 0.75}
    figure.add_scatter(x=x, y=y, name=name, mode="markers", marker=marker)


def add_mark(figure: Figure, x: float, y: float, name: str, symbol: str) -> None:
    figure.add_scatter(x=[x], y=[y], name=name, mode="markers", marker={"color": INK, "symbol": symbol, "size": 13})


def add_rule(figure: Figure, ends: list[float], y: float, name: str, dash: str = "dashdot", in_legend=False) -> None:
    """A level line with its name on it, or in the legend where data would cross the name."""
    # The name is a trace's text: an annotation on a log axis would want the logarithm of its height.
    figure.add_scatter(
        x=ends,
        y=[y, y],
        name=name,
        mode="lines" if in_legend else "lines+text",
        text=[name, ""],
        textposition="top right",
        textfont={"size": 12, "color": GREY},
        line={"color": GREY, "dash": dash, "width": 1.2},
        showlegend=in_legend,
    )


def add_note(figure: Figure, x: float, y: float, text: str, colour: str) -> None:
    font = {"color": colour, "size": 12}
    figure.add_annotation(x=x, y=y, text=text, showarrow=False, xanchor="left", yanchor="bottom", font=font)


def span(times: pd.Series) -> list[float]:
    times = times.dropna()
    return [] if times.empty else [float(times.min()), float(times.max())]


def faded(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"


def finish(
    figure: Figure, title: str, x: str | None, y: str | None, label: Label, height: int = HEIGHT, headroom: int = 0
) -> Figure:
    """``x``, ``y``: titles of all axes; None where the figure has them already. In pixels: ``height``, with a caption
    of two lines, and ``headroom`` between the plot and the legend."""
    paper = {"xref": "paper", "yref": "paper", "showarrow": False}
    caption = {"x": 0, "y": 0, "xanchor": "left", "yanchor": "top", "yshift": -56, "align": "left"}
    figure.add_annotation(text=label.text, name="caption", font={"size": 11, "color": GREY}, **paper, **caption)
    if label.simulated:
        across = {"x": 0.5, "y": 0.5, "opacity": 0.25, "font": {"size": 56, "color": GREY}}
        figure.add_annotation(text=SIMULATED, name=SIMULATED, **paper, **across)
    plot = height - MARGIN_PX
    lower = _LINE_PX * max(0, label.text.count("<br>") - 1)
    height += lower
    figure.update_layout(
        template="plotly_white",
        title={"text": title, "x": 0, "xref": "paper", "y": 1 - 20 / height, "yanchor": "top", "font": {"size": 17}},
        font={"size": 13, "color": INK},
        legend={
            "orientation": "h",
            "x": 0,
            "y": 1 + (5 + headroom) / plot,
            "yanchor": "bottom",
            "traceorder": "normal",
        },
        margin={**_MARGIN, "b": _MARGIN["b"] + lower},
        height=height,
    )
    figure.update_xaxes(rangemode="tozero")
    if x is not None:
        figure.update_xaxes(title_text=x)
    if y is not None:
        figure.update_yaxes(title_text=y)
    return figure
