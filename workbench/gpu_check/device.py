"""The GPU: whether one can be used here, what it is called, what it can compute in, how much of it is taken."""

from __future__ import annotations

from typing import NamedTuple

from workbench.engine.host import executor
from workbench.gpu_check.table import NotAvailable

CUDA_BUILD = "`make setup EXTRA=gpu` installs vLLM's CUDA build"


class Used(NamedTuple):
    """Bytes of the GPU's memory that are taken, and by ``whose`` words."""

    bytes: int
    whose: str


def unusable() -> str | None:
    """Why nothing can be measured here, in one line; None where it can."""
    if executor() != "vllm-cuda":
        return f"vLLM's CUDA build is not installed: on a machine with an NVIDIA GPU {CUDA_BUILD}"
    import torch

    if not torch.cuda.is_available():
        return "torch finds no NVIDIA GPU that it can use: look at `nvidia-smi` and the driver's version"
    return None


def name() -> str:
    """What the first GPU that may be used is called. This process opens none: that would take memory there."""
    from vllm.platforms import current_platform

    return current_platform.get_device_name(0)


def half() -> str:
    """The dtype of 16 bits that it multiplies in."""
    from vllm.platforms import current_platform

    return "bfloat16" if current_platform.has_device_capability(80) else "float16"


def used(pids: list[int]) -> Used:
    """What the processes hold, else, where it is not told by process, all of them. Raises NotAvailable."""
    try:
        from vllm.platforms import current_platform
        from vllm.third_party import pynvml

        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(current_platform.device_id_to_physical_device_id(0))
            held = {p.pid: p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
            ours = [held[pid] for pid in pids if held.get(pid) is not None]
            if ours:
                return Used(sum(ours), "the engine's, as NVML has it")
            # In a container processes have other numbers than the driver knows.
            taken = pynvml.nvmlDeviceGetMemoryInfo(handle).used
            return Used(taken, "everybody's on this GPU, for NVML does not know the engine's processes")
        finally:
            pynvml.nvmlShutdown()
    except Exception as error:
        # A driver may lack any of these calls; the host's memory is told all the same.
        raise NotAvailable(f"NVML does not tell: {' '.join(str(error).split())}") from error
