"""Front ends: each turns one audio frame into engine input. One file per front end; this is their registry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from workbench.audio import Clip


class FrontEndError(ValueError):
    """A front end that cannot be made or fed. The message is one line that names the value and the way out."""


class FrontEnd(Protocol):
    """Turns the frames of one session, in order, into engine input; it may keep state from frame to frame.

    `meaningful` is False for a load generator: its words mean nothing, and whatever shows them says so.
    `hears` is False for one that takes no audio: it is given None for samples. `stop_token_ids` end a reply
    early (EOS); () for none. `most_tokens`: the most that one frame of this session has. Where a class has `of_audio`
    False, its tokens stand for no audio, and a simulated engine takes no time to encode any. One that has `talks` True
    says itself what goes in and what is owed when a chunk goes out (workbench.beat.Talk); its `encode` only listens.
    One that has `media` True hands the audio itself to the model (workbench.engine.media.AudioChunk).
    """

    name: str
    meaningful: bool
    hears: bool
    stop_token_ids: tuple[int, ...]
    most_tokens: int

    def encode(self, samples: np.ndarray, frame: int) -> list[int]:
        """Token ids of a frame, at least one, each below vocab_size. `samples`: float32, shape (round(B x 16000),)."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text to show for reply tokens."""
        ...


def _front_ends() -> dict[str, type]:
    from workbench.frontends.asr import AsrFrontEnd
    from workbench.frontends.codec2 import Codec2FrontEnd
    from workbench.frontends.moshi import MoshiFrontEnd
    from workbench.frontends.text import TextFrontEnd

    return {each.name: each for each in (Codec2FrontEnd, TextFrontEnd, AsrFrontEnd, MoshiFrontEnd)}


# What is said after the colon: how many tokens those make up that make theirs up, and of which model audio is heard.
ARGUMENTS = {"load": "COUNT", "scratchpad": "SHORTEST-LONGEST", "video": "COUNT", "omni": "MODEL"}


def _with_argument(kind: str) -> type:
    from workbench.frontends.load import LoadFrontEnd
    from workbench.frontends.omni import OmniFrontEnd
    from workbench.frontends.scratchpad import ScratchpadFrontEnd
    from workbench.frontends.video import VideoFrontEnd

    return {each.name: each for each in (LoadFrontEnd, ScratchpadFrontEnd, VideoFrontEnd, OmniFrontEnd)}[kind]


def _find(name: str) -> tuple[type, dict[str, str]]:
    """The front end's class, and what `name` says to it after a colon."""
    kind, colon, argument = name.partition(":")
    if colon and kind in ARGUMENTS:
        return _with_argument(kind), {"argument": argument}
    front_ends = _front_ends()
    if name not in front_ends:
        known = (*front_ends, *(f"{kind}:{words}" for kind, words in ARGUMENTS.items()))
        raise FrontEndError(f"no front end {name!r}; there are {', '.join(known)}")
    return front_ends[name], {}


def make_frontend(
    name: str,
    *,
    vocab_size: int,
    clip: Clip | None,
    frame_budget_s: float,
    model_path: Path | None = None,
    loop: bool = True,
    start_s: float = 0.0,
    session: int = 0,
) -> FrontEnd:
    """A fresh front end for one session, whose audio is AudioStream(clip, frame_budget_s, loop, start_s).

    `model_path` is the model's folder, for a front end that needs its tokenizer; `session` the session's number, for
    one that makes its tokens up. FrontEndError for an unknown name (it lists those there are) and for whatever the
    front end refuses; AudioError for a bad start_s.
    """
    front_end, said = _find(name)
    if said and not getattr(front_end, "media", False):
        said["session"] = session
    return front_end(
        vocab_size=vocab_size,
        clip=clip,
        frame_budget_s=frame_budget_s,
        model_path=model_path,
        loop=loop,
        start_s=start_s,
        **said,
    )


def tokens_per_frame(name: str, frame_budget_s: float) -> int | None:
    """Tokens of every frame where the front end fixes their number, else None. FrontEndError as make_frontend."""
    front_end, said = _find(name)
    return front_end.tokens_per_frame(frame_budget_s, **said)


def audio_s_per_frame(name: str, frame_budget_s: float) -> float:
    """Seconds of audio that a frame's tokens stand for: B, or 0 where they stand for none. FrontEndError."""
    front_end, _ = _find(name)
    return frame_budget_s if getattr(front_end, "of_audio", True) else 0.0


def hears_by_model(name: str) -> bool:
    """Whether the frames go to the model as audio. FrontEndError as make_frontend."""
    front_end, _ = _find(name)
    return getattr(front_end, "media", False)
