"""What a session manager needs of whoever lets time pass."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

SAMPLES_PER_BUDGET = 8  # pool samples per frame budget
SLOWEST_SAMPLE_S = 0.25


class SessionError(ValueError):
    """A request that the manager refuses; one line that says what to do."""


class Drive(ABC):
    """Brings the engine up, keeps the beat, samples the pool, and saves the tables, until it is closed.

    ``beat`` is driven by whatever ``engine`` says and by its clock; ``save_to``: a folder that gets ``tables`` however
    the run ends. ``progress`` hears a line at each step of the engine's start.
    """

    def __init__(self, engine, beat, tables, save_to=None, progress: Callable[[str], None] | None = None) -> None:
        self.engine, self.beat, self.tables = engine, beat, tables
        self.save_to, self.progress = save_to, progress
        self._began_at = math.inf

    @property
    def sample_period_s(self) -> float:
        """Seconds from one sample of the pool to the next."""
        return min(self.beat.profile.frame_budget_s / SAMPLES_PER_BUDGET, SLOWEST_SAMPLE_S)

    def now(self) -> float:
        """Seconds since the run began."""
        return self.to_run(self.engine.now())

    def to_run(self, at: float) -> float:
        """A time on the engine's clock as seconds since the run began."""
        return at - self._began_at

    def begin_again(self, beat, tables, save_to) -> None:
        """Go on with another beat and its tables, from second 0 of a new run. Called where the beat is kept."""
        self.beat, self.tables, self.save_to = beat, tables, save_to
        self._began_at = self.engine.now()

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether the beat is being kept: from the engine's start to the end of the drive."""

    def check_running(self) -> None:
        """Raise SessionError where the beat is not being kept."""
        if not self.running:
            raise SessionError("the manager is not running: use it inside `with SessionManager(profile) as manager:`")

    @abstractmethod
    def start(self) -> None:
        """Bring the engine and the beat up. Raises EngineError, and SessionError the second time."""

    @abstractmethod
    def close(self) -> None:
        """End every session and the engine; save the tables where asked. Again is no error."""

    @abstractmethod
    def call(self, function: Callable):
        """Run ``function`` where the beat is kept, between two of its instants, and return what it returns."""

    @abstractmethod
    def wait_for(self, condition: Callable[[], bool] | None, seconds: float) -> bool:
        """Let time pass until ``condition()`` holds (True) or ``seconds`` have passed or the engine died (False)."""

    @abstractmethod
    def wait_until(self, at_s: float) -> None:
        """Let time pass until ``at_s`` seconds since the run began, or until the engine died."""
