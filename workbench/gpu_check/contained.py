"""Run checks one after the other in a process beside this one, so that none keeps another from running.

A check that raises is a failed row. One that takes its process down, or does not end within its time, costs that
process: its engine's processes end with it, and the next check gets a new one. What a check leaves of its time the
later ones may use, so all together never take much longer than the sum of their budgets.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context

from workbench.engine.host import reap
from workbench.gpu_check.served import Setting
from workbench.gpu_check.table import FAILED, CheckFailed, Finding, Row, row_of

Say = Callable[[str], None]
LAST_WORDS_S = 10.0


@dataclass(frozen=True)
class Check:
    """``run(setting, say)`` returns rows; it and the setting travel to another process, so both can be pickled."""

    name: str
    budget_s: float
    looks_at: str
    run: Callable[[Setting, Say], list[Row]]


def run_checks(checks: Sequence[Check], setting: Setting, say: Say) -> Iterator[Finding]:
    """What each of ``checks`` found, in their order, as soon as it is known."""
    rest, spare, child = list(checks), 0.0, None
    try:
        while rest:
            began = time.monotonic()
            child = child or _Child(rest, setting)
            check = rest.pop(0)
            rows = child.rows(check, check.budget_s + spare, say)
            if child.gone or not rest:
                child.end(0.0 if child.gone else LAST_WORDS_S)
                child = None
            took = time.monotonic() - began
            spare = max(0.0, spare + check.budget_s - took)
            yield Finding(check.name, tuple(rows), took, check.budget_s)
    finally:
        if child is not None:
            child.end(0.0)


class _Child:
    """A process that runs ``checks``; ``gone``: it runs no more of them."""

    def __init__(self, checks: Sequence[Check], setting: Setting) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_serve, args=(list(checks), setting, theirs), name="gpu-check")
        self._process.start()
        theirs.close()
        self.gone = False

    def rows(self, check: Check, seconds: float, say: Say) -> list[Row]:
        ends_at = time.monotonic() + seconds
        while self._pipe.poll(max(0.0, ends_at - time.monotonic())):
            try:
                kind, value = self._pipe.recv()
            except EOFError:
                self._process.join(LAST_WORDS_S)
                return self._lost(f"its process ended with exit status {self._process.exitcode}")
            if kind == "rows":
                return value
            say(f"{check.name}: {value}")
        return self._lost(f"stopped after {seconds:.0f} s, all the time it had")

    def _lost(self, why: str) -> list[Row]:
        self.gone = True
        return [Row("", FAILED, why)]

    def end(self, patience_s: float) -> None:
        """Give it ``patience_s`` to end by itself; the process and all its own are gone when this returns."""
        import psutil

        self._process.join(patience_s)
        family = []
        if self._process.is_alive():
            with suppress(psutil.NoSuchProcess):
                family = psutil.Process(self._process.pid).children(recursive=True)
            self._process.kill()
        self._process.join()
        # They end when they notice that their parent is gone, and only then is the GPU's memory free again.
        reap(family)
        self._pipe.close()


def _serve(checks: list[Check], setting: Setting, pipe) -> None:
    # A Ctrl-C reaches the whole group; the process that was asked ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    for check in checks:
        try:
            rows = check.run(setting, lambda line: pipe.send(("said", line)))
            if not rows:
                raise CheckFailed("it looked at nothing")
        except Exception as error:  # noqa: BLE001
            # Whatever a check dies of is what it found.
            rows = [row_of(error)]
        pipe.send(("rows", rows))
