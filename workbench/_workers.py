"""Who computes points: this process, or processes of this machine. workbench._ray has the third."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from workbench._files import to_json
from workbench._terminal import speaks_for_itself


class WorkerError(RuntimeError):
    """A worker that died or could not be had; one line that says what to do."""


@dataclass(frozen=True)
class Outcome:
    """What became of a point: ``text``, what it returned as JSON, or the ``error`` that it raised."""

    text: str = ""
    error: Exception | None = None


class Workers(Protocol):
    def compute(self, function: Callable[..., Any], points: Sequence[dict]) -> Iterator[tuple[int, Outcome]]:
        """``function(**point)`` for each point: pairs of its number and its outcome, as they are finished.

        An error of a point is an outcome. Closed before its end, it gives up what is running. Raises WorkerError.
        """
        ...


class Here:
    """This process, one point after the other."""

    def compute(self, function, points):
        for i, point in enumerate(points):
            yield i, attempt(function, point)


class Local:
    """``count`` processes of this machine. They run no main module of the user's, no Ctrl-C of a terminal reaches them,
    and they end when this process does, however it ends."""

    def __init__(self, count: int) -> None:
        self.count = count

    def compute(self, function, points):
        from multiprocessing.connection import wait

        waiting = list(enumerate(points))[::-1]
        busy = {}
        hired = _hire(min(self.count, len(points)))
        try:
            for _, line in hired:
                busy[line] = _give(line, function, waiting.pop())
            dead = None
            while busy and dead is None:
                for line in wait(list(busy)):
                    number = busy.pop(line)
                    try:
                        outcome = line.recv()
                    except (EOFError, OSError):
                        dead = _died()  # told once the others' finished points are handed over
                        continue
                    yield number, outcome
                    if waiting:
                        busy[line] = _give(line, function, waiting.pop())
            if dead is not None:
                raise dead
        finally:
            # Also when interrupted: what is running is given up, not waited for.
            for process, line in hired:
                process.kill()
                line.close()
            for process, _ in hired:
                process.join()


def attempt(function: Callable[..., Any], point: dict) -> Outcome:
    """Call ``function`` with a point in whichever process this is."""
    try:
        return Outcome(text=to_json(function(**point)))
    except Exception as error:  # noqa: BLE001, whatever it is, it is told where the points are asked for
        return Outcome(error=_portable(error))


def _portable(error: Exception) -> Exception:
    """An error that reaches another process as what it is, or else one with its line; a fault brings its traceback."""
    trace = "".join(traceback.format_exception(error))
    own = speaks_for_itself(error)
    try:
        there = pickle.loads(pickle.dumps(error))
        same = type(there) is type(error) and str(there) == str(error)
    except Exception:  # noqa: BLE001, whatever the constructor of somebody's exception raises when pickle calls it
        same = False
    if not same:
        error = WorkerError(str(error)) if own else RuntimeError(f"{type(error).__name__}: {error}")
    if not own:
        error.add_note(f"where the point was computed:\n{trace}")
    return error


def _hire(count: int) -> list[tuple]:
    """Start worker processes: pairs of a process and this end of the line to it."""
    from multiprocessing import get_context

    from workbench.engine.child import PARENT_ENV
    from workbench.engine.spawn import engine_children

    spawn = get_context("spawn")
    hired = []
    # The threads of one process are enough: its neighbours have the other cores.
    with engine_children({PARENT_ENV: str(os.getpid()), "OMP_NUM_THREADS": "1"}):
        try:
            for _ in range(count):
                mine, its = spawn.Pipe()
                process = spawn.Process(target=_work, args=(its,), name="metronome-worker")
                process.start()
                hired.append((process, mine))
                # Of the worker alone from now on, so that its death is the end of the line.
                its.close()
        except BaseException:
            for process, _ in hired:
                process.kill()
            raise
    return hired


def _work(line) -> None:
    """The life of a worker: take a point, send its outcome, until the line ends."""
    with suppress(EOFError):
        while True:
            line.send(attempt(*line.recv()))


def _give(line, function, numbered) -> int:
    number, point = numbered
    try:
        line.send((function, point))
    except OSError:
        raise _died() from None
    return number


def _died() -> WorkerError:
    return WorkerError(
        "a worker process died, perhaps for want of memory: try fewer workers; what was kept is found again"
    )
