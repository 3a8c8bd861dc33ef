"""What an engine step has to do, and a recorder of how long each one took."""

from __future__ import annotations

from collections import deque

MOST_STEPS = 65536

Load = tuple[int, int, int]


def step_load(scheduler_output, requests=None) -> Load:
    """(prefill tokens, sequences decoding, context tokens) of a step, from vLLM's SchedulerOutput.

    A sequence with one scheduled token counts as decoding; the tokens of every other are prefill tokens. Context
    tokens: over all scheduled sequences, the tokens computed before the step and those scheduled in it. ``requests``,
    the scheduler's, is not looked at: this vLLM's output holds every count.
    """
    scheduled = scheduler_output.num_scheduled_tokens
    total = scheduler_output.total_num_scheduled_tokens
    decoding = list(scheduled.values()).count(1)
    context = total + sum(scheduler_output.scheduled_cached_reqs.num_computed_tokens)
    for new in scheduler_output.scheduled_new_reqs:
        context += new.num_computed_tokens
    return total - decoding, decoding, context


class StepRecorder:
    """While on, keeps (began, ended, prefill tokens, decoding, context tokens) of the newest MOST_STEPS steps.

    Times are on the scheduler's clock, in seconds. A step begins when the scheduler is asked for it. It ends when the
    next begins, where work was left: in virtual time nothing else stands for what the engine does between two steps
    (0.1 ms on two cores, where a step took 50). Where none was left it ends with its outputs, for what follows is
    waiting. Empty steps are left out.
    """

    def __init__(self, scheduler) -> None:
        self._scheduler = scheduler
        self._steps: deque[tuple[float, float, int, int, int]] = deque(maxlen=MOST_STEPS)
        self._originals: tuple | None = None
        self._began = 0.0
        self._load: Load = (0, 0, 0)
        self._unended = False

    def start(self) -> None:
        """Begin to record; a recorder that is on stays on."""
        if self._originals is None:
            scheduler = self._scheduler
            self._originals = scheduler.schedule, scheduler.update_from_output
            self._unended = False
            scheduler.schedule, scheduler.update_from_output = self._schedule, self._update_from_output

    def stop(self) -> None:
        """Record no more and give the scheduler its own methods back; what was recorded stays to be drained."""
        if self._originals is not None:
            self._scheduler.schedule, self._scheduler.update_from_output = self._originals
            self._originals = None

    def drain(self) -> list[tuple[float, float, int, int, int]]:
        """The steps recorded since the last call, oldest first."""
        steps = list(self._steps)
        self._steps.clear()
        return steps

    def _schedule(self, *args, **kwargs):
        now = self._scheduler.clock()
        if self._unended:
            self._end(now)
        output = self._originals[0](*args, **kwargs)
        self._began, self._load = now, step_load(output)
        return output

    def _update_from_output(self, scheduler_output, *args, **kwargs):
        outputs = self._originals[1](scheduler_output, *args, **kwargs)
        self._unended = scheduler_output.total_num_scheduled_tokens > 0
        if self._unended and not self._scheduler.has_unfinished_requests():
            self._end(self._scheduler.clock())
        return outputs

    def _end(self, now: float) -> None:
        self._steps.append((self._began, now, *self._load))
        self._unended = False
