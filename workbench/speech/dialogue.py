"""A dialogue as audio: clips laid on one track for a session to hear, and the replies beside it, for a person."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.audio import SAMPLE_RATE, AudioError, Clip
from workbench.speech.turns import MODEL, Turn


@dataclass(frozen=True)
class Line:
    """A clip that begins at ``at_s`` of the track; ``interrupts``: it is sure to fall into a reply."""

    clip: Clip
    at_s: float
    interrupts: bool = False

    @property
    def ends_s(self) -> float:
        return self.at_s + self.clip.seconds


def one_after_another(clips: Sequence[tuple[Clip, float]], begins_s: float) -> list[Line]:
    """Each clip behind the silence that goes before it, in seconds; ``begins_s`` goes before all."""
    lines, at = [], begins_s
    for clip, before_s in clips:
        lines.append(Line(clip, at + before_s))
        at = lines[-1].ends_s
    return lines


def track(name: str, lines: Sequence[Line], seconds: float) -> Clip:
    """One clip of ``seconds`` with silence between the lines. AudioError for a line past its end."""
    samples = np.zeros(round(seconds * SAMPLE_RATE), np.float32)
    for line in lines:
        start = round(line.at_s * SAMPLE_RATE)
        if start < 0 or start + line.clip.samples.size > samples.size:
            raise AudioError(f"line {line.clip.name!r} does not fit a track of {seconds:g} s: make it longer")
        samples[start : start + line.clip.samples.size] += line.clip.samples
    return Clip(name, samples)


def both_sides(
    speaker: Clip, turns: Sequence[Turn], frame_budget_s: float, speak: Callable[[str], Clip] | None, seconds: float
) -> np.ndarray:
    """The speaker left and the replies right, float32, shape (2, n), ``seconds`` long. ``speak`` None: right is silent.

    A reply begins when its first token came. Interrupted, it stops with the frame in which the speaker was heard.
    """
    sides = np.zeros((2, round(seconds * SAMPLE_RATE)), np.float32)
    heard = speaker.samples[: sides.shape[1]]
    sides[0, : heard.size] = heard
    for turn in turns:
        if speak is None or turn.speaker != MODEL or not any(letter.isalnum() for letter in turn.text):
            continue
        start, spoken = round(turn.t_start * SAMPLE_RATE), speak(turn.text).samples
        if turn.cut_frame is not None:
            spoken = spoken[: max(0, round((turn.cut_frame + 1) * frame_budget_s * SAMPLE_RATE) - start)]
        spoken = spoken[: max(0, sides.shape[1] - start)]
        sides[1, start : start + spoken.size] += spoken
    return np.clip(sides, -1.0, 1.0)


def as_mp3(sides: np.ndarray) -> bytes:
    """Audio of shape (2, n) as an MP3 file, which a page can carry: a minute of it takes some 200 kB."""
    import io

    import soundfile

    file = io.BytesIO()
    soundfile.write(file, sides.T, SAMPLE_RATE, format="MP3")
    return file.getvalue()
