"""The tokens that are fed to a session are scored exactly, bounded or not, and scoring changes nothing else."""

from __future__ import annotations

import random

import pytest

from tests.engine.driver import Driver
from tests.engine.reference import largest_difference, load_reference
from tests.engine.scored import ScoredDriver
from workbench.bound import KVBound
from workbench.profiles import load_profile
from workbench.weights import model_path

FRAMES, FRAME_TOKENS = 24, 29
TOLERANCE = 1e-4
# In blocks of 32 tokens: no sinks, one block of them, two.
BOUNDS = {"unbounded": None, "S0-W64": KVBound(64, 0), "S4-W64": KVBound(64, 4), "S40-W96": KVBound(96, 40)}
# Chunks that no step can hold all of.
STEP_TOKENS = 2 * FRAME_TOKENS + 6


def owed(frame: int) -> int:
    """Replies of one token leave nothing but what was fed in the cache, longer ones all but their last token."""
    return 1 if frame % 3 else 4


def serve(driver):
    draw = random.Random(23)
    for k in range(FRAMES):
        chunks = {name: ([draw.randrange(2000) for _ in range(FRAME_TOKENS)], bound) for name, bound in BOUNDS.items()}
        driver.round(chunks, owed(k))


@pytest.fixture(scope="module")
def profile():
    return load_profile("tiny", max_batched_tokens=STEP_TOKENS, max_sessions=8)


@pytest.fixture(scope="module")
def scored(profile):
    driver = ScoredDriver(
        profile,
        scheduler="tests.engine.poison.PoisonScheduler",
        worker_extension="tests.engine.scored.PoisonScoringWorker",
    )
    driver.do(driver.engine.record_steps(True))
    serve(driver)
    yield driver
    driver.stop()


@pytest.fixture(scope="module")
def model():
    return load_reference(model_path("tiny"))


@pytest.mark.parametrize("name", BOUNDS)
def test_scores_match_the_reference(scored, model, profile, name):
    frames = scored.teacher_forced(name)
    worst, count = largest_difference(model, frames, profile.block_size)
    fed = sum(len(scores) for scores in scored.scores[name])
    print(f"{name}: {fed} tokens fed and {count - fed} sampled compared, largest difference {worst:.2e}")
    assert fed == FRAMES * FRAME_TOKENS - 1
    assert worst < TOLERANCE


def test_an_ignored_bound_would_be_noticed(scored, model, profile):
    frames = scored.teacher_forced("S4-W64")
    unbounded = [type(f)(f.tokens_in, None, f.tokens_out, f.logprobs) for f in frames]
    worst, _ = largest_difference(model, unbounded, profile.block_size)
    assert worst > 100 * TOLERANCE


def test_chunks_were_split_and_blocks_poisoned(scored):
    steps = scored.do(scored.engine.steps())
    prefilled = [prefill for _, _, prefill, *_ in steps]
    assert max(prefilled) <= STEP_TOKENS
    assert sum(prefill % FRAME_TOKENS > 0 for prefill in prefilled) >= FRAMES
    assert scored.do(scored.engine._llm.collective_rpc("poison_report"))[0]["poisoned"] > FRAMES


def test_chunks_of_one_token_are_scored(scored, model, profile):
    """Each is predicted by the frame before alone, and the session's first chunk has nothing to score."""
    for token in range(5, 15):
        scored.round({"drip": ([token], BOUNDS["S4-W64"])}, owed=2)
    worst, count = largest_difference(model, scored.teacher_forced("drip"), profile.block_size)
    assert [len(scores) for scores in scored.scores["drip"]] == [0] + 9 * [1]
    assert worst < TOLERANCE and count == 10 + 10


def test_an_engine_that_is_not_asked_scores_nothing_and_says_the_same(scored, profile):
    """The scorer only reads: an engine without it gives the same tokens, as likely."""
    plain, events = Driver(profile), []
    try:
        hear = plain.engine.on_event
        plain.engine.on_event = lambda event: (events.append(event), hear(event))
        serve(plain)
        for name in BOUNDS:
            for mine, theirs in zip(plain.frames[name], scored.frames[name], strict=True):
                assert mine.tokens_out == theirs.tokens_out
                assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
        assert all(event.scores is None for event in events)
    finally:
        plain.stop()
