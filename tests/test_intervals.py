"""The bootstrap over seeds: against every draw there is, and against what an interval promises."""

from __future__ import annotations

import math
from itertools import chain, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.quality.intervals import Interval, IntervalError, bootstrap, paired

values = st.floats(-100, 100)
by_seeds = st.lists(st.lists(values, max_size=5), max_size=6)
LEVELS = (0.5, 0.8, 0.95)


def covered(seeds, level, trials=400, each=4):
    """Share of trials whose interval holds the true mean, 0: the values of a seed lie close about one of its own."""
    rng, held = np.random.default_rng(seeds), 0
    for trial in range(trials):
        own = rng.normal(0, 1, (seeds, 1))
        interval = bootstrap(own + rng.normal(0, 0.2, (seeds, each)), seed=trial, level=level, draws=400)
        held += interval.low <= 0 <= interval.high
    return held / trials


def test_the_interval_is_that_of_all_ways_to_draw_the_seeds():
    by_seed = [[1.0, 2.0, 6.0], [10.0], [4.0, 0.0]]
    drawn = [[*chain(*(by_seed[k] for k in ways))] for ways in product(range(3), repeat=3)]
    exact = np.quantile([np.mean(each) for each in drawn], (0.1, 0.9))
    interval = bootstrap(by_seed, seed=0, level=0.8, draws=20_000)
    assert interval == Interval(23 / 6, pytest.approx(exact[0]), pytest.approx(exact[1]), seeds=3)


@settings(deadline=None)
@given(by_seeds, st.integers(0, 2**40))
def test_the_mean_is_that_of_all_values_and_the_ends_lie_among_the_means_of_seeds(by_seed, seed):
    pooled, means = [*chain(*by_seed)], [np.mean(each) for each in by_seed if each]
    interval = bootstrap(by_seed, seed=seed, draws=100)
    if not pooled:
        assert interval is None
        return
    assert interval.mean == pytest.approx(np.mean(pooled), abs=1e-9) and interval.seeds == len(means)
    assert min(means) - 1e-9 <= interval.low <= interval.high <= max(means) + 1e-9
    assert bootstrap(by_seed, seed=seed, draws=100) == interval
    assert bootstrap([[], *by_seed, []], seed=seed, draws=100) == interval


@given(st.lists(values, min_size=1, max_size=20), st.sampled_from(LEVELS))
def test_one_seed_has_no_width_however_many_values_it_has(of_seed, level):
    interval = bootstrap([of_seed], seed=3, level=level, draws=50)
    assert interval.low == interval.high == interval.mean and interval.seeds == 1


def test_another_seed_draws_others_and_a_higher_level_is_wider():
    by_seed = np.random.default_rng(5).normal(0, 1, (8, 3))
    assert bootstrap(by_seed, seed=1) != bootstrap(by_seed, seed=2)
    inner, middle, outer = (bootstrap(by_seed, seed=1, level=level) for level in LEVELS)
    assert outer.low < middle.low < inner.low < inner.high < middle.high < outer.high


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_over_many_seeds_the_interval_holds_the_mean_about_as_often_as_it_says(level):
    # Were values drawn and not seeds, it would be half as wide and hold the mean far less often.
    assert level - 0.06 <= covered(30, level) <= level + 0.04


def test_over_three_seeds_it_holds_the_mean_about_three_times_in_four():
    assert 0.67 <= covered(3, 0.95) <= 0.81


def test_pairs_lose_what_their_seeds_have_in_common():
    rng = np.random.default_rng(7)
    common = [rng.normal(0, 10, 1) + rng.normal(0, 1, count) for count in (3, 5, 1, 4, 6, 2)]
    a, b = ([each + off + rng.normal(0, 0.01, len(each)) for each in common] for off in (0.5, 0.0))
    difference, alone = paired(a, b, seed=0), bootstrap(a, seed=0)
    assert 0 < difference.low < 0.5 < difference.high < 1 < alone.high - alone.low
    assert difference.high - difference.low < 0.05 and difference.seeds == 6
    turned = paired(b, a, seed=0)
    expected = (-difference.mean, -difference.high, -difference.low)
    assert (turned.mean, turned.low, turned.high) == pytest.approx(expected)


@settings(deadline=None)
@given(by_seeds, st.sampled_from(LEVELS))
def test_paired_is_the_bootstrap_of_the_differences(a, level):
    b = [[value / 2 - 1 for value in each] for each in a]
    differences = [[x - y for x, y in zip(*pair, strict=True)] for pair in zip(a, b, strict=True)]
    assert paired(a, b, seed=9, level=level, draws=60) == bootstrap(differences, seed=9, level=level, draws=60)


NO_FINITE = ([[1.0], [2.0, math.nan]], [[1.0], [2.0, math.inf]], [[1.0], [2.0, None]])


@pytest.mark.parametrize("by_seed", NO_FINITE)
def test_a_value_that_is_not_finite_is_refused_by_its_place(by_seed):
    finite = [[1.0], [2.0, 3.0]]
    for refused in (
        lambda: bootstrap(by_seed, seed=0),
        lambda: paired(by_seed, finite, seed=0),
        lambda: paired(finite, by_seed, seed=0),
        lambda: paired(by_seed, by_seed, seed=0),
    ):
        with pytest.raises(IntervalError, match="value 1 of seed 1 is (nan|inf): leave out"):
            refused()


@pytest.mark.parametrize(
    ("by_seed", "asked", "said"),
    [
        ([[1.0]], {"level": 0.0}, "level must lie between 0 and 1, such as 0.95, not 0.0"),
        ([[1.0]], {"level": 1.0}, "level must lie between"),
        ([[1.0]], {"level": 95}, "level must lie between"),
        ([], {"level": math.nan}, "level must lie between"),
        ([[1.0]], {"draws": 0}, "draws must be 1 or more, not 0"),
        ([[1.0]], {"seed": -1}, "seed must be 0 or more, not -1"),
        ([[1.0], ["much"]], {}, "seed 1 has a value that is no number"),
        ([1.0, 2.0], {}, "a sequence of values for each seed, not 1.0 for seed 0"),
    ],
)
def test_what_has_no_interval_is_refused_in_a_line(by_seed, asked, said):
    for refused in (bootstrap, lambda by_seed, **asked: paired(by_seed, by_seed, **asked)):
        with pytest.raises(IntervalError, match=said) as error:
            refused(by_seed, **{"seed": 0, **asked})
        assert "\n" not in str(error.value)


def test_what_does_not_pair_is_refused():
    with pytest.raises(IntervalError, match="1 and 2 seeds do not pair"):
        paired([[1.0]], [[1.0], [2.0]], seed=0)
    with pytest.raises(IntervalError, match="seed 1 has 1 and 2 values"):
        paired([[1.0], [2.0]], [[1.0], [2.0, 3.0]], seed=0)
