"""What the bound costs in quality: windows and pinned tokens on a model that speaks, turn by turn and on and on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from workbench._loop import run_to_end
from workbench.bound import blocks_for
from workbench.engine.vllm import VllmEngine
from workbench.experiments import ExperimentError, Progress, Result, joined, listed, part
from workbench.experiments._sinks_claims import claims_of
from workbench.experiments._sinks_metrics import Wave, metrics_of
from workbench.profiles import Profile
from workbench.quality import scripts
from workbench.quality.line import Lines
from workbench.quality.policies import PINNED, UNBOUNDED, Opening, Policy, policies
from workbench.quality.texts import HeldOut, described
from workbench.quality.together import together

# Lengths of the quick form and the full one: windows, seeds, age in tokens to which a session is brought.
QUICK, FULL = ("128,256", 2, 1024), ("128,256,512,1024", 3, 2560)
# A wave: the sessions that do one thing, all policies and seeds together; what part of the time it takes.
LISTEN, CONVERSE, REMEMBER, SPEAK, JUDGE = "listen", "converse", "remember", "speak", "judge"
SHARES = {LISTEN: 0.15, CONVERSE: 0.22, REMEMBER: 0.08, SPEAK: 0.42, JUDGE: 0.13}
# No chunk of a script has more tokens, or is owed more: a turn has a passage and a question, the opening a block.
MOST_IN, MOST_OWED = 128, 96


def run(
    profile: Profile,
    *,
    progress: Progress | None = None,
    tables_dir: Path | None = None,
    windows: str = "",
    pinned: str = ",".join(PINNED),
    seeds: int = 0,
    age: int = 0,
    full: bool = False,
    seed: int | None = None,
) -> Result:
    """Serve every window with everything that may be pinned, and unbounded: ``seeds`` sessions each, to ``age`` tokens.

    ``windows`` (tokens) and ``pinned`` (nothing, header, content, reply) are separated by commas. The quick form has
    two windows, two seeds and 1,024 tokens, some minutes on two cores; the full one four, three and 2,560, half an
    hour. ``profile`` says which model is served; its pool is made as large as needed. Raises ExperimentError,
    BoundError, ProfileError, FrontEndError, EngineError.
    """
    if profile.executor != "vllm":
        raise ExperimentError(f"quality needs a model that speaks, {profile.name} is simulated: give smollm2")
    default = FULL if full else QUICK
    sizes = listed("windows", windows or default[0], int, "whole numbers of tokens")
    kept = listed("pinned", pinned)
    if not set(kept) <= set(PINNED):
        raise ExperimentError(f"pinned must be some of {', '.join(PINNED)}, not {pinned!r}")
    seeds, age = seeds or default[1], age or default[2]
    if not 1 <= seeds <= 32:
        raise ExperimentError(f"seeds must be 1 to 32, not {seeds}")
    compared = policies(sizes, kept)
    profile = _sized(profile if seed is None else profile.with_(seed=seed), compared, seeds, age)
    say = progress or (lambda message, fraction: None)
    waves, opening, facts = run_to_end(_serve(profile, compared, seeds, age, say))
    params = {
        "model": profile.model,
        "dtype": profile.dtype,
        "block_size": facts.block_size,
        "pool_blocks": facts.blocks_total,
        "threads": facts.threads,
        "windows": sizes,
        "pinned": kept,
        "seeds": seeds,
        "age": age,
        "frame_tokens": scripts.FRAME,
        "spoken_tokens": scripts.SPOKEN,
        "temperature": scripts.TEMPERATURE,
        "text": described(),
    }
    metrics = metrics_of(waves, compared, opening, age, profile.seed)
    tables = [wave.lines.tables for wave in waves.values()]
    if tables_dir is not None:
        for each in tables:
            each.save(Path(tables_dir) / each.run)
    return Result(
        experiment="sinks",
        profile=profile.name,
        executor=facts.executor,
        vllm=facts.vllm,
        seed=profile.seed,
        params=params,
        metrics=metrics,
        claims=tuple(claims_of(metrics, waves, facts.block_size)),
        **joined(tables),
    )


def _sized(profile: Profile, compared: list[Policy], seeds: int, age: int) -> Profile:
    """The profile with a pool that holds all sessions of a wave; unbounded ones never wait for a block."""
    # Past its age a session still answers what it is asked last.
    oldest = age + 2 * (MOST_IN + MOST_OWED)
    block, blocks = profile.block_size, 0
    if age < 8 * scripts.FRAME:
        raise ExperimentError(f"age must be {8 * scripts.FRAME} tokens or more, not {age}")
    pins = 5 * block
    for policy in compared:
        if policy == UNBOUNDED:
            blocks += seeds * blocks_for(oldest, block)
            continue
        if policy.window < max(MOST_IN, block):
            raise ExperimentError(f"window {policy.window} is shorter than a frame: use {max(MOST_IN, block)} or more")
        # A session gives its first block back when it holds one more than its window and what is pinned.
        if policy.window + max(4 * block, 128) > age // 2:
            raise ExperimentError(f"window {policy.window} is not left behind by half of age {age}: raise age")
        blocks += seeds * blocks_for(policy.window + pins + block + MOST_IN + MOST_OWED, block)
    sessions = seeds * len(compared)
    return profile.with_(
        pool_blocks=max(blocks, blocks_for(oldest, block)),
        max_model_len=oldest,
        max_positions=max(profile.max_positions, oldest),
        max_sessions=sessions,
        # Chunks that are drawn at random go whole into a step, and all sessions may be at theirs in the same one.
        max_batched_tokens=max(profile.max_batched_tokens, sessions * MOST_IN),
        sessions=sessions,
        window=max((policy.window for policy in compared if policy.window), default=profile.window),
        tokens_owed=1,
    )


async def _serve(profile: Profile, compared: list[Policy], seeds: int, age: int, say: Progress):
    engine = VllmEngine(profile, scores=True)
    try:
        await engine.start(lambda message: say(message, 0.0))
        tokens, block = scripts.tokens_of(engine), engine.facts.block_size
        opening, text = Opening.of(tokens.encode, block), HeldOut(tokens.encode)
        for policy in compared:
            if (bound := policy.bound(opening)) is not None:
                profile.check_bound(bound, MOST_IN)
        keys = [(policy, seed) for policy in compared for seed in range(seeds)]
        waves, begin = {}, 0.0

        async def wave(name: str, script: Callable, to: int = age, at_once: int | None = None) -> None:
            nonlocal begin
            lines = Lines(engine, name)

            def opens(policy: Policy, seed: int):
                bound = None if name == JUDGE else policy.bound(opening)
                line = lines.open(f"{policy.name}-{seed}", bound)
                return line, script(line, policy, seed)

            begins = {key: partial(opens, *key) for key in keys}
            end = begin + SHARES[name]
            left = await together(lines, begins, to * len(keys), part(say, begin, end), at_once)
            waves[name] = Wave(name, lines, {p: [left[p, seed] for seed in range(seeds)] for p in compared})
            begin = end

        # A secret is to be behind the longest window, and no farther: unbounded, too, it is harder to recall then.
        ages = {LISTEN: age, CONVERSE: age, REMEMBER: profile.window + opening.tokens + 2 * MOST_IN, SPEAK: age}
        does = (scripts.listen, scripts.converse, scripts.remember, scripts.speak)
        for (name, to), script in zip(ages.items(), does, strict=True):
            await wave(
                name, lambda line, _, k, f=script, to=to: f(line, opening, tokens, text, profile.seed + k, to), to
            )
        # Unbounded all, so as many at a time as the pool holds.
        at_once = engine.facts.blocks_total // blocks_for(profile.max_model_len, block)
        await wave(JUDGE, lambda line, policy, k: scripts.judge(line, waves[SPEAK].left[policy][k]), at_once=at_once)
        return waves, opening, engine.facts
    finally:
        await engine.stop()
