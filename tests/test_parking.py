"""Passing parked sessions by: two schedulers side by side, one that walks them and one that does not, must agree."""

from __future__ import annotations

from copy import copy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import FCFSRequestQueue, PriorityRequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from kernels_patch.parking import ParkingQueue
from kernels_patch.scheduler import BoundedScheduler
from tests import scheduler_rig
from tests.scheduler_rig import decisive_state, make_chunk, make_scheduler
from workbench.bound import ENDED, KVBound

PARKED = RequestStatus.WAITING_FOR_STREAMING_REQ
BLOCKED = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
SESSIONS = "abcdefg"
BOUNDS = (None, KVBound(32, 0), KVBound(64, 4), KVBound(40, 33))
FIXED = settings(
    max_examples=100, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)

session = st.sampled_from(SESSIONS)
bound = st.sampled_from(BOUNDS)
step = st.tuples(st.just("step"), st.integers(1, 12), st.booleans())
chunk = st.tuples(st.just("chunk"), session, st.integers(1, 70), st.integers(1, 20), bound)
# Rounds for everyone, one after the other or all at once: the short way to a pool that is too small.
flood = st.tuples(st.just("flood"), st.integers(1, 6), st.integers(1, 40), st.booleans(), bound)
rare = st.one_of(
    st.tuples(st.just("close"), session),
    st.tuples(st.just("close"), session),
    st.tuples(st.just("abort"), st.one_of(st.none(), session, st.sets(session, min_size=2))),
    st.tuples(st.just("one_shot"), st.integers(1, 70), st.integers(1, 30)),
    st.tuples(st.just("block"), session),
    st.tuples(st.just("unblock")),
    st.tuples(st.just("pause"), st.sampled_from([*PauseState, PauseState.UNPAUSED, PauseState.UNPAUSED])),
    st.tuples(st.just("reset"), st.booleans()),
    st.tuples(st.just("bound"), session, bound),
)
limits = st.builds(
    dict,
    blocks=st.integers(6, 20),
    budget=st.sampled_from([16, 40, 90, 2048]),
    seqs=st.sampled_from([2, 4, 7, 16]),
    long_prefill=st.sampled_from([0, 0, 20]),
    positions=st.sampled_from([150, 1 << 20, 1 << 20]),
)
EVENTS = {
    *(f"{w} {s}" for w in ("chunk", "abort", "close") for s in ("waiting", "running", "preempted", "parked")),
    *("chunk new", "abort new", "queued chunk taken up", "passed by", "chunked prefill", "blocked skipped"),
    *("preempted", "refused", "wall", "at the limit", "paused", "reset"),
}
BOUND_EVENTS = {"at once", "next frame", "unknown", "cut", "ended"}


class Walking(BoundedScheduler):
    """Ours with the stock queue."""

    passes_parked_by = False


class Twins:
    """Two schedulers that are told the same and must do the same, and what was reached on the way."""

    def __init__(self, reached, types, blocks=30, budget=2048, seqs=16, long_prefill=0, positions=1 << 20):
        self.reached, self.tokens, self.shots = reached, 0, 0
        self.both = [make_scheduler(scheduler_type, blocks) for scheduler_type in types]
        self.stock_decides = types[0] is Scheduler
        self.ours = self.both[1]
        self.workers = scheduler_rig.BookKeeper(), scheduler_rig.BookKeeper()
        for scheduler in self.both:
            scheduler.max_num_scheduled_tokens = budget
            scheduler.max_num_running_reqs = scheduler.max_num_active_reqs = seqs
            scheduler.scheduler_config = copy(scheduler.scheduler_config)
            scheduler.scheduler_config.long_prefill_token_threshold = long_prefill
            if not self.stock_decides:
                scheduler.max_positions, scheduler.clock = positions, lambda: 0.0

    def do(self, name, *arguments):
        getattr(self, name)(*arguments)
        assert decisive_state(self.both[0]) == decisive_state(self.both[1])
        if not self.stock_decides:
            assert self.both[0].snapshot() == self.both[1].snapshot()
            assert self.both[0].sessions == self.both[1].sessions
        scheduler_rig.assert_books_balance(self.ours)

    def reach(self, events):
        self.reached |= {event for event, came in events.items() if came}

    def note(self, what, name):
        request = self.ours.requests.get(name)
        status = RequestStatus.WAITING if request is None else request.status
        new = status == RequestStatus.WAITING and not (request and request.num_computed_tokens)
        self.reached.add(f"{what} {'new' if new else 'parked' if status == PARKED else status.name.lower()}")

    def add(self, name, count, owed, bound=None, **changes):
        for scheduler in self.both:
            tokens = [t % 2048 for t in range(self.tokens, self.tokens + count)]
            request = make_chunk(name, tokens, owed, None if self.stock_decides else bound)
            for key, value in changes.items():
                setattr(request, key, value)
            scheduler.add_request(request)
        self.tokens += count

    def chunk(self, name, count, owed, bound=None):
        request = self.ours.requests.get(name)
        if request is None or len(request.streaming_queue) < 3:
            self.note("chunk", name)
            self.add(name, count, owed, bound)

    def flood(self, rounds, count, staggered, bound):
        for _ in range(rounds):
            for name in SESSIONS:
                if name not in self.ours.requests or self.ours.requests[name].status == PARKED:
                    self.chunk(name, count, 3, bound)
                    self.do("step", int(staggered))
            self.do("step", 2)

    def close(self, name):
        if name in self.ours.requests:
            self.note("close", name)
            self.add(name, 1, 1, resumable=False)

    def abort(self, names):
        for name in self.ours.requests if names is None else names:
            self.note("abort", name)
        for scheduler in self.both:
            scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)

    def one_shot(self, count, owed):
        self.shots += 1
        self.add(f"shot {self.shots}", count, owed, resumable=False)

    def block(self, name):
        """A session whose first chunk waits for something else is skipped too, in the queue that holds no block."""
        if name not in self.ours.requests:
            self.add(name, 30, 4, status=BLOCKED)

    def unblock(self):
        for request in [r for scheduler in self.both for r in scheduler.requests.values() if r.status == BLOCKED]:
            request.status = RequestStatus.WAITING

    def pause(self, pause_state):
        self.reach({"paused": pause_state != PauseState.UNPAUSED})
        for scheduler in self.both:
            scheduler.set_pause_state(pause_state)

    def reset(self, running):
        # vLLM raises where a parked session keeps its blocks, after it preempted everyone.
        self.reach({"reset": running and self.ours.running})
        outcomes = []
        for scheduler in self.both:
            try:
                outcomes.append(scheduler.reset_prefix_cache(reset_running_requests=running))
            except RuntimeError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]

    def bound(self, name, bound):
        if not self.stock_decides:
            outcomes = [scheduler.set_bound(name, bound and bound.to_args()) for scheduler in self.both]
            assert outcomes[0] == outcomes[1]
            self.reached.add(outcomes[0])

    def step(self, count, throttle=False):
        for _ in range(count):
            if not self.ours.has_requests():
                return
            holding = list(self.ours.kv_holding_waiting)
            parked_at = [i for i, request in enumerate(holding) if request.status == PARKED]
            behind = {r.request_id for r in holding[parked_at[0] :] if r.status != PARKED} if parked_at else set()
            queued = {name for name, request in self.ours.requests.items() if request.streaming_queue}
            outputs = [scheduler.schedule(throttle_prefills=throttle) for scheduler in self.both]
            assert outputs[0] == outputs[1]
            assert list(outputs[0].num_scheduled_tokens) == list(outputs[1].num_scheduled_tokens)
            assert decisive_state(self.both[0]) == decisive_state(self.both[1])
            self._note_step(outputs[1], behind)
            answers = [
                told(scheduler.update_from_output(output, worker.run(output)[0]))
                for scheduler, output, worker in zip(self.both, outputs, self.workers, strict=True)
            ]
            assert answers[0] == answers[1]
            assert decisive_state(self.both[0]) == decisive_state(self.both[1])
            finished = {name for name, _, reason, _ in answers[1] if reason is not None}
            self.reach({"queued chunk taken up": finished & queued & set(self.ours.requests)})
            self.reach({"ended": any(str(why).startswith(ENDED) for *_, why in answers[1])})

    def _note_step(self, output, behind):
        ours, served, snapshot = self.ours, set(output.num_scheduled_tokens), self.ours.snapshot()
        waiting = ours.pause_state == PauseState.UNPAUSED and snapshot["waiting"]
        idle = waiting and not (served or ours.running or snapshot["parked"])
        self.reach(
            {
                "preempted": output.preempted_req_ids,
                "refused": ours.refused_allocations,
                "wall": idle and snapshot["free_blocks"] < snapshot["head_needs_blocks"],
                "passed by": behind & served,
                "chunked prefill": any(r.is_prefill_chunk for r in ours.running),
                "at the limit": waiting and len(ours.running) + snapshot["parked"] >= ours.max_num_active_reqs,
                "blocked skipped": any(r.status == BLOCKED for r in ours.deferred_waiting),
                "cut": any(s.evicted for s in ours.sessions.values()),
            }
        )


def told(answers):
    outputs = [output for answer in answers.values() for output in answer.outputs]
    return [(o.request_id, o.new_token_ids, o.finish_reason, o.stop_reason) for o in outputs]


def run_side_by_side(types):
    reached = set()

    @FIXED
    @given(limits, st.lists(st.one_of(chunk, step, flood, rare), min_size=20, max_size=60))
    def run(limits, operations):
        twins = Twins(reached, types, **limits)
        for name, *arguments in operations:
            twins.do(name, *arguments)

    run()
    return reached


def test_without_bounds_every_decision_is_the_stock_schedulers():
    assert run_side_by_side((Scheduler, BoundedScheduler)) >= EVENTS


def test_with_bounds_passing_by_changes_no_decision():
    assert run_side_by_side((Walking, BoundedScheduler)) >= EVENTS | BOUND_EVENTS


@pytest.mark.parametrize(("scheduler_type", "looked_at"), [(BoundedScheduler, 1), (Walking, len(SESSIONS))])
def test_a_step_looks_at_no_parked_session(scheduler_type, looked_at):
    twins = Twins(set(), (Walking, scheduler_type))
    for name in SESSIONS:
        twins.do("chunk", name, 20, 1)
    twins.do("step", 2)
    assert twins.ours.snapshot()["parked"] == len(SESSIONS)
    twins.do("chunk", SESSIONS[-1], 20, 1)
    looks = []
    look = twins.ours._handle_blocked_waiting_request
    twins.ours._handle_blocked_waiting_request = lambda request: looks.append(request) or look(request)
    twins.do("step", 1)
    assert len(looks) == looked_at


changes = st.sampled_from(["add", "prepend", "prepend both", "remove", "remove both", "pop", "unpark"])


@FIXED
@given(st.lists(st.tuples(changes, st.integers(0, 9), st.integers(0, 9), st.booleans()), min_size=40, max_size=80))
def test_the_queue_is_the_stock_one_with_the_parked_passed_over(operations):
    requests = [make_chunk(str(i), [1], 1) for i in range(10)]
    ours, stock, ready = ParkingQueue(), FCFSRequestQueue(), []
    for name, i, j, parked in operations:
        one, pair = requests[i], [requests[i], requests[j]]
        if name == "remove both":
            [queue.remove_requests(pair) for queue in (ours, stock)]
        elif name == "pop" and ready:
            assert ours.pop_request() is ready[0]
            stock.remove_request(ready[0])
        elif name == "remove" and one in stock:
            [queue.remove_request(one) for queue in (ours, stock)]
        elif name == "unpark" and one in stock and one.status == PARKED:
            one.status = RequestStatus.WAITING
            ours.unpark(one)
        elif name in ("add", "prepend") and one not in stock:
            one.status = PARKED if parked else RequestStatus.WAITING
            [(queue.add_request if name == "add" else queue.prepend_request)(one) for queue in (ours, stock)]
        elif name == "prepend both" and i != j and not set(pair) & set(stock):
            [queue.prepend_requests(pair) for queue in (ours, stock)]
        ready = [request for request in stock if request.status != PARKED]
        assert list(ours) == list(stock) and len(ours) == len(stock) and bool(ours) == bool(ready)
        if ready:
            assert ours.peek_request() is ready[0]
        else:
            pytest.raises(IndexError, ours.peek_request)
            pytest.raises(IndexError, ours.pop_request)


def test_where_passing_by_could_change_a_decision_the_stock_queue_stays(monkeypatch):
    config = scheduler_rig.vllm_config()
    with monkeypatch.context() as patched:
        patched.setattr(config.scheduler_config, "policy", "priority")
        assert type(make_scheduler(BoundedScheduler, 8).kv_holding_waiting) is PriorityRequestQueue
        twins = Twins(set(), (Scheduler, BoundedScheduler), blocks=12)
        twins.do("flood", 6, 40, True, None)
    with monkeypatch.context() as patched:
        patched.setattr(config, "ec_transfer_config", "an encoder cache connector")
        patched.setattr(f"{Scheduler.__module__}.ECConnectorFactory.create_connector", lambda **_: object())
        assert type(make_scheduler(BoundedScheduler, 8).kv_holding_waiting) is FCFSRequestQueue
    assert type(make_scheduler(BoundedScheduler, 8).kv_holding_waiting) is ParkingQueue
