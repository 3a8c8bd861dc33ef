"""Recycling from outside the engine: what is kept, when, at what price in tokens, and what a manager sees of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.test_simulated import BASE, Linear
from workbench.bound import KVBound
from workbench.engine import EngineError
from workbench.engine.media import AudioChunk
from workbench.engine.recycling import Recycling, RecyclingEngine, RecyclingError
from workbench.engine.simulated import SimulatedEngine
from workbench.frontends.load import EOS
from workbench.sessions import SessionManager

BOUND = KVBound(64, 16)  # S' + W = 80, growth 29: full with frame 3
B = BASE.frame_budget_s
TOKEN = 1  # what the simulated model says


class Watched(SimulatedEngine):
    """Writes down what it is handed."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.prompts: dict[str, list[list[int]]] = {}
        self.closed: list[str] = []

    def submit(self, session, tokens, owed, bound=None, stop_token_ids=()):
        assert bound is None
        self.prompts.setdefault(session, []).append(list(tokens))
        super().submit(session, tokens, owed, bound, stop_token_ids)

    def close(self, session):
        self.closed.append(session)
        super().close(session)


def recycler(slack=0, profile=BASE, bound=BOUND, costs=None) -> RecyclingEngine:
    return RecyclingEngine(Watched(profile, costs=costs or Linear()), bound, slack)


def serve(engine: RecyclingEngine, frames: int, sessions: int = 2, bound=None) -> SessionManager:
    """Every session's first ``frames`` frames, all answered and looked at."""
    with SessionManager(engine.profile, engine=engine) as manager:
        for _ in range(sessions):
            manager.add(None, bound)
        manager.wait_for(seconds=(frames + 0.9) * B)
        return manager


def run_engine(engine: RecyclingEngine, seconds: float = 5.0) -> None:
    """Let the engine's own time pass, without a manager."""
    ends = engine.now() + seconds
    while engine.next_at() < ends:
        engine.clock.now = max(engine.now(), engine.next_at())
        engine.finish_step()
        engine.begin_step()
    engine.clock.now = ends


def finish(coroutine):
    with pytest.raises(StopIteration) as end:
        coroutine.send(None)
    return end.value.value


@pytest.fixture
def started():
    def start(slack=0, profile=BASE):
        engine = recycler(slack, profile)
        finish(engine.start())
        made.append(engine)
        return engine

    made = []
    yield start
    for engine in made:
        finish(engine.stop())


# -- the arithmetic ----------------------------------------------------------------------------------------------------


def test_the_arithmetic_of_a_recycled_session_by_hand():
    each = Recycling(BOUND, 0, 16, 26, 4)
    # Before frame 3 it holds 87 > 80; after a recycling 80 + 29, so from then on at each frame.
    assert (each.kept, each.first, each.period, each.most) == (80, 3, 1, 110)
    assert each.prefill_per_frame == 26 + 80
    seldom = Recycling(BOUND, 64, 16, 26, 4)
    # 5 x 29 = 145 > 144, and 3 x 29 = 87 > 64.
    assert (seldom.first, seldom.period) == (5, 3)
    assert [k for k in range(12) if seldom.recycles(k)] == [5, 8, 11]
    assert seldom.prefill(12) == 12 * 26 + 3 * 80
    assert seldom.prefill_per_frame == pytest.approx(26 + 80 / 3)


@pytest.mark.parametrize("slack", [-1, 0.5, math.nan, True, None])
def test_a_slack_that_is_none_is_refused(slack):
    with pytest.raises(RecyclingError, match="slack must be a whole number of tokens"):
        recycler(slack)
    with pytest.raises(RecyclingError, match="slack"):
        Recycling(BOUND, slack, 16, 26, 4)


# -- what the engine is handed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("slack", [0, 28, 29, 64, 200])
def test_the_engine_is_handed_what_the_arithmetic_says(slack):
    engine, frames = recycler(slack), 14
    serve(engine, frames)
    said = Recycling(BOUND, slack, 16, 26, 4)
    for prompts in engine.engine.prompts.values():
        assert [len(p) for p in prompts] == [26 + 80 * said.recycles(k) for k in range(frames)]
        assert sum(map(len, prompts)) == said.prefill(frames)
    assert engine.recycled == 2 * sum(map(said.recycles, range(frames)))


def test_what_is_kept_are_the_first_and_the_last_tokens_without_the_last_sampled_one_of_a_frame():
    engine = recycler(slack=40)
    serve(engine, 9)
    prompts = engine.engine.prompts["s1"]
    spoken: list[int] = []
    for prompt in prompts:
        chunk = prompt[-26:]
        if len(prompt) > 26:
            assert prompt[:-26] == spoken[:16] + spoken[-64:]
        # Four tokens are owed: three of them stay.
        spoken += chunk + [TOKEN] * 3
    assert sum(len(p) > 26 for p in prompts) == sum(map(Recycling(BOUND, 40, 16, 26, 4).recycles, range(9))) > 1


def test_a_reply_that_ends_early_leaves_fewer_tokens_and_the_count_is_still_the_engines():
    profile = BASE.with_(eos_chance=0.3)
    engine = recycler(slack=50, profile=profile)
    looked = 0
    with SessionManager(profile, engine=engine) as manager:
        for _ in range(3):
            manager.add(None)
        for frame in range(1, 15):
            manager.wait_until((frame + 0.9) * B)
            seen = finish(engine.engine.snapshot())
            for name, view in seen.sessions.items():
                assert view.resident == len(engine._sessions[name].held)
                looked += 1
    assert manager.frames()["eos"].sum() > 5 and engine.recycled > 3 and looked == 3 * 14
    assert EOS not in [t for p in engine.engine.prompts["s0"] for t in p], "it is sampled last, so it is never kept"


# -- what a manager sees -----------------------------------------------------------------------------------------------


def test_a_recycled_session_does_not_wall_where_an_unbounded_one_does():
    recycled, frames = serve(recycler(slack=29), 20, sessions=8), 20
    assert recycled.beat.wall_at_s is None and recycled.pool()["blocks_used"].max() <= 8 * 9
    rows = recycled.frames()
    rows = rows[rows["frame"] < frames]
    assert (rows["tokens_delivered"] == 4).all() and not rows["capped"].any()
    unbounded = SessionManager(BASE, engine=SimulatedEngine(BASE, costs=Linear()))
    with unbounded:
        for _ in range(8):
            unbounded.add(None)
        unbounded.wait_for(seconds=20.9 * B)
        assert unbounded.beat.wall_at_s is not None


def test_the_age_goes_on_where_the_request_begins_anew():
    frames = 12
    manager = serve(recycler(slack=29), frames)
    rows = manager.frames()
    rows = rows[rows["frame"] < frames]
    assert rows["age_tokens"].tolist() == [29 * (k + 1) for k in rows["frame"]]
    assert rows["resident_tokens"].max() == 80 + 2 * 29
    assert manager.pool()["t_full_predicted_s"].iloc[-1] != manager.pool()["t_full_predicted_s"].iloc[-1]


def test_a_re_encode_takes_the_prefill_of_all_that_is_kept():
    rows = serve(recycler(slack=29), 9, sessions=1).frames()
    latency = rows.set_index("frame")["latency_s"]
    said = Recycling(BOUND, 29, 16, 26, 4)
    for frame in range(9):
        prefill = 26 + 80 * said.recycles(frame)
        assert latency[frame] == pytest.approx(0.010 + 0.001 * prefill + 3 * 0.012), frame


def test_sessions_may_name_the_bound_that_is_kept_and_no_other():
    manager = serve(recycler(), 6, bound=BOUND)
    assert manager.engine.recycled > 0 and (manager.frames()["window"] == 64).all()
    with pytest.raises(EngineError, match="keeps window 64, sinks 16 for all its sessions"):
        serve(recycler(), 2, bound=KVBound(128, 16))
    engine = recycler()
    with SessionManager(BASE, engine=engine) as manager:
        name = manager.add(None)
        manager.wait_for(seconds=1.5 * B)
        assert finish(engine.set_bound(name, BOUND)) == "next frame"
        assert finish(engine.set_bound("nobody", BOUND)) == "unknown"
        with pytest.raises(EngineError, match="make another one"):
            engine.set_bound(name, KVBound(65, 16)).send(None)


def test_a_capped_frame_is_answered_late_and_counted_all_the_same():
    class Slow(Linear):
        def step_s(self, prefill, decoding, context, encoder_s, prefill_pairs):
            return 0.6 if decoding else 0.3

    engine = recycler(slack=0, costs=Slow())
    manager = serve(engine, 12, sessions=1)
    rows = manager.frames()
    assert rows["capped"].sum() > 3 and rows["tokens_late"].sum() > 3 and engine.recycled > 3
    answered = rows[rows["tokens_delivered"] + rows["tokens_late"] == 4]
    state = engine.engine.prompts["s0"]
    assert all(len(p) in (26, 106) for p in state) and len(state) >= len(answered)


def test_a_session_past_max_model_len_ends_alone_with_the_engines_reason():
    profile = BASE.with_(max_model_len=160)
    engine = recycler(slack=1000, profile=profile)
    manager = serve(engine, 8, sessions=1)
    assert manager.sessions()["reason"].iloc[0].endswith("past max_model_len 160")
    assert not engine._sessions


# -- without a manager -------------------------------------------------------------------------------------------------


def test_chunks_handed_over_together_are_served_one_by_one(started):
    engine, heard = started(), []
    engine.on_events = heard.extend
    for k in range(7):
        engine.submit("eager", [10 + k] * 26, 4)
    run_engine(engine)
    assert sum(len(e.tokens) for e in heard) == 7 * 4 and engine.recycled == 4
    assert [p[-1] for p in engine.engine.prompts["eager"]] == [10 + k for k in range(7)]
    assert finish(engine.snapshot()).sessions["eager"].resident == 80 + 29


def test_audio_is_refused_and_its_session_never_was(started):
    engine = started()
    heard = AudioChunk([5, 6, 7], (np.zeros(16_000, np.float32), 16_000), 28)
    with pytest.raises(EngineError) as refused:
        engine.submit("heard", heard, 4)
    assert str(refused.value) == "a recycled session cannot be fed audio: use a front end of tokens"
    assert not engine.engine.prompts and not engine._sessions
    # The same tokens without audio are served.
    engine.submit("heard", list(heard), 4)
    assert engine.engine.prompts["heard"] == [[5, 6, 7]]


def test_a_closed_session_gives_all_its_blocks_back_and_its_name_begins_anew(started):
    engine = started()
    for _ in range(2):
        for _ in range(6):
            engine.submit("again", [7] * 26, 4)
        run_engine(engine)
        view = finish(engine.snapshot()).sessions["again"]
        assert view.resident + view.evicted == 6 * 29
        engine.close("again")
        run_engine(engine)
        seen = finish(engine.snapshot())
        assert seen.free_blocks == seen.blocks_total and not seen.sessions and seen.evicted_tokens == 0
    engine.close("nobody")


def test_it_is_its_engine_in_all_else(started):
    engine = started()
    assert engine.virtual and engine.facts is engine.engine.facts and engine.model_path is None
    assert engine.clock is engine.engine.clock and not engine.busy and engine.rss_bytes() is None
    died = []
    engine.on_dead = died.append
    engine.engine.on_dead("of a test")
    assert died == ["of a test"]
    with pytest.raises(AttributeError, match="nonsense"):
        engine.nonsense  # noqa: B018
