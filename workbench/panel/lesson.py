"""The lesson's questions as widgets: a number to type, its verdict, a hidden answer; and all numbers side by side."""

from __future__ import annotations

from html import escape

import ipywidgets as w

from workbench.live.lesson import Lesson, Question, Verdict
from workbench.panel.controls import button, row

# By symbol and by words, so that nobody needs the colour.
SYMBOLS = {True: "✓", False: "✗", None: "…"}
COLOURS = {True: "#0072B2", False: "#D55E00", None: "#666666"}


class LessonPanel(w.VBox):
    """The questions of ``keys``, or all, one below the other. Raises LessonError."""

    def __init__(self, lesson: Lesson, *keys: str) -> None:
        self.asked = {question.key: Asking(lesson, question) for question in lesson.chosen(*keys)}
        super().__init__(list(self.asked.values()))


class Asking(w.VBox):
    """One question. ``number``: the field; None where the answer is in words."""

    def __init__(self, lesson: Lesson, question: Question) -> None:
        self._lesson, self._key = lesson, question.key
        self.verdict = w.HTML()
        self.number = None if question.truth is None else w.Text(placeholder=f"a number, in {question.unit}")
        parts = [w.HTML(question.html()), self.verdict, w.HTML(question.answer_html())]
        if self.number is not None:
            self.number.layout.width = "220px"
            tip = "hold the number against the run, as far as it is"
            parts.insert(1, row(self.number, w.Label(question.unit), button("check", self.check, tip)))
        super().__init__(parts)

    def check(self) -> None:
        """Show the verdict on what is in the field."""
        self.show(self._lesson.check(self._key, self.number.value))

    def show(self, verdict: Verdict) -> None:
        """Its symbol and its words."""
        mark = f"<span style='color:{COLOURS[verdict.right]}'>{SYMBOLS[verdict.right]}</span>"
        self.verdict.value = f"<div class='metronome-verdict'>{mark} {escape(verdict.words)}</div>"


class Comparison(w.VBox):
    """What was typed beside what was worked out, forecast and measured, as it is when the button is pressed."""

    def __init__(self, lesson: Lesson) -> None:
        self._lesson, self.table = lesson, w.HTML()
        super().__init__([row(button("compare", self.compare, "show all the numbers as they are now")), self.table])
        self.compare()

    def compare(self) -> None:
        """Take the numbers as they are now."""
        shown = self._lesson.table()
        how = {"na_rep": "–", "float_format": "{:.4g}".format, "justify": "left", "col_space": 80}
        self.table.value = shown.to_html(index=False, border=0, classes="metronome-numbers", **how)
