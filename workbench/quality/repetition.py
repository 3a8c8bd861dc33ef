"""How much a text repeats itself: the share of its n-grams that are distinct, and the loops that it falls into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

MOST_PERIOD = 64
LEAST_TIMES = 3
LEAST_TOKENS = 32


class RepetitionError(ValueError):
    """Tokens or limits that repetition cannot be counted with."""


@dataclass(frozen=True)
class Loop:
    """``tokens[start : start + length]`` repeats itself every ``period`` tokens. All three are in tokens."""

    start: int
    length: int
    period: int


def distinct(tokens: Sequence[int], n: int) -> float | None:
    """distinct-n: distinct n-grams / n-grams, from above 0 to 1; None where ``tokens`` has no n-gram.

    Source: Li et al., A diversity-promoting objective function for neural conversation models, 2016, arXiv:1510.03055,
    with all n-grams and not all tokens below. It falls with length: see ``distinct_of_pieces``. RepetitionError for
    n < 1 and for tokens that are no token ids.
    """
    _at_least("n", n, 1)
    # Plain ints hash several times faster than those of an array.
    ids = _token_ids(tokens).tolist()
    count = len(ids) - n + 1
    return len({tuple(ids[i : i + n]) for i in range(count)}) / count if count > 0 else None


def distinct_of_pieces(tokens: Sequence[int], n: int, size: int) -> list[float]:
    """distinct-n of each whole piece of ``size`` tokens, in order; a shorter last one is left out.

    The share of distinct n-grams falls with length, so only pieces of one length compare. No n-gram reaches from one
    piece into the next. RepetitionError as for ``distinct``, and for pieces too short to hold an n-gram.
    """
    _at_least("n", n, 1)
    _at_least(f"size, for pieces that hold a {n}-gram,", size, n)
    ids = _token_ids(tokens)
    return [distinct(ids[at : at + size], n) for at in range(0, len(ids) - size + 1, size)]


def loops(
    tokens: Sequence[int],
    most_period: int = MOST_PERIOD,
    least_times: int = LEAST_TIMES,
    least_tokens: int = LEAST_TOKENS,
) -> list[Loop]:
    """The loops of ``tokens``, sorted by start: runs of tokens[i] == tokens[i - period] that go no further either way.

    A run counts the period that it repeats, and is a loop from max(``least_times`` x period, ``least_tokens``) tokens
    on, for periods up to ``most_period``. A run that lies within another is left out, and of runs over the same tokens
    (one of period 3 is one of period 6 too) all but that of the smallest period. Loops that follow one another may
    share tokens, fewer than the sum of their periods: runs that share more are one run (Fine and Wilf, Uniqueness
    theorems for periodic functions, 1965). RepetitionError for tokens that are no token ids, ``most_period`` or
    ``least_tokens`` below 1, and ``least_times`` below 2, for what is said once is no loop.
    """
    import numpy as np

    _at_least("most_period", most_period, 1)
    _at_least("least_times", least_times, 2)
    _at_least("least_tokens", least_tokens, 1)
    ids = _token_ids(tokens)
    runs = []
    # A longer period does not fit in least_times.
    for period in range(1, min(most_period, len(ids) // least_times) + 1):
        same = np.zeros(len(ids) - period + 2, dtype=bool)
        same[1:-1] = ids[period:] == ids[:-period]
        # Where equality begins and where it ends, in turn; of the false at both ends, the first moves all by one place.
        starts, ends = np.flatnonzero(same[1:] != same[:-1]).reshape(-1, 2).T
        lengths = ends - starts + period
        long = lengths >= max(least_times * period, least_tokens)
        runs += [Loop(*run, period) for run in zip(starts[long].tolist(), lengths[long].tolist(), strict=True)]
    found, end = [], 0
    for run in sorted(runs, key=lambda run: (run.start, -run.length, run.period)):
        # What comes earlier in this order starts no later, so a run that ends no later than one of them lies within it.
        if run.start + run.length > end:
            found.append(run)
            end = run.start + run.length
    return found


def longest_loop(
    tokens: Sequence[int],
    most_period: int = MOST_PERIOD,
    least_times: int = LEAST_TIMES,
    least_tokens: int = LEAST_TOKENS,
) -> Loop | None:
    """The longest of ``loops``, the first of those as long; None where there is none."""
    return max(loops(tokens, most_period, least_times, least_tokens), key=lambda loop: loop.length, default=None)


def onset(
    tokens: Sequence[int],
    most_period: int = MOST_PERIOD,
    least_times: int = LEAST_TIMES,
    least_tokens: int = LEAST_TOKENS,
) -> int | None:
    """The age in tokens at which the first of ``loops`` starts, 0 for the first token; None where there is none."""
    return next((loop.start for loop in loops(tokens, most_period, least_times, least_tokens)), None)


def _token_ids(tokens: Sequence[int]) -> np.ndarray:
    """``tokens`` as integers, shape (tokens,)."""
    import numpy as np

    ids = np.asarray(tokens)
    if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
        kind = f"{ids.ndim}-dimensional {ids.dtype}"
        raise RepetitionError(f"give the token ids of one text as a flat sequence of integers, not {kind}")
    return ids


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise RepetitionError(f"{name} must be {least} or more, not {value}")
