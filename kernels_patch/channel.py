"""The plugin's own channel into the engine: utilities that the front end calls by name.

``AsyncLLM.engine_core.call_utility_async(name, *args)`` runs a method of EngineCore between two steps. Stock vLLM has
none for what a session's owner needs to know, so the plugin adds these to the class.
"""

from __future__ import annotations

from kernels_patch.guard import PluginError


def metronome_attach(self) -> dict:
    """Shake hands: hook every worker's positions and say who serves. Raises PluginError on a stock scheduler."""
    from kernels_patch.guard import check_version
    from kernels_patch.scheduler import BoundedScheduler

    if not isinstance(self.scheduler, BoundedScheduler):
        raise PluginError(f"the engine runs {type(self.scheduler).__name__}, not the bounded scheduler")
    workers = self.model_executor.collective_rpc("metronome_attach")
    config = self.vllm_config.model_config.hf_text_config
    tables = [w["rotary_positions"] for w in workers] + [getattr(config, "max_position_embeddings", None)]
    known = [rows for rows in tables if rows is not None]
    if not known:
        raise PluginError("this model does not say where its positions end: bounded sessions could run past it unseen")
    stay = next((why for w in workers if (why := w.get("sinks_stay"))), None)
    computes = all(w.get("computes", True) for w in workers)
    self.scheduler.attach(max_positions=min(known), workers_compute=computes, sinks_stay=stay)
    return {
        "vllm": check_version(),
        "scheduler": f"{type(self.scheduler).__module__}.{type(self.scheduler).__name__}",
        "workers": workers,
        "block_size": self.scheduler.block_size,
        "blocks_total": self.scheduler.blocks_total,
        "max_model_len": self.scheduler.max_model_len,
        "max_positions": self.scheduler.max_positions,
        "vocab_size": self.vllm_config.model_config.get_vocab_size(),
    }


def metronome_snapshot(self, request_ids: list[str] | None = None) -> dict:
    """The scheduler's own account of itself; see BoundedScheduler.snapshot."""
    return self.scheduler.snapshot(request_ids)


def metronome_set_bound(self, request_id: str, bound: dict | None) -> str:
    """Change a session's bound from outside its stream of chunks; see BoundedScheduler.set_bound."""
    return self.scheduler.set_bound(request_id, bound)


def metronome_media(self) -> dict[str, int]:
    """Audio features that the sessions hold; encoder outputs cached, by the scheduler's and by the worker's books.

    ``encoder_cache``: the most that the scheduler keeps, in audio tokens.
    """
    scheduler = self.scheduler
    return {
        "features": sum(len(request.mm_features) for request in scheduler.requests.values()),
        "scheduler_entries": len(scheduler.encoder_cache_manager.cached),
        "encoder_cache": scheduler.encoder_cache_manager.cache_size,
        "worker_entries": max(self.model_executor.collective_rpc("metronome_encoder_entries")),
    }


def metronome_record(self, on: bool) -> None:
    """Switch the recording of engine steps on or off; see StepRecorder."""
    from kernels_patch.steps import StepRecorder

    if not hasattr(self, "metronome_recorder"):
        self.metronome_recorder = StepRecorder(self.scheduler)
    if on:
        self.metronome_recorder.start()
    else:
        self.metronome_recorder.stop()


def metronome_steps(self) -> list[tuple[float, float, int, int, int, int]]:
    """The steps recorded since the last call, oldest first; [] when none was ever recorded."""
    return self.metronome_recorder.drain() if hasattr(self, "metronome_recorder") else []


def add_utilities() -> None:
    """Put the utilities on EngineCore; doing it again changes nothing."""
    from vllm.v1.engine.core import EngineCore

    asked = (metronome_attach, metronome_snapshot, metronome_set_bound, metronome_media)
    for utility in (*asked, metronome_record, metronome_steps):
        setattr(EngineCore, utility.__name__, utility)
