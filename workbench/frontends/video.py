"""The video front end: a load generator for the visual tokens of one picture a frame. It sees nothing."""

from __future__ import annotations

from workbench.frontends import FrontEndError
from workbench.frontends.load import LoadFrontEnd

MARKS = 2  # tokens that say where a picture begins and ends, as Qwen's vision models have them


class VideoFrontEnd(LoadFrontEnd):
    """``video:COUNT``: a picture of COUNT visual tokens a frame and its two marks, made as those of ``load`` are.

    FrontEndError.
    """

    name = "video"
    of_audio = False

    @staticmethod
    def tokens_per_frame(frame_budget_s: float, argument: str) -> int:
        """COUNT and the marks. FrontEndError unless COUNT is a whole number of at least 1."""
        if not (argument.isascii() and argument.isdecimal() and int(argument) >= 1):
            raise FrontEndError(
                f"video front end: video:{argument} is no count of tokens: give video:258 for 258 a picture"
            )
        return int(argument) + MARKS
