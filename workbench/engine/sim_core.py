"""The real EngineCore in this process, with a simulated executor: scheduler, block pool and queues are vLLM's own."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

from workbench.engine.base import EngineError
from workbench.engine.host import first_line

VOCABULARY = 32_768  # the load has no meaning, so any vocabulary does


def make_core(profile, scheduler: str):
    """An EngineCore for ``profile`` with a simulated executor, and that executor. Raises EngineError."""
    with _quiet_environment():
        from vllm import envs
        from vllm.v1.engine.core import EngineCore

        from workbench.engine.sim_executor import SimulatedExecutor

        made = []

        def make_executor(config) -> SimulatedExecutor:
            made.append(SimulatedExecutor(config))
            return made[0]

        try:
            core = EngineCore(_config(profile, scheduler), make_executor, log_stats=False)
        except (ValueError, AssertionError) as error:
            raise EngineError(f"the simulated engine did not start: {first_line(error)}") from error
        finally:
            # EngineCore holds on to the environment as it finds it; a real engine may start in this process later.
            envs.disable_envs_cache()
    return core, made[0]


@contextmanager
def _quiet_environment():
    """vLLM reads these as it is imported and as a configuration is made; nothing of this process changes for others."""
    wanted = {"HF_HUB_OFFLINE": "1", "VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_NO_USAGE_STATS": "1"}
    wanted["VLLM_LOGGING_LEVEL"] = os.environ.get("VLLM_LOGGING_LEVEL", "ERROR")
    before = {key: os.environ.get(key) for key in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key)
            else:
                os.environ[key] = value


def _config(profile, scheduler: str):
    from vllm.engine.arg_utils import AsyncEngineArgs

    from workbench.engine.sim_executor import SimulatedExecutor

    # Any architecture with full attention: only its vocabulary and the length of its rotary table are looked at.
    model = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "num_hidden_layers": 1,
        "intermediate_size": 64,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": profile.max_positions,
    }
    with tempfile.TemporaryDirectory(prefix="metronome-model-") as folder:
        Path(folder, "config.json").write_text(json.dumps(model))
        return AsyncEngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=profile.max_model_len,
            block_size=profile.block_size,
            # vLLM takes one block of the pool for its null block.
            num_gpu_blocks_override=profile.pool_blocks + 1,
            max_num_seqs=profile.max_sessions,
            max_num_batched_tokens=profile.max_batched_tokens,
            enforce_eager=True,
            enable_prefix_caching=profile.shared_prefix > 0,
            async_scheduling=False,
            scheduler_cls=scheduler,
            distributed_executor_backend=SimulatedExecutor,
            load_format="dummy",
            generation_config="vllm",
            disable_log_stats=True,
            seed=profile.seed,
        ).create_engine_config()
