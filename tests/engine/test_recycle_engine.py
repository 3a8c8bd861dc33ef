"""Recycling on the running engine: its tokens are those of the engine's requests, and they are counted exactly."""

from __future__ import annotations

import random

import pytest

from tests.engine.driver import Driver
from workbench.bound import KVBound
from workbench.engine.recycling import Recycling, RecyclingEngine
from workbench.engine.vllm import VllmEngine
from workbench.experiments._recycle import recycling, serve
from workbench.experiments.recycle import RECYCLED
from workbench.profiles import load_profile

BOUND, SLACK, CHUNK, OWED = KVBound(64, 4), 20, 20, 3
DRAW = random.Random(5)


@pytest.fixture(scope="module")
def profile():
    return load_profile("tiny")


@pytest.fixture(scope="module")
def driver(profile):
    def make(profile, **options):
        return RecyclingEngine(VllmEngine(profile, **options), BOUND, SLACK)

    driver = Driver(profile, engine_type=make)
    yield driver
    driver.stop()


def words(count: int) -> list[int]:
    return [DRAW.randrange(2000) for _ in range(count)]


def test_a_recycled_session_goes_on_from_what_was_kept_and_says_what_a_fresh_one_would(driver, profile):
    each, frames = Recycling(BOUND, SLACK, profile.block_size, CHUNK, OWED), 13
    driver.do(driver.engine.record_steps(True))
    said, spoken = [], []
    for frame in range(frames):
        chunk = words(CHUNK)
        answer = driver.round({"a": (chunk, None)}, OWED)["a"]
        assert answer.ended is None and len(answer.tokens_out) == OWED
        if each.recycles(frame):
            spoken = spoken[:32] + spoken[-64:]
            said.append((spoken + chunk, answer.tokens_out, answer.logprobs))
        spoken = spoken + chunk + answer.tokens_out[:-1]
        view = driver.snapshot().sessions["a"]
        assert (view.resident, view.resident + view.evicted) == (len(spoken), (frame + 1) * each.growth)
    steps = driver.do(driver.engine.steps())
    assert len(said) == driver.engine.recycled > 2
    assert sum(prefill for _, _, prefill, *_ in steps) == each.prefill(frames)
    # The same tokens to a session that nobody recycled: the KV knows nothing of what was given up.
    for i, (prompt, tokens, logprobs) in enumerate(said):
        fresh = driver.round({f"fresh{i}": (prompt, None)}, OWED)[f"fresh{i}"]
        assert fresh.tokens_out == tokens
        assert fresh.logprobs == pytest.approx(logprobs, abs=1e-4)
        driver.close(f"fresh{i}")
    driver.close("a")
    seen = driver.snapshot()
    assert seen.free_blocks == seen.blocks_total


def test_a_recycled_run_on_the_beat_prefills_what_the_arithmetic_says_and_is_timed(profile):
    slow = profile.with_(sessions=2, frame_budget_s=1.0)
    each, frames = recycling(slow, SLACK), 8
    served = serve(slow, RECYCLED, frames, lambda message, fraction: None, SLACK)
    assert served.manager.engine.facts.executor == "vllm-cpu"
    assert served.prefill_tokens == slow.sessions * each.prefill(frames)
    assert any(each.recycles(k) for k in range(frames)) and not served.walled
    assert all(step.ended_s > step.began_s and step.compute_s > 0 for step in served.steps)
