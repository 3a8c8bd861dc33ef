"""Drives: how time passes for a beat and its engine. In real time on a thread, or on an engine's virtual clock."""

from __future__ import annotations

from workbench.drive.base import Drive, SessionError

__all__ = ["Drive", "SessionError", "make_drive"]


def make_drive(engine, beat, tables, save_to, progress) -> Drive:
    """The drive that fits the engine's clock, not started yet."""
    if engine.virtual:
        from workbench.drive.virtual import VirtualTime as make
    else:
        from workbench.drive.realtime import RealTime as make
    return make(engine, beat, tables, save_to, progress)
