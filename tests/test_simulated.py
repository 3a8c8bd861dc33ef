"""The simulated engine: the real scheduler on a virtual clock, driven by the same manager as the real engine."""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass

import pandas as pd
import pytest

from workbench.bound import KVBound
from workbench.engine import EngineError
from workbench.engine.simulated import SimulatedEngine
from workbench.experiments import experiment
from workbench.profiles import Profile, ProfileError, load_profile
from workbench.sessions import SessionError, SessionManager

B, GROWTH = 2.0, 29
BASE = Profile(
    name="sim:test",
    model="test",
    executor="simulated",
    sessions=8,
    window=128,
    sinks=16,
    pool_blocks=200,
    block_size=16,
    max_model_len=3200,
    max_positions=1 << 20,
    tokens_owed=4,
    front_end="load:26",
    frame_budget_s=B,
    max_sessions=64,
)


@dataclass
class Linear:
    """Steps of a round number of milliseconds."""

    t0: float = 0.010
    source: str = "made up"
    front_end_s: float = 0.0

    def step_s(self, prefill, decoding, context, encoder_s, prefill_pairs):
        return self.t0 + 0.001 * prefill + 0.002 * decoding


def make(profile=BASE, costs=None, **options):
    return SessionManager(profile, engine=SimulatedEngine(profile, costs=costs or Linear()), **options)


def play(profile=BASE, seconds=40.0, bound=None, costs=None, sessions=None):
    with make(profile, costs) as manager:
        for _ in range(sessions or profile.sessions):
            manager.add(None, bound)
        manager.wait_for(seconds=seconds)
        return manager


def test_a_frame_takes_its_prefill_and_its_decode_steps():
    manager = play(seconds=9.9, sessions=2)
    # One prefill step of 2 x 26 tokens, then three decode steps of two sessions.
    latency = (0.010 + 0.052) + 3 * (0.010 + 0.004)
    frames = manager.frames()
    returned = frames[frames["status"] == "on_time"]
    assert len(returned) == 2 * 4
    assert returned["latency_s"].round(9).unique().tolist() == [round(latency, 9)]
    assert (returned["first_token_at_s"] - returned["due_at_s"]).round(9).unique().tolist() == [0.062]
    assert manager.pool()["resident_tokens"].iloc[-1] == 2 * 4 * GROWTH


def test_the_facts_say_that_it_is_simulated_and_by_what():
    facts = play(seconds=1.0).engine.facts
    assert (facts.executor, facts.costs, facts.blocks_total) == ("simulated", "made up", 200)
    assert facts.scheduler == "kernels_patch.scheduler.BoundedScheduler"


def test_the_pool_is_full_when_the_blocks_say_so_and_the_wall_follows():
    frames_that_fit = next(k for k in range(99) if 8 * -(-(k + 1) * GROWTH // 16) > 200)
    with make() as manager:
        for _ in range(8):
            manager.add(None)
        manager.wait_for(seconds=80.0)
        assert manager.status() == "wall: 8 of 8 sessions silent, 0 deadline misses"
    beat = manager.beat
    assert abs(beat.first_refused_at_s - (frames_that_fit + 1) * B) < 0.5
    after = manager.frames().query("due_at_s > @beat.wall_at_s and status == 'capped'")
    assert len(after) and after["tokens_delivered"].sum() == 0 and after["missed"].sum() == 0


def test_a_bound_keeps_the_pool_on_its_plateau():
    manager = play(seconds=200.0, bound=BASE.bound)
    frames = manager.frames().query("status != 'closed'")
    assert (frames["tokens_delivered"] == frames["tokens_owed"]).all() and not frames["capped"].any()
    assert frames["tokens_in"].sum() > 6 * BASE.pool_tokens
    late = manager.pool().query("at_s > 60")
    assert late["blocks_used"].max() <= 8 * (16 + 128 + 16 + GROWTH + 16) // 16
    assert manager.beat.wall_at_s is None


def test_a_bound_set_at_the_wall_brings_every_session_back():
    with make() as manager:
        for _ in range(8):
            manager.add(None)
        assert manager.wait_for(lambda m: m.beat.wall_at_s is not None, seconds=200.0)
        manager.set_bound(BASE.bound)
        manager.wait_for(seconds=20.0)
        assert manager.status() == "beating"
        last = manager.frames().query("due_at_s > @manager.now() - 9 and status != 'open'")
        assert (last["tokens_delivered"] == last["tokens_owed"]).all()


def tables_of(profile, **options):
    manager = play(profile, **options)
    return manager.sessions(), manager.frames(), manager.pool()


VARIED = BASE.with_(eos_chance=0.2, start_jitter=0.5, step_noise=0.3, seed=3)


@pytest.mark.parametrize("profile", [BASE, VARIED, BASE.with_(phase_groups=4)])
def test_the_seed_decides_every_row(profile):
    for one, other in zip(tables_of(profile), tables_of(profile), strict=True):
        pd.testing.assert_frame_equal(one, other)


def test_another_seed_gives_another_run():
    one, other = (play(VARIED.with_(seed=seed)).frames() for seed in (1, 2))
    assert not one["latency_s"].equals(other["latency_s"])


def test_without_variance_the_run_is_exactly_periodic():
    manager = play(BASE.with_(phase_groups=4, pool_blocks=1000), seconds=61.0)
    frames = manager.frames().query("status == 'on_time'")
    period = frames.groupby("session")["latency_s"].agg(lambda s: s.round(9).nunique())
    assert (period == 1).all() and len(frames) == 2 * (30 + 30 + 29 + 29)


def test_each_source_of_variance_changes_what_it_names():
    base = BASE.with_(pool_blocks=1000)
    still = play(base, seconds=30.0).frames().query("status == 'on_time'")
    eos = play(base.with_(eos_chance=0.3), seconds=30.0).frames().query("status == 'on_time'")
    assert eos["eos"].any() and eos["tokens_delivered"].sum() < still["tokens_delivered"].sum()
    jitter = play(base.with_(start_jitter=0.5), seconds=30.0).sessions()
    assert jitter["opened_at_s"].between(0, 1.0).all() and jitter["opened_at_s"].nunique() == 8
    noise = play(base.with_(step_noise=0.2), seconds=30.0).frames().query("status == 'on_time'")
    assert noise["latency_s"].nunique() > 10 >= still["latency_s"].round(9).nunique()


def test_eos_ends_a_reply_early_by_its_chance():
    frames = play(BASE.with_(pool_blocks=3000, eos_chance=0.25), seconds=400.0).frames().query("status == 'on_time'")
    # A reply of up to 4 tokens, each the last with chance 1/4: the end itself is counted as a token.
    mean = sum((1 - 0.25) ** k for k in range(4))
    assert abs(frames["tokens_delivered"].mean() - mean) < 0.1 and len(frames) > 900


def test_a_shared_prefix_is_held_once():
    alone = BASE.with_(pool_blocks=1000)
    shared = alone.with_(shared_prefix=160)
    used = {p.name: play(p, seconds=5.0).pool()["blocks_used"].iloc[-1] for p in (alone, shared.with_(name="shared"))}
    # The first session's ten blocks serve all eight.
    assert used["shared"] - used[alone.name] == 10


def test_a_bound_is_refused_where_prefixes_are_shared():
    with make(BASE.with_(shared_prefix=160)) as manager:
        name = manager.add(None, BASE.bound)
        manager.wait_for(seconds=5.0)
        assert "prefix caching" in manager.sessions().set_index("session").loc[name, "reason"]


def test_a_front_end_outside_the_engine_takes_one_frame_after_the_other():
    frames = play(seconds=3.9, sessions=3, costs=Linear(front_end_s=0.01)).frames()
    # 0.02 s each for 2 s of audio: every chunk comes out while the engine is in the step that took up the one before.
    assert (frames["first_token_at_s"] - 2.0).round(3).tolist() == [0.056, 0.094, 0.134]


def test_the_cliff_holds_at_paper_scale_where_the_engine_never_rests():
    profile = load_profile("sim:qwen3-omni@h100", pool_blocks=3000, sessions=24, window=256, max_model_len=6000)
    result = experiment("cliff")(profile)
    assert result.executor == "simulated" and result.holds, [c for c in result.claims if not c.holds]


@pytest.mark.parametrize(("sessions", "late"), [(2, 1), (3, 2), (5, 2)])
def test_the_cliff_of_few_sessions_has_one_that_joins_late_and_one_that_leaves(sessions, late):
    blocks = 60 * sessions
    profile = load_profile("sim:qwen3-omni@h100", pool_blocks=blocks, window=256, max_model_len=blocks * 16)
    result = experiment("cliff")(profile, sessions=sessions)
    assert result.holds, [c for c in result.claims if not c.holds]
    for _, arm in result.sessions.groupby("run"):
        assert (len(arm), (arm["offered_at_s"] > 0).sum(), (arm["reason"] == "closed").sum()) == (sessions + 1, late, 1)


def test_time_passes_only_while_somebody_waits():
    with make() as manager:
        manager.add(None)
        assert manager.now() == 0.0
        manager.wait_until(12.5)
        assert manager.now() == 12.5 and len(manager.frames()) == 6


def test_waiting_for_nothing_is_said():
    with make() as manager, pytest.raises(EngineError, match="nothing to wait for"):
        manager.engine.next_at = lambda: float("inf")
        manager._drive._samples = float("inf")
        manager.wait_for()


def test_a_dead_engine_ends_every_session_with_its_reason(tmp_path):
    with make(save_to=tmp_path) as manager:
        manager.add(None)
        manager.wait_for(seconds=5.0)
        manager.engine._executor.execute_model = None
        manager.wait_for(seconds=5.0)
        assert manager.status().startswith("engine died: TypeError")
        with pytest.raises(EngineError, match="start a new manager"):
            manager.add(None)
    assert len(pd.read_parquet(tmp_path / "frames.parquet")) >= 2


def test_closing_a_session_gives_its_blocks_back():
    with make() as manager:
        names = [manager.add(None) for _ in range(2)]
        manager.wait_for(seconds=10.0)
        manager.close_session(names[0])
        manager.wait_for(seconds=0.5)
        # The other one's five frames.
        assert manager.pool()["blocks_used"].iloc[-1] == -(-5 * GROWTH // 16)


def test_a_front_end_that_hears_needs_a_clip():
    profile = BASE.with_(front_end="codec2")
    with make(profile) as manager, pytest.raises(SessionError, match="needs a clip"):
        manager.add(None)


@pytest.mark.parametrize(
    ("field", "value"), [("eos_chance", 1.0), ("start_jitter", -0.1), ("step_noise", float("nan"))]
)
def test_absurd_variance_is_refused_by_name(field, value):
    with pytest.raises(ProfileError, match=field):
        BASE.with_(**{field: value})


@pytest.mark.parametrize("field", ["eos_chance", "step_noise", "shared_prefix", "hardware"])
def test_what_only_a_simulator_can_do_is_refused_elsewhere(field):
    value = {"hardware": "h100", "shared_prefix": 16}.get(field, 0.1)
    with pytest.raises(ProfileError, match="sim:"):
        Profile(**{**vars(BASE), "executor": "vllm", field: value})


def test_bounds_per_session_and_switching_follow_at_the_next_frame():
    with make(BASE.with_(pool_blocks=1000, max_model_len=4000)) as manager:
        a, b = manager.add(None), manager.add(None, KVBound(64, 16))
        manager.wait_for(seconds=40.0)
        manager.set_bound(KVBound(64, 16), a)
        manager.wait_for(seconds=4.0)
        resident = manager.frames().query("status == 'on_time'").groupby("session")["resident_tokens"].last()
        assert resident[a] <= 16 + 64 + 16 + GROWTH and resident[b] <= 16 + 64 + 16 + GROWTH


def test_nothing_but_rows_is_kept_of_a_long_run():
    profile = BASE.with_(phase_groups=4, start_jitter=0.5, step_noise=0.1, eos_chance=0.1)
    with make(profile) as manager:
        for _ in range(8):
            manager.add(None, BASE.bound)
        kept = []
        for _ in range(3):
            manager.wait_for(seconds=400.0)
            manager.tables.frame_rows.clear()
            manager.tables.pool_rows.clear()
            gc.collect()
            kept.append(sys.getallocatedblocks())
    # Some 1,600 frames and 6,400 steps a turn: a leak of one object a frame would show ten times over.
    assert kept[2] - kept[1] < 160


def test_a_prompt_puts_a_bounded_session_on_its_plateau_at_once():
    bound = KVBound(128, 16)
    with make() as manager:
        manager.add(None, bound, prompt=144)
        manager.add(None, bound)
        manager.wait_for(seconds=20.0)
        for wrong in (145, -1):
            with pytest.raises(SessionError, match="0 to 144 tokens"):
                manager.add(None, bound, prompt=wrong)
        with pytest.raises(SessionError, match="0 to 3174 tokens"):
            manager.add(None, prompt=3200)
        frames = manager.frames()
    first = frames[frames["frame"] == 0].set_index("session")
    assert first["tokens_in"].to_dict() == {"s0": 144 + 26, "s1": 26}
    assert first.loc["s0", "resident_tokens"] == 144 + GROWTH
    later = frames[(frames["session"] == "s0") & (frames["frame"] > 0) & frames["resident_tokens"].notna()]
    assert later["resident_tokens"].between(144, 144 + 15 + GROWTH).all()
