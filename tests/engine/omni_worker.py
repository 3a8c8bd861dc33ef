"""A worker that also keeps what each scheduled token's embedding was, and counts what it encodes."""

from __future__ import annotations

import torch

from kernels_patch.worker import BoundedWorkerExtension


class RecordingWorker(BoundedWorkerExtension):
    """``metronome_embeddings`` hands over, per request, the embeddings of its tokens in the order of computation."""

    def metronome_attach(self) -> dict:
        """As the parent's."""
        hello, runner = super().metronome_attach(), self.model_runner
        if not hasattr(runner, "metronome_recorded"):
            runner.metronome_recorded, runner.metronome_features = {}, 0
            model, gather = runner.model, runner._gather_mm_embeddings
            embed, encode = model.embed_input_ids, model.embed_multimodal
            counts: dict[str, int] = {}

            def gather_and_count(scheduler_output, *args, **kwargs):
                # In the order of the batch, which is that of the embeddings made next.
                counts.clear()
                for request_id in runner.input_batch.req_ids:
                    counts[request_id] = scheduler_output.num_scheduled_tokens[request_id]
                return gather(scheduler_output, *args, **kwargs)

            def embed_and_keep(*args, **kwargs):
                embedded = embed(*args, **kwargs)
                parts = embedded.clone().split(list(counts.values()))
                for request_id, part in zip(counts, parts, strict=True):
                    runner.metronome_recorded.setdefault(request_id, []).append(part)
                return embedded

            def encode_and_count(**kwargs):
                outputs = encode(**kwargs)
                runner.metronome_features += len(outputs)
                return outputs

            runner._gather_mm_embeddings = gather_and_count
            model.embed_input_ids, model.embed_multimodal = embed_and_keep, encode_and_count
        return hello

    def metronome_embeddings(self) -> dict[str, list]:
        """Request id -> embeddings (tokens, width), float32, of all steps since the last call."""
        recorded, self.model_runner.metronome_recorded = self.model_runner.metronome_recorded, {}
        return {request_id: torch.cat(parts).float().tolist() for request_id, parts in recorded.items()}

    def metronome_forget(self) -> None:
        """Let go of the embeddings so far."""
        self.model_runner.metronome_recorded = {}

    def metronome_encoded(self) -> int:
        """Features encoded since the engine began."""
        return self.model_runner.metronome_features
