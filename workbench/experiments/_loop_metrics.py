"""What a loop's arms amount to: metrics and claims, in the words of the cliff experiment."""

from __future__ import annotations

import math

from workbench.experiments import Claim
from workbench.experiments.cliff import GOOD_SHARE, INGESTED_OVER_POOL, counts, latency_age_ratio, wall_claims
from workbench.experiments.saturation import ERROR
from workbench.saturation import PREDICT_BELOW_USAGE, Prediction, prediction
from workbench.telemetry import ON_TIME, RETURNED


def forecast(made: Prediction | None, full_s: float | None) -> dict:
    """The forecast that counts beside t_full, in seconds.

    ``in_interval``: whether its 95 % interval holds t_full; None where growth does not vary: it is a point.
    """
    said = None if made is None else made.forecast
    both = said is not None and full_s is not None
    wide = both and said.low_s < said.high_s
    return {
        "t_full_predicted_s": None if said is None else said.t_full_s,
        "low": None if said is None else said.low_s,
        "high": None if said is None else said.high_s,
        "predicted_at_s": None if made is None else made.at_s,
        "t_full_measured_s": full_s,
        "error": abs(said.t_full_s - full_s) / full_s if both else None,
        "in_interval": said.low_s <= full_s <= said.high_s if wide else None,
    }


def coverage(counted: list[dict]) -> dict:
    """In how many runs the interval held t_full; the worst error, and the median."""
    errors = sorted(math.inf if each["error"] is None else each["error"] for each in counted)
    return {
        "runs": len(counted),
        "in_interval": sum(each["in_interval"] is True for each in counted),
        "error_median": errors[len(errors) // 2],
        "error_most": errors[-1],
        "seeds_from_to": [counted[0]["seed"], counted[-1]["seed"]],
    }


def _latency(frames) -> dict:
    served = frames.loc[frames["status"] == ON_TIME, "latency_s"]
    return {"latency_p50_s": float(served.median()), "latency_p99_s": float(served.quantile(0.99))}


def unbounded(loop, manager) -> tuple[dict, list[Claim]]:
    """The cliff: metrics and claims of an unbounded arm. Latencies are those of the frames that came in time."""
    profile, beat = loop.profile, manager.beat
    frames, pool = manager.frames(), manager.pool()
    made = prediction(pool, manager.sessions(), profile.frame_budget_s, profile.block_size)
    full_s, wall_s = beat.first_refused_at_s, beat.wall_at_s
    said = forecast(made, full_s)
    metrics = {
        "walled": wall_s is not None,
        **said,
        "t_full_by_eq1_s": loop.fills_after_s,
        "t_wall_s": wall_s,
        **counts(frames),
        **_latency(frames),
        "peak_usage": float((pool["blocks_used"] / pool["blocks_total"]).max()),
        "preemptions": int(pool["preemptions"].max()),
    }
    claims = [Claim("the arm walls", wall_s is not None, wall_s, "a wall by definition")]
    if wall_s is not None:
        claims += wall_claims(frames, wall_s)
    claims.append(
        Claim(
            f"the prediction was written while usage was <= {PREDICT_BELOW_USAGE} and its replay agrees",
            made is not None and made.replays,
            None if made is None else made.at_s,
            "the same number",
        )
    )
    if said["low"] is not None and said["low"] == said["high"]:
        # Growth that does not vary leaves nothing to chance. Where it varies, one run in twenty may leave the interval.
        error = said["error"]
        within = error is not None and error <= max(ERROR, profile.frame_budget_s / full_s)
        claims.append(Claim("t_full is predicted", within, error, f"<= {ERROR} or one frame"))
    return metrics, claims


def bounded(loop, manager) -> tuple[dict, list[Claim]]:
    """The slope: metrics and claims of a bounded arm, those of a good one and that of the arithmetic."""
    profile, wall_s = loop.profile, manager.beat.wall_at_s
    frames, pool = manager.frames(), manager.pool()
    counted = counts(frames)
    returned = frames[frames["status"].isin(RETURNED)]
    served = returned[returned["status"] == ON_TIME]
    ingested = int(served["tokens_in"].sum()) / profile.pool_tokens
    answered = float(((returned["tokens_delivered"] == returned["tokens_owed"]) | returned["eos"]).mean())
    last = pool[pool["at_s"] >= pool["at_s"].max() * 2 / 3]
    busy = last["running"] + last["waiting"]
    at_rest = last[busy == busy.min()]
    agree, compared = held_as_reckoned(served, profile.bound, profile.block_size)
    metrics = {
        "walled": wall_s is not None,
        "ingested_over_pool": ingested,
        "plateau_usage": float((at_rest["blocks_used"] / at_rest["blocks_total"]).mean()),
        "plateau_predicted_usage": loop.plateau_usage,
        **counted,
        "ended_early": float(returned["eos"].mean()),
        **_latency(frames),
        "latency_age_ratio": latency_age_ratio(served, profile.bound),
    }
    claims = [
        Claim("the arm does not wall", wall_s is None, wall_s or "no wall", "no wall"),
        Claim(
            "at least twice the pool was ingested", ingested >= INGESTED_OVER_POOL, ingested, f">= {INGESTED_OVER_POOL}"
        ),
        Claim("owed = delivered, or the reply ended", answered >= GOOD_SHARE, answered, f">= {GOOD_SHARE} of frames"),
        Claim("no frame is capped", counted["capped_frames"] == 0, counted["capped_frames"], "0"),
        Claim(
            "a session holds what the arithmetic says, whatever the chunks",
            agree == compared > 0,
            f"{agree} of {compared} frames",
            "all of them, to the token",
        ),
    ]
    return metrics, claims


def held_as_reckoned(served, bound, block_size: int) -> tuple[int, int]:
    """Frames after which a session held as many tokens as the eviction rule says, and frames compared.

    ``served``: the frames of one bounded arm, all on time. The rule is run over the tokens that came in and went out,
    from each session's first frame on; a frame of which the scheduler gave no account is not compared.
    """
    agree = compared = 0
    for _, frames in served.sort_values("frame").groupby("session"):
        resident = 0
        for came, went, held in zip(
            frames["tokens_in"], frames["tokens_delivered"], frames["resident_tokens"].astype(float), strict=True
        ):
            resident += came + went - 1 - bound.evictable(resident, block_size)
            compared += not math.isnan(held)
            agree += resident == held
    return agree, compared
