"""The session manager on the real engine: the wall and the ways back, a dead engine, interrupts, orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import psutil
import pytest

from workbench.audio import sample_clips
from workbench.bound import BoundError, KVBound
from workbench.engine import EngineError
from workbench.profiles import load_profile
from workbench.sessions import SessionError, SessionManager
from workbench.telemetry import load_tables

REPO = Path(__file__).parents[2]
N = 4
BOUND = KVBound(64, 4)
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def profile():
    return load_profile("tiny", pool_blocks=32)


@pytest.fixture(scope="module")
def manager(profile):
    with SessionManager(profile) as manager:
        yield manager


@pytest.fixture
def walled(manager):
    """Four unbounded sessions on the manager's engine, all of them at the wall."""
    names = [manager.add(clip) for clip in sample_clips()[:N]]
    assert manager.wait_for(lambda m: m.status().startswith("wall"), seconds=PATIENCE_S), manager.status()
    yield names
    for name in list(manager.beat.sessions):
        manager.close_session(name)
    assert manager.wait_for(lambda m: m.beat.latest.free_blocks == m.beat.latest.blocks_total, seconds=PATIENCE_S)


def frames_until_answered(manager, names, since_s) -> dict[str, int]:
    """Per session: how many frames fell due after ``since_s`` before one had all its owed tokens, and kept on."""
    frames = manager.frames()
    after = frames[(frames["due_at_s"] > since_s) & (frames["status"] != "open")]
    result = {}
    for name in names:
        good = (after[after["session"] == name]["tokens_delivered"] == manager.profile.tokens_owed).tolist()
        assert len(good) >= 5, f"{name} returned only {len(good)} frames"
        # From which frame on every one is good.
        result[name] = len(good) - next((i for i, g in enumerate(reversed(good)) if not g), len(good))
    return result


def wait_frames(manager, count):
    until = manager.now() + count * manager.profile.frame_budget_s
    manager.wait_for(lambda m: m.now() > until, seconds=PATIENCE_S)


def counted(manager, name, window):
    """The frames answered on time under a window whose resident tokens were seen before the next frame began.

    On a slow machine the pool's sample can come too late for a frame; its resident tokens are then not known.
    """
    frames = manager.frames()
    frames = frames[(frames["session"] == name) & (frames["status"] == "on_time") & frames["resident_tokens"].notna()]
    return frames[frames["window"].isna() if window is None else frames["window"] == window]


def wait_counted(manager, name, window, count):
    assert manager.wait_for(lambda m: len(counted(m, name, window)) >= count, seconds=PATIENCE_S), manager.status()


def test_at_the_wall_the_usual_dashboard_is_green(manager, walled):
    wait_frames(manager, 4)
    frames = manager.frames()
    last = frames[(frames["status"] != "open") & (frames["due_at_s"] > manager.now() - 4 * 0.4)]
    assert len(last) >= 2 * N
    assert last["capped"].all() and last["empty"].all() and not last["missed"].any()
    pool = manager.pool().iloc[-1]
    assert (pool["running"], pool["parked"], pool["waiting"]) == (0, 0, N)
    assert manager.beat.first_refused_at_s is not None


def test_the_bound_switched_on_at_the_wall_brings_every_session_back(manager, walled):
    manager.set_bound(BOUND)
    switched = manager.now()
    wait_frames(manager, 9)
    assert all(frame <= 5 for frame in frames_until_answered(manager, walled, switched).values())
    assert manager.status() == "beating"
    frames = manager.frames()
    latest = frames[(frames["status"] == "on_time") & frames["resident_tokens"].notna()].groupby("session").last()
    most = BOUND.resident_max(manager.profile.block_size, manager.profile.frame_tokens, manager.profile.tokens_owed)
    assert (latest.loc[walled, "resident_tokens"] <= most).all()


def test_closing_half_at_the_wall_brings_the_others_back(manager, walled):
    for name in walled[: N // 2]:
        manager.close_session(name)
    closed = manager.now()
    wait_frames(manager, 8)
    assert all(frame <= 5 for frame in frames_until_answered(manager, walled[N // 2 :], closed).values())


def test_the_bound_can_be_switched_at_any_frame(manager):
    name = manager.add(sample_clips()[0], BOUND)
    wait_counted(manager, name, 64, 10)
    manager.set_bound(None, name)
    wait_counted(manager, name, None, 5)
    manager.set_bound(KVBound(96, 33), name)
    wait_counted(manager, name, 96, 2)
    frames = manager.frames()
    frames = frames[(frames["session"] == name) & (frames["status"] == "on_time")]
    assert (frames["tokens_delivered"] == manager.profile.tokens_owed).all()
    assert frames["window"].dropna().unique().tolist() == [64, 96]
    bounded, free = counted(manager, name, 64), counted(manager, name, None)
    assert bounded["resident_tokens"].max() <= BOUND.resident_max(32, 10, 3)
    assert free["resident_tokens"].is_monotonic_increasing
    manager.close_session(name)


def test_what_cannot_be_served_is_refused_before_the_engine_hears_of_it(manager):
    clip = sample_clips()[0]
    before = manager.sessions().shape[0]
    for wrong in (KVBound(31), KVBound(2000)):
        with pytest.raises(BoundError) as error:
            manager.add(clip, wrong)
        assert "\n" not in str(error.value)
        with pytest.raises(BoundError):
            manager.set_bound(wrong)
    with pytest.raises(SessionError, match="no open session 'nobody'"):
        manager.close_session("nobody")
    with pytest.raises(SessionError, match="nobody"):
        manager.set_bound(BOUND, "nobody")
    assert manager.sessions().shape[0] == before


def test_plateaus_beyond_the_pool_are_warned_of(manager):
    wide = KVBound(256, 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        names = [manager.add(clip, wide) for clip in sample_clips()[:N]]
    assert "exceed the pool by" in str(caught[-1].message)
    for name in names:
        manager.close_session(name)


def test_an_engine_killed_from_outside_is_noticed_and_nothing_is_lost(profile, tmp_path):
    with SessionManager(profile, save_to=tmp_path / "tables") as manager:
        manager.add(sample_clips()[0], BOUND)
        wait_frames(manager, 4)
        pids = manager.engine.pids
        os.kill(pids[0], signal.SIGKILL)
        assert manager.wait_for(lambda m: m.beat.dead is not None, seconds=PATIENCE_S)
        assert manager.status().startswith("engine died: ")
        with pytest.raises(EngineError, match="start a new manager"):
            manager.add(sample_clips()[0])
    assert_gone(pids)
    tables = load_tables(tmp_path / "tables")
    assert tables["sessions"]["reason"].iloc[0].startswith("engine died")
    assert len(tables["frames"]) >= 3


SCRIPT = """
import signal, time
from workbench.audio import sample_clip
from workbench.bound import KVBound
from workbench.profiles import load_profile
from workbench.sessions import SessionManager

# Whoever runs the tests in the background has it ignored, and a child inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)
manager = SessionManager(load_profile("tiny")).start()
manager.add(sample_clip("goforward"), KVBound(64, 4))
try:
    print(*manager.engine.pids, flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    before = len(manager.frames())
    print("interrupted", manager.wait_for(lambda m: len(m.frames()) > before + 3, seconds=60), flush=True)
    print(manager.status(), flush=True)
time.sleep(600)
"""


def test_a_plain_script_an_interrupt_of_its_group_and_a_hard_exit(tmp_path):
    """No main guard is needed; Ctrl-C does not reach the engine; its processes end with a parent that is killed."""
    script = tmp_path / "plain.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=REPO
    )
    try:
        pids = [int(p) for p in process.stdout.readline().split()]
        assert len(pids) == 2
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.readline().split() == ["interrupted", "True"]
        assert process.stdout.readline().strip() == "beating"
    finally:
        process.kill()
        process.wait()
    assert_gone(pids)


def assert_gone(pids) -> None:
    ends = time.monotonic() + PATIENCE_S
    while any(_alive(p) for p in pids):
        assert time.monotonic() < ends, f"engine processes live on: {[p for p in pids if _alive(p)]}"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_an_engine_the_bound_cannot_be_served_on_is_refused_at_start(profile):
    from workbench.engine.vllm import VllmEngine

    with pytest.raises(EngineError, match="prefix caching is on") as error:
        SessionManager(profile, engine=VllmEngine(profile, engine_args={"enable_prefix_caching": True})).start()
    assert "\n" not in str(error.value)


def test_a_stock_scheduler_does_not_pass_the_handshake(profile):
    from workbench.engine.vllm import VllmEngine

    engine = VllmEngine(profile, scheduler="vllm.v1.core.sched.scheduler.Scheduler")
    with pytest.raises(EngineError, match="not the bounded scheduler") as error:
        SessionManager(profile, engine=engine).start()
    assert "\n" not in str(error.value)
