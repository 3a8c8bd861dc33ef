"""The bound is exact: every sampled token's log-probability is that of a float32 model with the equivalent mask.

The frames are running text. On random tokens a frame can be so ill-conditioned that rounding alone exceeds the
tolerance: there a change of the weights by 3e-7 of themselves moved the reference as far.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.engine.driver import Driver
from tests.engine.reference import largest_difference, load_reference
from workbench.bound import KVBound
from workbench.profiles import load_profile
from workbench.weights import model_path

FRAMES, FRAME_TOKENS, OWED = 31, 50, 4
TOLERANCE = 1e-4


def switched(frame: int) -> KVBound | None:
    """On, off, on again, more sinks, fewer sinks and a narrower window."""
    schedule = ((8, KVBound(256, 4)), (14, None), (20, KVBound(256, 4)), (24, KVBound(200, 40)), (28, KVBound(160, 0)))
    return next((bound for until, bound in schedule if frame < until), KVBound(224, 33))


SESSIONS = {
    "unbounded": lambda k: None,
    "S0-W256": lambda k: KVBound(256, 0),
    "S4-W256": lambda k: KVBound(256, 4),
    "S16-W300": lambda k: KVBound(300, 16),
    "S32-W512": lambda k: KVBound(512, 32),
    "switched": switched,
}


@pytest.fixture(scope="module")
def profile():
    return load_profile("smollm2", pool_blocks=300)


@pytest.fixture(scope="module")
def served(profile):
    """Six sessions of different bounds, batched together for 31 frames, each from another place in the text."""
    tokenizer = Tokenizer.from_file(str(model_path("smollm2") / "tokenizer.json"))
    text = tokenizer.encode((Path(__file__).parents[2] / "LICENSE").read_text()).ids
    starts = {name: i * len(text) // len(SESSIONS) for i, name in enumerate(SESSIONS)}
    driver = Driver(profile)
    try:
        for k in range(FRAMES):
            chunks = {}
            for name, bound in SESSIONS.items():
                first = starts[name] + k * FRAME_TOKENS
                chunks[name] = ([text[i % len(text)] for i in range(first, first + FRAME_TOKENS)], bound(k))
            driver.round(chunks, OWED)
        yield driver.frames, driver.snapshot()
    finally:
        driver.stop()


@pytest.fixture(scope="module")
def model():
    return load_reference(model_path("smollm2"))


@pytest.mark.parametrize("name", SESSIONS)
def test_log_probabilities_match_the_reference(served, model, profile, name, record_property):
    worst, count = largest_difference(model, served[0][name], profile.block_size)
    record_property("tokens_compared", count)
    print(f"{name}: {count} tokens compared, largest difference {worst:.2e}")
    assert count == FRAMES * OWED
    assert worst < TOLERANCE


def test_an_ignored_bound_would_be_noticed(served, model, profile):
    """The same frames against a reference without the bound: the comparison can fail."""
    frames = served[0]["S4-W256"]
    unbounded = [type(f)(f.tokens_in, None, f.tokens_out, f.logprobs) for f in frames]
    worst, _ = largest_difference(model, unbounded, profile.block_size)
    assert worst > 100 * TOLERANCE


def test_resident_tokens_are_those_of_the_arithmetic(served, profile):
    snapshot = served[1]
    grown = FRAMES * (FRAME_TOKENS + OWED - 1)
    for name, view in snapshot.sessions.items():
        assert view.resident + view.evicted == grown, name
    assert snapshot.sessions["unbounded"].evicted == 0
    for name in ("S0-W256", "S4-W256", "S16-W300", "S32-W512"):
        bound = SESSIONS[name](0)
        pinned = bound.sink_tokens(profile.block_size)
        least = pinned + bound.window + FRAME_TOKENS + OWED - 1
        assert least <= snapshot.sessions[name].resident < least + profile.block_size, name
