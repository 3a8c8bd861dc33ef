"""The picture of a run that is still being made: one figure of six parts, whose lines a page only has to extend."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench._figures import GREY, INK, LOOKS, MARGIN_PX, OTHER_LOOKS, Label, Look, finish

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Points = tuple[list[float], list[float]]
HEIGHT = 640
# An arm that is alone may be bounded and unbounded by turns: in neither's look.
ALONE = Look("#009E73", "solid", "square")
UNTITLED_TOP = 75
MS, GIB, PER_CENT = 1e3, 2.0**-30, 100.0


@dataclass(frozen=True)
class LiveArm:
    """``points(line)``: the points of a line, as workbench.live.feed.Feed.points gives them; ``name``: in the legend."""

    name: str
    points: Callable[..., Points]
    frame_budget_s: float
    wait_cap: float


@dataclass(frozen=True)
class LiveLine:
    """A line of the picture: ``line``, as it is told, drawn in ``place`` (row, column) with y times ``scale``."""

    line: str
    place: tuple[int, int]
    scale: float = 1.0
    name: str = ""
    faint: bool = False
    symbol: str = ""


LINES = (
    LiveLine("occupancy", (1, 1), PER_CENT),
    LiveLine("forecast", (1, 1), PER_CENT, "forecast", faint=True),
    LiveLine("forecast, 95 %", (1, 1), PER_CENT, "forecast, 95 %", symbol="line-ns-open"),
    LiveLine("pool full", (1, 1), PER_CENT, "pool full", symbol="x"),
    LiveLine("latency, mean", (1, 2), MS),
    LiveLine("latency, longest", (1, 2), MS, "longest", faint=True),
    LiveLine("content lag, mean", (2, 1)),
    LiveLine("content lag, longest", (2, 1), 1.0, "longest", faint=True),
    LiveLine("delivered", (2, 2)),
    LiveLine("owed", (2, 2), 1.0, "owed", faint=True),
    LiveLine("wall", (2, 2), 1.0, "wall: last token", symbol="star-triangle-down"),
    LiveLine("sessions", (3, 1)),
    LiveLine("admission cap", (3, 1), 1.0, "admission cap", faint=True),
    LiveLine("engine memory", (3, 2), GIB),
    LiveLine("kernel memory", (3, 2), GIB, "this kernel", faint=True),
)
TITLES = (
    "pool occupancy, %",
    "latency of frames, ms (log)",
    "content lag, s",
    "tokens a second: delivered, owed",
    "sessions, admission cap",
    "host memory: engine, kernel, GiB",
)


def live_figure(arms: Sequence[LiveArm], label: Label, title: str = "") -> Figure:
    """The six parts for one arm or several. Trace k of arm a is line k % len(LINES), with k // len(LINES) = a."""
    # Plotly uses a pandas that is loaded, and takes one that another thread is just loading for whole.
    import pandas  # noqa: F401
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=3, cols=2, subplot_titles=TITLES, vertical_spacing=0.11, horizontal_spacing=0.08)
    for number, arm in enumerate(arms):
        look = LOOKS.get(arm.name) or (ALONE if len(arms) == 1 else OTHER_LOOKS[number % len(OTHER_LOOKS)])
        for line in LINES:
            _add(figure, arm, line, look, len(arms) > 1)
    # The axes that a page must not forget where a user has zoomed in.
    figure.update_layout(uirevision="live")
    budget_s, cap = arms[0].frame_budget_s, arms[0].wait_cap
    _rule(figure, budget_s * MS, f"deadline {budget_s * MS:g} ms", "solid")
    _rule(figure, cap * budget_s * MS, f"wait cap {cap * budget_s * MS:g} ms", "dot")
    finish(figure, title, None, None, label, height=HEIGHT)
    for note in figure.layout.annotations:
        if note.text in TITLES:
            note.update(font={"size": 13, "color": INK}, xanchor="left", x=_left(figure, note.text))
    figure.update_xaxes(title_font_size=12)
    figure.update_xaxes(title_text="seconds since the run began", row=3)
    figure.update_yaxes(rangemode="tozero")
    # A little above 100 %: a plateau near the brim and the marks on it stay in sight.
    figure.update_yaxes(range=[0, 108], row=1, col=1)
    ticks = [digit * 10**power for power in range(-1, 6) for digit in (1, 2, 5)]
    plain = [f"{tick:g}" for tick in ticks]
    figure.update_yaxes(type="log", rangemode="normal", tickvals=ticks, ticktext=plain, row=1, col=2)
    figure.update_layout(legend={"y": 1 + 26 / (HEIGHT - MARGIN_PX), "font": {"size": 12}})
    if not title:
        # Its room goes to the plots.
        figure.update_layout(margin={"t": UNTITLED_TOP})
    return figure


def _left(figure: Figure, title: str) -> float:
    axis = figure.layout["xaxis" if title == TITLES[0] else f"xaxis{TITLES.index(title) + 1}"]
    return axis.domain[0]


def _add(figure: Figure, arm: LiveArm, line: LiveLine, look: Look, several: bool) -> None:
    x, y = arm.points(line.line)
    row, column = line.place
    name = f"{arm.name}: {line.name}" if several and line.name else line.name or arm.name
    figure.add_scatter(
        x=list(x),
        y=[value * line.scale for value in y],
        name=name,
        legendgroup=name,
        showlegend=(several and line.line == "occupancy") or bool(line.symbol) or line.line == "forecast",
        mode="markers" if line.symbol else "lines",
        line={"color": look.colour, "dash": "dash" if line.faint else look.dash, "width": 1.2 if line.faint else 2.2},
        marker={"color": INK if line.symbol in ("x", "star-triangle-down") else look.colour, "size": 12}
        | ({"symbol": line.symbol} if line.symbol else {}),
        cliponaxis=not line.symbol,
        hovertemplate=f"{line.line}: %{{y:.4g}}<br>%{{x:.1f}} s<extra>{arm.name}</extra>",
        row=row,
        col=column,
    )


def _rule(figure: Figure, y: float, words: str, dash: str) -> None:
    figure.add_shape(
        type="line",
        xref="x2 domain",
        x0=0,
        x1=1,
        yref="y2",
        y0=y,
        y1=y,
        line={"color": GREY, "dash": dash, "width": 1.2},
    )
    # An annotation on a log axis wants the logarithm of its height.
    figure.add_annotation(
        text=words,
        xref="x2 domain",
        x=0,
        yref="y2",
        y=math.log10(y),
        yanchor="bottom" if dash == "solid" else "top",
        xanchor="left",
        showarrow=False,
        font={"size": 11, "color": GREY},
    )
