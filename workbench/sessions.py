"""SessionManager: the beat in real time. Its own thread and loop, so that neither a script nor a notebook waits for it.

with SessionManager(load_profile("smollm2")) as manager:
    name = manager.add(sample_clip("goforward"), bound=KVBound(256, 4))
    manager.wait_for(seconds=20)
    print(manager.status(), manager.frames())
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Self

from workbench.audio import AudioStream, Clip
from workbench.beat import Beat, Session
from workbench.bound import KVBound
from workbench.engine import Engine, EngineDead, EngineError, make_engine
from workbench.saturation import Forecaster
from workbench.telemetry import Tables

if TYPE_CHECKING:
    import pandas as pd

    from workbench.frontends import FrontEnd

SAMPLES_PER_BUDGET = 8  # pool samples per frame budget
SLOWEST_SAMPLE_S = 0.25
SAVE_EVERY_S = 30.0
POLL_S = 0.02


class SessionError(ValueError):
    """A request that the manager refuses; one line that says what to do."""


class SessionManager:
    """Serves sessions of real audio on one engine, frame by frame, and writes the run's tables.

    ``run`` names the run in the tables. ``engine`` replaces the one the profile asks for. ``progress`` is called with
    a line at each step of the engine's start. ``save_to``: a folder that gets the tables when the manager closes,
    however it closes. All methods may be called from any thread; none waits for the engine, except start and close.
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
    ) -> None:
        self.profile = profile
        self.tables = Tables(run)
        self.engine = engine or make_engine(profile)
        self.front_ends: dict[str, FrontEnd] = {}
        self._progress = progress
        self._save_to = save_to
        self._names = 0
        self._began_at = math.inf
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._wake: asyncio.Event | None = None
        self._stop: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self.beat = Beat(profile, self.tables, self.engine, Forecaster(profile.frame_budget_s, profile.block_size))

    # -- life -------------------------------------------------------------------------------------------------------

    def start(self) -> SessionManager:
        """Start the engine and the beat; returns when both are up. Raises EngineError."""
        if self._thread is not None:
            raise SessionError("this manager was started before: make a new one for a new run")
        ready: Future = Future()
        self._thread = threading.Thread(target=self._main, args=(ready,), name="metronome-beat", daemon=True)
        self._thread.start()
        try:
            ready.result()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End every session, the engine and its processes; save the tables where asked. Again is no error."""
        if self._thread is None:
            return
        if self._loop is not None and not self._loop.is_closed():
            try:
                self._from_outside(self._stop.set)
            except RuntimeError:
                pass  # the loop closed in between: the thread is ending by itself
        self._thread.join()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc) -> None:
        self.close()

    def _main(self, ready: Future) -> None:
        try:
            asyncio.run(self._live(ready))
        except BaseException as error:  # noqa: BLE001, nothing is swallowed: it is raised in the caller's thread
            # Before the engine is ready the caller of start() gets the error, after that the caller of close().
            if ready.done():
                self._failure = error
            else:
                ready.set_exception(error)

    async def _live(self, ready: Future) -> None:
        self._loop, self._wake, self._stop = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        # Tables are pandas: its import holds the interpreter for longer than a short frame budget, so not on the beat.
        import pandas  # noqa: F401

        self.engine.on_event = self._hear
        self.engine.on_dead = self._die
        try:
            if not await self._first_of(self.engine.start(self._progress)):
                raise EngineError("the manager was closed while its engine started")
            self._model = self._model_path()
            self._vocab_size = json.loads((self._model / "config.json").read_text())["vocab_size"]
            self._began_at = self.engine.now()
            ready.set_result(None)
            await self._first_of(self._keep_beat(), self._sample(), self._save_now_and_then())
            for name in list(self.beat.sessions):
                self.beat.shut(name, self.now(), "closed with the manager")
        except Exception as error:
            if ready.done():
                self._die(f"the manager failed: {type(error).__name__}: {error}")
            raise
        finally:
            # Before the engine's end, which takes seconds that an impatient user may not give.
            try:
                if self._save_to is not None and ready.done():
                    self.tables.save(self._save_to)
            finally:
                await self.engine.stop()

    async def _first_of(self, *coroutines) -> bool:
        """Run until the manager is to stop (False) or one of these ends (True), whose error is raised."""
        stop = asyncio.create_task(self._stop.wait())
        tasks = [asyncio.create_task(c) for c in coroutines]
        try:
            done, _ = await asyncio.wait([stop, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (stop, *tasks):
                task.cancel()
            await asyncio.gather(stop, *tasks, return_exceptions=True)
        for task in done:
            task.result()
        return stop not in done

    async def _save_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(SAVE_EVERY_S)
            if self._save_to is not None:
                await asyncio.to_thread(self.tables.save, self._save_to)

    async def _keep_beat(self) -> None:
        while True:
            self.beat.advance(self.now())
            delay = self.beat.next_at() - self.now()
            try:
                await asyncio.wait_for(self._wake.wait(), None if math.isinf(delay) else max(0.0, delay))
            except TimeoutError:
                pass
            self._wake.clear()

    async def _sample(self) -> None:
        period = min(self.profile.frame_budget_s / SAMPLES_PER_BUDGET, SLOWEST_SAMPLE_S)
        while self.beat.dead is None:
            try:
                snapshot = await self.engine.snapshot()
            except EngineDead as error:
                self._die(str(error))
                break
            self.beat.measure(snapshot, self.now(), self._to_run, self.engine.rss_bytes())
            for session in self.beat.stalled_under_another_bound():
                await self._past_the_chunks(session)
            await asyncio.sleep(period)
        await asyncio.Event().wait()

    def _hear(self, event) -> None:
        self.beat.hear(event, self._to_run(event.at))
        self._wake.set()

    def _die(self, reason: str) -> None:
        self.beat.die(reason, self.now())
        self._wake.set()

    def _to_run(self, at: float) -> float:
        return at - self._began_at

    def now(self) -> float:
        """Seconds since the run began."""
        return self._to_run(self.engine.now())

    def _from_outside(self, function: Callable, *args) -> None:
        self._loop.call_soon_threadsafe(function, *args)

    def _on_loop(self, function: Callable):
        """Run ``function`` on the beat's loop and return what it returns, whichever thread this is."""
        if threading.current_thread() is self._thread:
            return function()
        self._check_running()
        result: Future = Future()

        def call() -> None:
            try:
                result.set_result(function())
            except BaseException as error:  # noqa: BLE001, raised in the caller's thread
                result.set_exception(error)
            self._wake.set()

        self._from_outside(call)
        while True:
            try:
                return result.result(timeout=1.0)
            except TimeoutError:
                self._check_running()

    @property
    def running(self) -> bool:
        """Whether the beat is being kept: from the engine's start to the end of the manager."""
        return self._thread is not None and self._thread.is_alive() and not math.isinf(self._began_at)

    def _check_running(self) -> None:
        if not self.running:
            raise SessionError("the manager is not running: use it inside `with SessionManager(profile) as manager:`")

    # -- sessions ---------------------------------------------------------------------------------------------------

    def add(self, clip: Clip, bound: KVBound | None = None, *, start_s: float = 0.0, loop: bool = True) -> str:
        """Open a session that streams ``clip`` and return its name. ``bound`` None: unbounded, the stock scheduler.

        ``start_s``: where in the clip it begins, so that sessions on one clip stream distinct audio. ``loop``: play
        the clip again and again; otherwise the session ends with it. Raises BoundError, AudioError, FrontEndError,
        SessionError, EngineError; warns when the plateaus of the bounded sessions exceed the pool.
        """
        from workbench.frontends import make_frontend

        self._check_running()
        profile = self.profile
        stream = AudioStream(clip, profile.frame_budget_s, loop=loop, start_s=start_s)
        front_end = make_frontend(
            profile.front_end,
            vocab_size=self._vocab_size,
            clip=clip,
            frame_budget_s=profile.frame_budget_s,
            model_path=self._model,
            loop=loop,
            start_s=start_s,
        )
        if bound is not None:
            profile.check_bound(bound, front_end.most_tokens)

        def open_session() -> str:
            if self.beat.dead is not None:
                raise EngineError(f"engine died: {self.beat.dead}: start a new manager")
            if len(self.beat.sessions) >= profile.max_sessions:
                raise SessionError(f"{profile.max_sessions} sessions are open, the profile's max_sessions: close one")
            name = f"s{self._names}"
            self._names += 1
            self.front_ends = {n: f for n, f in self.front_ends.items() if n in self.beat.sessions}
            self.front_ends[name] = front_end
            self.beat.open(
                name,
                clip.name,
                lambda k: front_end.encode(stream.chunk(k), k),
                self.now(),
                bound=bound,
                stop_token_ids=front_end.stop_token_ids,
                frames_limit=stream.frames,
            )
            return name

        name = self._on_loop(open_session)
        self._warn_of_plateaus()
        return name

    def close_session(self, name: str) -> None:
        """End one session and give its blocks back. Raises SessionError on one that is not open."""
        self._on_loop(lambda: self._known(name) and self.beat.shut(name, self.now(), "closed"))

    def set_bound(self, bound: KVBound | None, name: str | None = None) -> None:
        """Switch the bound on, off or to other values, for one session or for all.

        It takes effect at the next frame; on a session whose chunk is unanswered past the wait cap, with the next
        sample of the pool.
        """
        if bound is not None:
            self.profile.check_bound(bound, self._most_tokens(list(self.front_ends) if name is None else [name]))

        def change() -> None:
            names = list(self.beat.sessions) if name is None else [name]
            for each in names:
                self._known(each)
            for each in names:
                self.beat.sessions[each].bound = bound

        self._on_loop(change)
        self._warn_of_plateaus()

    async def _past_the_chunks(self, session: Session) -> None:
        bound = session.bound
        try:
            # Until it is done at once the chunk may only be on its way into the engine: then it is asked again.
            if await self.engine.set_bound(session.name, bound) == "at once":
                session.served_bound = bound
        except EngineDead as error:
            self._die(str(error))

    def _known(self, name: str) -> bool:
        if name not in self.beat.sessions:
            raise SessionError(f"no open session {name!r}: open are {', '.join(self.beat.sessions) or 'none'}")
        return True

    def _warn_of_plateaus(self) -> None:
        bounded = {name: s.bound for name, s in list(self.beat.sessions.items()) if s.bound is not None}
        if not bounded:
            return
        warning = self.profile.plateau_warning(list(bounded.values()), self._most_tokens(bounded))
        if warning:
            warnings.warn(warning, stacklevel=3)

    def _most_tokens(self, names) -> int:
        """The most tokens that one frame of any of these sessions has; 1 where there is none of them."""
        return max((self.front_ends[name].most_tokens for name in names if name in self.front_ends), default=1)

    def _model_path(self) -> Path:
        from workbench.engine.host import model_folder

        return model_folder(self.profile.model, lambda message: None)

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
        self._check_running()
        ends = time.monotonic() + seconds
        while condition is None or not condition(self):
            if self.beat.dead is not None or time.monotonic() >= ends or not self._thread.is_alive():
                return condition is not None and condition(self)
            time.sleep(POLL_S)
        return True
