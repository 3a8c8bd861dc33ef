"""Sinks that move, as the scheduler tells of them: histories in pools that are too small, against plain lists."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.request import RequestStatus

from kernels_patch.positions import offset_at
from kernels_patch.scheduler import BoundedScheduler
from tests.scheduler_rig import BLOCK, BookKeeper, assert_books_balance, decisive_state, make_chunk, make_scheduler
from tests.test_scheduler import SESSIONS, SLOW, Expected, Rig, fill_to_the_wall
from workbench.bound import ENDED, BoundError, KVBound

MOVING, FIXED = KVBound(64, 4, moving=True), KVBound(64, 4)
WHY = "sinks cannot move here"

some_bound = st.builds(KVBound, st.sampled_from([32, 40, 64, 96]), st.sampled_from([0, 4, 33, 96]), st.booleans())
bound = st.one_of(st.none(), some_bound, some_bound)
session = st.sampled_from(SESSIONS)
chunk = st.tuples(st.just("chunk"), session, st.integers(1, 70), st.integers(1, 40), bound)
change = st.tuples(st.just("bound"), session, bound)
step = st.tuples(st.just("step"), st.integers(1, 30))
flood = st.tuples(st.just("flood"), st.integers(1, 8), bound)
everyone = st.tuples(st.just("everyone"), bound)
abort = st.tuples(st.just("abort"), session)
operation = st.one_of(chunk, chunk, flood, flood, change, change, everyone, abort, step, step)


class MovingExpected(Expected):
    """As Expected; when it is cut under a bound that says so, the pinned tokens take the places before the rest."""

    def cut(self):
        before = len(self.context)
        super().cut()
        if len(self.context) < before and self.bound.moving:
            pinned = -(-self.bound.sinks // BLOCK) * BLOCK
            first = self.context[pinned][0] - pinned
            self.context[:pinned] = [(first + i, token) for i, (_, token) in enumerate(self.context[:pinned])]


class MovingRig(Rig):
    """As Rig, which compares slots after every step; after every operation the spans of those that wait as well."""

    def __init__(self, blocks: int):
        super().__init__(blocks)
        self.seen = Counter()

    def chunk(self, name, count, owed, bound):
        self.expected.setdefault(name, MovingExpected())
        super().chunk(name, count, owed, bound)

    def bound(self, name, bound):
        request, state = self.scheduler.requests.get(name), self.scheduler.sessions.get(name)
        if request is None:
            return super().bound(name, bound)
        status, evicted, unmoved = request.status, state.evicted, state.spans != state.cached
        super().bound(name, bound)
        if state.evicted > evicted:
            self.seen[f"cut at once {status.name}"] += 1
            self.seen["cut at once before a move was done"] += unmoved

    def everyone(self, bound):
        for name in SESSIONS:
            self.bound(name, bound)

    def play(self, operations):
        for name, *arguments in operations:
            getattr(self, name)(*arguments)
            assert_books_balance(self.scheduler)
            self.assert_positions()
        self.seen["moves"] += self.worker.moves
        self.seen["preempted"] += self.scheduler.preemptions
        self.seen["cut when preempted"] += self.cut_when_preempted

    def assert_positions(self):
        for name, expected in self.expected.items():
            spans = self.scheduler.sessions[name].spans
            positions = [position for position, _ in expected.context + expected.frame]
            assert [i + offset_at(spans, i) for i in range(len(positions))] == positions, name

    def ends(self, name) -> list[int]:
        """The positions of the first and the last sink of a session with one sink block, and of what follows them."""
        positions = [position for position, _ in self.expected[name].context]
        return [positions[0], positions[BLOCK - 1], positions[BLOCK]]


def test_every_slot_stands_where_the_rule_says_after_every_step():
    seen = Counter()

    @SLOW
    @given(st.integers(6, 24), st.lists(operation, min_size=15, max_size=60))
    def history(blocks, operations):
        rig = MovingRig(blocks)
        rig.play(operations)
        seen.update(rig.seen)

    history()
    print(dict(seen))
    assert min(seen["moves"], seen["preempted"], seen["cut at once WAITING"]) > 10


def test_at_the_wall_the_sinks_move_at_once_and_everyone_is_served_again():
    rig = MovingRig(40)
    fill_to_the_wall(rig, SESSIONS)
    for name in SESSIONS:
        rig.bound(name, MOVING)
    assert rig.seen["cut at once WAITING"] == len(SESSIONS)
    rig.step(20)
    assert all(e.parked for e in rig.expected.values()) and rig.worker.moves == len(SESSIONS)
    for name in SESSIONS:
        first, last, next_one = rig.ends(name)
        assert first > 0 and last - first == BLOCK - 1 and next_one == last + 1


def waiting_with_sinks_that_moved(bound=MOVING) -> MovingRig:
    """Session "a" has taken up a chunk that moved its sinks, and waits for blocks that "b" holds."""
    rig = MovingRig(14)
    rig.chunk("b", 50, 4, None)
    for _ in range(3):
        rig.chunk("a", 50, 4, bound)
        rig.step(6)
    while rig.scheduler.snapshot()["free_blocks"]:
        rig.chunk("b", 29, 4, None)
        rig.step(6)
    moves = rig.worker.moves
    rig.chunk("a", 100, 4, bound)
    rig.step(3)
    assert not rig.expected["a"].parked and rig.worker.moves == moves
    assert rig.scheduler.requests["a"].status == RequestStatus.WAITING
    return rig


@pytest.mark.parametrize(
    "then",
    [
        [KVBound(32, 0, moving=True)],
        [KVBound(32, 0)],
        [KVBound(32, 4, moving=True)],
        [KVBound(32, 4)],
        [KVBound(32, 33, moving=True)],
        [FIXED, None, KVBound(32, 0, moving=True)],
        [KVBound(64, 0), KVBound(32, 4, moving=True)],
    ],
)
def test_a_bound_that_comes_before_the_move_is_done(then):
    rig = waiting_with_sinks_that_moved()
    for bound in then:
        rig.bound("a", bound)
    rig.abort("b")
    rig.step(20)
    assert rig.expected["a"].parked
    for _ in range(4):
        rig.chunk("a", 40, 4, then[-1])
        rig.step(6)
    assert rig.expected["a"].parked


def preempted_mid_frame() -> tuple[MovingRig, str]:
    rig = MovingRig(24)
    for name in "ab":
        for _ in range(5):
            rig.chunk(name, 60, 2, KVBound(192, 4, moving=True))
            rig.step(4)
    rig.chunk("a", 10, 140, KVBound(192, 4, moving=True))
    rig.chunk("b", 10, 200, KVBound(192, 4, moving=True))
    while rig.scheduler.preemptions == 0:
        rig.step()
    return rig, next(n for n, r in rig.scheduler.requests.items() if r.status == RequestStatus.PREEMPTED)


@pytest.mark.parametrize("bound", [None, KVBound(64, 4, moving=True), KVBound(64, 33, moving=True), KVBound(64, 0)])
def test_a_preempted_session_is_prefilled_where_its_sinks_belong(bound):
    rig, victim = preempted_mid_frame()
    if bound is not None:
        rig.bound(victim, bound)
        assert rig.at_once == 1
    rig.step(200)
    rig.abort(next(name for name in "ab" if name != victim))
    rig.step(300)
    assert rig.expected[victim].parked
    for _ in range(4):
        rig.chunk(victim, 40, 4, bound or KVBound(192, 4, moving=True))
        rig.step(6)
    assert rig.expected[victim].parked


def test_sinks_that_no_longer_move_stay_where_they_were_moved_to():
    rig = MovingRig(40)
    for k in range(10):
        rig.chunk("a", 50, 4, MOVING if k < 5 else FIXED)
        rig.step(6)
        if k == 4:
            moved, moves = rig.ends("a"), rig.worker.moves
    assert moved[0] > 0 and rig.ends("a")[:2] == moved[:2] and rig.ends("a")[2] > moved[2]
    assert rig.worker.moves == moves > 0


def where_sinks_stay() -> MovingRig:
    rig = MovingRig(40)
    rig.scheduler.attach(max_positions=1 << 20, sinks_stay=WHY)
    return rig


def reasons(scheduler) -> dict[str, str]:
    """Of a step: why which session was ended."""
    output = scheduler.schedule()
    outputs = scheduler.update_from_output(output, BookKeeper().run(output)[0])
    told = {o.request_id: o.stop_reason for a in outputs.values() for o in a.outputs if o.finish_reason is not None}
    return {name: reason for name, reason in told.items() if isinstance(reason, str)}


def test_where_sinks_stay_a_session_that_asks_for_more_is_ended_alone():
    scheduler = make_scheduler(BoundedScheduler, 40)
    scheduler.attach(max_positions=1 << 20, sinks_stay=WHY)
    scheduler.add_request(make_chunk("a", [7] * 50, 1, MOVING))
    scheduler.add_request(make_chunk("b", [7] * 50, 1, FIXED))
    scheduler.add_request(make_chunk("b", [7] * 50, 1, MOVING))
    assert reasons(scheduler) == {"a": ENDED + WHY, "b": ENDED + WHY}, "at its first chunk, and at a queued one"
    scheduler.add_request(make_chunk("c", [7] * 50, 1, FIXED))
    assert reasons(scheduler) == {}
    scheduler.add_request(make_chunk("c", [7] * 50, 1, MOVING))
    assert reasons(scheduler) == {"c": ENDED + WHY}, "when it is parked"
    assert not scheduler.requests and not scheduler.sessions
    assert_books_balance(scheduler)


def test_where_sinks_stay_set_bound_refuses_them_and_changes_nothing():
    rig = where_sinks_stay()
    fill_to_the_wall(rig, SESSIONS)
    rig.chunk("a", 50, 4, FIXED)
    states = {name: vars(state).copy() for name, state in rig.scheduler.sessions.items()}
    queued = rig.scheduler.requests["a"].streaming_queue[0].sampling_params
    extra, before = dict(queued.extra_args), decisive_state(rig.scheduler)
    for name in (*SESSIONS, "nobody"):
        with pytest.raises(BoundError, match=WHY):
            rig.scheduler.set_bound(name, MOVING.to_args())
    assert decisive_state(rig.scheduler) == before
    assert {name: vars(state) for name, state in rig.scheduler.sessions.items()} == states
    assert rig.scheduler.requests["a"].streaming_queue[0].sampling_params is queued and queued.extra_args == extra
    for name in SESSIONS:
        rig.bound(name, FIXED)
    rig.step(20)
    assert all(e.parked for e in rig.expected.values()), "fixed bounds go on"
    assert rig.worker.moves == 0
