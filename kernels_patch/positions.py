"""True positions after eviction: which offset each resident index carries.

The scheduler deletes the tokens of a gap, so a token's index in the request shrinks while its rotary position must
not. A session therefore carries a short list of spans (start, offset), sorted by start and beginning with index 0:
the true position of index i is i + offset of the last span that starts at or before i.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

EXTRA_ARGS_KEY = "kv_positions"
# With a chunk whose eviction moved the sinks: see kernels_patch.moving.
MOVED_KEY = "kv_moved"

Spans = list[tuple[int, int]]


def offset_at(spans: Spans, index: int) -> int:
    """The offset of ``index``: its true position minus itself."""
    return spans[bisect_right(spans, (index, float("inf"))) - 1][1]


def cut(spans: Spans, start: int, length: int) -> Spans:
    """The spans after the indices [start, start + length) were deleted."""
    kept = [s for s in spans if s[0] < start]
    first_after = (start, offset_at(spans, start + length) + length)
    later = [(s - length, o + length) for s, o in spans if s > start + length]
    result: Spans = []
    for span in [*kept, first_after, *later]:
        if not result or result[-1][1] != span[1]:
            result.append(span)
    return result


def follow(spans: Spans, start: int) -> Spans:
    """The spans after the indices before ``start`` took the offset of the one at ``start``, to lie right before it."""
    offset = offset_at(spans, start)
    return [(0, offset), *((s, o) for s, o in spans if s > start)]


def differ_before(spans: Spans, others: Spans) -> int:
    """The index from which on both give the same offsets; they must agree in the end."""
    starts = sorted({start for start, _ in [*spans, *others]})
    different = [k for k, start in enumerate(starts) if offset_at(spans, start) != offset_at(others, start)]
    return starts[different[-1] + 1] if different else 0


def offsets(spans: Spans, first: int, count: int) -> np.ndarray:
    """The offsets of the indices [first, first + count), int64."""
    result = np.zeros(count, dtype=np.int64)
    add_offsets(result, spans, first)
    return result


def add_offsets(shift: np.ndarray, spans: Spans, first: int) -> None:
    """Write into ``shift`` (int64, one entry per scheduled token) the offsets of the indices from ``first`` on."""
    ends = [start for start, _ in spans[1:]] + [first + len(shift)]
    for (start, offset), end in zip(spans, ends, strict=True):
        if offset:
            shift[max(start - first, 0) : max(end - first, 0)] = offset
