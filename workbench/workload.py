"""Who calls when, and for how long: the sessions of a run as a list of events that hangs on the profile's seed alone.

A profile's ``sessions`` are there from the start. With ``arrivals_per_s`` more come as a Poisson process, with
``holding_s`` each hangs up after an exponentially distributed time: an open system (M/M/inf while nobody is shed), as
telephone traffic has been modelled since Erlang (1917).
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, order=True)
class Event:
    """Call number ``call`` comes (``opens``) or hangs up at ``at_s`` seconds since the run began."""

    at_s: float
    call: int
    opens: bool


def events(profile) -> Iterator[Event]:
    """The events of a run in the order of time, without end when calls arrive; each call opens before it hangs up."""
    # Streams of their own: more arrivals do not change how long the first calls last.
    arrivals, holding = (np.random.default_rng([profile.seed, stream]) for stream in (11, 12))
    leaving: list[tuple[float, int]] = []

    def came(at_s: float, call: int) -> Event:
        if profile.holding_s:
            heapq.heappush(leaving, (at_s + holding.exponential(profile.holding_s), call))
        return Event(at_s, call, True)

    for call in range(profile.sessions):
        yield came(0.0, call)
    call = profile.sessions
    rate = profile.arrivals_per_s
    next_at = arrivals.exponential(1 / rate) if rate else math.inf
    while leaving or next_at < math.inf:
        if leaving and leaving[0][0] <= next_at:
            at_s, gone = heapq.heappop(leaving)
            yield Event(at_s, gone, False)
        else:
            yield came(next_at, call)
            call += 1
            next_at += arrivals.exponential(1 / rate)


def voice(profile, call: int):
    """The clip of a call and the second at which it begins, so that no two calls say the same: by the seed alone."""
    from workbench.audio import sample_clips

    clips = sample_clips()
    clip = clips[call % len(clips)]
    return clip, random.Random(f"{profile.seed} voice {call}").random() * clip.seconds


def caller(manager, bound=None, prompt: int = 0) -> Callable[[int], str]:
    """A function that opens a session with the voice of a call, bounded by ``bound``, and returns its name.

    ``prompt``: tokens that open each of them.
    """

    def add(call: int) -> str:
        clip, start_s = voice(manager.profile, call)
        return manager.add(clip, bound, start_s=start_s, prompt=prompt)

    return add


def play(
    manager,
    until_s: float,
    add: Callable[[int], str | None],
    stop: Callable[[], bool] | None = None,
    tell: Callable[[float], None] | None = None,
) -> None:
    """Let the events of the manager's profile happen until ``until_s``, or until ``stop()`` holds.

    ``add(call)`` opens a session for a call and returns its name, None when it was shed. ``stop`` is looked at with
    each sample of the pool, ``tell`` hears the time after each event and each frame budget.
    """
    coming = events(manager.profile)
    names: dict[int, str | None] = {}
    event = next(coming, None)
    budget = manager.profile.frame_budget_s
    while manager.now() < until_s and manager.beat.dead is None and manager.running:
        at = min(until_s, manager.now() + budget, math.inf if event is None else event.at_s)
        if manager.wait_for(None if stop is None else lambda m: stop(), seconds=at - manager.now()):
            return
        while event is not None and event.at_s <= manager.now():
            if event.opens:
                names[event.call] = add(event.call)
            elif (name := names.pop(event.call)) in manager.beat.sessions:
                manager.close_session(name)
            event = next(coming, None)
        if tell is not None:
            tell(manager.now())
