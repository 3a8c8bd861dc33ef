"""The roofline of a step: what it counts, and that it stays a bound."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.cards import CardError, hardware_card, model_card
from workbench.roofline import Roofline

MODELS = ("qwen3-omni", "qwen2.5-omni", "minicpm-o-4.5", "moshi", "smollm2")
GPUS = ("rtx-pro-6000", "h100", "h200", "b200")

counts = st.integers(0, 20) | st.integers(0, 10_000)
many = st.just(0) | st.integers(0, 10**6)
loads = st.tuples(counts, counts, many, st.just(0.0) | st.floats(0, 100), many)
# Bandwidths that no GPU has, for of two costs the larger must be taken on any.
bandwidths = st.sampled_from([1e11, 1e12, 9e14])
gpus = st.builds(replace, st.sampled_from([*map(hardware_card, GPUS)]), bandwidth_bytes_per_s=bandwidths)
rooflines = st.builds(Roofline, st.sampled_from([*map(model_card, MODELS)]), gpus)


def test_one_decode_step_of_a_dense_model_reads_its_weights_and_its_context():
    model, gpu = model_card("qwen2.5-omni"), hardware_card("h100")
    read = model.active_parameters * 2 + 1000 * model.kv_bytes_per_token
    assert Roofline(model, gpu).step_bytes(0, 1, 1000) == read
    assert Roofline(model, gpu).step_s(0, 1, 1000) == pytest.approx(read / 3.35e12)


def test_a_long_prefill_is_bound_by_operations_and_has_no_head():
    model, gpu, pairs = model_card("qwen2.5-omni"), hardware_card("h100"), 8192 * 8193 // 2
    operations = 2 * (model.active_parameters - model.head_parameters) * 8192 + 4 * 28 * 3584 * pairs
    assert Roofline(model, gpu).step_operations(8192, 0, 8192, prefill_pairs=pairs) == operations
    assert Roofline(model, gpu).step_bytes(8192, 0, 0) == 2 * (model.active_parameters - model.head_parameters)
    assert Roofline(model, gpu).step_s(8192, 0, 8192, 0.0, pairs) == pytest.approx(operations / 989.5e12)


sequences = st.lists(st.tuples(st.integers(0, 3000), st.integers(2, 200)), max_size=5)  # (computed, scheduled) tokens


@given(rooflines, sequences, st.lists(st.integers(1, 3000), max_size=5))
def test_attention_has_no_fewer_pairs_than_are_counted_and_at_most_twice_as_many(bound, prefills, decoding):
    tokens, pairs = sum(n for _, n in prefills), sum(n * c + n * (n + 1) // 2 for c, n in prefills)
    context = sum(c + n for c, n in prefills) + sum(decoding)
    load, model = (tokens, len(decoding), context), bound.model
    attention = bound.step_operations(*load, prefill_pairs=pairs) - bound.step_operations(tokens, len(decoding), 0)
    counted = round(attention / (4 * model.layers * model.heads * model.head_dim))
    computed = pairs + sum(decoding)
    assert computed / 2 <= counted <= computed
    assert counted == computed or (prefills and decoding)


def test_a_step_touches_the_experts_of_its_tokens():
    model, gpu = model_card("qwen3-omni"), hardware_card("h100")
    touched = {1: 8 / 128, 2: 8 / 128 * (2 - 8 / 128), 10**6: 1}
    for tokens, share in touched.items():
        read = model.shared_parameters + share * model.expert_parameters
        assert Roofline(model, gpu).step_bytes(0, tokens, 0) == pytest.approx(read)


def test_the_rate_follows_the_width_of_the_weights():
    gpu = hardware_card("h100")
    rates = [Roofline(model_card(m), gpu).operations_per_s for m in ("qwen3-omni", "moshi", "smollm2")]
    assert rates == [gpu.fp8_flops, gpu.bf16_flops, gpu.bf16_flops]


def test_an_encoder_counts_only_inside_the_step():
    gpu, inside = hardware_card("h100"), model_card("qwen2.5-omni")
    reading = inside.encoder_parameters * 2 / 3.35e12
    assert Roofline(inside, gpu).step_s(0, 0, 0, 1e-9) == pytest.approx(reading)
    working = 2 * inside.encoder_parameters * 50 * 1000 / 989.5e12
    assert Roofline(inside, gpu).step_s(0, 0, 0, 1000) == pytest.approx(working)
    assert Roofline(model_card("moshi"), gpu).step_s(0, 0, 0, 1000) == 0


@pytest.mark.parametrize("load", [(-1, 0, 0), (0, 0, math.nan), (0, 1, 0, math.inf), (0, 1, 0, 0, -1)])
def test_a_load_of_nonsense_is_refused(load):
    with pytest.raises(CardError, match="must be 0 or more, not"):
        Roofline(model_card("moshi"), hardware_card("h100")).step_s(*load)


@settings(max_examples=300, deadline=None)
@given(rooflines, loads)
def test_the_additive_model_never_lies_below_the_roofline(bound, load):
    cost = bound.coefficients()
    terms = [cost.pop(name) for name in ("t0_s", "prefill_s", "decode_s", "context_s", "encoder_s", "pair_s")]
    additive = sum(term * count for term, count in zip(terms, (1, *load), strict=True))
    assert not cost and additive >= bound.step_s(*load) * (1 - 1e-12)
    assert bound.step_s(0, 0, 0) == 0


@settings(deadline=None)
@given(rooflines, loads, loads)
def test_a_larger_step_takes_no_less(bound, load, more):
    larger = [a + b for a, b in zip(load, more, strict=True)]
    assert bound.step_s(*larger) >= bound.step_s(*load) * (1 - 1e-12)
