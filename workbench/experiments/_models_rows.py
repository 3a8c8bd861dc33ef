"""A row of the four systems' table: what a cliff measured, and the same figures from a model's card."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from workbench.audio import frame_samples
from workbench.bound import Plateau, plateau
from workbench.cards import ModelCard, hardware_card, model_card
from workbench.experiments import Result
from workbench.experiments._steady import first_judged, memory_ceiling
from workbench.experiments.cliff import Plan
from workbench.experiments.saturation import PAPER_T_FULL_S, paper_profile
from workbench.profiles import Profile
from workbench.roofline import Roofline
from workbench.telemetry import ON_TIME, RETURNED

# Of the bounded arm its last third is the plateau's.
_SETTLED = 2 / 3


def card_of(profile: Profile) -> ModelCard:
    """The card of the model that a profile serves, in its real size. Raises CardError that lists those there are."""
    kind, _, name = profile.front_end.partition(":")
    return model_card({"omni": name, "moshi": "moshi"}.get(kind, profile.model))


def bounded_frames(profile: Profile, heard_s: float) -> int:
    """Frames of the bounded arm: more than the ``heard_s`` of the unbounded one, and a last third on the plateau."""
    settled = (first_judged(profile) + 2) / _SETTLED
    return 1 + math.ceil(max(heard_s / profile.frame_budget_s, settled))


def delimiters(profile: Profile) -> int:
    """Tokens of a frame that are none of its audio's: the marks that the front end puts around the placeholder."""
    kind, _, name = profile.front_end.partition(":")
    if kind != "omni":
        return 0
    from workbench.omni_models import OMNI

    return profile.frame_tokens - OMNI[name].audio_tokens(frame_samples(profile.frame_budget_s))


def kv_bytes(profile: Profile, card: ModelCard) -> int:
    """Bytes of K and V of a token in all layers, by the config that the engine serves. Raises EngineError."""
    if profile.executor == "simulated":
        return card.kv_bytes_per_token
    from workbench.engine.model import model_folder, pool_bytes

    blocks = (profile.pool_blocks + 1) * profile.block_size
    return pool_bytes(model_folder(profile.model, lambda message: None), profile) // blocks


def measured_row(profile: Profile, ran: Result) -> dict[str, Any]:
    """What ``ran``, a cliff on ``profile``, measured. Times in seconds of the arm, blocks and tokens as counted.

    ``on_time``: the part of the frames due until t_sat. ``tokens_at_t_sat``: resident then. None where an arm never
    came so far: a fill rate without a fill, a t_sat that was not reached.
    """
    card, budget, n = card_of(profile), profile.frame_budget_s, profile.sessions
    unbounded, bounded = ran.metrics["unbounded"], ran.metrics["bounded"]
    pool = ran.pool[ran.pool["run"] == "unbounded"]
    full = unbounded["t_full_measured_s"]
    until = pool["at_s"].max() if full is None else full
    frames = ran.frames[(ran.frames["run"] == "unbounded") & (ran.frames["due_at_s"] < until)]
    frames = frames[frames["status"].isin(RETURNED)]
    taken_in = _tokens_in(pool[pool["at_s"] < until], frames)
    filling = pool[pool["at_s"].between(budget, until)]
    slope = ran.pool[ran.pool["run"] == "bounded"]
    most = float(slope.loc[slope["at_s"] >= _SETTLED * slope["at_s"].max(), "blocks_used"].max()) / n
    marks = delimiters(profile)
    share = profile.pool_blocks / n
    return {
        "model": card.name,
        "profile": profile.name,
        "executor": ran.executor,
        "sessions": n,
        "frame_budget_s": budget,
        "tokens_owed": profile.tokens_owed,
        "growth_per_frame": profile.growth,
        "pool_blocks": profile.pool_blocks,
        "block_size": profile.block_size,
        "window": profile.window,
        "sinks": profile.sinks,
        "delimiters_per_frame": marks,
        "tokens_in_per_s": None if taken_in is None else taken_in / budget,
        "audio_tokens_per_s": None if taken_in is None else (taken_in - marks) / budget,
        "audio_tokens_per_s_of_card": card.tokens_per_frame / card.frame_budget_s,
        "kv_bytes_per_token": kv_bytes(profile, card),
        "fill_tokens_per_s": _slope(filling, "resident_tokens"),
        "fill_tokens_per_s_predicted": n * profile.growth / budget,
        "fill_blocks_per_s": _slope(filling, "blocks_used"),
        "fill_blocks_per_s_predicted": n * profile.growth / budget / profile.block_size,
        "t_sat_measured_s": full,
        "t_sat_predicted_s": unbounded["t_full_predicted_s"],
        "predicted_at_s": unbounded["predicted_at_s"],
        "t_sat_from_profile_s": Plan(profile).fills_after_s,
        "tokens_at_t_sat": None if full is None else int(pool.loc[pool["at_s"] <= full, "resident_tokens"].max()),
        "on_time": float((frames["status"] == ON_TIME).mean()),
        "t_wall_s": unbounded["t_wall_s"],
        "walled": unbounded["walled"],
        "bounded_walled": bounded["walled"],
        "bounded_s": ran.params["frames"] * budget,
        "plateau_blocks": bounded["plateau_usage"] * share,
        "plateau_blocks_predicted": bounded["plateau_predicted_usage"] * share,
        "ceiling": memory_ceiling(profile, profile.bound),
        "plateau_blocks_most": most,
        "plateau_blocks_most_predicted": _plateau(profile).most,
        # None where every bounded session ended before.
        "ceiling_measured": math.floor(profile.pool_blocks / most) if most > 0 else None,
        "delivered_unbounded": unbounded["delivered"],
        "owed_unbounded": unbounded["owed"],
        "delivered_bounded": bounded["delivered"],
        "owed_bounded": bounded["owed"],
        "deadline_misses_unbounded": unbounded["deadline_misses"],
    }


def _plateau(profile: Profile) -> Plateau:
    return plateau(profile.bound, profile.block_size, profile.frame_tokens, profile.tokens_owed)


def _tokens_in(pool, frames) -> float | None:
    """Tokens that a frame put in, by the scheduler's own count of growth: what was sampled, less its last, is none."""
    said = frames["tokens_delivered"] + frames["tokens_late"]
    # A reply that was still on its way when the pool was full, or never came, says nothing.
    said = said[(frames["frame"] > 0) & (said > 0) & (frames["eos"] | (said == frames["tokens_owed"]))]
    if pool.empty or said.empty:
        return None
    frames, tokens = (int(pool[name].iloc[-1] - pool[name].iloc[0]) for name in ("grown_frames", "grown_tokens"))
    return tokens / frames - float(said.mean()) + 1 if frames else None


def _slope(pool, column: str) -> float | None:
    """Units a second, by the least squares of a staircase."""
    return float(np.polyfit(pool["at_s"], pool[column], 1)[0]) if len(pool) > 1 else None


def card_row(model: str, hardware: str, seed: int) -> dict[str, Any]:
    """The same from the model's card, on a hardware card, with the paper's sessions and its operating point.

    ``frame_s``: the least time that the GPU takes for a frame of as many sessions as memory allows, by the roofline.
    Raises CardError, ProfileError.
    """
    profile, card = paper_profile(model, hardware, seed, {}), model_card(model)
    held = _plateau(profile)
    ceiling, line = memory_ceiling(profile, profile.bound), Roofline(card, hardware_card(hardware))
    context = ceiling * profile.window
    encoder_s = ceiling * profile.frame_budget_s
    predicted, measured = PAPER_T_FULL_S.get(model, (None, None))
    return {
        "model": model,
        "hardware": hardware,
        "sessions": profile.sessions,
        "frame_budget_s": profile.frame_budget_s,
        "tokens_owed": profile.tokens_owed,
        "pool_blocks": profile.pool_blocks,
        "block_size": profile.block_size,
        "window": profile.window,
        "sinks": profile.sinks,
        "max_positions": card.max_positions,
        "audio_tokens_per_s": card.tokens_per_frame / card.frame_budget_s,
        "kv_bytes_per_token": card.kv_bytes_per_token,
        "fill_tokens_per_s": profile.sessions * card.fill_rate_tokens_per_s,
        "fill_blocks_per_s": profile.sessions * card.fill_rate_tokens_per_s / profile.block_size,
        "t_sat_s": Plan(profile).fills_after_s,
        "plateau_blocks": held.mean,
        "plateau_blocks_most": held.most,
        "ceiling": ceiling,
        "frame_s": line.step_s(ceiling * profile.frame_tokens, 0, context, encoder_s)
        + (profile.tokens_owed - 1) * line.step_s(0, ceiling, context),
        "paper_t_sat_predicted_s": predicted,
        "paper_t_sat_measured_s": measured,
    }
