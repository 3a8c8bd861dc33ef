"""Waves of the sinks experiment that no engine served: likelihood, answers and repetition as they were planted."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from workbench.engine.base import SessionView
from workbench.experiments._sinks_metrics import FREE_RUNNING, Wave
from workbench.quality.policies import HEADER, NOTHING, UNBOUNDED, Opening, Policy, policies
from workbench.quality.questions import QUESTIONS
from workbench.quality.scripts import BEYOND, CARRIED, FRAME, WITHIN, Asked, Left, Scored, Spoken
from workbench.telemetry import FrameRow, Tables

AGE, SEEDS, BLOCK = 1024, 3, 32
OPENING = Opening((0,) * BLOCK, (0,) * BLOCK, BLOCK)
COMPARED = policies((64, 128), (NOTHING, HEADER))
BREAKS = {64: 256, 128: 512}  # the age at which a window without sinks breaks
RIGHT, WRONG = "Paris.", "I like it."
# What speaks on says nothing in these ages, for a question falls into them.
GAPS = (range(304, 352), range(704, 752))


# What is planted, by policy, seed and age: nats over unbounded; whether an answer is right; from when on it repeats.
def over(policy, seed, age):
    broken = policy.pinned == NOTHING and age >= BREAKS[policy.window]
    return 0.5 if broken else 0.0625 if policy.pinned == HEADER else 0.0


def right(policy, seed, age):
    return policy == UNBOUNDED or age < AGE / 2 or (policy.pinned == HEADER and seed > 0)


def repeats_from(policy, seed):
    if policy.pinned == NOTHING:
        return BREAKS[policy.window] - 32 + 16 * seed
    return 800 if policy == Policy(128, HEADER) and seed == 0 else AGE


def recalls(policy, seed, when):
    return when != BEYOND


def away(policy, seed):
    """How far away a secret is at the end: one bounded session has said it again."""
    return CARRIED if policy == UNBOUNDED or (policy == Policy(64, HEADER) and seed == 0) else BEYOND


def scored(policy, seed, ages, count, by):
    """A text of ``count`` tokens at each of ``ages``: 2 nats a token, one more with each seed, and what is planted."""
    return [Scored(age, tuple(-(2.0 + seed + by(policy, seed, age + k)) for k in range(count))) for age in ages]


def asked(age, is_right, recall=None, tokens=()):
    return Asked(age, QUESTIONS[0], RIGHT if is_right else WRONG, Spoken(age, tokens), recall)


def waves(over=over, right=right, recalls=recalls, away=away, reply=None, held=lambda wave, name, view: view, lose=0):
    """Made-up waves. ``reply``: of an unbounded session to any question; ``lose``: scores of each that listened."""
    made, plan = {}, SimpleNamespace(over=over, right=right, recalls=recalls, away=away)
    for name, leaves in LEFT.items():
        lines = SimpleNamespace(tables=Tables(name), held={})
        made[name] = Wave(name, lines, {policy: [] for policy in COMPARED})
        for policy in COMPARED:
            for seed in range(SEEDS):
                left = leaves(policy, seed, plan)
                if reply and policy == UNBOUNDED:
                    left.asked = [replace(each, reply=reply) for each in left.asked]
                made[name].left[policy].append(left)
                serve(lines, policy, seed, left, None if name == "judge" else policy.bound(OPENING), held)
    for left in (left for each in made["listen"].left.values() for left in each):
        left.scored[0] = replace(left.scored[0], scores=left.scored[0].scores[lose:])
    return made


def listened(policy, seed, plan):
    return Left(seed, scored(policy, seed, range(128, AGE, FRAME), FRAME, plan.over))


def conversed(policy, seed, plan):
    # Replies of other lengths: the same passage has another age, and the difference is half of what it is elsewhere.
    ages = range(96 if policy == UNBOUNDED else 101, AGE, 100)
    left = Left(seed, scored(policy, seed, [age + 3 for age in ages], 48, lambda *where: plan.over(*where) / 2))
    left.asked = [asked(age, plan.right(policy, seed, age), tokens=tuple(range(age, age + 24))) for age in ages]
    return left


def remembered(policy, seed, plan):
    whens = (100, WITHIN), (AGE, plan.away(policy, seed))
    return Left(seed, asked=[asked(age, plan.recalls(policy, seed, when), when) for age, when in whens])


def spoke(policy, seed, plan):
    left, begin = Left(seed), repeats_from(policy, seed)
    for age in range(96, AGE, 16):
        if not any(age in gap for gap in GAPS):
            tokens = (7, 8) * 8 if age >= begin else range(1000 + age, 1000 + age + 16)
            left.spoken.append(Spoken(age, tuple(tokens)))
            left.full += scored(policy, seed, [age], 16, lambda policy, *_: 0.0 if policy == UNBOUNDED else 4.0)
    left.asked = [asked(gap[0], plan.right(policy, seed, gap[0])) for gap in GAPS]
    return left


def judged(policy, seed, plan):
    return Left(seed)


LEFT = {"listen": listened, "converse": conversed, "remember": remembered, "speak": spoke, "judge": judged}


def serve(lines, policy, seed, left, bound, held):
    """The rows of a session, and what the scheduler had of it: all, or as much as its bound keeps."""
    name = f"{policy.name}-{seed}"
    where = {} if bound is None else {"window": bound.window, "sinks": bound.sinks}
    for piece in left.scored:
        count = len(piece.scores)
        row = FrameRow("", name, 0, 0.0, tokens_in=count, tokens_owed=1, age_tokens=piece.age + count, **where)
        lines.tables.frame_rows.append(row)
    lines.tables.frame_rows.append(FrameRow("", name, 1, 0.0, tokens_in=8, tokens_owed=24, age_tokens=AGE, **where))
    # One token less than a chunk may come on top of.
    resident = AGE if bound is None else bound.resident_max(BLOCK, 8, 24)
    lines.held[name] = held(lines.tables.run, name, SessionView("parked", resident, AGE - resident, 0, 0))


def row_of(metrics, policy, regime=FREE_RUNNING):
    """The row of a policy in the metrics of the experiment."""
    keys = policy.window, policy.pinned, regime
    (row,) = (r for r in metrics["policies"] if (r["window"], r["pinned"], r["regime"]) == keys)
    return row
