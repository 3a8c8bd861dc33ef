"""The beat strip: sessions x frames, one letter a frame, told from the rows of the frames table as frames return."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from workbench.session import STALLED_AFTER_EMPTY
from workbench.telemetry import DROPPED, FrameRow

ON_BEAT, CAPPED, EMPTY, STALLED, AUDIO_DROPPED = "o", "c", "e", "s", "d"
IN_WORDS = {
    ON_BEAT: "on beat",
    CAPPED: "capped",
    EMPTY: "empty",
    STALLED: "stalled",
    AUDIO_DROPPED: "audio dropped",
}
COLUMNS, ROWS = 60, 32


@dataclass
class _Line:
    cells: deque[str] = field(default_factory=lambda: deque(maxlen=COLUMNS))
    frame: int = -1
    empty_in_a_row: int = 0


class Strip:
    """The last frames of the sessions that are open. A frame that came whole but late is told as capped."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}

    def returned(self, row: FrameRow) -> None:
        """A frame of a session has returned; of one session they come in order."""
        line = self._lines.setdefault(row.session, _Line())
        line.empty_in_a_row = line.empty_in_a_row + 1 if row.empty else 0
        line.frame = row.frame
        line.cells.append(self._letter(row, line.empty_in_a_row))

    @staticmethod
    def _letter(row: FrameRow, empty_in_a_row: int) -> str:
        if row.empty:
            if empty_in_a_row >= STALLED_AFTER_EMPTY:
                return STALLED
            return AUDIO_DROPPED if row.status == DROPPED else EMPTY
        return CAPPED if row.capped else ON_BEAT

    def keep(self, sessions: dict) -> None:
        """Forget the sessions that are not among ``sessions`` any more."""
        for name in [name for name in self._lines if name not in sessions]:
            del self._lines[name]

    def shown(self, label: str, notes: dict[str, str]) -> dict:
        """What there is to draw. ``notes``: the open sessions, in their order, with a word on each."""
        rows = []
        for name in list(notes)[:ROWS]:
            line = self._lines.get(name) or _Line()
            first = line.frame - len(line.cells) + 1
            rows.append({"session": name, "note": notes[name], "first": first, "cells": "".join(line.cells)})
        words = self._words(notes)
        return {"label": label, "rows": rows, "more": max(0, len(notes) - ROWS), "words": words}

    def _words(self, notes: dict[str, str]) -> str:
        """The state of all open sessions by their last frame, in a line of words."""
        if not notes:
            return "no sessions"
        latest = [line.cells[-1] for name in notes if (line := self._lines.get(name)) and line.cells]
        counts = [f"{latest.count(letter)} {words}" for letter, words in IN_WORDS.items() if letter in latest]
        if len(latest) < len(notes):
            counts.append(f"{len(notes) - len(latest)} before their first frame")
        return f"{len(notes)} session{'s' * (len(notes) > 1)}: {', '.join(counts)}"
