"""The real scheduler without an engine: vLLM's queues and block pool, and a worker that only keeps books.

The worker does what vLLM's V1 runner does with a scheduler's output, but writes into each KV slot which token of which
session stands there, at which true position. So a wrong block, a wrong position or a lost token is seen at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from kernels_patch.positions import EXTRA_ARGS_KEY as SPANS_KEY
from kernels_patch.positions import MOVED_KEY, offset_at
from workbench.bound import EXTRA_ARGS_KEY as BOUND_KEY
from workbench.bound import KVBound

BLOCK = 32


@lru_cache
def vllm_config():
    """A real VllmConfig for the tiny model, made once."""
    from vllm.engine.arg_utils import EngineArgs

    from workbench.weights import model_path

    return EngineArgs(
        model=str(model_path("tiny")),
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=2048,
        block_size=BLOCK,
        max_num_batched_tokens=2048,
        max_num_seqs=16,
        enforce_eager=True,
        enable_prefix_caching=False,
        async_scheduling=False,
        num_gpu_blocks_override=64,
        kv_cache_memory_bytes=1 << 24,
    ).create_engine_config()


def make_scheduler(scheduler_type, blocks: int):
    """A scheduler with a pool of ``blocks`` blocks that can hold tokens."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    config = vllm_config()
    config.cache_config.num_gpu_blocks = blocks + 1
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=32, dtype=torch.float32)
    scheduler = scheduler_type(
        config,
        KVCacheConfig(blocks + 1, [], [KVCacheGroupSpec(["layer"], spec)]),
        StructuredOutputManager(config),
        block_size=BLOCK,
    )
    if hasattr(scheduler, "attach"):
        scheduler.attach(max_positions=1 << 20)
    return scheduler


def make_chunk(session: str, tokens: list[int], owed: int, bound: KVBound | None = None):
    """The request that carries one chunk of a session."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    extra = None if bound is None else {BOUND_KEY: bound.to_args()}
    params = SamplingParams(temperature=0.0, max_tokens=owed, ignore_eos=True, extra_args=extra)
    return Request(session, list(tokens), params, None, resumable=True)


@dataclass
class WorkerState:
    prompt: list[int]
    outputs: list[int]
    blocks: list[int]
    spans: list[tuple[int, int]]
    # What the chunk says of sinks that moved, until they are where it wants them.
    moved: tuple | None = None


@dataclass
class BookKeeper:
    """The worker. ``slots[block, i]`` is (session, true position, token)."""

    requests: dict[str, WorkerState] = field(default_factory=dict)
    slots: dict[tuple[int, int], tuple[str, int, int]] = field(default_factory=dict)
    sampled: int = 0
    # Of sessions whose sinks moved: the pinning, and whose keys it keeps, (block, index, writes); None before any.
    kept: dict[str, tuple[int, list[tuple[int, int, int]] | None]] = field(default_factory=dict)
    writes: dict[tuple[int, int], int] = field(default_factory=dict)
    moves: int = 0

    def run(self, output) -> tuple[object, dict[str, list[tuple[int, int]]]]:
        """Execute a step; return vLLM's model output, and what each scheduled session's KV holds after it."""
        from vllm.v1.outputs import ModelRunnerOutput

        for session in output.finished_req_ids:
            self.requests.pop(session, None)
        computed = {}
        for new in output.scheduled_new_reqs:
            extra = new.sampling_params.extra_args or {}
            spans, moved = extra.get(SPANS_KEY) or [(0, 0)], extra.get(MOVED_KEY)
            self.requests[new.req_id] = WorkerState(
                list(new.prompt_token_ids), [], list(new.block_ids[0]), spans, moved
            )
            computed[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for i, session in enumerate(cached.req_ids):
            state, blocks = self.requests[session], cached.new_block_ids[i]
            if session in cached.resumed_req_ids:
                state.blocks = list(blocks[0])
            elif blocks is not None:
                state.blocks += blocks[0]
            computed[session] = cached.num_computed_tokens[i]
        sampled, held = [], {}
        for session, count in output.num_scheduled_tokens.items():
            held[session] = self._compute(session, computed[session], count)
            state = self.requests[session]
            if computed[session] + count == len(state.prompt) + len(state.outputs):
                self.sampled += 1
                token = 10_000 + self.sampled
                state.outputs.append(token)
                sampled.append([token])
            else:
                sampled.append([])
        ids = list(output.num_scheduled_tokens)
        return ModelRunnerOutput(ids, {s: i for i, s in enumerate(ids)}, sampled), held

    def _compute(self, session: str, first: int, count: int) -> list[tuple[int, int]]:
        state = self.requests[session]
        if first == 0:
            self.kept.pop(session, None)
        if state.moved is not None:
            self._move(session, state, first)
        tokens = state.prompt + state.outputs
        for i in range(first, first + count):
            slot = (state.blocks[i // BLOCK], i % BLOCK)
            self.slots[slot] = (session, i + offset_at(state.spans, i), tokens[i])
            self.writes[slot] = self.writes.get(slot, 0) + 1
        held = []
        for i in range(first + count):
            owner, position, token = self.slots[state.blocks[i // BLOCK], i % BLOCK]
            assert owner == session, f"{session} reads a slot of {owner}"
            held.append((position, token))
        return held

    def _move(self, session: str, state: WorkerState, first: int) -> None:
        """The first step of a chunk whose sinks moved: they must be where it says, and be those it kept the keys of."""
        (count, cached, pinning), state.moved = state.moved, None
        if first < count:
            self.kept[session] = (pinning, None)
            return
        slots = [(state.blocks[i // BLOCK], i % BLOCK) for i in range(count)]
        for i, slot in enumerate(slots):
            owner, position, token = self.slots[slot]
            assert (owner, position) == (session, i + offset_at(cached, i)), f"{session} turns back another key"
            self.slots[slot] = (session, i + offset_at(state.spans, i), token)
        written = [(*slot, self.writes[slot]) for slot in slots]
        known, keys = self.kept.get(session, (pinning, None))
        if known == pinning and keys is not None and len(keys) == count:
            assert keys == written, f"{session} keeps keys of other tokens"
        self.kept[session] = (pinning, written)
        self.moves += 1


def assert_books_balance(scheduler) -> None:
    """Every block is free or held by exactly one session; token lists and counts of each session agree."""
    pool = scheduler.kv_cache_manager.block_pool
    manager = scheduler.kv_cache_manager.coordinator.single_type_managers[0]
    held = [b.block_id for blocks in manager.req_to_blocks.values() for b in blocks]
    free = [b.block_id for b in pool.free_block_queue.get_all_free_blocks()]
    assert len(set(held)) == len(held), "a block has two owners"
    assert len(set(free)) == len(free), "a block was freed twice"
    assert not set(held) & set(free), "a held block is free"
    assert len(held) + len(free) == pool.num_gpu_blocks - 1, "a block leaked"
    assert all(b.ref_cnt == (1 if b.block_id in set(held) else 0) for b in pool.blocks if not b.is_null)
    for session, request in scheduler.requests.items():
        blocks = len(manager.req_to_blocks.get(session, ()))
        assert blocks * BLOCK >= request.num_computed_tokens >= 0
        assert request.prompt_token_ids == list(request._all_token_ids[: request.num_prompt_tokens])


def decisive_state(scheduler) -> tuple:
    """Everything of a scheduler that its next decisions depend on, as plain values in their order."""
    held = scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks
    queues = scheduler.waiting, scheduler.kv_holding_waiting, scheduler.running
    return (
        [[request.request_id for request in queue] for queue in queues],
        [len(queue) for queue in queues],
        {request.request_id for request in scheduler.deferred_waiting},
        (scheduler.num_waiting_for_streaming_input, scheduler.get_num_unfinished_requests()),
        (scheduler.has_requests(), scheduler.finished_req_ids, scheduler.prefill_capacity_bound),
        [block.block_id for block in scheduler.kv_cache_manager.block_pool.free_block_queue.get_all_free_blocks()],
        [
            (name, r.status, r.num_computed_tokens, r.num_prompt_tokens, r.max_tokens, len(r.streaming_queue or ()))
            + (r.num_preemptions, list(r._all_token_ids), [block.block_id for block in held.get(name, ())])
            for name, r in scheduler.requests.items()
        ],
    )
