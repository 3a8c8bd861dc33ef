"""A calibration with round figures, for tests that need one and measure nothing."""

from __future__ import annotations

from dataclasses import replace

from workbench._machine import Fingerprint
from workbench.costs import Calibration, CostModel, FitError, Group
from workbench.profiles import load_profile


def made_up(profile: str = "tiny", cpu: str | None = None) -> Calibration:
    """Of ``profile`` on this machine, or on one with another ``cpu``: 1 ms a step, 10 us a prefill token."""
    machine = Fingerprint.here(load_profile(profile))
    return Calibration(
        profile=profile,
        made_at="2026-01-01T00:00:00Z",
        machine=machine if cpu is None else replace(machine, cpu=cpu),
        threads=2,
        costs=CostModel(t0_s=0.001, prefill_s=1e-5, decode_s=1e-4, context_s=0.0, pair_s=1e-6),
        error=FitError(100, 0.01, 0.02, {}),
        held_out=Group("held out", 50, 0.01, 0.0, 0.01, 0.02),
        groups=(),
        steps=100,
        quiet_share=1.0,
        front_end_s=0.003,
        delivery_s=0.001,
    )
