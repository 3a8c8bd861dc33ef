"""When will the pool be full? Fit the early trace, then count the frames that are left.

Eq. 1 of the paper (arXiv 2607.02640): usage rises on a straight line, rho(t) = rho0 + N r t. The line is a staircase:
every frame a session takes up adds one growth g. So the fit is made over session-frames F instead of seconds,

    blocks used x block size = g F + c n          (n sessions open, c tokens of each: rounding to whole blocks)

by least squares. With that g the schedule of the open sessions is then counted on, frame by frame and in whole blocks,
to the first frame that needs a block more than the pool has: that one is refused, at t_full.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


class Forecaster:
    """The live forecast of one run. ``update`` takes a sample and returns the forecast made from all so far.

    Replaying the samples of a run's tables gives the same numbers, for nothing else goes in. ``fit_from``: samples
    needed before a first forecast.
    """

    def __init__(self, frame_budget_s: float, block_size: int, fit_from: int = 8) -> None:
        self.frame_budget_s = frame_budget_s
        self.block_size = block_size
        self.fit_from = fit_from
        self._samples = 0
        self._normal = np.zeros((2, 2))
        self._moment = np.zeros(2)

    def update(
        self, at_s: float, blocks_used: int, blocks_total: int, starts_s: Sequence[float], settled: bool
    ) -> float | None:
        """Forecast t_full, in seconds since the run began; None while the samples do not settle a rising line.

        ``starts_s``: when the audio of each open session began. ``settled``: nothing runs or waits, so every frame
        that fell due is in the blocks; other samples are not fitted.
        """
        held = sum(self._frames(at_s, start) for start in starts_s)
        row = np.array([held, len(starts_s)], dtype=float)
        if held and settled:
            self._samples += 1
            self._normal += np.outer(row, row)
            self._moment += row * blocks_used * self.block_size
        if self._samples < self.fit_from or not starts_s or np.linalg.matrix_rank(self._normal) < 2:
            return None
        growth, _ = np.linalg.solve(self._normal, self._moment)
        if growth <= 0:
            return None
        return self._when(at_s, blocks_total, starts_s, growth)

    def _frames(self, at_s: float, start: float) -> int:
        return max(0, math.floor((at_s - start) / self.frame_budget_s + 1e-9))

    def _when(self, at_s: float, blocks_total: int, starts_s: Sequence[float], growth: float) -> float:
        """The first instant from ``at_s`` on at which the frames fallen due need more blocks than there are."""
        starts = np.asarray(starts_s)
        # Enough budgets for the sessions to outgrow the pool together.
        ahead = math.ceil(blocks_total * self.block_size / (growth * len(starts))) + 1
        first = np.array([self._frames(at_s, start) for start in starts])
        frames = first[:, None] + np.arange(1, ahead + 1)
        ticks = starts[:, None] + frames * self.frame_budget_s
        blocks = np.ceil(frames * growth / self.block_size)
        new_blocks = np.diff(blocks, axis=1, prepend=np.ceil(first * growth / self.block_size)[:, None])
        order = np.argsort(ticks, axis=None, kind="stable")
        used = np.ceil(first * growth / self.block_size).sum() + np.cumsum(new_blocks.ravel()[order])
        over = int(np.argmax(used > blocks_total))
        return float(ticks.ravel()[order][over])


def replay(pool, sessions, frame_budget_s: float, block_size: int, until_s: float = math.inf) -> float | None:
    """The forecast that a run's tables give when cut at ``until_s``: what a live Forecaster said at that instant."""
    forecaster, forecast = Forecaster(frame_budget_s, block_size), None
    ends = sessions["ended_at_s"].fillna(math.inf)
    for row in pool[pool["at_s"] <= until_s].itertuples():
        is_open = (sessions["offered_at_s"] <= row.at_s) & (ends > row.at_s)
        starts = list(sessions.loc[is_open, "opened_at_s"])
        settled = row.running == 0 and row.waiting == 0
        forecast = forecaster.update(row.at_s, row.blocks_used, row.blocks_total, starts, settled)
    return forecast
