"""The least time of an engine step of a model on a GPU, from their cards."""

from __future__ import annotations

import math
from dataclasses import dataclass

from workbench.cards import CardError, HardwareCard, ModelCard


@dataclass(frozen=True)
class Roofline:
    """Bytes and operations of one engine step, and the least time that a GPU can take for them.

    It is the hardware's bound: real kernels are slower, so latencies made from it are lower bounds. Where a count
    depends on more than is passed in, the smaller one is taken: only decoded tokens need the head, of the pairs of
    prefill and of decode the more numerous count, activations and writes are free. Overstated may still be experts
    (real routing is less even than uniform, so it touches fewer) and small weights, which a cache may keep.
    """

    model: ModelCard
    hardware: HardwareCard

    @property
    def operations_per_s(self) -> float:
        """The GPU's dense FP8 rate for weights of one byte, else its BF16 rate, which bounds a 32-bit model too."""
        return self.hardware.fp8_flops if self.model.weight_bytes == 1 else self.hardware.bf16_flops

    def step_bytes(self, prefill_tokens: int, decoding: int, context_tokens: int, encoder_s: float = 0.0) -> float:
        """Bytes read, arguments as in ``step_s``: weights, KV, and the encoder's weights when it runs.

        T tokens are expected to touch a share 1 - (1 - k / E) ** T of the experts, under uniform routing.
        """
        model, tokens = self.model, prefill_tokens + decoding
        weights = model.step_encoder_parameters if encoder_s else 0
        if tokens:
            missed = (1 - model.experts_per_token / max(1, model.experts)) ** tokens
            head = 0 if decoding else model.head_parameters
            weights += model.shared_parameters - head + model.expert_parameters * (1 - missed)
        return weights * model.weight_bytes + model.kv_bytes_per_token * context_tokens

    def step_operations(
        self, prefill_tokens: int, decoding: int, context_tokens: int, encoder_s: float = 0.0, prefill_pairs: int = 0
    ) -> float:
        """Operations: 2 per parameter and token, and attention's. Arguments as in ``step_s``.

        Attention takes 4 x layers x heads x head_dim for each query-key pair: q.k and p.v, a multiply and an add each.
        A decoding sequence has as many pairs as context tokens, a prefilling one no fewer. So the larger of
        prefill_pairs and context_tokens is a floor: exact for a step that only prefills or only decodes, and no less
        than half of the pairs of a mixed one, where it is not known which of the context tokens decode.
        """
        model, tokens = self.model, prefill_tokens + decoding
        language = model.active_parameters * tokens - model.head_parameters * prefill_tokens
        encoder = model.step_encoder_parameters * model.encoder_positions_per_s * encoder_s
        pairs = max(prefill_pairs, context_tokens)
        return 2 * (language + encoder) + 4 * model.layers * model.heads * model.head_dim * pairs

    def step_s(
        self, prefill_tokens: int, decoding: int, context_tokens: int, encoder_s: float = 0.0, prefill_pairs: int = 0
    ) -> float:
        """Seconds a step takes at least: the longer of reading and reckoning (the roofline model). 0 for an empty step.

        prefill_tokens: prompt tokens of the step. decoding: sequences that decode one token. context_tokens: KV tokens
        that attention reads, the step's own included, summed over the scheduled sequences. encoder_s: seconds of audio
        encoded. prefill_pairs: query-key pairs of the prefilling sequences; left out, the bound is lower. Raises
        CardError for a count below 0 or not finite.
        """
        load = (prefill_tokens, decoding, context_tokens, encoder_s, prefill_pairs)
        if not all(0 <= count < math.inf for count in load):
            names = "prefill_tokens, decoding, context_tokens, encoder_s and prefill_pairs"
            raise CardError(f"{names} must be 0 or more, not {load}")
        read_s = self.step_bytes(*load[:4]) / self.hardware.bandwidth_bytes_per_s
        return max(read_s, self.step_operations(*load) / self.operations_per_s)

    def coefficients(self) -> dict[str, float]:
        """An additive model that never lies below ``step_s``, for use where no calibration on the GPU exists.

        t0_s + prefill_s x prefill_tokens + decode_s x decoding + context_s x context_tokens + encoder_s x seconds of
        audio + pair_s x prefill_pairs. t0_s reads all weights, every other term is the larger of its two costs. A real
        step may take longer.
        """
        model, rate, bandwidth = self.model, self.operations_per_s, self.hardware.bandwidth_bytes_per_s
        return {
            "t0_s": model.step_parameters * model.weight_bytes / bandwidth,
            "prefill_s": self.step_operations(1, 0, 0) / rate,
            "decode_s": self.step_operations(0, 1, 0) / rate,
            "context_s": max(model.kv_bytes_per_token / bandwidth, self.step_operations(0, 0, 1) / rate),
            "encoder_s": self.step_operations(0, 0, 0, 1.0) / rate,
            "pair_s": self.step_operations(0, 0, 0, prefill_pairs=1) / rate,
        }
