"""The state of a desk in one line of words, and which of its buttons would help."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.live.desk import DEAD, ENDED, FAILED, OPEN, STARTING, Desk

CLOSE_HALF, BOUND_ALL, RESET, RESTART = "close half", "bound all", "reset engine", "restart engine"
CALM, BUSY, WARNING, ALARM = "calm", "busy", "warning", "alarm"
# Of the time to saturation: from here on a countdown is a warning.
WARN_BELOW_S = 30.0


@dataclass(frozen=True)
class Status:
    """``words``: one line. ``level``: calm, busy, warning or alarm. ``helps``: the buttons that would help now."""

    words: str
    level: str = CALM
    helps: tuple[str, ...] = ()


def status_of(desk: Desk, t_full_s: float | None = None) -> Status:
    """What to say of ``desk``. ``t_full_s``: the forecast of its pool, in seconds since the run began."""
    # Read once: another thread may restart the desk meanwhile.
    state = desk.state
    if state == STARTING:
        return Status(f"{desk.progress}", BUSY)
    if state == FAILED:
        return Status(f"the engine did not start: {desk.notice}", ALARM, (RESTART,))
    if state == ENDED:
        return Status("ended: run the cell again to open another engine", BUSY)
    manager = desk.manager
    now = manager.now()
    words = manager.beat.status(now)
    if state == DEAD or manager.beat.dead is not None:
        return Status(words + "; the tables are saved" * desk.saved, ALARM, (RESTART,))
    assert state == OPEN
    bounded = [session.bound for session in list(manager.beat.sessions.values())]
    if words.startswith("wall"):
        return Status(words, ALARM, (BOUND_ALL, CLOSE_HALF, RESET))
    if "stalled" in words:
        helps = (CLOSE_HALF,) if all(bounded) else (BOUND_ALL, CLOSE_HALF)
        return Status(words, WARNING, helps)
    if not bounded:
        return Status("no sessions: add some")
    if t_full_s is not None and manager.beat.first_refused_at_s is None:
        left = max(0.0, t_full_s - now)
        return Status(f"{words}; pool full in {in_time(left)}", WARNING if left < WARN_BELOW_S else CALM)
    return Status(f"{words}; {_of_the_pool(manager, bounded)}")


def _of_the_pool(manager, bounded) -> str:
    latest = manager.beat.latest
    used = "" if latest is None else f"pool {latest.blocks_used / latest.blocks_total:.0%} used, "
    if all(bounded):
        return f"{used}every session bounded: a plateau"
    if any(bounded):
        return f"{used}{sum(b is None for b in bounded)} of {len(bounded)} sessions unbounded"
    full_s = manager.beat.first_refused_at_s
    if full_s is not None:
        return f"{used}first full at {full_s:.1f} s"
    return f"{used}unbounded: too early for a forecast"


def in_time(seconds: float) -> str:
    """A span of time as people say it."""
    # Rounded before it is taken apart, so that no minute has 60 s.
    whole = (seconds + 0.5) // 1
    return f"{whole:.0f} s" if whole < 120 else f"{whole // 60:.0f} min {whole % 60:02.0f} s"
