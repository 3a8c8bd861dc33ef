"""The lesson's widgets: a press checks what is typed, answers stay hidden, the numbers come when they are asked for."""

from __future__ import annotations

import ipywidgets as w

from tests.test_lesson import Run, lesson_on
from workbench.panel.lesson import SYMBOLS, Comparison, LessonPanel


def shown(panel: LessonPanel, key: str) -> str:
    return panel.asked[key].verdict.value


def buttons(widget: w.Widget) -> list[w.Button]:
    inner = [button for child in getattr(widget, "children", ()) for button in buttons(child)]
    return [widget, *inner] if isinstance(widget, w.Button) else inner


def test_a_panel_checks_what_is_typed_and_says_it_by_a_symbol_too():
    run = Run().open().come_to_the_wall()
    panel = LessonPanel(lesson_on(run), "misses", "lag", "switch")
    (check,) = buttons(panel.asked["misses"])
    for typed, right, words in (
        ("0", True, "right: it is 0"),
        ("3", False, "not right"),
        ("<b>", None, "type a number"),
    ):
        panel.asked["misses"].number.value = typed
        check.click()
        assert SYMBOLS[right] in shown(panel, "misses") and words in shown(panel, "misses")
    assert list(panel.asked) == ["misses", "lag", "switch"]
    assert buttons(panel.asked["switch"]) == [] and panel.asked["switch"].number is None


def test_every_answer_is_hidden_until_it_is_opened():
    lesson = lesson_on(None)
    panel = LessonPanel(lesson)
    assert len(panel.asked) == len(lesson.questions)
    for question in lesson.questions:
        html = [child.value for child in panel.asked[question.key].children if isinstance(child, w.HTML)]
        assert html[-1].startswith("<details") and " open" not in html[-1].partition(">")[0]
        assert question.html() == html[0]


def test_the_comparison_takes_the_numbers_when_its_button_is_pressed():
    run = Run().open()
    lesson = lesson_on(run)
    comparison = Comparison(lesson)
    lesson.check("t_full", 21.75)
    assert "21.75" not in comparison.table.value and "–" in comparison.table.value
    buttons(comparison)[0].click()
    assert "21.75" in comparison.table.value
