"""This machine: its fingerprint, the floor under a step's time, and how other work on its cores is noticed."""

from __future__ import annotations

import json
import math
import os
from types import SimpleNamespace

import pytest

from workbench import _machine
from workbench._machine import Fingerprint, LoadWatch, _parameters, core_numbers, cpu_flags, cpu_model, machine_floor
from workbench.engine.model import model_folder, pool_bytes
from workbench.profiles import load_profile


def test_core_lists():
    assert core_numbers("0-2,5") == [0, 1, 2, 5]
    assert core_numbers("all") == sorted(os.sched_getaffinity(0))


def test_the_cpu_is_named_as_the_system_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr(_machine, "CPUINFO", tmp_path / "cpuinfo")
    assert (cpu_model(), cpu_flags()) == (os.uname().machine, set())
    first, second = "model name\t: Some CPU\nflags\t\t: avx2 avx512f\n", "model name\t: Other\nflags\t\t: other\n"
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{first}\nprocessor\t: 1\n{second}")
    assert (cpu_model(), cpu_flags()) == ("Some CPU", {"avx2", "avx512f"})
    (tmp_path / "cpuinfo").write_text("Features\t: asimd bf16\n")
    assert cpu_flags() == {"asimd", "bf16"}


def test_a_fingerprint_knows_what_a_profile_is_served_with():
    tiny = load_profile("tiny")
    here = Fingerprint.here(tiny)
    assert here.differences(Fingerprint.here(tiny)) == []
    other = Fingerprint.here(tiny.with_(dtype="bfloat16", block_size=64))
    assert here.differences(other) == ["dtype float32, not bfloat16", "block_size 32, not 64"]


def test_parameters_are_those_of_the_published_model():
    # SmolLM2-135M: 134,515,008 parameters, of which 35,136 are norms' (61 of 576); the embedding is the head.
    config = {
        "num_hidden_layers": 30,
        "hidden_size": 576,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "vocab_size": 49152,
    }
    assert sum(_parameters(config)) == 134_515_008 - 35_136


def test_the_floor_of_a_model_folder():
    profile = load_profile("tiny")
    folder = model_folder(profile.model, print)
    floor = machine_floor(folder, profile, cores=1)
    assert floor.weight_bytes == 4 * (floor.token_flops + floor.head_flops) / 2
    assert floor.kv_bytes * profile.block_size * (profile.pool_blocks + 1) == pool_bytes(folder, profile)
    assert floor.step_s(0, 1, 0) == pytest.approx(floor.weight_bytes / floor.bytes_per_s)
    # Scores and their sum over values take as many operations as q and the output have elements, each twice.
    config = json.loads((folder / "config.json").read_text())
    assert floor.pair_flops == 4 * config["num_hidden_layers"] * config["hidden_size"]


def test_a_model_that_its_config_does_not_describe_has_no_floor(tmp_path):
    (tmp_path / "config.json").write_text('{"text_config": {}}')
    assert machine_floor(tmp_path, load_profile("tiny"), cores=1) is None


class System:
    """A made-up machine of two cores, whose clock and counts of CPU time the test moves."""

    def __init__(self, monkeypatch) -> None:
        self.now, self.busy, self.own = 0.0, [0.0, 0.0], 0.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        monkeypatch.setattr("psutil.cpu_times", lambda percpu: [Times(busy) for busy in self.busy])
        monkeypatch.setattr("psutil.Process", lambda pid: SimpleNamespace(cpu_times=lambda: (self.own / 2, 0.0, 9.0)))

    def pass_time(self, seconds: float, own: float, other: float, core: int = 0) -> None:
        self.now += seconds
        self.own += own
        self.busy[core] += own + other


class Times(tuple):
    """As psutil counts a core's seconds: eight counts, of which idle and iowait are no work, then the guests'."""

    idle, iowait = 1000.0, 10.0

    def __new__(cls, busy: float):
        return super().__new__(cls, (busy, 0.0, 0.0, 1000.0, 10.0, 0.0, 0.0, 0.0, 5.0, 5.0))


def test_other_work_is_what_the_engine_and_this_process_did_not_do(monkeypatch):
    system = System(monkeypatch)
    watch = LoadWatch([1], [0, 1])
    system.pass_time(1.0, own=1.5, other=0.0)
    watch.mark()
    system.pass_time(1.0, own=1.0, other=0.5)
    watch.mark()
    assert watch.share(0.1, 0.9) == pytest.approx(0.0)
    assert watch.share(1.1, 1.2) == pytest.approx(0.25)
    assert watch.share(0.9, 1.1) == pytest.approx(0.25)
    assert watch.quiet(0.1, 0.9)
    assert not watch.quiet(0.9, 1.1)


def test_work_on_cores_that_are_not_the_engines_does_not_count(monkeypatch):
    system = System(monkeypatch)
    watch = LoadWatch([], [0])
    system.pass_time(1.0, own=0.0, other=1.0, core=1)
    watch.mark()
    assert watch.share(0.0, 1.0) == 0.0


def test_a_window_is_no_shorter_than_asked_for(monkeypatch):
    system = System(monkeypatch)
    watch = LoadWatch([], [0])
    system.pass_time(0.1, own=0.0, other=0.1)
    watch.mark(least_s=0.2)
    assert watch.share(0.0, 0.1) == math.inf
    system.pass_time(0.1, own=0.0, other=0.0)
    watch.mark(least_s=0.2)
    assert watch.share(0.0, 0.1) == pytest.approx(0.5)


def test_what_was_not_watched_is_not_quiet(monkeypatch):
    system = System(monkeypatch)
    system.now = 5.0
    watch = LoadWatch([], [0])
    assert watch.share(4.0, 6.0) == math.inf
