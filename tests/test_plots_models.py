"""Figures and table of the models experiment: what is drawn where, what a cell says, and what is refused."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pandas as pd
import pytest

from workbench._figures import Label, PlotError
from workbench.plots_models import MOST_POINTS, cliffs, label_of_systems, systems

LABEL = Label("caption")
ROW = {
    "model": "qwen2.5-omni",
    "profile": "qwen2.5-omni-tiny",
    "executor": "vllm-cpu",
    "sessions": 4,
    "frame_budget_s": 2.0,
    "t_sat_measured_s": 8.0,
    "t_sat_predicted_s": 7.5,
    "audio_tokens_per_s": 25.0,
    "tokens_in_per_s": 26.0,
    "delimiters_per_frame": 2,
    "kv_bytes_per_token": 1024,
    "fill_tokens_per_s": 110.04,
    "fill_blocks_per_s": 3.44,
    "plateau_blocks": 6.8,
    "plateau_blocks_predicted": 7.0,
    "ceiling": 20,
    "ceiling_measured": 21,
}
OTHER = ROW | {"model": "moshi", "profile": "moshi-tiny", "delimiters_per_frame": 0, "audio_tokens_per_s": 12.5}
CARD = {
    "model": "qwen2.5-omni",
    "hardware": "gpu",
    "sessions": 56,
    "audio_tokens_per_s": 25.0,
    "kv_bytes_per_token": 57_344,
    "fill_tokens_per_s": 1568.0,
    "fill_blocks_per_s": 98.0,
    "t_sat_s": 866.59,
    "plateau_blocks": 69.0,
    "ceiling": 1230,
}
CARDS = [CARD, CARD | {"model": "moshi", "ceiling": 142}]


def pool_of(models, samples=10):
    return pd.DataFrame(
        [
            {"run": run, "model": model, "at_s": float(k), "blocks_used": min(k, top), "blocks_total": 8}
            for model in models
            for run, top in (("unbounded", 8), ("bounded", 2))
            for k in range(samples)
        ]
    )


def frames_of(models):
    """Each second two sessions are owed 3 tokens; the unbounded arm delivers none from the third second on."""
    return pd.DataFrame(
        [
            {
                "run": run,
                "model": model,
                "due_at_s": float(k),
                "status": "on_time",
                "tokens_owed": 3,
                "tokens_delivered": 0 if run == "unbounded" and k > 2 else 3,
            }
            for model in models
            for run in ("unbounded", "bounded")
            for k in (1, 2, 3, 4)
            for _ in range(2)
        ]
    )


PROFILES = [row["profile"] for row in (ROW, OTHER)]


def drawn(**changes):
    given = {"pool": pool_of(PROFILES), "frames": frames_of(PROFILES), "models": [ROW, OTHER], "label": LABEL} | changes
    return cliffs(given["pool"], given["frames"], given["models"], label=given["label"])


def traces(figure, name, axis):
    return [trace for trace in figure.data if trace.name == name and trace.xaxis == axis]


def test_a_column_for_each_model_with_its_pool_above_and_its_tokens_below():
    figure = drawn()
    for column, axis in ((1, "x"), (2, "x2")):
        (usage,) = traces(figure, "unbounded", axis)
        assert list(usage.y) == [k / 8 for k in (0, 1, 2, 3, 4, 5, 6, 7, 8, 8)]
        below = f"x{column + 2}"
        assert list(traces(figure, "unbounded", below)[0].y) == [6, 12, 12, 12]
        assert list(traces(figure, "bounded", below)[0].y) == [6, 12, 18, 24]
        assert [list(trace.y) for trace in traces(figure, "owed", below)] == [[6, 12, 18, 24]] * 2
    titles = [note.text for note in figure.layout.annotations]
    assert "qwen2.5-omni-tiny<br>N = 4, B = 2 s" in titles and "caption" in titles


def test_each_name_is_in_the_legend_once():
    shown = [trace.name for trace in drawn().data if trace.showlegend]
    assert len(shown) == len(set(shown)) == 5


def test_the_refusal_and_its_forecast_stand_at_the_top_where_there_are_any():
    figure = drawn(models=[ROW, OTHER | {"t_sat_measured_s": None}])
    assert list(traces(figure, "first refused allocation", "x")[0].x) == [8.0]
    assert list(traces(figure, "pool full, forecast by Eq. 1", "x")[0].x) == [7.5]
    assert traces(figure, "first refused allocation", "x2") == []
    assert len(traces(figure, "pool full, forecast by Eq. 1", "x2")) == 1


def test_a_long_line_is_thinned_and_keeps_its_ends():
    figure = drawn(pool=pool_of(PROFILES, samples=5000))
    (line,) = traces(figure, "unbounded", "x")
    assert len(line.x) <= MOST_POINTS and (line.x[0], line.x[-1]) == (0.0, 4999.0)


def test_a_figure_with_simulated_models_says_so_and_is_small():
    figure = drawn(label=Label("caption", simulated=True))
    assert "simulated" in [note.text for note in figure.layout.annotations]
    assert len(json.dumps(figure.to_plotly_json(), default=list)) < 100_000


def test_the_caption_says_what_shaped_each_run():
    params = {"sessions": 4, "frame_budget_s": 2.0, "tokens_owed": 3, "pool_blocks": 48, "block_size": 32}
    params |= {"window": 128, "sinks": 4}
    result = SimpleNamespace(executor="vllm-cpu", vllm="0", seed=3, params={"served": {"moshi-tiny": params}})
    label = label_of_systems(result)
    assert label.text == (
        "vllm-cpu · vLLM 0 · seed 3 · the weights of a tiny model are random<br>"
        "moshi-tiny: 4 sessions, B = 2 s, 3 owed, 48 blocks of 32, W = 128, S = 4"
    )
    assert not label.simulated
    result.executor, result.params = "simulated", {"served": {"sim:moshi": params}}
    assert label_of_systems(result).simulated and "random" not in label_of_systems(result).text


def test_the_table_has_a_row_per_model_and_two_groups():
    table = systems([ROW, OTHER], CARDS).data
    measured, card = "measured (vllm-cpu)", "from the model card (gpu)"
    assert list(dict.fromkeys(group for group, _ in table.columns)) == ["", measured, card]
    assert list(table[("", "model")]) == ["qwen2.5-omni", "moshi"]
    assert list(table[measured].iloc[0]) == ["4", "25 (26)", "1,024", "110", "3.4", "8 (7.5)", "6.8 (7)", "21 (20)"]
    assert table[measured]["audio, tokens/s"].iloc[1] == "12.5"
    assert list(table[card].iloc[0]) == ["56", "25", "57,344", "1,568", "98", "866.6", "69", "1,230"]
    assert table[card]["ceiling, sessions"].iloc[1] == "142"


def test_a_figure_that_was_never_reached_is_a_dash():
    row = ROW | {"t_sat_measured_s": None, "fill_tokens_per_s": None, "audio_tokens_per_s": None}
    cells = systems([row], CARDS).data["measured (vllm-cpu)"].iloc[0]
    assert (cells["t_sat, s"], cells["fill, tokens/s"], cells["audio, tokens/s"]) == ("- (7.5)", "-", "- (26)")


def test_names_cannot_become_markup():
    page = systems([ROW | {"model": "<b>"}], [CARD | {"model": "<b>"}]).to_html()
    assert "&lt;b&gt;" in page and "<b>" not in page


def test_what_lacks_something_is_refused_by_name():
    with pytest.raises(PlotError, match="no 'sessions'"):
        drawn(models=[{key: value for key, value in ROW.items() if key != "sessions"}])
    with pytest.raises(PlotError, match="the pool table has no model 'moshi-tiny'"):
        drawn(pool=pool_of(["qwen2.5-omni-tiny"]))
    with pytest.raises(PlotError, match="the frames table has no model"):
        drawn(frames=frames_of(PROFILES).drop(columns="model"))
    with pytest.raises(PlotError, match="no column 'blocks_total'"):
        drawn(pool=pool_of(PROFILES).drop(columns="blocks_total"))
    with pytest.raises(PlotError, match="no card of 'moshi'"):
        systems([ROW, OTHER], [CARD])
