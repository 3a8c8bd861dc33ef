"""Points on a Ray cluster: one that runs already, or one started on this machine for the purpose."""

from __future__ import annotations

import logging
import os
import pickle
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from workbench._workers import WorkerError

LOCAL, AUTO = "local", "auto"
# Ray gives its own processes half a minute, which is not enough on a machine that is busy with something else.
STARTS = 3
REACHED_WITHIN_S = 10.0
# Points and results are small; by default Ray takes a third of the memory for them.
STORE_BYTES = 128 * 2**20
NEEDS = "a cluster needs the same metronome-workbench installed on each of its machines"


def check_ray(address: str) -> None:
    """Refuse an address that is none, and a machine without Ray. Raises WorkerError."""
    if address not in (LOCAL, AUTO) and not re.fullmatch(r"[^\s:/]+:\d{1,5}", address):
        raise WorkerError(f"no Ray cluster {address!r}: give {LOCAL}, {AUTO} or HOST:PORT")
    if find_spec("ray") is None:
        raise WorkerError("Ray is not installed: run pip install 'metronome-workbench[ray]', or leave out --ray")


class OnRay:
    """The cluster at ``address``, at most ``count`` points at a time. One that was joined before is used."""

    def __init__(self, address: str, count: int | None) -> None:
        self.address, self.count = address, count

    def compute(self, function, points):
        from workbench.runs import code_version

        with _joined(self.address, self.count) as ray:
            # Within this method, for then Ray sends it whole and does not ask for this module before versions are told.
            @ray.remote(num_cpus=1)
            def there(code, packed):
                import pickle

                from workbench import runs

                if runs.code_version() != code:
                    return None
                from workbench._workers import attempt

                return attempt(*pickle.loads(packed))

            waiting = list(enumerate(points))[::-1]
            running = {}
            try:
                while waiting or running:
                    while waiting and (self.count is None or len(running) < self.count):
                        number, point = waiting.pop()
                        running[there.remote(code_version(), pickle.dumps((function, point)))] = number
                    # Never without a limit: that wait would not let a Ctrl-C through.
                    for done in ray.wait(list(running), timeout=1.0)[0]:
                        yield running.pop(done), _outcome(ray, done)
            finally:
                for task in running:
                    ray.cancel(task, force=True)


def _outcome(ray, done):
    try:
        outcome = ray.get(done)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, ModuleNotFoundError):
            raise WorkerError(f"a Ray worker has no package {cause.name}: {NEEDS}") from None
        raise WorkerError(f"Ray lost a point: {_line(error)}; what was finished and kept is found again") from None
    if outcome is None:
        raise WorkerError(f"a Ray worker has another version of the workbench: {NEEDS}")
    return outcome


@contextmanager
def _joined(address: str, count: int | None) -> Iterator:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Otherwise Ray says what it will do about GPUs one day.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        yield ray
        return
    try:
        _start(ray, count) if address == LOCAL else _join(ray, address)
        yield ray
    finally:
        ray.shutdown()


QUIET = {"log_to_driver": False, "logging_level": logging.ERROR}


def _start(ray, count: int | None) -> None:
    for left in reversed(range(STARTS)):
        try:
            ray.init(
                address=LOCAL,
                num_cpus=count or os.cpu_count() or 1,
                num_gpus=0,
                include_dashboard=False,
                object_store_memory=STORE_BYTES,
                **QUIET,
            )
            return
        except Exception as error:  # noqa: BLE001, Ray raises nothing narrower when its processes are not up in time
            ray.shutdown()
            if not left:
                raise WorkerError(
                    f"Ray did not start in {STARTS} tries ({_line(error)}): leave out --ray to use this machine's cores"
                ) from None


def _join(ray, address: str) -> None:
    if address != AUTO:
        # Ray itself would try for minutes.
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), REACHED_WITHIN_S).close()
        except (OSError, OverflowError) as error:
            raise WorkerError(
                f"no Ray cluster answers at {address} ({error}): start one with ray start --head"
            ) from None
    try:
        ray.init(address=address, **QUIET)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise WorkerError(f"cannot join the Ray cluster {address}: {_line(error)}") from None


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
