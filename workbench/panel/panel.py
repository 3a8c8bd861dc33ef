"""One panel: the widgets of a workbench put together, kept up to date on the reading thread."""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING

import ipywidgets as w

from workbench.live import rows as table_rows
from workbench.live.hands import CONTROLLERS
from workbench.live.status import BOUND_ALL, CLOSE_HALF, RESET, RESTART
from workbench.panel.controls import AddSessions, Admission, Sessions, Speed, StatusBar, button, row, set_if
from workbench.panel.transfer import Upload
from workbench.panel.view import View
from workbench.plots_live import LINES as DRAWN

if TYPE_CHECKING:
    from workbench.panel.workbench import Workbench

SAY_S = 0.2  # between two looks at the state in words
SLOW_S = 1.0  # between two looks at words and rows, which are read and not watched
PLAYED_S = 60.0  # of a clip, at most
SUGGESTED_PART = 0.3  # the paper's target as a part of the budget: 600 ms of 2 s (arXiv 2607.02640)


class Panel(w.VBox):
    """The controls, the view and what is selected, of one workbench. Several panels may show the same one."""

    def __init__(self, bench: Workbench) -> None:
        self.bench, live = bench, bench.live
        profile = live.profile
        self.status = StatusBar(
            {
                BOUND_ALL: lambda: bench.bound(profile.bound),
                CLOSE_HALF: bench.close_half,
                RESET: bench.reset,
                RESTART: bench.restart,
            }
        )
        self.upload = Upload(on_file=bench.take_clip, on_error=bench.say)
        names = bench.clips.names()
        if bench.clips.missing:
            bench.say(bench.clips.missing)
        heard = not bench.clips.none_needed
        self.adding = AddSessions(names, heard, self.upload, lambda clip, n: bench.add(clip, n), self._listen)
        self.sessions = Sessions(
            bench.close,
            lambda name: bench.bound(self.sessions.bound, name),
            profile.bound,
            profile.block_size,
            min(profile.max_model_len, 8 * profile.window),
        )
        budget_ms = profile.frame_budget_s * 1e3
        self.admission = Admission(self._admit, list(CONTROLLERS), SUGGESTED_PART * budget_ms)
        parts = [self.status, self.adding, self.sessions, self.admission]
        self.speed = None
        if live.arms[0].desk.virtual:
            self.speed = Speed(live.pace.speed, bench.set_speed, bench.pause, bench.step)
            parts.append(self.speed)
        self.view = View(live.drawing, on_click=self._clicked, on_cell=self._cell, on_ready=self._awake)
        self.words, self.rows = w.HTML(), w.HTML("click on a point or a cell, or select a session: its rows")
        self.below = w.Tab([self.words, self.rows, self._exports()], titles=["words", "rows", "export"])
        super().__init__([*parts, self.view, self.below])
        self._firsts: list[dict[str, int]] = [{} for _ in live.arms]
        self._new_run = False
        self._said_at = self._looked_at = 0.0
        self._held_rows_until = 0.0
        self._clips = tuple(names)
        live.listeners.append(self.update)

    def _exports(self) -> w.Widget:
        bench = self.bench
        return w.VBox(
            [
                row(
                    button("tables as Parquet", lambda: bench.export("parquet", self.view.download)),
                    button("tables as CSV", lambda: bench.export("csv", self.view.download)),
                    button("view as HTML", lambda: bench.export("html", self.view.download)),
                ),
                w.HTML(f"<small>The tables are kept in {bench.live.folder} all the time.</small>"),
            ]
        )

    # -- on the reading thread ----------------------------------------------------------------------------------------

    def update(self, changes: list[dict[str, int] | None]) -> None:
        """Take what has changed and show it, as far as a page is there to draw it."""
        live = self.bench.live
        for firsts, changed in zip(self._firsts, changes, strict=True):
            self._new_run |= changed is None
            for line, first in (changed or {}).items():
                firsts[line] = min(first, firsts.get(line, first))
        if self.view.ready:
            if self._new_run or self.view.wants_full:
                self.view.send_full()
            else:
                self.view.offer({"traces": live.traces(self._firsts), "layout": None, "strips": live.strips()})
            self._firsts, self._new_run = [{} for _ in live.arms], False
        if self.view.asleep:
            return
        if time.monotonic() - self._said_at >= SAY_S:
            self._said_at = time.monotonic()
            self._say()
        if time.monotonic() - self._looked_at >= SLOW_S:
            self._looked_at = time.monotonic()
            self._show_slowly()

    def _say(self) -> None:
        """The state in words, and the controls that show one."""
        live = self.bench.live
        several = len(live.arms) > 1
        names = [arm.name if several else "" for arm in live.arms]
        notices = [arm.desk.notice for arm in live.arms] + [self.bench.notice] + live.faults[-1:]
        self.status.show(list(zip(names, live.statuses(), strict=True)), notices)
        one = self.sessions.one and self.sessions.selected
        bound = self.bench.bound_of(self.sessions.selected) if one else self.bench.bound_to_come
        self.sessions.show(self.bench.open_sessions(), bound)
        if self._clips != (clips := tuple(self.bench.clips.names())):
            for name in clips:
                if name not in self._clips:
                    self.adding.offer(name)
            self._clips = clips
        if self.speed is not None:
            self.speed.show(live.pace.reached, live.pace.paused)

    def _show_slowly(self) -> None:
        set_if(self.admission.cap, value=self.bench.admission_words())
        set_if(self.words, value=self.bench.words_html(self.sessions.selected))
        name = self.sessions.selected
        if name is not None and time.monotonic() > self._held_rows_until:
            set_if(self.rows, value=self.bench.rows_html(name))

    # -- what is pressed ----------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        on = self.admission.on.value
        self.bench.admit(self.admission.controller.value if on else None, self.admission.target_ms.value / 1e3)

    def _listen(self, name: str) -> None:
        self.bench.chore(lambda: self.adding.play(_wav(self.bench.clips.find(name))))

    def _clicked(self, trace: int, x) -> None:
        number, line = divmod(trace, len(DRAWN))
        arm = self.bench.live.arms[number]
        if arm.feed is None or not isinstance(x, (int, float)):
            return
        half = arm.feed.values["latency"].width_s / 2
        found = table_rows.rows_between(arm.feed.tables, x - half, x + half)
        self._show_rows(found, f"{arm.name}: frames due about {x:.1f} s ({DRAWN[line].line}), the first {len(found)}")

    def _cell(self, arm: str, session: str, frame: int) -> None:
        for each in self.bench.live.arms:
            if each.name == arm and each.feed is not None:
                found = [r for r in table_rows.last_rows(each.feed.tables, session, 200) if r.frame == frame]
                self._show_rows(found, f"{arm}: {session}, frame {frame}")

    def _show_rows(self, found: list, caption: str) -> None:
        # What was asked for by a click stays for a while, before the selected session's rows are shown again.
        self._held_rows_until = time.monotonic() + 30.0
        self.rows.value = table_rows.as_html(found, caption)
        self.below.selected_index = 1

    def _awake(self) -> None:
        """A page is there, perhaps again."""
        if self.update not in self.bench.live.listeners:
            self._new_run = True
            self.bench.live.listeners.append(self.update)
        self.bench.live.wake()

    def leave(self) -> None:
        """Show nothing more until a page asks for it: this one's was closed, or its cell was run again."""
        if self.update in self.bench.live.listeners:
            self.bench.live.listeners.remove(self.update)


def _wav(clip) -> bytes:
    import soundfile

    from workbench.audio import SAMPLE_RATE

    file = io.BytesIO()
    soundfile.write(file, clip.samples[: int(PLAYED_S * SAMPLE_RATE)], SAMPLE_RATE, format="WAV", subtype="PCM_16")
    return file.getvalue()
