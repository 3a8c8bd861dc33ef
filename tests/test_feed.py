"""The feed: what is drawn of a run is what its tables say, however it was read and however long it was."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.live_rig import FEW
from tests.test_beat import PROFILE
from workbench.live.bins import MOST_BINS
from workbench.live.feed import LINES, MARKS, Feed
from workbench.sessions import SessionManager
from workbench.telemetry import CAPPED, CLOSED, DEAD, DROPPED, ON_TIME, RETURNED, FrameRow, PoolRow, Tables

B = PROFILE.frame_budget_s


@pytest.fixture(scope="module")
def walled():
    """A run that went to the wall and some way on, and a feed that read it in bits of uneven length."""
    with SessionManager(FEW) as manager:
        feed = Feed(manager)
        for _ in range(FEW.sessions):
            manager.add(None)
        while manager.now() < 80 * FEW.frame_budget_s:
            manager.wait_for(seconds=1.7 * FEW.frame_budget_s)
            feed.read()
            feed.note_memory(int(manager.now()))
        manager.wait_for(seconds=0.3 * FEW.frame_budget_s)
        feed.read()
        assert manager.beat.wall_at_s is not None
        yield manager, feed


def binned(feed, value, table, at):
    """The rows of a table in the bins of a value."""
    return table.groupby(table[at] // feed.values[value].width_s)


def same(points, x, y):
    assert points[0] == pytest.approx(list(x)) and points[1] == pytest.approx(list(y))


def test_the_pools_lines_are_the_pool_table(walled):
    manager, feed = walled
    last = binned(feed, "pool", manager.pool(), "at_s").last()
    assert feed.values["pool"].width_s > FEW.frame_budget_s / 8, "long enough a run for wider bins"
    same(feed.points("occupancy"), last["at_s"], last["blocks_used"] / last["blocks_total"])
    same(feed.points("sessions"), last["at_s"], last["sessions"])


def test_the_frames_lines_are_the_frames_table(walled):
    manager, feed = walled
    frames = manager.frames()
    returned = frames[frames["status"].isin(RETURNED)]
    assert feed.frames_returned == len(returned) < len(frames), "some have not returned yet"
    bins = binned(feed, "latency", returned, "due_at_s")
    due = bins["due_at_s"].max()
    same(feed.points("latency, mean"), due, bins["latency_s"].mean())
    same(feed.points("latency, longest"), due, bins["latency_s"].max())
    same(feed.points("content lag, mean"), due, bins["content_lag_s"].mean())
    same(feed.points("content lag, longest"), due, bins["content_lag_s"].max())
    width_s = feed.values["owed"].width_s
    # The newest bin is still being filled.
    same(feed.points("owed"), due[:-1], bins["tokens_owed"].sum()[:-1] / width_s)
    same(feed.points("delivered"), due[:-1], bins["tokens_delivered"].sum()[:-1] / width_s)


def test_at_the_wall_nothing_is_delivered_of_what_is_owed_and_lag_grows_with_the_clock(walled):
    manager, feed = walled
    after = manager.beat.wall_at_s + 2 * FEW.frame_budget_s
    owed, delivered = (
        [y for x, y in zip(*feed.points(line), strict=True) if x > after] for line in ("owed", "delivered")
    )
    assert owed and set(owed) == {FEW.sessions * FEW.tokens_owed / FEW.frame_budget_s}
    assert set(delivered) == {0.0}
    # Of the newest bin some groups have not returned yet.
    lag = [(x, y) for x, y in zip(*feed.points("content lag, longest"), strict=True) if x > after][:-1]
    assert [y - lag[0][1] for _, y in lag] == pytest.approx([x - lag[0][0] for x, _ in lag])


def test_what_was_never_measured_has_no_line(walled):
    _, feed = walled
    assert feed.points("admission cap") == feed.points("engine memory") == ([], [])


def test_this_kernels_memory_is_noted_by_the_runs_clock(walled):
    _, feed = walled
    x, y = feed.points("kernel memory")
    assert y == [int(at) for at in x] and len(x) > 40


def test_full_and_wall_are_marked_where_they_were_and_the_forecast_is_gone(walled):
    manager, feed = walled
    assert feed.points("pool full") == ([manager.beat.first_refused_at_s], [1.0])
    assert feed.points("wall") == ([manager.beat.wall_at_s], [0.0])
    assert feed.points("forecast") == feed.points("forecast, 95 %") == ([], [])
    assert feed.t_full_predicted_s is None


def test_the_strip_has_a_row_for_each_open_session(walled):
    manager, feed = walled
    shown = feed.strip_shown("run")
    assert [row["session"] for row in shown["rows"]] == list(manager.beat.sessions)
    assert {row["note"] for row in shown["rows"]} == {"unbounded"}
    assert {row["cells"][-1] for row in shown["rows"]} == {"s"}
    assert shown["words"] == f"{FEW.sessions} sessions: {FEW.sessions} stalled"


def test_before_the_pool_is_full_the_forecast_is_the_tables_own_and_then_a_new_run_makes_the_feed_stale():
    with SessionManager(FEW) as manager:
        feed = Feed(manager)
        for _ in range(FEW.sessions):
            manager.add(None)
        manager.wait_for(seconds=12.3 * FEW.frame_budget_s)
        feed.read()
        last = manager.pool().iloc[-1]
        expected = ([last["at_s"], last["t_full_predicted_s"]], [last["blocks_used"] / last["blocks_total"], 1.0])
        assert feed.points("forecast") == expected
        assert feed.points("forecast, 95 %") == ([last["t_full_low_s"], last["t_full_high_s"]], [1.0, 1.0])
        assert feed.t_full_predicted_s == last["t_full_predicted_s"]
        assert feed.points("pool full") == feed.points("wall") == ([], [])
        # Bounded sessions have no wall to be forecast.
        manager.set_bound(FEW.bound)
        manager.wait_for(seconds=FEW.frame_budget_s)
        feed.read()
        assert feed.points("forecast") == ([], []) and feed.t_full_predicted_s is None
        assert {row["note"] for row in feed.strip_shown("run")["rows"]} == {f"W {FEW.window}"}
        assert not feed.stale
        manager.new_run("another")
        assert feed.stale and not Feed(manager).stale
        count = feed.frames_returned
        manager.add(None)
        manager.wait_for(seconds=3 * FEW.frame_budget_s)
        feed.read()
        assert feed.frames_returned == count, "the rows of the other run are none of its own"


# -- on rows that are made up ----------------------------------------------------------------------------------------


def made_up(most=None):
    """A manager that has tables and nothing else, and a feed on it, of few bins where so asked."""
    beat = SimpleNamespace(sessions={}, first_refused_at_s=None, wall_at_s=None)
    manager = SimpleNamespace(profile=PROFILE, tables=Tables("run"), beat=beat)
    feed = Feed(manager)
    for bins in feed.values.values():
        bins.most = most or bins.most
    return manager, feed


def pool_row(at_s, used=10, **more):
    return PoolRow("run", at_s, used, 100, 0, 0, 0, 0, 1, 0, **more)


def returned(row, status, delivered=4):
    row.status, row.returned_at_s, row.latency_s = status, row.due_at_s + 1, 1.0
    row.content_lag_s, row.tokens_owed, row.tokens_delivered = 1.0, 4, delivered
    row.empty, row.capped = delivered == 0, status == CAPPED
    return row


rows = st.one_of(
    st.tuples(st.just("sample"), st.integers(1, 12), st.integers(0, 100), st.sampled_from([None, 7.0, 1e4])),
    st.tuples(st.just("tick"), st.integers(0, 3)),
    st.tuples(st.just("return"), st.integers(0, 9), st.sampled_from([ON_TIME, CAPPED, DROPPED, CLOSED, DEAD])),
    st.tuples(st.just("full")),
    st.tuples(st.just("read")),
)


@settings(deadline=None)
@given(st.lists(rows, max_size=120))
def test_whoever_applies_the_changes_to_a_copy_has_the_whole_picture(happened):
    manager, feed = made_up(most=5)
    copy = {line: ([], []) for line in (*LINES, *MARKS)}
    at_s, unreturned, frames = 0.0, [], 0
    for what, *how in [*happened, ("read",)]:
        if what == "sample":
            at_s += how[0] / 8
            forecast = dict.fromkeys(("t_full_predicted_s", "t_full_low_s", "t_full_high_s"), how[2])
            manager.tables.pool_rows.append(pool_row(at_s, how[1], admission_cap=how[1], **forecast))
        elif what == "tick":
            at_s += how[0] * B / 2
            unreturned.append(FrameRow("run", "a", frames, at_s))
            manager.tables.frame_rows.append(unreturned[-1])
            frames += 1
        elif what == "return" and unreturned:
            returned(unreturned.pop(how[0] % len(unreturned)), how[1])
        elif what == "full":
            manager.beat.first_refused_at_s = manager.beat.wall_at_s = at_s
        elif what == "read":
            feed.read()
            for line, at in feed.changed().items():
                x, y = feed.points(line, at)
                copy[line] = (copy[line][0][:at] + x, copy[line][1][:at] + y)
            assert copy == {line: feed.points(line) for line in copy}
            assert feed.changed() == {}


def test_frames_that_were_closed_with_their_session_are_not_drawn():
    manager, feed = made_up()
    statuses = [ON_TIME, CLOSED, CAPPED, DEAD, DROPPED]
    manager.tables.frame_rows += [returned(FrameRow("run", "a", k, k * B), s) for k, s in enumerate(statuses)]
    feed.read()
    assert feed.points("latency, mean")[0] == [0 * B, 2 * B, 4 * B] and feed.frames_returned == 3


def test_a_frame_is_drawn_once_it_has_returned_and_where_it_fell_due():
    manager, feed = made_up()
    first, second = (FrameRow("run", "a", k, (k + 1) * B) for k in range(2))
    manager.tables.frame_rows += [first, returned(second, ON_TIME)]
    feed.read()
    assert feed.points("latency, mean")[0] == [2 * B]
    # Dropped, but its wait cap has not come yet.
    first.status = DROPPED
    feed.read()
    assert feed.points("latency, mean")[0] == [2 * B]
    returned(first, CAPPED)
    feed.read()
    assert feed.points("latency, mean")[0] == [B, 2 * B]


def test_nothing_grows_with_the_length_of_the_run():
    manager, feed = made_up()
    for k in range(20_000):
        manager.tables.pool_rows.append(pool_row(k * B / 2))
        manager.tables.frame_rows.append(returned(FrameRow("run", "a", k, k * B), ON_TIME))
        if k % 500 == 0:
            feed.read()
    feed.read()
    assert all(len(bins) <= MOST_BINS for bins in feed.values.values())
    assert not feed._unreturned
    assert sum(feed.points("owed")[1]) * feed.values["owed"].width_s == pytest.approx(
        4 * feed.frames_returned, abs=4 * feed.values["owed"].width_s / B
    )
