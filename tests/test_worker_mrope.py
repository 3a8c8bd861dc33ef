"""M-RoPE positions of a session that lost tokens are its tokens' places in the sequence, in all three rows."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm.model_executor.models.qwen2_5_omni_thinker import Qwen2_5OmniThinkerForConditionalGeneration as Thinker25
from vllm.model_executor.models.qwen3_omni_moe_thinker import Qwen3OmniMoeThinkerForConditionalGeneration as Thinker3
from vllm.multimodal.inputs import (
    MultiModalBatchedField,
    MultiModalFeatureSpec,
    MultiModalFieldElem,
    MultiModalKwargsItem,
    PlaceholderRange,
)
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from kernels_patch.positions import EXTRA_ARGS_KEY, cut, follow
from kernels_patch.worker import _true_mrope_positions


def session(tokens: int, spans=None):
    """A runner's state of a session; ``spans`` as they travel with its chunk, None where none do."""
    extra = None if spans is None else {EXTRA_ARGS_KEY: spans}
    return SimpleNamespace(
        prompt_token_ids=[7] * tokens,
        prompt_embeds=None,
        mm_features=[],
        sampling_params=SimpleNamespace(extra_args=extra),
        mrope_positions=None,
        mrope_position_delta=None,
    )


def never(state):
    raise AssertionError("the runner looks at the whole prompt")


@pytest.mark.parametrize("extra", [None, {}, {"kv_bound": {"window": 64}}])
def test_a_session_that_lost_nothing_is_the_runners_own_to_do(extra):
    asked, state = [], session(9)
    state.sampling_params.extra_args = extra
    _true_mrope_positions(asked.append)(state)
    assert asked == [state] and state.mrope_positions is None
    state.sampling_params = None
    _true_mrope_positions(asked.append)(state)
    assert len(asked) == 2


SPANS = {
    "cut behind 4": cut([(0, 0)], 4, 8),
    "cut from 0": cut([(0, 0)], 0, 12),
    "cut twice": cut(cut([(0, 0)], 4, 8), 8, 4),
    "moved": follow(cut([(0, 0)], 4, 8), 4),
}
TRUE = {
    "cut behind 4": [0, 1, 2, 3, *range(12, 40)],
    "cut from 0": list(range(12, 44)),
    "cut twice": [0, 1, 2, 3, 12, 13, 14, 15, *range(20, 44)],
    "moved": [8, 9, 10, 11, *range(12, 40)],
}


@pytest.mark.parametrize("what", SPANS)
def test_of_one_that_did_they_are_made_of_its_offsets(what):
    state = session(20, SPANS[what])
    _true_mrope_positions(never)(state)
    assert state.mrope_positions.shape == (3, 20) and state.mrope_positions.dtype == torch.int64
    assert all(row == TRUE[what][:20] for row in state.mrope_positions.tolist())
    assert state.mrope_position_delta == SPANS[what][-1][1]


class Runner:
    calculate = GPUModelRunner._calc_mrope_positions

    def __init__(self, state, computed: int):
        out = torch.full((3, 64), -1, dtype=torch.int64)
        self.mrope_positions = SimpleNamespace(cpu=out, np=out.numpy())
        self.requests = {"a": state}
        self.input_batch = SimpleNamespace(req_ids=["a"], num_computed_tokens_cpu=np.array([computed]))


@pytest.mark.parametrize("what", SPANS)
@pytest.mark.parametrize(("computed", "count"), [(0, 20), (3, 9), (12, 8), (19, 1), (17, 6), (20, 1), (24, 3)])
def test_vllm_makes_of_them_the_true_positions_of_prompt_and_reply(what, computed, count):
    state = session(20, SPANS[what])
    _true_mrope_positions(never)(state)
    runner = Runner(state, computed)
    runner.calculate(SimpleNamespace(num_scheduled_tokens={"a": count}))
    for row in runner.mrope_positions.cpu.tolist():
        assert row[:count] == TRUE[what][computed : computed + count] and set(row[count:]) == {-1}


def test_what_they_cost_does_not_grow_with_age():
    """One row is made, of resident tokens; the other two are the same memory."""
    for age in (100, 10**9):
        state = session(20, cut([(0, 0)], 4, age))
        _true_mrope_positions(never)(state)
        assert state.mrope_positions.untyped_storage().nbytes() == 20 * 8
        assert state.mrope_positions[:, -1].tolist() == [19 + age] * 3


# -- what that rests on ----------------------------------------------------------------------------------------------


class Light:
    """A thinker without weights."""

    config = SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2), position_id_per_seconds=13)


def light(thinker):
    class Model(Light):
        get_mrope_input_positions = thinker.get_mrope_input_positions
        iter_mm_features = thinker.iter_mm_features
        _compute_audio_token_count = thinker._compute_audio_token_count
        _get_audio_for_video_mapping = thinker._get_audio_for_video_mapping

    return Model()


def heard(model, chunks, close: int = 1):
    """A prompt of ``chunks`` (mel frames of the audio, tokens before it), each with ``close`` tokens behind it."""
    features, end = [], 0
    for frames, before in chunks:
        count = model._compute_audio_token_count(frames)
        item = MultiModalFieldElem(torch.tensor(frames), MultiModalBatchedField(keep_on_cpu=True))
        features.append(
            MultiModalFeatureSpec(
                MultiModalKwargsItem({"audio_feature_lengths": item}),
                "audio",
                f"audio {end}",
                PlaceholderRange(end + before, count),
            )
        )
        end += before + count + close
    return [7] * end, features


CHUNKS = [(80, 4), (100, 1), (37, 9), (200, 1), (10, 2)]


@pytest.mark.parametrize("thinker", [Thinker25, Thinker3])
@pytest.mark.parametrize("close", [1, 2, 7])
def test_audio_alone_stands_in_all_three_rows_where_it_stands_in_the_sequence(thinker, close):
    model = light(thinker)
    tokens, features = heard(model, CHUNKS, close)
    positions, delta = model.get_mrope_input_positions(tokens, features)
    assert positions.dtype == torch.int64 and delta == 0
    assert all(row == list(range(len(tokens))) for row in positions.tolist())


def test_a_prompt_that_ends_in_audio_is_what_qwen3_cannot_place():
    tokens, features = heard(light(Thinker3), [(100, 4)], close=0)
    with pytest.raises(RuntimeError, match="length mismatch"):
        light(Thinker3).get_mrope_input_positions(tokens, features)
