"""Text from a command line -> the value that a parameter takes."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterable

_KINDS = ("None", "bool", "int", "float", "str")
_WORDS = {"true": True, "yes": True, "false": False, "no": False}
_NAMES = {
    "None": "none",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
}


class ValueRefused(ValueError):
    """Text that is no value of the kind asked for; one line that names both."""


def split_pairs(pairs: Iterable[str], option: str) -> dict[str, str]:
    """``key=value`` texts as a dict. ValueRefused for a text without = and for a key that comes twice."""
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not (key and equals):
            raise ValueRefused(f"{option} {pair}: give it as key=value")
        if key in values:
            raise ValueRefused(f"{option} {key} is given twice: give it once")
        values[key] = text
    return values


def kinds_of(parameter: inspect.Parameter) -> tuple[str, ...]:
    """What a parameter takes, of None, bool, int, float and str: by its annotation, else by its default.

    () for a parameter that takes something else, which no text can stand for.
    """
    annotation, default = parameter.annotation, parameter.default
    if annotation is not inspect.Parameter.empty:
        # With postponed annotations it is text already; a type reads the same once it is formatted.
        text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        kinds = tuple(part.strip() for part in re.sub(r"^(?:\w+\.)?Optional\[(.*)\]$", r"\1 | None", text).split("|"))
    elif default is None or default is inspect.Parameter.empty:
        kinds = _KINDS
    else:
        kinds = (type(default).__name__,)
    return kinds if set(kinds) <= set(_KINDS) else ()


def parse(label: str, text: str, kinds: tuple[str, ...]) -> None | bool | int | float | str:
    """``text`` as the first of ``kinds`` that it fits, str last. ValueRefused with ``label``, text and the kinds."""
    for kind in sorted(kinds, key=_KINDS.index):
        fits, value = _read(kind, text)
        if fits:
            return value
    if not kinds:
        raise ValueRefused(f"{label} cannot be given as text: set it from Python or a notebook")
    raise ValueRefused(f"{label} must be {' or '.join(_NAMES[kind] for kind in kinds)}, not {text!r}")


def _read(kind: str, text: str) -> tuple[bool, None | bool | int | float | str]:
    word = text.strip().lower()
    if kind == "None":
        return word == "none", None
    if kind == "bool":
        return word in _WORDS, _WORDS.get(word)
    if kind == "str":
        return True, text
    try:
        number = int(word) if kind == "int" else float(word)
    except ValueError:
        return False, None
    # Neither NaN nor infinity has a form in a JSON file, and no parameter has a use for them.
    return math.isfinite(number), number
