"""Start the engine's processes from any thread of any program: a script without a main guard, a notebook, a test."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from multiprocessing import resource_tracker, spawn

from workbench.engine import child

# What is changed here belongs to the whole process: two engines start one after the other.
_one_at_a_time = threading.Lock()


@contextmanager
def engine_children(environment: dict[str, str]):
    """Within this context processes that *this thread* spawns are engine processes.

    Their main module is ``child``, not the user's (which would open the engine again); they never see the Ctrl-C that
    a terminal or Jupyter sends to the whole process group; they inherit ``environment``, which is taken back after.
    """
    with _one_at_a_time:
        yield from _engine_children(environment)


def _engine_children(environment: dict[str, str]):
    owner, stock = threading.get_ident(), spawn.get_preparation_data

    def preparation_with_child(name: str) -> dict:
        data = stock(name)
        if threading.get_ident() == owner:
            data.pop("init_main_from_name", None)
            data["init_main_from_path"] = child.__file__
        return data

    # Starting the tracker unblocks the signal again, so it has to run by now.
    resource_tracker.ensure_running()
    before = {key: os.environ.get(key) for key in (*environment, "LD_PRELOAD")}
    # A blocked signal stays blocked in a child across exec, from its first instruction on.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    spawn.get_preparation_data = preparation_with_child
    os.environ.update(environment)
    try:
        yield
    finally:
        spawn.get_preparation_data = stock
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
