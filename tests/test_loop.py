"""A coroutine run to its end from plain code: its value and its errors come back, and an interrupt ends it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading

import pytest

from workbench._loop import run_to_end


class Coroutine:
    """What is run, and where it ran."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.put_away = False

    async def gives(self, value):
        self.thread = threading.current_thread()
        await asyncio.sleep(0)
        return value

    async def fails(self, error):
        self.thread = threading.current_thread()
        await asyncio.sleep(0)
        raise error


def within_a_loop(call):
    """What ``call`` returns, called as a notebook's cell is: on a loop that runs."""

    async def cell():
        return call()

    # Not asyncio.run, which would take the interrupt that a notebook's kernel leaves to the cell.
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(cell())
    finally:
        loop.close()


def plainly(call):
    return call()


ways = pytest.mark.parametrize("way", [plainly, within_a_loop])


@ways
def test_what_it_returns_comes_back(way):
    ran = Coroutine()
    assert way(lambda: run_to_end(ran.gives("a value"))) == "a value"
    assert (ran.thread is threading.main_thread()) == (way is plainly)


@ways
def test_what_it_raises_comes_back(way):
    class Odd(Exception):
        pass

    ran, error = Coroutine(), Odd("as it was")
    with pytest.raises(Odd) as caught:
        way(lambda: run_to_end(ran.fails(error)))
    assert caught.value is error and ran.thread is not None


@ways
def test_one_after_another(way):
    ran = Coroutine()
    assert [way(lambda k=k: run_to_end(ran.gives(k))) for k in range(3)] == [0, 1, 2]


def test_the_loop_that_runs_goes_on_with_its_own_afterwards():
    async def cell():
        loop, ran = asyncio.get_running_loop(), Coroutine()
        value = run_to_end(ran.gives(1))
        await asyncio.sleep(0)
        return value, asyncio.get_running_loop() is loop

    loop = asyncio.new_event_loop()
    try:
        assert loop.run_until_complete(cell()) == (1, True)
    finally:
        loop.close()


def waits(thread: int) -> bool:
    """Whether a thread is where it waits for what runs elsewhere."""
    frame = sys._current_frames()[thread]
    while frame is not None and frame.f_code is not threading.Event.wait.__code__:
        frame = frame.f_back
    return frame is not None


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs a signal to the main thread")
@pytest.mark.timeout(60)
def test_an_interrupt_in_the_thread_that_waits_cancels_it_and_its_end_is_waited_for():
    ran, main = Coroutine(), threading.main_thread().ident

    async def serves():
        try:
            while not waits(main):
                await asyncio.sleep(0)
            signal.pthread_kill(main, signal.SIGINT)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ran.thread = threading.current_thread()
            raise
        finally:
            # What has to be put away takes turns of the loop, as an engine's stop does.
            for _ in range(100):
                await asyncio.sleep(0)
            ran.put_away = True

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            within_a_loop(lambda: run_to_end(serves()))
    finally:
        signal.signal(signal.SIGINT, before)
    assert ran.put_away and ran.thread is not threading.main_thread()


INTERRUPTED = """
import asyncio, os, signal
from workbench._loop import run_to_end

async def serves():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        print("put away", flush=True)

try:
    run_to_end(serves())
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_without_a_loop_cancels_it_too():
    # In a process of its own: the interrupt goes to whichever thread waits there, and none of pytest's.
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split("\n")) == (0, ["put away", "interrupted", ""]), done.stderr
