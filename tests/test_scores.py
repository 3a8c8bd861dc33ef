"""The scorer of chunks on a runner made up of rows: what is scored when, against which position."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kernels_patch.plugin import SCORES_KEY
from kernels_patch.positions import EXTRA_ARGS_KEY
from kernels_patch.scores import ChunkScorer, attach_scorer
from workbench.engine import EngineError
from workbench.engine.vllm import VllmEngine
from workbench.profiles import load_profile

VOCABULARY = 50
# The hidden state of each true position; the model's head is the identity.
STATES = torch.randn(400, VOCABULARY, generator=torch.Generator().manual_seed(1))
TEXT = torch.randint(VOCABULARY, (400,), generator=torch.Generator().manual_seed(2)).tolist()


class Runner:
    """What the scorer reads of a runner. ``step`` computes a session's next tokens, with one row of padding before."""

    def __init__(self) -> None:
        self.requests: dict[str, SimpleNamespace] = {}
        self.input_batch = SimpleNamespace(req_id_to_index={})
        self.query_start_loc = SimpleNamespace(np=None)
        self.model = SimpleNamespace(compute_logits=lambda rows: rows)
        self.scorer = ChunkScorer(self)

    def chunk(self, name, number, positions, spans=None, computed=0):
        """A chunk taken up: ``positions`` are the true ones of all resident tokens, the chunk's included."""
        extra = {} if number is None else {SCORES_KEY: number}
        if spans:
            extra[EXTRA_ARGS_KEY] = spans
        self.requests[name] = SimpleNamespace(
            sampling_params=SimpleNamespace(extra_args=extra),
            prompt_token_ids=[TEXT[p] for p in positions],
            positions=list(positions),
            num_computed_tokens=computed,
        )

    def step(self, **counts):
        rows, starts = [STATES[:1]], [1]
        for row, (name, count) in enumerate(counts.items()):
            request = self.requests[name]
            first = request.num_computed_tokens
            known = request.positions + [request.positions[-1] + 1 + i for i in range(first + count)]
            rows.append(STATES[known[first : first + count]])
            starts.append(starts[-1] + count)
            self.input_batch.req_id_to_index[name] = row
        self.query_start_loc.np = np.array(starts)
        self.scorer.score(torch.cat(rows), counts)
        for name, count in counts.items():
            self.requests[name].num_computed_tokens += count
        return {name: scores.tolist() for name, scores in self.scorer.take().items()}


def expected(positions):
    return pytest.approx([torch.log_softmax(STATES[p - 1], 0)[TEXT[p]].item() for p in positions], abs=1e-6)


def test_every_token_of_a_session_but_its_first_is_scored_once():
    runner = Runner()
    runner.chunk("a", 1, range(10))
    assert runner.step(a=10) == {"a": expected(range(1, 10))}
    # Two more tokens of the reply enter the cache; they are nobody's chunk.
    assert runner.step(a=1) == runner.step(a=1) == {}
    runner.chunk("a", 2, range(20), computed=12)
    assert runner.step(a=8) == {"a": expected(range(12, 20))}


def test_a_chunk_that_takes_several_steps_is_handed_over_whole_with_the_last():
    runner = Runner()
    runner.chunk("a", 1, range(6))
    runner.chunk("b", 1, range(4))
    assert runner.step(a=2, b=4) == {"b": expected(range(1, 4))}
    assert runner.step(b=1, a=3) == {}
    assert runner.step(a=1, b=1) == {"a": expected(range(1, 6))}
    runner.chunk("a", 2, range(9), computed=6)
    assert [runner.step(a=1) for _ in range(3)] == [{}, {}, {"a": expected(range(6, 9))}]


def test_after_an_eviction_the_predictor_is_the_position_before_though_its_index_is_another():
    runner = Runner()
    runner.chunk("a", 1, range(100))
    runner.step(a=100)
    kept = [*range(32), *range(64, 100)]
    runner.chunk("a", 2, kept + list(range(100, 110)), [(0, 0), (32, 32)], computed=len(kept))
    assert runner.step(a=4) == {}
    assert runner.step(a=6) == {"a": expected(range(100, 110))}


def test_what_a_preempted_session_computes_again_is_not_scored_again():
    runner = Runner()
    runner.chunk("a", 1, range(40))
    runner.step(a=40)
    runner.chunk("a", 2, range(60), computed=40)
    assert runner.step(a=5) == {}
    runner.requests["a"].num_computed_tokens = 0
    assert runner.step(a=30) == runner.step(a=15) == {}
    # Cut while it held no block: sent again, shorter, with the same number.
    kept = [*range(8), *range(16, 60)]
    runner.chunk("a", 2, kept, [(0, 0), (8, 8)])
    assert runner.step(a=20) == {}
    assert runner.step(a=32) == {"a": expected(range(40, 60))}
    runner.requests["a"].num_computed_tokens = 0
    # All of it once more, and one token of the reply.
    assert runner.step(a=53) == {}
    runner.chunk("a", 3, [*kept, *range(60, 64)], [(0, 0), (8, 8)], computed=53)
    assert runner.step(a=3) == {"a": expected(range(61, 64))}


def test_a_chunk_that_does_not_ask_is_not_scored_and_the_next_has_no_predictor_of_its_first_token():
    runner = Runner()
    runner.chunk("a", 1, range(5))
    runner.step(a=5)
    runner.chunk("a", None, range(8), computed=5)
    assert runner.step(a=3) == {}
    runner.chunk("a", 3, range(12), computed=8)
    assert runner.step(a=4) == {"a": expected(range(9, 12))}


def test_sessions_that_are_gone_are_forgotten_and_a_chunk_of_one_token_is_scored():
    runner = Runner()
    runner.chunk("a", 1, [0])
    runner.chunk("b", 1, [0, 1])
    assert runner.step(a=1, b=2) == {"a": [], "b": expected([1])}
    del runner.requests["b"]
    runner.chunk("a", 2, [0, 1], computed=1)
    assert runner.step(a=1) == {"a": expected([1])}
    assert runner.scorer._sessions.keys() == {"a"}


def test_the_hooks_are_put_in_once_and_hand_the_scores_over_with_the_outputs():
    runner = Runner()
    stock = SimpleNamespace(prompt_token_id_logprobs_dict={})
    runner._get_prompt_logprobs_dict = lambda hidden_states, counts: {"asked": counts}
    runner.sample_tokens = lambda grammar: stock
    attach_scorer(runner)
    hooks = runner._get_prompt_logprobs_dict, runner.sample_tokens
    attach_scorer(runner)
    assert (runner._get_prompt_logprobs_dict, runner.sample_tokens) == hooks
    runner.chunk("a", 1, range(3))
    runner.input_batch.req_id_to_index["a"], runner.query_start_loc.np = 0, np.array([0, 3])
    assert runner._get_prompt_logprobs_dict(STATES[:3], {"a": 3}) == {"asked": {"a": 3}}
    assert runner.sample_tokens(None) is stock
    assert stock.prompt_token_id_logprobs_dict["a"].tolist() == expected([1, 2])


def test_a_worker_that_scores_nothing_is_refused_at_the_handshake():
    engine = VllmEngine(
        load_profile("tiny"), scores=True, worker_extension="kernels_patch.worker.BoundedWorkerExtension"
    )

    async def answer(name):
        return {"workers": [{"runner": "r", "rotary_positions": 1, "threads": 1}]}

    engine._call = answer
    with pytest.raises(EngineError, match="scores no chunks") as error:
        asyncio.run(engine._shake_hands())
    assert "\n" not in str(error.value)
