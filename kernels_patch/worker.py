"""The worker's half of the bound: add each session's offsets to the rotary positions, after slots are mapped.

Slots and block tables speak of indices among the resident tokens; only the rotary embedding needs to know where a
token truly stands. So the hook runs when the runner has finished its inputs and touches nothing but ``positions``;
where sinks move, their keys in the cache are turned then too.

M-RoPE has three positions for a token, which the runner makes of the whole prompt at every chunk. Of a session that
hears audio alone all three are its place in the sequence; so of one that lost tokens they are made of its offsets.
"""

from __future__ import annotations

import numpy as np
import torch

from kernels_patch.depth import attach_depth
from kernels_patch.guard import PluginError
from kernels_patch.moving import SinkMover, language_model
from kernels_patch.positions import EXTRA_ARGS_KEY, add_offsets, offsets


class BoundedWorkerExtension:
    """Mixed into vLLM's worker through ``worker_extension_cls``; its methods answer collective_rpc by name."""

    def metronome_attach(self) -> dict:
        """Hook this worker's runner, once, and say what was hooked. Raises PluginError on a runner it cannot hook."""
        runner = self.model_runner
        if not hasattr(runner, "_prepare_inputs") or not hasattr(runner, "input_batch"):
            raise PluginError(f"{type(runner).__module__}.{type(runner).__name__} has no V1 inputs to hook")
        if not getattr(runner, "metronome_attached", False):
            runner.metronome_mover, runner.metronome_sinks_stay = _mover(runner)
            runner._prepare_inputs = _with_true_positions(runner, runner._prepare_inputs)
            if runner.uses_mrope:
                runner._init_mrope_positions = _true_mrope_positions(runner._init_mrope_positions)
            if hasattr(runner.get_model(), "depth"):
                attach_depth(runner)
            runner.metronome_attached = True
        return {
            "runner": f"{type(runner).__module__}.{type(runner).__name__}",
            "sinks_stay": runner.metronome_sinks_stay,
            "rotary_positions": rotary_positions(runner.get_model()),
            "threads": torch.get_num_threads(),
            "speaks": hasattr(runner.get_model(), "depth"),
        }

    def metronome_encoder_entries(self) -> int:
        """Encoder outputs that this worker keeps."""
        return len(self.model_runner.encoder_cache)


def rotary_positions(model: torch.nn.Module) -> int | None:
    """Rows of the shortest rotary table of what speaks, None when it has none. Past its end the CPU reads garbage."""
    tables = [m.cos_sin_cache.shape[0] for m in language_model(model).modules() if hasattr(m, "cos_sin_cache")]
    return min(tables, default=None)


def _mover(runner) -> tuple[SinkMover | None, str | None]:
    """What moves sinks here, or why they cannot move."""
    if runner.uses_mrope:
        return None, "sinks cannot move in this model: it has M-RoPE, for which that was never checked"
    try:
        return SinkMover(runner), None
    except PluginError as error:
        return None, str(error)


def _with_true_positions(runner, prepare_inputs):
    def prepare_inputs_then_shift(scheduler_output, num_scheduled_tokens):
        result = prepare_inputs(scheduler_output, num_scheduled_tokens)
        shift = _shift(runner, num_scheduled_tokens)
        if shift is not None:
            runner.positions[: len(shift)] += torch.from_numpy(shift).to(runner.positions.device)
        if runner.metronome_mover is not None:
            runner.metronome_mover.move(len(num_scheduled_tokens))
        return result

    return prepare_inputs_then_shift


def _true_mrope_positions(init_mrope_positions):
    def init_by_offsets(req_state) -> None:
        params = req_state.sampling_params
        spans = params and params.extra_args and params.extra_args.get(EXTRA_ARGS_KEY)
        if not spans:
            init_mrope_positions(req_state)
            return
        count = len(req_state.prompt_token_ids)
        at = torch.from_numpy(np.arange(count) + offsets(spans, 0, count))
        req_state.mrope_positions = at.expand(3, -1)
        req_state.mrope_position_delta = spans[-1][1]

    return init_by_offsets


def _shift(runner, num_scheduled_tokens: np.ndarray) -> np.ndarray | None:
    """Offsets of all tokens of this step in batch order, int64; None when every one is 0."""
    batch, shift, end = runner.input_batch, None, 0
    for row, count in enumerate(num_scheduled_tokens):
        begin, end = end, end + int(count)
        params = runner.requests[batch.req_ids[row]].sampling_params
        spans = params and params.extra_args and params.extra_args.get(EXTRA_ARGS_KEY)
        if spans:
            if shift is None:
                shift = np.zeros(int(num_scheduled_tokens.sum()), dtype=np.int64)
            add_offsets(shift[begin:end], spans, int(batch.num_computed_tokens_cpu[row]))
    return shift
