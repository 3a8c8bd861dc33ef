"""The paper's four systems in one table: the cliff and the slope measured on tiny weights, and from the model cards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workbench.bound import BoundError, KVBound
from workbench.cards import CardError
from workbench.experiments import Claim, ExperimentError, Progress, Result, cliff, listed, part, saturation
from workbench.experiments._models_rows import bounded_frames, card_of, card_row, measured_row
from workbench.profiles import Profile, ProfileError, load_profile
from workbench.sessions import SessionManager
from workbench.telemetry import TABLES
from workbench.workload import caller

PROFILE = "qwen2.5-omni-tiny"
MODELS = "qwen2.5-omni-tiny,qwen3-omni-tiny,minicpm-o-4.5-tiny,moshi-tiny"
HARDWARE = "rtx-pro-6000"
TOKENS_PER_FRAME = 0.1  # by which a mean of whole tokens may be off
ON_BEAT = 0.9  # part of the frames on time from which on an engine keeps the beat, as Eq. 1 in seconds has it


def run(
    profile: Profile,
    *,
    progress: Progress | None = None,
    tables_dir: Path | None = None,
    models: str = MODELS,
    hardware: str = HARDWARE,
    seed: int | None = None,
) -> Result:
    """Serve each of the profiles unbounded until its wall, then bounded for longer than that, a fresh engine each.

    ``models``: profiles, by name or .toml file, separated by commas; "none" for ``profile`` alone. A ``profile`` that
    is none of the four is served as well. ``hardware``: of the model cards that each row is set beside. The tables have
    a column ``model``, the profile's name. Raises ExperimentError, CardError, BoundError, ProfileError, EngineError.
    """
    say = progress or (lambda message, fraction: None)
    profiles = _profiles(profile, listed("models", models, none=True), seed)
    for each in profiles:
        _check(each)
    cards = [card_row(name, hardware, profiles[0].seed) for name in dict.fromkeys(card_of(p).name for p in profiles)]
    rows, ran = [], []
    for i, each in enumerate(profiles):
        tell = part(
            lambda m, done, name=each.name: say(f"{name}: {m}", done), i / len(profiles), (i + 1) / len(profiles)
        )
        folder = None if tables_dir is None else Path(tables_dir) / each.name
        try:
            ran.append(_serve(each, tell, folder))
        except ExperimentError as error:
            raise ExperimentError(f"{each.name}: {error}") from None
        rows.append(measured_row(each, ran[-1]))
    return _result(profiles, ran, rows, cards, hardware)


def _profiles(profile: Profile, names: list[str], seed: int | None) -> list[Profile]:
    profiles = [profile if name == profile.name else load_profile(name) for name in names]
    if profile not in profiles and (not names or profile.name not in MODELS.split(",")):
        profiles.append(profile)
    if len({each.name for each in profiles}) < len(profiles):
        raise ExperimentError(f"two profiles have one name: {', '.join(each.name for each in profiles)}")
    return profiles if seed is None else [each.with_(seed=seed) for each in profiles]


def _serve(profile: Profile, say: Progress, tables_dir: Path | None) -> Result:
    """A cliff and a slope of sessions there from the start; the slope goes on for longer than the cliff."""
    arms, frames = {}, 0
    for arm, bound, half in (("unbounded", None, (0.0, 0.5)), ("bounded", profile.bound, (0.5, 1.0))):
        tell = part(lambda message, done, arm=arm: say(f"{arm}: {message}", done), *half)
        arms[arm] = _arm(profile, arm, bound, frames, tell, None if tables_dir is None else tables_dir / arm)
        frames = bounded_frames(profile, float(arms["unbounded"].manager.pool()["at_s"].max()))
    return cliff.result_of(profile, arms, frames)


def _arm(profile: Profile, arm: str, bound: KVBound | None, frames: int, say: Progress, save_to: Path | None):
    with SessionManager(profile, arm, progress=lambda message: say(message, 0.0), save_to=save_to) as manager:
        add = caller(manager, bound)
        for call in range(profile.sessions):
            add(call)
        walled = cliff.watch(profile, cliff.Plan(profile), manager, bound, frames, manager.now(), say)
    if manager.beat.dead is not None:
        raise ExperimentError(f"the engine died in the {arm} arm: {manager.beat.dead}")
    return cliff.Arm(manager, walled)


def _check(profile: Profile) -> None:
    """Refuse in one line, before an engine starts, what would be refused or come to nothing when its turn comes."""
    try:
        card_of(profile)
        profile.check_bound(profile.bound)
    except (BoundError, CardError, ProfileError) as error:
        raise ExperimentError(f"{profile.name}: {error}") from None
    saturation.check(profile)
    warning = profile.plateau_warning([profile.bound] * profile.sessions)
    if warning:
        raise ExperimentError(f"{profile.name}: the bounded arm cannot hold its plateau: {warning}")


def _result(profiles: list[Profile], ran: list[Result], rows: list[dict], cards: list[dict], hardware: str) -> Result:
    import pandas as pd

    tables = {
        kind: pd.concat(
            [getattr(each, kind).assign(model=each.profile) for each in ran],
            ignore_index=True,
        )
        for kind in TABLES
    }
    served = ", ".join(each.name for each in profiles)
    return Result(
        experiment="models",
        profile=served,
        executor=", ".join(dict.fromkeys(each.executor for each in ran)),
        vllm=ran[0].vllm,
        seed=profiles[0].seed,
        params={"hardware_of_cards": hardware, "served": {each.profile: each.params for each in ran}},
        metrics={"models": rows, "cards": cards},
        claims=tuple(claim for row in rows for claim in claims_of(row)),
        **tables,
    )


def claims_of(row: dict[str, Any]) -> list[Claim]:
    """What has to hold of a measured row."""
    name, budget = row["profile"], row["frame_budget_s"]
    full = row["t_sat_measured_s"]
    heard, of_card = row["audio_tokens_per_s"], row["audio_tokens_per_s_of_card"]
    plateau = (row["plateau_blocks"], row["plateau_blocks_predicted"])
    longer = row["walled"] and full is not None and row["bounded_s"] > max(row["t_wall_s"], full)
    return [
        Claim(f"{name}: the unbounded arm walls", row["walled"], row["t_wall_s"], "a wall by definition"),
        Claim(
            f"{name}: the bounded arm does not, on the same audio and more of it",
            longer and not row["bounded_walled"],
            "a wall" if row["bounded_walled"] else f"{row['bounded_s']:.1f} s",
            "no wall, for longer than the unbounded arm took to its own",
        ),
        _predicted(row),
        Claim(
            f"{name}: the plateau is that of the arithmetic",
            abs(plateau[0] - plateau[1]) <= 1,
            {"blocks_measured": plateau[0], "blocks_predicted": plateau[1]},
            "within one block per session",
        ),
        Claim(
            f"{name}: audio becomes as many tokens as the model's card says",
            heard is not None and abs(heard - of_card) * budget <= TOKENS_PER_FRAME,
            heard,
            f"{of_card:g} per second",
        ),
    ]


def _predicted(row: dict[str, Any]) -> Claim:
    """Eq. 1 in seconds; of an engine too slow for the beat in tokens, for there a second brings fewer frames."""
    name, budget, full = row["profile"], row["frame_budget_s"], row["t_sat_measured_s"]
    if row["on_time"] >= ON_BEAT:
        predicted = row["t_sat_predicted_s"]
        off_s = None if full is None or predicted is None else abs(full - predicted)
        holds = off_s is not None and off_s <= budget
        return Claim(f"{name}: Eq. 1 predicts t_sat", holds, off_s, f"<= one frame, {budget:g} s")
    pool, held = row["pool_blocks"] * row["block_size"], row["tokens_at_t_sat"]
    step = row["sessions"] * (row["growth_per_frame"] + row["block_size"])
    return Claim(
        f"{name}: Eq. 1 predicts t_sat, in tokens ({row['on_time']:.0%} of the frames on time, so not in seconds)",
        held is not None and pool - held <= step,
        held,
        f"the pool's {pool:,} tokens, less a frame and a block of each session at most",
    )
