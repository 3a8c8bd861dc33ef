"""What an engine process does before anything else. Run as the main module of each process that the engine spawns.

It writes to the engine's log instead of the user's screen, and it ends when its parent is gone: vLLM's children notice
a parent that exits in good order, but after a hard exit they lived on for minutes, holding the model's memory.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time

LOG_ENV = "METRONOME_ENGINE_LOG"
PARENT_ENV = "METRONOME_ENGINE_PARENT"
POLL_S = 1.0


def main() -> None:
    log = os.environ.get(LOG_ENV)
    if log:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.close(handle)
    parent = int(os.environ[PARENT_ENV])
    # This process is the parent of those that it spawns in turn.
    os.environ[PARENT_ENV] = str(os.getpid())
    threading.Thread(target=_end_after, args=(parent,), name="metronome-parent-watch", daemon=True).start()


def _end_after(parent: int) -> None:
    try:
        handle = os.pidfd_open(parent)
    except ProcessLookupError:
        pass
    except (AttributeError, OSError):
        # No such handle on this system. Whoever adopts this process when its parent goes is another.
        while os.getppid() == parent:
            time.sleep(POLL_S)
    else:
        # A parent that was gone before the handle was open has been replaced, and its number may be another's now.
        if os.getppid() == parent:
            select.select([handle], [], [])
    # A plain exit would wait for threads that wait for the parent.
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__mp_main__":
    main()
