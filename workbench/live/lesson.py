"""The lesson: what a student is asked of a live run, and whether what they type agrees with the run and with Eq. 1.

lesson = Lesson(wb)
lesson.check("t_full", 40)
lesson.table()
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.experiments.cliff import LAG_SLOPE_ERROR, PREDICTION_ERROR
from workbench.experiments.metastability import eq1_s
from workbench.live import lesson_facts as facts

if TYPE_CHECKING:
    import pandas as pd

    from workbench.experiments import Result
    from workbench.live.hands import Hands

ENGINE_TO_COME = "the engine is not up yet"


class LessonError(ValueError):
    """A question that there is not; one line that says which there are."""


@dataclass(frozen=True)
class Question:
    """A question to a student, and its answer in words.

    ``truth``: what the run says, a number in ``unit`` or why there is none yet; None for a question in words alone.
    ``tolerance``: how far from the truth is still right. ``by_hand``: what arithmetic says before anything runs.
    """

    key: str
    name: str
    text: str
    unit: str
    truth: Callable[[], facts.Answer] | None
    tolerance: float
    answer: str
    by_hand: Callable[[], float] | None = None

    def html(self) -> str:
        """The question, for a page."""
        return f"<p><b>{escape(self.text)}</b></p>"

    def answer_html(self) -> str:
        """The answer, hidden until it is asked for."""
        return f"<details style='margin-bottom:1em'><summary>answer</summary><p>{escape(self.answer)}</p></details>"


@dataclass(frozen=True)
class Verdict:
    """One line on what was typed. ``right``: None where there is nothing to hold it against yet."""

    words: str
    right: bool | None = None


class Lesson:
    """The questions to the run of ``hands``' first arm, with ``sessions`` sessions, by default the profile's.

    What the run says is read when it is asked for. Raises ProfileError where the front end has no fixed count of tokens
    per frame, for then nothing can be worked out by hand.
    """

    def __init__(self, hands: Hands, sessions: int | None = None) -> None:
        profile = hands.profile
        self.hands, self.profile = hands, profile.with_(sessions=sessions or profile.sessions)
        self.questions: tuple[Question, ...] = _questions(self)
        # What was typed last while the run had not told yet, and what was typed last.
        self._predicted: dict[str, float] = {}
        self._typed: dict[str, float] = {}

    def question(self, key: str) -> Question:
        """The question of that key. LessonError."""
        for question in self.questions:
            if question.key == key:
                return question
        raise LessonError(f"no question {key!r}: choose from {', '.join(each.key for each in self.questions)}")

    def chosen(self, *keys: str) -> tuple[Question, ...]:
        """The questions of these keys, or all. LessonError."""
        return tuple(self.question(key) for key in keys) or self.questions

    # -- what was typed ---------------------------------------------------------------------------------------------

    def check(self, key: str, typed: object) -> Verdict:
        """Hold ``typed``, a number or the text of one, against the run and against arithmetic. LessonError."""
        question = self.question(key)
        if question.truth is None:
            return Verdict("say it in your own words, then open the answer and compare")
        value = _number(typed)
        if value is None:
            return Verdict(f"type a number, in {question.unit}, such as 12.5")
        self._typed[key] = value
        truth = question.truth()
        if isinstance(truth, str):
            self._predicted[key] = value
            return Verdict(f"{value:.6g} {question.unit} is written down; {truth}")
        right = abs(value - truth) <= question.tolerance
        words = f"it is {truth:.4g} {question.unit}{self._beside(question)}; you typed {value:.6g}"
        if not right:
            words += f", and right is what lies within {question.tolerance:.3g}"
        if key == "t_full" and (dropped := self.ask(facts.dropped_before_full)):
            words += f"; {dropped} frames were dropped before: the engine is too slow for them, and they fill nothing"
        return Verdict(f"{'right' if right else 'not right'}: {words}", right)

    def _beside(self, question: Question) -> str:
        said = "" if question.by_hand is None else f", by hand {question.by_hand():.4g}"
        forecast_s = self.forecast_s() if question.key == "t_full" else None
        return said if forecast_s is None else f"{said}, by the forecast {forecast_s:.4g}"

    # -- what the run says ------------------------------------------------------------------------------------------

    def ask(self, what: Callable) -> facts.Answer:
        """What one of workbench.live.lesson_facts says of the run."""
        manager = self.hands.manager()
        return ENGINE_TO_COME if manager is None or math.isinf(manager.now()) else what(manager)

    def measured(self, key: str) -> float | None:
        """The run's own answer; None while there is none."""
        truth = self.question(key).truth
        value = None if truth is None else truth()
        return None if isinstance(value, str) else value

    def forecast_s(self) -> float | None:
        """The forecast that counts, in seconds from the first session's opening; None without one."""
        made = self.ask(facts.forecast)
        if made is None or isinstance(made, str):
            return None
        return made.forecast.t_full_s - min(facts.opened(self.hands.manager()))

    def table(self) -> pd.DataFrame:
        """What was predicted, typed, worked out by hand, forecast and measured: a row for each question with a number.

        Nothing is told of a question before something was typed.
        """
        import pandas as pd

        numeric = [question for question in self.questions if question.truth is not None]
        asked = [(question, question.key in self._typed) for question in numeric]
        columns = {
            "question": [question.name for question in numeric],
            "unit": [question.unit for question in numeric],
            "you, before": [self._predicted.get(question.key) for question in numeric],
            "you, last": [self._typed.get(question.key) for question in numeric],
            "by hand": [question.by_hand() if tell and question.by_hand else None for question, tell in asked],
            "forecast": [self.forecast_s() if tell and question.key == "t_full" else None for question, tell in asked],
            "measured": [self.measured(question.key) if tell else None for question, tell in asked],
        }
        numbers = {name: pd.Series(values, dtype="float64") for name, values in list(columns.items())[2:]}
        return pd.DataFrame(columns | numbers)

    def result(self, silent: pd.DataFrame, saved: Path) -> Result:
        """The run and its claims, after the engine was ended; see workbench.live.lesson_facts.result."""
        manager = self.hands.manager()
        hand = {question.key: question.by_hand() for question in self.questions if question.by_hand}
        measured = {question.key: self.measured(question.key) for question in self.questions if question.truth}
        metrics = {"by_hand": hand, "measured": measured, "forecast": {"t_full": self.forecast_s()}}
        return facts.result(manager, silent, saved, metrics)

    # -- by hand ----------------------------------------------------------------------------------------------------

    def eq1_s(self) -> float:
        """Eq. 1 for the sessions that were opened before the pool was full, or for those that are to be opened."""
        manager = self.hands.manager()
        full_s = math.inf if manager is None else manager.beat.first_refused_at_s or math.inf
        there = 0 if manager is None else len(facts.opened(manager, full_s))
        return eq1_s(self.profile.with_(sessions=there or self.profile.sessions))

    def plateau_percent(self) -> float:
        """The most that the sessions hold under the bounds they have, or under the profile's, in % of the pool."""
        manager = self.hands.manager()
        bounds = [] if manager is None else facts.bounds(manager)
        if not bounds or None in bounds:
            bounds = [self.profile.bound] * (len(bounds) or self.profile.sessions)
        return 100.0 * facts.most_blocks(self.profile, bounds) / self.profile.pool_blocks

    def plateau_measured_percent(self) -> facts.Answer:
        """The most that they held once they were all at their plateau."""
        blocks = self.ask(facts.plateau_blocks)
        return blocks if isinstance(blocks, str) else 100.0 * blocks / self.profile.pool_blocks

    def ceiling(self) -> float:
        """How many bounded sessions fit, each with the most blocks that it ever holds."""
        return float(self.profile.pool_blocks // facts.most_blocks(self.profile, [self.profile.bound]))


def _number(typed: object) -> float | None:
    if isinstance(typed, bool) or not isinstance(typed, (int, float, str)):
        return None
    try:
        value = float(typed)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def _questions(lesson: Lesson) -> tuple[Question, ...]:
    p = lesson.profile
    n, budget, cap_s = p.sessions, f"{p.frame_budget_s:g} s", f"{p.wait_cap * p.frame_budget_s:g} s"
    most, by_eq1_s = facts.most_blocks(p, [p.bound]), eq1_s(p)
    bound = f"W = {p.window}, S = {p.sinks} tokens"
    return (
        Question(
            "t_full",
            "t_full",
            f"{n} unbounded sessions begin together. How many seconds later is the pool full?",
            "s",
            lambda: lesson.ask(facts.t_full_s),
            # Eq. 1 is a line and the run a staircase: a frame's step, and a block that each session may have begun.
            max(PREDICTION_ERROR * by_eq1_s, (1 + p.block_size / p.growth) * p.frame_budget_s),
            f"Each frame a session grows by {p.frame_tokens} tokens in + {p.tokens_owed} owed - 1 = {p.growth} tokens, "
            f"for the last one is sampled and not kept. So {n} sessions take {n * p.growth} of the pool's "
            f"{p.pool_tokens} tokens every {budget}: {p.pool_tokens} / {n * p.growth} x {budget} = {by_eq1_s:.1f} s, "
            "which is Eq. 1 on an empty pool. The run differs by some frames: it takes whole blocks, frame by frame.",
            lesson.eq1_s,
        ),
        Question(
            "misses",
            "deadline misses at the wall",
            "At the wall no session says a word. How many deadline misses are counted there? And why does latency "
            "still read healthy?",
            "misses",
            lambda: lesson.ask(facts.misses_at_wall),
            0.0,
            f"None. A frame waits no longer than the wait cap, {p.wait_cap:g} B = {cap_s}, and returns with what is "
            f"there, be it nothing. So every frame returns before its deadline, B = {budget} after it fell due, and "
            f"latency reads {cap_s}: a figure of when frames return, not of what is in them.",
        ),
        Question(
            "lag",
            "growth of content lag at the wall",
            "At the wall, by how many seconds does content lag grow each second? And which other signals are honest?",
            "s per s",
            lambda: lesson.ask(facts.lag_growth),
            LAG_SLOPE_ERROR,
            "By one: the clock runs on, and the newest audio that a delivered token had seen stays the same. Honest "
            "signals ask what came: content lag, tokens delivered against tokens owed, capped frames, empty frames.",
        ),
        Question(
            "plateau",
            "plateau under the bound",
            f"The bound ({bound}) is switched on for all {n} sessions. How much of the pool do they hold, at most?",
            "% of the pool",
            lesson.plateau_measured_percent,
            100.0 * n / p.pool_blocks,
            f"The sinks in whole blocks, the last {p.window} tokens, less than one block more and the frame in hand: "
            f"at most {most} blocks of {p.block_size} tokens a session, so {n * most} of {p.pool_blocks} blocks for "
            f"{n}, which is {100 * n * most / p.pool_blocks:.1f} %.",
            lesson.plateau_percent,
        ),
        Question(
            "switch",
            "what the bound did",
            "What did switching the bound on do, and from which frame on?",
            "",
            None,
            0.0,
            "From the next frame of each session on, the blocks between its sinks and its window went back to the "
            "pool. At the wall no next frame could begin, so there the bound reached the sessions with the next look "
            "at the pool, in the middle of their chunks. The session at the head of the queue got its blocks, then "
            f"the next, and all deliver again. Of the audio meanwhile only the last {p.backlog} chunks had waited; "
            "what was dropped is not answered.",
        ),
        Question(
            "ceiling",
            "bounded sessions that fit",
            f"How many bounded sessions ({bound}) does the pool hold, each with the most blocks that it ever holds?",
            "sessions",
            lesson.ceiling,
            0.0,
            f"{p.pool_blocks} blocks / {most} blocks each, rounded down: {p.pool_blocks // most}. Unbounded there is "
            "no such number: any of them fill the pool, sooner or later.",
            lesson.ceiling,
        ),
    )
