"""SessionManager: sessions of real audio on one engine, frame by frame, and the run's tables.

with SessionManager(load_profile("smollm2")) as manager:
    name = manager.add(sample_clip("goforward"), bound=KVBound(256, 4))
    manager.wait_for(seconds=20)
    print(manager.status(), manager.frames())

On a simulated profile the same lines run on virtual time, which passes only inside ``wait_for`` and ``wait_until``.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Self

from workbench.audio import AudioStream, Clip
from workbench.beat import Beat
from workbench.bound import BoundError, KVBound
from workbench.drive import SessionError, make_drive
from workbench.engine import Engine, EngineError, make_engine
from workbench.saturation import Forecaster
from workbench.telemetry import Tables

if TYPE_CHECKING:
    import pandas as pd

    from workbench.admission import Gate
    from workbench.frontends import FrontEnd

__all__ = ["SessionError", "SessionManager"]

NO_CLIP = "no audio"
HEADER_TOKEN = 1
EMPTY_WITHIN_S = 30.0


class SessionManager:
    """Serves sessions of real audio on one engine, frame by frame, and writes the run's tables.

    ``run`` names the run in the tables. ``engine`` replaces the one the profile asks for. ``progress`` is called with
    a line at each step of the engine's start. ``save_to``: a folder that gets the tables when the manager closes,
    however it closes. ``gate``: the admission that ``offer`` asks. ``warn``: hears what would be a warning. All methods
    may be called from any thread; none waits for the engine, except start, close and new_run.
    Raises EngineError when the engine does not start.
    """

    def __init__(
        self,
        profile,
        run: str = "run",
        *,
        engine: Engine | None = None,
        progress: Callable[[str], None] | None = None,
        save_to: Path | None = None,
        gate: Gate | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self.profile, self._warn = profile, warn
        self.tables = Tables(run)
        self.engine = engine or make_engine(profile)
        self.front_ends: dict[str, FrontEnd] = {}
        self._names = 0
        self._voices = count()
        self._draw = random.Random(profile.seed)
        self.beat = self._new_beat(gate)
        self._drive = make_drive(self.engine, self.beat, self.tables, save_to, progress)

    # -- life -------------------------------------------------------------------------------------------------------

    def start(self) -> SessionManager:
        """Start the engine and the beat; returns when both are up. Raises EngineError."""
        self._drive.start()
        return self

    def close(self) -> None:
        """End every session, the engine and its processes; save the tables where asked. Again is no error."""
        self._drive.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc) -> None:
        self.close()

    def now(self) -> float:
        """Seconds since the run began."""
        return self._drive.now()

    @property
    def running(self) -> bool:
        """Whether the beat is being kept: from the engine's start to the end of the manager."""
        return self._drive.running

    def _new_beat(self, gate: Gate | None) -> Beat:
        profile = self.profile
        return Beat(profile, self.tables, self.engine, Forecaster(profile.frame_budget_s, profile.block_size), gate)

    def new_run(self, run: str, *, save_to: Path | None = None, gate: Gate | None = None) -> None:
        """End every session and begin another run on the same engine: its own tables, its clock at 0, no gate but this.

        The tables so far are saved where that was asked for. It waits until the engine has all its blocks back. No
        figure that is quoted should come of a second run: it did not begin on a fresh engine. Raises EngineError,
        SessionError.
        """

        def leave() -> float:
            self._check_alive()
            for name in list(self.beat.sessions):
                self.beat.shut(name, self.now(), "closed for a new run")
            return self.now()

        left_at_s = self._drive.call(leave)

        def empty(manager: SessionManager) -> bool:
            rows = manager.tables.pool_rows[-1:]
            return any(
                row.at_s > left_at_s and row.blocks_used + row.running + row.waiting + row.parked == 0 for row in rows
            )

        if not self.wait_for(empty, seconds=EMPTY_WITHIN_S):
            self._check_alive()
            raise EngineError(f"the engine kept blocks for {EMPTY_WITHIN_S:g} s after its last session: restart it")

        def begin() -> None:
            if self.beat.sessions:
                raise SessionError("sessions were opened while the old ones were closed: try again")
            if self._drive.save_to is not None:
                self.tables.save(self._drive.save_to)
            self.tables = Tables(run)
            self.front_ends = {}
            self._names, self._voices, self._draw = 0, count(), random.Random(self.profile.seed)
            self.beat = self._new_beat(gate)
            self._drive.begin_again(self.beat, self.tables, save_to)

        self._drive.call(begin)

    # -- sessions ---------------------------------------------------------------------------------------------------

    def add(
        self,
        clip: Clip | None,
        bound: KVBound | None = None,
        *,
        start_s: float = 0.0,
        loop: bool = True,
        prompt: int = 0,
    ) -> str:
        """Open a session that streams ``clip`` and return its name. ``bound`` None: unbounded, the stock scheduler.

        ``clip`` may be None where the front end takes no audio (``load``).
        ``start_s``: where in the clip it begins, so that sessions on one clip stream distinct audio. ``loop``: play
        the clip again and again; otherwise the session ends with it. ``prompt``: tokens that open the session, before
        its first chunk and in one with it, such as a conversation so far. Raises BoundError, AudioError, FrontEndError,
        SessionError, EngineError; warns when the plateaus of the bounded sessions exceed the pool.
        """
        open_session = self._opener(clip, bound, start_s, loop, prompt)

        def add() -> str:
            if len(self.beat.sessions) >= self.profile.max_sessions:
                raise SessionError(
                    f"{self.profile.max_sessions} sessions are open, the profile's max_sessions: close one"
                )
            return open_session()

        name = self._drive.call(add)
        self._warn_of_plateaus()
        return name

    def offer(self, clip: Clip | None, bound: KVBound | None = None, **how) -> str | None:
        """As ``add`` where admission lets the session in; None where it is shed: the sessions table has the reason.

        Without a gate, and within max_sessions, everybody is let in.
        """
        open_session = self._opener(clip, bound, **how)

        def offer() -> str | None:
            gate, open_now, most = self.beat.gate, len(self.beat.sessions), self.profile.max_sessions
            reason = None if gate is None else gate.refusal(open_now)
            if reason is None and open_now >= most:
                reason = f"shed: {open_now} sessions open, the profile's max_sessions"
                if gate is not None:
                    gate.turned_away()
            if reason is None:
                return open_session()
            self._check_alive()
            self.beat.shed(self._new_name(), NO_CLIP if clip is None else clip.name, self.now(), reason)
            return None

        name = self._drive.call(offer)
        self._warn_of_plateaus()
        return name

    def set_gate(self, gate: Gate | None) -> None:
        """Put another gate, or none, before ``offer``. Sessions that are open stay."""

        def change() -> None:
            self.beat.gate = gate

        self._drive.call(change)

    def _opener(
        self, clip: Clip | None, bound: KVBound | None, start_s: float = 0.0, loop: bool = True, prompt: int = 0
    ) -> Callable[[], str]:
        """Check what is asked for; what opens the session is called where the beat is kept."""
        from workbench.frontends import make_frontend

        self._drive.check_running()
        profile = self.profile
        front_end = make_frontend(
            profile.front_end,
            vocab_size=self.engine.facts.vocab_size,
            clip=clip,
            frame_budget_s=profile.frame_budget_s,
            model_path=self.engine.model_path,
            loop=loop,
            start_s=start_s,
            session=next(self._voices),
        )
        if front_end.hears and clip is None:
            raise SessionError(f"front end {profile.front_end} needs a clip: give one of workbench.audio")
        stream = AudioStream(clip, profile.frame_budget_s, loop=loop, start_s=start_s) if front_end.hears else None
        talk = front_end if getattr(front_end, "talks", False) else None
        if talk is not None and prompt:
            raise SessionError(f"front end {profile.front_end} opens its sessions itself: leave out prompt")
        header = [HEADER_TOKEN] * (profile.shared_prefix + prompt)

        def frame_tokens(k: int) -> list[int]:
            tokens = front_end.encode(None if stream is None else stream.chunk(k), k)
            return header + tokens if k == 0 else tokens

        if bound is not None:
            self._check_bound(bound, front_end.most_tokens)
        most = profile.max_model_len - front_end.most_tokens
        if bound is not None:
            most = bound.sink_tokens(profile.block_size) + bound.window
        if not 0 <= prompt <= most:
            raise SessionError(f"a prompt must have 0 to {most} tokens, what a session keeps, not {prompt}")

        def open_session() -> str:
            self._check_alive()
            name = self._new_name()
            self.front_ends = {n: f for n, f in self.front_ends.items() if n in self.beat.sessions}
            self.front_ends[name] = front_end
            self.beat.open(
                name,
                NO_CLIP if clip is None else clip.name,
                frame_tokens,
                self.now(),
                bound=bound,
                stop_token_ids=front_end.stop_token_ids,
                frames_limit=None if stream is None else stream.frames,
                jitter_s=self._draw.random() * profile.start_jitter * profile.frame_budget_s,
                talk=talk,
            )
            return name

        return open_session

    def _check_alive(self) -> None:
        if self.beat.dead is not None:
            raise EngineError(f"engine died: {self.beat.dead}: start a new manager")

    def _new_name(self) -> str:
        self._names += 1
        return f"s{self._names - 1}"

    def close_session(self, name: str) -> None:
        """End one session and give its blocks back. Raises SessionError on one that is not open."""
        self._drive.call(lambda: self._known(name) and self.beat.shut(name, self.now(), "closed"))

    def set_bound(self, bound: KVBound | None, name: str | None = None) -> None:
        """Switch the bound on, off or to other values, for one session or for all.

        It takes effect at the next frame; on a session whose chunk is unanswered past the wait cap, with the next
        sample of the pool.
        """
        if bound is not None:
            self._check_bound(bound, self._most_tokens(list(self.front_ends) if name is None else [name]))

        def change() -> None:
            names = list(self.beat.sessions) if name is None else [name]
            for each in names:
                self._known(each)
            for each in names:
                self.beat.sessions[each].bound = bound

        self._drive.call(change)
        self._warn_of_plateaus()

    def _check_bound(self, bound: KVBound, frame_tokens: int) -> None:
        self.profile.check_bound(bound, frame_tokens)
        self.check_moving(bound)

    def check_moving(self, bound: KVBound) -> None:
        """Raise BoundError, one line, when ``bound`` has sinks that move and the started engine cannot move any."""
        facts = getattr(self.engine, "facts", None)
        if bound.moving and facts is not None and facts.sinks_stay:
            raise BoundError(f"{facts.sinks_stay}: use sinks that stay")

    def _known(self, name: str) -> bool:
        if name not in self.beat.sessions:
            raise SessionError(f"no open session {name!r}: open are {', '.join(self.beat.sessions) or 'none'}")
        return True

    def _warn_of_plateaus(self) -> None:
        bounded = {name: s.bound for name, s in list(self.beat.sessions.items()) if s.bound is not None}
        if not bounded:
            return
        warning = self.profile.plateau_warning(list(bounded.values()), self._most_tokens(bounded))
        if warning and self._warn is not None:
            self._warn(warning)
        elif warning:
            warnings.warn(warning, stacklevel=3)

    def _most_tokens(self, names) -> int:
        """The most tokens that one frame of any of these sessions has; 1 where there is none of them."""
        return max((self.front_ends[name].most_tokens for name in names if name in self.front_ends), default=1)

    # -- what there is to see ---------------------------------------------------------------------------------------

    def sessions(self) -> pd.DataFrame:
        """The sessions table so far (a copy)."""
        return self.tables.sessions()

    def frames(self) -> pd.DataFrame:
        """The frames table so far (a copy)."""
        return self.tables.frames()

    def pool(self) -> pd.DataFrame:
        """The pool table so far (a copy)."""
        return self.tables.pool()

    def status(self) -> str:
        """One line: beating, how many are stalled, the wall, or what the engine died of."""
        return self.beat.status(self.now())

    def words(self, name: str) -> str:
        """What a session said lately, as its front end shows it."""
        session, front_end = self.beat.sessions.get(name), self.front_ends.get(name)
        if session is None or front_end is None:
            raise SessionError(f"no open session {name!r}: open are {', '.join(self.beat.sessions) or 'none'}")
        with self.tables.lock:
            tokens = list(session.words)
        return front_end.decode(tokens)

    def wait_for(self, condition: Callable[[SessionManager], bool] | None = None, *, seconds: float = math.inf) -> bool:
        """Wait until ``condition(manager)`` holds (True) or ``seconds`` have passed or the engine died (False)."""
        return self._drive.wait_for(None if condition is None else lambda: condition(self), seconds)

    def wait_until(self, at_s: float) -> None:
        """Wait until ``at_s`` seconds since the run began, or until the engine died."""
        self._drive.wait_until(at_s)
