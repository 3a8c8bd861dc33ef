"""When a bounded session is as exact as an engine of this dtype can be.

A difference in log-probability has two causes: the arithmetic of the dtype and its kernels, and an error in what is
visible or where it stands. An unbounded session of the same run, over the same text, has only the first. So a bounded
session's largest difference may be twice the unbounded one's, for the largest of some eighty is itself uncertain, and
``SLACK`` more, which is what counts where the control is all but 0, as in float32. (Tensor cores may multiply float32
with fewer bits; the control shows that too.) The control is held to ``CONTROL``, lest an engine that is wrong for
everybody excuse the bound. And the comparison has to be able to fail: from a model that ignored the bound the same
tokens have to be ``TELLING`` times as far as is allowed, else nothing was shown, which is no pass. (In 16 bits that is
so of sinks that move, for sinks that stay do little harm to a session so young; float32 tells.)
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.gpu_check.table import ABSENT, Row, judged

SLACK = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 1e-2}
CONTROL = {"float32": 0.05, "float16": 0.1, "bfloat16": 0.5}
TELLING = 2.0


def control(part: str, dtype: str, off: Sequence[float]) -> Row:
    """The row of the unbounded session, whose tokens were ``off`` by so much."""
    worst, allowed = max(off), CONTROL[dtype]
    detail = f"{len(off)} tokens, largest difference {worst:.2g}, at most {allowed:g}"
    return judged(part, worst <= allowed, detail, **_figures(off), allowed=allowed)


def bounded(
    part: str,
    dtype: str,
    off: Sequence[float],
    control: Sequence[float],
    ignored: Sequence[float],
    instead: str = "without the bound",
) -> Row:
    """The row of a bounded session. ``ignored``: how far the same tokens are from what they would be ``instead``."""
    worst, allowed, told = max(off), allowance(dtype, control), max(ignored)
    detail = f"{len(off)} tokens, largest difference {worst:.2g}, at most {allowed:.2g}; {instead} {told:.2g}"
    figures = {**_figures(off), "allowed": allowed, "ignored": told}
    if worst <= allowed and told < TELLING * allowed:
        return Row(part, ABSENT, f"{detail}, too little to tell in {dtype}", figures)
    return judged(part, worst <= allowed, detail, **figures)


def allowance(dtype: str, control: Sequence[float]) -> float:
    """How far off a token of a bounded session may be, given those of the unbounded one."""
    return 2 * max(control) + SLACK[dtype]


def _figures(off: Sequence[float]) -> dict:
    return {"tokens": len(off), "largest": max(off), "mean": sum(off) / len(off)}
