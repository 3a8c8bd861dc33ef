"""True positions survive any sequence of cuts: the spans against a plain list of positions."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernels_patch.positions import add_offsets, cut, offset_at

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
