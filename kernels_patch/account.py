"""The scheduler's own account of itself: what vLLM's statistics leave out, or get wrong at a wall."""

from __future__ import annotations

from collections.abc import Collection

from vllm.v1.request import Request, RequestStatus

from kernels_patch.parking import ParkingQueue
from workbench.bound import blocks_for

_STATES = {
    RequestStatus.WAITING: "waiting",
    RequestStatus.PREEMPTED: "preempted",
    RequestStatus.RUNNING: "running",
    RequestStatus.WAITING_FOR_STREAMING_REQ: "parked",
}


def snapshot(scheduler, request_ids: Collection[str] | None = None) -> dict:
    """One dict of plain values, of a BoundedScheduler.

    at: seconds on the scheduler's clock (time.monotonic). free_blocks, blocks_total: of the pool.
    running, waiting (every queue, parked ones not counted), parked: sessions in that state.
    preemptions, refused_allocations: since the engine began; first_refused_at on the same clock: the first since there
    was last no session, None before.
    head_needs_blocks: more blocks that the request at the head of the queue asks for, 0 when none waits.
    resident_tokens, evicted_tokens: of all sessions. grown_frames: frames answered so far without each session's
    first; grown_tokens, grown_squares: by how many tokens a session grew from one to the next, summed, and in squares.
    sessions: request id -> (state, resident tokens, evicted tokens, blocks held, chunks queued behind this one); of
    ``request_ids``, by default of all. One that is not open is left out.
    """
    parked = scheduler.num_waiting_for_streaming_input
    requests, sessions = scheduler.requests, scheduler.sessions
    wanted = sessions if request_ids is None else request_ids
    return {
        "at": scheduler.clock(),
        "free_blocks": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        "blocks_total": scheduler.blocks_total,
        "running": len(scheduler.running),
        "waiting": len(scheduler.waiting) + len(scheduler.kv_holding_waiting) - parked,
        "parked": parked,
        "preemptions": scheduler.preemptions,
        "refused_allocations": scheduler.refused_allocations,
        "first_refused_at": scheduler.first_refused_at,
        "head_needs_blocks": _head_needs_blocks(scheduler),
        "resident_tokens": sum([r.num_computed_tokens for r in requests.values() if r.resumable]),
        "evicted_tokens": sum([state.evicted for state in sessions.values()]),
        "grown_frames": scheduler.grown_frames,
        "grown_tokens": scheduler.grown_tokens,
        "grown_squares": scheduler.grown_squares,
        "sessions": _views(scheduler, [key for key in wanted if key in sessions]),
    }


def _views(scheduler, request_ids: list[str]) -> dict[str, tuple[str, int, int, int, int]]:
    requests, sessions, blocks = scheduler.requests, scheduler.sessions, _blocks_of_sessions(scheduler)
    return {
        key: (
            _STATES.get((request := requests[key]).status, "other"),
            request.num_computed_tokens,
            sessions[key].spans[-1][1],
            len(blocks.get(key, ())),
            len(request.streaming_queue or ()),
        )
        for key in request_ids
    }


def _blocks_of_sessions(scheduler) -> dict[str, list]:
    return scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks


def _head_needs_blocks(scheduler) -> int:
    # The order in which the stock scheduler serves: those that hold blocks first, parked ones passed over.
    for queue in (scheduler.kv_holding_waiting, scheduler.waiting):
        if isinstance(queue, ParkingQueue):
            if queue:
                return _needs_blocks(scheduler, queue.peek_request())
            continue
        for request in queue:
            if request.status != RequestStatus.WAITING_FOR_STREAMING_REQ:
                return _needs_blocks(scheduler, request)
    return 0


def _needs_blocks(scheduler, request: Request) -> int:
    held = len(_blocks_of_sessions(scheduler).get(request.request_id, ()))
    return max(0, blocks_for(request.num_tokens, scheduler.block_size) - held)
