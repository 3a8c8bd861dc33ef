"""The admission experiment: what it finds on a small open system, what it counts, and what it refuses."""

from __future__ import annotations

import math

import pytest

from tests.test_simulated import BASE, Linear
from workbench.engine.simulated import SimulatedEngine
from workbench.experiments import ExperimentError, admission, profile_of
from workbench.experiments._open_system import Arm, found, serve, turning_points
from workbench.profiles import ProfileError, load_profile

SMALL = BASE.with_(window=64, sinks=16, pool_blocks=400, max_model_len=6400, max_sessions=50, phase_groups=4)


@pytest.fixture(scope="module")
def linear():
    """Simulated engines with steps of round milliseconds, for whatever the experiment opens."""
    from workbench import sessions

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "make_engine", lambda profile: SimulatedEngine(profile, costs=Linear()))
        yield


@pytest.fixture(scope="module")
def result(linear):
    return admission.run(SMALL, target=0.15, rate=1.0, holding=100.0, duration=500.0, frames=20, paper=False, seed=1)


def test_every_claim_holds_on_a_small_open_system(result):
    assert [claim.name for claim in result.claims if not claim.holds] == []
    assert len(result.claims) == 4


def test_the_metrics_are_those_of_the_runs_tables(result):
    bounded, unbounded = result.metrics["bounded"], result.metrics["unbounded"]
    assert bounded["error"] == abs(bounded["n_star"] - bounded["n_true"]) / bounded["n_true"]
    held = [point["n"] for point in bounded["points"] if point["holds"]]
    assert max(held) == bounded["n_true"] < min(p["n"] for p in bounded["points"] if not p["holds"])
    for name, metrics in (("bounded", bounded), ("unbounded", unbounded), ("unbounded, headroom", None)):
        sessions = result.sessions[result.sessions["run"] == name]
        metrics = metrics or result.metrics["headroom"]
        assert metrics["offered"] == len(sessions)
        shed = sessions["reason"].fillna("").str.startswith("shed: ")
        assert metrics["shed"] == shed.sum() > 0
        assert sessions.loc[shed, "opened_at_s"].isna().all() and sessions.loc[~shed, "opened_at_s"].notna().all()
        pool = result.pool[result.pool["run"] == name]
        assert metrics["n_peak"] <= pool["sessions"].max()
        assert pool["admission_cap"].iloc[-1] == metrics["trace"][-1]["cap"]
    assert unbounded["t_full_s"] is not None and bounded["t_full_s"] is None
    assert unbounded["failed_share_after_full"] > unbounded["failed_share"] > bounded["failed_share"] == 0


def test_the_same_callers_are_offered_in_every_arm(result):
    offered = result.sessions.groupby("run")["offered_at_s"].apply(list)
    # To within the step of the engine that an offer may have to wait for.
    first = [times[:20] for times in offered]
    assert all(abs(a - b) < 2.0 for times in first for a, b in zip(times, first[0], strict=True))


def test_where_it_settles_is_counted_from_the_first_turn_on():
    trace = [{"at_s": float(i), "sessions": n, "cap": c} for i, (n, c) in enumerate([(5, 6), (6, 7), (7, 6), (6, 7)])]
    assert [row["at_s"] for row in turning_points(trace)] == [2.0]
    assert found(trace) == round((7 + 6) / 2)
    # Never turned: as many as there were.
    assert found(trace[:2]) == 6 and found([]) == 0


def test_a_wall_that_callers_leave_is_told_by_its_silence(linear):
    plan = admission._plan(SMALL.with_(holding_s=100.0), "fixed", 0.15, None, 0.9, None, 40, 200.0, None, False)
    profile = SMALL.with_(arrivals_per_s=1.0, holding_s=100.0, sessions=1)
    walled = serve(profile, plan.make(profile, False), False, 200.0, "unbounded", lambda *said: None)
    assert walled.walled and walled.longest_silence_s >= 4.0
    few = serve(profile, plan.make(profile, True), True, 60.0, "bounded", lambda *said: None, offered=5)
    assert isinstance(few, Arm) and not few.walled and few.longest_silence_s == 0.0
    assert len(few.manager.sessions()) == 5


@pytest.mark.parametrize("name", admission.CONTROLLERS)
def test_every_controller_stands_before_the_open_system(linear, name):
    profile = SMALL.with_(arrivals_per_s=1.0, holding_s=100.0, sessions=1)
    plan = admission._plan(profile, name, 0.15, None, 0.9, 4, 9, 40.0, None, False)
    arm = serve(profile, plan.make(profile, True), True, 40.0, name, lambda *said: None)
    assert arm.gate.trace[-1]["returned"] > 0 and not arm.walled
    if name == "fixed":
        assert max(row["sessions"] for row in arm.gate.trace) == 9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rate": -1.0}, "rate must be above 0"),
        ({"rate": 0.0}, "rate must be above 0"),
        ({"holding": math.nan}, "holding must be above 0"),
        ({"target": 0.9}, "wait cap"),
        ({"step": 0.0}, "step must be above 0"),
        ({"factor": 1.0}, "factor must lie between"),
        ({"start": 0}, "start must be a whole number"),
        ({"controller": "fixed", "cap": 0}, "cap must be a whole number"),
        ({"controller": "magic"}, "no controller 'magic': choose from aimd"),
        ({"duration": 3.0}, "at least 10 frames"),
        ({"duration": math.inf}, "at least 10 frames"),
        ({"horizon": 0.0}, "horizon_s must be above 0"),
        ({"frames": 0}, "frames must be 1 or more"),
    ],
)
def test_bad_input_is_refused_before_an_engine_starts(options, words, monkeypatch):
    monkeypatch.setattr("workbench.sessions.make_engine", lambda profile: pytest.fail("an engine was made"))
    with pytest.raises(ExperimentError, match=words) as error:
        admission.run(SMALL, **options)
    assert "\n" not in str(error.value)


def test_the_default_profile_is_one_that_latency_limits():
    assert profile_of("admission").slowdown == admission.PROFILE_CHANGES["slowdown"] > 1
    # Whoever names a profile gets it as it is, the same one too.
    for named in (load_profile(admission.PROFILE), profile_of("admission").with_(slowdown=1.0), SMALL):
        assert admission.open_system(named).slowdown == 1.0
    with pytest.raises(ProfileError, match="slowdown"):
        load_profile(admission.PROFILE, slowdown=0.0)
