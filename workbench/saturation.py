"""When will the pool be full? Fit the early trace, then count the frames that are left.

Eq. 1 of the paper (arXiv 2607.02640): usage rises on a straight line, rho(t) = rho0 + N r t. The line is a staircase:
each frame that a session takes up adds one growth, and what it holds is rounded up to whole blocks. So the fit is made
over frames instead of seconds: the scheduler counts by how many tokens each session grew from one frame to the next,
and g and s are the mean and the standard deviation of these counts. What a session holds beside its frames, such as a
header, is the mean of resident tokens - g x frames (rho0 of Eq. 1). The schedule of the open sessions is then counted
on, frame by frame in whole blocks, to the first frame that needs a block more than the pool has: that one is refused,
at t_full. Sessions are taken to stay: one that comes or goes changes the forecast from then on.

The interval is that of g over the frames still to come, of which there are M after n seen (normal approximation, 95 %):
the mean growth of the M lies within 1.96 s sqrt(1 / M + 1 / n) of the g that was seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FRAMES_NEEDED = 3
Z_95 = 1.96


@dataclass(frozen=True)
class Grown:
    """Frames since the engine began, without each session's first: their number, and by how many tokens a session grew
    from one to the next, summed and summed in squares."""

    frames: int
    tokens: int
    squares: int

    def since(self, before: Grown) -> Grown:
        """What was counted after ``before``."""
        return Grown(self.frames - before.frames, self.tokens - before.tokens, self.squares - before.squares)

    @property
    def deviation(self) -> float:
        """Standard deviation of a frame's growth, in tokens."""
        # Of whole numbers, so that growth which does not vary deviates by nothing at all.
        squares = self.frames * self.squares - self.tokens**2
        return math.sqrt(squares / (self.frames * (self.frames - 1))) if squares else 0.0


@dataclass(frozen=True)
class Forecast:
    """t_full and its 95 % interval, in seconds since the run began.

    The three are one where growth does not vary.
    """

    t_full_s: float
    low_s: float
    high_s: float


class Forecaster:
    """The live forecast of one run. ``update`` takes a sample and returns the forecast made from all so far.

    Replaying the samples of a run's tables gives the same numbers, for nothing else goes in.
    """

    def __init__(self, frame_budget_s: float, block_size: int) -> None:
        self.frame_budget_s = frame_budget_s
        self.block_size = block_size
        # Frames fallen due, resident tokens and blocks used, at one instant of late.
        self._latest: tuple[np.ndarray, int, int] | None = None
        self._settled_at_s = -math.inf
        self._before: Grown | None = None
        self._key: tuple | None = None
        self._said: Forecast | None = None

    def update(
        self,
        at_s: float,
        resident_tokens: int,
        blocks_used: int,
        blocks_total: int,
        grown: Grown,
        starts_s: Sequence[float],
        settled: bool,
    ) -> Forecast | None:
        """Forecast t_full; None while too few frames were seen.

        ``resident_tokens``, ``blocks_used``: of all sessions. ``starts_s``: when the audio of each open session began.
        ``settled``: nothing runs or waits, so every frame that fell due is resident to its last token.
        """
        if self._before is None:
            # What an engine counted before this run is no part of it: a warm-up grows by other tokens.
            self._before = grown
        grown = grown.since(self._before)
        if len(starts_s) == 0:
            return None
        if settled:
            rested, self._settled_at_s = True, at_s
        else:
            # On a busy engine nothing ever settles; then the few frames in the making have to be put up with.
            rested = at_s - self._settled_at_s > self.frame_budget_s
        key = (resident_tokens, blocks_used, blocks_total, grown, rested, starts_s)
        if key == self._key and self._said is not None and self._said.low_s > at_s:
            # Nothing new was seen, and what was forecast is still to come.
            return self._said
        self._key = key
        starts = np.asarray(starts_s, dtype=float)
        if rested:
            self._latest = (self._frames(at_s, starts), resident_tokens, blocks_used)
        seen = grown.frames >= FRAMES_NEEDED and grown.tokens > 0 and self._latest is not None
        self._said = self._forecast(at_s, blocks_total, starts, grown) if seen and self._latest[0].any() else None
        return self._said

    def _forecast(self, at_s: float, blocks_total: int, starts: np.ndarray, grown: Grown) -> Forecast:
        growth, deviation = grown.tokens / grown.frames, grown.deviation
        t_full = self._when(at_s, blocks_total, starts, growth)
        frames_to_come = (t_full - at_s) / self.frame_budget_s
        if deviation == 0 or frames_to_come <= 0:
            return Forecast(t_full, t_full, t_full)
        # Sessions that have drifted apart by a good part of a block do not take their next blocks together any more.
        apart = deviation * math.sqrt(frames_to_come) >= self.block_size / 4
        spread = Z_95 * deviation * math.sqrt(1 / (frames_to_come * len(starts)) + 1 / grown.frames)
        # A slower growth fills the pool later. Below a tenth of what was seen there is no telling when.
        paces = (growth, growth + spread, max(growth - spread, 0.1 * growth))
        return Forecast(*(self._when(at_s, blocks_total, starts, pace, apart) for pace in paces))

    def _frames(self, at_s: float, starts: np.ndarray) -> np.ndarray:
        """Frames of each open session that have fallen due by ``at_s``."""
        elapsed = (at_s - starts) / self.frame_budget_s
        return np.maximum(0, np.floor(elapsed + 1e-9)).astype(int)

    def _when(self, at_s: float, blocks_total: int, starts: np.ndarray, growth: float, apart: bool = False) -> float:
        """The first instant after ``at_s`` at which the frames fallen due need more blocks than there are.

        ``apart``: count the blocks that sessions need on average, half a block more than their tokens fill, in place of
        those that sessions which all grow alike need.
        """
        seen, tokens, used_then = self._latest
        beside = (tokens - growth * seen.sum()) / max(1, np.count_nonzero(seen))

        def needed(frames: np.ndarray) -> np.ndarray:
            blocks = (frames * growth + beside * (frames > 0)) / self.block_size
            return blocks + 0.5 * (frames > 0) if apart else np.ceil(blocks - 1e-9)

        # What sessions share, or what rounding up the mean gets wrong: as far off as it was when last seen.
        room = blocks_total - (used_then - needed(seen).sum())

        def fit(budgets: int) -> bool:
            return needed(self._frames(at_s + budgets * self.frame_budget_s, starts)).sum() <= room

        # Whole budgets first, from where the straight line ends; then tick by tick within the budget that is too many.
        fits, step = 0, 1
        over = max(1, int((room - needed(self._frames(at_s, starts)).sum()) * self.block_size / (growth * len(starts))))
        while fit(over):
            fits, over, step = over, over + step, 2 * step
        if over > 2 and fit(over - 2):
            fits = over - 2
        while over - fits > 1:
            middle = (fits + over) // 2
            fits, over = (middle, over) if fit(middle) else (fits, middle)
        frames = self._frames(at_s + fits * self.frame_budget_s, starts)
        ticks = starts + (frames + 1) * self.frame_budget_s
        order = np.argsort(ticks, kind="stable")
        used = needed(frames).sum() + np.cumsum((needed(frames + 1) - needed(frames))[order])
        return float(ticks[order][int(np.argmax(used > room))])


PREDICT_BELOW_USAGE = 0.3


@dataclass(frozen=True)
class Prediction:
    """The forecast that counts: the last one written while usage had never been above PREDICT_BELOW_USAGE.

    ``replays``: whether the run's tables, cut at ``at_s``, give the same numbers.
    """

    forecast: Forecast
    at_s: float
    replays: bool


def prediction(pool, sessions, frame_budget_s: float, block_size: int) -> Prediction | None:
    """The prediction that a run's tables hold; None when none was made in time."""
    above = pool["blocks_used"] > PREDICT_BELOW_USAGE * pool["blocks_total"]
    early = pool[~above.cummax()].dropna(subset=["t_full_predicted_s"])
    if early.empty:
        return None
    last = early.iloc[-1]
    written = Forecast(*(float(last[f"t_full_{name}_s"]) for name in ("predicted", "low", "high")))
    again = replay(pool, sessions, frame_budget_s, block_size, until_s=last["at_s"])
    return Prediction(written, float(last["at_s"]), again == written)


def replay(pool, sessions, frame_budget_s: float, block_size: int, until_s: float = math.inf) -> Forecast | None:
    """The forecast that a run's tables give when cut at ``until_s``: what a live Forecaster said at that instant."""
    forecaster, forecast = Forecaster(frame_budget_s, block_size), None
    ends = sessions["ended_at_s"].fillna(math.inf)
    for row in pool[pool["at_s"] <= until_s].itertuples():
        is_open = (sessions["offered_at_s"] <= row.at_s) & (ends > row.at_s)
        starts = list(sessions.loc[is_open, "opened_at_s"])
        settled = row.running == 0 and row.waiting == 0
        grown = Grown(row.grown_frames, row.grown_tokens, row.grown_squares)
        tokens, used, total = row.resident_tokens, row.blocks_used, row.blocks_total
        forecast = forecaster.update(row.at_s, tokens, used, total, grown, starts, settled)
    return forecast
