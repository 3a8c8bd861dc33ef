"""Many runs: computed on all cores or on a Ray cluster, each kept as soon as it is finished, and found again.

    runs = Runs(Path("reports/points"))
    results = runs.map(work, [{"profile": profile, "seed": seed} for seed in range(20)], say)

A point is what one call of a function gets, as a dict. What it returns is kept as JSON under a name made of the
function and the point, in a folder of this version of the source: another version of the code computes it again.
Folders of other versions go when nobody has used them for some weeks.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from workbench._files import check_folder, to_json, writing
from workbench._workers import Here, Local, Workers
from workbench.experiments import Progress

CHECKOUT = Path(__file__).resolve().parents[1]
UNUSED_DAYS = 21
_NOTHING = object()


class RunsError(ValueError):
    """Points that cannot be computed as asked; one line that says what to do."""


class Runs:
    """Where points are computed, and where they are kept.

    ``folder``: finished points are kept there and found again; None: neither. ``workers``: processes, by default one
    for each core; 1 computes in this process. ``ray``: the address of a Ray cluster that computes instead, "local" for
    one of ``workers`` that is started for the purpose; on one that is joined, ``workers`` is the most points at a time,
    by default as many as it has room for. ``fresh``: points that were kept are computed again.
    ``reused`` and ``computed`` count the points that were found and those that were not.
    Raises RunsError, WorkerError.
    """

    def __init__(
        self, folder: Path | None = None, workers: int | None = None, ray: str | None = None, fresh: bool = False
    ) -> None:
        if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
            raise RunsError(f"workers must be a whole number from 1 on, not {workers!r}")
        if ray is not None:
            from workbench._ray import check_ray

            check_ray(ray)
        self.folder = None if folder is None else Path(folder)
        self.workers, self.ray, self.fresh = workers, ray, fresh
        self.reused = self.computed = 0
        self._mine: set[str] = set()

    def map(
        self,
        function: Callable[..., Any],
        points: Sequence[dict[str, Any]],
        say: Progress,
        instead: Callable[[Exception], Any] | None = None,
        alone: bool = False,
    ) -> list[Any]:
        """``function(**point)`` for each point, in their order; a point that comes twice is computed once.

        ``function`` is one of a module and returns what JSON can say (NaN becomes None). Interrupted, or stopped by an
        error, the finished points are kept. ``instead`` turns an error of a point into its result, which is not kept.
        ``alone``: one point at a time and in this process, for those that need all of the machine.
        Raises what ``function`` raises, RunsError, WorkerError, OutputError.
        """
        _check(function)
        if alone and self.ray is not None:
            raise RunsError("a real engine serves on this machine alone: leave out --ray, or take a sim: profile")
        names = [_name(function, point) for point in points]
        first: dict[str, int] = {}
        for i, name in enumerate(names):
            first.setdefault(name, i)
        kept = self._open()
        results = {name: found for name in first if (found := self._find(kept, name)) is not _NOTHING}
        self.reused += len(results)
        left = [name for name in first if name not in results]
        reused = f", {len(results)} found" if results else ""
        say(f"0 of {len(left)} points{reused}", 0.0 if left else 1.0)
        workers = Here() if alone else self._workers(len(left))
        with closing(workers.compute(function, [points[first[name]] for name in left])) as outcomes:
            for done, (which, outcome) in enumerate(outcomes, 1):
                name = left[which]
                if outcome.error is not None:
                    if instead is None:
                        raise outcome.error
                    results[name] = instead(outcome.error)
                else:
                    # As whoever finds it again reads it.
                    results[name] = json.loads(outcome.text)
                    _keep(kept, name, function, points[first[name]], results[name])
                    self._mine.add(name)
                self.computed += 1
                say(f"{done} of {len(left)} points{reused}", done / len(left))
        return [results[name] for name in names]

    def found(self) -> str:
        """One line on the points that were not computed, or nothing."""
        if not self.reused:
            return ""
        return f"{self.reused} of {self.reused + self.computed} points were found in {self.folder}"

    def _workers(self, count: int) -> Workers:
        if self.ray is not None and count:
            from workbench._ray import OnRay

            return OnRay(self.ray, self.workers)
        workers = min(self.workers or os.cpu_count() or 1, count)
        return Local(workers) if workers > 1 else Here()

    def _open(self) -> Path | None:
        """The folder of this version of the source, made and marked as used; those long unused are removed."""
        if self.folder is None:
            return None
        mine = self.folder / f"code-{code_version()[:12]}"
        check_folder(mine)
        os.utime(mine)
        _forget(self.folder)
        return mine

    def _find(self, kept: Path | None, name: str) -> Any:
        if kept is None or (self.fresh and name not in self._mine):
            return _NOTHING
        try:
            return json.loads((kept / f"{name}.json").read_text(encoding="utf-8"))["result"]
        except (OSError, ValueError, KeyError, TypeError):
            return _NOTHING  # not there, half a file, or somebody else's: computed again and written over


@cache
def code_version() -> str:
    """A hash of the source that a result hangs on: both packages, and with them the version of vLLM that they take."""
    digest = hashlib.sha256()
    for package in ("workbench", "kernels_patch"):
        for file in sorted((CHECKOUT / package).rglob("*")):
            if file.suffix in (".py", ".toml"):
                digest.update(f"{file.relative_to(CHECKOUT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def _check(function: Callable[..., Any]) -> None:
    """Other processes, and a name that is found again, need a function that can be imported."""
    name = f"{function.__module__}.{function.__qualname__}"
    if function.__module__ == "__main__" or "<" in name:
        raise RunsError(f"{name} cannot be imported by a worker: put the function into a module")


def _name(function: Callable[..., Any], point: dict[str, Any]) -> str:
    named = {"function": f"{function.__module__}.{function.__qualname__}", "point": point}
    key = hashlib.sha256(json.dumps(named, sort_keys=True, default=_plain).encode()).hexdigest()[:24]
    return f"{function.__module__.rpartition('.')[2]}-{key}"


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        plain = {"": type(value).__qualname__, **{field.name: getattr(value, field.name) for field in fields(value)}}
        return plain | _calibration(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise RunsError(f"a point cannot hold {value!r}: give plain values and dataclasses of them")


def _calibration(value: Any) -> dict[str, str]:
    """What a profile without a hardware card hangs on beside its fields: the calibration that is saved for it."""
    from workbench.costs import calibration_path
    from workbench.profiles import SIMULATED, Profile
    from workbench.simulation import ANY_MACHINE

    if not isinstance(value, Profile) or value.hardware:
        return {}
    named = value.calibration not in ("", ANY_MACHINE)
    path = Path(value.calibration) if named else calibration_path(value.name.removeprefix(SIMULATED))
    return {"calibrated": hashlib.sha256(path.read_bytes()).hexdigest()} if path.is_file() else {}


def _keep(kept: Path | None, name: str, function: Callable[..., Any], point: dict[str, Any], result: Any) -> None:
    if kept is None:
        return
    plain = json.loads(json.dumps(point, default=_plain))
    with writing(kept):
        # Of this process alone until it is whole: another may be writing the same point.
        part = kept / f"{name}.{uuid.uuid4().hex}.part"
        part.write_text(to_json({"function": function.__qualname__, "point": plain, "result": result}), "utf-8")
        part.replace(kept / f"{name}.json")


def _forget(folder: Path) -> None:
    """Remove the points of other versions of the source that were not used for UNUSED_DAYS."""
    for old in folder.glob("code-*"):
        if re.fullmatch(r"code-[0-9a-f]{12}", old.name) and time.time() - old.stat().st_mtime > UNUSED_DAYS * 86400:
            # Another process may be removing it too.
            shutil.rmtree(old, ignore_errors=True)
