"""The profiles of the four interaction models: real weights on a CUDA machine, and tiny random ones on the CPU.

Both of a model take the same way through the engine. The real ones are written for a GPU with room for the weights and
the pool; none of them was ever run here.
"""

from __future__ import annotations

from collections.abc import Iterator

# For what a GPU serves: the type the checkpoints are published in and vLLM's own block size there.
_CUDA = {"dtype": "bfloat16", "block_size": 16, "max_batched_tokens": 8192, "wait_cap": 0.8}
_QWEN = {"frame_budget_s": 2.0, "window": 2048, "sinks": 64, "sessions": 16, "max_model_len": 32768}
# Small enough that four sessions fill the pool within half a minute, in frames enough to foretell it from.
_TINY = {"sessions": 4, "window": 128, "pool_blocks": 48, "max_model_len": 1024, "max_positions": 8192}
_TINY_POOL = {"qwen2.5-omni": {"pool_blocks": 144, "max_model_len": 2048}, "qwen3-omni": {"pool_blocks": 80}}
_MOSHI = {"front_end": "moshi", "frame_budget_s": 0.08, "tokens_owed": 1}
_REAL = {
    "qwen2.5-omni": {
        "model": "Qwen/Qwen2.5-Omni-7B",
        **_QWEN,
        "pool_blocks": 12_000,
        "max_positions": 32768,
        "tokens_owed": 7,
    },
    "qwen3-omni": {
        "model": "Qwen/Qwen3-Omni-30B-A3B-Instruct",
        **_QWEN,
        "pool_blocks": 12_000,
        "max_positions": 65536,
        "tokens_owed": 7,
    },
    # Its checkpoint brings code of its own, which runs where the user sets trust_remote_code.
    "minicpm-o-4.5": {
        "model": "openbmb/MiniCPM-o-4_5",
        "frame_budget_s": 1.0,
        "window": 2048,
        "sinks": 64,
        "sessions": 16,
        "max_model_len": 32768,
        "pool_blocks": 8_000,
        "max_positions": 40960,
        "tokens_owed": 4,
    },
}


def interaction_profiles(make) -> Iterator:
    """The eight profiles. ``make``: the class Profile."""
    for name, served in _REAL.items():
        yield make(name=name, front_end=f"omni:{name}", **_CUDA, **served)
        tiny = {**_TINY, **_TINY_POOL.get(name, {}), "frame_budget_s": served["frame_budget_s"]}
        yield make(name=f"{name}-tiny", model=f"{name}-tiny", front_end=f"omni:{name}", **tiny)
    # Its own attention sees 3,000 frames, four minutes, the newest among them: that is the window here.
    # Few sessions: their codec hears one after the other before a beat's chunks go out, and vLLM's scheduler looks
    # through each position that a session holds at every chunk.
    real = {"window": 2999, "sinks": 0, "sessions": 4, "pool_blocks": 2_000, "max_model_len": 16384}
    yield make(name="moshi", model="kmhf/hf-moshiko", max_positions=131_072, **_MOSHI, **_CUDA, **real)
    # Two cores keep a beat of 80 ms for two sessions, not for four.
    tiny = {**_TINY, "window": 96, "sessions": 2, "pool_blocks": 24, "max_model_len": 768}
    yield make(name="moshi-tiny", model="moshi-tiny", **_MOSHI, **tiny)
