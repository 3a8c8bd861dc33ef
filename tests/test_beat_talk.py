"""A talk that fails on the beat: its session ends alone, with the reason, and is counted nowhere any more."""

from __future__ import annotations

import pytest

from tests.test_beat import OWED, Run, snapshot
from workbench.engine.base import TokenEvent

SILENT = {k: [] for k in range(9)}  # answers of the script: none comes by itself
FAILED = "front end failed: ValueError: {} of frame {}"


class Talk:
    """Has ten tokens for each chunk and fails in ``where`` at ``frame``."""

    settled = True

    def __init__(self, where: str, frame: int) -> None:
        self.where, self.frame = where, frame
        self.asked, self.closed = [], 0

    def _perhaps_fail(self, where: str, frame: int) -> None:
        if (where, frame) == (self.where, self.frame):
            raise ValueError(f"{where} of frame {frame}")

    def chunk(self, frame, owed):
        self.asked.append(frame)
        self._perhaps_fail("chunk", frame)
        return [frame] * 10, owed

    def said(self, tokens, frame, at_s):
        self._perhaps_fail("said", frame)
        return tuple(tokens)

    def spoke(self, codes):
        self._perhaps_fail("spoke", self.asked[-1])

    def close(self):
        self.closed += 1


def two_sessions(talk: Talk, script=None) -> Run:
    """Session a with the talk, and b, which plays on."""
    run = Run(script)
    run.open("a", talk=talk)
    run.open("b")
    return run


def reasons(run: Run) -> dict:
    return dict(run.beat.tables.sessions()[["session", "reason"]].astype(object).values)


def unanswered(run: Run, at: float) -> int:
    """Sessions that wait, as the next row of the pool has them: by the scheduler's account none."""
    run.beat.measure(snapshot(at), at, lambda at: at)
    return int(run.beat.tables.pool()["waiting"].iloc[-1])


def test_a_chunk_that_cannot_be_made_ends_its_session_alone():
    run = two_sessions(talk := Talk("chunk", 1))
    run.until(4.1)
    assert unanswered(run, 4.1) == 1, "b's chunk, which went out when a failed"
    run.until(8.9)
    assert reasons(run)["a"] == FAILED.format("chunk", 1)
    assert run.rows("frame", "status", "returned_at_s", "submitted_at_s") == [
        (0, "on_time", 2.5, 2.0),
        (1, "closed", 4.0, None),
    ]
    assert run.rows("frame", "status", session="b") == [(k, "on_time") for k in range(4)]
    assert list(run.beat.sessions) == ["b"] and run.engine.closed == ["a"] and talk.closed == 1
    assert unanswered(run, 8.9) == 0


def test_a_chunk_that_cannot_be_made_takes_those_that_wait_behind_it_along():
    run = two_sessions(talk := Talk("chunk", 1), {"a": {0: [(4.5, OWED, True)]}})
    run.until(8.9)
    # Chunks 1 and 2 waited when the answer to chunk 0 came at 6.5.
    assert talk.asked == [0, 1]
    assert reasons(run)["a"] == FAILED.format("chunk", 1)
    assert run.rows("frame", "status", "returned_at_s", "tokens_late") == [
        (0, "capped", 3.6, OWED),
        (1, "capped", 5.6, 0),
        (2, "closed", 6.5, 0),
    ]
    assert [s for s, *_ in run.engine.submitted].count("a") == 1
    assert run.rows("frame", "status", session="b") == [(k, "on_time") for k in range(4)]
    assert run.engine.closed == ["a"] and unanswered(run, 8.9) == 0


@pytest.mark.parametrize("where", ["spoke", "said"])
@pytest.mark.parametrize("done", [False, True])
def test_an_answer_that_cannot_be_heard_ends_its_session_alone(where, done):
    run = two_sessions(talk := Talk(where, 1), {"a": SILENT, "b": SILENT})
    for at in (2.5, 4.5):
        run.until(at)
        step = [TokenEvent(name, (7,) * OWED, at, done or name == "b", codes=(1, 2)) for name in "ab"]
        if at == 2.5:
            step[0] = step[0]._replace(done=True)
        else:
            # A second event of the session that the first one ended is dropped.
            step.append(step[0])
        run.beat.hear_all(step, at)
    assert reasons(run)["a"] == FAILED.format(where, 1)
    assert run.rows("frame", "status", "returned_at_s") == [(0, "on_time", 2.5), (1, "closed", 4.5)]
    assert run.rows("frame", "status", "tokens_delivered", session="b") == [(k, "on_time", OWED) for k in range(2)]
    assert run.engine.closed == ["a"] and talk.closed == 1 and unanswered(run, 4.6) == 0
    run.until(6.1)
    assert list(run.beat.sessions) == ["b"] and unanswered(run, 6.1) == 1
    assert run.rows("frame", session="a") == [(0,), (1,)]


def test_waiting_chunks_do_not_follow_an_answer_that_cannot_be_heard():
    run = two_sessions(talk := Talk("spoke", 0), {"a": SILENT})
    run.until(6.2)
    run.beat.hear(TokenEvent("a", (7,), 6.2, done=True, codes=(1,)), 6.2)
    assert talk.asked == [0] and reasons(run)["a"] == FAILED.format("spoke", 0)
    assert run.rows("frame", "status") == [(0, "capped"), (1, "capped"), (2, "closed")]
    run.until(6.9)
    assert unanswered(run, 6.9) == 0
