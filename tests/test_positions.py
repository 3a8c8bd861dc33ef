"""True positions survive any sequence of cuts: the spans against a plain list of positions."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernels_patch.positions import add_offsets, cut, differ_before, follow, offset_at, offsets

BLOCK = 4
# Each step: grow by some tokens, then cut some blocks behind some pinned blocks.
STEPS = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 3), st.integers(1, 4)), max_size=25)


@given(STEPS, st.data())
def test_spans_say_where_each_resident_token_truly_stands(steps, data):
    spans, positions, length = [(0, 0)], [], 0
    for grown, pinned, blocks in steps:
        positions += range(length, length + grown)
        length += grown
        start, gap = pinned * BLOCK, blocks * BLOCK
        if len(positions) > start + gap:
            del positions[start : start + gap]
            spans = cut(spans, start, gap)
        assert [i + offset_at(spans, i) for i in range(len(positions))] == positions
    if positions:
        first = data.draw(st.integers(0, len(positions) - 1))
        shift = np.zeros(len(positions) - first, dtype=np.int64)
        add_offsets(shift, spans, first)
        assert (np.arange(first, len(positions)) + shift).tolist() == positions[first:]


@given(STEPS)
def test_spans_stay_short_while_the_sinks_do_not_change(steps):
    spans = [(0, 0)]
    for _, _, blocks in steps:
        spans = cut(spans, BLOCK, blocks * BLOCK)
    assert len(spans) <= 2


# As STEPS, and whether the pinned tokens then move up to what follows them.
MOVES = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 3), st.integers(1, 4), st.booleans()), max_size=25)


def moved(positions, start):
    """The list after the first ``start`` tokens took the positions right before the one at ``start``."""
    return [*range(positions[start] - start, positions[start]), *positions[start:]]


@given(MOVES, st.data())
def test_spans_follow_pinned_tokens_that_move(steps, data):
    spans, positions, length = [(0, 0)], [], 0
    for grown, pinned, blocks, moving in steps:
        positions += range(length, length + grown)
        length += grown
        start, gap = pinned * BLOCK, blocks * BLOCK
        if len(positions) > start + gap:
            del positions[start : start + gap]
            spans = cut(spans, start, gap)
            if moving:
                positions, spans = moved(positions, start), follow(spans, start)
        assert [i + offset_at(spans, i) for i in range(len(positions))] == positions
        assert [start for start, _ in spans] == sorted({start for start, _ in spans}) and spans[0][0] == 0
    if positions:
        first = data.draw(st.integers(0, len(positions) - 1))
        count = data.draw(st.integers(0, len(positions) - first))
        added = offsets(spans, first, count)
        assert added.dtype == np.int64
        assert (np.arange(first, first + count) + added).tolist() == positions[first : first + count]
        # What comes next stands behind all that came.
        assert offsets(spans, len(positions), 3).tolist() == [length - len(positions)] * 3


@given(MOVES, st.lists(st.booleans(), min_size=25, max_size=25))
def test_where_two_spans_of_the_same_tokens_differ(steps, chunks):
    """As the scheduler has them: what the cache holds is cut with the rest, but its keys move at the chunk's end."""
    spans = cached = [(0, 0)]
    now, held, length = [], [], 0
    for (grown, pinned, blocks, moving), new_chunk in zip(steps, chunks, strict=False):
        if new_chunk:
            cached, held = spans, list(now)
        for positions in (now, held):
            positions += range(length, length + grown)
        length += grown
        start, gap = pinned * BLOCK, blocks * BLOCK
        if len(now) > start + gap:
            del now[start : start + gap], held[start : start + gap]
            spans, cached = cut(spans, start, gap), cut(cached, start, gap)
            if moving:
                now, spans = moved(now, start), follow(spans, start)
        different = [i for i, (a, b) in enumerate(zip(now, held, strict=True)) if a != b]
        assert differ_before(spans, cached) == differ_before(cached, spans) == max(different, default=-1) + 1
        assert [i + offset_at(cached, i) for i in range(len(held))] == held
