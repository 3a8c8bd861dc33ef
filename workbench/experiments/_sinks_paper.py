"""The paper's figures on quality: Metronome (arXiv:2607.02640), Qwen3-Omni-30B, 32 sessions of 300 s, free-running."""

from __future__ import annotations

from typing import NamedTuple


class PaperQuality(NamedTuple):
    """Shares of answers graded correct: in mid-call, the least and the most that is given, and to a fresh question.

    ``window``, ``sinks``: in tokens, None unbounded.
    """

    window: int | None
    sinks: int | None
    mid_low: float
    mid_high: float
    fresh: float


# Where the paper gives only the most, the least is 0.
PAPER_QUALITY = (
    PaperQuality(None, None, 0.23, 0.27, 0.26),
    PaperQuality(512, 0, 0.0, 0.03, 0.07),
    PaperQuality(1024, 0, 0.0, 0.08, 0.06),
    PaperQuality(2048, 0, 0.0, 0.0, 0.0),
    PaperQuality(1024, 16, 0.38, 0.57, 0.45),
    PaperQuality(1024, 32, 0.33, 0.45, 0.21),
    PaperQuality(1024, 64, 0.0, 0.07, 0.08),
    PaperQuality(512, 32, 0.0, 0.0, 0.0),
    PaperQuality(2048, 32, 0.40, 0.57, 0.42),
)
