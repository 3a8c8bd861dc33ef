"""The entry point ``metronome`` of the group ``vllm.general_plugins``: what vLLM loads in every process.

Names here are what the workbench uses of the plugin: it looks the entry point up and reads this module.
"""

from __future__ import annotations

from kernels_patch.guard import VLLM_VERSION, PluginError, check_config, check_version, installed_vllm
from kernels_patch.steps import step_load

__all__ = [
    "SCHEDULER",
    "SCORES_KEY",
    "SCORING_EXTENSION",
    "VLLM_VERSION",
    "WORKER_EXTENSION",
    "PluginError",
    "check_config",
    "check_version",
    "installed_vllm",
    "register",
    "step_load",
]

SCHEDULER = "kernels_patch.scheduler.BoundedScheduler"
WORKER_EXTENSION = "kernels_patch.worker.BoundedWorkerExtension"
SCORING_EXTENSION = "kernels_patch.scores.ScoringWorkerExtension"
# In a chunk's extra_args, with the chunk's number in its session: score its tokens. For workers that can.
SCORES_KEY = "kv_scores"


def register() -> None:
    """Called by vLLM in each of its processes, perhaps more than once.

    vLLM swallows what a plugin's import raises, so the version is checked here, where it is not swallowed.
    """
    check_version()
    from kernels_patch.channel import add_utilities
    from kernels_patch.models import register_models

    add_utilities()
    register_models()
