"""sim: profiles: which pool and which step times they stand for, and what is refused."""

from __future__ import annotations

import pytest

from tests.made_up import made_up
from workbench.cards import CardError, hardware_card, model_card
from workbench.costs import CostError
from workbench.profiles import ProfileError, load_profile
from workbench.roofline import Roofline
from workbench.simulation import costs_of, simulated


def test_a_model_on_hardware_gets_the_pool_that_its_weights_leave():
    profile, card = load_profile("sim:qwen3-omni@h200"), model_card("qwen3-omni")
    assert (profile.executor, profile.frame_budget_s, profile.frame_tokens) == ("simulated", 2.0, 26)
    assert profile.growth == card.growth_per_frame
    room = hardware_card("h200").memory_bytes - card.weight_memory_bytes
    assert 0.8 * room < profile.pool_tokens * card.kv_bytes_per_token < room


def test_more_memory_holds_more():
    small, large = (load_profile(f"sim:moshi@{hardware}").pool_blocks for hardware in ("h100", "b200"))
    assert small < large


def test_its_steps_take_what_the_roofline_says_and_never_less():
    costs = costs_of(load_profile("sim:minicpm-o-4.5@h100"))
    floor = Roofline(model_card("minicpm-o-4.5"), hardware_card("h100"))
    for load in ((0, 1, 100, 0.0, 0), (12, 0, 2000, 1.0, 24_000), (4096, 96, 400_000, 30.0, 10**7)):
        assert costs.step_s(*load) >= floor.step_s(*load)
    assert "roofline of minicpm-o-4.5 on h100" in costs.source and costs.front_end_s == 0


@pytest.mark.parametrize("name", ["sim:smollm2", "sim:tiny"])
def test_the_twin_of_a_real_profile_is_it_but_for_the_executor(name):
    real, twin = load_profile(name.removeprefix("sim:")), load_profile(name)
    assert twin == simulated(real)
    same = ("sessions", "pool_blocks", "block_size", "window", "sinks", "growth", "frame_budget_s", "wait_cap", "model")
    assert all(getattr(real, field) == getattr(twin, field) for field in same)


def test_a_twin_has_no_twin():
    with pytest.raises(ProfileError, match="simulated already"):
        simulated(load_profile("sim:tiny"))


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("sim:nothing", ProfileError, "sim:smollm2, sim:tiny"),
        ("sim:nothing@h100", CardError, "qwen3-omni"),
        ("sim:moshi@abacus", CardError, "rtx-pro-6000"),
        ("sim:", ProfileError, "MODEL@HARDWARE"),
    ],
)
def test_an_unknown_name_lists_those_there_are(name, error, words):
    with pytest.raises(error, match=words) as refused:
        load_profile(name)
    assert "\n" not in str(refused.value)


def test_a_profile_file_may_build_on_a_simulated_one(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('base = "sim:qwen3-omni@h100"\nsessions = 16\neos_chance = 0.1\n')
    profile = load_profile(file)
    assert (profile.name, profile.sessions, profile.eos_chance) == ("mine", 16, 0.1)
    assert (profile.hardware, profile.model) == ("h100", "qwen3-omni")


def test_without_a_calibration_it_says_what_to_run(tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.costs.CALIBRATIONS", tmp_path)
    with pytest.raises(CostError, match="workbench calibrate --profile tiny"):
        costs_of(load_profile("sim:tiny"))


def test_a_calibration_file_that_is_named_is_used_with_a_warning_when_it_is_another_machines(tmp_path):
    path = tmp_path / "theirs.json"
    made_up(cpu="an abacus").save(path)
    profile = load_profile("sim:tiny", calibration=str(path))
    with pytest.warns(UserWarning, match="an abacus"):
        costs = costs_of(profile)
    assert costs.step_s(10, 0, 10, 0.0, 55) == pytest.approx(0.001 + 10 * 1e-5 + 55 * 1e-6)
    assert costs.front_end_s == 0.003


def test_one_of_another_machine_is_used_only_when_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.costs.CALIBRATIONS", tmp_path)
    made_up(cpu="an abacus").save(tmp_path / "tiny.json")
    with pytest.raises(CostError, match="an abacus"):
        costs_of(load_profile("sim:tiny"))
    with pytest.warns(UserWarning, match="an abacus"):
        costs_of(load_profile("sim:tiny", calibration="any"))
