"""Measure what an engine step costs on this machine: a designed experiment on the profile's own engine.

    calibration = calibrate(load_profile("smollm2"))
    calibration.save(calibration_path("smollm2"))

The engine records its own steps; those during which other work ran on its cores are left out.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from workbench._loop import run_to_end
from workbench._machine import Fingerprint, LoadWatch, core_numbers, machine_floor
from workbench._step_experiment import Recorded, Say, Served, ServedFrame, batch_sizes, delivery_s, serve_batches
from workbench._terminal import table
from workbench.costs import COST_OF, LEAST_STEPS, Calibration, CostError, CostModel, Group, Step, fit, group
from workbench.engine.base import Facts
from workbench.engine.vllm import VllmEngine
from workbench.frontends import hears_by_model
from workbench.profiles import Profile

HELD_OUT = 3  # every third batch
_CLIPS, _FRAMES_PER_CLIP = 4, 10


def calibrate(profile: Profile, progress: Say | None = None, *, accept_busy: bool = False) -> Calibration:
    """Start the profile's engine, measure its steps, its transport and the front end, and fit the costs.

    Takes one to four minutes, the longer the more often other work disturbs it. ``accept_busy`` counts disturbed steps
    too, for costs that hold while the same work runs. Raises EngineError, and CostError where the profile is
    simulated, hears by its model or has no room for the experiment, or other work left too few steps undisturbed.
    """
    if profile.executor != "vllm":
        raise CostError(f"profile {profile.name} is simulated: calibrate the real one that it stands for")
    if hears_by_model(profile.front_end):
        raise CostError(
            f"front end {profile.front_end} feeds audio to the model, whose encoder is not timed here: "
            "use a front end of tokens"
        )
    batch_sizes(profile)
    return run_to_end(_calibrate(profile, progress or (lambda message, fraction: None), accept_busy))


async def _calibrate(profile: Profile, say: Say, accept_busy: bool) -> Calibration:
    engine = VllmEngine(profile)
    try:
        await engine.start(lambda message: say(message, 0.0))
        facts, folder = engine.facts, engine.model_path
        watch = LoadWatch(engine.pids, core_numbers(profile.cores))

        def counts(step: Recorded) -> bool:
            return accept_busy or watch.quiet(*step[:2])

        await engine.record_steps(True)
        served = Served(engine, watch)
        frames = await serve_batches(served, counts, say)
        say("serving a lone session", 0.9)
        delivery = await delivery_s(served, counts)
    finally:
        await engine.stop()
    say("measuring the front end and the machine", 0.95)
    steps = [step for frame in frames for step in frame.steps]
    disturbed = sum(not watch.quiet(*step[:2]) for step in steps)
    measured = [(frame, [_step(step) for step in frame.steps if counts(step)]) for frame in frames]
    if any(len(part) < LEAST_STEPS for part in _parts(measured)):
        raise CostError(f"other work ran during {disturbed} of {len(steps)} steps: end it and calibrate again")
    return summarise(
        profile,
        facts,
        measured,
        floor=machine_floor(folder, profile, facts.threads or len(core_numbers(profile.cores))),
        quiet_share=1 - disturbed / len(steps),
        front_end_s=front_end_s(profile, facts.vocab_size, folder),
        delivery_s=delivery,
    )


def _step(recorded: Recorded) -> Step:
    began, ended, *load = recorded
    return Step(*load, ended - began)


# -- what is made of it -----------------------------------------------------------------------------------------------


def front_end_s(profile: Profile, vocab_size: int, folder: Path) -> float:
    """Seconds that the profile's front end works per second of audio: the median over frames of real clips."""
    from workbench.audio import AudioStream, sample_clip, sample_names
    from workbench.frontends import make_frontend

    budget, times = profile.frame_budget_s, []
    for name in sample_names(transcribed=True)[:_CLIPS]:
        clip = sample_clip(name)
        stream = AudioStream(clip, budget)
        front_end = make_frontend(
            profile.front_end, vocab_size=vocab_size, clip=clip, frame_budget_s=budget, model_path=folder
        )
        for k in range(_FRAMES_PER_CLIP):
            chunk, began = stream.chunk(k), time.perf_counter()
            front_end.encode(chunk, k)
            times.append(time.perf_counter() - began)
    return median(times) / budget


def summarise(
    profile: Profile, facts: Facts, measured: list[tuple[ServedFrame, list[Step]]], *, floor, quiet_share, **figures
) -> Calibration:
    """Fit the costs to the steps of ``measured`` and put all that was found together."""
    steps = [step for _, each in measured for step in each]
    here, now = Fingerprint.here(profile), datetime.now(UTC)
    source = f"measured on {here.cpu}, {facts.threads} threads, {facts.executor} {facts.vllm}, {now:%Y-%m-%d}"
    floor = None if floor is None else floor.not_above(steps)
    model, error = fit(steps, source, floor)
    kept, held = _parts(measured)
    return Calibration(
        profile=profile.name,
        made_at=f"{now:%Y-%m-%dT%H:%M:%SZ}",
        machine=here,
        threads=facts.threads or 0,
        costs=model,
        error=error,
        held_out=group(fit(kept)[0], "batches held out", held),
        groups=groups(profile, model, measured),
        steps=len(steps),
        quiet_share=quiet_share,
        **figures,
    )


def _parts(measured: list[tuple[ServedFrame, list[Step]]]) -> tuple[list[Step], list[Step]]:
    """The steps of the batches that are fitted when the error is judged, and of those that are held out."""
    kept, held = [], []
    for frame, steps in measured:
        (held if frame.batch % HELD_OUT == HELD_OUT - 1 else kept).extend(steps)
    return kept, held


def groups(profile: Profile, model: CostModel, measured: list[tuple[ServedFrame, list[Step]]]) -> tuple[Group, ...]:
    """The error by chunk length, number of sessions and age: where the bias differs, step time is not additive."""
    found: dict[str, list[Step]] = {}
    for frame, steps in measured:
        age = f"age {'up to' if frame.age <= profile.window else 'past'} the window"
        size = f"{'up to' if frame.sessions <= profile.sessions else 'over'} {profile.sessions} sessions"
        for step in steps:
            kind = f"chunks of {frame.chunk}, {age}" if step.prefill_tokens else f"decode, {size}, {age}"
            found.setdefault(kind, []).append(step)
    # Numbers in order of size, not of spelling.
    return tuple(group(model, name, found[name]) for name in sorted(found, key=lambda name: (len(name), name)))


def render(calibration: Calibration) -> str:
    """A calibration as text: each cost with its interval, how far the model is off, and what else was measured."""
    costs, error = calibration.costs, calibration.error
    rows = []
    for name, ends in error.intervals.items():
        # A pair costs a fraction of a microsecond, a step tens of milliseconds.
        value, low, high = (f"{1e6 * seconds:.3f}" for seconds in (getattr(costs, name), *ends))
        rows.append((name.removesuffix("_s"), value, low, high, f"us for {COST_OF[name]}"))
    groups = [
        (g.name, g.steps, f"{1e3 * g.seconds:.1f}", f"{g.bias:+.1%}", f"{g.median:.1%}", f"{g.p90:.1%}")
        for g in (*calibration.groups, calibration.held_out)
    ]
    lines = [
        f"{calibration.profile}: {costs.source}",
        table(rows, ("cost", "value", "low", "high", "(95 % interval)")),
        f"off by {error.median:.1%}, 90th percentile {error.p90:.1%}, over {error.steps} steps",
        table(groups, ("steps", "count", "median ms", "bias", "off by", "90th percentile")),
        f"undisturbed by other work: {calibration.quiet_share:.0%} of the steps",
        f"front end: {1e3 * calibration.front_end_s:.3f} ms per second of audio",
        f"a frame's way to the engine and back: {1e3 * calibration.delivery_s:.3f} ms",
    ]
    return "\n".join(lines)
