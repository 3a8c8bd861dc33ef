"""Virtual time: it passes only while somebody waits, from one instant at which something happens to the next.

The order within an instant is fixed, so a run depends on its seed and on nothing else: first what the engine's step
that ends now has answered, then what falls due on the beat, then the sample of the pool, then the engine's next step.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from workbench.drive.base import Drive, SessionError
from workbench.engine import EngineError


class VirtualTime(Drive):
    """Drives an engine that has a virtual clock, in the thread of whoever waits; other threads take turns with it."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self._turn = threading.RLock()
        self._began = self._over = False
        self._samples = 0

    def start(self) -> None:
        with self._turn:
            if self._began:
                raise SessionError("this manager was started before: make a new one for a new run")
            self._began = True
            self.engine.on_events = lambda events: self.beat.hear_all(events, self.now())
            self.engine.on_dead = lambda reason: self.beat.die(reason, self.now())
            try:
                _finish(self.engine.start(self.progress))
            except BaseException:
                self._over = True
                raise
            self._began_at = self.engine.now()

    def close(self) -> None:
        with self._turn:
            if not self._began or self._over:
                return
            self._over = True
            try:
                for name in list(self.beat.sessions):
                    self.beat.shut(name, self.now(), "closed with the manager")
                if self.save_to is not None:
                    self.tables.save(self.save_to)
            finally:
                _finish(self.engine.stop())

    @property
    def running(self) -> bool:
        return self._began and not self._over and not math.isinf(self._began_at)

    def begin_again(self, beat, tables, save_to) -> None:
        super().begin_again(beat, tables, save_to)
        self._samples = 0

    def call(self, function: Callable):
        with self._turn:
            self.check_running()
            return function()

    def wait_for(self, condition: Callable[[], bool] | None, seconds: float) -> bool:
        """See Drive.wait_for; ``condition`` is looked at now and whenever the pool has been sampled."""
        self.check_running()
        ends = self.now() + seconds
        if condition is not None and condition():
            return True
        while self.running and self.beat.dead is None and self.now() < ends:
            # Between two instants other threads may have their turn: they open and close sessions meanwhile.
            with self._turn:
                sampled = self._next_instant(ends)
            if sampled and condition is not None and condition():
                return True
        return condition is not None and condition()

    def wait_until(self, at_s: float) -> None:
        self.wait_for(None, at_s - self.now())

    def _next_instant(self, limit_s: float) -> bool:
        """Go on to the next instant, ``limit_s`` at the latest, and do what is due; whether the pool was sampled."""
        sample_at = self._samples * self.sample_period_s
        # A step that runs holds the sample back, as a busy engine does; its end is an instant by itself.
        due = math.inf if self.engine.busy else sample_at
        now = max(self.now(), min(self.to_run(self.engine.next_at()), self.beat.next_at(), due, limit_s))
        if math.isinf(now):
            raise EngineError("nothing will happen any more: there is nothing to wait for")
        self.engine.clock.now = self._began_at + now
        self.engine.finish_step()
        self.beat.advance(now)
        sampled = not self.engine.busy and sample_at <= now
        if sampled:
            self._samples = math.floor(now / self.sample_period_s + 1e-9) + 1
            self._sample(now)
        self.engine.begin_step()
        return sampled

    def _sample(self, now: float) -> None:
        self.beat.measure(
            _finish(self.engine.snapshot(self.beat.unmeasured())), now, self.to_run, self.engine.rss_bytes()
        )
        for session in self.beat.stalled_under_another_bound():
            if _finish(self.engine.set_bound(session.name, session.bound)) == "at once":
                session.served_bound = session.bound


def _finish(coroutine):
    """Run a coroutine of a virtual engine, which never waits, to its end."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise RuntimeError(f"{coroutine.__qualname__} waited, where no time passes")
