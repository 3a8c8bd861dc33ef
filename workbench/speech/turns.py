"""The transcript: who said what when, what was cut short, how soon the reply came; and the word error rate."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

SPEAKER, MODEL = "speaker", "model"


@dataclass(frozen=True)
class Turn:
    """One turn. Times are seconds since the session's audio began, frames are those of the session.

    The speaker's: ``t_start`` and ``t_end`` of the speech; ``began_frame``: the frame by which it was heard to begin;
    ``first_frame``, ``last_frame``: those with whose chunks its words could go in (equal but for a very long turn).
    The model's: ``t_start`` and ``t_end`` are when its first and last tokens came, which are those of the frames
    ``first_frame`` to ``last_frame``; ``answers_end_s``: the end of the speech that it answers. ``cut_frame``: the
    frame by which the speaker was heard to interrupt it. ``tokens`` were shown, ``unshown`` were not, for they came
    after that. ``ended``: it came to its own end.
    """

    speaker: str
    t_start: float
    t_end: float
    text: str
    first_frame: int
    last_frame: int
    tokens: int = 0
    began_frame: int | None = None
    answers_end_s: float | None = None
    cut_frame: int | None = None
    unshown: int = 0
    ended: bool = False

    @property
    def first_word_s(self) -> float | None:
        """From the end of the speaker's turn to the first token of this reply; None for a speaker's turn."""
        return None if self.answers_end_s is None else self.t_start - self.answers_end_s


@dataclass
class _Heard:
    t_start: float
    t_end: float
    words: str
    began_frame: int
    first_frame: int
    last_frame: int
    replies: int


@dataclass
class _Reply:
    number: int
    answers_end_s: float
    first_at_s: float
    first_frame: int
    last_at_s: float
    last_frame: int
    tokens: list[int] = field(default_factory=list)
    unshown: int = 0
    ended: bool = False


class Transcript:
    """Takes down a conversation as it goes. Replies are told apart by their number, counted from 1."""

    def __init__(self) -> None:
        self._taken: list[_Heard | _Reply] = []
        self._cuts: dict[int, int] = {}
        self._heard_end_s = 0.0

    def heard(self, words: str, t_start: float, t_end: float, began_frame: int, frame: int, replies: int) -> None:
        """Words of the speaker, which could go in with ``frame``, when ``replies`` replies had been opened."""
        self._heard_end_s = t_end
        last = self._taken[-1] if self._taken else None
        if isinstance(last, _Heard) and last.replies == replies:
            # It went on after a pause, or came in pieces: to the model it is one turn.
            last.words, last.t_end, last.last_frame = f"{last.words} {words}", t_end, frame
        else:
            self._taken.append(_Heard(t_start, t_end, words, began_frame, frame, frame, replies))

    def cut(self, reply: int, frame: int) -> None:
        """The speaker was heard by ``frame`` to interrupt this reply."""
        self._cuts[reply] = frame

    def replied(self, reply: int, came: int, shown: Sequence[int], ended: bool, frame: int, at_s: float) -> None:
        """``came`` tokens of a reply came at ``at_s`` for ``frame``, of which these are shown."""
        last = next((taken for taken in reversed(self._taken) if isinstance(taken, _Reply)), None)
        if last is None or last.number != reply:
            last = _Reply(reply, self._heard_end_s, at_s, frame, at_s, frame)
            self._taken.append(last)
        if shown:
            last.tokens += shown
            last.last_at_s, last.last_frame = at_s, frame
        if reply in self._cuts:
            last.unshown += came
        last.ended |= ended

    def turns(self, decode: Callable[[Sequence[int]], str]) -> list[Turn]:
        """What was taken down so far."""
        return [self._turn(taken, decode) for taken in list(self._taken)]

    def _turn(self, taken: _Heard | _Reply, decode: Callable[[Sequence[int]], str]) -> Turn:
        if isinstance(taken, _Heard):
            frames = taken.first_frame, taken.last_frame
            return Turn(SPEAKER, taken.t_start, taken.t_end, taken.words, *frames, began_frame=taken.began_frame)
        return Turn(
            MODEL,
            taken.first_at_s,
            taken.last_at_s,
            decode(taken.tokens).strip(),
            taken.first_frame,
            taken.last_frame,
            tokens=len(taken.tokens),
            answers_end_s=taken.answers_end_s,
            cut_frame=self._cuts.get(taken.number),
            unshown=taken.unshown,
            ended=taken.ended,
        )


def plain_words(text: str) -> list[str]:
    """The words of a text, lower case, without punctuation."""
    return re.findall(r"[a-z0-9']+", text.lower())


def word_errors(heard: Sequence[str], said: Sequence[str]) -> int:
    """The fewest words to put in, leave out or replace to get from one to the other (Levenshtein, 1966)."""
    row = list(range(len(said) + 1))
    for i, word in enumerate(heard, 1):
        before, row = row, [i]
        for j, other in enumerate(said, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (word != other)))
    return row[-1]


def word_error_rate(pairs: Iterable[tuple[str, str]]) -> float:
    """Word errors of all (heard, said) over the words said. ValueError where nothing was said."""
    errors = words = 0
    for heard, said in pairs:
        errors += word_errors(plain_words(heard), plain_words(said))
        words += len(plain_words(said))
    if not words:
        raise ValueError("a word error rate needs words that were said: give clips with transcripts")
    return errors / words
