"""A voice for text: espeak-ng, where it is installed, as a clip of 16 kHz mono."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from workbench.audio import AudioError, Clip, load_clip
from workbench.speech import SpeechError
from workbench.speech.parts import espeak

ANSWER_S = 30.0
SPEAKER, REPLIER = "en-us+f3", "en-us"  # two voices that one can tell apart
WORDS_PER_MINUTE = 150


def speak(text: str, voice: str = REPLIER, words_per_minute: int = WORDS_PER_MINUTE) -> Clip:
    """``text`` spoken: a clip that is named by it and has it as its transcript. Raises SpeechError."""
    words = " ".join(text.split())
    if not words:
        raise SpeechError("there is nothing to speak: give a text with words")
    with tempfile.TemporaryDirectory(prefix="speak-") as folder:
        file = Path(folder) / "spoken.wav"
        # The text goes in by its standard input: as an argument, one that begins with a dash would be an option.
        command = [espeak(), "-v", voice, "-s", str(words_per_minute), "-w", str(file), "--stdin", "-b", "1"]
        try:
            done = subprocess.run(
                command, input=words, check=False, capture_output=True, text=True, encoding="utf-8", timeout=ANSWER_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SpeechError(f"espeak-ng did not speak ({type(error).__name__}): try it with a short text") from error
        if done.returncode or not file.is_file():
            said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
            raise SpeechError(f"espeak-ng did not speak with voice {voice}: {said}")
        try:
            spoken = load_clip(file)
        except AudioError as error:
            raise SpeechError(f"espeak-ng said nothing of {words!r}: give a text with words") from error
    return Clip(words, spoken.samples, words)
