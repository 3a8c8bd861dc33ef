"""The controls of a panel, each a small group of ipywidgets: they say what is pressed and show what they are told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from html import escape

import ipywidgets as w

from workbench.bound import KVBound
from workbench.live.clips import NO_AUDIO
from workbench.live.pace import MOST_SPEED
from workbench.live.status import BOUND_ALL, CLOSE_HALF, RESET, RESTART, Status

COLOURS = {"calm": "#009E73", "busy": "#56B4E9", "warning": "#E69F00", "alarm": "#D55E00"}
SYMBOLS = {"calm": "●", "busy": "…", "warning": "▲", "alarm": "■"}
SPEEDS = [(f"{speed:g}x", speed) for speed in (1.0, 2.0, 5.0, 10.0, 30.0, MOST_SPEED)]
NARROW = w.Layout(width="auto", min_width="90px")
# Not None, which a dropdown shows as an empty line.
NONE_OPEN = ("none open", "")
_STYLE = {"description_width": "initial"}


def button(label: str, on_press: Callable[[], object], tip: str = "", style: str = "") -> w.Button:
    """A button; what it does returns at once."""
    made = w.Button(description=label, tooltip=tip or label, button_style=style, layout=NARROW)
    made.on_click(lambda _: on_press())
    return made


def row(*parts: w.Widget) -> w.HBox:
    """Parts beside each other, in lines as the page is wide."""
    return w.HBox(parts, layout=w.Layout(flex_flow="row wrap", align_items="center"))


def set_if(widget: w.Widget, **values: object) -> None:
    """Set traits that differ; a page hears of nothing that stays what it is."""
    for name, value in values.items():
        if getattr(widget, name) != value:
            setattr(widget, name, value)


class Showing:
    """Within it, what this thread sets of a control shows what is so, and is nobody's press."""

    def __init__(self) -> None:
        self._thread: int | None = None

    def __enter__(self) -> None:
        self._thread = threading.get_ident()

    def __exit__(self, *exc) -> None:
        self._thread = None

    @property
    def here(self) -> bool:
        """Whether this is the thread that shows."""
        return threading.get_ident() == self._thread


class StatusBar(w.VBox):
    """A line of words for each arm, what was refused, and the buttons that help."""

    def __init__(self, actions: dict[str, Callable[[], object]]) -> None:
        self.lines, self.notice = w.HTML(), w.HTML()
        tips = {
            BOUND_ALL: "bound every session: its window and sinks stay, the rest goes back to the pool",
            CLOSE_HALF: "end the newer half of the sessions, so that the rest has room",
            RESET: "end all sessions and begin a new run on the same engine",
            RESTART: "end the engine's processes, save the tables, start another engine",
        }
        self.buttons = {label: button(label, actions[label], tip) for label, tip in tips.items()}
        super().__init__([self.lines, row(*self.buttons.values()), self.notice])

    def show(self, statuses: list[tuple[str, Status]], notices: list[str]) -> None:
        """``statuses``: name of the arm, empty where there is one, and its status."""
        set_if(self.lines, value="".join(self._line(name, status) for name, status in statuses))
        helps = {label for _, status in statuses for label in status.helps}
        for label, each in self.buttons.items():
            set_if(each, button_style="warning" if label in helps else "")
        words = "".join(f"<div>⚑ {escape(line)}</div>" for line in dict.fromkeys(notices) if line)
        set_if(self.notice, value=words)

    @staticmethod
    def _line(name: str, status: Status) -> str:
        arm = f"<b>{escape(name)}:</b> " if name else ""
        mark = f"<span style='color:{COLOURS[status.level]}'>{SYMBOLS[status.level]}</span>"
        return f"<div class='metronome-status' style='font-size:16px'>{mark} {arm}{escape(status.words)}</div>"


class AddSessions(w.VBox):
    """Choose a clip, listen to it, upload one, open sessions on it. ``heard``: whether the front end takes audio."""

    def __init__(
        self, clips: list[str], heard: bool, upload: w.Widget, add: Callable[[str | None, int], object], listen
    ) -> None:
        options = clips if heard else [NO_AUDIO]
        self.clip = w.Dropdown(options=options, description="clip", style=_STYLE, disabled=not heard)
        self.count = w.BoundedIntText(value=1, min=1, max=1000, description="sessions", style=_STYLE)
        self.count.layout.width = "130px"
        self.audio: w.Audio | None = None
        parts = [
            self.clip,
            self.count,
            button(
                "add",
                lambda: add(self.clip.value if heard else None, self.count.value),
                "open sessions, at different places of the clip",
                "primary",
            ),
        ]
        if heard:
            parts += [button("listen", lambda: listen(self.clip.value), "play the clip here"), upload]
        super().__init__([row(*parts)])

    def offer(self, clip: str) -> None:
        """Another clip to choose, chosen at once."""
        if clip not in self.clip.options:
            self.clip.options = (*self.clip.options, clip)
        self.clip.value = clip

    def play(self, wav: bytes) -> None:
        """Give the page a clip to play."""
        if self.audio is None:
            # Not before there is something in it: a page takes an empty one for a broken file.
            self.audio = w.Audio(value=wav, format="wav", autoplay=False)
            self.children = (*self.children, self.audio)
        self.audio.value = wav


class Sessions(w.VBox):
    """Select a session, close one or all, bound one or all."""

    def __init__(self, close, set_bound, bound: KVBound, block: int, most: int) -> None:
        self.select = w.Dropdown(options=[NONE_OPEN], description="session", style=_STYLE)
        self.select.layout.width = "330px"
        self.whom = w.ToggleButtons(options=["all", "selected"], style={"button_width": "80px"})
        self.bounded = w.ToggleButtons(
            options=["bound on", "bound off"], value="bound off", style={"button_width": "90px"}
        )
        slider = {"continuous_update": False, "style": _STYLE, "step": block}
        widest, most_sinks = max(most, bound.window), max(8 * block, bound.sinks)
        self.window = w.IntSlider(value=bound.window, min=block, max=widest, description="W", **slider)
        self.sinks = w.IntSlider(value=bound.sinks, min=0, max=most_sinks, description="S", **(slider | {"step": 1}))
        self.moving = w.Checkbox(value=bound.moving, description="S moves", indent=False)
        self.moving.tooltip = "sinks follow the window, for sessions that outgrow the model's context"
        self.moving.layout.width = "90px"
        self._set_bound = set_bound
        self._showing = Showing()
        for each in (self.bounded, self.window, self.sinks, self.moving):
            each.observe(lambda _: self.press(), names="value")
        super().__init__(
            [
                row(
                    self.select,
                    button("close", lambda: close(self.selected) if self.selected else None, "end the selected"),
                    button("close all", lambda: close(None), "end every session"),
                ),
                row(w.Label("at the next frame:"), self.whom, self.bounded, self.window, self.sinks, self.moving),
            ]
        )

    @property
    def selected(self) -> str | None:
        """The session that is selected."""
        return self.select.value or None

    @property
    def one(self) -> bool:
        """Whether the bound's controls are those of the selected session alone."""
        return self.whom.value == "selected"

    @property
    def bound(self) -> KVBound | None:
        """The bound as the controls have it, None while it is switched off."""
        if self.bounded.value == "bound off":
            return None
        return KVBound(self.window.value, self.sinks.value, self.moving.value)

    def press(self) -> None:
        """Hand on the bound as the controls have it, for whom they say."""
        if self._showing.here:
            return
        if not self.one or self.selected:
            self._set_bound(self.selected if self.one else None)

    def show(self, sessions: dict[str, str], bound: KVBound | None) -> None:
        """The open sessions, name -> what to call it; what was selected stays selected. ``bound``: as it is."""
        with self._showing:
            set_if(self.bounded, value="bound off" if bound is None else "bound on")
            if bound is not None:
                set_if(self.window, value=bound.window)
                set_if(self.sinks, value=bound.sinks)
                set_if(self.moving, value=bound.moving)
        options = [(words, name) for name, words in sessions.items()] or [NONE_OPEN]
        if tuple(options) != tuple(self.select.options):
            selected = self.select.value
            self.select.options = options
            self.select.value = selected if selected in sessions else options[0][1]


class Admission(w.HBox):
    """Admission on or off, its controller and its target."""

    def __init__(self, change: Callable[[], object], controllers: list[str], target_ms: float) -> None:
        self.on = w.Checkbox(value=False, description="admission", indent=False, layout=w.Layout(width="110px"))
        self.controller = w.Dropdown(options=controllers, description="by", style=_STYLE)
        self.target_ms = w.FloatText(value=target_ms, description="target, ms", style=_STYLE)
        self.target_ms.layout.width = "170px"
        self.cap = w.Label("")
        for each in (self.on, self.controller, self.target_ms):
            each.observe(lambda _: change(), names="value")
        super().__init__([self.on, self.controller, self.target_ms, self.cap])
        self.layout = w.Layout(flex_flow="row wrap", align_items="center")


class Speed(w.HBox):
    """How fast virtual time is played: a speed, pause, one frame budget further."""

    def __init__(self, speed: float, set_speed, pause, step) -> None:
        options = SPEEDS if speed in dict(SPEEDS).values() else [*SPEEDS, (f"{speed:g}x", speed)]
        self.speed = w.SelectionSlider(options=options, value=speed, description="speed", style=_STYLE)
        self.speed.continuous_update = False
        self.pause = w.ToggleButton(value=False, description="pause", layout=NARROW)
        self.reached = w.Label("")
        self.speed.observe(lambda change: set_speed(change["new"]), names="value")
        self._showing = Showing()
        self.pause.observe(lambda change: self._showing.here or pause(change["new"]), names="value")
        super().__init__(
            [self.speed, self.pause, button("step", step, "one frame budget further, and pause"), self.reached]
        )

    def show(self, reached: float | None, paused: bool) -> None:
        """``reached``: the speed that the machine makes of it."""
        with self._showing:
            set_if(self.pause, value=paused)
        words = "paused" if paused else "" if reached is None else f"plays at {reached:.1f}x"
        set_if(self.reached, value=words)
