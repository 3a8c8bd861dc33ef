"""Sinks that move on the running engine: every sampled token as a model that never rotated its keys in the cache has it."""

from __future__ import annotations

import random

import pytest

from tests.engine.driver import Driver
from tests.engine.unrotated import Unrotated, reference_logprobs
from workbench.bound import KVBound
from workbench.profiles import load_profile
from workbench.weights import model_path

FRAMES, FRAME_TOKENS, OWED = 24, 29, 4
TOLERANCE = 1e-4
FIXED, ONE, TWO = KVBound(64, 4), KVBound(64, 4, moving=True), KVBound(96, 40, moving=True)
NONE = KVBound(64, 0, moving=True)
# Sessions and the bound of each of their frames. The last ones change it on the way, so that tokens which stood in the
# window are pinned, pinned ones are let go, and sinks stay where they had been moved.
PLANS = {
    "unbounded": [None] * FRAMES,
    "fixed": [FIXED] * FRAMES,
    "S4-W64": [ONE] * FRAMES,
    "S40-W96": [TWO] * FRAMES,
    "S0-W64": [NONE] * FRAMES,
    "begins to move": [FIXED] * 10 + [ONE] * 14,
    "stops moving": [ONE] * 10 + [FIXED] * 14,
    "pins more": [ONE] * 10 + [TWO] * 14,
    "pins less": [TWO] * 10 + [ONE] * 14,
    "lets go and pins again": [ONE] * 9 + [NONE] * 6 + [ONE] * 9,
    "switched off": [ONE] * 10 + [None] * 4 + [ONE] * 10,
}


@pytest.fixture(scope="module")
def profile():
    return load_profile("tiny", max_batched_tokens=100, max_sessions=16, pool_blocks=160)


@pytest.fixture(scope="module")
def served(profile):
    driver = Driver(
        profile, scheduler="tests.engine.poison.PoisonScheduler", worker_extension="tests.engine.poison.PoisonWorker"
    )
    draw = random.Random(29)
    for k in range(FRAMES):
        driver.round(
            {name: ([draw.randrange(2000) for _ in range(FRAME_TOKENS)], plan[k]) for name, plan in PLANS.items()}, OWED
        )
    yield driver
    driver.stop()


@pytest.fixture(scope="module")
def model():
    return Unrotated(model_path("tiny"))


def farthest(served, model, profile, name, change=lambda bound: bound) -> tuple[float, int]:
    frames = [type(f)(f.tokens_in, change(f.bound), f.tokens_out, f.logprobs) for f in served.frames[name]]
    expected = reference_logprobs(model, frames, profile.block_size)
    off = [abs(a - b) for f, row in zip(frames, expected, strict=True) for a, b in zip(f.logprobs, row, strict=True)]
    return max(off), len(off)


@pytest.mark.parametrize("name", PLANS)
def test_every_token_is_the_reference_s(served, model, profile, name):
    worst, count = farthest(served, model, profile, name)
    print(f"{name}: {count} tokens compared, largest difference {worst:.2e}")
    assert count == FRAMES * OWED and worst < TOLERANCE


@pytest.mark.parametrize("name", [name for name in PLANS if name not in ("unbounded", "fixed", "S0-W64")])
def test_sinks_that_had_not_moved_would_be_noticed(served, model, profile, name):
    worst, _ = farthest(served, model, profile, name, lambda b: b and KVBound(b.window, b.sinks))
    assert worst > 100 * TOLERANCE


def test_blocks_were_poisoned_and_cut(served):
    assert served.do(served.engine._llm.collective_rpc("poison_report"))[0]["poisoned"] > FRAMES
    views = served.snapshot().sessions
    age = FRAMES * (FRAME_TOKENS + OWED - 1)
    assert all(views[name].resident + views[name].evicted == age for name in PLANS)
    assert views["S4-W64"].evicted == views["fixed"].evicted > 0
