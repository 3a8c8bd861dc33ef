"""The clips a user may choose from: the samples, and whatever was uploaded in this sitting."""

from __future__ import annotations

import tempfile
from pathlib import Path

from workbench.audio import AudioError, Clip, load_clip, sample_clip, sample_names
from workbench.profiles import Profile

NO_AUDIO = "none: made-up tokens"


class Clips:
    """By name. ``none_needed``: the profile's front end takes no audio; ``only_words``: it needs a transcript."""

    def __init__(self, profile: Profile) -> None:
        from workbench.frontends import ARGUMENTS, tokens_per_frame

        kind = profile.front_end.partition(":")[0]
        self.none_needed = kind in ARGUMENTS
        self.only_words = kind == "text"
        # The most tokens of a frame where the front end fixes it; a session says more of its own.
        self.frame_tokens = tokens_per_frame(profile.front_end, profile.frame_budget_s) or 1
        self._uploaded: dict[str, Clip] = {}
        self.missing = ""

    def names(self) -> list[str]:
        """Those that the front end can use, the first of them a good default; ``missing`` says why there is none."""
        if self.none_needed:
            return []
        try:
            samples = sample_names(transcribed=self.only_words)
        except AudioError as error:
            # Whoever has a clip of their own can do without the samples.
            samples, self.missing = [], str(error)
        return [*samples, *self._uploaded]

    def find(self, name: str | Clip | None) -> Clip | None:
        """The clip of that name; the first there is for None, or None where no audio is taken. AudioError."""
        if isinstance(name, Clip):
            return name
        if self.none_needed:
            return None
        if name is None:
            names = self.names()
            if not names:
                raise AudioError(self.missing)
            name = names[0]
        return self._uploaded[name] if name in self._uploaded else sample_clip(name)

    def take(self, name: str, data: bytes) -> str:
        """Read an uploaded file and keep its clip; returns the name it is kept by. AudioError names the file."""
        path = Path(name)
        if self.only_words:
            raise AudioError(f"{path.name}: the text front end needs a transcript; load it with load_clip in a cell")
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / f"upload{path.suffix}"
            copy.write_bytes(data)
            try:
                clip = load_clip(copy)
            except AudioError as error:
                # In the user's words: they know their file by its own name.
                raise AudioError(str(error).replace(str(copy), path.name)) from None
        known, kept, number = self.names(), path.stem, 2
        while kept in known:
            kept, number = f"{path.stem} ({number})", number + 1
        self._uploaded[kept] = Clip(kept, clip.samples)
        return kept
