"""The arithmetic of the bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.bound import BoundError, KVBound, check_bound, plateau, plateau_excess

ENGINE = {"block_size": 32, "blocks_total": 100, "max_model_len": 1024, "frame_tokens": 50, "owed": 4}


def test_sinks_are_pinned_in_whole_blocks():
    assert [KVBound(64, s).sink_tokens(32) for s in (0, 1, 32, 33)] == [0, 32, 32, 64]


def test_what_is_given_back_is_whole_blocks_behind_the_sinks():
    bound = KVBound(256, 4)
    assert [bound.evictable(n, 32) for n in (0, 288, 319, 320, 351, 352)] == [0, 0, 0, 32, 32, 64]


@given(
    window=st.integers(32, 600),
    sinks=st.integers(0, 100),
    block=st.sampled_from([16, 32, 64]),
    tokens_in=st.integers(1, 32),
    owed=st.integers(1, 16),
    frames=st.integers(1, 200),
)
def test_a_session_never_holds_more_than_the_resident_maximum(window, sinks, block, tokens_in, owed, frames):
    bound, resident = KVBound(window, sinks), 0
    for _ in range(frames):
        resident -= bound.evictable(resident, block)
        resident += tokens_in + owed - 1
        assert resident < bound.resident_max(block, tokens_in, owed)


@given(st.integers(32, 400), st.integers(0, 70), st.integers(1, 60), st.integers(1, 8))
def test_the_plateau_is_what_a_long_session_settles_at(window, sinks, tokens_in, owed):
    bound, resident, blocks = KVBound(window, sinks), 0, []
    for _ in range(3000):
        resident = resident - bound.evictable(resident, 32) + tokens_in + owed - 1
        blocks.append(-(-resident // 32))
    settled = plateau(bound, 32, tokens_in, owed)
    assert min(blocks[1000:]) == settled.least
    assert max(blocks[1000:]) == settled.most
    assert sum(blocks[1000:]) / 2000 == pytest.approx(settled.mean, abs=0.05)


@pytest.mark.parametrize(
    ("window", "sinks", "says"),
    [
        (256.0, 4, "window must be a whole number"),
        (True, 4, "window must be a whole number"),
        ("256", 4, "window must be a whole number"),
        (0, 4, "window must be at least 1"),
        (-5, 4, "window must be at least 1"),
        (256, -1, "sinks must be 0 or more"),
        (256, 1.5, "sinks must be a whole number"),
    ],
)
def test_what_is_no_bound_is_refused(window, sinks, says):
    with pytest.raises(BoundError, match=says) as error:
        KVBound(window, sinks)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("bound", "changes", "says"),
    [
        (KVBound(31), {}, "smaller than one block of 32"),
        (KVBound(40), {}, "smaller than one frame of 50"),
        (KVBound(1000, 4), {}, "more than max_model_len 1024"),
        (KVBound(900, 4), {"blocks_total": 20}, "more than the pool's 20"),
    ],
)
def test_what_an_engine_cannot_serve_is_refused(bound, changes, says):
    with pytest.raises(BoundError, match=says) as error:
        check_bound(bound, **{**ENGINE, **changes})
    assert "\n" not in str(error.value)


def test_a_bound_that_just_fits_is_served():
    most = ENGINE["max_model_len"] - 32 - 32 - 50 - 4
    check_bound(KVBound(most, 4), **ENGINE)
    with pytest.raises(BoundError):
        check_bound(KVBound(most + 1, 4), **ENGINE)


def test_plateaus_beyond_the_pool_say_by_how_much():
    bound = KVBound(256, 4)
    most = plateau(bound, 32, 50, 4).most
    assert plateau_excess([bound] * 10, 32, 10 * most, 50, 4) == 0
    assert plateau_excess([bound] * 11, 32, 10 * most, 50, 4) == most


def test_a_bound_travels_and_comes_back():
    assert KVBound.from_args(KVBound(300, 16).to_args()) == KVBound(300, 16)
    assert KVBound.from_args(None) is None
    for wrong in ({}, {"window": 64, "sink": 1}, [64, 4], 64, {"sinks": 4}):
        with pytest.raises(BoundError):
            KVBound.from_args(wrong)


@pytest.mark.parametrize("sinks", [0, 4])
def test_whether_its_sinks_move_travels_too(sinks):
    moving, fixed = KVBound(300, sinks, moving=True), KVBound(300, sinks)
    assert moving != fixed, "a change from one to the other is a change"
    for bound in (moving, fixed):
        assert KVBound.from_args(bound.to_args()) == bound
    assert KVBound.from_args({"window": 300, "sinks": sinks}) == fixed, "what does not say so does not move"


@pytest.mark.parametrize("moving", [1, 0, None, "yes", "true", [True], 1.0])
def test_sinks_move_or_do_not(moving):
    for make in (
        lambda: KVBound(256, 4, moving),
        lambda: KVBound.from_args({"window": 256, "sinks": 4, "moving": moving}),
    ):
        with pytest.raises(BoundError, match="moving must be true or false") as error:
            make()
        assert repr(moving) in str(error.value) and "\n" not in str(error.value)


@given(st.integers(32, 600), st.integers(0, 100), st.sampled_from([16, 32, 64]), st.integers(0, 2000))
def test_sinks_that_move_are_held_like_those_that_stay(window, sinks, block, resident):
    moving, fixed = KVBound(window, sinks, moving=True), KVBound(window, sinks)
    assert moving.evictable(resident, block) == fixed.evictable(resident, block)
    assert moving.resident_max(block, 50, 4) == fixed.resident_max(block, 50, 4)
    assert plateau(moving, block, 50, 4) == plateau(fixed, block, 50, 4)


def test_a_bound_has_a_short_name():
    assert KVBound(64, 4).words == "W 64 S 4" and KVBound(64, 4, moving=True).words == "W 64 S 4 moving"
