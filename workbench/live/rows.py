"""The rows behind what is drawn: the last frames of a session, and the frames that fell due about some instant."""

from __future__ import annotations

from html import escape

from workbench.telemetry import FrameRow, Tables

SHOWN = (
    "session",
    "frame",
    "due_at_s",
    "latency_s",
    "status",
    "tokens_in",
    "tokens_owed",
    "tokens_delivered",
    "tokens_late",
    "content_lag_s",
    "age_tokens",
    "resident_tokens",
    "window",
)
MOST_ROWS = 40
# How far back the rows of one session are looked for: some minutes of many sessions.
MOST_LOOKED_AT = 20_000


def last_rows(tables: Tables, session: str, count: int = 12) -> list[FrameRow]:
    """The newest frames of a session, newest first."""
    found = []
    with tables.lock:
        rows = tables.frame_rows
        for at in range(len(rows) - 1, max(-1, len(rows) - 1 - MOST_LOOKED_AT), -1):
            if rows[at].session == session:
                found.append(rows[at])
                if len(found) == count:
                    break
    return found


def rows_between(tables: Tables, from_s: float, to_s: float, count: int = MOST_ROWS) -> list[FrameRow]:
    """The first ``count`` frames that fell due from ``from_s`` to ``to_s``, in seconds since the run began."""
    with tables.lock:
        # They are appended as they fall due, within a frame budget.
        return [row for row in tables.frame_rows if from_s <= row.due_at_s <= to_s][:count]


def as_html(rows: list[FrameRow], caption: str) -> str:
    """A small HTML table of frames."""
    head = "".join(f"<th>{escape(name)}</th>" for name in SHOWN)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(_cell(getattr(row, name)))}</td>' for name in SHOWN)}</tr>" for row in rows
    )
    style = "border-collapse:collapse;font-size:11px"
    return f"<div><b>{escape(caption)}</b><table style='{style}'><tr>{head}</tr>{body}</table></div>"


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
