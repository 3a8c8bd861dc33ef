"""JSON values -> the frozen dataclasses they were written from, each refused by the name of its field."""

from __future__ import annotations

import math
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints


class RecordError(ValueError):
    """A value that is no such record; one line that names the field."""


def read(kind: Any, value: Any, label: str, hints: dict[str, Any] | None = None) -> Any:
    """``value``, as JSON gave it, as a ``kind``: a dataclass, a tuple or dict of one kind, a kind or None, or a plain
    type. ``label`` names it in a RecordError; ``hints`` replaces the kind of fields, by name. Numbers are finite.
    """
    hints = hints or {}
    if isinstance(kind, UnionType):
        return None if value is None else read(get_args(kind)[0], value, label, hints)
    if is_dataclass(kind):
        return _read_fields(kind, value, label, hints)
    outer, inner = get_origin(kind), get_args(kind)
    if outer is tuple and isinstance(value, list):
        kinds = inner[:1] * len(value) if inner[1:] == (...,) else inner
        if len(kinds) == len(value):
            return tuple(read(each, item, label, hints) for each, item in zip(kinds, value, strict=True))
    elif outer is dict and isinstance(value, dict):
        return {key: read(inner[1], item, f"{label} of {key}", hints) for key, item in value.items()}
    elif outer is None and _is_plain(kind, value):
        return value
    raise RecordError(f"{label} must be {getattr(kind, '__name__', kind) if outer is None else kind}, not {value!r}")


def _is_plain(kind: type, value: Any) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float)) and math.isfinite(value) if kind is float else isinstance(value, kind)


def _read_fields(kind: type, value: Any, label: str, hints: dict[str, Any]) -> Any:
    kinds = get_type_hints(kind)
    kinds |= {name: hint for name, hint in hints.items() if name in kinds}
    if not isinstance(value, dict):
        raise RecordError(f"{label} must hold {', '.join(kinds)}, and is {value!r}")
    if missing := [name for name in kinds if name not in value]:
        raise RecordError(f"{label} has no {', '.join(missing)}")
    return kind(**{name: read(each, value[name], name, hints) for name, each in kinds.items()})
