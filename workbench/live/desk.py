"""A desk: one engine under a user's hands. What is asked of it is queued and done on its own thread; nobody waits.

    desk = Desk(load_profile("smollm2"), folder).open()
    desk.add(sample_clip("numbers"), 4)
    desk.set_bound(KVBound(256, 4))
    ...
    desk.end()

Whatever goes wrong is said in one line, in ``notice`` and to whoever waits for the answer; nothing of it ends the desk.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from workbench.admission import AdmissionError, Gate
from workbench.audio import AudioError, Clip
from workbench.bound import BoundError, KVBound
from workbench.engine import EngineError
from workbench.frontends import FrontEndError
from workbench.live.pace import Pace
from workbench.profiles import Profile, ProfileError
from workbench.sessions import SessionError, SessionManager

STARTING, OPEN, DEAD, FAILED, ENDED = "starting", "open", "dead", "failed", "ended"
LOOK_EVERY_S = 0.1  # of real time, at whether the engine lives
SAVE_EVERY_S = 30.0
# Of real time: from one bit of virtual time to the next, and the most of one, before what is asked gets its turn.
PLAY_EVERY_S, PLAY_AT_ONCE_S = 0.02, 0.05
REFUSALS = (EngineError, SessionError, BoundError, AudioError, FrontEndError, ProfileError, AdmissionError, OSError)


class Desk:
    """``folder`` gets the tables of each run: run-1, run-2 and so on, one for each ``reset`` and ``restart``.

    ``label``: the arm's name, and the run's in the tables. ``pace``: how a simulated engine's time is played; several
    desks may share one. ``engine``: makes another engine than the profile's.
    """

    def __init__(
        self,
        profile: Profile,
        folder: Path,
        *,
        label: str = "run",
        pace: Pace | None = None,
        engine: Callable[[Profile], object] | None = None,
    ) -> None:
        self.profile, self.folder, self.label = profile, Path(folder), label
        self.pace = pace or Pace()
        self.state, self.notice = STARTING, ""
        self.manager: SessionManager | None = None
        self.began_at = time.monotonic()
        self.runs = 0
        self.saved = False  # whether all rows of an engine that died are on disk
        self.new_gate: Callable[[int], Gate] | None = None
        self._engine = engine
        self._progress = ""
        self._more_to_play = False
        self._asked: queue.SimpleQueue[tuple[Callable, Future] | None] = queue.SimpleQueue()
        self._ending = threading.Event()
        self._saved_at = time.monotonic()
        self._thread = threading.Thread(target=self._live, name=f"metronome-desk-{label}", daemon=True)

    # -- life -------------------------------------------------------------------------------------------------------

    def open(self) -> Desk:
        """Start the engine in the background. Returns at once."""
        self._thread.start()
        return self

    def end(self) -> None:
        """End the sessions, the engine and its processes, and save the tables. Again is no error."""
        self._ending.set()
        self._asked.put(None)
        while self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(LOOK_EVERY_S)
            if self.state == STARTING and self.manager is not None:
                # A start that does not come to its end by itself is given up.
                self.manager.close()

    @property
    def alive(self) -> bool:
        """Whether the desk takes what it is asked."""
        return self._thread.is_alive() and not self._ending.is_set()

    @property
    def progress(self) -> str:
        """How far the engine's start is, in words and seconds."""
        return f"{self._progress or 'starting'} ({time.monotonic() - self.began_at:.0f} s)"

    @property
    def virtual(self) -> bool:
        """Whether time is played, and may be paused."""
        return self.profile.executor == "simulated"

    # -- what can be asked; each returns at once, with a Future -----------------------------------------------------

    def add(self, clip: Clip | None, n: int = 1, bound: KVBound | None = None, start_s: float | None = None) -> Future:
        """Open ``n`` sessions on ``clip``, each at another place of it, or offer them where admission is on.

        The answer: the names of those that were let in.
        """

        def add(manager: SessionManager) -> list[str]:
            if isinstance(n, bool) or not isinstance(n, int) or n < 1:
                raise SessionError(f"add 1 session or more, not {n!r}")
            names, step = [], (clip.seconds if clip is not None else 0.0) * GOLDEN
            # Numbered through the run, so that no two sessions on one clip say the same at the same time.
            first = len(manager.tables.session_rows)
            for i in range(first, first + n):
                at_s = start_s if start_s is not None else (i * step) % clip.seconds if clip is not None else 0.0
                name = (manager.offer if manager.beat.gate else manager.add)(clip, bound, start_s=at_s)
                names += [name] * (name is not None)
            if len(names) < n:
                self.notice = f"{n - len(names)} of {n} shed: {_last_refusal(manager)}"
            return names

        return self._ask(add)

    def close(self, names: list[str] | None = None) -> Future:
        """End these sessions, by default all. The answer: how many were open."""

        def close(manager: SessionManager) -> int:
            asked = list(manager.beat.sessions) if names is None else names
            chosen = [name for name in asked if name in manager.beat.sessions]
            for name in chosen:
                manager.close_session(name)
            return len(chosen)

        return self._ask(close)

    def close_half(self) -> Future:
        """End the newer half of the sessions, so that the rest can breathe at the wall. The answer: how many ended."""

        def close(manager: SessionManager) -> int:
            chosen = list(manager.beat.sessions)[::-1][: (len(manager.beat.sessions) + 1) // 2]
            for name in chosen:
                manager.close_session(name)
            return len(chosen)

        return self._ask(close)

    def set_bound(self, bound: KVBound | None, name: str | None = None) -> Future:
        """The bound, or none, for one session or for all; it takes effect at the next frame."""
        return self._ask(lambda manager: manager.set_bound(bound, name))

    def admit(self, new_gate: Callable[[int], Gate] | None) -> Future:
        """Admission by a gate of this making, a new one for each run, told how many sessions are open. None: by none."""

        def admit(manager: SessionManager) -> None:
            # Made first: one that cannot be made leaves the one there is.
            gate = None if new_gate is None else new_gate(len(manager.beat.sessions))
            manager.set_gate(gate)
            self.new_gate = new_gate

        return self._ask(admit)

    def save(self) -> Future:
        """Write the tables of this run. The answer: their folder."""

        def save(manager: SessionManager | None) -> Path:
            if manager is None:
                raise EngineError("no engine has been up, so there are no tables: restart it")
            manager.tables.save(self.run_folder)
            return self.run_folder

        return self._ask(save, alive=False)

    def reset(self) -> Future:
        """End all sessions and begin a new run on the same engine, or on a new one where the engine is dead."""

        def reset(manager: SessionManager) -> None:
            if self.state != OPEN:
                self._start_over()
                return
            gate = self.new_gate(0) if self.new_gate else None
            run = self._next_run()
            manager.new_run(self.label, save_to=self.folder / f"run-{run}", gate=gate)
            self.runs = run

        return self._ask(reset, alive=False)

    def restart(self) -> Future:
        """End the engine and all its processes, save the tables, and start another."""
        return self._ask(lambda manager: self._start_over(), alive=False)

    def _ask(self, what: Callable, alive: bool = True) -> Future:
        answer: Future = Future()

        def act() -> object:
            if alive and self.state != OPEN:
                raise EngineError(f"the engine is {self.state}: {'restart it' if self.state != STARTING else 'wait'}")
            return what(self.manager)

        if not self.alive:
            answer.set_exception(EngineError("the desk was ended: open another"))
            return answer
        self._asked.put((act, answer))
        if not self._thread.is_alive():
            # It ended in between, and takes up nothing more.
            self._refuse_the_rest()
        return answer

    # -- the thread -------------------------------------------------------------------------------------------------

    @property
    def run_folder(self) -> Path:
        """Where the tables of the present run go."""
        return self.folder / f"run-{self.runs}"

    def _live(self) -> None:
        try:
            self._start()
            while not self._ending.is_set():
                self._take_up(self._wait_s())
                self._look()
                self.pace.idle(self, self.state != OPEN or not self.manager.beat.sessions)
                self._play()
        finally:
            self.pace.leave(self)
            self._close_manager()
            self.state = ENDED
            self._refuse_the_rest()

    def _refuse_the_rest(self) -> None:
        while True:
            try:
                asked = self._asked.get_nowait()
            except queue.Empty:
                return
            if asked is not None and asked[1].set_running_or_notify_cancel():
                asked[1].set_exception(EngineError("the desk was ended: open another"))

    def _start(self) -> None:
        self.state, self.began_at = STARTING, time.monotonic()
        self.pace.join(self)
        try:
            self.runs, self.saved = self._next_run(), False
            engine = None if self._engine is None else self._engine(self.profile)
            gate = self.new_gate(0) if self.new_gate else None
            self.manager = SessionManager(
                self.profile,
                self.label,
                engine=engine,
                progress=self._say,
                save_to=self.run_folder,
                gate=gate,
                warn=self._warn,
            )
            if not self._ending.is_set():
                self.manager.start()
                self.state, self.notice = OPEN, ""
        except Exception as error:  # noqa: BLE001, whatever keeps it from starting is said, and it may be tried again
            self.pace.leave(self)
            self.notice, self.state = _in_words(error), FAILED

    def _next_run(self) -> int:
        """The number of a run whose folder is there from now on; what another desk keeps in the same place stays."""
        run = self.runs + 1
        while True:
            try:
                (self.folder / f"run-{run}").mkdir(parents=True)
                return run
            except FileExistsError:
                run += 1
            except OSError as error:
                why = f"the tables cannot be kept in {self.folder}: {error.strerror}: give another folder"
                raise EngineError(why) from None

    def _say(self, line: str) -> None:
        self._progress = line

    def _warn(self, line: str) -> None:
        self.notice = line

    def _start_over(self) -> None:
        self._close_manager()
        self._start()
        if self.state != OPEN:
            raise EngineError(self.notice)

    def _close_manager(self) -> None:
        manager, self.manager = self.manager, self.manager
        if manager is None:
            return
        try:
            manager.close()
        except Exception as error:  # noqa: BLE001, one that dies on its way out must not keep the next from starting
            self.notice = f"the engine ended badly: {_in_words(error)}"

    def _wait_s(self) -> float:
        if self.state != OPEN or not self.virtual:
            return LOOK_EVERY_S
        return 0.0 if self._more_to_play else PLAY_EVERY_S

    def _take_up(self, wait_s: float) -> None:
        """Do all that has been asked, and wait up to ``wait_s`` seconds for the first of it."""
        while True:
            try:
                asked = self._asked.get(timeout=wait_s) if wait_s else self._asked.get_nowait()
            except queue.Empty:
                return
            if asked is None:
                return
            self._do(*asked)
            wait_s = 0.0

    def _do(self, act: Callable, answer: Future) -> None:
        if not answer.set_running_or_notify_cancel():
            return  # whoever asked has thought better of it
        if self.state == OPEN:
            self.notice = ""
        try:
            answer.set_result(act())
        except REFUSALS as error:
            self._warn(_in_words(error))
            answer.set_exception(error)
        except Exception as error:  # noqa: BLE001, a fault of ours is said like any other, and the desk goes on
            self._warn(f"fault of the workbench: {type(error).__name__}: {_in_words(error)}")
            answer.set_exception(error)

    def _look(self) -> None:
        """Whether the engine still lives; with its death the tables are saved at once, else now and then."""
        manager = self.manager
        if self.state != OPEN:
            return
        if manager.beat.dead is not None:
            self.state = DEAD
            # It plays no more, so no other desk waits for it.
            self.pace.leave(self)
            self._save()
        elif time.monotonic() - self._saved_at > SAVE_EVERY_S and self.virtual:
            # In real time the manager does it by itself.
            self._save()

    def _save(self) -> None:
        try:
            self.manager.tables.save(self.run_folder)
            self.saved = self.state == DEAD
        except OSError as error:
            self.notice = f"the tables cannot be saved in {self.run_folder}: {error.strerror}"
        self._saved_at = time.monotonic()

    def _play(self) -> None:
        """Let virtual time pass, no further than the pace allows and no longer than a little while."""
        self._more_to_play = False
        if not self.virtual or self.state != OPEN:
            return
        left, manager = self.pace.left(self), self.manager
        if left <= 0:
            return
        until, began = time.monotonic() + PLAY_AT_ONCE_S, manager.now()
        seconds = min(left, self.profile.frame_budget_s) if math.isinf(left) else left
        manager.wait_for(lambda m: time.monotonic() >= until, seconds=seconds)
        self.pace.played(self, manager.now() - began)
        self._more_to_play = time.monotonic() >= until or math.isinf(left)


GOLDEN = 0.6180339887498949  # its multiples, modulo 1, are spread evenly however many there are


def _last_refusal(manager: SessionManager) -> str:
    reasons = [row.reason for row in manager.tables.session_rows.values() if row.opened_at_s is None and row.reason]
    return reasons[-1].removeprefix("shed: ") if reasons else "no reason"


def _in_words(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
