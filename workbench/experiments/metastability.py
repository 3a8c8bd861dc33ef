"""Whether a run collapses by chance: P(wall) over N x duration, by source of variance, unbounded and bounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from workbench.experiments import Claim, Progress, Result, joined, params_of, part
from workbench.experiments._metastability import (
    BOUNDED,
    NONE,
    SOURCES,
    UNBOUNDED,
    WATCHED_AFTER,
    WITHIN,
    Strengths,
    account,
    eq1_s,
    expected_s,
    growth_with_eos,
    one_run,
    serve,
    stair_s,
    vary,
)
from workbench.experiments._metastability_checks import LONGEST, check, check_simulated, names, numbers
from workbench.experiments._metastability_metrics import (
    PAPER_BATCHES,
    PAPER_DURATION_S,
    PAPER_FULL_S,
    PAPER_N,
    cells,
    claims_of,
    metrics_of,
)
from workbench.profiles import Profile
from workbench.runs import Runs

# What a notebook of this experiment reads, beside ``run``.
__all__ = [
    "LONGEST",
    "PAPER_BATCHES",
    "PAPER_DURATION_S",
    "PAPER_FULL_S",
    "PAPER_N",
    "PROFILE",
    "SOURCES",
    "WITHIN",
    "Strengths",
    "eq1_s",
    "expected_s",
    "growth_with_eos",
    "run",
    "stair_s",
]

PROFILE = "sim:qwen3-omni@rtx-pro-6000"
RUNS, RUNS_FULL = 3, 20
BOUNDED_RUNS, BOUNDED_RUNS_FULL = 2, 200
ALIKE = 2  # quick form: runs of a source that averages out, which are all but the same
INGESTED_OVER_POOL = 2.0
# Durations at which P(wall) is read, as parts of Eq. 1's time for each N; the paper's 300 s beside them.
PARTS = "0.9,0.95,1,1.05,1.1,1.2,1.4,1.6"


def run(
    profile: Profile,
    *,
    progress: Progress | None = None,
    tables_dir: Path | None = None,
    runs: Runs | None = None,
    full: bool = False,
    n: str = "96,128",
    duration_s: str = "300",
    parts: str = PARTS,
    sources: str = ",".join(SOURCES),
    runs_per_cell: int | None = None,
    bounded_runs: int | None = None,
    window: int | None = None,
    seed: int | None = None,
    start_jitter: float = 1.0,
    eos_chance: float = 0.05,
    step_noise: float = 0.5,
    holding: float = 4.0,
    silence: float = 0.9,
) -> Result:
    """Many runs, a fresh engine and a seed of its own each, until the wall or past the longest duration.

    ``n``, ``duration_s`` (seconds) and ``parts`` (of Eq. 1's time for each N) are numbers separated by commas: a cell
    is an N, a source and a duration. Cells that differ in the duration alone are read off the same runs: a run has
    walled within a duration if its wall began by then. ``sources``: "none", "start_jitter", "eos" (each token for
    itself), "step_noise", "churn", "replies" (how much is answered, drawn once for a run), "all".
    ``runs_per_cell``: unbounded runs of each N and source, by default 3, in the full form 20. ``bounded_runs``: 2 or
    200 in all, over N and sources in turn, until each has ingested twice the pool. The strengths: see
    workbench.experiments._metastability.Strengths; ``silence`` is the largest eos_chance that ``replies`` draws.
    The quick form serves the largest N with every source and the others with "none"; of sources that average out it
    makes two runs. The full form serves each N with every source: 480 runs of 20,000 to 50,000 session-frames, half an
    hour to an hour on two cores. The tables are of two runs that were made a second time.
    Raises ExperimentError, BoundError, ProfileError, EngineError.
    """
    say = progress or (lambda message, fraction: None)
    check_simulated(profile)
    changes = {"window": window, "seed": seed}
    profile = profile.with_(**{key: value for key, value in changes.items() if value is not None})
    strengths = Strengths(start_jitter, eos_chance, step_noise, holding, silence)
    chosen = names(sources)
    sessions = numbers("n", n, int)
    runs_per_cell = (RUNS_FULL if full else RUNS) if runs_per_cell is None else runs_per_cell
    bounded_runs = (BOUNDED_RUNS_FULL if full else BOUNDED_RUNS) if bounded_runs is None else bounded_runs
    durations = {
        each: sorted(
            [(at_s, None) for at_s in numbers("duration_s", duration_s, float)]
            + [(p * eq1_s(profile.with_(sessions=each)), p) for p in numbers("parts", parts, float)],
            key=lambda duration: duration[0],
        )
        for each in sessions
    }
    longest = {each: durations[each][-1][0] for each in sessions}
    check(profile, sessions, chosen, runs_per_cell, bounded_runs, strengths, longest)
    points = _points(profile, sessions, chosen, runs_per_cell, bounded_runs, strengths, longest, full)
    done = (runs or Runs()).map(one_run, points, part(say, 0.0, 0.85))
    again = _again(points, done, tables_dir, part(say, 0.85, 1.0))
    counted = cells(done, durations)
    metrics = metrics_of(profile, strengths, done, counted)
    facts = again[0].engine.facts
    say("done", 1.0)
    return Result(
        experiment="metastability",
        profile=profile.name,
        executor=facts.executor,
        vllm=facts.vllm,
        seed=profile.seed,
        params={
            **params_of(profile.with_(sessions=max(sessions)), facts),
            "n": sessions,
            "durations_s": {str(each): [at_s for at_s, _ in durations[each]] for each in sessions},
            "sources": chosen,
            "runs_per_cell": runs_per_cell,
            "bounded_runs": bounded_runs,
            "strengths": asdict(strengths),
            "full": full,
        },
        metrics=metrics,
        claims=(*claims_of(profile, strengths, done, counted), _same(done, again)),
        **joined([manager.tables for manager in again]),
    )


def _points(
    profile: Profile,
    sessions: Sequence[int],
    sources: Sequence[str],
    runs_per_cell: int,
    bounded_runs: int,
    strengths: Strengths,
    longest: dict[int, float],
    full: bool,
) -> list[dict[str, Any]]:
    """The runs to make, each with a seed of its own; the bounded ones, which take longest, first."""
    wanted = []
    # The strongest source first, so that few runs see it too.
    turns = [(source, n) for source in reversed(sources) for n in sessions]
    wanted += [(BOUNDED, *turns[i % len(turns)]) for i in range(bounded_runs)]
    for source in sources:
        count = runs_per_cell if full or source not in (NONE, *WITHIN) else min(ALIKE, runs_per_cell)
        served = sessions if full or source == NONE else [max(sessions)]
        wanted += [(UNBOUNDED, source, n) for n in served for _ in range(count)]
    points = []
    for number, (policy, source, n) in enumerate(wanted):
        # Room for ten thousand runs before the next seed's begin.
        mine = profile.with_(sessions=n, seed=profile.seed * 10_000 + number)
        points.append(
            {
                "profile": vary(mine, source, strengths),
                "policy": policy,
                "variance": source,
                "until_s": longest[n] + WATCHED_AFTER * profile.frame_budget_s,
                "ingest": round(INGESTED_OVER_POOL * profile.pool_tokens) if policy == BOUNDED else 0,
            }
        )
    return points


def _again(points: list[dict], done: list[dict], tables_dir: Path | None, say: Progress) -> list:
    """Two runs made a second time, here, for their tables: the last unbounded one without variance (or the last there
    is), and a bounded one of the same N for as long."""
    unbounded = [i for i, point in enumerate(points) if point["policy"] == UNBOUNDED]
    which = next((i for i in reversed(unbounded) if points[i]["variance"] == NONE), unbounded[-1])
    point = points[which]
    managers = []
    for policy, until_s in ((UNBOUNDED, point["until_s"]), (BOUNDED, done[which]["ended_at_s"])):
        say(f"{policy}: one run again, for its tables", 0.6 * len(managers))
        folder = None if tables_dir is None else Path(tables_dir) / policy
        managers.append(serve(point["profile"], policy, until_s, save_to=folder))
    return managers


def _same(done: list[dict], again: list) -> Claim:
    """A run is decided by its seed: made a second time it is the same, frame by frame and to the last digit."""
    mine = account(again[0])
    first = next(row for row in done if row["policy"] == UNBOUNDED and row["seed"] == mine["seed"])
    differing = [key for key, value in mine.items() if first[key] != value]
    return Claim("the same seed gives the same run", not differing, differing or "the same", "the same")
