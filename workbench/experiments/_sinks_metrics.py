"""What the sessions of the sinks experiment say: likelihood, answers and repetition, by policy, regime and age."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from workbench.quality.intervals import Interval, bootstrap, paired
from workbench.quality.line import Lines
from workbench.quality.policies import PINNED, UNBOUNDED, Opening, Policy
from workbench.quality.questions import by_chance
from workbench.quality.repetition import distinct_of_pieces, longest_loop, onset
from workbench.quality.scripts import BEYOND, CARRIED, WITHIN, Asked, Left, Scored

TURN_BASED, FREE_RUNNING = "turn-based", "free-running"
REGIMES = (TURN_BASED, FREE_RUNNING)
BINS = 8  # of age
PIECE = 64  # tokens; shares of distinct pairs compare among pieces of one length alone
DEGRADED = 0.1  # nats a token over unbounded, from one bin of age on to the end


@dataclass
class Wave:
    """The sessions that did one thing; ``left``: what each left, by policy and seed."""

    name: str
    lines: Lines
    left: dict[Policy, list[Left]] = field(default_factory=dict)


@dataclass(frozen=True)
class Regime:
    """What one policy left in one regime, a Left a seed: where texts were scored, and where questions were put.

    ``full``: whether what was said was judged by the full model.
    """

    scored: list[Left]
    asked: list[Left]
    full: bool


def regime_of(waves: dict[str, Wave], policy: Policy, regime: str) -> Regime:
    if regime == TURN_BASED:
        left = waves["converse"].left[policy]
        return Regime(left, left, full=False)
    return Regime(waves["listen"].left[policy], waves["speak"].left[policy], full=True)


def said(left: Left, begin: float, end: float) -> list[tuple[int, int]]:
    """(age, token) of what the model said by itself between two ages; its replies, where it only replies."""
    pieces = left.spoken or [each.spoken for each in left.asked if each.recall is None]
    return [
        (piece.age + k, token)
        for piece in pieces
        for k, token in enumerate(piece.tokens)
        if begin <= piece.age + k < end
    ]


def metrics_of(waves: dict[str, Wave], compared: list[Policy], opening: Opening, age: int, seed: int) -> dict:
    """The metrics of the experiment: ``policies``, ``by_age``, ``rule``, ``recall``, ``leniency`` and ``examples``.

    What stands in ``policies`` is of the late half of the sessions. Intervals are over seeds.
    """
    data = {(policy, regime): regime_of(waves, policy, regime) for policy in compared for regime in REGIMES}
    half = age / 2
    edges = [(k * age // BINS, (k + 1) * age // BINS) for k in range(BINS)]
    rows, by_age = [], []
    for (policy, regime), each in data.items():
        base = data[UNBOUNDED, regime]
        rows.append(_row(policy, opening, regime, each, base, half, edges, seed))
        by_age += [_bin(policy, regime, each, begin, end, seed) for begin, end in edges]
    return {
        "policies": rows,
        "by_age": by_age,
        "rule": _rule(data, half, seed),
        "recall": [_recall(policy, waves["remember"].left[policy]) for policy in compared],
        "leniency": {regime: _leniency(data[UNBOUNDED, regime].asked) for regime in REGIMES},
        "examples": _examples(data, compared),
    }


def named(policy: Policy) -> dict:
    return {"window": policy.window, "pinned": policy.pinned}


def interval(name: str, found: Interval | None) -> dict:
    """Three metrics of one figure: itself and its interval."""
    values = (None, None, None) if found is None else (found.mean, found.low, found.high)
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def _row(policy: Policy, opening: Opening, regime: str, each: Regime, base: Regime, half: float, edges, seed) -> dict:
    late = (half, float("inf"))
    spoken = [said(left, *late) for left in each.asked]
    everything = [said(left, 0, float("inf")) for left in each.asked]
    loops = [longest_loop([token for _, token in pairs]) for pairs in everything]
    begins = [onset([token for _, token in pairs]) for pairs in everything]
    onsets = [[] if k is None else [pairs[k][0]] for k, pairs in zip(begins, everything, strict=True)]
    questions = [_questions(left, *late) for left in each.asked]
    full = [losses(left.full, *late) for left in each.asked] if each.full else []
    return {
        **named(policy),
        "sinks": None if policy.pinned is None else opening.sinks(policy.pinned),
        "regime": regime,
        **interval("nll", bootstrap([losses(left.scored, *late) for left in each.scored], seed=seed)),
        **interval("excess", excess(each, base, *late, seed)),
        "degrades_at_tokens": degraded_from(edges, lambda begin, end: excess(each, base, begin, end, seed)),
        **interval("answered", bootstrap([[float(a.right) for a in asked] for asked in questions], seed=seed)),
        "questions": sum(map(len, questions)),
        **interval("distinct_2", _distinct(spoken, seed)),
        **interval("loop_tokens", bootstrap([[0 if loop is None else loop.length] for loop in loops], seed=seed)),
        "looping": sum(loop is not None for loop in loops) / len(loops),
        **interval("onset_tokens", bootstrap(onsets, seed=seed)),
        **interval("full_nll", bootstrap(full, seed=seed)),
    }


def _bin(policy: Policy, regime: str, each: Regime, begin: float, end: float, seed: int) -> dict:
    asked = [_questions(left, begin, end) for left in each.asked]
    answered = bootstrap([[float(a.right) for a in one] for one in asked], seed=seed)
    distinct = _distinct([said(left, begin, end) for left in each.asked], seed)
    return {
        **named(policy),
        "regime": regime,
        "age_tokens": (begin + end) // 2,
        **interval("nll", bootstrap([losses(left.scored, begin, end) for left in each.scored], seed=seed)),
        "answered": None if answered is None else answered.mean,
        "distinct_2": None if distinct is None else distinct.mean,
    }


def losses(scored: Iterable[Scored], begin: float, end: float) -> list[float]:
    """Negative log-likelihoods (nats) of the tokens fed between two ages."""
    return [-score for piece in scored for k, score in enumerate(piece.scores) if begin <= piece.age + k < end]


def _questions(left: Left, begin: float, end: float) -> list[Asked]:
    return [asked for asked in left.asked if asked.recall is None and begin <= asked.age < end]


def _distinct(spoken: list[list[tuple[int, int]]], seed: int) -> Interval | None:
    pieces = [distinct_of_pieces([token for _, token in pairs], 2, PIECE) for pairs in spoken]
    return bootstrap(pieces, seed=seed)


def excess(each: Regime, base: Regime, begin: float, end: float, seed: int) -> Interval | None:
    """By how many nats a token less likely the same text is than in ``base``, which met it between the two ages."""
    ours, theirs = [], []
    for left, other in zip(each.scored, base.scored, strict=True):
        pairs = [
            (a, b)
            for a, b in zip(left.scored, other.scored, strict=False)
            if begin <= b.age < end and len(a.scores) == len(b.scores)
        ]
        ours.append([-score for a, _ in pairs for score in a.scores])
        theirs.append([-score for _, b in pairs for score in b.scores])
    return paired(ours, theirs, seed=seed)


def degraded_from(bins: Iterable[tuple[int, int]], over: Callable[[int, int], Interval | None]) -> int | None:
    """The age from which on every bin is ``over`` by DEGRADED nats or more; None where the last that has any is not."""
    found = None
    for begin, end in reversed(list(bins)):
        here = over(begin, end)
        if here is None:
            continue
        if here.mean < DEGRADED:
            break
        found = begin
    return found


def _rule(data: dict, half: float, seed: int) -> list[dict]:
    """What each further pin gains, window by window: nats a token, and answers, over what pins one part less."""
    rows = []
    for (policy, regime), each in data.items():
        step = PINNED.index(policy.pinned) if policy.pinned is not None else 0
        before = data.get((Policy(policy.window, PINNED[step - 1]), regime)) if step else None
        if before is None:
            continue
        gain = excess(before, each, half, float("inf"), seed)
        shares = [
            bootstrap([[float(a.right) for a in _questions(left, half, float("inf"))] for left in one.asked], seed=seed)
            for one in (each, before)
        ]
        rows.append(
            {
                "regime": regime,
                "window": policy.window,
                "pinned": policy.pinned,
                **interval("gain", gain),
                "answered_gain": None if None in shares else shares[0].mean - shares[1].mean,
            }
        )
    return rows


def _recall(policy: Policy, left: list[Left]) -> dict:
    """The shares of seeds that named the secret: at once, and at the end, by whether they still held it.

    None where there is no such seed.
    """
    shares = {}
    for when in (WITHIN, CARRIED, BEYOND):
        right = [asked.right for each in left for asked in each.asked if asked.recall == when]
        shares |= {when: sum(right) / len(right) if right else None, f"{when}_seeds": len(right)}
    return {**named(policy), **shares}


def _leniency(left: list[Left]) -> dict:
    replies = [(asked.question, asked.reply) for each in left for asked in each.asked if asked.recall is None]
    return {"by_chance": by_chance(replies), "replies": len(replies)}


def _examples(data: dict, compared: list[Policy]) -> list[dict]:
    """The last question of the first seed, with what each policy replied: to be read, not counted."""
    rows = []
    for policy in compared:
        for regime in REGIMES:
            asked = [a for a in data[policy, regime].asked[0].asked if a.recall is None]
            if asked:
                last = asked[-1]
                words = {"question": last.question.text, "reply": last.reply, "right": last.right}
                rows.append({**named(policy), "regime": regime, "age_tokens": last.age, **words})
    return rows
