"""Figures and table of the models experiment: four cliffs and slopes side by side, measured beside the cards.

``pool`` and ``frames`` are the result's tables, ``models`` and ``cards`` what its metrics hold under these names.
Raises PlotError for what lacks something.
"""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench._figures import (
    INK,
    MARGIN_PX,
    SIMULATED,
    Label,
    Look,
    PlotError,
    add_to_panel,
    arms_of,
    finish,
    returned_of,
)

if TYPE_CHECKING:
    import pandas as pd
    from pandas.io.formats.style import Styler
    from plotly.graph_objects import Figure

    from workbench.experiments import Result

Rows = list[dict[str, Any]]
MOST_POINTS = 300  # of a line: more than a panel is wide show nothing more and make the notebook large
_CAPTION_WIDTH = 110
_PANEL_PX, _GAP_PX = 190, 55
_KEYS = ("model", "profile", "executor", "sessions", "frame_budget_s", "t_sat_measured_s", "t_sat_predicted_s")
_COLUMNS = (
    "sessions",
    "audio, tokens/s",
    "KV bytes a token",
    "fill, tokens/s",
    "fill, blocks/s",
    "t_sat, s",
    "plateau, blocks a session",
    "ceiling, sessions",
)


def label_of_systems(result: Result) -> Label:
    """The caption of a models result: the executor, the seed, and of each profile what shaped its run."""
    served = result.params["served"]
    words = " · the weights of a tiny model are random" if any("tiny" in name for name in served) else ""
    lines = [f"{result.executor} · vLLM {result.vllm} · seed {result.seed}{words}"]
    for name, params in served.items():
        lines.append(
            f"{name}: {params['sessions']} sessions, B = {params['frame_budget_s']:g} s, {params['tokens_owed']} owed, "
            f"{params['pool_blocks']} blocks of {params['block_size']}, W = {params['window']}, S = {params['sinks']}"
        )
    wrapped = (line for each in lines for line in wrap(each, _CAPTION_WIDTH, break_on_hyphens=False))
    return Label("<br>".join(wrapped), simulated=result.executor == SIMULATED)


def cliffs(pool: pd.DataFrame, frames: pd.DataFrame, models: Rows, *, label: Label) -> Figure:
    """A column per model with axes of its own: how full the pool is, below it the tokens delivered (thick) and owed.

    The star is the first refused allocation, the circle with it what Eq. 1 had said. At most MOST_POINTS of a line.
    """
    _check(models)
    figure = _grid(models)
    for column, model in enumerate(models, start=1):
        mine = [_of(table, name, model["profile"]) for table, name in ((pool, "pool"), (frames, "frames"))]
        for run, arm, look in arms_of(mine[0], "pool", "at_s", "blocks_used", "blocks_total"):
            arm = _thinned(arm.sort_values("at_s"))
            add_to_panel(
                figure, (1, column), arm["at_s"], arm["blocks_used"] / arm["blocks_total"], run, look, shape="hv"
            )
        for key, words, symbol in (
            ("t_sat_predicted_s", "pool full, forecast by Eq. 1", "circle-open"),
            ("t_sat_measured_s", "first refused allocation", "star"),
        ):
            if model[key] is not None:
                mark = Look(INK, "solid", symbol, 11)
                add_to_panel(figure, (1, column), [model[key]], [1.0], words, mark, width=0, marks=True)
        for run, arm, look in arms_of(mine[1], "frames", "due_at_s", "status", "tokens_owed", "tokens_delivered"):
            sums = returned_of(arm).groupby("due_at_s")[["tokens_owed", "tokens_delivered"]].sum().cumsum()
            sums = _thinned(sums.reset_index())
            at, owed, delivered = (sums[name] for name in ("due_at_s", "tokens_owed", "tokens_delivered"))
            add_to_panel(figure, (2, column), at, owed, "owed", Look(INK, "solid", "circle"), width=0.8)
            add_to_panel(figure, (2, column), at, delivered, run, look, width=3)
    figure.update_yaxes(tickformat=".0%", range=[0, 1.12], row=1)
    figure.update_yaxes(rangemode="tozero", row=2)
    height = 2 * _PANEL_PX + _GAP_PX + MARGIN_PX
    return finish(figure, "A cliff and a slope of each model", None, None, label, height=height, headroom=28)


def systems(models: Rows, cards: Rows) -> Styler:
    """The table: a row per model, what was measured beside the same from the model's card.

    In brackets: the audio's tokens with the marks around it, and what was said beforehand, of t_sat by Eq. 1 and of
    plateau and ceiling by the arithmetic.
    """
    import pandas as pd

    _check(models)
    of_card = {card["model"]: card for card in cards}
    if missing := [model["model"] for model in models if model["model"] not in of_card]:
        raise PlotError(f"the metrics have no card of {missing[0]!r}: pass those of the models experiment")
    measured = f"measured ({_once(models, 'executor')})"
    from_card = f"from the model card ({_once(cards, 'hardware')})"
    columns = [("", "model"), *((group, name) for group in (measured, from_card) for name in _COLUMNS)]
    cells = [[model["model"], *_measured(model), *_of_card(of_card[model["model"]])] for model in models]
    table = pd.DataFrame(cells, columns=pd.MultiIndex.from_tuples(columns), dtype=object)
    # Against the page's own style, under which so many columns do not fit.
    looks = "text-align: left !important; padding: 0.3em !important; font-size: 11px !important"
    styled = table.style.set_table_styles([{"selector": "th, td", "props": looks}])
    return styled.hide(axis="index").format(escape="html")


# -- parts -------------------------------------------------------------------------------------------------------------


def _measured(row: dict[str, Any]) -> list[str]:
    marks = f" ({_number(row['tokens_in_per_s'])})" if row["delimiters_per_frame"] else ""
    return [
        f"{row['sessions']:,}",
        _number(row["audio_tokens_per_s"]) + marks,
        f"{row['kv_bytes_per_token']:,}",
        _number(row["fill_tokens_per_s"]),
        _number(row["fill_blocks_per_s"]),
        f"{_number(row['t_sat_measured_s'])} ({_number(row['t_sat_predicted_s'])})",
        f"{_number(row['plateau_blocks'])} ({_number(row['plateau_blocks_predicted'])})",
        f"{_number(row['ceiling_measured'])} ({row['ceiling']:,})",
    ]


def _of_card(row: dict[str, Any]) -> list[str]:
    return [
        f"{row['sessions']:,}",
        _number(row["audio_tokens_per_s"]),
        f"{row['kv_bytes_per_token']:,}",
        _number(row["fill_tokens_per_s"]),
        _number(row["fill_blocks_per_s"]),
        _number(row["t_sat_s"]),
        _number(row["plateau_blocks"]),
        f"{row['ceiling']:,}",
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}".removesuffix(".0")


def _once(rows: Rows, key: str) -> str:
    return ", ".join(dict.fromkeys(row[key] for row in rows))


def _check(models: Rows) -> None:
    for model in models:
        for key in _KEYS:
            if key not in model:
                raise PlotError(f"the metrics have no {key!r}: pass those of the models experiment")


def _of(table: pd.DataFrame, name: str, profile: str) -> pd.DataFrame:
    if "model" not in table or profile not in set(table["model"]):
        raise PlotError(f"the {name} table has no model {profile!r}: pass the one of the models experiment")
    return table[table["model"] == profile]


def _thinned(table: pd.DataFrame) -> pd.DataFrame:
    if table.empty:
        return table
    return table.iloc[np.unique(np.linspace(0, len(table) - 1, MOST_POINTS).astype(int))]


def _grid(models: Rows) -> Figure:
    from plotly.subplots import make_subplots

    figure = make_subplots(
        rows=2,
        cols=max(1, len(models)),
        column_titles=[f"{m['profile']}<br>N = {m['sessions']}, B = {m['frame_budget_s']:g} s" for m in models],
        x_title="time since the arm began (s)",
        vertical_spacing=_GAP_PX / (2 * _PANEL_PX + _GAP_PX),
        horizontal_spacing=0.055,
    )
    figure.update_annotations(font_size=12)
    figure.update_yaxes(title_text="blocks used / total", row=1, col=1)
    figure.update_yaxes(title_text="tokens since the start", row=2, col=1)
    return figure
