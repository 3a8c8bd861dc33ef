"""Profiles are data: fields, overrides, TOML files, and what is refused in one line."""

from __future__ import annotations

import pytest

from workbench.bound import BoundError, KVBound
from workbench.cards import model_card
from workbench.profiles import PROFILES, ProfileError, load_profile


def test_the_built_in_profiles_serve_their_own_bound():
    for profile in PROFILES.values():
        profile.check_bound(profile.bound)
        assert profile.plateau_warning([profile.bound] * profile.sessions) is None
        if profile.front_end == "codec2":
            assert profile.frame_tokens == round(25 * profile.frame_budget_s)


@pytest.mark.parametrize("name", ["qwen2.5-omni", "qwen3-omni", "minicpm-o-4.5", "moshi"])
def test_an_interaction_model_is_served_alike_in_both_sizes(name):
    real, tiny = load_profile(name), load_profile(f"{name}-tiny")
    assert (real.front_end, real.frame_budget_s, real.frame_tokens) == (
        tiny.front_end,
        tiny.frame_budget_s,
        tiny.frame_tokens,
    )
    # No code of a checkpoint's runs unasked, and a tiny one has none that is not ours.
    assert not real.trust_remote_code and not tiny.trust_remote_code
    card = model_card(name)
    assert (
        real.frame_budget_s == card.frame_budget_s
        and real.max_positions >= card.max_positions
        and real.tokens_owed == card.tokens_owed
    )


def test_keyword_arguments_change_a_profile():
    profile = load_profile("tiny", pool_blocks=100, window=128)
    assert (profile.pool_blocks, profile.bound, profile.name) == (100, KVBound(128, 4), "tiny")


def test_a_toml_file_makes_a_profile(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('base = "smollm2"\npool_blocks = 400\nframe_budget_s = 1\n')
    profile = load_profile(str(path))
    assert (profile.name, profile.model, profile.pool_blocks, profile.frame_tokens) == ("mine", "smollm2", 400, 25)
    path.write_text(
        'model = "tiny"\nsessions = 2\nwindow = 64\npool_blocks = 64\nmax_model_len = 512\nmax_positions = 4096\n'
    )
    assert load_profile(str(path), seed=3).seed == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("base = ", "is no TOML file"),
        ('base = "huge"', "no base profile 'huge': choose from smollm2, tiny"),
        ('base = "tiny"\npool = 3', "no field 'pool'"),
        ("colour = 3", "no field 'colour'"),
        ('model = "tiny"', "missing"),
        ('base = "tiny"\npool_blocks = "many"', "pool_blocks must be int"),
        ('base = "tiny"\npool_blocks = true', "pool_blocks must be int"),
        ('base = "tiny"\nframe_budget_s = nan', "frame_budget_s must be above 0"),
        ('base = "tiny"\nframe_budget_s = -1.0', "frame_budget_s must be above 0"),
        ('base = ["tiny"]', "no base profile"),
        ('base = "tiny"\nsessions = 0', "sessions must be positive"),
        ('base = "tiny"\nsessions = 65', "more than max_sessions 64"),
        ('base = "tiny"\nwait_cap = 1.5', "wait_cap must lie between 0 and 1"),
        ('base = "tiny"\ndtype = "int3"', "dtype 'int3' is none of float32"),
        ('base = "tiny"\nexecutor = "magic"', "executor 'magic' is none of"),
        ('base = "tiny"\npool_blocks = 10', "cannot hold one session of max_model_len 1024"),
    ],
)
def test_a_profile_that_cannot_be_served_is_refused_in_one_line(tmp_path, text, says):
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(ProfileError, match=says) as error:
        load_profile(str(path))
    assert "\n" not in str(error.value)


def test_names_that_are_not_there(tmp_path):
    with pytest.raises(ProfileError, match="sim:MODEL@HARDWARE or give a .toml file"):
        load_profile("smollm3")
    with pytest.raises(ProfileError, match="cannot read profile"):
        load_profile(str(tmp_path / "none.toml"))
    with pytest.raises(ProfileError, match="no field 'windw': choose from"):
        load_profile("tiny", windw=3)


def test_a_bound_too_small_for_a_frame_is_refused_by_the_profile():
    with pytest.raises(BoundError, match="smaller than one frame of 50"):
        load_profile("smollm2").check_bound(KVBound(40))
