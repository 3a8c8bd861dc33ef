"""A preempted session whose sinks move is a fresh prefill of its resident tokens where they stand, and goes on from it.

Two long replies outgrow the pool, so the session scheduled last is preempted in the middle of its own.
"""

from __future__ import annotations

import random

import pytest
import torch

from tests.engine.driver import Driver
from tests.engine.unrotated import Unrotated, reference_logprobs
from workbench.bound import KVBound
from workbench.profiles import load_profile
from workbench.weights import model_path

TOLERANCE = 1e-4
FRAME_TOKENS, REPLY, BEFORE, AFTER = 22, 500, 20, 8
# The first and the last sampled tokens of the long reply, well before and well after the preemption.
ENDS = 50
ONE, TWO = KVBound(64, 4, moving=True), KVBound(64, 40, moving=True)
# The bound of the first half of the frames before, and that of all others. With the second sink block tokens are pinned
# that had seen more than the pinned ones, so that their keys are others when they are computed afresh.
PLANS = {"the first tokens": (ONE, ONE), "tokens of the window too": (ONE, TWO)}


@pytest.fixture(scope="module")
def profile():
    return load_profile("tiny", pool_blocks=32)


@pytest.fixture(scope="module")
def driver(profile):
    driver = Driver(
        profile, scheduler="tests.engine.poison.PoisonScheduler", worker_extension="tests.engine.poison.PoisonWorker"
    )
    yield driver
    driver.stop()


@pytest.fixture(autouse=True)
def nobody_stays(driver):
    """A test that fails leaves its sessions open; the next one shall not fail for want of their blocks."""
    yield
    driver.close(*driver.frames)


@pytest.fixture(scope="module")
def model():
    return Unrotated(model_path("tiny"))


class Afresh:
    """``model``, for a session that lost its KV in frame ``when``: what is resident is prefilled anew, where it stands.

    The tokens are kept like the keys of one more layer, so what cuts the cache cuts them.
    """

    def __init__(self, model: Unrotated, when: int) -> None:
        self._model, self._when, self._frame = model, when, 0
        self.layers = model.layers + 1

    def step(self, tokens, at, cache, seen_at) -> torch.Tensor:
        *own, held = cache
        new = torch.tensor([tokens])
        resident = new if held is None else torch.cat([held[0], new], 1)
        if self._frame == self._when:
            own = [None] * self._model.layers
            logprobs = self._model.step(resident[0].tolist(), [*seen_at, *at], own, [])[-len(tokens) :]
        else:
            logprobs = self._model.step(tokens, at, own, seen_at)
        self._frame += 1
        cache[:] = [*own, (resident, resident)]
        return logprobs


def farthest(got: list[float], expected: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(got, expected, strict=True))


def off(frames, expected) -> float:
    return max(farthest(frame.logprobs, row) for frame, row in zip(frames, expected, strict=True))


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("evicts", [True, False], ids=["moved in that frame", "not moved in that frame"])
def test_it_resumes_as_a_fresh_prefill_and_its_sinks_move_on(driver, model, profile, plan, evicts):
    draw = random.Random(f"{plan} {evicts}")
    early, late = PLANS[plan]
    names, served, block = ("first", "second"), driver.frames, profile.block_size

    def words(count=FRAME_TOKENS) -> list[int]:
        return [draw.randrange(2000) for _ in range(count)]

    def evictable() -> bool:
        return late.evictable(driver.snapshot().sessions["second"].resident, block) > 0

    while len(served.get("second", ())) < BEFORE or evictable() != evicts:
        bound = early if len(served.get("second", ())) < BEFORE // 2 else late
        driver.round({name: (words(), bound) for name in names})
    preemptions, when = driver.snapshot().preemptions, len(served["second"])
    first = served["first"]

    async def reply_both():
        for name in names:
            driver._submit(name, words(), late, REPLY)
        await driver._done["first"].wait()
        # Parked, it would keep its blocks from the second for ever: that is the wall.
        await driver._close(["first"])
        await driver._done["second"].wait()

    driver.do(reply_both())
    assert driver.snapshot().preemptions == preemptions + 1
    for _ in range(AFTER):
        driver.round({"second": (words(), late)})
    assert driver.snapshot().preemptions == preemptions + 1
    second = served["second"]
    driver.close("second")
    assert driver.snapshot().free_blocks == driver.snapshot().blocks_total

    assert off(first, reference_logprobs(model, first, block)) < TOLERANCE, "the one that was never preempted"
    kept = reference_logprobs(model, second, block)
    fresh = reference_logprobs(Afresh(model, when), second, block)
    assert off(second[:when], kept[:when]) < TOLERANCE
    reply, later = second[when].logprobs, second[when + 1 :]
    resumed, went_on = farthest(reply[-ENDS:], fresh[when][-ENDS:]), off(later, fresh[when + 1 :])
    print(f"{plan}, {evicts}: the reply's end differs by {resumed:.1e}, later frames by {went_on:.1e}")
    assert len(reply) == REPLY and len(later) == AFTER
    assert farthest(reply[:ENDS], kept[when][:ENDS]) < TOLERANCE, "not yet preempted"
    assert resumed < TOLERANCE
    assert went_on < TOLERANCE, "from there its sinks move as ever"
    # All of that can fail: another session is the one that kept its KV, and one whose sinks stay.
    assert farthest(reply[-ENDS:], kept[when][-ENDS:]) > 10 * TOLERANCE
    if early != late:
        assert off(later, kept[when + 1 :]) > 10 * TOLERANCE
    stays = [type(f)(f.tokens_in, KVBound(f.bound.window, f.bound.sinks), f.tokens_out) for f in second]
    fixed = reference_logprobs(Afresh(model, when), stays, block)
    assert min(farthest(reply[-ENDS:], fixed[when][-ENDS:]), off(later, fixed[when + 1 :])) > 100 * TOLERANCE
