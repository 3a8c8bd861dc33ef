"""N*: the search, what memory allows, and N sessions judged from their plateau on."""

from __future__ import annotations

import math

import pytest

from tests.test_simulated import BASE, Linear
from workbench.bound import KVBound
from workbench.engine.simulated import SimulatedEngine
from workbench.experiments import ExperimentError
from workbench.experiments._steady import burst, check_target, first_judged, largest, memory_ceiling, n_star, steady

BOUNDED = BASE.with_(window=64, sinks=16)


@pytest.fixture
def linear(monkeypatch):
    """Simulated engines with steps of round milliseconds, for whatever the search opens."""
    from workbench import sessions

    monkeypatch.setattr(sessions, "make_engine", lambda profile: SimulatedEngine(profile, costs=Linear()))


def quiet(message, fraction):
    pass


@pytest.mark.parametrize("truth", [0, 1, 2, 7, 40, 63, 64])
@pytest.mark.parametrize("guess", [0, 1, 8, 40, 64, 1000])
def test_the_search_finds_the_largest_that_holds_and_asks_no_n_twice(truth, guess):
    asked = []

    def holds(n):
        asked.append(n)
        return n <= truth

    assert largest(holds, 64, guess) == truth
    assert len(set(asked)) == len(asked) and all(1 <= n <= 64 for n in asked)
    assert len(asked) <= 2 * math.log2(64) + 2


@pytest.mark.parametrize("truth", [0, 1, 150, 390, 400])
def test_a_search_within_a_part_is_never_too_large_and_asks_less(truth):
    asked = []

    def holds(n):
        asked.append(n)
        return n <= truth

    found = largest(holds, 400, 390, within=0.05)
    exact = len(asked)
    assert truth * 0.95 - 1 <= found <= truth
    asked.clear()
    assert largest(holds, 400, 390) == truth and len(asked) >= exact


def test_the_memory_ceiling_counts_plateaus_at_their_most():
    # 16 sinks + 64 of window + 29 of growth + 15 not yet a whole block: 124 tokens, 8 blocks of 16.
    assert memory_ceiling(BOUNDED, KVBound(64, 16)) == 200 // 8


@pytest.mark.parametrize("target", [0.0, -1.0, 0.8, math.nan])
def test_a_target_that_means_nothing_is_refused(target):
    with pytest.raises(ExperimentError, match="wait cap"):
        check_target(BOUNDED, target)


def test_steady_sessions_are_judged_on_their_plateau_alone(linear):
    seen = steady(BOUNDED, 4, 10, quiet)
    assert (seen.executor, seen.n, seen.frames, seen.capped, seen.empty) == ("simulated", 4, 40, 0, 0)
    # One step prefills 4 x 26 tokens, three more decode; all four sessions fall due together.
    assert seen.latency_p99_s == pytest.approx(0.010 + 4 * 0.026 + 3 * (0.010 + 0.008))
    assert first_judged(BOUNDED) == math.ceil((16 + 64 + 16) / 29)
    assert 4 * 5 / 200 < seen.plateau_usage <= 4 * 8 / 200


def test_n_star_is_the_last_n_within_the_target(linear):
    # 10 + 26 N + 30 + 6 N milliseconds within 300: N = 8.
    found, points = n_star(BOUNDED, 0.15, 10, quiet, guess=10)
    assert found == 8
    by_n = {point.n: point for point in points}
    assert by_n[8].holds(0.3) and not by_n[9].holds(0.3)
    # A run that is lost is given up, and one that holds is not.
    assert by_n[8].frames == 80 and by_n[9].frames < 90


def test_n_star_ends_at_the_memory_where_steps_are_fast(monkeypatch):
    from workbench import sessions

    class Fast(Linear):
        def step_s(self, *load):
            return 1e-4

    monkeypatch.setattr(sessions, "make_engine", lambda profile: SimulatedEngine(profile, costs=Fast()))
    found, points = n_star(BOUNDED, 0.15, 10, quiet)
    ceiling = memory_ceiling(BOUNDED, BOUNDED.bound)
    assert ceiling <= found <= ceiling * 8 / 6
    assert all(point.holds(0.3) == (point.n <= found) for point in points)


SLOW_FILL = BOUNDED.with_(front_end="load:1", tokens_owed=1, phase_groups=4)


def test_a_prompt_puts_a_session_on_its_plateau_at_once(linear):
    late, soon = (steady(SLOW_FILL, 12, 20, quiet, prompted=prompted) for prompted in (False, True))
    assert first_judged(SLOW_FILL) == 96
    assert (soon.frames, soon.capped, soon.empty, soon.refused) == (240, 0, 0, False)
    assert soon.latency_p99_s == pytest.approx(late.latency_p99_s)
    assert soon.latency_p50_s == pytest.approx(late.latency_p50_s)
    assert soon.plateau_usage == pytest.approx(late.plateau_usage, rel=0.03)


def test_the_work_that_prompts_leave_is_not_judged(linear):
    # 15 prompts of 80 tokens and more keep the engine busy for most of a budget, beside the frames.
    seen = steady(BOUNDED.with_(pool_blocks=400), 15, 10, quiet, prompted=True)
    assert (seen.frames, seen.capped) == (150, 0)
    assert seen.latency_p99_s == pytest.approx(0.010 + 15 * 0.026 + 3 * (0.010 + 0.030))


@pytest.mark.parametrize("profile", [BOUNDED, SLOW_FILL])
def test_prompts_that_find_no_room_are_given_up(linear, profile):
    n = memory_ceiling(profile, profile.bound) + 8
    seen = steady(profile, n, 20, quiet, 1.0, prompted=True)
    assert seen.refused and not seen.holds(1.0) and seen.frames < 20 * n


def test_the_same_n_holds_with_prompts(linear):
    assert steady(BOUNDED, 8, 10, quiet, 0.3, prompted=True).holds(0.3)
    assert not steady(BOUNDED, 9, 10, quiet, 0.3, prompted=True).holds(0.3)


def test_a_burst_is_judged_from_its_first_frame_on(linear):
    # 10 frames of 29 tokens are 19 blocks; ten sessions fit into 200.
    fits, spills = (burst(BOUNDED, n, 10, quiet) for n in (10, 11))
    assert (fits.frames, fits.capped, fits.refused) == (100, 0, False)
    assert spills.capped > 0 and spills.refused


def test_sessions_that_end_before_they_are_judged_are_no_answer(linear):
    with pytest.raises(ExperimentError, match="ended before they were judged"):
        steady(BOUNDED.with_(max_positions=BOUNDED.max_model_len), 2, 120, quiet)
