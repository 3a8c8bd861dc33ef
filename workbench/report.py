"""Notebooks in, a report out: each is executed by papermill and left with its page, its metrics and its tables.

    report = make_report(["01"], "smollm2", Path("reports"))
    print(report.ok, report.index)

A run leaves out/NOTEBOOK/ with the executed notebook, its HTML, what the notebook wrote (metrics.json, tables/) and
run.json; out/index.html lists every run that lies in ``out``.
"""

from __future__ import annotations

import ast
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench._execute import Limits, NotebookFailed, Step, execute, headings, one_line, silenced
from workbench._files import to_json
from workbench._html import in_words, index_page, notebook_page
from workbench._terminal import Bar
from workbench.profiles import load_profile

if TYPE_CHECKING:
    from workbench.experiments import Result

__all__ = [
    "NotebookRun",
    "Report",
    "ReportError",
    "Step",
    "find_notebooks",
    "in_words",
    "make_report",
    "save_result",
    "write_index",
]

CHECKOUT = Path(__file__).resolve().parents[1]
CELL_TIMEOUT_S = 1800.0
TIMEOUT_S = 3600.0
_RECORD = {"notebook": str, "title": str, "error": (str, type(None)), "started_at": str, "duration_s": (int, float)}


class ReportError(ValueError):
    """A report that cannot be made as asked; one line that says what to do."""


@dataclass(frozen=True)
class NotebookRun:
    """One notebook that was run. ``error``: None, or in one line what failed. ``metrics``: its metrics file."""

    notebook: str
    title: str
    error: str | None
    started_at: str
    duration_s: float
    folder: Path
    metrics: dict[str, Any] | None = None


@dataclass(frozen=True)
class Report:
    """What one call ran, in order, and the index of all that lies in the folder."""

    runs: tuple[NotebookRun, ...]
    index: Path

    @property
    def ok(self) -> bool:
        """Whether every notebook ran to its end and every claim held."""
        return not self.failures

    @property
    def failures(self) -> tuple[str, ...]:
        """A line for each notebook that failed, naming the cell and the error, or the claims."""
        return tuple(f"{run.notebook}: {run.error}" for run in self.runs if run.error is not None)


def make_report(
    notebooks: Sequence[str],
    profile: str,
    out: Path | None = None,
    full: bool = False,
    progress: Callable[[Step], None] | None = None,
    timeout_s: float = TIMEOUT_S,
    parameters: dict[str, Any] | None = None,
    *,
    cell_timeout_s: float = CELL_TIMEOUT_S,
    folder: Path | None = None,
) -> Report:
    """Run notebooks (names, prefixes or files; none means all of ``folder``) and write their report into ``out``.

    ``full``: the long form of each. ``parameters``: further values for the notebooks' parameters. ``timeout_s`` and
    ``cell_timeout_s``: the most seconds of a notebook and of a cell. ``progress`` is called at each step, instead of
    the bar on stderr. A notebook that fails is part of the report; what cannot be run at all raises ReportError, and
    a profile that does not exist ProfileError, before any runs.
    """
    load_profile(profile)
    # A kernel works in the folder of its notebook, where a relative path would lead elsewhere.
    profile = str(Path(profile).resolve()) if profile.endswith(".toml") else profile
    parameters, out = parameters or {}, Path(out or CHECKOUT / "reports")
    jobs = [_job(path, parameters) for path in find_notebooks(notebooks, folder)]
    _make_folder(out)
    _check_places([job.path for job in jobs], out)
    runs: list[NotebookRun] = []
    with _teller(progress) as tell:
        for job in jobs:
            values = {"profile": profile, "full": full, "out_dir": str((out / job.path.stem).resolve()), **parameters}
            values = {key: value for key, value in values.items() if key in job.parameters}
            try:
                runs.append(_run(job, out / job.path.stem, values, Limits(cell_timeout_s, timeout_s), tell))
            finally:
                index = write_index(out)
    return Report(tuple(runs), index)


def find_notebooks(names: Sequence[str] = (), folder: Path | None = None) -> list[Path]:
    """The notebook files that ``names`` mean, each once: a name with or without .ipynb, a prefix of one, or a file."""
    folder = CHECKOUT / "notebooks" if folder is None else Path(folder)
    there = {path.stem: path.resolve() for path in sorted(folder.glob("*.ipynb"))}
    found = []
    for name in names or there:
        stem = name.removesuffix(".ipynb")
        matches = [stem] if stem in there else [each for each in there if stem and each.startswith(stem)]
        if len(matches) == 1:
            found.append(there[matches[0]])
        elif name.endswith(".ipynb") and Path(name).is_file():
            found.append(Path(name).resolve())
        elif matches:
            raise ReportError(f"{name!r} may mean {', '.join(matches)}: write more of the name")
        elif there:
            raise ReportError(f"no notebook {name!r}: choose from {', '.join(there)}")
    if not found:
        raise ReportError(f"no notebooks in {folder}: run from a checkout, or name a notebook's file")
    return list(dict.fromkeys(found))


def save_result(result: Result, folder: Path | str) -> None:
    """What a notebook leaves for its report: metrics.json and tables/ in ``folder``, its parameter ``out_dir``."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.json").write_text(to_json(result.to_dict()), encoding="utf-8")
    result.save_tables(folder / "tables")


def write_index(out: Path) -> Path:
    """Rebuild out/index.html from the runs that lie in ``out`` and return its path."""
    runs = [_load(file.parent) for file in sorted(out.glob("*/run.json"))]
    part = out / ".index.html.part"
    part.write_text(index_page(runs), encoding="utf-8")
    return part.replace(out / "index.html")


# -- one notebook ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
    path: Path
    title: str
    parameters: frozenset[str]


def _job(path: Path, asked: dict[str, Any]) -> _Job:
    """What the file holds. ReportError when it is no notebook or has no parameter that is asked for."""
    import nbformat

    try:
        notebook = nbformat.read(path, as_version=4)
    except (OSError, ValueError, KeyError, AttributeError, nbformat.ValidationError) as error:
        raise ReportError(f"{path} cannot be read as a notebook: {one_line(str(error))}") from None
    parameters = _parameters(notebook, path)
    for key in asked:
        if key not in parameters:
            raise ReportError(f"{path.stem} has no parameter {key!r}: it has {', '.join(sorted(parameters)) or 'none'}")
    titles = [words for cell in notebook.cells if cell.cell_type == "markdown" for words in headings(cell.source)]
    return _Job(path, titles[0] if titles else path.stem, parameters)


def _parameters(notebook: Any, path: Path) -> frozenset[str]:
    tagged = [cell.source for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    try:
        lines = ast.parse("".join(tagged[:1])).body
    except SyntaxError as error:
        raise ReportError(f"the parameters cell of {path} is no Python: {one_line(str(error))}") from None
    targets = [each for line in lines if isinstance(line, ast.Assign) for each in line.targets]
    targets += [line.target for line in lines if isinstance(line, ast.AnnAssign)]
    return frozenset(each.id for each in targets if isinstance(each, ast.Name))


def _check_places(paths: list[Path], out: Path) -> None:
    places = [(out / path.stem / path.name).resolve() for path in paths]
    for path, place in zip(paths, places, strict=True):
        if place == path or places.count(place) > 1:
            raise ReportError(f"the report of {path} would be written over another file: give another folder or name")


def _run(job: _Job, folder: Path, values: dict[str, Any], limits: Limits, tell: Callable[[Step], None]) -> NotebookRun:
    _make_folder(folder)
    _clear(folder, job.path)
    started, began, error = datetime.now(UTC), time.monotonic(), "interrupted"
    try:
        execute(job.path, folder, values, limits, tell)
        error = _claims_that_failed(folder)
    except (NotebookFailed, ReportError) as failure:
        error = str(failure)
    finally:
        # Also after a Ctrl-C: what was there is cleared, so the index must not go on speaking of it.
        record = (job.path.stem, job.title, error, f"{started:%Y-%m-%d %H:%M} UTC", round(time.monotonic() - began, 1))
        (folder / "run.json").write_text(to_json(dict(zip(_RECORD, record, strict=True))), encoding="utf-8")
        _write_page(folder, job, error)
    return _load(folder)


def _claims_that_failed(folder: Path) -> str | None:
    failed = [claim["name"] for claim in (_metrics(folder) or {}).get("claims", []) if not claim["holds"]]
    return f"claims that failed: {'; '.join(failed)}" if failed else None


def _write_page(folder: Path, job: _Job, error: str | None) -> None:
    import nbformat

    executed = folder / job.path.name
    if executed.is_file():
        with silenced():
            page = notebook_page(nbformat.read(executed, as_version=4), job.title, error)
        executed.with_suffix(".html").write_text(page, encoding="utf-8")


def _clear(folder: Path, path: Path) -> None:
    """Take away what an earlier run left, so that nothing of it is read as this one's."""
    left = [folder / name for name in (path.name, f"{path.stem}.html", "metrics.json", "run.json", "kernel.log")]
    for file in (*left, *folder.glob("tables/**/*.parquet")):
        file.unlink(missing_ok=True)


def _load(folder: Path) -> NotebookRun:
    try:
        record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        _check(record, _RECORD, folder / "run.json")
        run = NotebookRun(**{key: record[key] for key in _RECORD}, folder=folder)
    except (OSError, ValueError) as error:
        return NotebookRun(folder.name, folder.name, f"run.json cannot be read: {one_line(str(error))}", "", 0, folder)
    try:
        return replace(run, metrics=_metrics(folder))
    except ReportError as error:
        return replace(run, error=run.error or str(error))


def _metrics(folder: Path) -> dict[str, Any] | None:
    """The metrics file that the notebook wrote; None without one. ReportError when it is not one."""
    file = folder / "metrics.json"
    if not file.is_file():
        return None
    try:
        metrics = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ReportError(f"metrics.json is no JSON: {one_line(str(error))}") from None
    _check(metrics, {"executor": str, "profile": str, "seed": int, "claims": list}, file)
    for claim in metrics["claims"]:
        _check(claim, {"name": str, "holds": bool}, file)
    return metrics


def _check(record: Any, keys: dict[str, Any], file: Path) -> None:
    for key, kind in keys.items():
        if not isinstance(record, dict) or not isinstance(record.get(key), kind):
            raise ReportError(f"{file.name} has no proper {key!r}")


# -- small things ------------------------------------------------------------------------------------------------------


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(f"cannot write a report into {folder}: {error.strerror}: give another folder") from None


@contextmanager
def _teller(progress: Callable[[Step], None] | None) -> Iterator[Callable[[Step], None]]:
    if progress is not None:
        yield progress
    else:
        with Bar() as bar:
            yield lambda step: bar(str(step), step.done / step.cells)
