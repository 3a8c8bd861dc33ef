"""Everything that a user can ask of the engines and see of them, by whatever face: a panel, a cell, a test."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import Future
from html import escape
from pathlib import Path

from workbench.admission import AdmissionError, Aimd, Gate, Gradient2, Headroom
from workbench.audio import AudioError, Clip
from workbench.bound import BoundError, KVBound
from workbench.live import rows as table_rows
from workbench.live.asked import Asked
from workbench.live.clips import Clips
from workbench.live.desk import DEAD, ENDED, FAILED
from workbench.live.export import FORMATS, tables_archive, view_page
from workbench.live.live import Live
from workbench.live.pace import PaceError
from workbench.profiles import Profile
from workbench.sessions import SessionError

POLL_S = 0.05
WORDS_SHOWN = 1500  # the last characters of what a session said
HORIZON_S = 120.0  # how long the sessions there are must be able to talk on, where memory decides
CONTROLLERS = ("AIMD", "headroom", "Gradient2")


class Hands:
    """Opens an engine for each of ARMS at once, in the background. Nothing here waits, except ``end``.

    ``folder`` gets the tables; by default a new one in reports/live. ``speed``: of a simulated engine's time.
    ``engine``: makes another engine than the profile's. What goes wrong is said in ``notice``, or by the desk.
    """

    ARMS: tuple[str, ...] = ("run",)

    def __init__(
        self, profile: Profile, *, folder: Path | None = None, speed: float = 1.0, engine: Callable | None = None
    ) -> None:
        self.profile = profile
        self.bound_to_come: KVBound | None = None
        self.notice = ""
        self.clips = Clips(profile)
        self.live = Live(profile, self.ARMS, folder=folder, speed=speed, engine=engine)
        self.live.open()

    # -- life -------------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether the engines are up or on their way."""
        states = [arm.desk.state for arm in self.live.arms]
        return not self.live.ended and not any(state in (DEAD, FAILED, ENDED) for state in states)

    def end(self) -> None:
        """End the engines with all their processes; the tables are saved. It waits for that, some seconds."""
        self.live.end()

    # -- what can be asked ------------------------------------------------------------------------------------------

    def add(self, clip: str | Clip | None = None, n: int = 1) -> Asked:
        """Open ``n`` sessions on a clip, or offer them where admission is on; under the bound that is switched on."""
        try:
            chosen = self.clips.find(clip)
        except AudioError as error:
            return self._refused(f"add {n}", error)
        words = f"add {n} session{'s' * (n != 1)}"
        return self._ask(words, [arm.desk.add(chosen, n, self._bound_of(arm.name)) for arm in self.live.arms])

    def _bound_of(self, arm: str) -> KVBound | None:
        return self.bound_to_come

    def close(self, name: str | None = None) -> Asked:
        """End one session, or all."""
        names = None if name is None else [name]
        return self._ask(f"close {name or 'all'}", [arm.desk.close(names) for arm in self.live.arms])

    def close_half(self) -> Asked:
        """End the newer half of the sessions."""
        return self._ask("close half", [arm.desk.close_half() for arm in self.live.arms])

    def bound(self, bound: KVBound | None, name: str | None = None) -> Asked:
        """Switch the bound, from the next frame on: for one session, or for all there are and those to come."""
        if bound is not None:
            try:
                self.profile.check_bound(bound, self.clips.frame_tokens)
                for arm in self.live.arms:
                    if arm.desk.manager is not None:
                        arm.desk.manager.check_moving(bound)
            except BoundError as error:
                return self._refused(f"bound W {bound.window}", error)
        if name is None:
            self.bound_to_come = bound
        words = "bound off" if bound is None else f"bound {bound.words}"
        desks = [arm.desk for arm in self.live.arms if self._may_bind(arm.name)]
        return self._ask(f"{words} for {name or 'all'}", [desk.set_bound(bound, name) for desk in desks])

    def _may_bind(self, arm: str) -> bool:
        return True

    def admit(self, controller: str | None, target_s: float = math.nan) -> Asked:
        """Let sessions in by a controller with this target of latency, or let everybody in (None)."""
        desks = [arm.desk for arm in self.live.arms]
        if controller is None:
            return self._ask("admission off", [desk.admit(None) for desk in desks])
        words = f"admission by {controller}, target {target_s:g} s"
        if controller not in CONTROLLERS:
            why = f"no controller {controller!r}: choose from {', '.join(CONTROLLERS)}"
            return self._refused(words, AdmissionError(why))
        return self._ask(words, [desk.admit(lambda n: self._gate(controller, target_s, n)) for desk in desks])

    def _gate(self, controller: str, target_s: float, sessions: int) -> Gate:
        """Begins with the ``sessions`` that are open: they were served well so far, or the controller soon knows."""
        if controller == "Gradient2":
            made = Gradient2(start=max(4, sessions))
        else:
            latency = Aimd(target_s, start=max(1, sessions))
            made = latency if controller == "AIMD" else Headroom(latency, horizon_s=HORIZON_S)
        return Gate(made, interval_s=self.profile.frame_budget_s)

    def reset(self) -> Asked:
        """End all sessions and begin a new run on the same engines."""
        return self._ask("reset", [arm.desk.reset() for arm in self.live.arms])

    def restart(self) -> Asked:
        """End the engines' processes and start others; the tables are saved."""
        return self._ask("restart", [arm.desk.restart() for arm in self.live.arms])

    def set_speed(self, speed: float) -> None:
        """Virtual seconds per real one, of a simulated engine; infinity plays as fast as it can."""
        try:
            self.live.pace.speed = speed
        except PaceError as error:
            self.say(str(error))

    def pause(self, paused: bool = True) -> None:
        """Let no virtual time pass, or let it pass again."""
        self.live.pause(paused)

    def step(self, seconds: float | None = None) -> None:
        """Let one frame budget pass, or so many seconds, and pause."""
        self.live.pace.step(self.profile.frame_budget_s if seconds is None else seconds)

    def _ask(self, words: str, answers: list[Future]) -> Asked:
        self.notice = ""
        return Asked(words, answers)

    def _refused(self, words: str, error: Exception) -> Asked:
        self.say(str(error))
        answer: Future = Future()
        answer.set_exception(error)
        return Asked(words, [answer])

    def say(self, line: str) -> None:
        """A line for the panel."""
        self.notice = line

    def take_clip(self, name: str, data: bytes) -> None:
        """An uploaded file becomes a clip, or the panel says why not."""

        def take() -> None:
            try:
                self.say(f"{self.clips.take(name, data)}: uploaded, choose it as the clip")
            except AudioError as error:
                self.say(str(error))

        self.chore(take)

    def chore(self, what: Callable[[], object]) -> None:
        """Do something slow aside; what goes wrong is said in the panel."""

        def do() -> None:
            try:
                what()
            except Exception as error:  # noqa: BLE001, it has no other caller to be told to
                self.say(" ".join(f"{type(error).__name__}: {error}".split()))

        if self.live.ended:
            return self.say("the workbench was ended: open another")
        self.live.chores.submit(do)

    # -- what there is to see ---------------------------------------------------------------------------------------

    def until(self, condition: str | Callable[[Hands], bool], seconds: float = 600.0):
        """``await`` it until the engines are "open", an arm is "pool full" or at its "wall", or ``condition(wb)`` holds.

        True then; False after so many real seconds, when an engine is dead, and when the cell is interrupted: the
        engines play on. Nothing else waits meanwhile.
        """
        words = {"open": _is_open, "pool full": _is_full, "wall": _is_at_wall}
        if isinstance(condition, str) and condition not in words:
            known = ", ".join(words)
            raise ValueError(f"until {condition!r}: choose from {known}, or give a function of the workbench")
        return self._until(words.get(condition, condition) if isinstance(condition, str) else condition, seconds)

    async def _until(self, holds: Callable[[Hands], bool], seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        while not holds(self):
            if not self.alive or loop.time() >= ends:
                print(f"not reached: {self.status()}")
                return False
            try:
                await asyncio.sleep(POLL_S)
            except asyncio.CancelledError:
                print(f"interrupted: {self.status()}; the engine goes on")
                return False
        return True

    def status(self) -> str:
        """The status lines of all arms."""
        several = len(self.live.arms) > 1
        lines = zip(self.live.arms, self.live.statuses(), strict=True)
        return " | ".join((f"{arm.name}: " if several else "") + status.words for arm, status in lines)

    def manager(self, arm: str | None = None):
        """The session manager of an arm; None while its engine has not begun to start."""
        found = [each.desk.manager for each in self.live.arms if arm in (None, each.name)]
        return found[0] if found else None

    def open_sessions(self) -> dict[str, str]:
        """The open sessions, by name, and what to call them."""
        said = {}
        for arm in self.live.arms:
            manager = arm.desk.manager
            for name, session in [] if manager is None else list(manager.beat.sessions.items()):
                row = manager.tables.session_rows[name]
                bound = "unbounded" if session.bound is None else session.bound.words
                said.setdefault(name, f"{name} · {row.clip} · {bound}")
        return said

    def bound_of(self, name: str) -> KVBound | None:
        """The bound of an open session, of the arm that may have one."""
        for arm in self.live.arms:
            manager = arm.desk.manager if self._may_bind(arm.name) else None
            session = None if manager is None else manager.beat.sessions.get(name)
            if session is not None:
                return session.bound
        return None

    def admission_words(self) -> str:
        """The cap, and how many were shed and why last."""
        words = []
        for arm in self.live.arms:
            gate = None if arm.desk.manager is None else arm.desk.manager.beat.gate
            if gate is not None:
                words.append(f"cap {gate.cap}, {gate.shed} shed")
        return "; ".join(words)

    def words_html(self, name: str | None) -> str:
        """What a session said lately; a load generator's words are labelled as what they are."""
        if name is None:
            return "no session selected"
        parts = []
        for arm in self.live.arms:
            manager = arm.desk.manager
            front_end = None if manager is None else manager.front_ends.get(name)
            if front_end is None:
                continue
            try:
                words = manager.words(name)[-WORDS_SHOWN:]
            except SessionError:
                continue  # it has ended meanwhile
            meaningless = "" if front_end.meaningful else "<i>(a load generator: these words mean nothing)</i> "
            parts.append(f"<p><b>{escape(arm.name)} {escape(name)}</b> {meaningless}{escape(words)}</p>")
        return "".join(parts) or f"{escape(name)} is not open"

    def rows_html(self, name: str) -> str:
        """The newest rows of a session."""
        return "".join(
            table_rows.as_html(table_rows.last_rows(arm.feed.tables, name), f"{arm.name}: the last frames of {name}")
            for arm in self.live.arms
            if arm.feed is not None
        )

    def picture(self, title: str = ""):
        """The view as a plotly figure, as it is now."""
        self.live.read()
        return self.live.figure(title)

    def export(self, kind: str, hand_over: Callable[[str, bytes, str], None] | None = None) -> None:
        """Write the tables ("parquet", "csv") or the view ("html") into the folder, and hand it over to the page."""

        def make() -> None:
            live = self.live
            name = f"{live.folder.name}.{'html' if kind == 'html' else f'{kind}.zip'}"
            if kind == "html":
                lines = [self.status(), *(strip["words"] for strip in live.strips())]
                data, mime = view_page(self.picture(), name, lines).encode(), "text/html"
            else:
                runs = {arm.name: arm.feed.tables for arm in live.arms if arm.feed is not None}
                data, mime = tables_archive(runs, kind), "application/zip"
            live.folder.mkdir(parents=True, exist_ok=True)
            (live.folder / name).write_bytes(data)
            if hand_over is not None:
                hand_over(name, data, mime)
            self.say(f"exported to {live.folder / name}")

        if kind not in (*FORMATS, "html"):
            raise ValueError(f"export as {kind!r}: choose from {', '.join((*FORMATS, 'html'))}")
        self.chore(make)


def _is_open(hands: Hands) -> bool:
    return hands.live.open_now


def _beats(hands: Hands) -> list:
    return [arm.desk.manager.beat for arm in hands.live.arms if arm.desk.manager is not None]


def _is_full(hands: Hands) -> bool:
    return any(beat.first_refused_at_s is not None for beat in _beats(hands))


def _is_at_wall(hands: Hands) -> bool:
    return any(beat.wall_at_s is not None for beat in _beats(hands))
