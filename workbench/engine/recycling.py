"""Application-level recycling: a session kept short from outside the engine, by ending its request and opening another.

An application that cannot bound the KV cache inside the engine can do this much by itself: keep the tokens of a
session, and when there are too many, close its request and submit the first S' and the last W of them as the prompt of
a new one (Metronome, arXiv 2607.02640, names it as the alternative to a bound). What differs from the bound in the
engine:

- The kept tokens are computed again, a prefill of S' + W + chunk tokens in one frame, where the bound only gives
  blocks back.
- Positions begin anew with each request, so a session never comes to the end of the rotary table; under the bound they
  go on.
- The new KV is computed from the kept tokens alone. Under the bound, what is kept was computed while older tokens could
  still be seen, and remembers something of them.
- Exactly W tokens are kept, for nothing has to end at a block. With prefix caching only the blocks of the sinks could
  be found again: all others stand at other positions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from workbench.bound import KVBound, growth_per_frame
from workbench.engine.base import Engine, EngineError, Snapshot, TokenEvent
from workbench.engine.media import AudioChunk


class RecyclingError(ValueError):
    """A recycling that cannot be; one line that says what to do."""


@dataclass(frozen=True)
class Recycling:
    """When sessions of a steady growth are recycled, and what that costs, in tokens and frames; counted from frame 0.

    ``bound``: what a recycled session keeps. ``slack``: tokens that it may hold beyond that when a chunk comes; with 0
    it is recycled at each frame once it is full. The replies are full: an EOS before the last owed token delays it.
    """

    bound: KVBound
    slack: int
    block_size: int
    tokens_in: int
    owed: int

    def __post_init__(self) -> None:
        _check_slack(self.slack)

    @property
    def growth(self) -> int:
        return growth_per_frame(self.tokens_in, self.owed)

    @property
    def kept(self) -> int:
        """S' + W."""
        return self.bound.sink_tokens(self.block_size) + self.bound.window

    @property
    def first(self) -> int:
        """The first recycled frame: the least k with k x growth > kept + slack."""
        return (self.kept + self.slack) // self.growth + 1

    @property
    def period(self) -> int:
        """Frames from one recycling to the next: the least j with kept + j x growth > kept + slack."""
        return self.slack // self.growth + 1

    @property
    def most(self) -> int:
        """The most tokens that a session needs slots for: kept + slack + a chunk and all that is owed for it."""
        return self.kept + self.slack + self.tokens_in + self.owed

    @property
    def prefill_per_frame(self) -> float:
        """Tokens prefilled per frame, over whole periods: chunk + kept / period."""
        return self.tokens_in + self.kept / self.period

    def recycles(self, frame: int) -> bool:
        """Whether a session is recycled at this frame."""
        return frame >= self.first and (frame - self.first) % self.period == 0

    def prefill(self, frames: int) -> int:
        """Tokens prefilled in a session's first ``frames`` frames."""
        return frames * self.tokens_in + self.kept * sum(map(self.recycles, range(frames)))


@dataclass(slots=True)
class _Session:
    """``held``: the tokens that its request has computed. ``chunk``: the one that is unanswered, None where none is.

    ``age``: tokens at the end of the last answered frame, those given up included.
    """

    held: list[int] = field(default_factory=list)
    chunk: list[int] | None = None
    answer: list[int] = field(default_factory=list)
    waiting: deque[tuple[list[int], int, tuple[int, ...]]] = field(default_factory=deque)
    dropped: int = 0
    age: int = 0


class RecyclingEngine(Engine):
    """``engine``, with each session recycled to ``bound`` as soon as it holds more than S' + W + ``slack`` at a chunk.

    The requests of ``engine`` are unbounded: the stock scheduler's. It is not started yet, and its events are taken
    over. A chunk may come with ``bound`` or with none; another one is refused, for there is nothing here to change it
    with. A session that outgrows max_model_len before it is recycled is ended by ``engine``, and no other with it.
    ``recycled``: how often a request was ended and opened again. RecyclingError for a slack that is none.
    """

    def __init__(self, engine: Engine, bound: KVBound, slack: int = 0) -> None:
        _check_slack(slack)
        self.engine, self.bound, self.slack = engine, bound, slack
        self.virtual = engine.virtual
        self.recycled = 0
        self.on_event: Callable[[TokenEvent], None] = lambda event: None
        self.on_events: Callable[[Sequence[TokenEvent]], None] = lambda events: None
        self.on_dead: Callable[[str], None] = lambda reason: None
        self._sessions: dict[str, _Session] = {}
        engine.on_event, engine.on_events = self._hear, self._hear_all
        engine.on_dead = lambda reason: self.on_dead(reason)

    def __getattr__(self, name: str):
        # Its facts, its virtual clock and steps, and whatever else only some engines have.
        if name == "engine":
            raise AttributeError(name)
        return getattr(self.engine, name)

    @property
    def model_path(self) -> Path | None:
        return self.engine.model_path

    async def start(self, progress: Callable[[str], None] | None = None) -> None:
        await self.engine.start(progress)

    async def stop(self) -> None:
        self._sessions.clear()
        await self.engine.stop()

    def now(self) -> float:
        return self.engine.now()

    def rss_bytes(self) -> int | None:
        return self.engine.rss_bytes()

    # -- sessions ---------------------------------------------------------------------------------------------------

    def submit(self, session, tokens, owed, bound=None, stop_token_ids=()) -> None:
        """See Engine.submit. A chunk that comes before the last one is answered waits here for it.

        EngineError for an AudioChunk: what is kept of a session are token ids, and its audio would be lost.
        """
        self._check_bound(bound)
        if isinstance(tokens, AudioChunk):
            raise EngineError("a recycled session cannot be fed audio: use a front end of tokens")
        state = self._sessions.setdefault(session, _Session())
        state.waiting.append((list(tokens), owed, tuple(stop_token_ids)))
        if state.chunk is None:
            self._hand_over(session, state)

    def _check_bound(self, bound: KVBound | None) -> None:
        if bound not in (None, self.bound):
            raise EngineError(
                f"a recycling engine keeps window {self.bound.window}, sinks {self.bound.sinks} for all its sessions "
                "and cannot change them: make another one"
            )

    def _hand_over(self, name: str, state: _Session) -> None:
        """Give the session's next chunk to the engine, in a new request where the old one has grown too long."""
        tokens, owed, stop_token_ids = state.waiting.popleft()
        prompt = tokens
        sinks, window = self.bound.sink_tokens(self.engine.facts.block_size), self.bound.window
        if len(state.held) > sinks + window + self.slack:
            kept = state.held[:sinks] + state.held[-window:]
            state.dropped += len(state.held) - len(kept)
            state.held, prompt = kept, kept + tokens
            self.recycled += 1
            self.engine.close(name)
        state.chunk = tokens
        self.engine.submit(name, prompt, owed, None, stop_token_ids)

    def close(self, session: str) -> None:
        self._sessions.pop(session, None)
        self.engine.close(session)

    async def set_bound(self, session: str, bound: KVBound | None) -> str:
        """Nothing changes: with its own bound "next frame", as that is what is kept; EngineError for any other."""
        self._check_bound(bound)
        return "next frame" if session in self._sessions else "unknown"

    async def snapshot(self, sessions: Collection[str] | None = None) -> Snapshot:
        """The engine's account, in which what a session held in its earlier requests counts as evicted.

        So its resident and evicted tokens are together its age, at the end of its last answered frame.
        """
        seen = await self.engine.snapshot(sessions)
        dropped = sum(state.dropped for state in self._sessions.values())
        if not dropped:
            return seen
        views = dict(seen.sessions)
        for name, view in views.items():
            if (state := self._sessions.get(name)) is not None and state.dropped:
                views[name] = view._replace(evicted=max(0, state.age - view.resident))
        return replace(seen, evicted_tokens=seen.evicted_tokens + dropped, sessions=views)

    # -- the engine says --------------------------------------------------------------------------------------------

    def _hear(self, event: TokenEvent) -> None:
        self._note(event)
        self.on_event(event)

    def _hear_all(self, events: Sequence[TokenEvent]) -> None:
        for event in events:
            self._note(event)
        self.on_events(events)

    def _note(self, event: TokenEvent) -> None:
        """Keep what the session's request has computed: its chunks, and its answers without the last sampled token."""
        state = self._sessions.get(event.session)
        if state is None or state.chunk is None:
            return
        state.answer.extend(event.tokens)
        if event.ended is not None:
            del self._sessions[event.session]
        elif event.done:
            state.held += state.chunk + state.answer[:-1]
            state.age = state.dropped + len(state.held)
            state.chunk, state.answer = None, []
            if state.waiting:
                self._hand_over(event.session, state)


def _check_slack(slack: int) -> None:
    if isinstance(slack, bool) or not isinstance(slack, int) or slack < 0:
        raise RecyclingError(f"slack must be a whole number of tokens, 0 or more, not {slack!r}")
