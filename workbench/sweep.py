"""An experiment at every point of a grid of parameters and seeds: kept as it goes, and one table of it all.

swept = sweep("cliff", load_profile("sim:moshi@rtx-pro-6000"), {"window": [512, 1024]}, seeds=range(5))
swept.frame()
"""

from __future__ import annotations

import itertools
import json
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench._files import to_json, writing
from workbench._terminal import speaks_for_itself
from workbench.experiments import Progress, experiment, parameters, takes_runs
from workbench.profiles import Profile
from workbench.runs import Runs

if TYPE_CHECKING:
    import pandas as pd

SEED = "seed"
BESIDE = ("executor", "holds", "error")  # columns between the grid and the metrics


class SweepError(ValueError):
    """A sweep that cannot be made as asked; one line that says what to do."""


@dataclass(frozen=True)
class Point:
    """One run of the experiment: its ``values`` of the grid and how they reach it, by profile and by parameter."""

    values: dict[str, Any]
    profile: Profile
    params: dict[str, Any]


@dataclass(frozen=True)
class Swept:
    """A point and what became of it: its metrics file as ``result``, or the ``error`` that ended it.

    ``trace`` is there where the error is a fault of the workbench.
    """

    values: dict[str, Any]
    result: dict[str, Any] | None = None
    error: str = ""
    trace: str = ""

    @property
    def failed_claims(self) -> list[dict[str, Any]]:
        return [] if self.result is None else [claim for claim in self.result["claims"] if not claim["holds"]]

    @property
    def holds(self) -> bool:
        return not self.error and not self.failed_claims


@dataclass(frozen=True)
class SweepResult:
    """All points of a sweep, in the order of its grid, the last key varying fastest."""

    experiment: str
    points: tuple[Swept, ...]

    @property
    def holds(self) -> bool:
        """Whether every point ran and all its claims held."""
        return all(point.holds for point in self.points)

    def failures(self) -> list[str]:
        """A line for each point that did not run and for each claim that did not hold."""
        lines = []
        for point in self.points:
            at = ", ".join(f"{key} {value}" for key, value in point.values.items())
            if point.error:
                lines.append(f"{at}: {point.error}")
            lines += [
                f"{at}: claim failed: {claim['name']}: {claim['value']}, where {claim['bound']}"
                for claim in point.failed_claims
            ]
        return lines

    def frame(self) -> pd.DataFrame:
        """A row for each point: its grid values, executor, holds, error, and every single value of its metrics.

        A metric in another is named with a dot; lists are left out, they are in the metrics files.
        """
        import pandas as pd

        rows = []
        for point in self.points:
            row = {**point.values, "executor": None, "holds": point.holds, "error": point.error}
            if point.result is not None:
                row["executor"] = point.result["executor"]
                for key, value in _singles(point.result["metrics"]):
                    row[f"metrics.{key}" if key in row else key] = value
            rows.append(row)
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        return {"experiment": self.experiment, "points": [asdict(point) for point in self.points]}

    def save(self, folder: Path) -> None:
        """Write sweep.json (every metrics file with its grid values) and sweep.csv (``frame``). Raises OutputError."""
        folder = Path(folder)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "sweep.json").write_text(f"{to_json(self.to_dict())}\n", encoding="utf-8")
            self.frame().to_csv(folder / "sweep.csv", index=False)


def grid_points(
    name: str,
    profile: Profile,
    grid: dict[str, Sequence[Any]],
    seeds: Sequence[int] | None = None,
    params: dict[str, Any] | None = None,
    full: bool = False,
) -> list[Point]:
    """The points of a sweep, each checked as far as its profile can tell.

    A key of the grid is a parameter of the experiment, or else a field of the profile. ``seeds`` are a key like any
    other, the last one. Raises SweepError, ProfileError, ExperimentError.
    """
    known, params = parameters(name), dict(params or {})
    axes = {**grid, **({} if seeds is None else {SEED: seeds})}
    if seeds is not None and SEED in grid:
        raise SweepError("the seeds are given twice: leave them out of the grid")
    if full and "full" not in known:
        raise SweepError(f"experiment {name} has one form only: leave out full")
    if full:
        params["full"] = True
    if not axes:
        raise SweepError(f"nothing to sweep over: give a grid or seeds, or use workbench run {name}")
    for key, values in axes.items():
        _check_axis(name, key, list(values), params)
    return [
        _point(profile, dict(zip(axes, values, strict=True)), known, params)
        for values in itertools.product(*axes.values())
    ]


def sweep(
    name: str,
    profile: Profile,
    grid: dict[str, Sequence[Any]] | None = None,
    seeds: Sequence[int] | None = None,
    params: dict[str, Any] | None = None,
    runs: Runs | None = None,
    full: bool = False,
    progress: Progress | None = None,
) -> SweepResult:
    """Run an experiment at each point of ``grid`` x ``seeds``, with ``params`` the same at all.

    ``runs`` computes and keeps the points, by default on all cores and without keeping them; what an experiment is made
    of is computed within its point. A claim that does not hold is a result, and an error of a point is one too: the
    others go on. Points of a real engine, which takes all cores, run one at a time.
    Raises SweepError, ProfileError, ExperimentError, RunsError, WorkerError.
    """
    points = grid_points(name, profile, grid or {}, seeds, params, full)
    calls = [{"name": name, "profile": point.profile, "params": point.params} for point in points]
    done = (runs or Runs()).map(
        one_point, calls, progress or (lambda message, fraction: None), instead=_failed, alone=real_engine(points)
    )
    return SweepResult(name, tuple(Swept(point.values, **one) for point, one in zip(points, done, strict=True)))


def real_engine(points: Sequence[Point]) -> bool:
    """Whether a real engine serves any of them, which takes all cores."""
    return any(point.profile.executor != "simulated" for point in points)


def one_point(name: str, profile: Profile, params: dict[str, Any]) -> dict[str, Any]:
    """Run an experiment and return its metrics file. Processes are no point's own: those are the sweep's."""
    made_of = {"runs": Runs(workers=1)} if takes_runs(name) else {}
    result = experiment(name)(profile, progress=lambda message, fraction: None, **made_of, **params)
    return {"result": json.loads(to_json(result.to_dict()))}


def _failed(error: Exception) -> dict[str, str]:
    if speaks_for_itself(error):
        return {"error": " ".join(str(error).split())}
    trace = "".join(traceback.format_exception(error))
    return {
        "error": f"{type(error).__name__}: {' '.join(str(error).split())} (a fault: its traceback is in the JSON)",
        "trace": trace,
    }


def check_key(name: str, key: str) -> None:
    """Refuse a key that neither the experiment nor the profile has. Raises SweepError."""
    known, own = parameters(name), [field.name for field in fields(Profile)]
    if key not in known and key not in own:
        raise SweepError(
            f"{key!r} is neither a parameter of {name} ({', '.join(known) or 'none'}) nor a field of the profile "
            f"({', '.join(own)})"
        )


def _check_axis(name: str, key: str, values: list[Any], params: dict[str, Any]) -> None:
    check_key(name, key)
    if key in params:
        raise SweepError(f"{key} is given twice, as a parameter and in the grid: give it once")
    if not values:
        raise SweepError(f"{key} has no values: give one or more")
    for i, value in enumerate(values):
        if value in values[:i]:
            raise SweepError(f"{key} {value} is given twice: give it once")


def _point(profile: Profile, values: dict[str, Any], known: dict[str, Any], params: dict[str, Any]) -> Point:
    changes = {key: value for key, value in values.items() if key not in known}
    given = {key: value for key, value in values.items() if key in known}
    return Point(values, profile.with_(**changes), {**params, **given})


def _singles(metrics: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values in nested metrics that are no lists, with their dotted names."""
    if isinstance(metrics, dict):
        for key, value in metrics.items():
            yield from _singles(value, f"{path}.{key}" if path else str(key))
    elif not isinstance(metrics, list):
        yield path, metrics
