"""The checks there are, in the order in which they run, each with the seconds that it is meant to take.

The budgets add up to ten minutes. The first one has the longest, for then nothing is compiled and no file is in memory.
"""

from __future__ import annotations

from functools import partial

from workbench.gpu_check import cliff, exactness, graphs, memory, runners, steps
from workbench.gpu_check.contained import Check


def _exact(name: str, budget_s: float, backend: str, dtype: str | None = None) -> Check:
    what = f"the bound is exact on {backend}" + (f" in {dtype}" if dtype else "")
    return Check(name, budget_s, what, partial(exactness.run, backend=backend, dtype=dtype))


CHECKS = (
    _exact("exact-flash-attn", 100, "FLASH_ATTN"),
    _exact("exact-flashinfer", 75, "FLASHINFER"),
    _exact("exact-triton", 55, "TRITON_ATTN"),
    # The one of the three whose kernels take it.
    _exact("exact-float32", 55, "TRITON_ATTN", "float32"),
    Check("runners", 40, "the V1 model runner serves, V2 is refused", runners.run),
    Check("graphs", 75, "CUDA graphs change nothing", graphs.run),
    Check("cliff", 95, "the cliff and the slope, in real time", cliff.run),
    Check("steps", 65, "a decode step beside vLLM's own scheduler and worker", steps.run),
    Check("memory", 40, "memory does not grow with the age of sessions", memory.run),
)
