"""The bound on the running engine, its freed blocks poisoned: exactness, limits, ends, aborts, preemption."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch

from tests.engine.driver import ANSWER_TIMEOUT_S, Driver
from tests.engine.reference import largest_difference, load_reference, visible_positions
from workbench.bound import KVBound
from workbench.profiles import load_profile
from workbench.weights import model_path

TOLERANCE = 1e-4
BOUND = KVBound(64, 4)
DRAW = random.Random(3)


@pytest.fixture(scope="module")
def profile():
    return load_profile("tiny", max_positions=3300)


@pytest.fixture(scope="module")
def driver(profile):
    driver = Driver(
        profile,
        scheduler="tests.engine.poison.PoisonScheduler",
        worker_extension="tests.engine.poison.PoisonWorker",
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
    return load_reference(model_path("tiny"))


def words(count: int) -> list[int]:
    return [DRAW.randrange(2000) for _ in range(count)]


def all_blocks_are_back(driver) -> bool:
    snapshot = driver.snapshot()
    return snapshot.free_blocks == snapshot.blocks_total and not snapshot.sessions


def test_the_plugin_is_live_in_the_engines_processes(driver):
    assert driver.engine.facts.scheduler == "tests.engine.poison.PoisonScheduler"
    assert driver.engine.facts.runner.endswith("CPUModelRunner")
    assert driver.engine.facts.max_positions == 3300
    assert len(driver.engine.pids) == 2


def test_outputs_are_the_references_though_freed_blocks_are_poisoned(driver, model, profile):
    bounds = {"a": BOUND, "b": KVBound(128, 33), "c": KVBound(64, 0), "d": None}
    for _ in range(10):
        driver.round({name: (words(20), bound) for name, bound in bounds.items()})
    served = dict(driver.frames)
    # The blocks of the one that leaves stay free, and poisoned, while the others go on beside them.
    driver.close("d")
    for _ in range(4):
        driver.round({name: (words(20), bounds[name]) for name in "abc"})
    report = driver.do(driver.engine._llm.collective_rpc("poison_report"))[0]
    assert report["poisoned"] >= 10
    assert report["nan_blocks"] > 0
    compared = 0
    for name in bounds:
        worst, count = largest_difference(model, served[name], profile.block_size)
        assert worst < TOLERANCE, name
        compared += count
    assert compared == 3 * (10 + 3 * 14)
    driver.close(*"abc")
    assert all_blocks_are_back(driver)


def test_a_window_larger_than_the_session_changes_nothing(driver):
    chunks, answers, blocks = [words(25) for _ in range(10)], {}, {}
    # One after the other: in one batch they would sit in other rows, and rounding may differ by row.
    for name, bound in (("stock", None), ("wide", KVBound(800, 0))):
        answers[name] = [driver.round({name: (chunk, bound)})[name] for chunk in chunks]
        blocks[name] = driver.snapshot().sessions[name].blocks
        driver.close(name)
    for stock, wide in zip(answers["stock"], answers["wide"], strict=True):
        assert (wide.tokens_out, wide.logprobs) == (stock.tokens_out, stock.logprobs)
    assert blocks["wide"] == blocks["stock"]


def test_an_unbounded_session_ends_alone_before_max_model_len(driver, profile):
    rounds = 0
    while (answers := driver.round({"long": (words(60), None), "short": (words(10), BOUND)}))["long"].ended is None:
        rounds += 1
        assert rounds < 30
    assert "max_model_len 1024" in answers["long"].ended
    served = sum(len(f.tokens_in) + len(f.tokens_out) - 1 for f in driver.frames["long"][:-1])
    assert served <= profile.max_model_len < served + 60 + 3
    for _ in range(3):
        assert len(driver.round({"short": (words(10), BOUND)})["short"].tokens_out) == 3
    driver.close("short")
    assert all_blocks_are_back(driver)


def test_a_first_chunk_too_long_ends_its_session_alone(driver):
    answers = driver.round({"huge": (words(1023), None), "small": (words(10), None)})
    assert "max_model_len" in answers["huge"].ended
    assert len(answers["small"].tokens_out) == 3
    answers = driver.round({"vast": (words(1500), None), "small": (words(10), None)})
    assert answers["vast"].ended and len(answers["small"].tokens_out) == 3
    driver.close("small")
    assert all_blocks_are_back(driver)


def test_three_thousand_tokens_through_a_max_model_len_of_1024_and_the_end_of_the_rotary_table(driver, model, profile):
    """A bounded session outlives max_model_len, is right to its last position, and ends alone before the table does."""
    while driver.round({"far": (words(100), BOUND), "near": (words(10), BOUND)})["far"].ended is None:
        assert len(driver.frames["far"]) < 40
    far = driver.frames["far"]
    tokens = sum(len(f.tokens_in) + len(f.tokens_out) - 1 for f in far[:-1])
    assert 3000 < tokens <= 3300 < tokens + 103
    assert "rotary table's 3300" in far[-1].ended
    worst, count = largest_difference(model, far[:-1], profile.block_size)
    assert worst < TOLERANCE and count == 3 * (len(far) - 1)
    assert len(driver.round({"near": (words(10), BOUND)})["near"].tokens_out) == 3
    driver.close("near")
    assert all_blocks_are_back(driver)


def test_a_token_outside_the_vocabulary_ends_its_session_alone(driver):
    driver.round({"odd": (words(10), None), "even": (words(10), None)})
    for foreign in (2048, -1, 10**6):
        answers = driver.round({"odd": ([5, foreign], None), "even": (words(10), None)})
        assert f"token {foreign} is none of the model's 2048" in answers["odd"].ended
        assert len(answers["even"].tokens_out) == 3
    driver.close("even")
    assert all_blocks_are_back(driver)


def test_a_name_can_be_opened_again_at_once(driver):
    for _ in range(3):
        assert len(driver.round({"again": (words(10), None)})["again"].tokens_out) == 3
        driver.engine.close("again")
    driver.close("again")
    assert all_blocks_are_back(driver)


def test_chunks_handed_over_together_are_served_one_by_one(driver):
    async def hand_over():
        driver._submit("eager", words(10), None, 3)
        for _ in range(3):
            driver.engine.submit("eager", words(10), 3, None)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            while len(driver.frames["eager"][-1].tokens_out) < 12:
                await driver.engine.snapshot()

    driver.do(hand_over())
    assert driver.snapshot().sessions["eager"].resident == 4 * (10 + 2)
    driver.close("eager")


def test_a_malformed_bound_ends_its_session_and_no_other(driver, monkeypatch):
    monkeypatch.setattr(KVBound, "to_args", lambda self: {"window": "many"})
    answers = driver.round({"bad": (words(10), BOUND), "good": (words(10), None)})
    assert "whole number" in answers["bad"].ended
    assert len(answers["good"].tokens_out) == 3
    driver.close("good")


def test_closing_a_parked_a_running_and_a_waiting_session_gives_all_blocks_back(driver):
    driver.round({"parked": (words(200), None)})
    driver.close("parked")
    assert all_blocks_are_back(driver)

    async def close_while_running():
        driver._submit("running", words(50), None, owed=900)
        driver._submit("running2", words(50), BOUND, owed=900)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            while len(driver.frames["running"][-1].tokens_out) < 5:
                await driver.engine.snapshot()
        assert (await driver.engine.snapshot()).running == 2

    driver.do(close_while_running())
    driver.close("running", "running2")
    assert all_blocks_are_back(driver)

    # 1,000 tokens each: the second cannot have its blocks while the first is parked on its own.
    driver.round({"holder": (words(1000), None)})

    async def wait_for_refusal():
        driver._submit("waiting", words(1000), None, owed=3)
        # Not when it is queued: a snapshot can come before the step in which the scheduler first looks at it.
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            while (snapshot := await driver.engine.snapshot()).first_refused_at is None:
                pass
        return snapshot

    snapshot = driver.do(wait_for_refusal())
    assert snapshot.waiting == 1
    assert snapshot.head_needs_blocks > snapshot.free_blocks
    driver.close("waiting")
    assert driver.snapshot().sessions.keys() == {"holder"}
    driver.close("holder")
    assert all_blocks_are_back(driver)


def test_a_preempted_session_resumes_as_a_fresh_prefill_at_its_true_positions(driver, model, profile):
    """Two long replies outgrow the pool; the one that is preempted goes on from its resident tokens alone."""
    bound, owed, frames = KVBound(256, 4), 560, 10
    for _ in range(frames):
        driver.round({"first": (words(60), bound), "second": (words(60), bound)})
    before = driver.snapshot().preemptions
    served = dict(driver.frames)

    async def reply_both():
        driver._submit("first", words(20), bound, owed)
        driver._submit("second", words(20), bound, owed)
        await driver._done["first"].wait()
        # Parked, the first would keep its blocks from the second for ever: that is the wall. Closed, it does not.
        await driver._close(["first"])
        await driver._done["second"].wait()

    driver.do(reply_both())
    assert driver.snapshot().preemptions == before + 1
    for name, preempted in (("first", False), ("second", True)):
        frame = served[name][-1]
        assert len(frame.tokens_out) == owed
        got = torch.tensor(frame.logprobs[-50:])
        kept = _last_logprobs(model, served[name], profile.block_size, 50, fresh=False)
        fresh = _last_logprobs(model, served[name], profile.block_size, 50, fresh=True)
        expected, other = (fresh, kept) if preempted else (kept, fresh)
        assert (got - expected).abs().max() < TOLERANCE, name
        assert (got - other).abs().max() > 10 * TOLERANCE, "the two references differ, so the comparison can fail"
    driver.close("second")
    assert all_blocks_are_back(driver)


def _last_logprobs(model, frames, block: int, count: int, fresh: bool) -> torch.Tensor:
    """Log-probabilities of the newest frame's last tokens: with the KV that was kept, or all of it computed afresh."""
    if not fresh:
        from tests.engine.reference import reference_logprobs

        return reference_logprobs(model, frames, block)[-1][-count:]
    tokens, before, own = visible_positions(frames, block)
    positions = before[-1] + own[-1]
    out = frames[-1].tokens_out
    with torch.inference_mode():
        logits = model(
            input_ids=torch.tensor([[tokens[p] for p in positions]]), position_ids=torch.tensor([positions])
        ).logits[0]
    return torch.log_softmax(logits[-count:], dim=-1)[torch.arange(count), torch.tensor(out[-count:])]
