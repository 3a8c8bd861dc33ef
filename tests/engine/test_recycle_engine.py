"""Recycling on the running engine: its tokens are those of the engine's requests, and they are counted exactly."""

from __future__ import annotations

import random

import pytest

from tests.engine.driver import Driver
from workbench.bound import KVBound
from workbench.engine.recycling import Recycling, RecyclingEngine
from workbench.engine.vllm import VllmEngine
from workbench.experiments import experiment
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


def test_the_experiment_counts_the_same_on_a_real_engine(profile):
    # Long frames of a small model: a machine that is busy elsewhere keeps up as well.
    result = experiment("recycle")(profile.with_(frame_budget_s=2.0), sessions=2, slacks="0.5", frames=2)
    (point,) = result.metrics["points"]
    assert result.executor == point["executor"] == "vllm-cpu"
    for policy in ("unbounded", "bounded", "recycled"):
        count = point["prefill_tokens"][policy]
        assert count["measured"] == count["predicted"] > 0, policy
    assert not point["recycled"]["walled"] and point["factor"] > 0
    assert set(result.frames["run"]) == {"unbounded", "bounded", "recycled"}
