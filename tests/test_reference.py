"""The product's reference beside the two that the engine's tests are measured by, each written without the others."""

from __future__ import annotations

import random

import pytest
import torch

from tests.engine import reference as masked
from tests.engine import unrotated
from tests.engine.driver import Frame
from workbench.bound import KVBound
from workbench.reference import NoReference, Reference
from workbench.weights import model_path


@pytest.fixture(scope="module")
def folder():
    return model_path("tiny")


@pytest.fixture(scope="module")
def reference(folder):
    return Reference(folder)


@pytest.mark.parametrize(
    "bound", [None, KVBound(64, 0), KVBound(64, 4), KVBound(64, 4, moving=True), KVBound(96, 40, moving=True)]
)
def test_the_reference_agrees_with_those_of_the_engine_s_tests(folder, reference, bound):
    draw = random.Random(1)
    frames = [Frame(some(draw, 29), bound, some(draw, 4)) for _ in range(16)]
    got = torch.tensor(reference.logprobs(frames, 32))
    other = torch.tensor(unrotated.reference_logprobs(unrotated.Unrotated(folder), frames, 32))
    assert (got - other).abs().max() < 1e-4
    if bound is None or not bound.moving:
        other = torch.stack(masked.reference_logprobs(masked.load_reference(folder), frames, 32))
        assert (got - other).abs().max() < 1e-4


def test_a_rounded_reference_is_another_model_and_still_float32(folder, reference):
    frames = [Frame([5, 6, 7], None, [8])]
    (exact,), (rounded,) = reference.logprobs(frames, 32), Reference(folder, "bfloat16").logprobs(frames, 32)
    assert exact != rounded
    assert all(torch.tensor(value, dtype=torch.bfloat16).item() != value for value in rounded)


def test_a_folder_without_a_model_is_one_line(tmp_path):
    with pytest.raises(NoReference, match=r"^transformers cannot load .*: give another model$"):
        Reference(tmp_path)


def some(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(2000) for _ in range(count)]
