"""Sessions fed as fast as they are answered, on an engine with a script: what they keep, write down and raise."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

import pytest

from tests.scripted import SAID, Scripted
from workbench.bound import KVBound
from workbench.engine.base import EngineDead, EngineError, SessionView, TokenEvent
from workbench.quality import line as line_module
from workbench.quality import together as together_module
from workbench.quality.line import Answer, Lines
from workbench.quality.scripts import Left
from workbench.quality.together import together
from workbench.telemetry import FrameRow, PoolRow, SessionRow


def fed(engine: Scripted, *frames: tuple, bound: KVBound | None = None):
    """(lines, line, answers) of a session that is fed ``frames``, the arguments of as many calls of feed."""

    async def serve():
        lines = Lines(engine, "run")
        line = lines.open("a", bound)
        answers = [await line.feed(*frame) for frame in frames]
        await lines.end(line)
        return lines, line, answers

    return asyncio.run(serve())


def test_a_frame_keeps_all_but_the_last_token_which_the_next_one_drops():
    lines, line, answers = fed(Scripted(), ([1, 2, 3],), ([4, 5], 4), ([6], 2))
    assert line.context == [1, 2, 3, 4, 5, 1005, 1006, 1007, 6, 1009] == lines.engine.computed["a"]
    assert line.age == 10 and line.last == 1010
    assert [answer.tokens for answer in answers] == [(1003,), (1005, 1006, 1007, 1008), (1009, 1010)]


def test_a_frame_that_begins_with_the_last_token_goes_on_as_if_there_were_none():
    engine = Scripted()

    async def serve():
        line = Lines(engine, "run").open("a", None)
        await line.feed([1], 5)
        for _ in range(3):
            await line.feed([line.last], 4)
        return line

    line = asyncio.run(serve())
    assert [*line.context, line.last] == [1, *range(SAID + 1, SAID + 18)]


@pytest.mark.parametrize("piece", [1, 2, 100])
def test_tokens_and_scores_are_those_of_all_events(piece):
    _, _, answers = fed(Scripted(piece=piece), ([1, 2, 3], 5), ([4, 5], 3))
    assert answers[0] == Answer(tuple(range(1003, 1008)), (-1.0, -2.0), eos=False)
    assert answers[1] == Answer((1009, 1010, 1011), (-7.0, -8.0), eos=False)


def test_scores_of_more_than_one_event_come_in_order():
    class Twice(Scripted):
        def _tell(self, event):
            super()._tell(event._replace(scores=(float(event.tokens[0]),)))

    assert fed(Twice(piece=2), ([1], 5))[2][0].scores == (1001.0, 1003.0, 1005.0)


def test_a_reply_that_ends_itself_says_so_and_its_end_is_not_kept():
    def reply(session, number, place, age):
        return 7 if place == 2 else SAID + age

    _, line, answers = fed(Scripted(reply), ([1], 9, (7, 8)), ([2], 2, (7,)), ([3], 4))
    assert [answer.eos for answer in answers] == [True, False, False]
    assert answers[0].tokens == (1001, 1002, 7) and answers[2].tokens[2] == 7
    assert line.context == [1, 1001, 1002, 2, 1004, 3, 1006, 1007, 7]


def test_what_is_asked_of_the_engine_is_what_was_asked_for():
    engine, bound, draw = Scripted(), KVBound(64, 32), object()
    fed(engine, ([1, 2], 3, (9,), draw), ([3],), bound=bound)
    first, second = engine.chunks["a"]
    assert (first.tokens, first.owed, first.bound, first.stop, first.sampling) == ([1, 2], 3, bound, (9,), draw)
    assert (second.tokens, second.owed, second.bound, second.stop, second.sampling) == ([3], 1, bound, (), None)


def test_every_frame_has_its_row():
    # Replies of 4 and 1 tokens in events of 3: two ticks, and one.
    lines, _, _ = fed(Scripted(), ([1] * 10, 4), ([2],), bound=KVBound(64, 32))
    first, second = lines.tables.frame_rows
    known = {"status": "on_time", "eos": False, "window": 64, "sinks": 32}
    assert first == FrameRow(
        "run",
        "a",
        0,
        due_at_s=0.0,
        submitted_at_s=0.0,
        first_token_at_s=1.0,
        returned_at_s=2.0,
        latency_s=2.0,
        tokens_in=10,
        tokens_owed=4,
        tokens_delivered=4,
        age_tokens=13,
        **known,
    )
    assert (second.frame, second.submitted_at_s, second.first_token_at_s, second.latency_s) == (1, 2.0, 3.0, 1.0)
    assert (second.tokens_in, second.tokens_owed, second.tokens_delivered, second.age_tokens) == (1, 1, 1, 14)
    assert lines.tables.session_rows["a"] == SessionRow("run", "a", "", 0.0, 0.0, ended_at_s=3.0)


def test_rows_of_an_unbounded_session_and_of_a_reply_cut_short():
    lines, _, _ = fed(Scripted(lambda *_: 5), ([1, 1], 9, (5,)))
    (row,) = lines.tables.frame_rows
    assert (row.window, row.sinks, row.eos) == (None, None, True)
    assert (row.tokens_in, row.tokens_owed, row.tokens_delivered, row.age_tokens) == (2, 9, 1, 2)


def test_a_session_that_ended_is_closed_and_leaves_what_the_scheduler_had_of_it():
    lines, line, _ = fed(Scripted(), ([1] * 100,), ([1] * 100,), bound=KVBound(64))
    # 100 tokens, a block of them given back before the second frame, whose bound needs no more than 64 of them.
    assert lines.held == {"a": SessionView("parked", 168, 32, 1, 0)} and line.age == 200
    assert lines.engine.closed == ["a"]
    lines.engine.on_event(TokenEvent("a", (1,), 0.0, done=True))
    lines.engine.on_event(TokenEvent("never opened", (1,), 0.0, done=True))
    assert line.last == SAID + 200


def test_what_is_visible_is_what_is_pinned_and_the_last_tokens():
    async def serve(bound, *frames):
        line = Lines(Scripted(block=32), "run").open("a", bound)
        for frame in frames:
            await line.feed(frame)
        return await line.visible(), line.context

    first, second, third = range(100), range(100, 200), range(200, 210)
    everything, context = asyncio.run(serve(None, first, second, third))
    assert everything == context == [*range(210)]
    assert asyncio.run(serve(KVBound(64, 20), first, second))[0] == [*range(200)]
    # 200 tokens, a block of them pinned: three blocks behind it fell away before the third frame.
    assert asyncio.run(serve(KVBound(64, 20), first, second, third))[0] == [*range(32), *range(128, 210)]
    assert asyncio.run(serve(KVBound(64), first, second, third))[0] == [*range(128, 210)]
    assert asyncio.run(serve(KVBound(64, 320), first, second, third))[0] == [*range(210)]


def test_a_session_that_the_engine_ends_is_an_error_that_names_it_and_why():
    engine = Scripted()
    engine.ends["a"] = "its position is past the table"
    with pytest.raises(EngineError, match=r"^session a ended: its position is past the table$") as caught:
        fed(engine, ([1], 4))
    assert not isinstance(caught.value, EngineDead)


def test_a_frame_without_an_answer_is_an_error(monkeypatch):
    monkeypatch.setattr(line_module, "ANSWER_TIMEOUT_S", 0.01)
    engine = Scripted()
    engine.silent.add("a")
    with pytest.raises(EngineError, match="not answered within 0.01 s"):
        fed(engine, ([1],))


@pytest.mark.parametrize("when", ["waiting", "before"])
def test_a_frame_of_a_dead_engine_is_not_waited_for(when):
    engine = Scripted()
    engine.silent.add("a")

    async def serve():
        line = Lines(engine, "run").open("a", None)
        if when == "before":
            engine.on_dead("out of memory")
        else:
            asyncio.get_running_loop().call_soon(engine.on_dead, "out of memory")
        await line.feed([1])

    with pytest.raises(EngineDead, match=r"^the engine died: out of memory$"):
        asyncio.run(serve())
    assert len(engine.chunks) == (when == "waiting")


# -- together ---------------------------------------------------------------------------------------------------------


class Serve:
    """Sessions of ``frames`` frames of four tokens; how many were open at once, and which were given up."""

    def __init__(self, engine: Scripted, names: str, frames: int = 5) -> None:
        self.engine, self.names, self.frames = engine, names, frames
        self.open = self.most = 0
        self.given_up: list[str] = []
        self.told: list[tuple[str, float]] = []

    def __call__(self, at_once: int | None = None, tokens: int = 100) -> dict:
        async def serve():
            self.lines = Lines(self.engine, "run")
            begins = {name: lambda name=name: self.begin(name) for name in self.names}
            return await together(self.lines, begins, tokens, lambda *told: self.told.append(told), at_once)

        return asyncio.run(serve())

    def begin(self, name: str):
        line = self.lines.open(name, None)
        return line, self.script(line)

    async def script(self, line) -> Left:
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            for _ in range(self.frames):
                await line.feed([1, 2, 3, 4])
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.given_up.append(line.name)
            raise
        self.open -= 1
        return Left(ord(line.name), context=list(line.context))


@pytest.mark.parametrize(("at_once", "most"), [(None, 5), (2, 2), (1, 1), (9, 5)])
def test_all_are_served_and_no_more_than_may_be_at_once(at_once, most):
    serve = Serve(Scripted(), "abcde")
    left = serve(at_once)
    assert serve.most == most
    assert {name: each.seed for name, each in left.items()} == {name: ord(name) for name in "abcde"}
    assert all(len(each.context) == 20 for each in left.values())
    assert set(serve.lines.held) == set("abcde") == set(serve.engine.closed) and not serve.given_up
    assert {row.session for row in serve.lines.tables.frame_rows if row.age_tokens == 20} == set("abcde")


def test_one_that_fails_cancels_the_others_and_says_why():
    engine = Scripted()
    engine.ends["c"] = "evicted too much"
    engine.silent = {"a", "b"}
    serve = Serve(engine, "abc")
    with pytest.raises(EngineError, match=r"^session c ended: evicted too much$"):
        serve()
    assert sorted(serve.given_up) == ["a", "b"]


def test_a_dead_engine_ends_them_all_those_that_do_not_wait_for_it_too():
    engine = Scripted()
    engine.silent.add("a")
    serve = Serve(engine, "ab")
    script = serve.script

    async def idle(line):
        if line.name == "b":
            asyncio.get_running_loop().call_soon(engine.on_dead, "fell over")
            try:
                await asyncio.Event().wait()
            finally:
                serve.given_up.append("b")
        return await script(line)

    serve.script = idle
    with pytest.raises(EngineDead, match=r"^the engine died: fell over$"):
        serve()
    assert serve.given_up == ["b"]


def test_the_pool_is_written_down_and_progress_told(monkeypatch):
    monkeypatch.setattr(line_module, "POOL_EVERY_S", 0)
    monkeypatch.setattr(together_module, "TELL_EVERY_S", 0)
    serve = Serve(Scripted(), "abc", frames=10)
    serve(at_once=2, tokens=100)
    rows = serve.lines.tables.pool_rows
    assert len(rows) > 5 and max(row.sessions for row in rows) == 2 and rows[0].run == "run"
    assert [row.at_s for row in rows] == sorted(row.at_s for row in rows) and rows[0].at_s < 1
    assert rows[0].resident_tokens == 0 and 60 < max(row.resident_tokens for row in rows) <= 80
    known = {"blocks_total": 400, "running": 1, "waiting": 2, "parked": 3, "preemptions": 4, "host_rss_bytes": 1 << 20}
    assert all(asdict(row).items() >= known.items() for row in rows)
    assert isinstance(rows[-1], PoolRow) and max(row.blocks_used for row in rows) == 4
    messages, shares = zip(*serve.told, strict=True)
    assert messages[0] == "run: 0 of some 100 tokens" and shares[0] == 0
    assert list(shares) == sorted(shares) and len(set(shares)) > 5
    # 120 in all are more than were expected: the share stays 1.
    assert shares[-1] == 1.0 and messages[-1] in [f"run: {done} of some 100 tokens" for done in range(100, 121)]


def test_nothing_goes_on_watching_once_all_have_ended():
    engine = Scripted()

    async def serve():
        await together(Lines(engine, "run"), {}, 1, lambda *_: None, at_once=1)
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(serve()) == set()
