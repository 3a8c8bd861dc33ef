"""Bins: whatever their width has become, what is read of them is what a plain recomputation says."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.live.bins import Bins

WIDTH_S, MOST = 0.5, 6

# Times and values that floats hold exactly, so that sums are equal and not nearly so; in any order and far apart.
times = st.integers(-40, 4000).map(lambda eighth: eighth / 8)
samples = st.lists(st.tuples(times, st.integers(-1000, 1000)), max_size=80)


def filled(pairs, most=MOST):
    bins = Bins(WIDTH_S, most)
    for at_s, value in pairs:
        bins.add(at_s, value)
    return bins


def recomputed(pairs, width_s):
    """By the number of its bin: the samples of each, in the order in which they came."""
    content = {}
    for at_s, value in pairs:
        content.setdefault(math.floor(at_s / width_s), []).append((at_s, value))
    return [content[number] for number in sorted(content)]


def read(bins, first=0):
    return bins.times(first), bins.last(first), bins.mean(first), bins.most_of(first), bins.per_second(first)


@given(samples)
def test_whatever_the_width_every_reading_is_exact(pairs):
    bins = filled(pairs)
    content = recomputed(pairs, bins.width_s)
    # Of two samples at one instant the one that came later is the newest.
    newest = [max(enumerate(each), key=lambda n: (n[1][0], n[0]))[1] for each in content]
    values = [[value for _, value in each] for each in content]
    assert bins.times() == [at_s for at_s, _ in newest]
    assert bins.last() == [value for _, value in newest]
    assert bins.mean() == [sum(each) / len(each) for each in values]
    assert bins.most_of() == [max(each) for each in values]
    assert bins.per_second() == [sum(each) / bins.width_s for each in values]


@given(samples)
def test_there_are_never_more_bins_than_allowed(pairs):
    bins = Bins(WIDTH_S, MOST)
    for at_s, value in pairs:
        bins.add(at_s, value)
        assert len(bins) <= MOST


@given(samples)
def test_a_bin_is_no_wider_than_it_has_to_be(pairs):
    bins = filled(pairs)
    assert bins.width_s == WIDTH_S or len(recomputed(pairs, bins.width_s / 2)) > MOST


@given(samples, st.integers(0, MOST))
def test_reading_from_a_bin_on_is_the_end_of_reading_all(pairs, first):
    bins = filled(pairs)
    assert read(bins, first) == tuple(each[first:] for each in read(bins))


@given(st.lists(samples, max_size=8))
def test_changed_never_leaves_out_a_point_that_changed_and_says_it_once(rounds):
    bins, known = Bins(WIDTH_S, MOST), ((),) * 5
    for pairs in rounds:
        for at_s, value in pairs:
            bins.add(at_s, value)
        first, now = bins.changed(), read(bins)
        assert [each[:first] for each in now] == [list(each[:first]) for each in known]
        assert pairs or first == len(bins)
        assert bins.changed() == len(bins)
        known = now


@pytest.mark.parametrize(("at_s", "first"), [(2.7, 3), (2.2, 2), (0.1, 0), (-0.1, 0)])
def test_the_first_changed_point_is_that_of_the_sample(at_s, first):
    bins = filled([(0.0, 1), (1.0, 1), (2.0, 1)])
    bins.changed()
    bins.add(at_s, 5)
    assert bins.changed() == first


def test_a_late_sample_lands_in_its_bin_and_the_newest_stays_the_newest():
    bins = filled([(0.1, 4), (0.4, 2), (1.1, 8)])
    bins.add(0.2, 9)
    assert bins.times() == [0.4, 1.1] and bins.last() == [2, 8]
    assert bins.mean() == [5, 8] and bins.most_of() == [9, 8]


def test_a_late_sample_in_a_span_without_a_bin_makes_one_between():
    bins = filled([(0.0, 1), (2.0, 3)])
    bins.add(1.0, 2)
    assert bins.times() == [0.0, 1.0, 2.0] and bins.last() == [1, 2, 3]


def test_empty_bins_have_no_points_and_nothing_changed():
    bins = Bins(WIDTH_S)
    assert read(bins) == ([], [], [], [], []) and bins.changed() == len(bins) == 0


def test_a_run_of_a_day_takes_no_more_room_than_one_of_minutes():
    pairs = [(tick / 4, 1) for tick in range(4 * 24 * 3600)]
    bins = filled(pairs, most=300)
    assert 150 < len(bins) <= 300
    assert sum(bins.per_second()) * bins.width_s == len(pairs)
