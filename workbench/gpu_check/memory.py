"""Memory of an engine whose sessions are bounded: on the host and on the GPU it does not grow with their age."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from workbench._loop import run_to_end
from workbench.engine.rounds import Rounds
from workbench.gpu_check import device
from workbench.gpu_check.served import Setting, running
from workbench.gpu_check.table import ABSENT, NotAvailable, Row, judged

FRAMES, SESSIONS, FRAME_TOKENS, OWED = 300, 4, 50, 4
EVERY = 10
MIB = 1 << 20
# An allocator hands out more at a time than was asked for.
HOST_LIMIT, DEVICE_LIMIT = 16 * MIB, 4 * MIB


def run(
    setting: Setting, say: Callable[[str], None], device_bytes: Callable[[list[int]], device.Used] = device.used
) -> list[Row]:
    """Rows for blocks, host and GPU. ``device_bytes``: pids -> what they hold there. Raises EngineError."""
    return run_to_end(_run(setting, say, device_bytes))


async def _run(setting: Setting, say, device_bytes) -> list[Row]:
    import psutil

    bound, block = setting.profile.bound, setting.profile.block_size
    names, host, gpu, why_not = [f"m{k}" for k in range(SESSIONS)], [], [], None
    async with running(setting, say, logprobs=False) as engine:
        rounds, own = Rounds(engine), psutil.Process()
        say(f"{FRAMES} frames")
        for k in range(FRAMES):
            await rounds.frame(names, FRAME_TOKENS, OWED, bound)
            if k % EVERY == EVERY - 1:
                host.append(own.memory_info().rss + (engine.rss_bytes() or 0))
                try:
                    gpu.append(device_bytes(engine.pids))
                except NotAvailable as error:
                    why_not = str(error)
        views = (await engine.snapshot()).sessions
    resident, most = max(view.resident for view in views.values()), bound.resident_max(block, FRAME_TOKENS, OWED)
    rows = [judged("resident", resident <= most, f"{resident} tokens a session at the end, at most {most}")]
    rows.append(_flat("host", host, HOST_LIMIT, "resident memory of this process and the engine's"))
    if why_not is not None:
        return [*rows, Row("GPU", ABSENT, why_not)]
    return [*rows, _flat("GPU", [used.bytes for used in gpu], DEVICE_LIMIT, gpu[-1].whose)]


def _flat(part: str, samples: list[int], limit: int, what: str) -> Row:
    """Compared are the second third of the run and the last: in the first one windows and buffers fill."""
    third = len(samples) // 3
    early, late = median(samples[third : 2 * third]), median(samples[-third:])
    grown = (late - early) / MIB
    detail = f"{late / MIB:.0f} MiB, {grown:+.1f} over the last third, at most {limit / MIB:.0f}: {what}"
    return judged(part, late - early <= limit, detail, bytes=late, grown_bytes=late - early, samples=samples)
