"""The worker's half of the bound: add each session's offsets to the rotary positions, after slots are mapped.

Slots and block tables speak of indices among the resident tokens; only the rotary embedding needs to know where a
token truly stands. So the hook runs when the runner has finished its inputs and touches nothing but ``positions``;
where sinks move, their keys in the cache are turned then too.
"""

from __future__ import annotations

import numpy as np
import torch

from kernels_patch.guard import PluginError
from kernels_patch.moving import SinkMover
from kernels_patch.positions import EXTRA_ARGS_KEY, add_offsets


class BoundedWorkerExtension:
    """Mixed into vLLM's worker through ``worker_extension_cls``; its methods answer collective_rpc by name."""

    def metronome_attach(self) -> dict:
        """Hook this worker's runner, once, and say what was hooked. Raises PluginError on a runner it cannot hook."""
        runner = self.model_runner
        if not hasattr(runner, "_prepare_inputs") or not hasattr(runner, "input_batch"):
            raise PluginError(f"{type(runner).__module__}.{type(runner).__name__} has no V1 inputs to hook")
        if runner.uses_mrope:
            raise PluginError("bounded sessions do not support M-RoPE models yet")
        if not getattr(runner, "metronome_attached", False):
            runner.metronome_mover, runner.metronome_sinks_stay = _mover(runner)
            runner._prepare_inputs = _with_true_positions(runner, runner._prepare_inputs)
            runner.metronome_attached = True
        return {
            "runner": f"{type(runner).__module__}.{type(runner).__name__}",
            "sinks_stay": runner.metronome_sinks_stay,
            "rotary_positions": rotary_positions(runner.get_model()),
            "threads": torch.get_num_threads(),
        }


def rotary_positions(model: torch.nn.Module) -> int | None:
    """Rows of the model's shortest rotary table, None when it has none. Past its end the CPU reads garbage."""
    tables = [m.cos_sin_cache.shape[0] for m in model.modules() if hasattr(m, "cos_sin_cache")]
    return min(tables, default=None)


def _mover(runner) -> tuple[SinkMover | None, str | None]:
    """What moves sinks here, or why they cannot move."""
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
