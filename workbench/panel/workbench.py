"""The workbench as a notebook has it: one call opens an engine and shows its panel, and nothing ever waits.

wb = Workbench("smollm2")
wb
wb.add("numbers", 4)
await wb.until("pool full", seconds=120)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from workbench.bound import KVBound
from workbench.live.hands import Hands
from workbench.profiles import Profile, load_profile

_OPEN: dict[str, Workbench] = {}


class Workbench(Hands):
    """Opens the engine of ``profile`` (a name, a sim: profile, a .toml file or a Profile) and shows it live.

    ``name``: there is one workbench of each name in a kernel. The same call again shows the one that is open; with
    another profile, or after its engine died, the old one is ended in the background. ``folder``, ``speed``,
    ``engine``: see Hands. Changes of the profile's fields: as keywords. Raises ProfileError; all that comes later is
    said in the panel.
    """

    def __new__(cls, profile: str | Profile = "smollm2", *, name: str = "workbench", **how):
        asked = (cls, _profile(profile, how), how.get("folder"))
        there = _OPEN.get(name)
        if there is not None and there._asked == asked and there.alive:
            return there
        if there is not None:
            # In the background: its processes take some seconds to end, and the cell is not to wait for them.
            del _OPEN[name]
            threading.Thread(target=there.end, name="metronome-ending", daemon=True).start()
        made = super().__new__(cls)
        made._asked = asked
        return made

    def __init__(
        self,
        profile: str | Profile = "smollm2",
        *,
        name: str = "workbench",
        folder: Path | str | None = None,
        speed: float = 1.0,
        engine: Callable | None = None,
        **changes,
    ) -> None:
        if _OPEN.get(name) is self:
            return  # it is shown again
        self.name = name
        super().__init__(_profile(profile, changes), folder=folder and Path(folder), speed=speed, engine=engine)
        _OPEN[name] = self

    def end(self) -> None:
        super().end()
        if _OPEN.get(self.name) is self:
            del _OPEN[self.name]

    def panel(self):
        """A panel of widgets; each one that is made shows the same engines."""
        from workbench.panel.panel import Panel

        for update in list(self.live.listeners):
            # Those that nobody sees any more cost nothing, however often a cell is run.
            if isinstance(shown := getattr(update, "__self__", None), Panel) and shown.view.asleep:
                shown.leave()
        return Panel(self)

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self.panel())

    def __repr__(self) -> str:
        return f"{type(self).__name__} {self.name!r} on {self.profile.name}: {self.status()}"


class SideBySide(Workbench):
    """Two engines of one profile and the same audio: unbounded and bounded, one picture. The bound is the one arm's."""

    ARMS = ("unbounded", "bounded")

    def __init__(self, *args, **how) -> None:
        known = hasattr(self, "live")
        super().__init__(*args, **how)
        if not known:
            self.bound_to_come = self.profile.bound

    def _bound_of(self, arm: str) -> KVBound | None:
        return self.bound_to_come if arm == "bounded" else None

    def _may_bind(self, arm: str) -> bool:
        return arm == "bounded"


def _profile(profile: str | Profile, how: dict) -> Profile:
    own = ("folder", "speed", "engine", "name")
    changes = {key: value for key, value in how.items() if key not in own}
    return profile.with_(**changes) if isinstance(profile, Profile) else load_profile(profile, **changes)
