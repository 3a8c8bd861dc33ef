"""What a process does that is told to end while engines are up: it ends them and saves the tables, then goes.

A Jupyter server gives a kernel that is restarted or shut down a few seconds, and then sends it SIGTERM, which by
default ends it on the spot: on a busy machine before its tables are on disk.
"""

from __future__ import annotations

import os
import signal
import threading
import weakref
from typing import Protocol


class _Ends(Protocol):
    def end(self) -> None: ...


_open: weakref.WeakSet[_Ends] = weakref.WeakSet()


def end_when_told(what: _Ends) -> None:
    """Let ``what.end()`` run before a SIGTERM ends this process.

    Where the program has a handler of its own, or this is not its main thread, the signal stays as it is.
    """
    _open.add(what)
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _told)


def _told(signum, frame) -> None:
    # The next one ends this process: it is sent when all is saved, or by somebody who does not want to wait for that.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Not here: whatever this interrupts may hold a lock that the ending needs.
    threading.Thread(target=_end_and_go, name="metronome-ending").start()


def _end_and_go() -> None:
    try:
        for what in list(_open):
            what.end()
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
