"""The live view's end in the kernel: it sends what changed, and only once a page has drawn what was sent before.

The page's end is view.js with beats.js. Every message of a drawing has a number, ``seq``, and the page answers it by
``ack`` when it is on the screen. So a page that is slow, hidden or closed gets no second message, and nothing piles up
on the way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget

# A page that is merely slow answers sooner.
ASLEEP_AFTER_S = 5.0


class ViewError(ValueError):
    """A page sent what no view understands. The message is one line that says what to do."""


class View(anywidget.AnyWidget):
    """One Plotly figure and, below it, a beat strip per arm (sessions x frames).

    ``full()`` gives all there is to draw: {"figure": {"data": [...], "layout": {...}}, "strips": [...]}. The layout
    needs a constant ``uirevision``, or a second page resets the first one's zoom.
    ``on_click(trace, x)`` hears of a click on a point, ``on_cell(arm, session, frame)`` of one on a cell of a strip;
    ``arm`` is the strip's label. ``on_ready()`` hears that a page has drawn, or has just opened. All are called on the
    thread that takes the page's messages.

    One thread, the pump, does all the sending: as often as it likes it asks ``ready``, and if so builds a delta and
    offers it. A page that opens (a new tab, a reload) says hello, and what is offered next goes out as the full one.
    """

    # A widget is given one module, and the two together are too long for one file.
    _esm = "\n".join((Path(__file__).parent / name).read_text(encoding="utf-8") for name in ("beats.js", "view.js"))

    def __init__(
        self,
        full: Callable[[], dict[str, Any]],
        on_click: Callable[[int, Any], None] | None = None,
        on_cell: Callable[[str, str, int], None] | None = None,
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        self._full, self._on_click, self._on_cell, self._on_ready = full, on_click, on_cell, on_ready
        self._lock = threading.Lock()
        self._page = False  # some page said hello
        self._wants_full = False
        self._missed = False  # a delta came while the page was busy, so the next message has to hold all
        self._seq = self._acked = self._redraws = 0
        self._sent_at = 0.0
        self._lag_s: float | None = None
        super().__init__()
        self.on_msg(self._received)

    @property
    def ready(self) -> bool:
        """Whether a page waits: it has just opened, or it has drawn the last message."""
        with self._lock:
            return self._waits()

    @property
    def asleep(self) -> bool:
        """Whether the page has long owed its answer: it was closed, or it is hidden."""
        with self._lock:
            return self._page and not self._waits() and time.monotonic() - self._sent_at > ASLEEP_AFTER_S

    def _waits(self) -> bool:
        return self._page and (self._wants_full or self._acked == self._seq)

    @property
    def wants_full(self) -> bool:
        """Whether the next message has to be a full one."""
        return self._wants_full

    @property
    def redraws(self) -> int:
        """The messages that a page has drawn. With two pages on the view each message counts once."""
        return self._redraws

    @property
    def lag_s(self) -> float | None:
        """Seconds from the sending of the last drawn message to its ack; None before the first."""
        return self._lag_s

    def offer(self, delta: dict[str, Any]) -> None:
        """Send ``delta``: {"traces": [{"i", "at", "x", "y"}, ...], "layout": {...} | None, "strips": [...] | None}.

        Of trace i the points from ``at`` on are replaced by x and y (plain lists, None for a gap). ``layout`` is a
        patch for Plotly.relayout. Where a full one is due, that goes in its place; where no page is ready, nothing
        does, and the next message is a full one.
        """
        with self._lock:
            due = self._wants_full
            if not self._waits():
                self._missed = True
                return
        if due:
            self.send_full()
        else:
            self._draw({"kind": "delta", **delta})

    def send_full(self) -> None:
        """Send all there is to draw, whether or not a page is ready."""
        self._draw({"kind": "full", **self._full()})

    def download(self, name: str, data: bytes, mime: str) -> None:
        """Have every page that shows the view save ``data`` as a file called ``name``."""
        self.send({"kind": "download", "name": name, "mime": mime}, buffers=[data])

    def _draw(self, message: dict[str, Any]) -> None:
        with self._lock:
            if message["kind"] == "full":
                self._wants_full = self._missed = False
            self._seq += 1
            message["seq"] = self._seq
            self._sent_at = time.monotonic()
        self.send(message)

    def _received(self, _widget: Any, content: Any, _buffers: Any) -> None:
        match content:
            case {"kind": "hello"}:
                with self._lock:
                    self._page = self._wants_full = True
                self._tell_ready()
            case {"kind": "ack", "seq": int(seq)}:
                self._acknowledge(seq)
                self._tell_ready()
            case {"kind": "plotly"}:
                from plotly.offline import get_plotlyjs

                self.send({"kind": "plotly"}, buffers=[get_plotlyjs().encode()])
            case {"kind": "click", "trace": int(trace), "x": x}:
                if self._on_click is not None:
                    self._on_click(trace, x)
            case {"kind": "cell", "arm": str(arm), "session": str(session), "frame": int(frame)}:
                if self._on_cell is not None:
                    self._on_cell(arm, session, frame)
            case _:
                raise ViewError(f"a page sent {str(content)[:80]!r}, which no view understands: reload the page")

    def _tell_ready(self) -> None:
        if self._on_ready is not None and self.ready:
            self._on_ready()

    def _acknowledge(self, seq: int) -> None:
        with self._lock:
            # The slower of two pages says again what is known, and a number never sent is nobody's.
            if not self._acked < seq <= self._seq:
                return
            self._acked = seq
            self._redraws += 1
            if seq == self._seq:
                self._lag_s = time.monotonic() - self._sent_at
                self._wants_full |= self._missed
