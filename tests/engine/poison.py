"""Freed blocks turn to NaN, and are cleaned when they are given out again: nothing may ever read one in between."""

from __future__ import annotations

import torch

from kernels_patch.scheduler import BoundedScheduler
from kernels_patch.worker import BoundedWorkerExtension


class PoisonScheduler(BoundedScheduler):
    """Sends with each step which blocks were freed and which were given out since the last one."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._freed: list[int] = []
        self._given: list[int] = []
        pool = self.kv_cache_manager.block_pool
        free_blocks, get_new_blocks = pool.free_blocks, pool.get_new_blocks

        def free_and_note(blocks):
            blocks = list(blocks)
            free_blocks(blocks)
            self._freed += [b.block_id for b in blocks if b.ref_cnt == 0]

        def give_and_note(count):
            blocks = get_new_blocks(count)
            self._given += [b.block_id for b in blocks]
            return blocks

        pool.free_blocks, pool.get_new_blocks = free_and_note, give_and_note

    def schedule(self, *args, **kwargs):
        output = super().schedule(*args, **kwargs)
        output.poison_blocks, output.clean_blocks = self._freed, self._given
        self._freed, self._given = [], []
        return output


class PoisonWorker(BoundedWorkerExtension):
    """Poisons and cleans the blocks before each step, and counts what it poisoned."""

    def metronome_attach(self) -> dict:
        runner = self.model_runner
        update_states = runner._update_states
        self.poisoned = 0

        def poison_then_update(scheduler_output):
            for cache in runner.kv_caches:
                for block in scheduler_output.poison_blocks:
                    cache[block].fill_(float("nan"))
                for block in scheduler_output.clean_blocks:
                    cache[block].zero_()
            self.poisoned += len(scheduler_output.poison_blocks)
            return update_states(scheduler_output)

        runner._update_states = poison_then_update
        return super().metronome_attach()

    def poison_report(self) -> dict:
        caches = self.model_runner.kv_caches
        return {
            "poisoned": self.poisoned,
            "nan_blocks": sum(bool(torch.isnan(caches[0][b]).any()) for b in range(caches[0].shape[0])),
        }
