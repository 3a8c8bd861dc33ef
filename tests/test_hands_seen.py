"""Hands: what there is to see of the engines, in words, rows and files, and what goes wrong aside."""

from __future__ import annotations

import io
import zipfile

import pytest

from tests.live_rig import BOUND, ONE_LINE, Broken, Ready, all_ended, ask, hands_of, soon
from tests.test_takeaway import sound
from workbench.audio import sample_names
from workbench.live.desk import DEAD, FAILED


@pytest.fixture
def hands_on(tmp_path):
    """Opens hands on engines that are given."""
    with all_ended(hands_of(tmp_path)) as make:
        yield make


@pytest.fixture
def hands(hands_on):
    return hands_on(Ready())


def test_the_state_is_told_in_each_state(hands_on):
    engine = Ready()
    hands = hands_on(engine)
    soon(lambda: hands.status() == "no sessions: add some")
    engine.dead = "it fell over"
    soon(lambda: hands.live.arms[0].desk.state == DEAD)
    soon(lambda: hands.status() == "engine died: it fell over; the tables are saved")
    failed = hands_on(Broken())
    soon(lambda: failed.live.arms[0].desk.state == FAILED)
    assert failed.status() == "the engine did not start: no room"


def test_the_open_sessions_their_words_and_their_rows_are_shown(hands):
    ask(hands.bound(BOUND))
    ask(hands.add(n=2))
    ask(hands.bound(None, "s1"))
    clip = sample_names()[0]
    assert hands.open_sessions() == {
        "s0": f"s0 · {clip} · W {BOUND.window} S {BOUND.sinks}",
        "s1": f"s1 · {clip} · unbounded",
    }
    soon(lambda: "<td>s1</td>" in hands.rows_html("s1"))
    assert "run s0" in hands.words_html("s0") and "a load generator" in hands.words_html("s0")
    assert hands.words_html("<b>") == "&lt;b&gt; is not open" and hands.words_html(None) == "no session selected"
    assert hands.manager("nobody") is None


def test_an_uploaded_clip_is_taken_aside_and_a_bad_one_is_said(hands):
    hands.take_clip("bad.wav", b"not a sound")
    soon(lambda: hands.notice.startswith("bad.wav: "))
    hands.take_clip("mine.wav", sound())
    soon(lambda: hands.notice == "mine: uploaded, choose it as the clip")
    ask(hands.add("mine"))
    assert hands.open_sessions() == {"s0": "s0 · mine · unbounded"}


@pytest.mark.parametrize(("kind", "suffix"), [("parquet", "parquet.zip"), ("csv", "csv.zip"), ("html", "html")])
def test_an_export_lands_in_the_folder_and_is_handed_over(hands, tmp_path, kind, suffix):
    ask(hands.add())
    soon(lambda: hands.live.arms[0].feed is not None)
    handed = []
    hands.export(kind, lambda *what: handed.append(what))
    soon(lambda: hands.notice.startswith("exported to "))
    ((name, data, mime),) = handed
    assert name == f"{tmp_path.name}.{suffix}" and (tmp_path / name).read_bytes() == data
    if kind == "html":
        assert mime == "text/html" and b"1 session: " in data
    else:
        assert mime == "application/zip" and zipfile.ZipFile(io.BytesIO(data)).namelist() == [
            f"run/{table}.{kind}" for table in ("sessions", "frames", "pool")
        ]


def test_an_export_that_is_none_is_refused(hands):
    with pytest.raises(ValueError, match=r"^export as 'xlsx': choose from parquet, csv, html$"):
        hands.export("xlsx")


def test_what_goes_wrong_aside_is_said_in_one_line(hands):
    def fault():
        raise ZeroDivisionError("by nothing\nat all")

    hands.chore(fault)
    soon(lambda: hands.notice == "ZeroDivisionError: by nothing at all")


def test_after_the_end_what_is_asked_is_answered_in_one_line(hands):
    soon(lambda: hands.live.open_now)
    hands.end()
    hands.end()
    with pytest.raises(RuntimeError, match=ONE_LINE):
        ask(hands.add())
    hands.export("csv")
    assert hands.notice == "the workbench was ended: open another"
    assert hands.open_sessions() == {} and hands.picture().data
