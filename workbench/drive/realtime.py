"""Real time: the beat on a thread and loop of its own, so that neither a script nor a notebook waits for it."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from workbench.drive.base import Drive, SessionError
from workbench.engine import EngineDead, EngineError
from workbench.session import Session

SAVE_EVERY_S = 30.0
POLL_S = 0.02
FASTEST_SAMPLE_S = 0.05  # what is asked more often keeps an engine of short frames from serving them


class RealTime(Drive):
    """Drives an engine whose clock is the machine's. Every method may be called from any thread."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._wake: asyncio.Event | None = None
        self._stop: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self._starting = self._closing = False

    def start(self) -> None:
        if self._thread is not None:
            raise SessionError("this manager was started before: make a new one for a new run")
        ready: Future = Future()
        thread = threading.Thread(target=self._main, args=(ready,), name="metronome-beat", daemon=True)
        self._starting = True
        thread.start()
        # Only now: whoever closes it from another thread joins what is here.
        self._thread = thread
        if self._closing:
            # It was closed before there was a thread to join.
            self._tell_to_stop()
        try:
            ready.result()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        # For a loop that is not there yet, or a thread: both look at this once they are.
        self._closing = self._starting
        if self._thread is None:
            return
        self._tell_to_stop()
        self._thread.join()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _tell_to_stop(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(self._stop.set)
            except RuntimeError:
                pass  # the loop closed in between: the thread is ending by itself

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
        self._wake, self._stop = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if self._closing:
            self._stop.set()
        # Tables are pandas: its import holds the interpreter for longer than a short frame budget, so not on the beat.
        import pandas  # noqa: F401

        self.engine.on_event = self._hear
        self.engine.on_dead = self._die
        try:
            if not await self._first_of(self.engine.start(self.progress)):
                raise EngineError("the manager was closed while its engine started")
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
                if self.save_to is not None and ready.done():
                    self.tables.save(self.save_to)
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
            if self.save_to is not None:
                await asyncio.to_thread(self.tables.save, self.save_to)

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
        while self.beat.dead is None:
            beat = self.beat
            try:
                snapshot = await self.engine.snapshot(beat.unmeasured())
            except EngineDead as error:
                self._die(str(error))
                break
            if beat is not self.beat:
                # Of a run that has ended meanwhile: the new one's clock began after it.
                continue
            self.beat.measure(snapshot, self.now(), self.to_run, self.engine.rss_bytes())
            for session in self.beat.stalled_under_another_bound():
                await self._past_the_chunks(session)
            await asyncio.sleep(max(self.sample_period_s, FASTEST_SAMPLE_S))
        await asyncio.Event().wait()

    async def _past_the_chunks(self, session: Session) -> None:
        bound = session.bound
        try:
            # Until it is done at once the chunk may only be on its way into the engine: then it is asked again.
            if await self.engine.set_bound(session.name, bound) == "at once":
                session.served_bound = bound
        except EngineDead as error:
            self._die(str(error))

    def _hear(self, event) -> None:
        self.beat.hear(event, self.to_run(event.at))
        self._wake.set()

    def _die(self, reason: str) -> None:
        self.beat.die(reason, self.now())
        self._wake.set()

    def call(self, function: Callable):
        if threading.current_thread() is self._thread:
            return function()
        self.check_running()
        result: Future = Future()

        def run() -> None:
            try:
                result.set_result(function())
            except BaseException as error:  # noqa: BLE001, raised in the caller's thread
                result.set_exception(error)
            self._wake.set()

        self._loop.call_soon_threadsafe(run)
        while True:
            try:
                return result.result(timeout=1.0)
            except TimeoutError:
                self.check_running()

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and not math.isinf(self._began_at)

    def wait_for(self, condition: Callable[[], bool] | None, seconds: float) -> bool:
        self.check_running()
        ends = time.monotonic() + seconds
        while condition is None or not condition():
            if self.beat.dead is not None or time.monotonic() >= ends or not self._thread.is_alive():
                return condition is not None and condition()
            time.sleep(POLL_S)
        return True

    def wait_until(self, at_s: float) -> None:
        self.wait_for(None, max(0.0, at_s - self.now()))
