"""One or more arms of the same profile under a user's hands: their desks, what is read of them, what is drawn."""

from __future__ import annotations

import atexit
import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from workbench._figures import Label
from workbench.live.desk import OPEN, STARTING, Desk
from workbench.live.ending import end_when_told
from workbench.live.feed import Feed
from workbench.live.pace import Pace
from workbench.live.status import Status, status_of
from workbench.plots_live import LINES as DRAWN
from workbench.plots_live import LiveArm, live_figure
from workbench.profiles import Profile

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Between two readings, at most and at least: a page that has drawn is given the next at once, but not more of them.
READ_EVERY_S, READ_APART_S = 0.1, 0.02
FOLDER = Path(__file__).resolve().parents[2] / "reports" / "live"


@dataclass
class Arm:
    """A desk and what was read of its present run; ``feed`` None before the engine was ever up."""

    desk: Desk
    feed: Feed | None = None

    @property
    def name(self) -> str:
        return self.desk.label


class Live:
    """``labels``: one arm each. ``folder`` gets the tables. Reads by itself, ten times a second, and tells
    ``listeners``.

    A listener is called on the reading thread with what has changed since the last time, arm by arm: for each line its
    first changed point; None in place of an arm's lines where the arm has begun a new run.
    """

    def __init__(
        self,
        profile: Profile,
        labels: Sequence[str] = ("run",),
        *,
        folder: Path | None = None,
        speed: float = 1.0,
        engine: Callable | None = None,
    ) -> None:
        self.profile = profile
        self.pace = Pace(speed)
        stamp = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{profile.name.replace(':', '-').replace('@', '-')}"
        self.folder = Path(folder) if folder is not None else FOLDER / stamp
        several = len(labels) > 1
        # Arms begin together: nobody plays before all are there.
        self.pace.paused = self._held = several
        self.arms = [
            Arm(
                Desk(
                    profile, self.folder / label if several else self.folder, label=label, pace=self.pace, engine=engine
                )
            )
            for label in labels
        ]
        self.listeners: list[Callable[[list[dict | None]], None]] = []
        self.faults: list[str] = []
        # Nothing is read or shown meanwhile: for measuring what that costs.
        self.resting = False
        # For what takes its time and needs no engine: reading an uploaded clip, packing an archive.
        self.chores = ThreadPoolExecutor(1, thread_name_prefix="metronome-chores")
        self._reading = threading.RLock()
        self._over, self._awake = threading.Event(), threading.Event()
        self._process = psutil.Process()
        self._reader = threading.Thread(target=self._read_on, name="metronome-reader", daemon=True)

    def open(self) -> Live:
        """Start the engines in the background. Returns at once."""
        for arm in self.arms:
            arm.desk.open()
        self._reader.start()
        atexit.register(self.end)
        end_when_told(self)
        return self

    def end(self) -> None:
        """End the engines with all their processes; the tables are saved. Again is no error."""
        self._over.set()
        for arm in self.arms:
            arm.desk.end()
        if self._reader.is_alive() and self._reader is not threading.current_thread():
            self._reader.join()
            self.read()
        self.chores.shutdown(wait=False)
        atexit.unregister(self.end)

    @property
    def ended(self) -> bool:
        return self._over.is_set()

    @property
    def open_now(self) -> bool:
        """Whether all engines are up."""
        return all(arm.desk.state == OPEN for arm in self.arms)

    # -- reading ----------------------------------------------------------------------------------------------------

    def _read_on(self) -> None:
        while not self._over.wait(READ_APART_S):
            self._awake.wait(READ_EVERY_S - READ_APART_S)
            self._awake.clear()
            try:
                if not self.resting:
                    self.read()
            except Exception as error:  # noqa: BLE001, a fault in what is shown must not end the showing; it is told
                line = f"fault in the panel: {type(error).__name__}: {error}"
                if line not in self.faults:
                    self.faults.append(line)

    def wake(self) -> None:
        """Read soon: somebody waits for it."""
        self._awake.set()

    def pause(self, paused: bool) -> None:
        """Let no virtual time pass, or let it pass again."""
        # Asked for while the arms start: they begin as the user wants it.
        self._held = False
        self.pace.paused = paused

    def read(self) -> None:
        """Take in what has come and tell the listeners."""
        with self._reading:
            if self._held and not any(arm.desk.state == STARTING for arm in self.arms):
                self._held = self.pace.paused = False
            changes = [self._read_arm(arm) for arm in self.arms]
            for listener in list(self.listeners):
                listener(changes)

    def _read_arm(self, arm: Arm) -> dict | None:
        manager = arm.desk.manager
        if manager is None or not manager.running and arm.desk.state == STARTING:
            return {}
        new = arm.feed is None or arm.feed.manager is not manager or arm.feed.stale
        if new:
            arm.feed = Feed(manager)
        arm.feed.read()
        if arm.desk.state == OPEN:
            arm.feed.note_memory(self._process.memory_info().rss)
        changed = arm.feed.changed()
        return None if new else changed

    # -- what is shown ----------------------------------------------------------------------------------------------

    def statuses(self) -> list[Status]:
        """The state of each arm in words."""
        return [status_of(arm.desk, arm.feed and arm.feed.t_full_predicted_s) for arm in self.arms]

    @property
    def label(self) -> Label:
        """The caption: executor, profile, seed and the main parameters."""
        profile, facts = self.profile, None
        for arm in self.arms:
            manager = arm.desk.manager
            facts = getattr(manager.engine, "facts", None) if manager is not None else None
        executor = "simulated" if profile.executor == "simulated" else facts.executor if facts else "vllm"
        served = (
            executor,
            f"profile {profile.name}",
            f"seed {profile.seed}",
            f"B = {profile.frame_budget_s:g} s",
            f"{profile.tokens_owed} tokens owed per frame",
        )
        memory = (
            f"{profile.front_end} front end",
            f"pool of {profile.pool_blocks} blocks of {profile.block_size} tokens",
            "live: each point is a bin of time; dashes: the longest, what is owed, the cap, this kernel",
        )
        return Label("<br>".join(map(" · ".join, (served, memory))), simulated=executor == "simulated")

    def figure(self, title: str = "") -> Figure:
        """The picture as it is now."""
        with self._reading:
            arms = [
                LiveArm(arm.name, self._points(arm), self.profile.frame_budget_s, self.profile.wait_cap)
                for arm in self.arms
            ]
            return live_figure(arms, self.label, title)

    def _points(self, arm: Arm) -> Callable:
        return (lambda line, first=0: ([], [])) if arm.feed is None else arm.feed.points

    def strips(self) -> list[dict]:
        """The beat strip of each arm."""
        with self._reading:
            return [arm.feed.strip_shown(arm.name) for arm in self.arms if arm.feed is not None]

    def drawing(self) -> dict:
        """All that a page draws: ``figure`` as plain data, and ``strips``."""
        return {"figure": json.loads(self.figure().to_json()), "strips": self.strips()}

    def traces(self, firsts: Sequence[dict[str, int]]) -> list[dict]:
        """The new ends of the traces: ``firsts`` says for each arm and line from which point on."""
        traces = []
        with self._reading:
            for number, (arm, lines) in enumerate(zip(self.arms, firsts, strict=True)):
                for i, drawn in enumerate(DRAWN):
                    if drawn.line in lines and arm.feed is not None:
                        at = lines[drawn.line]
                        x, y = arm.feed.points(drawn.line, at)
                        y = [value * drawn.scale for value in y]
                        traces.append({"i": number * len(DRAWN) + i, "at": at, "x": x, "y": y})
        return traces
