"""What is left of a placeholder after any cuts, against a plain list; and what the account of the cache forgets."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import torch
from hypothesis import given
from hypothesis import strategies as st
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

from kernels_patch.features import KeptRange, cut, cut_range, forget
from tests.features_rig import Runner

BLOCK = 4
MASKS = st.lists(st.booleans(), min_size=1, max_size=15)
# Each piece: tokens of text before a placeholder, its mask, and whether vLLM is given none because all are embedded.
PIECES = st.lists(st.tuples(st.integers(0, 6), MASKS, st.booleans()), max_size=8)
# Each cut: pinned blocks, then blocks that go.
CUTS = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), max_size=8)


def prompt(pieces) -> tuple[list[MultiModalFeatureSpec], list[tuple[str, int] | None]]:
    """The features of a prompt, and what stands at each of its indices: (audio, encoder output) or None."""
    features, stands = [], []
    for k, (text, mask, plain) in enumerate(pieces):
        stands += [None] * text
        if plain:
            mask = [True] * len(mask)
        held = PlaceholderRange(len(stands), len(mask), None if plain else torch.tensor(mask))
        features.append(MultiModalFeatureSpec(None, "audio", f"audio {k}", held))
        outputs = iter(range(sum(mask)))
        stands += [(f"audio {k}", next(outputs)) if embedded else None for embedded in mask]
    return features, [*stands, None]


def gathered(features, first: int, count: int) -> list[tuple[str, int] | None]:
    """What vLLM's runner embeds at the indices [first, first + count)."""
    runner = Runner()
    runner.input_batch.req_ids = ["a"]
    runner.requests["a"] = SimpleNamespace(mm_features=features, num_computed_tokens=first)
    names = {feature.identifier: k for k, feature in enumerate(features)}
    for name, k in names.items():
        embeds = features[k].mm_position.get_num_embeds()
        runner.encoder_cache[name] = torch.stack([torch.full((embeds,), k), torch.arange(embeds)], dim=1)
    step = SimpleNamespace(total_num_scheduled_tokens=count, num_scheduled_tokens={"a": count})
    found, where = runner.gather(step)
    rows = iter(torch.cat(found).tolist() if found else ())
    result = [next(rows) if embedded else None for embedded in where.tolist()]
    assert next(rows, None) is None
    return [row and (features[row[0]].identifier, row[1]) for row in result]


def plain(features) -> list[tuple]:
    """Everything of the features as plain values."""
    return [
        (f.identifier, p.offset, p.length, None if p.is_embed is None else p.is_embed.tolist(), vars(p).get("skipped"))
        for f in features
        for p in [f.mm_position]
    ]


@given(PIECES, CUTS, st.data())
def test_every_index_says_which_encoder_output_it_stands_for(pieces, cuts, data):
    features, stands = prompt(pieces)
    embeds = {f.identifier: f.mm_position.get_num_embeds() for f in features}
    for pinned, blocks in cuts:
        start, end = pinned * BLOCK, (pinned + blocks) * BLOCK
        if end > len(stands):
            continue
        del stands[start:end]
        before, given_ones = plain(features), features
        features = cut(features, start, end)
        assert plain(given_ones) == before, "none of those given is changed"
        assert {f.identifier for f in features} >= {place[0] for place in stands if place}
        assert all(f.mm_position.get_num_embeds() == embeds[f.identifier] for f in features)
        ranges = [f.mm_position for f in features]
        assert all(r.length > 0 and 0 <= r.offset <= len(stands) - r.length for r in ranges)
        assert all(a.offset + a.length <= b.offset for a, b in pairwise(ranges))
        assert gathered(features, 0, len(stands)) == stands
    if stands:
        first = data.draw(st.integers(0, len(stands) - 1))
        count = data.draw(st.integers(1, len(stands) - first))
        assert gathered(features, first, count) == stands[first : first + count], "of any part of it"


@given(PIECES, CUTS)
def test_what_is_kept_travels_and_moves_like_any_range(pieces, cuts):
    features, stands = prompt(pieces)
    for pinned, blocks in cuts:
        if (pinned + blocks) * BLOCK <= len(stands):
            del stands[pinned * BLOCK : (pinned + blocks) * BLOCK]
            features = cut(features, pinned * BLOCK, (pinned + blocks) * BLOCK)
    travelled = pickle.loads(pickle.dumps(features))
    assert plain(travelled) == plain(features) and gathered(travelled, 0, len(stands)) == stands
    # As vLLM moves a chunk's ranges behind what a session holds.
    moved = [replace(f, mm_position=replace(f.mm_position, offset=f.mm_position.offset + 7)) for f in features]
    assert gathered(moved, 0, len(stands) + 7) == [None] * 7 + stands


def test_a_gap_inside_a_placeholder_leaves_two_parts_of_it():
    kept = cut_range(PlaceholderRange(2, 10), 4, 8)
    assert [(r.offset, r.length, r.skipped, r.encoded) for r in kept] == [(2, 2, 0, 10), (4, 4, 6, 10)]
    assert all(isinstance(r, KeptRange) and r.is_embed.all() for r in kept)
    again = cut_range(kept[1], 4, 6)
    assert [(r.offset, r.length, r.skipped, r.encoded) for r in again] == [(4, 2, 8, 10)]


def test_a_range_outside_the_gap_is_not_remade():
    before, after = PlaceholderRange(0, 4), PlaceholderRange(8, 4, torch.tensor([True, False, True, True]))
    assert cut_range(before, 4, 8)[0] is before
    (moved,) = cut_range(after, 4, 8)
    assert (type(moved), moved.offset, moved.is_embed) == (PlaceholderRange, 4, after.is_embed)
    assert cut_range(PlaceholderRange(4, 4), 4, 8) == []


def test_what_is_kept_holds_no_more_memory_than_its_own_tokens():
    (kept,) = cut_range(PlaceholderRange(0, 1000, torch.ones(1000, dtype=torch.bool)), 0, 996)
    assert kept.is_embed.untyped_storage().nbytes() == 4


def test_all_that_is_kept_of_an_audio_may_be_tokens_that_are_not_embedded():
    held = MultiModalFeatureSpec(None, "audio", "a", PlaceholderRange(0, 8, torch.tensor([True] * 5 + [False] * 3)))
    (kept,) = cut([held], 0, 4)[:1]
    assert gathered([kept], 0, 4) == [("a", 4), None, None, None]
    (kept,) = cut([kept], 0, 1)
    assert gathered([kept], 0, 3) == [None] * 3 and kept.mm_position.get_num_embeds() == 5


# -- the account of the encoder cache --------------------------------------------------------------------------------

SIZES = {"x": 3, "y": 5, "z": 4}


class Session(SimpleNamespace):
    """What of a request the manager asks for."""

    def get_num_encoder_embeds(self, input_id):
        return SIZES[self.mm_features[input_id].identifier]


def hearers() -> list[Session]:
    """Two sessions that hear the same audios, one of them one of these twice."""
    specs = {name: MultiModalFeatureSpec(None, "audio", name, PlaceholderRange(0, n)) for name, n in SIZES.items()}
    return [
        Session(request_id="a", mm_features=[specs[name] for name in "xyzx"]),
        Session(request_id="b", mm_features=[specs[name] for name in "zy"]),
    ]


which = st.tuples(st.integers(0, 1), st.integers(0, 3))
DEEDS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), which),
        st.tuples(st.just("take"), which),
        st.tuples(st.just("free"), which),
        st.tuples(st.just("forget"), st.sets(st.sampled_from("xyzw"), min_size=1)),
        st.tuples(st.just("step"), st.none()),
    ),
    max_size=40,
)


@given(st.integers(5, 14), DEEDS)
def test_the_account_balances_whatever_is_forgotten(size, deeds):
    manager, sessions, worker = EncoderCacheManager(cache_size=size), hearers(), set()
    for deed, what in deeds:
        if deed in ("take", "free"):
            session, input_id = sessions[what[0]], what[1] % len(sessions[what[0]].mm_features)
        if deed == "take":
            cached = manager.check_and_update_cache(session, input_id)
            if not cached and manager.can_allocate(session, input_id, 100, 0):
                manager.allocate(session, input_id)
                worker.add(session.mm_features[input_id].identifier)
        elif deed == "free" and input_id in manager.get_cached_input_ids(session):
            manager.free_encoder_input(session, input_id)
        elif deed == "forget":
            referenced = {name: set(ids) for name, ids in manager.cached.items() if ids}
            forget(manager, what)
            assert {name: ids for name, ids in manager.cached.items() if ids} == referenced, "those in use stay"
            assert not {name for name in what if name in manager.cached} - set(referenced), "the others are gone"
        elif deed == "step":
            worker -= set(manager.get_freed_mm_hashes())
            assert worker == set(manager.cached), "and the worker is told"
        assert manager.num_free_slots + sum(SIZES[name] for name in manager.cached) == size
        assert manager.num_freeable_slots == manager.num_free_slots + sum(manager.freeable.values())
        assert set(manager.num_embeds_by_hash) == set(manager.cached)
        assert set(manager.freeable) == {name for name, ids in manager.cached.items() if not ids}


def test_what_is_forgotten_and_heard_again_at_once_is_not_taken_from_the_worker():
    manager, (session, _) = EncoderCacheManager(cache_size=10), hearers()
    manager.allocate(session, 0)
    manager.free_encoder_input(session, 0)
    forget(manager, ["x"])
    assert manager.cached == {} and manager.num_free_slots == 10
    manager.allocate(session, 0)
    assert manager.get_freed_mm_hashes() == []
    manager.free_encoder_input(session, 0)
    forget(manager, ["x", "x"])
    assert manager.get_freed_mm_hashes() == ["x"]
