"""Speech: who speaks when, which words, and a voice for the answer. Each part is optional and says how to get it."""

from __future__ import annotations


class SpeechError(RuntimeError):
    """A part of speech that is missing or fails; one line that says what to do."""
