"""Beside vLLM's own scheduler: an unbounded session is served the same, and what kills the stock engine is real."""

from __future__ import annotations

import random

import pytest

from tests.engine.driver import Driver
from workbench.bench import StockEngine
from workbench.profiles import load_profile

ROUNDS = 8
SESSIONS = ("a", "b", "c")


@pytest.fixture(scope="module")
def profile():
    return load_profile("tiny")


def serve(driver):
    draw = random.Random(11)
    for _ in range(ROUNDS):
        driver.round({name: ([draw.randrange(2000) for _ in range(40)], None) for name in SESSIONS})
    frames = [frame for name in SESSIONS for frame in driver.frames[name]]
    return [f.tokens_out for f in frames], [p for f in frames for p in f.logprobs]


@pytest.fixture(scope="module")
def stock(profile):
    driver = Driver(profile, StockEngine)
    yield driver
    driver.stop()


def test_an_unbounded_session_gets_the_stock_schedulers_tokens(profile, stock):
    tokens, logprobs = serve(stock)
    driver = Driver(profile)
    try:
        served = serve(driver)
        assert served[0] == tokens
        # Which chunks fall into one step is a matter of microseconds, and rounding differs by row of the batch.
        assert served[1] == pytest.approx(logprobs, abs=1e-5)
        views = driver.snapshot().sessions
        assert all(view.evicted == 0 for view in views.values())
        assert {view.resident for view in views.values()} == {ROUNDS * 42}
    finally:
        driver.stop()


def test_stock_vllm_dies_at_max_model_len_with_every_session(stock):
    """Why a session is ended before: test_an_unbounded_session_ends_alone_before_max_model_len shows the same here."""
    for name in SESSIONS:
        stock.engine.close(name)
    with pytest.raises(AssertionError, match="broadcast"):
        for _ in range(30):
            stock.round({"long": (list(range(60)), None), "short": (list(range(10)), None)})
    assert stock.dead is not None
