"""The scheduler alone, under random sequences of open, chunk, bound, abort and step, in pools that are too small."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from kernels_patch.scheduler import BoundedScheduler
from tests.scheduler_rig import BLOCK, BookKeeper, assert_books_balance, make_chunk, make_scheduler
from workbench.bound import ENDED, BoundError, KVBound

BOUNDS = (None, KVBound(32, 0), KVBound(64, 4), KVBound(40, 33), KVBound(96, 64))
SESSIONS = "abcd"
SLOW = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))

session = st.sampled_from(SESSIONS)
bound = st.sampled_from(BOUNDS)
operation = st.one_of(
    st.tuples(st.just("chunk"), session, st.integers(1, 70), st.integers(1, 40), bound),
    st.tuples(st.just("chunk"), session, st.integers(1, 70), st.integers(1, 40), bound),
    # Rounds for everyone: the short way into a pool that is too small.
    st.tuples(st.just("flood"), st.integers(1, 8), bound),
    st.tuples(st.just("bound"), session, bound),
    st.tuples(st.just("bound"), session, bound),
    st.tuples(st.just("abort"), session),
    st.tuples(st.just("step"), st.integers(1, 30)),
    st.tuples(st.just("step"), st.integers(1, 30)),
)


class Expected:
    """What a session holds, by the rule: a list of (position, token), cut when a chunk is taken up."""

    def __init__(self):
        self.context, self.frame, self.queued, self.length, self.bound = [], [], [], 0, None
        self.parked = True

    def take_up(self, tokens, bound):
        self.context += self.frame
        # The last sampled token of a frame never enters the context; a frame that never ran has none.
        if self.context and self.sampled_last:
            self.context.pop()
            self.length -= 1
        self.bound = bound
        self.cut()
        self.frame, self.parked = [], False
        self.append(tokens)
        self.sampled_last = False

    sampled_last = False
    evicted = 0

    def append(self, tokens):
        self.frame += [(self.length + i, token) for i, token in enumerate(tokens)]
        self.length += len(tokens)

    def cut(self):
        if self.bound is None:
            return
        pinned = -(-self.bound.sinks // BLOCK) * BLOCK
        surplus = (len(self.context) - pinned - self.bound.window) // BLOCK * BLOCK
        if surplus > 0:
            del self.context[pinned : pinned + surplus]
            self.evicted += surplus


class Rig:
    """A bounded scheduler, the book-keeping worker and what each session must hold."""

    def __init__(self, blocks: int):
        self.scheduler, self.worker = make_scheduler(BoundedScheduler, blocks), BookKeeper()
        self.expected: dict[str, Expected] = {}
        self.next_token = 0
        self.at_once = self.cut_when_preempted = 0

    def chunk(self, name, count, owed, bound):
        tokens = [(self.next_token + i) % 2048 for i in range(count)]
        self.next_token += count
        expected = self.expected.setdefault(name, Expected())
        if expected.parked:
            expected.take_up(tokens, bound)
        elif len(expected.queued) < 2:
            expected.queued.append((tokens, bound))
        else:
            return
        self.scheduler.add_request(make_chunk(name, tokens, owed, bound))

    def flood(self, rounds, bound):
        for _ in range(rounds):
            for name in SESSIONS:
                if name not in self.expected or self.expected[name].parked:
                    self.chunk(name, 40, 3, bound)
            self.step(4)

    def bound(self, name, bound):
        outcome = self.scheduler.set_bound(name, bound and bound.to_args())
        expected = self.expected.get(name)
        assert (outcome == "unknown") == (expected is None)
        if expected is None:
            return
        expected.queued = [(tokens, bound) for tokens, _ in expected.queued]
        expected.coming = bound
        if outcome == "at once":
            self.at_once += 1
            expected.bound = bound
            expected.cut()
        assert_books_balance(self.scheduler)

    def abort(self, name):
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        self.expected.pop(name, None)

    def step(self, count=1):
        for _ in range(count):
            if not self.scheduler.has_requests():
                return
            output = self.scheduler.schedule()
            self._cut_the_preempted()
            result, held = self.worker.run(output)
            for name, content in held.items():
                expected = self.expected[name]
                assert content == (expected.context + expected.frame)[: len(content)]
            for name, tokens in zip(result.req_ids, result.sampled_token_ids, strict=True):
                self.expected[name].append(tokens)
                self.expected[name].sampled_last |= bool(tokens)
            for outputs in self.scheduler.update_from_output(output, result).values():
                for out in outputs.outputs:
                    if out.finish_reason is not None:
                        self._answered(out)
            assert_books_balance(self.scheduler)

    def _cut_the_preempted(self):
        """A bound that came while a session ran cuts it when it is preempted in that frame."""
        for name, expected in self.expected.items():
            if name in self.scheduler.sessions and self.scheduler.sessions[name].evicted > expected.evicted:
                expected.bound = expected.coming
                expected.cut()
                self.cut_when_preempted += 1

    def _answered(self, out):
        expected = self.expected[out.request_id]
        assert not (isinstance(out.stop_reason, str) and out.stop_reason.startswith(ENDED)), out.stop_reason
        expected.parked = True
        if expected.queued:
            expected.take_up(*expected.queued.pop(0))


@SLOW
@given(st.integers(6, 30), st.lists(operation, min_size=15, max_size=60))
def test_no_block_is_leaked_shared_or_freed_twice_and_every_slot_holds_its_token(blocks, operations):
    rig = Rig(blocks)
    for name, *arguments in operations:
        getattr(rig, name)(*arguments)
        assert_books_balance(rig.scheduler)
    for name in list(rig.expected):
        rig.abort(name)
    rig.step()
    assert rig.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == blocks
    assert not rig.scheduler.requests and not rig.scheduler.sessions


@SLOW
@given(
    st.integers(6, 30),
    st.lists(operation.filter(lambda o: o[0] in ("chunk", "abort", "step")), min_size=15, max_size=60),
)
def test_without_bounds_every_decision_is_the_stock_schedulers(blocks, operations):
    ours, stock = make_scheduler(BoundedScheduler, blocks), make_scheduler(Scheduler, blocks)
    workers = BookKeeper(), BookKeeper()
    tokens = 0
    for name, *arguments in operations:
        if name == "chunk":
            who, count, owed, _ = arguments
            for scheduler in (ours, stock):
                if who in scheduler.requests and len(scheduler.requests[who].streaming_queue) > 1:
                    continue
                scheduler.add_request(make_chunk(who, [t % 2048 for t in range(tokens, tokens + count)], owed))
            tokens += count
        elif name == "abort":
            for scheduler in (ours, stock):
                scheduler.finish_requests(arguments[0], RequestStatus.FINISHED_ABORTED)
        else:
            for _ in range(arguments[0]):
                assert ours.has_requests() == stock.has_requests()
                if not ours.has_requests():
                    break
                outputs = [s.schedule() for s in (ours, stock)]
                assert decisions(outputs[0]) == decisions(outputs[1])
                answers = [
                    s.update_from_output(o, w.run(o)[0])
                    for s, o, w in zip((ours, stock), outputs, workers, strict=True)
                ]
                assert told(answers[0]) == told(answers[1])
        assert ours.kv_cache_manager.usage == stock.kv_cache_manager.usage


def decisions(output):
    cached = output.scheduled_cached_reqs
    return (
        output.num_scheduled_tokens,
        [(n.req_id, n.block_ids, n.num_computed_tokens, n.prompt_token_ids) for n in output.scheduled_new_reqs],
        (cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, cached.resumed_req_ids),
        output.finished_req_ids,
        output.preempted_req_ids,
    )


def told(answers):
    return [(o.request_id, o.new_token_ids, o.finish_reason) for a in answers.values() for o in a.outputs]


def fill_to_the_wall(rig, names, bound=None):
    """Chunks to every session until a step schedules nothing though all have one unanswered."""
    for _ in range(200):
        for name in names:
            if rig.expected.get(name) is None or rig.expected[name].parked:
                rig.chunk(name, 50, 4, bound)
        rig.step(6)
        if not any(e.parked for e in rig.expected.values()):
            return
    raise AssertionError("no wall")


def test_at_the_wall_the_bound_cuts_at_once_and_everyone_is_served_again():
    rig = Rig(40)
    fill_to_the_wall(rig, SESSIONS)
    snapshot = rig.scheduler.snapshot()
    assert snapshot["free_blocks"] < snapshot["head_needs_blocks"]
    assert snapshot["waiting"] == len(SESSIONS) and snapshot["parked"] == snapshot["running"] == 0
    rig.step(50)
    assert not any(e.parked for e in rig.expected.values()), "stock waits for ever"
    # A chunk that carries the bound queues behind the unanswered one and changes nothing.
    rig.chunk("a", 50, 4, KVBound(64, 4))
    rig.step(50)
    assert not any(e.parked for e in rig.expected.values())
    for name in SESSIONS:
        rig.bound(name, KVBound(64, 4))
    assert rig.at_once == len(SESSIONS)
    rig.step(20)
    assert all(e.parked for e in rig.expected.values())


def test_a_preempted_session_is_cut_at_once_and_its_reply_stays_whole():
    rig = Rig(24)
    for name in "ab":
        for _ in range(5):
            rig.chunk(name, 60, 2, None)
            rig.step(4)
    rig.chunk("a", 10, 60, None)
    rig.chunk("b", 10, 120, None)
    while rig.scheduler.preemptions == 0:
        rig.step()
    victim = next(n for n, r in rig.scheduler.requests.items() if r.status == RequestStatus.PREEMPTED)
    request = rig.scheduler.requests[victim]
    given, owed = len(request._output_token_ids), request.max_tokens
    assert given > 0
    rig.bound(victim, KVBound(64, 4))
    assert rig.at_once == 1
    assert request.max_tokens == owed - given
    rig.step(200)
    assert rig.expected[victim].parked, "served from its resident tokens"
    assert len(rig.expected[victim].frame) == 10 + owed, "every token owed came, those given before included"


def test_a_bound_that_is_none_is_refused_before_anything_changes():
    rig = Rig(20)
    rig.chunk("a", 50, 4, None)
    with pytest.raises(BoundError):
        rig.scheduler.set_bound("a", {"window": -1})
    assert rig.scheduler.sessions["a"].bound is None


def test_a_bounded_session_without_the_position_hook_is_ended_alone():
    scheduler = make_scheduler(BoundedScheduler, 20)
    scheduler.attached = False
    scheduler.add_request(make_chunk("a", list(range(50)), 4, KVBound(64, 4)))
    scheduler.add_request(make_chunk("b", list(range(50)), 4))
    output = scheduler.schedule()
    assert set(output.num_scheduled_tokens) == {"b"}
    outputs = scheduler.update_from_output(output, BookKeeper().run(output)[0])
    reasons = [o.stop_reason for a in outputs.values() for o in a.outputs if o.request_id == "a"]
    assert len(reasons) == 1 and "position hook" in reasons[0]


@pytest.mark.parametrize(
    ("tokens", "owed", "says"),
    [([1, 5000], 4, "token 5000 is none"), ([1] * 1990, 20, "past max_model_len 2048")],
)
def test_a_queued_chunk_that_cannot_be_taken_up_ends_its_session_alone(tokens, owed, says):
    scheduler, worker, told_of = make_scheduler(BoundedScheduler, 70), BookKeeper(), []
    scheduler.add_request(make_chunk("a", [7] * 50, 4))
    scheduler.add_request(make_chunk("b", [8] * 50, 4))
    scheduler.add_request(make_chunk("a", tokens, owed))
    while scheduler.has_requests():
        output = scheduler.schedule()
        for outputs in scheduler.update_from_output(output, worker.run(output)[0]).values():
            told_of += [(o.request_id, o.finish_reason is not None, o.stop_reason) for o in outputs.outputs]
        assert_books_balance(scheduler)
    reasons = [reason for name, finished, reason in told_of if name == "a" and finished]
    assert reasons[0] is None and reasons[1].startswith(ENDED) and says in reasons[1]
    assert set(scheduler.requests) == {"b"}, "which is parked"
    assert scheduler.snapshot()["parked"] == 1


def test_refused_allocations_and_preemptions_are_counted():
    rig = Rig(40)
    rig.scheduler.clock = iter(range(1, 10_000)).__next__
    assert rig.scheduler.snapshot()["first_refused_at"] is None
    fill_to_the_wall(rig, SESSIONS)
    snapshot = rig.scheduler.snapshot()
    assert snapshot["refused_allocations"] > 0
    assert 1 < snapshot["first_refused_at"] < snapshot["at"]
