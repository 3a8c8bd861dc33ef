"""When will the pool be full? Fit the early trace, then count the frames that are left.

Eq. 1 of the paper (arXiv 2607.02640): usage rises on a straight line, rho(t) = rho0 + N r t. The line is a staircase:
each frame that a session takes up adds one growth g, and what it holds is rounded up to whole blocks. So the fit is
made over frames instead of seconds. With F frames taken up by the open sessions together,

    resident tokens = g F        by least squares over the samples

and the schedule of the open sessions is then counted on, frame by frame in whole blocks, to the first one that needs a
block more than the pool has: that one is refused, at t_full.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

SAMPLES_NEEDED = 4


class Forecaster:
    """The live forecast of one run. ``update`` takes a sample and returns the forecast made from all so far.

    Replaying the samples of a run's tables gives the same numbers, for nothing else goes in.
    """

    def __init__(self, frame_budget_s: float, block_size: int) -> None:
        self.frame_budget_s = frame_budget_s
        self.block_size = block_size
        self._samples = 0
        self._tokens_by_frames = self._frames_squared = 0.0

    def update(
        self, at_s: float, resident_tokens: int, blocks_total: int, starts_s: Sequence[float], settled: bool
    ) -> float | None:
        """Forecast t_full, in seconds since the run began; None while the samples do not settle a rising line.

        ``resident_tokens``: of all sessions. ``starts_s``: when the audio of each open session began. ``settled``:
        nothing runs or waits, so every frame that fell due is resident; other samples are not fitted.
        """
        first = self._frames(at_s, starts_s)
        held = int(first.sum())
        if settled and held:
            self._samples += 1
            self._tokens_by_frames += held * resident_tokens
            self._frames_squared += held * held
        if self._samples < SAMPLES_NEEDED or len(starts_s) == 0 or self._tokens_by_frames <= 0:
            return None
        growth = self._tokens_by_frames / self._frames_squared
        return self._when(first, blocks_total, np.asarray(starts_s), growth)

    def _frames(self, at_s: float, starts_s: Sequence[float]) -> np.ndarray:
        """Frames of each open session that have fallen due by ``at_s``."""
        elapsed = (at_s - np.asarray(starts_s, dtype=float)) / self.frame_budget_s
        return np.maximum(0, np.floor(elapsed + 1e-9)).astype(int)

    def _when(self, first: np.ndarray, blocks_total: int, starts: np.ndarray, growth: float) -> float:
        """The first instant at which the frames fallen due need more blocks than there are."""
        # Enough budgets for the sessions to outgrow the pool together.
        ahead = math.ceil(blocks_total * self.block_size / (growth * len(starts))) + 1
        frames = first[:, None] + np.arange(ahead + 1)
        blocks = np.ceil(frames * growth / self.block_size - 1e-9)
        ticks = starts[:, None] + frames[:, 1:] * self.frame_budget_s
        order = np.argsort(ticks, axis=None, kind="stable")
        used = blocks[:, 0].sum() + np.cumsum(np.diff(blocks, axis=1).ravel()[order])
        return float(ticks.ravel()[order][int(np.argmax(used > blocks_total))])


def replay(pool, sessions, frame_budget_s: float, block_size: int, until_s: float = math.inf) -> float | None:
    """The forecast that a run's tables give when cut at ``until_s``: what a live Forecaster said at that instant."""
    forecaster, forecast = Forecaster(frame_budget_s, block_size), None
    ends = sessions["ended_at_s"].fillna(math.inf)
    for row in pool[pool["at_s"] <= until_s].itertuples():
        is_open = (sessions["offered_at_s"] <= row.at_s) & (ends > row.at_s)
        starts = list(sessions.loc[is_open, "opened_at_s"])
        settled = row.running == 0 and row.waiting == 0
        forecast = forecaster.update(row.at_s, row.resident_tokens, row.blocks_total, starts, settled)
    return forecast
