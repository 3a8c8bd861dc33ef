"""The bound a second time, another way: the freed columns leave each step's block table, and nothing else is told.

The scheduler is the stock one and never deletes a token: indices stay true positions, so no offset is needed. A cache
manager of its own frees the blocks of the gap, and the metadata builder drops their columns from the rows that
attention is given and shortens the lengths to match. The gap follows the newest token at every step, so it also grows
inside a reply, where the plugin waits for the next frame. Of the plugin only the form of the bound is used.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from vllm.v1.attention.backend import subclass_attention_backend
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager, register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec, replace_as
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

from workbench.bound import EXTRA_ARGS_KEY


def gap(bound: dict | None, computed: int, block: int) -> range:
    """The columns of a block table that are out of bound when ``computed`` tokens are in the cache."""
    if bound is None:
        return range(0)
    pinned = -(-bound.get("sinks", 0) // block)
    return range(pinned, max(pinned, (computed - bound["window"]) // block))


def bound_of(request) -> dict | None:
    return (request.sampling_params.extra_args or {}).get(EXTRA_ARGS_KEY)


class CompactingManager(FullAttentionManager):
    """Frees what a request of ``bounds`` no longer attends to; null blocks keep the places of those that are gone."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.bounds: dict[str, dict | None] = {}

    def remove_skipped_blocks(self, request_id, processed_computed_tokens, num_prompt_tokens=None) -> None:
        columns = gap(self.bounds[request_id], processed_computed_tokens, self.block_size)
        self._remove_blocks_in_range(request_id, columns.start, columns.stop)


@dataclass(frozen=True, kw_only=True)
class CompactingSpec(FullAttentionSpec):
    """Full attention whose blocks CompactingManager keeps."""


# The built-in ones first: where any is registered, vLLM takes all of them to be.
register_all_kvcache_specs(None)
KVCacheSpecRegistry.register(CompactingSpec, CompactingManager, uniform_type_base_spec=FullAttentionSpec)


class CompactingScheduler(Scheduler):
    """The stock scheduler, which tells the manager the bound that a session opened with; it stays for good."""

    def add_request(self, request) -> None:
        manager = self.kv_cache_manager.coordinator.single_type_managers[0]
        manager.bounds.setdefault(request.request_id, bound_of(request))
        super().add_request(request)


def compacting_specs(specs: dict[str, KVCacheSpec]) -> dict[str, KVCacheSpec]:
    return {layer: replace_as(spec, CompactingSpec) for layer, spec in specs.items()}


def compacting_backend(backend, runner):
    """``backend`` with a metadata builder that compacts the rows of ``runner``'s batch."""

    class CompactingBuilder(backend.get_builder_cls()):
        def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
            compact = compacted(common_attn_metadata, runner, self.kv_cache_spec.block_size)
            return super().build(common_prefix_len, compact, fast_build)

    return subclass_attention_backend("Compacting", backend, CompactingBuilder)


def compacted(metadata, runner, block: int):
    """Attention's view of a batch without the columns that were freed; the runner's own tables are left as they are."""
    table, lengths = metadata.block_table_tensor.clone(), metadata.seq_lens.clone()
    queries = torch.diff(metadata.query_start_loc)
    for row, request_id in enumerate(runner.input_batch.req_ids[: metadata.num_reqs]):
        computed = int(lengths[row] - queries[row])
        columns = gap(bound_of(runner.requests[request_id]), computed, block)
        if columns:
            table[row, columns.start : -len(columns)] = metadata.block_table_tensor[row, columns.stop :]
            lengths[row] -= len(columns) * block
    return metadata.replace(block_table_tensor=table, seq_lens=lengths, max_seq_len=int(lengths.max()))
