"""The lesson: what was typed, held against the run and against Eq. 1; on made-up tables, then on a simulated engine."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from workbench.bound import KVBound, plateau
from workbench.live.hands import Hands
from workbench.live.lesson import ENGINE_TO_COME, Lesson, LessonError
from workbench.live.lesson_facts import HELD_FRAMES
from workbench.live.pace import MOST_SPEED
from workbench.profiles import ProfileError, load_profile
from workbench.telemetry import CAPPED, CLOSED, DROPPED, ON_TIME, FrameRow, PoolRow, SessionRow, Tables

PROFILE = load_profile("tiny")
B = PROFILE.frame_budget_s
SESSIONS = ("s0", "s1")
OPENED_S = 2.0


class Run:
    """A manager with tables that a test fills in, and nothing behind them."""

    def __init__(self) -> None:
        self.profile, self.tables, self.at_s = PROFILE, Tables("run"), OPENED_S
        self.beat = SimpleNamespace(first_refused_at_s=None, wall_at_s=None, status=lambda now: "beating")

    def now(self) -> float:
        return self.at_s

    def pool(self):
        return self.tables.pool()

    def sessions(self):
        return self.tables.sessions()

    def open(self, names=SESSIONS) -> Run:
        for name in names:
            self.tables.session_rows[name] = SessionRow("run", name, "clip", OPENED_S, opened_at_s=OPENED_S)
        return self

    def frame(self, session: str, due_s: float, **values) -> None:
        row = FrameRow("run", session, int(due_s / B), due_s, tokens_owed=PROFILE.tokens_owed)
        row.status, row.returned_at_s, row.content_lag_s = ON_TIME, due_s + 0.01, 0.01
        row.tokens_delivered, row.first_token_at_s = PROFILE.tokens_owed, due_s + 0.005
        for name, value in values.items():
            setattr(row, name, value)
        self.tables.frame_rows.append(row)

    def sample(self, at_s: float, used: int, sessions: int = len(SESSIONS)) -> None:
        self.tables.pool_rows.append(PoolRow("run", at_s, used, PROFILE.pool_blocks, 0, 0, sessions, 0, sessions, 0))

    def come_to_the_wall(self, wall_s: float = 30.0, frames: int = 3) -> Run:
        self.beat.first_refused_at_s, self.beat.wall_at_s = wall_s - 1.0, wall_s
        for k in range(1, frames + 1):
            due_s = wall_s + k * B
            for name in SESSIONS:
                returned_s = due_s + PROFILE.wait_cap * B
                silence = {"status": CAPPED, "tokens_delivered": 0, "first_token_at_s": None}
                self.frame(name, due_s, returned_at_s=returned_s, content_lag_s=returned_s - wall_s, **silence)
        return self


def lesson_on(run: Run | None, **how) -> Lesson:
    return Lesson(SimpleNamespace(profile=PROFILE, manager=lambda: run), **how)


BY_EQ1_S = PROFILE.pool_tokens / (len(SESSIONS) * PROFILE.growth) * B


# -- what the run has not told yet -----------------------------------------------------------------------------------


def test_before_the_engine_is_up_a_number_is_written_down():
    lesson = lesson_on(None)
    verdict = lesson.check("t_full", "12.5")
    assert verdict.right is None and verdict.words == f"12.5 s is written down; {ENGINE_TO_COME}"
    assert lesson.table().set_index("question").loc["t_full", "you, before"] == 12.5


def test_each_question_says_what_the_run_has_still_to_come_to():
    run = Run()
    lesson = lesson_on(run)
    assert "no session was added yet" in lesson.check("t_full", 1).words
    run.open().at_s = OPENED_S + 12.34
    assert "the pool is not full yet: t = 12.3 s" in lesson.check("t_full", 1).words
    assert "not at the wall yet: beating" in lesson.check("misses", 0).words
    assert "not at the wall yet" in lesson.check("lag", 1).words
    assert "no frame has returned yet" in lesson.check("plateau", 10).words
    assert [lesson.measured(key) for key in ("t_full", "misses", "lag", "plateau")] == [None] * 4


def test_at_the_wall_a_slope_needs_two_frames():
    run = Run().open().come_to_the_wall(frames=0)
    assert "no frame has returned at the wall yet" in lesson_on(run).check("misses", 0).words
    run = Run().open().come_to_the_wall(frames=1)
    assert lesson_on(run).check("misses", 0).right is True
    assert "a second frame has to return" in lesson_on(run).check("lag", 1).words


# -- what it has told ------------------------------------------------------------------------------------------------


def test_t_full_counts_from_the_first_session_s_opening_and_eq1_from_those_that_were_opened():
    run = Run().open()
    lesson = lesson_on(run)
    run.beat.first_refused_at_s = OPENED_S + 26.0
    run.tables.session_rows["late"] = SessionRow("run", "late", "clip", 40.0, opened_at_s=40.0)
    run.tables.session_rows["shed"] = SessionRow("run", "shed", "clip", 1.0, ended_at_s=1.0)
    assert lesson.measured("t_full") == 26.0
    assert lesson.eq1_s() == BY_EQ1_S
    verdict = lesson.check("t_full", BY_EQ1_S)
    assert verdict.right is True
    assert verdict.words == f"right: it is 26 s, by hand {BY_EQ1_S:.4g}; you typed {BY_EQ1_S:.6g}"


def test_a_wrong_number_is_told_how_near_it_has_to_be():
    run = Run().open()
    run.beat.first_refused_at_s = OPENED_S + 27.0
    verdict = lesson_on(run).check("t_full", 100)
    assert verdict.right is False
    tolerance = lesson_on(run).question("t_full").tolerance
    assert verdict.words.startswith("not right: it is 27 s") and f"lies within {tolerance:.3g}" in verdict.words


def test_where_the_engine_was_too_slow_for_eq1_it_is_said():
    run = Run().open()
    run.frame("s0", 10.0, status=DROPPED)
    run.beat.first_refused_at_s = OPENED_S + 60.0
    run.frame("s0", OPENED_S + 61.0, status=DROPPED)
    assert "; 1 frames were dropped before" in lesson_on(run).check("t_full", BY_EQ1_S).words


def test_at_the_wall_nothing_is_missed_and_lag_grows_by_the_second():
    run = Run().open().come_to_the_wall()
    lesson = lesson_on(run)
    assert lesson.check("misses", 0).right is True and lesson.check("misses", 1).right is False
    assert lesson.measured("lag") == pytest.approx(1.0)
    assert lesson.check("lag", 1).right is True and lesson.check("lag", 0).right is False


def test_frames_after_the_silence_are_not_of_the_wall():
    run = Run().open().come_to_the_wall(wall_s=30.0, frames=3)
    for name in SESSIONS:
        run.frame(name, 30.0 + 4 * B, missed=True, content_lag_s=0.0)
    lesson = lesson_on(run)
    assert lesson.measured("misses") == 0 and lesson.measured("lag") == pytest.approx(1.0)


def settle(run: Run, bound: KVBound, used: int, from_s: float = 50.0) -> None:
    for k in range(HELD_FRAMES + 2):
        for name in SESSIONS:
            run.frame(
                name, from_s + k * B, window=bound.window, sinks=bound.sinks, age_tokens=10_000, resident_tokens=9
            )
        run.sample(from_s + k * B + 0.02, used)


def test_the_plateau_is_measured_once_every_session_is_bounded_and_the_pool_was_watched():
    run = Run().open()
    lesson = lesson_on(run)
    for name in SESSIONS:
        run.frame(name, 49.0, age_tokens=10_000)
    assert "2 of 2 sessions are unbounded" in lesson.check("plateau", 10).words
    run.sample(49.0, PROFILE.pool_blocks)
    for name in SESSIONS:
        run.frame(name, 50.0, window=64, sinks=4, age_tokens=10, resident_tokens=10)
    assert "2 of 2 sessions have not come to their plateau" in lesson.check("plateau", 10).words
    grown = {"window": 64, "sinks": 4, "age_tokens": 10_000}
    run.frame("s0", 50.0 + B, resident_tokens=100, **grown)
    run.frame("s1", 50.0 + B, resident_tokens=10_000, **grown)
    assert "1 of 2 sessions have not come" in lesson.check("plateau", 10).words
    run.frame("s1", 50.0 + 1.5 * B, resident_tokens=100, **grown)
    assert f"watch the pool for {HELD_FRAMES} frames" in lesson.check("plateau", 10).words
    settle(run, KVBound(64, 4), used=9, from_s=50.0 + 2 * B)
    assert lesson.measured("plateau") == 100 * 9 / PROFILE.pool_blocks


def test_by_hand_the_plateau_is_that_of_the_bounds_the_sessions_have():
    run = Run().open()
    settle(run, KVBound(128, 4), used=12)
    most = plateau(KVBound(128, 4), PROFILE.block_size, PROFILE.frame_tokens, PROFILE.tokens_owed).most
    assert lesson_on(run).plateau_percent() == 100 * len(SESSIONS) * most / PROFILE.pool_blocks
    profile_s = plateau(PROFILE.bound, PROFILE.block_size, PROFILE.frame_tokens, PROFILE.tokens_owed).most
    assert lesson_on(None).plateau_percent() == 100 * PROFILE.sessions * profile_s / PROFILE.pool_blocks


def test_sessions_that_are_gone_or_came_later_do_not_count_to_the_plateau():
    run = Run().open()
    run.frame("gone", 40.0)
    settle(run, PROFILE.bound, used=9)
    run.frame("s0", 60.0, status=CLOSED)
    run.sample(60.0, 40, sessions=1)
    assert lesson_on(run).measured("plateau") == 100 * 9 / PROFILE.pool_blocks


def test_the_ceiling_follows_from_the_profile_alone():
    lesson = lesson_on(None)
    most = plateau(PROFILE.bound, PROFILE.block_size, PROFILE.frame_tokens, PROFILE.tokens_owed).most
    assert lesson.check("ceiling", PROFILE.pool_blocks // most).right is True
    assert lesson.check("ceiling", PROFILE.pool_blocks // most + 1).right is False


def test_what_was_typed_before_stays_beside_what_was_typed_last():
    run = Run().open()
    lesson = lesson_on(run)
    lesson.check("t_full", 20)
    run.beat.first_refused_at_s = OPENED_S + 27.0
    lesson.check("t_full", 27)
    row = lesson.table().set_index("question").loc["t_full"]
    assert (row["you, before"], row["you, last"], row["measured"]) == (20, 27, 27)


def test_the_table_tells_nothing_of_a_question_before_something_was_typed():
    run = Run().open().come_to_the_wall()
    lesson = lesson_on(run)
    told = ["by hand", "forecast", "measured"]
    assert lesson.table()[told].isna().all(axis=None)
    lesson.check("ceiling", 1)
    table = lesson.table().set_index("question")[told]
    assert table.loc["bounded sessions that fit", ["by hand", "measured"]].notna().all()
    assert table.drop("bounded sessions that fit").isna().all(axis=None)


# -- what is typed wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "typed", ["", "soon", "12 s", None, True, "nan", "inf", "1e999", pytest.param(10**400, id="huge"), [1], object()]
)
def test_what_is_no_number_gets_one_line_and_is_not_kept(typed):
    lesson = lesson_on(Run().open())
    verdict = lesson.check("t_full", typed)
    assert verdict.right is None and verdict.words == "type a number, in s, such as 12.5"
    assert lesson.table()[["you, before", "you, last"]].isna().all(axis=None)


def test_a_question_in_words_has_no_number_and_an_unknown_one_is_refused():
    lesson = lesson_on(Run())
    assert lesson.check("switch", 3).right is None
    assert lesson.measured("switch") is None
    with pytest.raises(LessonError, match="no question 'when': choose from t_full, misses, lag"):
        lesson.check("when", 1)


def test_a_front_end_without_a_fixed_count_has_no_lesson():
    with pytest.raises(ProfileError, match="no fixed count"):
        Lesson(SimpleNamespace(profile=PROFILE.with_(front_end="text"), manager=lambda: None))


# -- a simulated engine to the wall and back -------------------------------------------------------------------------


def test_a_simulated_run_answers_every_question_and_its_claims_hold(tmp_path):
    profile = load_profile("sim:minicpm-o-4.5@rtx-pro-6000").with_(
        name="sim:few", pool_blocks=400, max_model_len=3200, window=128, sessions=12, phase_groups=4
    )
    hands = Hands(profile, folder=tmp_path, speed=MOST_SPEED)
    lesson = Lesson(hands)
    try:
        asyncio.run(to_the_wall_and_back(hands, lesson))
    finally:
        hands.end()


async def to_the_wall_and_back(hands: Hands, lesson: Lesson) -> None:
    limit_s, budget_s = 300, hands.profile.frame_budget_s
    lesson.check("t_full", lesson.eq1_s())
    assert await hands.until("open", limit_s)
    await hands.add(n=hands.profile.sessions)
    assert await hands.until("wall", limit_s)
    assert await hands.until(lambda h: h.manager().now() > h.manager().beat.wall_at_s + 6 * budget_s, limit_s)
    hands.pause()
    silent = hands.manager().frames()
    assert lesson.check("t_full", lesson.eq1_s()).right is True
    assert lesson.check("misses", 0).right is True
    assert lesson.check("lag", 1).right is True
    assert "sessions are unbounded" in lesson.check("plateau", lesson.plateau_percent()).words
    await hands.bound(hands.profile.bound)
    hands.pause(False)
    assert await hands.until(lambda h: lesson.measured("plateau") is not None, limit_s)
    assert lesson.check("plateau", lesson.plateau_percent()).right is True
    folder = hands.live.arms[0].desk.run_folder
    hands.end()
    result = lesson.result(silent, folder)
    assert [claim for claim in result.claims if not claim.holds] == []
    assert result.executor == "simulated" and result.metrics["measured"]["misses"] == 0
    assert abs(result.metrics["forecast"]["t_full"] - result.metrics["measured"]["t_full"]) <= budget_s
    # A bound that never came, and a table that was not saved: the claims can fail.
    hands.manager().tables.frame_rows = [row for row in hands.manager().tables.frame_rows if row.window is None]
    failed = {claim.name for claim in lesson.result(silent, folder).claims if not claim.holds}
    assert failed == {
        "with the bound on every session delivers again",
        "with the bound on the pool falls to the plateau and stays there",
        "the tables are saved to the last row",
    }
