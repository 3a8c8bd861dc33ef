"""The live view's end in the kernel: a page is played by the messages that one would send."""

from __future__ import annotations

import threading

import pytest
from plotly.offline import get_plotlyjs

from workbench.panel.view import View, ViewError

FULL = {"figure": {"data": [{"x": [0], "y": [1]}], "layout": {"uirevision": "run"}}, "strips": []}
DELTA = {"traces": [{"i": 0, "at": 1, "x": [1], "y": [2]}], "layout": None, "strips": None}


class Page:
    """What a widget sends lands in ``got``; ``say`` is a message from the page."""

    def __init__(self, widget):
        self.widget, self.got = widget, []
        widget.send = self.send

    def send(self, content, buffers=None):
        self.got.append(content if buffers is None else content | {"buffers": buffers})

    def say(self, kind, buffers=(), **content):
        # Not by on_msg's own way: that writes an error of a callback to the log and goes on.
        self.widget._received(self.widget, {"kind": kind, **content}, list(buffers))

    def kinds(self):
        return [message["kind"] for message in self.got]


@pytest.fixture
def page():
    return Page(View(lambda: FULL))


@pytest.fixture
def drawn(page):
    """A page that has opened and drawn the full message, seq 1."""
    page.say("hello")
    page.widget.send_full()
    page.say("ack", seq=1)
    page.got.clear()
    return page


def test_nothing_is_sent_before_a_page_says_hello(page):
    assert not page.widget.ready and not page.widget.wants_full
    page.widget.offer(DELTA)
    assert page.got == []
    assert page.widget.lag_s is None


def test_a_page_that_opens_gets_the_whole_figure_first(page):
    page.say("hello")
    assert page.widget.ready and page.widget.wants_full
    page.widget.send_full()
    assert page.got == [{"kind": "full", "seq": 1, **FULL}]
    assert not page.widget.ready and not page.widget.wants_full


def test_a_delta_goes_out_once_the_page_has_drawn_what_came_before(drawn):
    assert drawn.widget.ready and drawn.widget.redraws == 1
    drawn.widget.offer(DELTA)
    assert drawn.got == [{"kind": "delta", "seq": 2, **DELTA}]
    assert not drawn.widget.ready
    drawn.say("ack", seq=2)
    assert drawn.widget.ready and drawn.widget.redraws == 2
    assert drawn.widget.lag_s >= 0


def test_to_a_page_that_does_not_answer_nothing_piles_up(drawn):
    for _ in range(50):
        drawn.widget.offer(DELTA)
    assert drawn.kinds() == ["delta"]


def test_after_a_delta_was_left_out_the_next_message_is_whole(drawn):
    drawn.widget.offer(DELTA)
    drawn.widget.offer(DELTA)
    drawn.say("ack", seq=2)
    assert drawn.widget.ready and drawn.widget.wants_full
    drawn.widget.offer(DELTA)
    assert drawn.kinds() == ["delta", "full"]


def test_a_new_page_is_served_though_the_old_one_never_answered(drawn):
    drawn.widget.offer(DELTA)
    drawn.say("hello")
    assert drawn.widget.ready
    drawn.widget.offer(DELTA)
    assert drawn.kinds() == ["delta", "full"]
    drawn.say("ack", seq=2)
    assert not drawn.widget.ready
    drawn.say("ack", seq=3)
    assert drawn.widget.ready


def test_of_two_pages_either_ack_counts_and_each_message_once(drawn):
    drawn.widget.offer(DELTA)
    drawn.say("ack", seq=2)
    drawn.widget.offer(DELTA)
    drawn.say("ack", seq=2)
    assert not drawn.widget.ready and drawn.widget.redraws == 2
    drawn.say("ack", seq=3)
    assert drawn.widget.ready and drawn.widget.redraws == 3


def test_an_ack_of_what_was_never_sent_counts_for_nothing(drawn):
    drawn.say("ack", seq=9)
    assert drawn.widget.redraws == 1
    drawn.widget.offer(DELTA)
    assert not drawn.widget.ready


def test_a_figure_that_fails_leaves_the_page_waiting_for_it():
    def full():
        raise RuntimeError("no figure yet")

    page = Page(View(full))
    page.say("hello")
    with pytest.raises(RuntimeError, match="no figure yet"):
        page.widget.send_full()
    assert page.got == [] and page.widget.wants_full and page.widget.ready


def test_plotly_goes_to_the_page_that_asks_for_it(page):
    page.say("plotly")
    assert page.kinds() == ["plotly"]
    assert page.got[0]["buffers"] == [get_plotlyjs().encode()]
    assert not page.widget.ready


def test_clicks_reach_their_callbacks():
    heard = []
    page = Page(View(lambda: FULL, on_click=lambda *a: heard.append(a), on_cell=lambda *a: heard.append(a)))
    page.say("click", trace=3, x=1.5)
    page.say("cell", arm="bounded", session="s0", frame=17)
    assert heard == [(3, 1.5), ("bounded", "s0", 17)]


def test_clicks_that_nobody_listens_to_are_let_go(page):
    page.say("click", trace=3, x=1.5)
    page.say("cell", arm="bounded", session="s0", frame=17)
    assert page.got == []


@pytest.mark.parametrize("content", [{"kind": "click", "trace": "0", "x": 1}, {"kind": "ack"}, {"kind": "dance"}])
def test_a_message_that_no_view_understands_is_named(page, content):
    with pytest.raises(ViewError, match=r"^a page sent .*, which no view understands: reload the page$"):
        page.say(**content)


def test_a_download_carries_its_bytes(page):
    page.widget.download("frames.parquet", b"PAR1", "application/octet-stream")
    assert page.got == [
        {"kind": "download", "name": "frames.parquet", "mime": "application/octet-stream", "buffers": [b"PAR1"]}
    ]


def test_a_pump_and_a_page_on_two_threads_lose_no_message(page):
    """The page acks each message at once, on its own thread; the pump sends a hundred, each after its ack."""
    arrived = threading.Semaphore(0)
    acked = threading.Semaphore(0)
    wanted = 100

    def send(content, buffers=None):
        page.got.append(content)
        arrived.release()

    def answer():
        page.say("hello")
        acked.release()
        for seq in range(1, wanted + 1):
            arrived.acquire()
            page.say("ack", seq=seq)
            acked.release()

    page.widget.send = send
    other = threading.Thread(target=answer)
    other.start()
    for _ in range(wanted):
        acked.acquire()
        assert page.widget.ready
        page.widget.offer(DELTA)
    other.join()
    assert [message["seq"] for message in page.got] == list(range(1, wanted + 1))
    assert page.kinds() == ["full"] + ["delta"] * (wanted - 1)
    assert page.widget.redraws == wanted


def test_the_page_is_one_module_with_both_files_in_it(page):
    assert page.widget._esm.count("\nexport default {") == 1
    assert page.widget._esm.index("class Beats") < page.widget._esm.index("class LiveView")
