"""A model's folder: where it is, and what its config.json says of the part that keeps a KV cache."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from workbench import _model_config
from workbench.engine.base import EngineError
from workbench.omni_models import MOSHI, OMNI

# Where the config of a multimodal model keeps that of its decoder; the first that is there.
_DECODERS = (("thinker_config", "text_config"), ("text_config",), ())
_HUB_ID = re.compile(r"^[\w.-]+/[\w.-]+$")


def model_folder(model: str, say: Callable[[str], None]) -> Path:
    """A folder for vLLM: a name of workbench.weights, a Hugging Face folder or a hub id. Raises EngineError."""
    from workbench.weights import MODELS, WeightsError, model_path

    if model in MODELS:
        try:
            return model_path(model, progress=say)
        except WeightsError as error:
            raise EngineError(str(error)) from error
    folder = Path(model).expanduser()
    if not folder.exists() and _HUB_ID.match(model):
        folder = _from_hub(model, say)
    if not (folder / "config.json").is_file():
        raise EngineError(
            f"no model {model!r}: give one of {', '.join(MODELS)}, a folder with a config.json or a hub id"
        )
    return folder


def _from_hub(model: str, say: Callable[[str], None]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, local_files_only=True))
    except Exception:  # noqa: BLE001, whatever keeps it from being here: it is asked for
        say(f"downloading {model}")
    try:
        return Path(snapshot_download(model))
    except Exception as error:  # noqa: BLE001, of many kinds, and all mean that there is no model
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise EngineError(
            f"{model} is not on this machine and cannot be downloaded ({why}): give the folder that holds it"
        ) from None


def read_config(folder: Path) -> dict:
    """The config.json of a model folder. Raises EngineError where it is none."""
    return _model_config.read_config(folder, lambda line: EngineError(f"{line}: restore the model's folder"))


def _decoder_path(config: dict) -> tuple[str, ...]:
    for path in _DECODERS:
        part = config
        for key in path:
            part = part.get(key) if isinstance(part, dict) else None
        if isinstance(part, dict):
            return path
    return ()


def decoder_config(config: dict) -> dict:
    """The part of a config that describes the decoder: all of it in a model of text alone."""
    for key in _decoder_path(config):
        config = config[key]
    return config


def hears(config: dict) -> bool:
    """Whether a model takes audio as multimodal data, and its engine has to be told what of it."""
    return is_one_of(config, MOSHI, *(name for model in OMNI.values() for name in model.architectures))


def is_one_of(config: dict, *architectures: str) -> bool:
    """Whether a config names one of these."""
    return not set(architectures).isdisjoint(config.get("architectures") or ())


def decoder_override(config: dict, **values) -> dict:
    """vLLM's ``hf_overrides`` that set ``values`` in the decoder's config."""
    for key in reversed(_decoder_path(config)):
        values = {key: values}
    return values


def pool_bytes(folder: Path, profile) -> int:
    """Host memory of the pool: blocks (null block included) x layers x K and V x KV heads x head size x item size."""
    import torch

    config = decoder_config(read_config(folder))
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    kv_heads = config.get("num_key_value_heads") or heads
    item = getattr(torch, profile.dtype).itemsize
    per_token = config["num_hidden_layers"] * 2 * kv_heads * head_dim * item
    return (profile.pool_blocks + 1) * profile.block_size * per_token


def has_own_code_alone(model: str, folder: Path) -> bool:
    """Whether ``folder`` is one that this package builds, with no Python code in it but the package's own."""
    from workbench.weights import MODELS

    ours = files("workbench.tiny_models") / "minicpmo_code"
    return model in MODELS and all(
        (ours / file.name).is_file() and (ours / file.name).read_bytes() == file.read_bytes()
        for file in folder.rglob("*.py")
    )


def check_trust(folder: Path, trusted: bool) -> None:
    """Raise EngineError where the model cannot be served without code of its own, which nobody has said may run.

    Many folders bring code that is not needed any more: transformers knows their model, and it stays where it is.
    """
    config = read_config(folder)
    if trusted or not config.get("auto_map"):
        return
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    if config.get("model_type") not in CONFIG_MAPPING_NAMES:
        raise EngineError(
            f"{folder.name} needs the Python code in its folder: read it, and if you trust it set "
            "trust_remote_code = true in the profile"
        )
