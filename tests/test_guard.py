"""What the plugin refuses, in one line each."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kernels_patch.guard import VLLM_VERSION, PluginError, check_config, check_kv_cache, check_version


@pytest.mark.parametrize("found", ["0.31.9", "0.32.1", "0.33.0", "1.0"])
def test_another_vllm_is_refused_naming_both_versions(found):
    with pytest.raises(PluginError) as error:
        check_version(found)
    assert found in str(error.value) and VLLM_VERSION in str(error.value)
    assert "\n" not in str(error.value)


def test_the_pinned_vllm_is_accepted_and_installed():
    assert check_version("0.32.0") == "0.32.0"
    assert check_version("0.32.0+cpu") == "0.32.0+cpu"
    assert check_version() == VLLM_VERSION


def config(**changes):
    parts = {
        "cache": SimpleNamespace(enable_prefix_caching=False),
        "speculative": None,
        "parallel": SimpleNamespace(pipeline_parallel_size=1),
        "scheduler": SimpleNamespace(async_scheduling=False),
        "v2": False,
        "connector": None,
        "lora": None,
        **changes,
    }
    return SimpleNamespace(
        cache_config=parts["cache"],
        speculative_config=parts["speculative"],
        parallel_config=parts["parallel"],
        scheduler_config=parts["scheduler"],
        use_v2_model_runner=parts["v2"],
        kv_transfer_config=parts["connector"],
        lora_config=parts["lora"],
    )


def test_the_configuration_of_the_workbench_is_accepted():
    check_config(config())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cache": SimpleNamespace(enable_prefix_caching=True)}, "prefix caching"),
        ({"speculative": object()}, "speculative decoding"),
        ({"parallel": SimpleNamespace(pipeline_parallel_size=2)}, "pipeline parallel"),
        ({"scheduler": SimpleNamespace(async_scheduling=True)}, "async scheduling"),
        ({"v2": True}, "V2 model runner"),
        ({"connector": object()}, "KV connector"),
        ({"lora": object()}, "LoRA"),
    ],
)
def test_what_would_make_eviction_wrong_is_refused(changes, says):
    with pytest.raises(PluginError, match=says) as error:
        check_config(config(**changes))
    assert "\n" not in str(error.value)


def test_only_one_group_of_full_attention_is_served():
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    shape = {"block_size": 32, "num_kv_heads": 1, "head_size": 32, "dtype": torch.float32}
    full = SimpleNamespace(kv_cache_spec=FullAttentionSpec(**shape))
    check_kv_cache([full])
    with pytest.raises(PluginError, match="this model has 2"):
        check_kv_cache([full, full])
    for spec in (SlidingWindowSpec(**shape, sliding_window=64), FullAttentionSpec(**shape, sliding_window=64)):
        with pytest.raises(PluginError, match="need full attention"):
            check_kv_cache([SimpleNamespace(kv_cache_spec=spec)])


def test_vllm_does_not_swallow_the_refusal(monkeypatch):
    """vLLM logs and forgets what a plugin's import raises; what its function raises reaches the caller."""
    import vllm.plugins

    import kernels_patch.guard

    monkeypatch.setattr(kernels_patch.guard, "VLLM_VERSION", "0.31.0")
    monkeypatch.setattr(vllm.plugins, "plugins_loaded", False)
    with pytest.raises(PluginError, match="0.31.0"):
        vllm.plugins.load_general_plugins()
