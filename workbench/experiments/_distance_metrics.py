"""How likely a text is to sessions far older than the model's context, by age and against one another."""

from __future__ import annotations

from workbench.experiments._sinks_metrics import degraded_from, interval, losses
from workbench.quality.intervals import bootstrap, paired
from workbench.quality.scripts import Left

NO_SINKS, SINKS, MOVING, UNBOUNDED = "no sinks", "sinks", "moving sinks", "unbounded"
BINS = 4  # of age, in each context


def metrics_of(left: dict[str, list[Left]], context: int, factors: list[int], seed: int) -> dict:
    """``sessions``: each policy's nats per token by age; ``within``, ``at``: those of the second half of the first
    context and of the last one before each of ``factors``; ``breaks_at_tokens``: the age from which on a policy is
    DEGRADED or more nats above sinks that move, on the same text.
    """
    ends = {name: max(piece.age for each in all_ for piece in each.scored) for name, all_ in left.items()}
    size = context // BINS
    sessions = [
        {"policy": name, "nll_by_age": [_bin(all_, begin, begin + size, seed) for begin in range(0, ends[name], size)]}
        for name, all_ in left.items()
    ]

    def between(begin: int, end: int) -> dict:
        return {name: _against(left, name, begin, end, seed) for name in left if ends[name] >= end - size}

    return {
        "context": context,
        "sessions": sessions,
        "within": between(context // 2, context),
        "at": [{"factor": factor, **between((factor - 1) * context, factor * context)} for factor in factors],
        "breaks_at_tokens": {
            name: _breaks_at(left, name, size, ends[name], seed) for name in (NO_SINKS, SINKS, UNBOUNDED)
        },
    }


def _bin(all_: list[Left], begin: int, end: int, seed: int) -> dict:
    found = bootstrap([losses(each.scored, begin, end) for each in all_], seed=seed)
    return {"age_tokens": (begin + end) // 2, **interval("nll", found)}


def _against(left: dict, name: str, begin: int, end: int, seed: int) -> dict:
    found = bootstrap([losses(each.scored, begin, end) for each in left[name]], seed=seed)
    over = _over(left, name, NO_SINKS, begin, end, seed)
    return {**interval("nll", found), **interval("over_no_sinks", over)}


def _over(left: dict, name: str, other: str, begin: int, end: int, seed: int):
    """By how many nats a token ``name`` is above ``other`` on the same text at the same ages."""
    both = [[losses(each.scored, begin, end) for each in left[one]] for one in (name, other)]
    return paired(*both, seed=seed)


def _breaks_at(left: dict, name: str, size: int, end: int, seed: int) -> int | None:
    bins = [(begin, min(begin + size, end)) for begin in range(0, end, size)]
    return degraded_from(bins, lambda begin, end: _over(left, name, MOVING, begin, end, seed))
