"""A step's load, read off the real scheduler's output, and the recorder of steps, on a clock that the test moves."""

from __future__ import annotations

import pytest

from kernels_patch.scheduler import BoundedScheduler
from kernels_patch.steps import StepRecorder, step_load
from tests.scheduler_rig import BookKeeper, make_chunk, make_scheduler

RUN_S, BETWEEN_S = 10.0, 100.0


class Rig:
    """A scheduler with a recorder; each step runs for 10 s, and the next begins 100 s later."""

    def __init__(self) -> None:
        self.scheduler, self.worker, self.now = make_scheduler(BoundedScheduler, 40), BookKeeper(), 0.0
        self.scheduler.clock = lambda: self.now
        self.recorder = StepRecorder(self.scheduler)

    def step(self):
        output = self.scheduler.schedule()
        self.now += RUN_S
        self.scheduler.update_from_output(output, self.worker.run(output)[0])
        self.now += BETWEEN_S
        return output


@pytest.fixture
def rig():
    return Rig()


def test_load_of_prefill_decode_and_both(rig):
    rig.scheduler.add_request(make_chunk("a", list(range(50)), owed=4))
    rig.scheduler.add_request(make_chunk("b", list(range(20)), owed=4))
    assert step_load(rig.step()) == (70, 0, 70, 50 * 51 / 2 + 20 * 21 / 2)
    assert step_load(rig.step()) == (0, 2, 51 + 21, 0)
    rig.scheduler.add_request(make_chunk("c", list(range(30)), owed=4))
    assert step_load(rig.step()) == (30, 2, 52 + 22 + 30, 30 * 31 / 2)


def test_load_of_a_later_chunk_counts_what_was_computed_before(rig):
    rig.scheduler.add_request(make_chunk("a", list(range(50)), owed=1))
    rig.step()
    rig.scheduler.add_request(make_chunk("a", list(range(10)), owed=1))
    # Each of its queries meets the 50 tokens before the chunk, and those of the chunk up to itself.
    assert step_load(rig.step()) == (10, 0, 60, sum(50 + query for query in range(1, 11)))


def test_a_chunk_that_takes_several_steps_has_as_many_pairs_as_in_one(rig):
    rig.scheduler.max_num_scheduled_tokens = 20
    rig.scheduler.add_request(make_chunk("a", list(range(50)), owed=1))
    loads = [step_load(rig.step()) for _ in range(3)]
    assert [load[:3] for load in loads] == [(20, 0, 20), (20, 0, 40), (10, 0, 50)]
    assert sum(load[3] for load in loads) == 50 * 51 / 2


def test_load_of_a_chunk_of_one_token_is_decoding(rig):
    rig.scheduler.add_request(make_chunk("a", [7], owed=1))
    assert step_load(rig.step()) == (0, 1, 1, 0)


def test_load_of_an_empty_step_is_nothing(rig):
    assert step_load(rig.scheduler.schedule()) == (0, 0, 0, 0)


def test_a_step_ends_where_the_next_begins_and_the_last_with_its_outputs(rig):
    rig.recorder.start()
    rig.scheduler.add_request(make_chunk("a", list(range(50)), owed=3))
    for _ in range(3):
        rig.step()
    busy = RUN_S + BETWEEN_S
    assert rig.recorder.drain() == [
        (0.0, busy, 50, 0, 50, 50 * 51 / 2),
        (busy, 2 * busy, 0, 1, 51, 0),
        (2 * busy, 2 * busy + RUN_S, 0, 1, 52, 0),
    ]
    assert rig.recorder.drain() == []


def test_waiting_for_the_next_chunk_and_empty_steps_are_no_step(rig):
    rig.recorder.start()
    rig.scheduler.add_request(make_chunk("a", list(range(50)), owed=1))
    rig.step()
    rig.step()
    rig.now += 1000
    rig.scheduler.add_request(make_chunk("a", list(range(10)), owed=1))
    rig.step()
    first, second = rig.recorder.drain()
    assert first[1] - first[0] == second[1] - second[0] == RUN_S
    assert second[0] - first[1] > 1000


def test_off_gives_the_scheduler_its_methods_back_and_records_no_more(rig):
    schedule, update = rig.scheduler.schedule, rig.scheduler.update_from_output
    rig.recorder.start()
    rig.recorder.start()
    assert rig.scheduler.schedule != schedule
    rig.recorder.stop()
    rig.recorder.stop()
    assert (rig.scheduler.schedule, rig.scheduler.update_from_output) == (schedule, update)
    rig.scheduler.add_request(make_chunk("a", list(range(50)), owed=1))
    rig.step()
    assert rig.recorder.drain() == []


def test_a_step_cut_off_by_stop_is_not_ended_by_a_later_start(rig):
    rig.recorder.start()
    rig.scheduler.add_request(make_chunk("a", list(range(50)), owed=3))
    rig.step()
    rig.recorder.stop()
    rig.step()
    rig.recorder.start()
    rig.step()
    assert [step[2:] for step in rig.recorder.drain()] == [(0, 1, 52, 0)]


def test_the_newest_steps_are_kept(rig, monkeypatch):
    monkeypatch.setattr("kernels_patch.steps.MOST_STEPS", 2)
    recorder = StepRecorder(rig.scheduler)
    recorder.start()
    rig.scheduler.add_request(make_chunk("a", list(range(50)), owed=4))
    for _ in range(4):
        rig.step()
    assert [step[2:] for step in recorder.drain()] == [(0, 1, 52, 0), (0, 1, 53, 0)]


def test_the_plugin_offers_the_load():
    from workbench.engine.host import find_plugin

    assert find_plugin().step_load is step_load
