"""The experiments there are, and what each of them returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from workbench.profiles import Profile

# name -> module; each module has run(profile, *, progress=None, **params) -> Result and a one-line docstring. One that
# is made of many runs takes ``runs`` (workbench.runs.Runs), one that has a long form takes ``full``. PROFILE and
# PROFILE_CHANGES, where a module has them, are what it serves when nobody says.
EXPERIMENTS = {
    name: f"workbench.experiments.{name}"
    for name in (
        "cliff",
        "saturation",
        "agreement",
        "metastability",
        "admission",
        "capacity",
        "recycle",
        "window",
        "loops",
        "conversation",
        "sinks",
        "distance",
        "models",
    )
}
DEFAULT_PROFILE = "smollm2"
Progress = Callable[[str, float | None], None]


class ExperimentError(ValueError):
    """A run that cannot be made as asked; one line that says what to do."""


@dataclass(frozen=True)
class Claim:
    """Something an experiment asserts: ``value`` was measured, ``bound`` says what it had to be."""

    name: str
    holds: bool
    value: Any
    bound: str


@dataclass(frozen=True)
class Result:
    """What a run leaves: three tables (one row per session, frame, sample; column ``run`` names the arm) and metrics.

    ``executor`` is what served ("vllm-cpu", "vllm-cuda", "simulated"); ``params`` are all that shaped the run.
    """

    experiment: str
    profile: str
    executor: str
    vllm: str
    seed: int
    params: dict[str, Any]
    metrics: dict[str, Any]
    claims: tuple[Claim, ...]
    sessions: pd.DataFrame = field(repr=False)
    frames: pd.DataFrame = field(repr=False)
    pool: pd.DataFrame = field(repr=False)

    @property
    def holds(self) -> bool:
        return all(claim.holds for claim in self.claims)

    def to_dict(self) -> dict[str, Any]:
        """The metrics file: everything but the tables."""
        keys = ("experiment", "profile", "executor", "vllm", "seed", "params", "metrics")
        return {**{key: getattr(self, key) for key in keys}, "claims": [asdict(claim) for claim in self.claims]}

    def save_tables(self, folder: Path) -> None:
        """Write sessions.parquet, frames.parquet and pool.parquet into ``folder``."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("sessions", "frames", "pool"):
            getattr(self, name).to_parquet(folder / f"{name}.parquet", index=False)


def experiment(name: str) -> Callable[..., Result]:
    """The ``run`` function of an experiment. Raises ExperimentError that lists those there are."""
    if name not in EXPERIMENTS:
        raise ExperimentError(f"no experiment {name!r}: choose from {', '.join(EXPERIMENTS)}")
    return import_module(EXPERIMENTS[name]).run


def parameters(name: str) -> dict[str, inspect.Parameter]:
    """The parameters that an experiment takes beside the profile, by name, with their defaults."""
    signature = inspect.signature(experiment(name))
    return {
        key: p for key, p in signature.parameters.items() if key not in ("profile", "progress", "tables_dir", "runs")
    }


def takes_runs(name: str) -> bool:
    """Whether an experiment is made of many runs, which ``runs`` computes and keeps."""
    return "runs" in inspect.signature(experiment(name)).parameters


def profile_of(name: str) -> Profile:
    """The profile that an experiment serves when nobody names one: its PROFILE, with its PROFILE_CHANGES if it has some.

    Whoever names a profile gets that one as it is. Raises ExperimentError, ProfileError.
    """
    from workbench.profiles import load_profile

    experiment(name)
    module = import_module(EXPERIMENTS[name])
    return load_profile(getattr(module, "PROFILE", DEFAULT_PROFILE), **getattr(module, "PROFILE_CHANGES", {}))


def listed(name: str, text: str, kind: type = str, of: str = "names", none: bool = False) -> list:
    """The values of a parameter that is a text, each of them once: "96,128" with ``kind`` int is [96, 128].

    ``of``: what they are, in words. ``none``: "none" and "" stand for no value, and are refused otherwise. Raises
    ExperimentError.
    """
    if none and text.strip() in ("", "none"):
        return []
    try:
        values = [kind(word.strip()) for word in text.split(",")]
    except ValueError:
        raise ExperimentError(f"{name} must be {of} separated by commas, not {text!r}") from None
    if len(set(values)) < len(values):
        raise ExperimentError(f"{name} names one twice: {text}")
    return values


def check_sessions_stay(profile) -> None:
    """Refuse arrivals and departures where an experiment says itself which sessions there are. ExperimentError."""
    for name in ("arrivals_per_s", "holding_s"):
        if getattr(profile, name):
            raise ExperimentError(
                f"{name} is of no use here, the experiment opens and closes its sessions: set it to 0"
            )


def params_of(profile, facts) -> dict[str, Any]:
    """What shaped a run on ``profile``, served by an engine of these ``facts``; variance only where there is some."""
    from workbench.frontends import tokens_per_frame

    names = (
        "frame_budget_s",
        "wait_cap",
        "pool_blocks",
        "block_size",
        "sessions",
        "window",
        "sinks",
        "tokens_owed",
        "front_end",
        "phase_groups",
        "model",
        "dtype",
    )
    varied = (
        "moving_sinks",
        "hardware",
        "start_jitter",
        "arrivals_per_s",
        "holding_s",
        "eos_chance",
        "step_noise",
        "shared_prefix",
    )
    return {
        **{name: getattr(profile, name) for name in names},
        "tokens_in": tokens_per_frame(profile.front_end, profile.frame_budget_s),
        "threads": facts.threads,
        **{name: getattr(profile, name) for name in varied if getattr(profile, name)},
        **({"slowdown": profile.slowdown} if profile.slowdown != 1 else {}),
        **({"costs": facts.costs} if facts.costs else {}),
    }


def part(say: Progress, start: float, end: float) -> Progress:
    """Progress of a part of a run, as progress of the whole."""
    return lambda message, fraction: say(message, start + (end - start) * (fraction or 0.0))


def joined(tables) -> dict[str, pd.DataFrame]:
    """The tables of several runs (workbench.telemetry.Tables) as one each, for a Result."""
    import pandas as pd

    return {
        kind: pd.concat([getattr(each, kind)() for each in tables], ignore_index=True)
        for kind in ("sessions", "frames", "pool")
    }
