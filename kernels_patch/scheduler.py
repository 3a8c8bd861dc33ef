"""The stock scheduler, plus a bound per session: eviction in place at the frame boundary.

A session without a bound runs the parent's code and nothing else. A bounded one is cut when its next chunk is taken
up: the blocks behind its sinks and before its window go back to the pool, and the same range leaves its token lists
and counts. What is resident is what is attended to, so no mask and no attention backend has to know.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from vllm.v1.core.sched.output import CachedRequestData
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.request import Request, RequestStatus, StreamingUpdate

from kernels_patch import features, positions
from kernels_patch.account import snapshot
from kernels_patch.guard import check_config, check_kv_cache
from kernels_patch.parking import ParkingQueue
from workbench.bound import ENDED, EXTRA_ARGS_KEY, BoundError, KVBound


@dataclass
class SessionState:
    """What the scheduler remembers of one session beside vLLM's own Request."""

    bound: KVBound | None = None
    spans: positions.Spans = field(default_factory=lambda: [(0, 0)])
    # Index at which the newest chunk begins: everything before it is context that may be evicted.
    frame_start: int = 0
    # Age in tokens at the end of the last frame; None before the first.
    age: int | None = None
    # Sinks that move: ``cached`` has the offsets that the keys in the cache still have. ``pinning`` is another number
    # whenever other tokens may be the first of the session, which is when a cut begins elsewhere than the last one.
    cached: positions.Spans = field(default_factory=lambda: [(0, 0)])
    cut_at: int | None = None
    pinning: int = 0

    @property
    def evicted(self) -> int:
        return self.spans[-1][1]


class BoundedScheduler(Scheduler):
    """Scheduler of bounded sessions. Raises PluginError under a configuration it cannot serve.

    ``passes_parked_by``: whether a step leaves parked sessions alone where that changes no decision. Switched off it
    walks them like the stock scheduler.
    """

    passes_parked_by = True

    def __init__(self, vllm_config, kv_cache_config, *args, **kwargs) -> None:
        check_config(vllm_config, prefix_caching=True)
        check_kv_cache(kv_cache_config.kv_cache_groups)
        super().__init__(vllm_config, kv_cache_config, *args, **kwargs)
        self._parking: ParkingQueue | None = None
        # A parked session holds blocks, so one queue is enough. In it the stock scan skips nothing else under these
        # conditions; what it skips it prepends, which here would overtake the parked sessions passed by.
        if self.passes_parked_by and self.policy == SchedulingPolicy.FCFS and self.ec_connector is None:
            self.kv_holding_waiting = self._parking = ParkingQueue()
        self.clock = time.monotonic
        self.vocab_size = vllm_config.model_config.get_vocab_size()
        self.uses_mrope = vllm_config.model_config.uses_mrope
        self.max_positions: int | None = None
        self.attached, self.workers_compute = False, True
        self.sinks_stay: str | None = None
        self.sessions: dict[str, SessionState] = {}
        self.preemptions = 0
        self.refused_allocations = 0
        self.grown_frames = self.grown_tokens = self.grown_squares = 0
        self.first_refused_at: float | None = None
        self._endings: list[tuple[Request, str]] = []
        self._stock_allocate_slots = self.kv_cache_manager.allocate_slots
        self.kv_cache_manager.allocate_slots = self._allocate_and_count

    @property
    def blocks_total(self) -> int:
        # One block is vLLM's null block and never holds tokens.
        return self.kv_cache_manager.block_pool.num_gpu_blocks - 1

    def attach(self, max_positions: int | None, workers_compute: bool = True, sinks_stay: str | None = None) -> None:
        """Called once the workers' position hooks are in place.

        ``max_positions``: rows of the rotary table. ``workers_compute``: False for simulated ones, which need not be
        told the tokens and blocks of a session. ``sinks_stay``: why no worker can move sinks, None where all can.
        """
        self.max_positions = max_positions
        self.workers_compute = workers_compute
        self.sinks_stay = sinks_stay
        self.attached = True

    def _make_cached_request_data(self, running_reqs, resumed_reqs, *args) -> CachedRequestData:
        if self.workers_compute:
            return super()._make_cached_request_data(running_reqs, resumed_reqs, *args)
        scheduled = running_reqs + resumed_reqs
        return CachedRequestData(
            req_ids=[request.request_id for request in scheduled],
            resumed_req_ids=set(),
            new_token_ids=[],
            all_token_ids={},
            new_block_ids=[None] * len(scheduled),
            num_computed_tokens=[request.num_computed_tokens for request in scheduled],
            num_output_tokens=[request.num_output_tokens for request in scheduled],
        )

    # -- taking up a chunk ------------------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        existing = self.requests.get(request.request_id)
        if existing is None:
            super().add_request(request)
            if request.resumable:
                self._open(request)
        elif existing.status == RequestStatus.WAITING_FOR_STREAMING_REQ and request.resumable:
            self._take_up(existing, StreamingUpdate.from_request(request))
        else:
            super().add_request(request)

    def add_chunk(self, request_id: str, tokens: list[int], params, arrival_time: float) -> None:
        """The next chunk of an open session, as ``add_request`` takes it, without a Request made only to carry it."""
        session = self.requests[request_id]
        update = StreamingUpdate(None, tokens, params.max_tokens, arrival_time, params)
        if session.status == RequestStatus.WAITING_FOR_STREAMING_REQ:
            self._take_up(session, update)
        else:
            session.streaming_queue.append(update)

    def _take_up(self, session: Request, update: StreamingUpdate) -> None:
        """Give a parked session its next chunk, or end it."""
        reason = self._reason_to_end(session, update)
        if reason is None:
            self._update_request_as_session(session, update)
        else:
            self._end(session, reason)

    def _open(self, request: Request) -> None:
        state = self.sessions[request.request_id] = SessionState()
        reason = self._reason_not_to_open(request)
        if reason is None:
            state.bound = _bound_of(request.sampling_params)
        else:
            self._end(request, reason)

    def _handle_stopped_request(self, request: Request) -> bool:
        if request.resumable:
            self._note_growth(request)
            if request.streaming_queue and request.streaming_queue[0] is not None:
                reason = self._reason_to_end(request, request.streaming_queue[0])
                if reason is not None:
                    self._endings.append((request, reason))
                    return True
        return super()._handle_stopped_request(request)

    def _note_growth(self, request: Request) -> None:
        """A frame has ended: by how many tokens its session grew since the end of the last one."""
        state = self.sessions[request.request_id]
        age = request.num_computed_tokens - request.num_output_placeholders + state.spans[-1][1]
        if state.age is not None:
            grown = age - state.age
            self.grown_frames += 1
            self.grown_tokens += grown
            self.grown_squares += grown * grown
        state.age = age

    def _update_request_as_session(self, session: Request, update: StreamingUpdate) -> None:
        was_parked = session.status == RequestStatus.WAITING_FOR_STREAMING_REQ
        super()._update_request_as_session(session, update)
        if was_parked and self._parking is not None:
            self._parking.unpark(session)
        state = self.sessions[session.request_id]
        state.bound = _bound_of(update.sampling_params)
        state.frame_start = session.num_computed_tokens
        # The chunk before this one was served: its sinks were moved.
        state.cached = state.spans
        if state.bound is not None:
            self._evict(session, state, session.num_computed_tokens)
        _send_spans(session, state)

    # -- the bound --------------------------------------------------------------------------------------------------

    def _evict(self, session: Request, state: SessionState, resident: int) -> int:
        """Cut ``session`` to its bound, ``resident`` tokens of it being context; return the tokens evicted.

        Only ranges that lie wholly before the newest chunk are cut, so everything cut is prompt by now.
        """
        block_size = self.block_size
        gap = state.bound.evictable(resident, block_size)
        if gap == 0:
            return 0
        start = state.bound.sink_tokens(block_size)
        held = self.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks.get(session.request_id, [])
        freed = held[start // block_size : (start + gap) // block_size]
        del held[start // block_size : (start + gap) // block_size]
        self.kv_cache_manager.block_pool.free_blocks(reversed(freed))
        del session._all_token_ids[start : start + gap]
        del session.prompt_token_ids[start : start + gap]
        if session.mm_features:
            self._cut_features(session, start, start + gap)
        session.num_prompt_tokens -= gap
        session.num_computed_tokens = max(0, session.num_computed_tokens - gap)
        state.frame_start -= gap
        state.spans = positions.cut(state.spans, start, gap)
        state.cached = positions.cut(state.cached, start, gap)
        if start != state.cut_at:
            state.cut_at, state.pinning = start, state.pinning + 1
        if state.bound.moving:
            state.spans = positions.follow(state.spans, start)
        return gap

    def _cut_features(self, session: Request, start: int, end: int) -> None:
        # References are by place in the list. What a preempted session still needs it asks for again.
        self.encoder_cache_manager.free(session)
        held = session.mm_features
        session.mm_features = features.cut(held, start, end)
        gone = {feature.identifier for feature in held} - {feature.identifier for feature in session.mm_features}
        features.forget(self.encoder_cache_manager, gone)

    def set_bound(self, request_id: str, value: dict | None) -> str:
        """Change a session's bound now. Returns "unknown", "at once" or "next frame".

        A session that waits with an unanswered chunk takes up no other before that one is served, which at the wall
        is never; so it is cut here. A parked or running session is cut when it takes up its next chunk.
        Raises BoundError, before anything changed, on a value that is no bound and on sinks that cannot move here.
        """
        bound = KVBound.from_args(value)
        if bound is not None and bound.moving and self.sinks_stay:
            raise BoundError(self.sinks_stay)
        session = self.requests.get(request_id)
        if session is None or request_id not in self.sessions:
            return "unknown"
        state = self.sessions[request_id]
        state.bound = bound
        for update in session.streaming_queue or ():
            if update is not None:
                update.sampling_params = _with(update.sampling_params, EXTRA_ARGS_KEY, value)
        if bound is None or self._reason_not_to_evict(bound, session) or session.num_in_flight_tokens:
            return "next frame"
        if session.status == RequestStatus.WAITING:
            self._evict(session, state, state.frame_start)
        elif session.status == RequestStatus.PREEMPTED:
            if self._evict(session, state, state.frame_start):
                self._send_anew(session)
        else:
            return "next frame"
        _send_spans(session, state)
        return "at once"

    def _send_anew(self, session: Request) -> None:
        """Let a preempted session, which will be prefilled afresh, go to the worker as a new chunk does.

        The worker has its list from before a cut, and has given away what its audio was made of. Sent as a new chunk it
        gets both as they are now, for which the tokens already given in this frame become prompt and are taken off
        those owed.
        """
        given = list(session._output_token_ids)
        session.prompt_token_ids.extend(given)
        session.num_prompt_tokens += len(given)
        session.max_tokens -= len(given)
        session._output_token_ids.clear()
        session.status = RequestStatus.WAITING

    # -- ends -------------------------------------------------------------------------------------------------------

    def _reason_not_to_open(self, request: Request) -> str | None:
        try:
            bound = _bound_of(request.sampling_params)
        except BoundError as error:
            return str(error)
        needed = request.num_tokens + request.max_tokens
        return (
            (self._reason_not_to_evict(bound, request) if bound is not None else None)
            or self._foreign_token(request.prompt_token_ids)
            or self._ends_in_audio(request.prompt_token_ids, request.mm_features)
            or (self._too_long(needed) if needed > self.max_model_len else None)
        )

    def _reason_to_end(self, session: Request, update: StreamingUpdate) -> str | None:
        """Why ``session`` cannot take up ``update``; None when it can. vLLM itself would die, or compute garbage."""
        try:
            bound = _bound_of(update.sampling_params)
        except BoundError as error:
            return str(error)
        if bound is not None and (why := self._reason_not_to_evict(bound, session)):
            return why
        if (bound is not None or self.sessions[session.request_id].evicted) and (why := _no_audio(update.mm_features)):
            return why
        tokens = update.prompt_token_ids
        if why := self._foreign_token(tokens) or self._ends_in_audio(tokens, update.mm_features):
            return why
        resident = session.num_computed_tokens - session.num_output_placeholders
        evictable = 0 if bound is None else bound.evictable(resident, self.block_size)
        needed = resident - evictable + len(update.prompt_token_ids or ()) + update.max_tokens
        if needed > self.max_model_len:
            return self._too_long(needed)
        last = needed + evictable + self.sessions[session.request_id].evicted
        if self.max_positions is not None and last > self.max_positions:
            return f"the next frame would reach position {last}, past the rotary table's {self.max_positions}"
        return None

    def _reason_not_to_evict(self, bound: KVBound, session: Request) -> str | None:
        if self.cache_config.enable_prefix_caching:
            # What later chunks hash to would not be what their KV depends on.
            return "a bounded session cannot be served while prefix caching is on"
        if not self.attached:
            return "bounded without the workers' position hook: shake hands (metronome_attach) first"
        if why := _no_audio(session.mm_features):
            return why
        return self.sinks_stay if bound.moving else None

    def _foreign_token(self, tokens: list[int] | None) -> str | None:
        # Without a tokenizer vLLM does not look, and the embedding kills the engine, where there is one.
        if not tokens or not self.workers_compute or (min(tokens) >= 0 and max(tokens) < self.vocab_size):
            return None
        foreign = next(t for t in tokens if not 0 <= t < self.vocab_size)
        return f"token {foreign} is none of the model's {self.vocab_size}"

    def _ends_in_audio(self, tokens: list[int] | None, heard: list | None) -> str | None:
        # Of such a prompt vLLM 0.32 makes one M-RoPE position too many for Qwen3-Omni, and the engine dies.
        if not self.uses_mrope or not heard:
            return None
        last = heard[-1].mm_position
        if last.offset + last.length < len(tokens):
            return None
        return "a chunk that ends in audio cannot be served: close it with the model's end of audio"

    def _too_long(self, needed: int) -> str:
        return f"the next frame would reach {needed} resident tokens, past max_model_len {self.max_model_len}"

    def _end(self, session: Request, reason: str) -> None:
        # Leaves its id among the finished ones, so the engine makes the step that carries the reason out.
        self._endings.append((session, reason))
        self.finish_requests(session.request_id, RequestStatus.FINISHED_LENGTH_CAPPED)

    def update_from_output(self, scheduler_output, model_runner_output) -> dict[int, EngineCoreOutputs]:
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for session, reason in self._endings:
            outputs.setdefault(session.client_index, EngineCoreOutputs()).outputs.append(
                EngineCoreOutput(
                    request_id=session.request_id,
                    new_token_ids=[],
                    finish_reason=FinishReason.LENGTH,
                    stop_reason=ENDED + reason,
                )
            )
        self._endings.clear()
        return outputs

    def _free_blocks(self, request: Request) -> None:
        super()._free_blocks(request)
        features.forget(self.encoder_cache_manager, [feature.identifier for feature in request.mm_features])
        if self.sessions.pop(request.request_id, None) is not None and not self.sessions:
            # Whoever comes now has the whole pool before them: what was refused is of the sessions that have gone.
            self.first_refused_at = None

    # -- the scheduler's own account --------------------------------------------------------------------------------

    def _allocate_and_count(self, request: Request, *args, **kwargs):
        blocks = self._stock_allocate_slots(request, *args, **kwargs)
        if blocks is None:
            self.refused_allocations += 1
            if self.first_refused_at is None:
                self.first_refused_at = self.clock()
        return blocks

    def _preempt_request(self, request: Request, *args, **kwargs) -> None:
        self.preemptions += 1
        super()._preempt_request(request, *args, **kwargs)
        state = self.sessions.get(request.request_id)
        if state is None:
            return
        bound = state.bound
        # A bound that came while it ran: uncut it might ask for more blocks than it will ever be given.
        may_cut = bound is not None and not self._reason_not_to_evict(bound, request)
        if (may_cut and self._evict(request, state, state.frame_start)) or request.mm_features:
            self._send_anew(request)
            _send_spans(request, state)

    def snapshot(self, request_ids: Collection[str] | None = None) -> dict:
        """See kernels_patch.account.snapshot."""
        return snapshot(self, request_ids)


def _bound_of(params) -> KVBound | None:
    if params is None or params.extra_args is None:
        return None
    return KVBound.from_args(params.extra_args.get(EXTRA_ARGS_KEY))


def _no_audio(heard: list | None) -> str | None:
    other = next((feature.modality for feature in heard or () if feature.modality != "audio"), None)
    # Its positions are not those of a sequence.
    return None if other is None else f"a session that may lose tokens hears audio and no {other}"


def _with(params, key: str, value):
    """A copy of a chunk's parameters with one extra argument: other chunks may share them."""
    changed = copy.copy(params)
    changed.extra_args = {**(params.extra_args or {}), key: value}
    return changed


def _send_spans(session: Request, state: SessionState) -> None:
    """Let the session's spans travel to the worker with this chunk; one that never lost a token sends nothing."""
    if state.spans != [(0, 0)]:
        session.sampling_params = _with(session.sampling_params, positions.EXTRA_ARGS_KEY, state.spans)
    moved = positions.differ_before(state.spans, state.cached)
    value = (moved, state.cached, state.pinning) if moved else None
    # The chunk may say so still of sinks that were let go before it was served.
    if value or (session.sampling_params.extra_args or {}).get(positions.MOVED_KEY):
        session.sampling_params = _with(session.sampling_params, positions.MOVED_KEY, value)
