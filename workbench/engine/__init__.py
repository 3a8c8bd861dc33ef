"""Engines: what a session manager needs of one, and the makes there are."""

from __future__ import annotations

from workbench.engine.base import Engine, EngineDead, EngineError, Facts, SessionView, Snapshot, TokenEvent

__all__ = ["Engine", "EngineDead", "EngineError", "Facts", "SessionView", "Snapshot", "TokenEvent", "make_engine"]


def make_engine(profile, **options) -> Engine:
    """The engine that ``profile`` asks for, not started yet."""
    if profile.executor == "simulated":
        from workbench.engine.simulated import SimulatedEngine as make
    else:
        from workbench.engine.vllm import VllmEngine as make
    return make(profile, **options)
