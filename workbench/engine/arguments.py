"""What vLLM is started with: the environment of its processes and the arguments of its engine."""

from __future__ import annotations

import json
import os
from pathlib import Path

from workbench.engine.child import LOG_ENV, PARENT_ENV
from workbench.engine.host import LOG, LOG_FORMAT, PLUGIN, core_list, executor
from workbench.engine.model import decoder_override, hears, is_one_of, pool_bytes, read_config
from workbench.frontends.text import TOKENIZER_FILES
from workbench.omni_models import LONGEST_S, OMNI

# A frame's audio is new: to keep what the feature extractor made of it is of no use.
_HEARS = {
    "limit_mm_per_prompt": {"audio": 1, "image": 0, "video": 0},
    "mm_processor_cache_gb": 0,
    "skip_mm_profiling": True,
}


def environment(cores: str, log_dir: Path) -> dict[str, str]:
    """Of the engine's processes, which write their log into ``log_dir``."""
    log = log_dir / LOG
    config = log_dir / "logging.json"
    handler = {"class": "logging.FileHandler", "filename": str(log), "formatter": "plain"}
    config.write_text(
        json.dumps(
            {
                "version": 1,
                "disable_existing_loggers": False,
                "formatters": {"plain": {"format": LOG_FORMAT}},
                "handlers": {"file": handler},
                "loggers": {"vllm": {"handlers": ["file"], "level": "INFO", "propagate": False}},
            }
        )
    )
    allowed = os.environ.get("VLLM_PLUGINS")
    return {
        LOG_ENV: str(log),
        PARENT_ENV: str(os.getpid()),
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_CONFIG_PATH": str(config),
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_CPU_OMP_THREADS_BIND": core_list(cores),
        "VLLM_NO_USAGE_STATS": "1",
        **({} if allowed is None else {"VLLM_PLUGINS": f"{allowed},{PLUGIN}"}),
    }


def engine_args(profile, folder: Path, scheduler: str, worker_extension: str, trusted: bool) -> dict:
    """The arguments of vLLM's AsyncEngineArgs for the model in ``folder``. Raises EngineError."""
    config = read_config(folder)
    media = hears(config)
    args = {
        "model": str(folder),
        # A model that hears has its placeholders found among the tokens by its own processor.
        "skip_tokenizer_init": not media or not any((folder / name).is_file() for name in TOKENIZER_FILES),
        "trust_remote_code": trusted,
        "dtype": profile.dtype,
        "max_model_len": profile.max_model_len,
        "block_size": profile.block_size,
        # vLLM takes one block of the pool for its null block.
        "num_gpu_blocks_override": profile.pool_blocks + 1,
        "max_num_seqs": profile.max_sessions,
        "max_num_batched_tokens": profile.max_batched_tokens,
        "enforce_eager": executor() == "vllm-cpu",
        "enable_prefix_caching": False,
        "async_scheduling": False,
        "scheduler_cls": scheduler,
        "worker_extension_cls": worker_extension,
        "hf_overrides": decoder_override(config, max_position_embeddings=profile.max_positions),
        "generation_config": "vllm",
        "disable_log_stats": True,
        "seed": profile.seed,
    }
    if executor() == "vllm-cpu":
        args["kv_cache_memory_bytes"] = pool_bytes(folder, profile)
    if media:
        args |= _HEARS
    if is_one_of(config, *OMNI["qwen2.5-omni"].architectures):
        # Its processor pads each piece of audio to this many seconds, 300 as published: of a frame that is nearly all.
        args["mm_processor_kwargs"] = {"chunk_length": LONGEST_S}
    return args
