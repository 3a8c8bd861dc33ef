"""Admission: this input, that cap; what is shed and why; and the gate in front of a manager."""

from __future__ import annotations

import math

import pytest

from tests.test_simulated import BASE, Linear
from workbench.admission import AdmissionError, Aimd, FixedCap, Gate, Gradient2, Headroom, Interval
from workbench.bound import KVBound
from workbench.engine.simulated import SimulatedEngine
from workbench.sessions import SessionManager

GOOD, SLOW = (0.1,) * 100, (0.1,) * 90 + (0.7,) * 10


def seen(sessions, latencies=GOOD, **more):
    return Interval(10.0, sessions, latencies, **more)


# -- AIMD --------------------------------------------------------------------------------------------------------------


def test_aimd_rises_by_its_step_while_it_is_pressed_and_falls_by_its_factor():
    controller, caps = Aimd(0.6, step=2, factor=0.9, start=10), []
    for interval in (seen(10), seen(12), seen(14, SLOW), seen(12), seen(12)):
        controller.update(interval)
        caps.append(controller.cap)
    # 14 -> floor(12.6); pressed at 12 it rises again.
    assert caps == [12, 14, 12, 14, 14]


def test_aimd_takes_a_step_that_is_no_whole_number():
    controller = Aimd(0.6, step=0.5, start=1)
    caps = []
    for _ in range(5):
        controller.update(seen(5))
        caps.append(controller.cap)
    assert caps == [1, 2, 2, 3, 3]


def test_a_cap_does_not_rise_while_fewer_are_offered_than_it_allows():
    controller = Aimd(0.6, start=10)
    for _ in range(5):
        controller.update(seen(9))
    assert controller.cap == 10
    controller.update(seen(9, shed=1))
    assert controller.cap == 11


def test_a_failure_is_no_latency_sample_and_lowers_the_cap():
    # Frames that return empty at a wall are on time: their latency, read as a sample, would be a good one.
    controller = Aimd(0.6, start=10)
    controller.update(seen(10, GOOD, failures=1))
    assert controller.cap == 9
    controller = Aimd(0.6, start=10)
    controller.update(seen(10, (), failures=50))
    assert controller.cap == 9


def test_one_congestion_lowers_the_cap_once():
    controller = Aimd(0.6, start=10)
    caps = []
    for sessions in (10, 10, 9, 9):
        controller.update(seen(sessions, SLOW))
        caps.append(controller.cap)
    # In the third interval the load comes down to the cap, and its frames tell of both loads.
    assert caps == [9, 9, 9, 8]


def test_a_cap_far_above_the_load_comes_down_to_it():
    controller = Aimd(0.6, start=500)
    controller.update(seen(100, SLOW))
    assert controller.cap == 90


def test_aimd_keeps_its_cap_when_nothing_was_heard_and_never_goes_below_one():
    controller = Aimd(0.6, start=1)
    controller.update(seen(1, (), shed=3))
    assert controller.cap == 1
    for _ in range(3):
        controller.update(seen(1, SLOW))
        assert controller.cap == 1


def test_aimds_quantile_says_which_latency_counts():
    strict, median = Aimd(0.6, start=10, quantile=0.99), Aimd(0.6, start=10, quantile=0.5)
    for controller in (strict, median):
        controller.update(seen(10, SLOW))
    assert (strict.cap, median.cap) == (9, 11)


# -- Gradient2 ---------------------------------------------------------------------------------------------------------


def test_gradient2_grows_by_its_queue_while_latency_is_what_it_was():
    controller = Gradient2(start=20)
    controller.update(seen(20))
    # (1 - 0.2) 20 + 0.2 (1 x 20 + 4)
    assert controller._cap == pytest.approx(20.8)


def test_gradient2_falls_by_the_gradient():
    controller = Gradient2(start=20, tolerance=1.0, long=600)
    controller.update(seen(20, (0.1,)))
    before = controller._cap
    controller.update(seen(30, (0.4,)))
    long_s = 0.1 + 0.3 * 2 / 601
    gradient = max(0.5, long_s / 0.4)
    assert controller._cap == pytest.approx(0.8 * before + 0.2 * (gradient * before + 4))


def test_gradient2_takes_a_failure_for_the_worst_gradient():
    controller = Gradient2(start=40)
    controller.update(seen(40, GOOD, failures=1))
    assert controller._cap == pytest.approx(0.8 * 40 + 0.2 * (20 + 4))
    silent = Gradient2(start=40)
    silent.update(seen(40, (), failures=9))
    assert silent._cap == controller._cap


def test_gradient2_forgets_an_overload():
    controller = Gradient2(start=10, long=1)
    controller.update(seen(10, (1.0,)))
    assert controller._long_s == 1.0
    controller = Gradient2(start=10, long=600)
    controller.update(seen(10, (1.0,)))
    controller.update(seen(10, (0.1,)))
    assert controller._long_s == pytest.approx(0.95 * (1.0 - 0.9 * 2 / 601))


def test_gradient2_does_not_rise_without_pressure():
    controller = Gradient2(start=20)
    controller.update(seen(19))
    assert controller.cap == 20
    controller.update(seen(3, SLOW, failures=1))
    assert controller.cap == 20, "below half of the cap nothing is learned of it"


# -- fixed cap and headroom --------------------------------------------------------------------------------------------


def test_a_fixed_cap_stays():
    controller = FixedCap(7)
    controller.update(seen(7, SLOW, failures=9))
    assert controller.cap == 7


def headroom(**options):
    return Headroom(Aimd(0.6, start=100), **{"horizon_s": 300.0, **options})


def test_headroom_lets_in_as_many_as_the_pool_holds_for_the_horizon():
    controller = headroom()
    # 50 sessions fill the pool in 240 s: 40 would hold it for 300.
    controller.update(seen(50, t_full_s=250.0))
    assert controller.cap == 40
    controller.update(seen(40, t_full_s=10.0 + 600.0))
    assert controller.cap == 80
    controller.update(seen(40, t_full_s=5.0))
    assert controller.cap == 0


def test_headroom_obeys_latency_too():
    controller = headroom()
    controller.update(seen(100, SLOW, t_full_s=1e6))
    assert controller.cap == 90


def test_headroom_does_not_count_what_memory_forbids_as_tried():
    controller = headroom()
    controller.update(seen(50, t_full_s=250.0))
    for _ in range(5):
        controller.update(seen(40, shed=3, t_full_s=310.0))
    assert controller.latency.cap == 100
    controller.update(seen(40, SLOW, t_full_s=310.0, failures=1))
    assert controller.latency.cap == 36


def test_headroom_keeps_to_the_ceiling_where_there_is_no_forecast():
    controller = headroom(ceiling=30)
    assert controller.cap == 30
    controller.update(seen(30))
    assert controller.cap == 30
    assert headroom().cap == 100


@pytest.mark.parametrize(
    "make",
    [
        lambda: Aimd(0.0),
        lambda: Aimd(math.nan),
        lambda: Aimd(math.inf),
        lambda: Aimd(0.6, step=0),
        lambda: Aimd(0.6, factor=1.0),
        lambda: Aimd(0.6, start=0),
        lambda: Aimd(0.6, start=1.5),
        lambda: Aimd(0.6, quantile=math.nan),
        lambda: FixedCap(0),
        lambda: FixedCap(True),
        lambda: Gradient2(tolerance=-1),
        lambda: Gradient2(smoothing=0),
        lambda: Gradient2(queue=0),
        lambda: headroom(horizon_s=0),
        lambda: headroom(ceiling=-1),
        lambda: Gate(FixedCap(1), 0.0),
    ],
)
def test_what_makes_no_controller_is_refused_in_one_line(make):
    with pytest.raises(AdmissionError) as error:
        make()
    assert "\n" not in str(error.value)


# -- the gate ----------------------------------------------------------------------------------------------------------


class Recorder(FixedCap):
    def __init__(self, cap):
        super().__init__(cap)
        self.seen = []

    def update(self, seen):
        self.seen.append(seen)


def gated(controller, profile=BASE):
    return SessionManager(
        profile, engine=SimulatedEngine(profile, costs=Linear()), gate=Gate(controller, profile.frame_budget_s)
    )


def test_what_is_shed_is_in_the_sessions_table_with_its_reason():
    with gated(FixedCap(2)) as manager:
        names = [manager.offer(None) for _ in range(4)]
        assert names == ["s0", "s1", None, None]
        manager.wait_for(seconds=3.0)
        manager.close_session("s0")
        assert manager.offer(None) == "s4"
        # Whoever is added by hand comes in.
        assert manager.add(None) == "s5"
        manager.wait_for(seconds=5.0)
    sessions = manager.sessions().set_index("session")
    assert sessions.loc[["s2", "s3"], "reason"].tolist() == ["shed: 2 sessions open, admission cap 2 (fixed)"] * 2
    assert sessions.loc["s2", "opened_at_s"] != sessions.loc["s2", "opened_at_s"], "never opened"
    assert sessions.loc["s2", "ended_at_s"] == sessions.loc["s2", "offered_at_s"]
    assert (manager.beat.gate.shed, len(manager.frames()["session"].unique())) == (2, 4)
    assert (manager.pool()["admission_cap"] == 2).all()


def test_max_sessions_sheds_an_offer_too():
    with gated(FixedCap(100), BASE.with_(max_sessions=8)) as manager:
        assert [manager.offer(None) for _ in range(9)].count(None) == 1
    assert manager.sessions()["reason"].iloc[-1] == "shed: 8 sessions open, the profile's max_sessions"
    assert manager.beat.gate.shed == 1


def test_an_interval_holds_what_returned_in_it():
    controller = Recorder(3)
    with gated(controller) as manager:
        for _ in range(4):
            manager.offer(None)
        manager.wait_for(seconds=20.0)
    # The first frame is due at 2 s; from then on each interval of one budget has one of each session.
    whole = [s for s in controller.seen if s.latencies_s]
    assert {len(s.latencies_s) for s in whole} == {3}
    assert {s.sessions for s in whole} == {3} and all(s.failures == 0 for s in whole)
    assert [s.shed for s in controller.seen][:2] == [1, 0]
    assert [b.at_s - a.at_s for a, b in zip(controller.seen, controller.seen[1:], strict=False)] == pytest.approx(
        [2.0] * (len(controller.seen) - 1)
    )
    assert whole[-1].t_full_s == pytest.approx(manager.pool()["t_full_predicted_s"].iloc[-1])


def test_capped_and_empty_frames_reach_the_controller_as_failures():
    controller = Recorder(64)
    slow = SimulatedEngine(BASE, costs=Linear(t0=1.0))
    with SessionManager(BASE, engine=slow, gate=Gate(controller, 2.0)) as manager:
        for _ in range(4):
            manager.offer(None)
        manager.wait_for(seconds=30.0)
    frames = manager.frames()
    failed = frames["capped"] | (frames["empty"] & (frames["status"] == "on_time"))
    assert failed.any()
    heard = sum(s.failures for s in controller.seen)
    assert failed.sum() - 4 <= heard <= failed.sum()
    good = [latency for s in controller.seen for latency in s.latencies_s]
    assert not good or max(good) < 0.8 * 2.0


def test_a_forecast_is_heard_of_unbounded_sessions_alone():
    for bound, there in ((None, True), (KVBound(64, 16), False)):
        controller = Recorder(4)
        with gated(controller) as manager:
            for _ in range(4):
                manager.offer(None, bound)
            manager.wait_for(seconds=20.0)
        assert (controller.seen[-1].t_full_s is not None) is there
