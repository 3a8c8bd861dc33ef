"""When the pool will be full, said from the early trace, on the paper's four models and on the engine at hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from workbench.experiments import (
    Claim,
    ExperimentError,
    Progress,
    Result,
    check_sessions_stay,
    joined,
    listed,
    params_of,
)
from workbench.profiles import SIMULATED, Profile, load_profile
from workbench.saturation import PREDICT_BELOW_USAGE, Prediction, prediction
from workbench.sessions import SessionManager
from workbench.workload import caller, play

# Sessions of the paper's runs and of its bursts (arXiv 2607.02640); B is on the model's card.
PAPER_SESSIONS = {"qwen3-omni": 128, "minicpm-o-4.5": 96, "qwen2.5-omni": 24, "moshi": 32}
# Its own two predictions of t_full and what it measured, in seconds, with these sessions on its GPU.
PAPER_T_FULL_S = {"qwen3-omni": (145, 148), "minicpm-o-4.5": (99, 114)}
# Where these are too few to fill the pool before each reaches the model's own context: as many as fill it at this
# part of the context.
FILLS_AT_CONTEXT = 0.75
ERROR = 0.02
GIVE_UP_FACTOR = 2.0


@dataclass(frozen=True)
class Filled:
    """A run to the first refused allocation. ``full_s`` is None where there was none."""

    profile: Profile
    manager: SessionManager
    made: Prediction | None
    full_s: float | None

    @property
    def error(self) -> float | None:
        if self.made is None or self.full_s is None:
            return None
        return abs(self.made.forecast.t_full_s - self.full_s) / self.full_s

    @property
    def holds(self) -> bool:
        """Within 2 % or one frame."""
        frame = None if self.error is None else self.profile.frame_budget_s / self.full_s
        return frame is not None and self.error <= max(ERROR, frame)


def run(
    profile: Profile,
    *,
    progress: Progress | None = None,
    tables_dir: Path | None = None,
    models: str = ",".join(PAPER_SESSIONS),
    hardware: str = "rtx-pro-6000",
    seed: int | None = None,
    start_jitter: float = 0.25,
    eos_chance: float = 0.02,
    step_noise: float = 0.1,
    shared_prefix: int = 64,
) -> Result:
    """Fill each pool without a bound, and hold the forecast made at usage <= 0.3 against the first refusal.

    ``models``: model cards, separated by commas, simulated on ``hardware`` with the four sources of variance that
    follow; "none" for the profile alone. The profile runs as it is. Arrivals and departures stay off: a forecast speaks
    of the sessions there are. Raises ExperimentError, CardError, ProfileError, EngineError.
    """
    say = progress or (lambda message, fraction: None)
    if seed is not None:
        profile = profile.with_(seed=seed)
    variance = {
        "start_jitter": start_jitter,
        "eos_chance": eos_chance,
        "step_noise": step_noise,
        "shared_prefix": shared_prefix,
    }
    runs = {name: paper_profile(name, hardware, profile.seed, variance) for name in listed("models", models, none=True)}
    runs[profile.name if profile.model in runs else profile.model] = profile
    for each in runs.values():
        check(each)
    done = {}
    for i, (name, each) in enumerate(runs.items()):

        def tell(message: str, part: float, i=i, name=name) -> None:
            say(f"{name}: {message}", (i + part) / len(runs))

        done[name] = _fill(each, name, tell, None if tables_dir is None else Path(tables_dir) / name)
    return _result(profile, done, hardware, variance)


def paper_profile(model: str, hardware: str, seed: int, variance: dict) -> Profile:
    """A model's card on ``hardware`` with the paper's sessions, or as many as fill the pool within its context."""
    profile = load_profile(f"{SIMULATED}{model}@{hardware}", seed=seed, **variance)
    enough = math.ceil(profile.pool_tokens / (FILLS_AT_CONTEXT * profile.max_model_len))
    return profile.with_(sessions=max(PAPER_SESSIONS.get(model, profile.sessions), enough))


def _fills_after_s(profile: Profile) -> float:
    """Eq. 1 with rho0 = 0."""
    return profile.pool_tokens / (profile.sessions * profile.growth) * profile.frame_budget_s


def check(profile: Profile) -> None:
    """Raise ExperimentError where sessions would not stay, or a pool fills too soon or too late to foretell it."""
    check_sessions_stay(profile)
    frames = _fills_after_s(profile) / profile.frame_budget_s
    if PREDICT_BELOW_USAGE * frames < 5:
        raise ExperimentError(
            f"{profile.name}: the pool is full after {frames:.0f} frames, too soon to predict from usage <= "
            f"{PREDICT_BELOW_USAGE}: raise pool_blocks or lower sessions"
        )
    if frames * profile.growth > profile.max_model_len:
        raise ExperimentError(
            f"{profile.name}: sessions would reach max_model_len {profile.max_model_len} before the pool is full: "
            "raise it, or open more sessions"
        )


def _fill(profile: Profile, name: str, tell, tables_dir: Path | None) -> Filled:
    expected = _fills_after_s(profile)
    with SessionManager(profile, name, progress=lambda m: tell(m, 0.0), save_to=tables_dir) as manager:
        play(
            manager,
            GIVE_UP_FACTOR * expected,
            caller(manager),
            stop=lambda: manager.beat.first_refused_at_s is not None,
            tell=lambda at: tell(f"{manager.status()}, {at:.0f} s of about {expected:.0f}", min(1.0, at / expected)),
        )
    if manager.beat.dead is not None:
        raise ExperimentError(f"the engine died: {manager.beat.dead}")
    made = prediction(manager.pool(), manager.sessions(), profile.frame_budget_s, manager.engine.facts.block_size)
    return Filled(profile, manager, made, manager.beat.first_refused_at_s)


def _result(profile: Profile, done: dict[str, Filled], hardware: str, variance: dict) -> Result:
    facts = list(done.values())[-1].manager.engine.facts
    claims = []
    for name, filled in done.items():
        claims += [
            Claim(
                f"{name}: the prediction was written while usage was <= {PREDICT_BELOW_USAGE} and its replay agrees",
                filled.made is not None and filled.made.replays,
                None if filled.made is None else filled.made.at_s,
                "the same number",
            ),
            Claim(f"{name}: t_full is predicted", filled.holds, filled.error, f"<= {ERROR} or one frame"),
        ]
    return Result(
        experiment="saturation",
        profile=profile.name,
        executor=facts.executor,
        vllm=facts.vllm,
        seed=profile.seed,
        params={**params_of(profile, facts), "hardware_of_models": hardware, "variance_of_models": variance},
        metrics={"models": {name: _metrics(filled) for name, filled in done.items()}},
        claims=tuple(claims),
        **joined([filled.manager.tables for filled in done.values()]),
    )


def _metrics(filled: Filled) -> dict:
    profile, facts, made = filled.profile, filled.manager.engine.facts, filled.made
    forecast = None if made is None else made.forecast
    return {
        "t_full_predicted_s": None if forecast is None else forecast.t_full_s,
        "low": None if forecast is None else forecast.low_s,
        "high": None if forecast is None else forecast.high_s,
        "predicted_at_s": None if made is None else made.at_s,
        "t_full_measured_s": filled.full_s,
        "error": filled.error,
        "executor": facts.executor,
        "profile": profile.name,
        "sessions": profile.sessions,
        "sessions_of_the_paper": PAPER_SESSIONS.get(profile.model),
        "frame_budget_s": profile.frame_budget_s,
        "growth_per_frame": profile.growth,
        "pool_tokens": profile.pool_tokens,
        "costs": facts.costs,
    }
