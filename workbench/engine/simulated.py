"""The simulated engine: the real EngineCore, scheduler and block pool in this process, on a virtual clock.

Only the executor is not real: a step's duration comes from a cost model, its tokens mean nothing. A step begins as soon
as the engine is idle and has work; what is handed in while it runs is taken up when it ends, as EngineCore does it.
"""

from __future__ import annotations

import gc
import math
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace

from workbench.bound import ENDED, EXTRA_ARGS_KEY, KVBound
from workbench.engine.base import Engine, EngineDead, EngineError, Facts, SessionView, Snapshot, TokenEvent
from workbench.engine.host import find_plugin, first_line
from workbench.engine.sim_core import VOCABULARY, make_core
from workbench.frontends import audio_s_per_frame


class Clock:
    """A clock that whoever drives the engine sets. ``now`` in seconds."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0.0


class SimulatedEngine(Engine):
    """``costs`` replaces the cost model that the profile asks for (workbench.simulation.Costs).

    What one step says it reports at once, to ``on_events``. Driven by ``next_at``, ``finish_step`` and ``begin_step``
    (workbench.drive.virtual); all its coroutines end at once.
    """

    virtual = True

    def __init__(self, profile, *, costs=None) -> None:
        self.profile = profile
        self.clock = Clock()
        self.on_events = lambda events: None
        self.on_dead = lambda reason: None
        self.steps = 0
        self._costs = costs
        self._core = None
        self._inbox: deque[tuple[float, Callable, tuple]] = deque()
        self._front_end_s = self._front_end_free_at = 0.0
        self._params: dict[tuple, object] = {}
        self._asked: tuple = (None, None, None, None)  # the last key of _params and what stands there
        self._outputs: list = []
        self._ends_at = math.inf
        self._idle = True
        self._death: str | None = None
        # The scheduler's account, until something happens to it.
        self._unchanged: Snapshot | None = None

    # -- start and stop ---------------------------------------------------------------------------------------------

    async def start(self, progress: Callable[[str], None] | None = None) -> None:
        say = progress or (lambda message: None)
        plugin = find_plugin()
        say("starting the simulated engine")
        try:
            plugin.check_version()
            if self._costs is None:
                from workbench.simulation import costs_of

                self._costs = costs_of(self.profile)
            self._core, executor = make_core(self.profile, plugin.SCHEDULER)
            self._core.scheduler.clock = self.now
            self.facts = self._shake_hands()
        except plugin.PluginError as error:
            raise EngineError(str(error)) from error
        profile = self.profile
        heard_s = audio_s_per_frame(profile.front_end, profile.frame_budget_s)
        self._front_end_s = self._costs.front_end_s * heard_s
        executor.prepare(
            requests=self._core.scheduler.requests,
            costs=self._costs,
            step_load=plugin.step_load,
            audio_s_per_token=heard_s / profile.frame_tokens if heard_s else 0.0,
            eos_chance=profile.eos_chance,
            step_noise=profile.step_noise,
            slowdown=profile.slowdown,
            seed=profile.seed,
        )
        from vllm.v1.engine import FinishReason
        from vllm.v1.request import Request

        self._executor, self._stopped, self._request = executor, FinishReason.STOP, Request
        say("engine ready")

    def _shake_hands(self) -> Facts:
        hello = self._core.metronome_attach()
        return Facts(
            executor="simulated",
            vllm=hello["vllm"],
            block_size=hello["block_size"],
            blocks_total=hello["blocks_total"],
            max_model_len=hello["max_model_len"],
            max_positions=hello["max_positions"],
            vocab_size=VOCABULARY,
            scheduler=hello["scheduler"],
            runner=hello["workers"][0]["runner"],
            costs=self._costs.source,
        )

    async def stop(self) -> None:
        if self._core is not None:
            # Not EngineCore.shutdown: that ends what all engines of a process share, and others may be running.
            self._core.structured_output_manager.clear_backend()
            self._core.scheduler.shutdown()
            self._core = None
            self._ends_at, self._idle = math.inf, True
            self._inbox.clear()
            # EngineCore exempts all objects from collection as it starts: a sweep makes many engines in one process.
            gc.unfreeze()

    # -- sessions ---------------------------------------------------------------------------------------------------

    def now(self) -> float:
        return self.clock.now

    def submit(self, session, tokens, owed, bound=None, stop_token_ids=()) -> None:
        self._check_alive()
        params = self._sampling(owed, bound, stop_token_ids)
        # A front end outside the engine takes one frame after the other, and nothing overtakes a chunk in it.
        ready_at = max(self.clock.now, self._front_end_free_at) + self._front_end_s
        self._front_end_free_at = ready_at
        self._inbox.append((ready_at, self._add, (session, tokens, params)))

    def _sampling(self, owed: int, bound: KVBound | None, stop_token_ids: tuple[int, ...]):
        # Shared by all chunks that ask for the same: the scheduler copies what it changes.
        if owed == self._asked[0] and bound is self._asked[1] and stop_token_ids is self._asked[2]:
            return self._asked[3]
        key = (owed, bound, stop_token_ids)
        params = self._params.get(key)
        if params is None:
            from vllm import SamplingParams

            params = self._params[key] = SamplingParams(
                temperature=0.0,
                max_tokens=owed,
                ignore_eos=True,
                stop_token_ids=list(stop_token_ids),
                detokenize=False,
                extra_args=None if bound is None else {EXTRA_ARGS_KEY: bound.to_args()},
            )
        self._asked = (*key, params)
        return params

    def _add(self, session: str, tokens: list[int], params) -> None:
        core, now = self._core, self.clock.now
        if session in core.scheduler.requests:
            core.scheduler.add_chunk(session, tokens, params, now)
            return
        hasher = core.request_block_hasher
        core.add_request(
            self._request(session, tokens, params, None, arrival_time=now, block_hasher=hasher, resumable=True)
        )

    def close(self, session: str) -> None:
        if self._core is not None:
            self._inbox.append((max(self.clock.now, self._front_end_free_at), self._abort, (session,)))

    def _abort(self, session: str) -> None:
        self._core.abort_requests([session])

    async def set_bound(self, session: str, bound: KVBound | None) -> str:
        self._check_alive()
        outcome = self._core.metronome_set_bound(session, None if bound is None else bound.to_args())
        self._idle, self._unchanged = False, None
        return outcome

    async def snapshot(self, sessions: Collection[str] | None = None) -> Snapshot:
        self._check_alive()
        if self._unchanged is not None and sessions is not None and not sessions:
            return replace(self._unchanged, at=self.clock.now)
        raw = self._core.metronome_snapshot(sessions)
        views = raw.pop("sessions")
        snapshot = Snapshot(sessions=dict(zip(views, map(SessionView._make, views.values()), strict=True)), **raw)
        self._unchanged = replace(snapshot, sessions={})
        return snapshot

    def _check_alive(self) -> None:
        if self._core is None:
            raise EngineDead(self._death or "the engine was stopped")

    # -- virtual time -----------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a step is running."""
        return self._ends_at < math.inf

    def next_at(self) -> float:
        """When something happens by itself next: a step ends, or an input is ready for an idle engine."""
        if self.busy:
            return self._ends_at
        if not self._idle:
            return self.clock.now
        return max(self.clock.now, self._inbox[0][0]) if self._inbox else math.inf

    def finish_step(self) -> None:
        """Report what the running step has answered, if it ends by now."""
        if self._ends_at <= self.clock.now:
            self._ends_at = math.inf
            outputs, self._outputs = self._outputs, []
            now = self.clock.now
            self.on_events(
                [
                    TokenEvent(output.request_id, tuple(output.new_token_ids), now)
                    if output.finish_reason is None
                    else self._last_event(output, now)
                    for output in outputs
                ]
            )

    def begin_step(self) -> None:
        """Take up what is ready and begin the next step, unless one is running."""
        if self.busy or self._core is None:
            return
        now, inbox = self.clock.now, self._inbox
        try:
            while inbox and inbox[0][0] <= now:
                _, action, args = inbox.popleft()
                action(*args)
                self._idle, self._unchanged = False, None
            while not self._idle and not self.busy:
                self._step()
        except Exception as error:  # noqa: BLE001, as the process of a real engine would, it dies of whatever it is
            self._death = f"{type(error).__name__}: {first_line(error)}"
            self._core = None
            self._ends_at, self._idle = math.inf, True
            self.on_dead(self._death)

    def _step(self) -> None:
        core = self._core
        if not core.scheduler.has_requests():
            self._idle = True
            return
        self._unchanged = None
        preempted = core.scheduler.preemptions
        outputs, executed = core.step()
        core.post_step(executed)
        self._outputs = [output for batch in outputs.values() for output in batch.outputs]
        if executed or self._outputs:
            self.steps += 1
            self._ends_at = self.clock.now + self._executor.last_step_s
        else:
            # At the wall the real one repeats this empty step until it is handed something; nothing changes meanwhile.
            self._idle = core.scheduler.preemptions == preempted

    def _last_event(self, output, now: float) -> TokenEvent:
        stop = output.stop_reason
        ended = stop.removeprefix(ENDED) if isinstance(stop, str) and stop.startswith(ENDED) else None
        eos = output.finish_reason == self._stopped
        return TokenEvent(output.request_id, tuple(output.new_token_ids), now, True, eos, ended)
