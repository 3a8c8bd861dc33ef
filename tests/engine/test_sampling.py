"""Tokens drawn at random on the running engine: by the session's seed, whatever the frames and whoever is beside it."""

from __future__ import annotations

import asyncio

import pytest

from tests.engine.driver import Driver, Frame
from workbench.bound import KVBound
from workbench.engine.vllm import Sampling
from workbench.profiles import load_profile

OPENING, LENGTH = list(range(100, 140)), 48
HOT = 1.0


class Sampled(Driver):
    """A driver whose chunks are drawn as ``sampling`` says, by session."""

    sampling: dict[str, Sampling | None]

    def _submit(self, session, tokens, bound, owed) -> None:
        self._done[session] = asyncio.Event()
        self.frames.setdefault(session, []).append(Frame(list(tokens), bound))
        self.engine.submit(session, tokens, owed, bound, (), self.sampling.get(session))

    def speak(self, session: str, owed: int, sampling: Sampling | None, bound=None) -> list[int]:
        """A reply of LENGTH tokens in frames of ``owed``, each of which goes on with the last one's dropped token."""
        self.sampling, said, fed = {session: sampling}, [], OPENING
        while len(said) < LENGTH:
            said += self.round({session: (fed, bound)}, owed)[session].tokens_out
            fed = said[-1:]
        self.close(session)
        return said[:LENGTH]


@pytest.fixture(scope="module")
def driver():
    driver = Sampled(load_profile("tiny"))
    driver.sampling = {}
    yield driver
    driver.stop()


def test_a_seed_says_what_is_drawn(driver):
    first = driver.speak("a", LENGTH, Sampling(HOT, 7))
    assert driver.speak("b", LENGTH, Sampling(HOT, 7)) == first
    assert driver.speak("c", LENGTH, Sampling(HOT, 8)) != first
    assert driver.speak("d", LENGTH, None) != first


@pytest.mark.parametrize("owed", [1, 4, 16])
def test_frames_change_nothing(driver, owed):
    """One stream of random numbers goes through a session, and a token is drawn for each step, dropped or not."""
    assert driver.speak("framed", owed, Sampling(HOT, 7)) == driver.speak("whole", LENGTH, Sampling(HOT, 7))


def test_whoever_is_beside_changes_nothing(driver):
    alone = driver.speak("alone", LENGTH, Sampling(HOT, 7))
    names = [f"beside{k}" for k in range(4)]
    driver.sampling = {name: Sampling(HOT, 7 + k) for k, name in enumerate(names)}
    together = driver.round({name: (OPENING, None) for name in names}, LENGTH)
    driver.close(*names)
    assert together["beside0"].tokens_out == alone
    assert len({tuple(frame.tokens_out) for frame in together.values()}) == len(names)


def test_a_bounded_session_draws_as_an_unbounded_one_until_it_is_cut(driver):
    unbounded = driver.speak("unbounded", 16, Sampling(HOT, 7))
    assert driver.speak("bounded", 16, Sampling(HOT, 7), KVBound(96, 4)) == unbounded


@pytest.mark.parametrize("beside", [False, True])
def test_the_likeliest_may_be_taken_in_between(driver, beside):
    """They are the likeliest, and what is drawn after them hangs on nobody who is in the batch meanwhile."""
    drawn = {}
    for name, crowd in (("alone", ()), ("crowded", ("one", "two") if beside else ())):
        driver.sampling = {name: Sampling(HOT, 7), **{other: Sampling(HOT, 3) for other in crowd}}
        first = driver.round({each: (OPENING, None) for each in (name, *crowd)}, 8)[name].tokens_out
        driver.sampling[name] = Sampling(HOT, 7, likeliest=True)
        between = driver.round({each: (first[-1:], None) for each in (name, *crowd)}, 8)[name].tokens_out
        driver.sampling[name] = Sampling(HOT, 7)
        after = driver.round({each: (between[-1:], None) for each in (name, *crowd)}, 8)[name].tokens_out
        drawn[name] = first, between, after
        driver.close(name, *crowd)
    assert drawn["alone"] == drawn["crowded"]
    first, between, _ = drawn["alone"]
    driver.sampling = {}
    driver.round({"greedy": ([*OPENING, *first[:-1]], None)}, 1)
    assert driver.round({"greedy": (first[-1:], None)}, 8)["greedy"].tokens_out == between
    driver.close("greedy")
