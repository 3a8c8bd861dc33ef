"""Figures of sinks and distance, read back as data."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from workbench._figures import LOOKS, UNBOUNDED, Label, PlotError
from workbench.experiments import Result
from workbench.plots_quality import (
    KINDS,
    answered_by_age,
    distinct_by_age,
    label_of_distance,
    label_of_sinks,
    nll_by_age,
    nll_over_distance,
    quality_over_policies,
)

TURNS, FREE = "turn-based", "free-running"
LABEL = Label("measured · seeds 0, 1")
WINDOWS, AGES = (256, 128), (300, 100, 500)
PINNED = ("nothing", "header", "content", "reply")
PARAMS = {
    "model": "tiny-135M",
    "windows": [128, 256],
    "seeds": 2,
    "age": 4096,
    "block_size": 16,
    "window": 512,
    "factors": [0.5, 2.0],
}


def aged(window: int | None, pinned: str | None, age: int, regime: str = TURNS) -> dict:
    nll = (1.0 if window is None else 256 / window + PINNED.index(pinned)) + age / 1000
    return {
        "window": window,
        "pinned": pinned,
        "regime": regime,
        "age_tokens": age,
        "nll": nll,
        "nll_low": nll - 0.25,
        "nll_high": nll + 0.5,
        "answered": None if age == 300 else age / 1000,
        "distinct_2": 1 - age / 1000 if regime == FREE else None,
    }


def by_age() -> list[dict]:
    kinds = [(None, None), *((window, pinned) for window in WINDOWS for pinned in PINNED)]
    return [aged(*kind, age, regime) for kind in kinds for age in AGES for regime in (TURNS, FREE)]


def policy(window: int | None, pinned: str | None, excess: float | None, answered: float | None, regime=TURNS) -> dict:
    row = {"window": window, "pinned": pinned, "regime": regime}
    for key, value in (("excess", excess), ("answered", answered)):
        row |= {key: value, f"{key}_low": value and value - 0.1, f"{key}_high": value and value + 0.2}
    return row


def policies() -> list[dict]:
    return [
        policy(256, "nothing", 1.5, 0.1),
        policy(128, "nothing", 3.0, 0.2),
        policy(None, None, 0.0, 0.75),
        policy(128, "header", 0.5, None),
        policy(128, "header", 9.0, None, FREE),
    ]


def distance() -> dict:
    def rows(nll: float) -> list[dict]:
        return [{"age_tokens": age, "nll": nll, "nll_low": nll - 1, "nll_high": nll + 1} for age in (2000, 500)]

    sessions = [{"policy": name, "nll_by_age": rows(nll)} for nll, name in enumerate(("no sinks", "sinks", UNBOUNDED))]
    return {"context": 1000, "window": 512, "sessions": sessions}


def result(executor: str = "vllm-cpu") -> Result:
    none = pd.DataFrame()
    return Result("sinks", "sim:x", executor, "0.32.0", 3, PARAMS, {"context": 1000}, (), none, none, none)


def named(figure, name: str, count: int = 1) -> list:
    found = [trace for trace in figure.data if trace.name == name]
    assert len(found) == count, [trace.name for trace in figure.data]
    return found


DRAWN_BY_AGE = (
    (lambda rows: nll_by_age(rows, label=LABEL, regime=TURNS), "nll"),
    (lambda rows: answered_by_age(rows, label=LABEL, regime=TURNS), "answered"),
    (lambda rows: distinct_by_age(rows, label=LABEL), "distinct_2"),
)


@pytest.mark.parametrize("draw, key", DRAWN_BY_AGE)
def test_a_panel_for_each_window_with_a_rule_at_it_and_unbounded_in_all(draw, key):
    figure = draw(by_age())
    assert [note.text for note in figure.layout.annotations][:2] == ["W = 128", "W = 256"]
    rules = [(rule.xref, rule.x0, rule.x1, rule.showlegend) for rule in figure.layout.shapes]
    assert rules == [("x", 128, 128, True), ("x2", 256, 256, False)]
    for name in KINDS.values():
        lines = named(figure, name, len(WINDOWS))
        assert [line.xaxis for line in lines] == ["x", "x2"]
        assert [line.showlegend for line in lines] == [True, False], "each kind is in the legend once"
    here, there = named(figure, UNBOUNDED, 2)
    assert here.y == there.y and here.line.color == LOOKS[UNBOUNDED].colour
    assert figure.layout.yaxis2.matches == "y"


def test_a_kind_is_its_rows_in_order_of_age_and_its_band_their_interval():
    figure = nll_by_age(by_age(), label=LABEL, regime=TURNS)
    narrow, wide = named(figure, "header", 2)
    assert list(narrow.x) == list(wide.x) == sorted(AGES)
    assert list(narrow.y) == pytest.approx([3.1, 3.3, 3.5])
    assert list(wide.y) == pytest.approx([2.1, 2.3, 2.5])
    low, high = named(figure, "header, low", 2)[1], named(figure, "header, high", 2)[1]
    assert list(low.y) == pytest.approx([1.85, 2.05, 2.25]) and list(high.y) == pytest.approx([2.6, 2.8, 3.0])
    assert high.fill == "tonexty" and low.fill is None and not high.showlegend
    assert figure.layout.yaxis.title.text == "negative log-likelihood (nats per token)"


def test_a_kind_without_an_interval_has_no_band_and_one_without_a_value_no_point():
    rows = [aged(128, "header", age) for age in AGES]
    rows[0] |= {"nll": None}
    rows[1] |= {"nll_low": None}
    figure = nll_by_age(rows, label=LABEL, regime=TURNS)
    assert list(named(figure, "header")[0].x) == [100, 500]
    assert list(named(figure, "header, low")[0].x) == list(named(figure, "header, high")[0].x) == [500]


def test_shares_skip_what_nobody_asked_and_have_no_band():
    figure = answered_by_age(by_age(), label=LABEL, regime=TURNS)
    assert list(named(figure, "no sinks", 2)[0].x) == [100, 500]
    assert list(named(figure, "no sinks", 2)[0].y) == [0.1, 0.5]
    assert {trace.name for trace in figure.data} == set(KINDS.values())
    assert figure.layout.yaxis.tickformat == ".0%"


def test_a_window_without_a_value_keeps_its_panel_and_rule():
    rows = [aged(128, "header", 100), aged(256, "header", 100) | {"nll": None}]
    assert [rule.x0 for rule in nll_by_age(rows, label=LABEL, regime=TURNS).layout.shapes] == [128, 256]


def test_distinct_is_of_the_sessions_that_run_free():
    rows = [row | {"distinct_2": 0.0} if row["regime"] == TURNS else row for row in by_age()]
    assert list(named(distinct_by_age(rows, label=LABEL), "+ reply block", 2)[0].y) == pytest.approx([0.9, 0.7, 0.5])


def test_kinds_are_told_apart_without_colour():
    lines = nll_by_age(by_age(), label=LABEL, regime=TURNS).data
    drawn = {line.name: (line.line.dash, line.marker.symbol, line.line.color) for line in lines}
    looks = [drawn[name] for name in KINDS.values()]
    for part in zip(*looks, strict=True):
        assert len(set(part)) == len(KINDS)


def test_policies_stand_by_window_with_their_intervals_and_unbounded_last():
    figure = quality_over_policies(policies(), label=LABEL, regime=TURNS)
    excess, answered = named(figure, "no sinks", 2)
    assert list(excess.x) == ["256", "128"] and list(excess.y) == [1.5, 3.0]
    assert list(answered.y) == [0.1, 0.2] and answered.yaxis == "y2"
    assert list(excess.error_y.arrayminus) == pytest.approx([0.1, 0.1])
    assert list(excess.error_y.array) == pytest.approx([0.2, 0.2])
    assert list(named(figure, "header")[0].y) == [0.5], "one regime, and no point where nobody was asked"
    axis = figure.layout.xaxis
    assert axis.type == "category" and list(axis.categoryarray) == ["128", "256", UNBOUNDED]
    assert list(named(figure, UNBOUNDED, 2)[1].x) == [UNBOUNDED]
    groups = {trace.name: (trace.alignmentgroup, trace.offsetgroup) for trace in figure.data}
    assert groups["no sinks"][0] == groups["header"][0] != groups[UNBOUNDED][0]
    assert groups["no sinks"][1] != groups["header"][1] and figure.layout.scattermode == "group"
    assert [(rule.y0, rule.yref) for rule in figure.layout.shapes] == [(0, "y")]


def test_an_interval_that_misses_its_point_or_is_none_has_no_bar_there():
    rows = [policy(128, "header", 0.5, None) | {"excess_low": 0.6, "excess_high": None}]
    (point,) = quality_over_policies(rows, label=LABEL, regime=TURNS).data
    assert list(point.error_y.arrayminus) == [0] and list(point.error_y.array) == [None]


def test_a_panel_of_which_nobody_has_a_value_is_left_out():
    figure = quality_over_policies(policies(), label=LABEL, regime=FREE)
    assert [(trace.name, *trace.y) for trace in figure.data] == [("header", 9.0)]
    assert "yaxis2" not in figure.to_dict()["layout"]
    with pytest.raises(PlotError, match="no turn-based policy has"):
        quality_over_policies([policy(128, "header", None, None)], label=LABEL, regime=TURNS)


def test_distance_is_in_contexts_with_a_rule_at_one():
    figure = nll_over_distance(distance(), label=LABEL)
    for name, nll in (("no sinks", 0), ("sinks", 1), (UNBOUNDED, 2)):
        (line,) = named(figure, name)
        assert list(line.x) == [0.5, 2.0] and list(line.y) == [nll, nll]
        assert [list(named(figure, f"{name}, {end}")[0].y) for end in ("low", "high")] == [[nll - 1] * 2, [nll + 1] * 2]
    (rule,) = figure.layout.shapes
    assert (rule.x0, rule.x1, rule.name) == (1, 1, "the model's context, 1000 tokens")


def test_a_policy_of_another_name_has_a_look_of_its_own():
    metrics = distance()
    metrics["sessions"][0]["policy"] = "half the sinks"
    colours = [each.line.color for each in nll_over_distance(metrics, label=LABEL).data]
    assert len(set(colours)) == 3
    metrics["sessions"] = [metrics["sessions"][0] | {"policy": str(i)} for i in range(9)]
    with pytest.raises(PlotError, match="no colour is left"):
        nll_over_distance(metrics, label=LABEL)


@pytest.mark.parametrize("label_of, own", [(label_of_sinks, "model tiny-135M"), (label_of_distance, "profile sim:x")])
def test_a_caption_names_what_served_and_a_simulated_one_is_written_across(label_of, own):
    measured, simulated = label_of(result()), label_of(result("simulated"))
    assert "vllm-cpu" in measured.text and own in measured.text and "seeds 3 to 4" in measured.text
    assert "seed 3 " in label_of(replace(result(), params={**PARAMS, "seeds": 1})).text
    assert not measured.simulated and simulated.simulated
    notes = {note.name: note.text for note in nll_over_distance(distance(), label=simulated).layout.annotations}
    assert notes == {"caption": simulated.text, "simulated": "simulated"}


def test_captions_name_the_bound_and_how_long_sessions_were():
    for part in ("windows 128, 256", "4096 tokens", "blocks of 16 tokens"):
        assert part in label_of_sinks(result()).text
    for part in ("W = 512", "context of 1000 tokens, times 0.5, 2"):
        assert part in label_of_distance(result()).text


def without(row: dict, key: str) -> dict:
    return {k: v for k, v in row.items() if k != key}


@pytest.mark.parametrize("draw, key", DRAWN_BY_AGE)
def test_ages_that_lack_something_are_refused_by_name(draw, key):
    with pytest.raises(PlotError, match="no rows to draw"):
        draw([])
    for lacking in (
        "window",
        "pinned",
        "regime",
        "age_tokens",
        *(name for name in by_age()[0] if name.startswith(key)),
    ):
        with pytest.raises(PlotError, match=f"no '{lacking}'"):
            draw([without(row, lacking) for row in by_age()])
    with pytest.raises(PlotError, match=f"has '{key}'"):
        draw([row | {key: None} for row in by_age()])
    with pytest.raises(PlotError, match="session is bounded"):
        draw([row for row in by_age() if row["window"] is None])
    with pytest.raises(PlotError, match="choose from other"):
        draw([row | {"regime": "other"} for row in by_age()])
    with pytest.raises(PlotError, match="pinned is 'all'"):
        draw([row | {"pinned": "all"} for row in by_age()])
    with pytest.raises(PlotError, match="with window None"):
        draw([row | {"window": None} for row in by_age()])


def test_policies_and_distances_that_lack_something_are_refused_by_name():
    with pytest.raises(PlotError, match="no rows to draw"):
        quality_over_policies([], label=LABEL, regime=TURNS)
    for key in policies()[0]:
        with pytest.raises(PlotError, match=f"no '{key}'"):
            quality_over_policies([without(row, key) for row in policies()], label=LABEL, regime=TURNS)
    with pytest.raises(PlotError, match="no rows to draw"):
        nll_over_distance(distance() | {"sessions": []}, label=LABEL)
    for key in ("context", "sessions"):
        with pytest.raises(PlotError, match=f"no '{key}'"):
            nll_over_distance(without(distance(), key), label=LABEL)
    session = distance()["sessions"][0]
    for key in session:
        with pytest.raises(PlotError, match=f"no '{key}'"):
            nll_over_distance(distance() | {"sessions": [without(session, key)]}, label=LABEL)
    for key in session["nll_by_age"][0]:
        rows = [without(row, key) for row in session["nll_by_age"]]
        with pytest.raises(PlotError, match=f"no '{key}'"):
            nll_over_distance(distance() | {"sessions": [session | {"nll_by_age": rows}]}, label=LABEL)
