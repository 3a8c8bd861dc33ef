"""Non-negative fits that weigh relative errors, and how sure they are. Plain numpy, for a handful of coefficients."""

from __future__ import annotations

import numpy as np

RESAMPLES = 200
SEED = 0
# Huber's constant: 95 % as efficient as least squares where the errors are normal (Huber, Robust Statistics, 1981).
_HUBER = 1.345
_PASSES = 25
_LEAST_PART = 0.01
# Added to each equation, whose columns have length 1: enough that rows which tell nothing of a column can be solved.
_RIDGE = 1e-12


def fit_relative(loads: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """The x >= 0 for which ``measured / (loads @ x)`` is nearest to 1. loads: shape (rows, columns).

    The error is relative to what x predicts, not to what was measured: divided by the measured, a step that other work
    lengthened would look near, and x come out too low. Huber's weights: a row counts as in least squares up to the
    usual error, and less beyond it.
    """
    scale, weights = measured, np.ones(len(measured))
    for _ in range(_PASSES):
        x = _non_negative(loads / scale[:, None], measured / scale, weights)
        # A row that x gives nothing must not be divided by it.
        before, scale = scale, np.maximum(loads @ x, _LEAST_PART * measured)
        off = np.abs(measured / scale - 1)
        # The spread of normal errors is their median size over 0.6745.
        usual = max(_HUBER * float(np.median(off)) / 0.6745, 1e-9)
        weights = usual / np.maximum(off, usual)
        if np.abs(scale / before - 1).max() < 1e-4:
            break
    return x


def intervals(loads: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """95 % intervals of the coefficients over resampled rows (bootstrap, fixed seed), shape (2, columns)."""
    draw, rows, resampled = np.random.default_rng(SEED), len(loads), []
    for _ in range(RESAMPLES):
        taken = draw.integers(0, rows, rows)
        resampled.append(fit_relative(loads[taken], measured[taken]))
    return np.quantile(resampled, (0.025, 0.975), axis=0)


def told_apart(design: np.ndarray) -> np.ndarray:
    """For each column, the part of its length that no mixture of the others makes up: 0 where one is a mixture."""
    parts = []
    for k, column in enumerate(design.T):
        others = np.delete(design, k, axis=1)
        rest = column - others @ np.linalg.lstsq(others, column, rcond=None)[0]
        length = np.linalg.norm(column)
        parts.append(np.linalg.norm(rest) / length if length else 0.0)
    return np.array(parts)


def _non_negative(design: np.ndarray, target: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The x >= 0 that minimises the sum of weights x (design @ x - target) squared.

    The answer is plain least squares on the coefficients that are not 0 in it, and no other choice of coefficients
    whose least squares has none below 0 does better: there are a handful, so every choice is tried, all at once.
    """
    scale = np.linalg.norm(design, axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    a = design / scale
    weighted = (a * weights[:, None]).T
    gram, right = weighted @ a, weighted @ target
    count = len(scale)
    chosen = (np.arange(1 << count)[:, None] >> np.arange(count) & 1).astype(bool)
    # The equation of a coefficient that is not chosen says that it is 0.
    both = chosen[:, :, None] & chosen[:, None, :]
    equations = np.where(both, gram, 0.0) + np.eye(count) * (~chosen[:, None, :] + _RIDGE)
    x = np.linalg.solve(equations, np.where(chosen, right, 0.0)[..., None])[..., 0]
    # By how much each choice lowers the sum of squares.
    gained = np.where((x >= 0).all(axis=1), x @ right, -np.inf)
    return x[gained.argmax()] / scale
