"""The calibration on a real engine: its steps are recorded as they are, and what is fitted to them is kept."""

from __future__ import annotations

import asyncio

import pytest

from tests.engine.driver import ANSWER_TIMEOUT_S
from workbench import _step_experiment, calibrate, costs
from workbench.costs import calibration_path, load_calibration
from workbench.engine.vllm import VllmEngine
from workbench.profiles import load_profile


class ProbedEngine(VllmEngine):
    """Serves two frames of a session before it stops: ``off`` and ``on`` are the steps recorded of each."""

    off: list
    on: list

    async def stop(self) -> None:
        if self._llm is not None:
            type(self).off = await self._recorded(False, 40)
            type(self).on = await self._recorded(True, 10)
        await super().stop()

    async def _recorded(self, on: bool, tokens: int) -> list:
        done = asyncio.Event()
        self.on_event = lambda event: done.set() if event.done else None
        await self.record_steps(on)
        self.submit("probe", list(range(5, 5 + tokens)), 3)
        await asyncio.wait_for(done.wait(), ANSWER_TIMEOUT_S)
        return await self.steps()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_step_experiment, "LEAST_S", 1.0)
        patch.setattr(_step_experiment, "ENOUGH_STEPS", 150)
        patch.setattr(calibrate, "VllmEngine", ProbedEngine)
        patch.setattr(costs, "CALIBRATIONS", tmp_path_factory.mktemp("calibration"))
        # A test does not choose what else runs on its machine.
        calibration = calibrate.calibrate(load_profile("tiny"), accept_busy=True)
        calibration.save(calibration_path("tiny"))
        yield calibration


def test_every_cost_was_fitted_to_the_steps_of_the_engine(made):
    assert made.steps >= 150
    assert set(made.error.intervals) == {"t0_s", "prefill_s", "decode_s", "context_s", "pair_s"}
    assert made.costs.t0_s > 0
    assert made.front_end_s > 0
    assert made.delivery_s > 0
    assert made.threads >= 1


def test_the_experiment_reached_every_kind_of_step(made):
    profile = load_profile("tiny")
    lengths = _step_experiment.chunk_lengths(profile)
    kinds = {group.name.split(",")[0] for group in made.groups}
    assert kinds == {"decode", *(f"chunks of {length}" for length in lengths)}
    assert sum(group.steps for group in made.groups) == made.steps


def test_no_step_was_faster_than_the_floor(made):
    assert made.costs.floor.step_s(0, 1, 1) <= min(group.seconds for group in made.groups)


def test_it_is_found_again_on_this_machine(made):
    assert load_calibration("tiny") == made


def test_steps_are_recorded_only_while_recording_is_on(made):
    assert ProbedEngine.off == []
    # 40 tokens and 3 replies, of which the last is dropped, then 10 tokens and replies one by one.
    assert [step[2:] for step in ProbedEngine.on] == [(10, 0, 52, 10 * 42 + 55), (0, 1, 53, 0), (0, 1, 54, 0)]


def test_steps_follow_each_other_without_a_gap(made):
    first, second, third = ProbedEngine.on
    assert first[0] < first[1] == second[0] < second[1] == third[0] < third[1]
