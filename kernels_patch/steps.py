"""What an engine step has to do, and a recorder of how long each one took."""

from __future__ import annotations

from collections import deque

MOST_STEPS = 65536

# (prefill tokens, sequences decoding, context tokens, prefill pairs)
Load = tuple[int, int, int, int]


def step_load(scheduler_output, requests=None) -> Load:
    """(prefill tokens, sequences decoding, context tokens, prefill pairs) of a step, from vLLM's SchedulerOutput.

    A sequence with one scheduled token counts as decoding; the tokens of every other are prefill tokens. Context
    tokens, the KV that is read: over all scheduled sequences, the c tokens computed before the step and the n scheduled
    in it. Prefill pairs, the query-key pairs that causal attention computes: over the prefilling sequences,
    n c + n (n + 1) / 2. ``requests``, the scheduler's, is not looked at: this vLLM's output holds every count.
    """
    scheduled = scheduler_output.num_scheduled_tokens
    total = scheduler_output.total_num_scheduled_tokens
    decoding = list(scheduled.values()).count(1)
    cached = scheduler_output.scheduled_cached_reqs
    context, twice_pairs = total + sum(cached.num_computed_tokens), 0
    prefilling = len(scheduled) - decoding
    for new in scheduler_output.scheduled_new_reqs:
        computed, tokens = new.num_computed_tokens, scheduled[new.req_id]
        context += computed
        if tokens > 1:
            prefilling -= 1
            twice_pairs += tokens * (2 * computed + tokens + 1)
    # A chunk comes as a new request. Of the others all decode, but for a chunk that takes several steps and a session
    # that resumes from a preemption.
    if prefilling:
        for session, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            tokens = scheduled[session]
            if tokens > 1:
                twice_pairs += tokens * (2 * computed + tokens + 1)
    return total - decoding, decoding, context, twice_pairs // 2


class StepRecorder:
    """While on, keeps (began, ended, *load) of the newest MOST_STEPS steps, the load as ``step_load`` counts it.

    Times are on the scheduler's clock, in seconds. A step begins when the scheduler is asked for it. It ends when the
    next begins, where work was left: in virtual time nothing else stands for what the engine does between two steps
    (0.1 ms on two cores, where a step took 50). Where none was left it ends with its outputs, for what follows is
    waiting. Empty steps are left out.
    """

    def __init__(self, scheduler) -> None:
        self._scheduler = scheduler
        self._steps: deque[tuple[float, float, int, int, int, int]] = deque(maxlen=MOST_STEPS)
        self._originals: tuple | None = None
        self._began = 0.0
        self._load: Load = (0, 0, 0, 0)
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

    def drain(self) -> list[tuple[float, float, int, int, int, int]]:
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
