"""Models that vLLM does not know, or not rightly, told to it by name: imported where one of them is served."""

from __future__ import annotations

MOSHI, MINICPM = "MoshiForConditionalGeneration", "MiniCPMO"


def register_models() -> None:
    """Make them known to this process's vLLM; more than once is no error."""
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP
    from vllm.model_executor.models.registry import ModelRegistry

    if MOSHI not in MODELS_CONFIG_MAP:
        MODELS_CONFIG_MAP[MOSHI] = _no_window()
        ModelRegistry.register_model(MOSHI, f"kernels_patch.moshi:{MOSHI}")
        ModelRegistry.register_model(MINICPM, f"kernels_patch.minicpmo:{MINICPM}")


def _no_window() -> type:
    from vllm.model_executor.models.config import VerifyAndUpdateConfig

    class NoWindow(VerifyAndUpdateConfig):
        """Serve full attention: a window of the model's own would be counted in indices, which a cut changes."""

        @staticmethod
        def verify_and_update_model_config(model_config) -> None:
            # Past the config's own check, which wants a number.
            vars(model_config.hf_config)["sliding_window"] = None

    return NoWindow
