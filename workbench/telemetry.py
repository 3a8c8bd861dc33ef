"""The three tables of a run: sessions, frames, pool. In memory while it runs, pandas to read, Parquet on disk.

Times are seconds since the run began. The columns are the contract that plots, experiments and reports read.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

# How a frame ended. An "open" frame has not returned yet.
OPEN, ON_TIME, CAPPED, DROPPED, CLOSED, DEAD = "open", "on_time", "capped", "dropped", "closed", "dead"
# Frames that returned to the user in the ordinary run of things, the ones that counts are made of.
RETURNED = (ON_TIME, CAPPED, DROPPED)


@dataclass
class SessionRow:
    """One session offered to the manager. ``opened_at_s`` is when its audio began, None when it was shed."""

    run: str
    session: str
    clip: str
    offered_at_s: float
    opened_at_s: float | None = None
    ended_at_s: float | None = None
    reason: str | None = None


@dataclass(slots=True)
class FrameRow:
    """One frame of one session. Late tokens and the resident tokens come in after it has returned."""

    run: str
    session: str
    frame: int
    due_at_s: float
    submitted_at_s: float | None = None
    first_token_at_s: float | None = None
    returned_at_s: float | None = None
    latency_s: float | None = None
    status: str = OPEN
    eos: bool = False
    capped: bool = False
    missed: bool = False
    empty: bool = False
    tokens_in: int = 0
    tokens_owed: int = 0
    tokens_delivered: int = 0
    tokens_late: int = 0
    backlog: int = 0
    content_lag_s: float | None = None
    age_tokens: int | None = None
    resident_tokens: int | None = None
    window: int | None = None
    sinks: int | None = None


@dataclass
class PoolRow:
    """The pool at one instant, as the plugin's scheduler saw it, and the forecast made from all rows so far.

    grown_*: see workbench.saturation.Grown.
    """

    run: str
    at_s: float
    blocks_used: int
    blocks_total: int
    running: int
    waiting: int
    parked: int
    preemptions: int
    sessions: int
    resident_tokens: int
    grown_frames: int = 0
    grown_tokens: int = 0
    grown_squares: int = 0
    admission_cap: int | None = None
    host_rss_bytes: int | None = None
    t_full_predicted_s: float | None = None
    t_full_low_s: float | None = None
    t_full_high_s: float | None = None


@dataclass
class Tables:
    """The rows of one run. One owner writes; any thread may read a table, which is a copy."""

    run: str
    session_rows: dict[str, SessionRow] = field(default_factory=dict)
    frame_rows: list[FrameRow] = field(default_factory=list)
    pool_rows: list[PoolRow] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    _saving: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def sessions(self) -> pd.DataFrame:
        return self._table(SessionRow, self.session_rows.values())

    def frames(self) -> pd.DataFrame:
        return self._table(FrameRow, self.frame_rows)

    def pool(self) -> pd.DataFrame:
        return self._table(PoolRow, self.pool_rows)

    def _table(self, row_type: type, rows) -> pd.DataFrame:
        import pandas as pd

        names = list(row_type.__dataclass_fields__)
        with self.lock:
            columns = {name: [getattr(row, name) for row in rows] for name in names}
        return pd.DataFrame(
            {name: pd.Series(columns[name], dtype=_DTYPES[row_type.__dataclass_fields__[name].type]) for name in names}
        )

    def save(self, folder: Path) -> None:
        """Write sessions.parquet, frames.parquet and pool.parquet; each appears whole or not at all."""
        folder = Path(folder)
        # One at a time: a save in the background may still be writing the same parts.
        with self._saving:
            folder.mkdir(parents=True, exist_ok=True)
            for name in TABLES:
                part = folder / f".{name}.parquet.part"
                getattr(self, name)().to_parquet(part, index=False)
                part.replace(folder / f"{name}.parquet")


TABLES = ("sessions", "frames", "pool")

_DTYPES = {
    "str": "string",
    "str | None": "string",
    "int": "int64",
    "int | None": "Int64",
    "float": "float64",
    "float | None": "float64",
    "bool": "bool",
}


def load_tables(folder: Path) -> dict[str, pd.DataFrame]:
    """The tables that ``Tables.save`` wrote, by name. Raises FileNotFoundError naming the missing one."""
    import pandas as pd

    return {name: pd.read_parquet(Path(folder) / f"{name}.parquet") for name in TABLES}
