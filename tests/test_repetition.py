"""Distinct n-grams and loops, against counts made by hand and against slow code that says what they are."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.quality.repetition import Loop, RepetitionError, distinct, distinct_of_pieces, longest_loop, loops, onset

few_tokens = st.integers(0, 2)
# Pieces said over and over, with something or nothing between: random tokens alone would hardly ever loop.
said_again = st.builds(lambda piece, times: piece * times, st.lists(few_tokens, max_size=5), st.integers(1, 6))
texts = st.lists(said_again, max_size=5).map(lambda pieces: [*chain(*pieces)][:80])
limits = st.tuples(st.integers(1, 9), st.integers(2, 4), st.integers(1, 12))


def slow_loops(tokens, most_period, least_times, least_tokens):
    """Every stretch of the text in turn: does it repeat, can it be longer, does it lie within another?"""

    def repeats(start, end, period):
        inside = 0 <= start and end <= len(tokens)
        return inside and all(tokens[i] == tokens[i - period] for i in range(start + period, end))

    runs = [
        (start, end, period)
        for period in range(1, most_period + 1)
        for start in range(len(tokens))
        for end in range(start + max(least_times * period, least_tokens), len(tokens) + 1)
        if repeats(start, end, period) and not repeats(start - 1, end, period) and not repeats(start, end + 1, period)
    ]

    def within(run, other):
        same = run[:2] == other[:2]
        return other[2] < run[2] if same else other[0] <= run[0] and run[1] <= other[1]

    kept = [run for run in runs if not any(within(run, other) for other in runs)]
    return [Loop(start, end - start, period) for start, end, period in sorted(kept)]


def test_distinct_is_the_share_of_n_grams_not_said_before():
    tokens = [1, 2, 1, 2, 3]  # 12 21 12 23
    assert [distinct(tokens, n) for n in (1, 2, 3, 5)] == [3 / 5, 3 / 4, 1, 1]
    assert distinct([7] * 10, 2) == 1 / 9
    assert distinct(tokens, 6) is None and distinct([], 1) is None


@given(st.lists(few_tokens, max_size=30), st.integers(1, 4))
def test_distinct_counts_the_n_grams_that_no_earlier_one_equals(tokens, n):
    grams = [tokens[i : i + n] for i in range(len(tokens) - n + 1)]
    new = sum(gram not in grams[:i] for i, gram in enumerate(grams))
    assert distinct(tokens, n) == (new / len(grams) if grams else None)
    assert distinct(np.array(tokens, dtype=np.int32), n) == distinct(tokens, n)


def test_only_whole_pieces_count_and_no_n_gram_crosses_from_one_to_the_next():
    tokens = [1, 1, 1, 1, 2, 3, 4, 5, 1, 1, 1]
    assert distinct_of_pieces(tokens, 2, 4) == [1 / 3, 1.0]
    assert distinct_of_pieces(tokens[:8], 2, 4) == [1 / 3, 1.0]
    assert distinct_of_pieces(tokens[:3], 2, 4) == []
    assert distinct_of_pieces([1, 2, 1, 2], 2, 2) == [1.0, 1.0]


def test_the_share_of_distinct_n_grams_falls_with_length_and_not_from_piece_to_piece():
    tokens = np.random.default_rng(0).integers(0, 50, 4000)
    pieces = distinct_of_pieces(tokens, 2, 500)
    assert len(pieces) == 8 and max(pieces) - min(pieces) < 0.1
    assert distinct(tokens, 2) < min(pieces) - 0.2


def test_a_loop_has_its_start_its_length_and_its_smallest_period():
    before, after = list(range(100, 150)), list(range(200, 220))
    tokens = [*before, *[1, 2, 3] * 20, 1, *after]
    assert loops(tokens) == [Loop(start=50, length=61, period=3)]
    assert loops(before + after) == loops([]) == []


def test_a_loop_is_said_often_enough_and_is_long_enough():
    assert loops([1] * 31) == [] and loops([1] * 32) == [Loop(0, 32, 1)]
    piece = list(range(20))
    assert loops(piece * 2 + piece[:19]) == [] and loops(piece * 3) == [Loop(0, 60, 20)]
    assert loops(piece * 3, least_times=4) == [] and loops(piece * 2, least_times=2) == [Loop(0, 40, 20)]
    assert loops([1] * 5, least_tokens=5) == [Loop(0, 5, 1)]
    assert loops([*range(64)] * 3) == [Loop(0, 192, 64)] and loops([*range(65)] * 3) == []
    assert loops([*range(65)] * 3, most_period=65) == [Loop(0, 195, 65)]


def test_a_loop_within_each_turn_of_a_longer_one_is_left_out():
    assert loops(([1] * 40 + [2]) * 3) == [Loop(0, 123, 41)]
    # Said only twice the longer one is none, and those within it are what is left.
    assert loops(([1] * 40 + [2]) * 2) == [Loop(0, 40, 1), Loop(41, 40, 1)]


def test_one_loop_that_goes_over_into_another_leaves_two():
    tokens = [1] * 40 + [2, 1] * 30
    assert loops(tokens) == [Loop(0, 40, 1), Loop(39, 61, 2)]
    assert longest_loop(tokens) == Loop(39, 61, 2) and onset(tokens) == 0


@given(texts, limits)
def test_loops_are_those_that_trying_every_stretch_finds(tokens, limits):
    found = loops(tokens, *limits)
    assert found == slow_loops(tokens, *limits) == loops(np.array(tokens, dtype=np.uint16), *limits)
    assert onset(tokens, *limits) == min((loop.start for loop in found), default=None)
    longest = longest_loop(tokens, *limits)
    assert (longest is None) == (not found) and all(longest.length >= loop.length for loop in found)


@given(texts, limits)
def test_loops_share_fewer_tokens_than_the_sum_of_their_periods(tokens, limits):
    found = loops(tokens, *limits)
    for i, first in enumerate(found):
        for second in found[i + 1 :]:
            assert first.start + first.length - second.start < first.period + second.period


def test_of_loops_as_long_the_longest_is_the_first():
    assert longest_loop([1] * 40 + [2] * 40) == Loop(0, 40, 1)
    assert longest_loop([1, 2, 3]) is None and onset([1, 2, 3]) is None


def test_a_loop_late_in_a_long_text_is_found_where_it_was_put():
    noise = np.random.default_rng(1).integers(0, 50_000, 5000)
    turn = np.arange(60_000, 60_037)
    tokens = np.concatenate([noise[:4321], np.tile(turn, 5), noise[4321:]])
    assert loops(tokens) == [Loop(4321, 5 * 37, 37)]
    assert onset(tokens.tolist()) == 4321


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (lambda: distinct([1, 2], 0), "n must be 1 or more, not 0"),
        (lambda: distinct_of_pieces([1, 2], 0, 3), "n must be 1 or more, not 0"),
        (lambda: distinct_of_pieces([1, 2], 3, 2), "3-gram, must be 3 or more, not 2"),
        (lambda: loops([1], most_period=0), "most_period must be 1 or more"),
        (lambda: onset([1], least_times=1), "least_times must be 2 or more"),
        (lambda: longest_loop([1], least_tokens=0), "least_tokens must be 1 or more"),
        (lambda: loops([0.5, 1.5]), "flat sequence of integers, not 1-dimensional float64"),
        (lambda: distinct([[1, 2], [3, 4]], 1), "flat sequence of integers, not 2-dimensional"),
        (lambda: distinct("abc", 1), "flat sequence of integers, not 0-dimensional"),
    ],
)
def test_what_cannot_be_counted_is_refused_in_a_line(refused, said):
    with pytest.raises(RepetitionError, match=said) as error:
        refused()
    assert "\n" not in str(error.value)
