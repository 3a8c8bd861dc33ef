"""Where a command writes: tried before a run is spent on it, then written as JSON that any reader takes."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STDOUT = "-"


class OutputError(ValueError):
    """A place that cannot be written; one line that names it and says why."""


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turn what goes wrong while ``place`` is written into an OutputError that names it."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {place}: {error.strerror or error}: choose another place") from None


def check_file(name: str | None) -> None:
    """Refuse a file that cannot be written and leave no trace; None and "-" (stdout) always can. Raises OutputError."""
    if name in (None, STDOUT):
        return
    path = Path(name)
    if path.exists() and not (path.is_file() or path.is_dir()):
        return  # a device or a pipe, where trying would already write
    made = not path.exists()
    with writing(path):
        path.open("ab").close()
    if made:
        path.unlink()


def check_folder(folder: Path | None) -> None:
    """Make a folder for results, and refuse one that cannot be written. None stays None. Raises OutputError."""
    if folder is None:
        return
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()


def write_json(name: str | None, value: Any) -> None:
    """``value`` as JSON into a file, on stdout for "-", nowhere for None. Raises OutputError."""
    if name == STDOUT:
        print(to_json(value))
    elif name is not None:
        with writing(Path(name)):
            Path(name).write_text(f"{to_json(value)}\n")


def to_json(value: Any) -> str:
    """JSON text. NaN and infinity, which JSON has no form for, become null; numpy's values become plain ones."""
    return json.dumps(_plain(value), indent=1, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
