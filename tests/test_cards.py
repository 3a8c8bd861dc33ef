"""Cards: every number has a source, wrong cards are refused by name, and the pool stays a bound."""

from __future__ import annotations

import importlib.util
import math
import re
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import pytest

from workbench import cards
from workbench.cards import CardError, HardwareCard, ModelCard, hardware_card, model_card, pool_blocks
from workbench.frontends import tokens_per_frame
from workbench.profiles import load_profile

MODELS = ("qwen3-omni", "qwen2.5-omni", "minicpm-o-4.5", "moshi", "smollm2")
GPUS = ("rtx-pro-6000", "h100", "h200", "b200")
# Widths of the feed-forward layers, from the same config.json files as the cards.
FFN = {"qwen2.5-omni": 18944, "minicpm-o-4.5": 12288, "moshi": 11264, "smollm2": 1536}


def matrices(card: ModelCard, ffn: int, copies: int = 1) -> int:
    """Parameters of the matrices of the layers: attention, and ``copies`` gated feed-forward layers of width ffn."""
    attention = 2 * card.hidden * card.head_dim * (card.heads + card.kv_heads)
    return card.layers * (attention + copies * 3 * card.hidden * ffn)


def toml(card) -> str:
    """A card as the text of a card file."""
    lines = [f"{f.name} = {getattr(card, f.name)!r}" for f in fields(card) if f.name != "sources"]
    return "\n".join([*lines, "[sources]", *(f'{key} = "somewhere"' for key in card.sources)])


@pytest.fixture
def refused(tmp_path):
    """What is said of a card file with one change to its text."""

    def load(old: str, new: str, card="qwen3-omni", read=model_card) -> str:
        text = toml(read(card))
        assert old in text
        path = tmp_path / "mine.toml"
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(CardError) as error:
            read(path)
        assert "\n" not in str(error.value)
        return str(error.value)

    return load


def test_the_built_in_cards_are_those_of_the_paper_and_four_gpus():
    assert [model_card(name).name for name in MODELS] == list(MODELS)
    assert [hardware_card(name).name for name in GPUS] == list(GPUS)
    data = Path(cards.__file__).parent / "cards_data"
    assert tuple(tomllib.loads((data / "models.toml").read_text())) == MODELS
    assert tuple(tomllib.loads((data / "hardware.toml").read_text())) == GPUS


def test_qwen3_omni_anchors():
    card = model_card("qwen3-omni")
    assert card.kv_bytes_per_token == 98304
    assert card.expert_parameters == 48 * 128 * 3 * 2048 * 768
    assert card.tokens_per_frame == 13 * 2
    assert (card.growth_per_frame, card.fill_rate_tokens_per_s) == (26 + 7 - 1, 16.0)
    assert card.weight_memory_bytes == card.parameters
    assert model_card("moshi").fill_rate_tokens_per_s == 12.5


@pytest.mark.parametrize("name", MODELS)
def test_active_parameters_are_the_matrices_and_the_head_with_little_beside_them(name):
    card = model_card(name)
    ffn = (768, card.experts_per_token) if name == "qwen3-omni" else (FFN[name], 1)
    known = matrices(card, *ffn) + card.head_parameters
    # Moshi's depth transformer is a tenth of it; elsewhere only norms, biases and the router remain.
    assert known < card.active_parameters < known * (1.11 if name == "moshi" else 1.006)


def test_parameters_add_the_embedding_the_experts_and_the_encoder():
    for name in ("qwen3-omni", "qwen2.5-omni", "minicpm-o-4.5"):
        card = model_card(name)
        assert card.parameters == card.step_parameters + card.hidden * card.vocab
    assert model_card("smollm2").parameters == model_card("smollm2").step_parameters == 134_515_008


def test_the_smollm2_card_says_what_the_project_serves():
    card, profile = model_card("smollm2"), load_profile("smollm2")
    assert (card.frame_budget_s, card.tokens_owed) == (profile.frame_budget_s, profile.tokens_owed)
    assert card.tokens_per_frame == tokens_per_frame(profile.front_end, card.frame_budget_s)
    assert card.growth_per_frame == profile.growth


def test_reply_tokens_are_reckoned_from_one_rate_of_speech():
    for name in ("qwen3-omni", "qwen2.5-omni", "minicpm-o-4.5"):
        card = model_card(name)
        assert card.tokens_owed == math.ceil(150 / 60 / 0.75 * card.frame_budget_s)
        assert "assumption" in card.sources["tokens_owed"]


@pytest.mark.parametrize("name", GPUS)
def test_rates_are_dense_and_memory_is_the_drivers(name):
    card = hardware_card(name)
    assert card.fp8_flops == 2 * card.bf16_flops
    for sparse in re.findall(r"([\d,]+) TFLOPS with sparsity, halved", card.sources["bf16_flops"]):
        assert card.bf16_flops == float(sparse.replace(",", "")) * 1e12 / 2
    reported = re.match(r"([\d,]+) MiB", card.sources["memory_bytes"])
    assert card.memory_bytes == int(reported[1].replace(",", "")) * 2**20


def test_the_utilisation_is_the_default_of_the_vllm_at_hand():
    spec = importlib.util.find_spec("vllm")
    if spec is None:
        pytest.skip("vLLM is not installed")
    source = (Path(spec.origin).parent / "config" / "cache.py").read_text()
    default = re.search(r"gpu_memory_utilization: float = Field\(default=([\d.]+)", source)
    assert float(default[1]) == cards.MEMORY_UTILISATION


def test_a_card_file_is_read(tmp_path):
    path = tmp_path / "mine.toml"
    for read, name in ((model_card, "qwen3-omni"), (hardware_card, "h100")):
        path.write_text(toml(read(name)))
        assert replace(read(path), sources=read(name).sources) == read(name)


def test_an_unknown_name_lists_those_there_are(tmp_path):
    with pytest.raises(CardError, match="no model card 'gpt': choose from qwen3-omni, .*smollm2 or give a .toml file"):
        model_card("gpt")
    with pytest.raises(CardError, match="no hardware card 'qwen3-omni': choose from rtx-pro-6000, h100, h200, b200 or"):
        hardware_card("qwen3-omni")
    with pytest.raises(CardError, match="cannot read card .*none.toml: No such file"):
        model_card(tmp_path / "none.toml")


@pytest.mark.parametrize("text", [b"layers = ", b"\xff", b"layers = " + b"9" * 5000])
def test_a_file_that_is_no_toml_is_refused(tmp_path, text):
    path = tmp_path / "wrong.toml"
    path.write_bytes(text)
    with pytest.raises(CardError, match="wrong.toml is no TOML file"):
        model_card(path)


@pytest.mark.parametrize("kind", [ModelCard, HardwareCard], ids=lambda kind: kind.__name__)
def test_each_missing_field_and_each_missing_source_is_named(refused, kind):
    card, read = ("qwen3-omni", model_card) if kind is ModelCard else ("h100", hardware_card)
    for name in (f.name for f in fields(kind) if f.name != "sources"):
        value = f"{name} = {getattr(read(card), name)!r}\n"
        assert f": {name} missing: a " in refused(value, "", card, read)
        if name not in ("name", "title"):
            assert f": {name} has no source" in refused(f'{name} = "somewhere"', "", card, read)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("layers = 48", "layers = 48\ncolour = 3", "a model card has no field 'colour': choose from name, title"),
        ("layers = 48", "layers = '48'", "layers must be a whole number, not '48'"),
        ("layers = 48", "layers = 48.0", "layers must be a whole number, not 48.0"),
        ("layers = 48", "layers = true", "layers must be a whole number, not True"),
        ("layers = 48", "layers = 0", "layers must lie between 1 and 1000, not 0"),
        ("frame_budget_s = 2.0", "frame_budget_s = nan", "frame_budget_s must lie between 0.001 and 3600, not nan"),
        ("frame_budget_s = 2.0", "frame_budget_s = [2.0]", "frame_budget_s must be a number"),
        ("kv_heads = 4", "kv_heads = 5", "kv_heads 5 does not divide heads 32"),
        ("weight_bytes = 1", "weight_bytes = 3", "weight_bytes must be one of 1, 2, 4, not 3"),
        ("encoder_place = 'step'", "encoder_place = 'moon'", "encoder_place must be one of step, outside, not 'moon'"),
        ("active_parameters = 3042129920", "active_parameters = 40000000000", "active_parameters .* exceed parameters"),
        ("active_parameters = 3042129920", "active_parameters = 2000000000", "active_parameters are too few"),
        ("parameters = 31180574080", "parameters = 30000000000", "parameters are too few"),
        ("experts_per_token = 8", "experts_per_token = 129", "experts_per_token 129 exceed experts 128"),
        ("expert_parameters = 28991029248", "expert_parameters = 0", "are all 0 or all above 0"),
        ("name = 'qwen3-omni'", r'name = "a\nb"', "name must be a text of one line"),
        ("title = 'Qwen3", "title = ''\n#", "title must be a text of one line"),
        ('vocab = "somewhere"', 'vocab = "  "', "vocab has no source"),
        ('vocab = "somewhere"', "vocab = 7", "sources holds 'vocab', which is no text"),
        ('vocab = "somewhere"', 'vocab = "a"\nwords = "b"', "sources holds 'words', which is no text on a number"),
    ],
)
def test_a_wrong_model_card_is_refused_in_one_line(refused, old, new, says):
    assert re.search(says, refused(old, new))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "memory_bytes = 85520809984",
            "memory_bytes = 80",
            "memory_bytes must lie between 1e\\+09 and 1e\\+13, not 80",
        ),
        ("fp8_flops = 1979", "fp8_flops = 979", "fp8_flops 9.79e\\+14 lie below bf16_flops: is one of them sparse"),
    ],
)
def test_a_wrong_hardware_card_is_refused_in_one_line(refused, old, new, says):
    assert re.search(says, refused(old, new, "h100", hardware_card))


def test_sources_that_are_no_table_are_refused():
    with pytest.raises(CardError, match="sources must be a table"):
        replace(model_card("moshi"), sources="a book")


def test_the_pool_of_the_papers_gpu_is_of_the_size_that_its_figures_imply():
    card = model_card("qwen3-omni")
    tokens = pool_blocks(card, hardware_card("rtx-pro-6000")) * card.block_size
    # About 512k tokens follow from the paper's figures; utilisation, activations and 16-bit parts are not known.
    assert 0.5 < tokens / 512_000 < 2


def test_a_pool_is_what_is_left_beside_the_weights_in_whole_blocks():
    model, gpu = model_card("moshi"), hardware_card("h100")
    block = model.kv_bytes_per_token * 16
    gpu = replace(gpu, memory_bytes=model.weight_memory_bytes + 100 * block)
    assert pool_blocks(model, gpu, utilisation=1) == 100
    assert pool_blocks(model, gpu, utilisation=1, block_size=32) == 50
    assert pool_blocks(model, replace(gpu, memory_bytes=gpu.memory_bytes - 1), utilisation=1) == 99
    assert pool_blocks(model, replace(gpu, memory_bytes=model.weight_memory_bytes), utilisation=1) == 0


def test_weights_that_do_not_fit_are_refused_with_what_is_missing():
    with pytest.raises(CardError, match="qwen3-omni does not fit h100 at utilisation 0.3: 5.5 GB are missing"):
        pool_blocks(model_card("qwen3-omni"), hardware_card("h100"), utilisation=0.3)


@pytest.mark.parametrize("change", [{"utilisation": 1.1}, {"utilisation": math.nan}, {"block_size": 0}])
def test_a_pool_of_nonsense_is_refused(change):
    with pytest.raises(CardError, match=f"{next(iter(change))} must be .*not"):
        pool_blocks(model_card("moshi"), hardware_card("h100"), **change)
