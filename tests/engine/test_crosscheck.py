"""Two independent implementations of the bound give the same tokens the same log-probabilities.

The plugin's scheduler cuts a session's lists at the frame boundary; the other drops freed columns from attention's
tables at every step (tests/engine/compaction.py). They are compared up to the first token to which they show different
positions: from there on the cache itself differs.
"""

from __future__ import annotations

import random

import pytest

from tests.engine.compaction import gap
from tests.engine.driver import Driver
from tests.engine.reference import visible_positions
from workbench.bench import StockEngine
from workbench.bound import KVBound
from workbench.profiles import load_profile

TOLERANCE = 1e-4
LEAST_COMPARED = 500
FRAMES, FRAME_TOKENS, OWED = 22, 20, 13
# A frame grows a session by one block of 32. Where the window is whole blocks as well, no block leaves it within a
# reply, and both show the same positions for ever.
BOUNDS = {
    "unbounded": None,
    "S0-W64": KVBound(64, 0),
    "S4-W64": KVBound(64, 4),
    "S40-W96": KVBound(96, 40),
    "S0-W128": KVBound(128, 0),
    "S4-W80": KVBound(80, 4),
}
PARTS = "S4-W80"


class CompactingEngine(StockEngine):
    """The stock engine with the scheduler and the worker that compact."""

    def __init__(self, profile, **options) -> None:
        worker = {"worker_cls": "tests.engine.compaction_worker.CompactingWorker"}
        super().__init__(profile, engine_args=worker, **options)
        self._scheduler = "tests.engine.compaction.CompactingScheduler"


@pytest.fixture(scope="module")
def profile():
    return load_profile("tiny")


@pytest.fixture(scope="module")
def served(profile):
    """The same chunks through one engine after the other: by engine and session, the frames."""
    result = {}
    for engine in (Driver, lambda profile: Driver(profile, CompactingEngine)):
        driver, draw = engine(profile), random.Random(17)
        try:
            for _ in range(FRAMES):
                chunks = {name: [draw.randrange(2000) for _ in range(FRAME_TOKENS)] for name in BOUNDS}
                driver.round({name: (chunk, BOUNDS[name]) for name, chunk in chunks.items()}, OWED)
        finally:
            driver.stop()
        result[type(driver.engine).__name__] = driver.frames
    return result


def same_view(frames, block: int) -> list[bool]:
    """Per sampled token: whether both implementations show the same positions to the step that predicts it."""
    _, before, own = visible_positions(frames, block)
    result = []
    for frame, resident, new in zip(frames, before, own, strict=True):
        bound = None if frame.bound is None else frame.bound.to_args()
        for token in range(len(frame.tokens_out)):
            # The first is predicted by the step that takes the chunk in, each other one by a step of its own.
            computed = new[0] + (len(frame.tokens_in) + token - 1 if token else 0)
            freed = gap(bound, computed, block)
            shown = [p for p in range(computed) if p // block not in freed]
            result.append(shown == resident + list(range(new[0], computed)))
    return result


def tokens_of(frames):
    return [pair for frame in frames for pair in zip(frame.tokens_out, frame.logprobs, strict=True)]


def compare(served, name, block: int) -> tuple[list[float], list[float]]:
    """The differences token by token: while both implementations show the same, and from the first that they do not."""
    cut, compacted = served["VllmEngine"][name], served["CompactingEngine"][name]
    views, differences = same_view(cut, block), []
    for (mine, p), (theirs, q) in zip(tokens_of(cut), tokens_of(compacted), strict=True):
        differences.append(abs(p - q))
        if mine != theirs:
            # A tie, if nothing parted them before: what follows is said of another text.
            break
    agree = views.index(False) if False in views else len(views)
    return differences[:agree], differences[agree:]


def test_both_implementations_agree_token_by_token(served, profile, record_property):
    compared = 0
    for name in BOUNDS:
        same, _ = compare(served, name, profile.block_size)
        print(f"{name}: {len(same)} tokens compared, largest difference {max(same):.2e}")
        assert max(same) < TOLERANCE, name
        compared += len(same)
    record_property("tokens_compared", compared)
    print(f"{compared} tokens compared")
    assert compared >= LEAST_COMPARED


def test_where_they_show_different_positions_they_differ(served, profile):
    """One block leaves this window within a reply: the comparison can fail, and both do evict, each in its own time."""
    same, after = compare(served, PARTS, profile.block_size)
    assert 0 < len(same) < FRAMES * OWED
    assert max(after) > 10 * TOLERANCE


def test_both_implementations_give_blocks_back(served, profile):
    """All of this did not fit into the pool: it was served because evicted blocks were used again."""
    growth = FRAME_TOKENS + OWED - 1
    assert len(BOUNDS) * FRAMES * growth > profile.pool_tokens
    for frames in served.values():
        assert all(len(frame.tokens_out) == OWED for name in BOUNDS for frame in frames[name])
