"""What the tests of the live package share: a small simulated profile, engines that answer at once, and patience."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import replace

from tests.test_sessions import PROFILE, Fake
from workbench.engine import EngineError
from workbench.live.desk import STARTING
from workbench.live.hands import Hands
from workbench.profiles import load_profile

# The first engine of a process imports vLLM, which on a busy machine takes long.
PATIENCE_S = 180.0
ONE_LINE = r"^[^\n]+$"
# A card's costs in a pool that fills within some tens of frames.
FEW = load_profile("sim:minicpm-o-4.5@rtx-pro-6000").with_(
    name="sim:few",
    pool_blocks=400,
    max_model_len=3200,
    window=128,
    sessions=12,
    max_sessions=60,
    phase_groups=4,
)
TINY = PROFILE
BOUND = TINY.bound


class Ready(Fake):
    """In real time; answers every chunk at once and holds no block. ``dead`` set to a reason: it has died of it."""

    async def snapshot(self, sessions=None):
        return replace(await super().snapshot(sessions), free_blocks=TINY.pool_blocks)


class Broken(Ready):
    """Does not start, and says why in more lines than one."""

    async def start(self, progress=None):
        raise EngineError("no room\nfor a traceback")


def makers(*engines):
    """What makes these engines, one after the other. One that is an exception is raised instead."""
    coming = iter(engines)

    def make(profile):
        engine = next(coming)
        if isinstance(engine, Exception):
            raise engine
        return engine

    return make


def soon(condition) -> None:
    """Wait until it holds; it has to."""
    ends = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends, "it never came"
        time.sleep(0.005)


def live_threads() -> list[str]:
    """The threads of the live package that are running, and of the managers under it."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("metronome-")]


@contextmanager
def all_ended(make):
    """``make`` for a test; whatever it made is ended after it, and must leave no thread running."""
    before, made = live_threads(), []

    def making(*args, **how):
        made.append(make(*args, **how))
        return made[-1]

    yield making
    for each in made:
        each.end()
    soon(lambda: live_threads() == before)


def hands_of(folder):
    """What opens hands on these engines, or on the profile's own, with their tables in ``folder``."""

    def make(*engines, profile=TINY, **how):
        hands = Hands(profile, folder=folder, engine=makers(*engines) if engines else None, **how)
        soon(lambda: all(arm.desk.state != STARTING for arm in hands.live.arms))
        return hands

    return make


def ask(asked):
    """The answer, or the error, of what was asked of a desk or of hands."""
    return asked.result(PATIENCE_S)


@contextmanager
def busy(desk):
    """Keeps a desk from taking up what it is asked meanwhile: the gate it is to make takes that long."""
    begun, over = threading.Event(), threading.Event()

    def gate(sessions):
        begun.set()
        over.wait(PATIENCE_S)

    asked = desk.admit(gate)
    assert begun.wait(PATIENCE_S)
    yield
    over.set()
    ask(asked)


def kill(manager) -> None:
    """Let the engine of a simulated manager die with its next step."""
    manager.engine._executor.execute_model = None


def stepped(desk, seconds: float) -> None:
    """Let just so much virtual time pass on a desk, and wait for it."""
    ends = desk.manager.now() + seconds
    desk.pace.step(seconds)
    soon(lambda: desk.manager.now() >= ends - 1e-9)
