"""The interval of a probability of which some trials are known."""

from __future__ import annotations

import math

from workbench.saturation import Z_95


def wilson(hits: int, trials: int, z: float = Z_95) -> tuple[float, float]:
    """The Wilson score interval (low, high) of a probability, ``hits`` of ``trials`` independent trials being true.

    (p + z^2 / 2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n), with p = hits / n and n = trials. Source:
    E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927). ``z``: 1.96 for 95 %.
    Unlike p -+ z sqrt(p (1 - p) / n) it is of use at 0 and n hits too. ValueError for hits that are no part of trials.
    """
    if not 0 <= hits <= trials or trials == 0:
        raise ValueError(f"{hits} hits of {trials} trials: give at least one trial and from 0 to all of them as hits")
    p, spread = hits / trials, z * z / trials
    middle, half = p + spread / 2, z * math.sqrt(p * (1 - p) / trials + spread / (4 * trials))
    # What is known exactly at the ends, and not to a rounding.
    low = 0.0 if hits == 0 else (middle - half) / (1 + spread)
    high = 1.0 if hits == trials else (middle + half) / (1 + spread)
    return low, high
