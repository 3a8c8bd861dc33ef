"""Simulated profiles: which pool a model leaves on a piece of hardware, and how long a step takes there.

``sim:MODEL@HARDWARE`` is a model card on a hardware card. Its steps take what the roofline of the two says: the least
time that the hardware allows, so latencies are lower bounds, while the fill of the pool does not depend on them.
``sim:NAME`` is the built-in profile NAME with the step times that `workbench calibrate --profile NAME` measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from workbench.profiles import PROFILES, SIMULATED, Profile, ProfileError

if TYPE_CHECKING:
    from workbench.costs import CostModel

# The operating point of the paper (arXiv 2607.02640): the last 1024 tokens and a chat header of one block of 16.
WINDOW, SINKS, BLOCK = 1024, 16, 16
# What vLLM 0.32 serves with by default on a GPU of 70 GiB or more (EngineArgs.get_batch_defaults).
MAX_BATCHED_TOKENS, MAX_SESSIONS = 8192, 1024
# Sessions of many callers do not start together: this many instants of each budget at which frames fall due.
PHASE_GROUPS = 32
SESSIONS = 64
ANY_MACHINE = "any"


class Costs(Protocol):
    """What a simulated engine needs of a cost model. ``front_end_s``: seconds per second of audio, one frame at a time,
    outside the engine; ``source``: where the figures are from."""

    front_end_s: float
    source: str

    def step_s(
        self, prefill_tokens: int, decoding: int, context_tokens: int, encoder_s: float, prefill_pairs: int
    ) -> float: ...


@dataclass(frozen=True)
class StepCosts:
    """A cost model with the front end that stands before it."""

    model: CostModel
    source: str
    front_end_s: float = 0.0

    def __post_init__(self) -> None:
        # Called at each step of a simulated engine.
        object.__setattr__(self, "step_s", self.model.step_s)


def simulated_profile(name: str) -> Profile:
    """The profile that ``sim:`` + ``name`` stands for. Raises ProfileError, CardError."""
    model, at, hardware = name.partition("@")
    if at:
        return _from_cards(model, hardware)
    if name not in PROFILES:
        raise ProfileError(
            f"no profile {SIMULATED}{name}: give {', '.join(SIMULATED + known for known in PROFILES)}, or "
            f"{SIMULATED}MODEL@HARDWARE, such as {SIMULATED}qwen3-omni@rtx-pro-6000"
        )
    return simulated(PROFILES[name])


def simulated(profile: Profile) -> Profile:
    """The simulated twin of a real profile: its sessions, its pool, its bound, and the tokens of its front end."""
    if profile.executor == "simulated":
        raise ProfileError(f"{profile.name} is simulated already: give the real profile")
    return profile.with_(
        name=SIMULATED + profile.name,
        executor="simulated",
        front_end=f"load:{profile.frame_tokens}",
    )


def _from_cards(model: str, hardware: str) -> Profile:
    from workbench.cards import hardware_card, model_card, pool_blocks

    card = model_card(model)
    blocks = pool_blocks(card, hardware_card(hardware), block_size=BLOCK)
    return Profile(
        name=f"{SIMULATED}{model}@{hardware}",
        model=model,
        hardware=hardware,
        executor="simulated",
        sessions=SESSIONS,
        window=WINDOW,
        sinks=SINKS,
        pool_blocks=blocks,
        block_size=BLOCK,
        max_model_len=min(card.max_positions, blocks * BLOCK),
        max_positions=card.max_positions,
        frame_budget_s=card.frame_budget_s,
        tokens_owed=card.tokens_owed,
        front_end=f"load:{card.tokens_per_frame}",
        phase_groups=PHASE_GROUPS,
        max_batched_tokens=MAX_BATCHED_TOKENS,
        max_sessions=MAX_SESSIONS,
    )


def costs_of(profile: Profile) -> Costs:
    """The cost model of a simulated profile. Raises CardError, CostError, ProfileError."""
    from workbench.costs import CostModel, load_calibration

    if profile.hardware:
        from workbench.cards import hardware_card, model_card
        from workbench.roofline import Roofline

        floor = Roofline(model_card(profile.model), hardware_card(profile.hardware))
        source = f"roofline of {profile.model} on {profile.hardware}, which no kernel reaches"
        return StepCosts(CostModel(**floor.coefficients(), floor=floor, source=source), source)
    path = None if profile.calibration in ("", ANY_MACHINE) else Path(profile.calibration)
    real = profile.with_(name=profile.name.removeprefix(SIMULATED))
    calibration = load_calibration(real, path, any_machine=bool(profile.calibration))
    source = f"calibration of {calibration.profile} made at {calibration.made_at}"
    return StepCosts(calibration.costs, source, calibration.front_end_s)
