"""The rows of the four systems' table: what is counted of a run, and arithmetic on the cards."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pandas as pd
import pytest

from workbench.cards import model_card
from workbench.engine.model import model_folder
from workbench.experiments._models_rows import (
    _tokens_in,
    bounded_frames,
    card_of,
    card_row,
    delimiters,
    kv_bytes,
)
from workbench.experiments.models import MODELS
from workbench.omni_models import OMNI
from workbench.profiles import load_profile


@pytest.mark.parametrize(
    ("model", "tokens_per_s", "kv", "sessions"),
    [
        ("qwen2.5-omni", 25.0, 28 * 2 * 4 * 128 * 2, 56),
        ("qwen3-omni", 13.0, 48 * 2 * 4 * 128 * 2, 128),
        ("minicpm-o-4.5", 12.0, 36 * 2 * 8 * 128 * 2, 96),
        ("moshi", 12.5, 32 * 2 * 32 * 128 * 2, 68),
    ],
)
def test_a_card_s_row_is_arithmetic_on_the_card(model, tokens_per_s, kv, sessions):
    row = card_row(model, "rtx-pro-6000", 0)
    assert (row["audio_tokens_per_s"], row["kv_bytes_per_token"], row["sessions"]) == (tokens_per_s, kv, sessions)
    card, tokens = model_card(model), row["pool_blocks"] * row["block_size"]
    assert row["fill_tokens_per_s"] == pytest.approx(sessions * card.growth_per_frame / card.frame_budget_s)
    assert row["t_sat_s"] == pytest.approx(tokens / row["fill_tokens_per_s"])
    assert row["fill_blocks_per_s"] == pytest.approx(row["pool_blocks"] / row["t_sat_s"])
    assert row["ceiling"] == row["pool_blocks"] // row["plateau_blocks_most"]
    assert (row["window"], row["sinks"]) == (1024, 16)
    # All weights are read at least once.
    assert row["frame_s"] > card.step_parameters * card.weight_bytes / 2e12


def test_the_bounded_arm_goes_on_past_the_unbounded_one_with_its_last_third_on_the_plateau():
    minicpm = load_profile("sim:minicpm-o-4.5@rtx-pro-6000", window=64)
    moshi = load_profile("sim:moshi@rtx-pro-6000", window=160, sinks=0)
    assert bounded_frames(minicpm, 60.0) > 60 and bounded_frames(moshi, 60.0) > 60 / 0.08
    # 64 + 16 tokens kept and a block at 15 a frame; 160 and a block at 1 a frame.
    assert bounded_frames(minicpm, 0.0) * 2 / 3 > 96 / 15 and bounded_frames(moshi, 0.0) * 2 / 3 > 176


def test_the_scheduler_s_count_gives_the_tokens_of_a_frame_with_and_without_an_early_end():
    # Growth is tokens in + tokens said - 1: with 52 in and 4 owed 55, and 52 where a reply ended with its first token.
    pool = pd.DataFrame({"grown_frames": [3, 7], "grown_tokens": [30, 30 + 3 * 55 + 52]})
    # Of the last two frames one was never answered and one still is.
    frames = pd.DataFrame(
        {
            "frame": [0, 1, 2, 3, 4, 5, 6],
            "tokens_delivered": [4, 4, 2, 4, 1, 0, 2],
            "tokens_late": [0, 0, 2, 0, 0, 0, 0],
            "tokens_owed": [4] * 7,
            "eos": [False, False, False, False, True, False, False],
        }
    )
    assert _tokens_in(pool, frames) == pytest.approx(52.0)
    assert _tokens_in(pool, frames[frames["frame"] == 0]) is None
    assert _tokens_in(pool.iloc[:0], frames) is None


def test_kv_bytes_are_those_of_the_config_that_the_engine_serves():
    profile = load_profile("tiny")
    config = json.loads((model_folder(profile.model, print) / "config.json").read_text())
    heads = config["num_attention_heads"]
    kept = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    per_token = 2 * config["num_hidden_layers"] * kept * head_dim * 4
    assert kv_bytes(profile, model_card("moshi")) == per_token != model_card("moshi").kv_bytes_per_token


@dataclass
class Heard:
    name: str = "made-up"
    before: str = "<a>"
    after: str = "</a>"
    shortest_s: float = 0.1

    def audio_tokens(self, samples):
        return samples // 640


def test_marks_around_the_audio_are_no_tokens_of_it(monkeypatch):
    monkeypatch.setitem(OMNI, "made-up", Heard())
    profile = load_profile("tiny", front_end="omni:made-up", frame_budget_s=2.0, max_positions=8192)
    assert (profile.frame_tokens, delimiters(profile)) == (52, 2)
    assert delimiters(load_profile("tiny")) == 0


def test_a_profile_s_card_is_that_of_the_model_it_hears_with():
    tiny = load_profile("tiny")
    assert card_of(tiny.with_(front_end="omni:qwen3-omni")).name == "qwen3-omni"
    assert card_of(tiny.with_(front_end="moshi")).name == "moshi"
    assert card_of(load_profile("sim:qwen2.5-omni@h100")).name == "qwen2.5-omni"
    assert [card_of(load_profile(name)).name + "-tiny" for name in MODELS.split(",")] == MODELS.split(",")
