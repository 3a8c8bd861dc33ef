"""The executor of a simulated engine: no weights, a token for whoever is owed one, the seconds that a step takes."""

from __future__ import annotations

import math

import numpy as np
import torch
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import ModelRunnerOutput

TOKEN = 1  # what the simulated model says; its words mean nothing
EOS = 0
_ROOM = 1 << 62  # bytes: the profile fixes the pool, not the memory


class _Done:
    """A future that is done, without the locks of a real one."""

    __slots__ = ("_output",)

    def __init__(self, output) -> None:
        self._output = output

    def result(self):
        return self._output


class SimulatedExecutor(Executor):
    """Runs what the scheduler schedules in no real time. ``last_step_s`` is the virtual duration of the last step.

    Set before the first step: ``requests``, the scheduler's own dict of requests; ``costs``, whose
    ``step_s(prefill_tokens, decoding, context_tokens, encoder_s, prefill_pairs)`` gives a step's seconds;
    ``step_load``, which reads all but encoder_s off a scheduler's output; ``audio_s_per_token``, the audio of one prefilled token;
    ``eos_chance``, the probability that an owed token is the end of the reply; ``step_noise``, the sigma of a
    log-normal factor of mean 1 on each step; ``slowdown``, a fixed factor on all; ``seed``.
    """

    def _init_executor(self) -> None:
        self.last_step_s = 0.0
        self.max_positions = self.model_config.hf_text_config.max_position_embeddings

    def prepare(self, requests, costs, step_load, audio_s_per_token, eos_chance, step_noise, slowdown, seed) -> None:
        self.requests, self.costs, self.step_load = requests, costs, step_load
        self.audio_s_per_token, self.eos_chance, self.step_noise = audio_s_per_token, eos_chance, step_noise
        self.slowdown = slowdown
        # A stream for each source, so that switching one on does not change what the other draws.
        self._eos_draws, self._noise_draws = np.random.default_rng([seed, 1]), np.random.default_rng([seed, 2])

    def execute_model(self, scheduler_output, non_block: bool = False):
        output = self._run(scheduler_output)
        return _Done(output) if non_block else output

    def _run(self, scheduler_output) -> ModelRunnerOutput:
        scheduled = scheduler_output.num_scheduled_tokens
        self.last_step_s = self._seconds(scheduler_output) if scheduled else 0.0
        requests = self.requests
        # The scheduler has counted this step already: who still prefills after it is not given a token yet.
        sampled = [[] if requests[session].is_prefill_chunk else [TOKEN] for session in scheduled]
        if self.eos_chance:
            for tokens, draw in zip(sampled, self._eos_draws.random(len(sampled)), strict=True):
                if tokens and draw < self.eos_chance:
                    tokens[0] = EOS
        sessions = list(scheduled)
        return ModelRunnerOutput(sessions, dict(zip(sessions, range(len(sessions)), strict=True)), sampled)

    def _seconds(self, scheduler_output) -> float:
        prefill, decoding, context, pairs = self.step_load(scheduler_output, self.requests)
        seconds = self.slowdown * self.costs.step_s(prefill, decoding, context, prefill * self.audio_s_per_token, pairs)
        if self.step_noise:
            sigma = self.step_noise
            seconds *= math.exp(sigma * self._noise_draws.standard_normal() - sigma * sigma / 2)
        return seconds

    # -- what an engine asks of its workers as it starts ------------------------------------------------------------

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None, non_block=False):
        if method == "metronome_attach":
            name = type(self).__name__
            return [{"runner": name, "rotary_positions": self.max_positions, "threads": None, "computes": False}]
        raise NotImplementedError(f"a simulated worker has no {method!r}")

    def get_kv_cache_specs(self):
        # One layer stands for all: the scheduler counts tokens and blocks, whatever their bytes.
        spec = FullAttentionSpec(
            block_size=self.cache_config.block_size, num_kv_heads=1, head_size=64, dtype=torch.float32
        )
        return [{"layer": spec}]

    def determine_available_memory(self) -> list[int]:
        return [_ROOM]

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        return [["NHD"]]

    def set_kv_cache_layout(self, layout_name: str) -> None:
        """Nothing is laid out."""

    def initialize_from_config(self, kv_cache_configs) -> None:
        """There is no cache to allocate."""

    def compile_or_warm_up_model(self) -> None:
        """There is no model to warm up."""

    def check_health(self) -> None:
        """It has no process that could die."""
