"""The worker of the compacting engine, apart because only the worker's process may import vLLM's workers."""

from __future__ import annotations

from vllm.platforms import current_platform

from tests.engine.compaction import compacting_backend, compacting_specs

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
else:
    from vllm.v1.worker.gpu_worker import Worker


class CompactingWorker(Worker):
    def load_model(self, *args, **kwargs) -> None:
        super().load_model(*args, **kwargs)
        for layer in self.model_runner.compilation_config.static_forward_context.values():
            layer.attn_backend = compacting_backend(layer.attn_backend, self.model_runner)

    def get_kv_cache_spec(self):
        return compacting_specs(super().get_kv_cache_spec())
