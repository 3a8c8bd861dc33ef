"""Text -> values: which kinds a parameter takes, and what each kind reads."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench._values import ValueRefused, kinds_of, parse, split_pairs


def plain(a: int | None, b: float = 1.0, c=None, d=3, e: list[int] | None = None, f=(1,)):
    """Annotations that are types, and defaults alone."""


def test_kinds_come_from_the_annotation_else_from_the_default():
    parameters = inspect.signature(plain).parameters
    as_types = inspect.Parameter("a", inspect.Parameter.KEYWORD_ONLY, annotation=int | None)
    assert kinds_of(parameters["a"]) == kinds_of(as_types) == ("int", "None")
    assert kinds_of(parameters["b"]) == ("float",)
    assert kinds_of(parameters["c"]) == ("None", "bool", "int", "float", "str")
    assert kinds_of(parameters["d"]) == ("int",)
    assert kinds_of(parameters["e"]) == kinds_of(parameters["f"]) == ()


def test_optional_reads_like_a_union():
    optional = inspect.Parameter("a", inspect.Parameter.KEYWORD_ONLY, annotation="Optional[int]")
    assert kinds_of(optional) == ("int", "None")


@given(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)))
def test_a_value_written_out_reads_back_as_itself(value):
    read = parse("x", str(value), ("None", "bool", "int", "float", "str"))
    assert read == value
    assert type(read) is type(value)


@given(st.text())
def test_any_text_is_a_text(text):
    assert parse("x", text, ("str",)) == text


def test_a_value_may_hold_an_equals_sign():
    assert split_pairs(["a=b=c"], "-p") == {"a": "b=c"}


def test_a_key_needs_a_name():
    with pytest.raises(ValueRefused):
        split_pairs(["=1"], "-p")
