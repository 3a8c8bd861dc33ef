"""Sessions many times as old as the model's context: where a bounded one breaks, and sinks that move along."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from workbench._loop import run_to_end
from workbench.bound import KVBound, blocks_for
from workbench.engine.model import model_folder, read_config
from workbench.engine.vllm import VllmEngine
from workbench.experiments import Claim, ExperimentError, Progress, Result, joined, listed
from workbench.experiments._distance_metrics import MOVING, NO_SINKS, SINKS, UNBOUNDED, metrics_of
from workbench.experiments._sinks_claims import resident_claim
from workbench.profiles import Profile
from workbench.quality import scripts
from workbench.quality.line import Lines
from workbench.quality.policies import HEADER, Opening
from workbench.quality.texts import HeldOut, described
from workbench.quality.together import together

FRAME = 128  # tokens; longer than where many sessions are compared, for these are long
QUICK, FULL = ("2", 1), ("2,4,8", 2)
# An unbounded session computes more with every frame: it is followed into what it was not trained for, and no farther.
UNBOUNDED_CONTEXTS = 2


def run(
    profile: Profile,
    *,
    progress: Progress | None = None,
    tables_dir: Path | None = None,
    window: int = 256,
    factors: str = "",
    seeds: int = 0,
    full: bool = False,
    seed: int | None = None,
) -> Result:
    """Stream text into sessions of ``factors`` (separated by commas) times the model's context, ``seeds`` each.

    Policies: no sinks, the header as sinks that stay, the same as sinks that move; unbounded to twice the context. The
    quick form has factor 2 and one seed, some minutes on two cores; the full one 2, 4 and 8 and two seeds. Raises
    ExperimentError, BoundError, ProfileError, FrontEndError, EngineError.
    """
    if profile.executor != "vllm":
        raise ExperimentError(f"quality needs a model that speaks, {profile.name} is simulated: give smollm2")
    default = FULL if full else QUICK
    times = sorted(listed("factors", factors or default[0], int, "whole numbers"))
    if not 2 <= times[0] <= times[-1] <= 16:
        raise ExperimentError(f"factors must be 2 to 16 times the model's context, not {factors}")
    seeds = seeds or default[1]
    if not 1 <= seeds <= 8:
        raise ExperimentError(f"seeds must be 1 to 8, not {seeds}")
    say = progress or (lambda message, fraction: None)
    context = _context(profile, say)
    profile = _sized(profile if seed is None else profile.with_(seed=seed), context, times[-1], seeds, window)
    lines, left, facts = run_to_end(_serve(profile, context, times[-1], seeds, say))
    metrics = metrics_of(left, context, times, profile.seed)
    if tables_dir is not None:
        lines.tables.save(Path(tables_dir) / lines.tables.run)
    return Result(
        experiment="distance",
        profile=profile.name,
        executor=facts.executor,
        vllm=facts.vllm,
        seed=profile.seed,
        params={
            "model": profile.model,
            "dtype": profile.dtype,
            "block_size": facts.block_size,
            "pool_blocks": facts.blocks_total,
            "threads": facts.threads,
            "window": window,
            "sinks": max(row.sinks or 0 for row in lines.tables.frame_rows),
            "factors": times,
            "seeds": seeds,
            "frame_tokens": FRAME,
            "text": described(),
        },
        metrics={"window": window, **metrics},
        claims=(resident_claim([lines], facts.block_size), *_claims(metrics)),
        **joined([lines.tables]),
    )


def _context(profile: Profile, say: Progress) -> int:
    """The positions that the model was trained for, by its own configuration."""
    folder = model_folder(profile.model, lambda message: say(message, 0.0))
    context = read_config(folder).get("max_position_embeddings")
    if context is None:
        raise ExperimentError(f"the configuration of {profile.model} does not say how long its context is")
    return context


def _sized(profile: Profile, context: int, factor: int, seeds: int, window: int) -> Profile:
    if window < max(FRAME, profile.block_size):
        raise ExperimentError(f"window {window} is shorter than a frame: use {max(FRAME, profile.block_size)} or more")
    oldest = UNBOUNDED_CONTEXTS * context + 4 * FRAME
    blocks = blocks_for(oldest, profile.block_size) + 3 * blocks_for(window + 4 * FRAME, profile.block_size)
    return profile.with_(
        pool_blocks=seeds * blocks,
        max_model_len=oldest,
        max_positions=max(profile.max_positions, factor * context + 4 * FRAME),
        max_sessions=4 * seeds,
        sessions=4 * seeds,
        window=window,
        tokens_owed=1,
    )


async def _serve(profile: Profile, context: int, factor: int, seeds: int, say: Progress):
    engine = VllmEngine(profile, scores=True)
    try:
        await engine.start(lambda message: say(message, 0.0))
        tokens = scripts.tokens_of(engine)
        opening, text = Opening.of(tokens.encode, engine.facts.block_size), HeldOut(tokens.encode)
        sinks, lines = opening.sinks(HEADER), Lines(engine, "distance")
        bounds = {
            NO_SINKS: KVBound(profile.window),
            SINKS: KVBound(profile.window, sinks),
            MOVING: KVBound(profile.window, sinks, moving=True),
            UNBOUNDED: None,
        }
        ages = {name: context * (factor if bound else UNBOUNDED_CONTEXTS) for name, bound in bounds.items()}
        for bound in filter(None, bounds.values()):
            profile.check_bound(bound, FRAME)

        def opens(name: str, seed: int):
            line = lines.open(f"{name}-{seed}", bounds[name])
            return line, scripts.listen(line, opening, tokens, text, profile.seed + seed, ages[name], FRAME)

        begins = {(name, seed): partial(opens, name, seed) for name in bounds for seed in range(seeds)}
        left = await together(lines, begins, seeds * sum(ages.values()), say)
        return lines, {name: [left[name, seed] for seed in range(seeds)] for name in bounds}, engine.facts
    finally:
        await engine.stop()


def _claims(metrics: dict) -> list[Claim]:
    """On the last context of the longest sessions, where every distance to a sink that stays was never trained."""
    last = metrics["at"][-1]
    return [
        Claim(
            "within the context, sinks gain whether they move or not",
            max(metrics["within"][name]["over_no_sinks"] for name in (SINKS, MOVING)) < 0,
            {name: metrics["within"][name]["over_no_sinks"] for name in (SINKS, MOVING)},
            "fewer nats per token than without",
        ),
        Claim(
            "beyond it, sinks that stay cost more than none",
            last[SINKS]["over_no_sinks"] > 0,
            last[SINKS]["over_no_sinks"],
            "> 0 nats per token",
        ),
        Claim(
            "sinks that move keep their gain",
            last[MOVING]["over_no_sinks"] <= metrics["within"][MOVING]["over_no_sinks"] / 2 < 0,
            {"within": metrics["within"][MOVING]["over_no_sinks"], "beyond": last[MOVING]["over_no_sinks"]},
            "at least half of what they gain within",
        ),
    ]
