"""Wilson's interval, against numbers worked out by hand and against what it promises."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest

from workbench.wilson import wilson


def test_its_ends_are_where_the_observed_share_is_z_deviations_away():
    # By definition: |p - end| = z sqrt(end (1 - end) / n).
    for hits, trials in ((4, 10), (14, 20), (1, 200), (19, 20)):
        p = hits / trials
        for end in wilson(hits, trials):
            assert abs(p - end) == pytest.approx(1.96 * math.sqrt(end * (1 - end) / trials))


def test_none_and_all_of_the_trials_leave_one_end_open():
    # With no hit the other end is z^2 / (n + z^2).
    assert wilson(0, 20) == (0.0, pytest.approx(1.96**2 / (20 + 1.96**2)))
    assert wilson(10, 10) == (pytest.approx(10 / (10 + 1.96**2)), 1.0)
    assert all(wilson(0, n)[0] == 0 and wilson(n, n)[1] == 1 for n in range(1, 300))
    assert wilson(0, 200)[1] < 0.02 < wilson(0, 20)[1]


def test_hits_and_misses_mirror_each_other_and_more_trials_narrow_it():
    low, high = wilson(4, 10)
    assert wilson(6, 10) == (pytest.approx(1 - high), pytest.approx(1 - low))
    assert wilson(40, 100)[1] - wilson(40, 100)[0] < (high - low) / 2


def test_another_z_is_another_interval():
    z = NormalDist().inv_cdf(0.995)
    assert wilson(4, 10, z)[0] < wilson(4, 10)[0] < wilson(4, 10)[1] < wilson(4, 10, z)[1]


@pytest.mark.parametrize(("hits", "trials"), [(-1, 10), (11, 10), (0, 0)])
def test_what_is_no_share_is_refused(hits, trials):
    with pytest.raises(ValueError, match="hits"):
        wilson(hits, trials)
