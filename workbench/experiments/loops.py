"""Loops beyond voice: an agent's scratchpad and a video assistant, each with its cliff and its slope.

The paper (arXiv 2607.02640) says that nothing about the cliff is specific to audio, and names agents' scratchpads and
video assistants. It measures neither. Here are two loops that are unlike voice, in opposite ways:

- ``scratchpad``: a turn every 10 s. A chunk is a thought or what a tool answered, from a line to some pages; the reply
  is long and ends when it ends. Sizes are assumptions.
- ``video``: a picture every second, in the visual tokens that a known model takes for one, and a word or two in reply.

Both are served by the language part of the model card alone: no vision encoder is on it, so latencies are lower bounds
once more. Quick: some 30 s after the start. ``full`` also fills the scratchpad's pool under SEEDS more seeds and counts
how often the forecast's interval held t_full; some two minutes on two cores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from workbench.experiments import ExperimentError, Progress, Result, check_sessions_stay, joined, part
from workbench.experiments import _loop_metrics as measured
from workbench.experiments.cliff import GIVE_UP_FACTOR, INGESTED_OVER_POOL, WALL_FRAMES
from workbench.frontends.scratchpad import mean_tokens
from workbench.profiles import Profile
from workbench.runs import Runs
from workbench.saturation import PREDICT_BELOW_USAGE, prediction
from workbench.sessions import SessionManager
from workbench.workload import play

PROFILE = "sim:qwen3-omni@rtx-pro-6000"
SCRATCHPAD, VIDEO = "scratchpad", "video"
UNBOUNDED, BOUNDED = "unbounded", "bounded"
# Visual tokens of a picture, at one a second: what Gemini takes at its default resolution, as Google's API documents it
# (ai.google.dev/gemini-api/docs/video-understanding, "Technical details about videos").
VISUAL_TOKENS = 258
# Replies of hundreds of tokens are hundreds of steps: that some sessions fall due together keeps a run short.
SCRATCHPAD_GROUPS = 8
MARGIN = 1.1  # chunks of all lengths: so much more than what is needed on average
OLDEST = 1.3  # the oldest session, as a multiple of the average one
FEWEST_EARLY_FRAMES = 5  # of each session while the pool is filled to PREDICT_BELOW_USAGE
SEEDS = 40


@dataclass(frozen=True)
class Loop:
    """One loop. ``chunk_tokens``: of a frame, on average; ``most_tokens``: of a frame, at most."""

    name: str
    profile: Profile
    chunk_tokens: float
    most_tokens: int

    @property
    def reply_tokens(self) -> float:
        """Of a frame, on average: 1 + (1 - p) + ... of ``tokens_owed`` terms, where p ends the reply at each."""
        p, owed = self.profile.eos_chance, self.profile.tokens_owed
        return (1 - (1 - p) ** owed) / p if p else float(owed)

    @property
    def growth(self) -> float:
        """Tokens by which a session grows with a frame, on average."""
        return self.chunk_tokens + self.reply_tokens - 1

    @property
    def fills_after_s(self) -> float:
        """Eq. 1 with rho0 = 0."""
        profile = self.profile
        return profile.pool_tokens / (profile.sessions * self.growth) * profile.frame_budget_s

    @property
    def bounded_frames(self) -> int:
        """Frames per session: twice the pool ingested, and three ages of 2 W to compare."""
        ingest = INGESTED_OVER_POOL * self.profile.pool_tokens / (self.profile.sessions * self.chunk_tokens)
        return math.ceil(MARGIN * max(ingest, 3 * 2 * self.profile.window / self.growth))

    @property
    def plateau_usage(self) -> float:
        """The part of the pool that bounded sessions hold between frames, on average.

        Eviction in whole blocks leaves S' + W and up to a block less one token; the frame's growth is put on top, and
        the whole rounded up to blocks. Where lengths vary, both remainders average (block - 1) / 2.
        """
        profile = self.profile
        tokens = profile.bound.sink_tokens(profile.block_size) + profile.window + self.growth + profile.block_size - 1
        return profile.sessions * tokens / profile.pool_tokens


def run(
    profile: Profile,
    *,
    progress: Progress | None = None,
    tables_dir: Path | None = None,
    runs: Runs | None = None,
    full: bool = False,
    window: int = 4096,
    seed: int | None = None,
    scratchpad_sessions: int = 48,
    scratchpad_budget_s: float = 10.0,
    scratchpad_shortest: int = 16,
    scratchpad_longest: int = 2048,
    scratchpad_owed: int = 256,
    scratchpad_eos_chance: float = 0.01,
    video_sessions: int = 32,
    video_budget_s: float = 1.0,
    video_tokens: int = VISUAL_TOKENS,
    video_owed: int = 8,
) -> Result:
    """Run both loops unbounded to the wall, then bounded until twice the pool was ingested, a fresh engine each.

    Of a loop: its sessions, its frame budget in seconds, the tokens of a chunk (``video_tokens`` without its two marks)
    and the tokens owed; ``scratchpad_eos_chance`` ends a reply at each token. ``window`` is both loops'. The pool and
    the costs are the profile's, which has to be simulated. Raises ExperimentError, BoundError, FrontEndError,
    ProfileError, EngineError.
    """
    say = progress or (lambda message, fraction: None)
    if profile.executor != "simulated":
        raise ExperimentError(f"loops are simulated, {profile.name} is not: give a sim: profile, such as {PROFILE}")
    check_sessions_stay(profile)
    profile = profile.with_(window=window, seed=profile.seed if seed is None else seed)
    loops = [
        _scratchpad(
            profile.with_(
                sessions=scratchpad_sessions,
                frame_budget_s=scratchpad_budget_s,
                front_end=f"scratchpad:{scratchpad_shortest}-{scratchpad_longest}:{profile.seed}",
                tokens_owed=scratchpad_owed,
                eos_chance=scratchpad_eos_chance,
                phase_groups=min(SCRATCHPAD_GROUPS, profile.phase_groups),
            ),
            scratchpad_shortest,
            scratchpad_longest,
        ),
        _video(
            profile.with_(
                sessions=video_sessions,
                frame_budget_s=video_budget_s,
                front_end=f"video:{video_tokens}",
                tokens_owed=video_owed,
            )
        ),
    ]
    for loop in loops:
        _check(loop)
    arms = [(loop, arm) for loop in loops for arm in (UNBOUNDED, BOUNDED)]
    share = 0.6 if full else 1.0
    served = {}
    for i, (loop, arm) in enumerate(arms):
        tell = part(say, share * i / len(arms), share * (i + 1) / len(arms))
        folder = None if tables_dir is None else Path(tables_dir) / loop.name / arm
        served[loop.name, arm] = _serve(loop, arm, tell, folder)
    counted = _coverage(loops[0].profile, runs or Runs(), part(say, share, 1.0)) if full else None
    return _result(profile, loops, served, counted)


def _scratchpad(profile: Profile, shortest: int, longest: int) -> Loop:
    # The front end says what is wrong with the range, before its mean is taken.
    from workbench.frontends import tokens_per_frame

    tokens_per_frame(profile.front_end, profile.frame_budget_s)
    profile.check_bound(profile.bound, longest)
    return Loop(SCRATCHPAD, profile, mean_tokens(shortest, longest), longest)


def _video(profile: Profile) -> Loop:
    profile.check_bound(profile.bound)
    return Loop(VIDEO, profile, profile.frame_tokens, profile.frame_tokens)


def _check(loop: Loop) -> None:
    profile, name = loop.profile, loop.name
    frames = loop.fills_after_s / profile.frame_budget_s
    if PREDICT_BELOW_USAGE * frames < FEWEST_EARLY_FRAMES:
        raise ExperimentError(
            f"{name}: the pool is full after {frames:.0f} frames, too soon to predict from usage <= "
            f"{PREDICT_BELOW_USAGE}: raise pool_blocks or lower {name}_sessions"
        )
    for most, field, tokens, when in (
        (profile.max_model_len, "max_model_len", frames * loop.growth, "the pool is full"),
        (
            profile.max_positions,
            "max_positions",
            loop.bounded_frames * loop.growth,
            "the bounded arm has shown enough",
        ),
    ):
        if OLDEST * tokens > most:
            raise ExperimentError(
                f"{name}: sessions would reach {field} {most} before {when}: raise it, open more {name}_sessions or "
                "make the window smaller"
            )
    warning = profile.plateau_warning([profile.bound] * profile.sessions, loop.most_tokens)
    if warning:
        raise ExperimentError(f"{name}: the bounded arm cannot hold its plateau: {warning}")


def _serve(loop: Loop, arm: str, say: Progress, folder: Path | None = None, to_refusal: bool = False) -> SessionManager:
    """One arm on a fresh engine: unbounded to some frames into the wall, or bounded for its frames."""
    profile, budget = loop.profile, loop.profile.frame_budget_s
    bound, until = None, GIVE_UP_FACTOR * loop.fills_after_s
    expected = loop.fills_after_s + (2 + WALL_FRAMES) * budget
    if arm == BOUNDED:
        bound, until = profile.bound, (loop.bounded_frames + 2) * budget
        expected = until
    name = f"{loop.name}, {arm}"
    with SessionManager(profile, name, progress=lambda m: say(f"{name}: {m}", 0.0), save_to=folder) as manager:
        beat = manager.beat

        def shown() -> bool:
            if to_refusal:
                return beat.first_refused_at_s is not None
            return beat.wall_at_s is not None and manager.now() > beat.wall_at_s + (2 + WALL_FRAMES) * budget

        def tell(at: float) -> None:
            say(f"{name}: {manager.status()}, {at:.0f} s of about {expected:.0f}", min(1.0, at / expected))

        play(manager, until, lambda call: manager.add(None, bound), stop=shown, tell=tell)
    if beat.dead is not None:
        raise ExperimentError(f"the engine died in {name}: {beat.dead}")
    return manager


def _coverage(profile: Profile, runs: Runs, say: Progress) -> list[dict]:
    points = [{"profile": profile, "seed": profile.seed + 1 + i} for i in range(SEEDS)]
    return runs.map(forecast_against_refusal, points, lambda message, done: say(f"scratchpad, seeds: {message}", done))


def forecast_against_refusal(profile: Profile, seed: int) -> dict:
    """One scratchpad run to its first refused allocation: the forecast that counts, its interval, and t_full."""
    name, lengths, _ = profile.front_end.split(":")
    shortest, longest = map(int, lengths.split("-"))
    profile = profile.with_(seed=seed, front_end=f"{name}:{lengths}:{seed}")
    manager = _serve(_scratchpad(profile, shortest, longest), UNBOUNDED, lambda *said: None, to_refusal=True)
    made = prediction(manager.pool(), manager.sessions(), profile.frame_budget_s, profile.block_size)
    return {"seed": seed, **measured.forecast(made, manager.beat.first_refused_at_s)}


def _result(profile: Profile, loops: list[Loop], served: dict, counted: list[dict] | None) -> Result:
    metrics, claims, params = {}, [], {}
    for loop in loops:
        name, managers = loop.name, [served[loop.name, arm] for arm in (UNBOUNDED, BOUNDED)]
        unbounded, cliff = measured.unbounded(loop, managers[0])
        bounded, slope = measured.bounded(loop, managers[1])
        if name == SCRATCHPAD and counted is not None:
            unbounded["forecast_over_seeds"] = measured.coverage(counted)
        metrics[name] = {UNBOUNDED: unbounded, BOUNDED: bounded}
        claims += [replace(c, name=f"{name}, {UNBOUNDED}: {c.name}") for c in cliff]
        claims += [replace(c, name=f"{name}, {BOUNDED}: {c.name}") for c in slope]
        params[name] = _params(loop)
    facts = served[VIDEO, BOUNDED].engine.facts
    shared = ("model", "hardware", "pool_blocks", "block_size", "window", "sinks", "wait_cap", "backlog", "step_noise")
    return Result(
        experiment="loops",
        profile=profile.name,
        executor=facts.executor,
        vllm=facts.vllm,
        seed=profile.seed,
        params={
            **{key: getattr(profile, key) for key in shared},
            "slowdown": profile.slowdown,
            "costs": facts.costs,
            "loops": params,
        },
        metrics={"loops": metrics},
        claims=tuple(claims),
        **joined([manager.tables for manager in served.values()]),
    )


def _params(loop: Loop) -> dict:
    names = ("sessions", "frame_budget_s", "front_end", "tokens_owed", "eos_chance", "phase_groups", "start_jitter")
    return {
        **{name: getattr(loop.profile, name) for name in names},
        "tokens_in_mean": loop.chunk_tokens,
        "tokens_in_most": loop.most_tokens,
        "growth_mean": loop.growth,
        "bounded_frames": loop.bounded_frames,
    }
