"""The log-probability of every token that is fed to a session, chunk by chunk, under the cache that the session has.

vLLM scores the prompt of a new request and no later chunk of a session. Here the runner scores each chunk while it is
prefilled: the logits of a position against the token that follows it. The first token of a chunk is predicted by the
last position that the session kept, computed in an earlier step; so each step puts its last hidden state by. That state
saw what was resident when it was computed, before the boundary's eviction, and the token then sampled from it, which
the boundary dropped, has no part in it. A token is scored once, the first time its predictor is there: what a
preemption makes the engine compute again is not scored again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from kernels_patch.plugin import SCORES_KEY
from kernels_patch.positions import EXTRA_ARGS_KEY, Spans, offset_at
from kernels_patch.worker import BoundedWorkerExtension

UNSHIFTED: Spans = [(0, 0)]


class ScoringWorkerExtension(BoundedWorkerExtension):
    """The bounded worker that also scores the chunks which ask for it; the bounded worker itself has no such hook."""

    def metronome_attach(self) -> dict:
        """As the parent's, with ``scores``: True."""
        hello = super().metronome_attach()
        attach_scorer(self.model_runner)
        return {**hello, "scores": True}


def attach_scorer(runner) -> None:
    """Let a V1 ``runner`` score chunks, once: their scores leave with the outputs of the step that ends their prefill.

    They go the way of vLLM's own scores of fixed tokens, which the V1 runner leaves empty.
    """
    if hasattr(runner, "metronome_scorer"):
        return
    scorer = runner.metronome_scorer = ChunkScorer(runner)
    prompt_logprobs, sample_tokens = runner._get_prompt_logprobs_dict, runner.sample_tokens

    def score_then_prompt_logprobs(hidden_states, num_scheduled_tokens):
        scorer.score(hidden_states, num_scheduled_tokens)
        return prompt_logprobs(hidden_states, num_scheduled_tokens)

    def sample_then_hand_over(*args, **kwargs):
        output = sample_tokens(*args, **kwargs)
        if scorer.finished:
            output.prompt_token_id_logprobs_dict.update(scorer.take())
        return output

    runner._get_prompt_logprobs_dict, runner.sample_tokens = score_then_prompt_logprobs, sample_then_hand_over


@dataclass
class _Scored:
    """A session's newest chunk: ``next``, ``end``: the true positions of its next token to score and past its end.

    ``last``: the true position and hidden state of the last position of the session's last step.
    """

    chunk: int
    next: int = 0
    end: int = 0
    scores: list[float] | None = field(default_factory=list)
    last: tuple[int, torch.Tensor] | None = None


class ChunkScorer:
    """Scores the tokens of the chunks whose ``extra_args`` carry SCORES_KEY, the number of the chunk in its session.

    Positions are true ones, for the indices of a session shrink whenever it loses tokens, also within a chunk.
    """

    def __init__(self, runner) -> None:
        self._runner = runner
        self._sessions: dict[str, _Scored] = {}
        self.finished: dict[str, torch.Tensor] = {}

    def take(self) -> dict[str, torch.Tensor]:
        """The chunks whose prefill ended in this step: request id -> float32 scores, one per token with a predictor."""
        finished, self.finished = self.finished, {}
        return finished

    def score(self, hidden_states: torch.Tensor, num_scheduled_tokens: dict[str, int]) -> None:
        """``hidden_states``: of this step's tokens in batch order (tokens, width). Call it once a step."""
        for gone in self._sessions.keys() - self._runner.requests.keys():
            del self._sessions[gone]
        for request_id, count in num_scheduled_tokens.items():
            params = self._runner.requests[request_id].sampling_params
            asked = (params.extra_args or {}).get(SCORES_KEY) if params is not None else None
            if asked is None:
                self._sessions.pop(request_id, None)
                continue
            row = self._runner.input_batch.req_id_to_index[request_id]
            begin = int(self._runner.query_start_loc.np[row])
            spans = params.extra_args.get(EXTRA_ARGS_KEY) or UNSHIFTED
            self._score(request_id, asked, spans, hidden_states[begin : begin + count])

    def _score(self, request_id: str, chunk: int, spans: Spans, hidden: torch.Tensor) -> None:
        request = self._runner.requests[request_id]
        first, tokens = request.num_computed_tokens, request.prompt_token_ids
        session = self._sessions.get(request_id)
        if session is None or session.chunk != chunk:
            session = self._take_up(request_id, chunk, first + offset_at(spans, first), len(tokens) - first)
        # Nothing of the newest chunk or after it is ever cut, so one offset holds from its start on.
        offset, end = spans[-1][1], first + len(hidden)
        if session.scores is not None:
            target, targets_end = session.next - offset, min(session.end - offset, end + 1)
            if target < targets_end:
                rows = hidden[max(target - 1 - first, 0) : targets_end - 1 - first]
                if target == first:
                    rows = torch.cat([session.last[1][None], rows])
                session.scores += self._logprobs(rows, tokens[target:targets_end])
                session.next = targets_end + offset
            if end >= session.end - offset:
                self.finished[request_id] = torch.tensor(session.scores, dtype=torch.float32)
                session.scores = None
        # A copy: the runner may use the same memory for the next step.
        session.last = end - 1 + offset_at(spans, end - 1), hidden[-1].clone()

    def _take_up(self, request_id: str, chunk: int, begin: int, count: int) -> _Scored:
        old = self._sessions.get(request_id)
        last = old.last if old is not None else None
        predicted = last is not None and last[0] == begin - 1
        session = _Scored(chunk, begin if predicted else begin + 1, begin + count, last=last)
        self._sessions[request_id] = session
        return session

    def _logprobs(self, rows: torch.Tensor, tokens: list[int]) -> list[float]:
        logits = self._runner.model.compute_logits(rows).float()
        targets = torch.tensor(tokens, device=logits.device)[:, None]
        return (logits.gather(1, targets)[:, 0] - logits.logsumexp(dim=1)).tolist()
