"""The interval of a mean over seeds: values of one seed hang together, so it is seeds that are resampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

LEVEL = 0.95
DRAWS = 2000


class IntervalError(ValueError):
    """Values that have no interval, or an interval that cannot be asked for."""


@dataclass(frozen=True)
class Interval:
    """A mean and the ends of its interval, in the unit of the values. ``seeds``: how many seeds had a value."""

    mean: float
    low: float
    high: float
    seeds: int


def bootstrap(
    by_seed: Sequence[Sequence[float]], *, seed: int, level: float = LEVEL, draws: int = DRAWS
) -> Interval | None:
    """The percentile bootstrap interval of the mean of all values; None where there is no value at all.

    ``by_seed``: the values of each seed, as many as it has. ``draws`` times as many seeds as there are are drawn with
    replacement, and the mean of all values of those drawn is taken: sum of their sums / sum of their counts, so a seed
    weighs by how many values it has. The ends are the (1 - level) / 2 and (1 + level) / 2 quantiles of these means.
    Source: B. Efron, Bootstrap methods: another look at the jackknife, Annals of Statistics 7 (1979).

    The same ``seed`` (0 or more) gives the same interval. A seed without a value tells nothing and is not drawn. With
    one seed low == high == mean, and with few the interval is too narrow: sqrt(1 - 1 / seeds) of the standard error,
    with normal tails in place of Student's t. Of three normal seeds, a level of 0.95 covers about 3 means in 4.
    IntervalError for a level outside (0, 1), draws < 1, seed < 0, and values that are not finite numbers.
    """
    return _resampled(_checked(by_seed), seed, level, draws)


def paired(
    a_by_seed: Sequence[Sequence[float]],
    b_by_seed: Sequence[Sequence[float]],
    *,
    seed: int,
    level: float = LEVEL,
    draws: int = DRAWS,
) -> Interval | None:
    """``bootstrap`` of the differences a - b, value by value: what the seeds have in common falls out of them.

    IntervalError as there, and where a and b differ in their seeds or in how many values a seed has.
    """
    a, b = _checked(a_by_seed), _checked(b_by_seed)
    if len(a) != len(b):
        raise IntervalError(f"{len(a)} and {len(b)} seeds do not pair: give the same seeds in both")
    for k, (left, right) in enumerate(zip(a, b, strict=True)):
        if len(left) != len(right):
            raise IntervalError(f"seed {k} has {len(left)} and {len(right)} values: give as many in both, in pairs")
    return _resampled([left - right for left, right in zip(a, b, strict=True)], seed, level, draws)


def _resampled(by_seed: list[np.ndarray], seed: int, level: float, draws: int) -> Interval | None:
    import numpy as np

    if not 0 < level < 1:
        raise IntervalError(f"level must lie between 0 and 1, such as {LEVEL}, not {level}")
    if draws < 1:
        raise IntervalError(f"draws must be 1 or more, not {draws}")
    if seed < 0:
        raise IntervalError(f"seed must be 0 or more, not {seed}")
    with_values = [values for values in by_seed if len(values)]
    if not with_values:
        return None
    sums, counts = (np.array([of(values) for values in with_values]) for of in (np.sum, len))
    taken = np.random.default_rng(seed).integers(0, len(sums), (draws, len(sums)))
    means = sums[taken].sum(axis=1) / counts[taken].sum(axis=1)
    low, high = np.quantile(means, ((1 - level) / 2, (1 + level) / 2))
    return Interval(float(sums.sum() / counts.sum()), float(low), float(high), len(sums))


def _checked(by_seed: Sequence[Sequence[float]]) -> list[np.ndarray]:
    """The values of each seed, each of shape (values,), all of them finite."""
    import numpy as np

    checked = []
    for k, of_seed in enumerate(by_seed):
        try:
            values = np.asarray(of_seed, dtype=float)
        except (TypeError, ValueError) as error:
            raise IntervalError(f"seed {k} has a value that is no number: leave it out or put it right") from error
        if values.ndim != 1:
            raise IntervalError(f"give a sequence of values for each seed, not {of_seed!r} for seed {k}")
        if not np.isfinite(values).all():
            at = int(np.isfinite(values).argmin())
            raise IntervalError(f"value {at} of seed {k} is {values[at]}: leave out what has no finite value")
        checked.append(values)
    return checked
