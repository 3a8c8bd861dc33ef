"""Sessions that hear, without an engine: vLLM's own gathering of encoder outputs over a worker that keeps books.

A placeholder's token says which output of which audio has to be embedded there, so that a wrong one is seen at once.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from vllm.multimodal.inputs import (
    MultiModalBatchedField,
    MultiModalFeatureSpec,
    MultiModalFieldElem,
    MultiModalKwargsItem,
    PlaceholderRange,
)
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from tests.scheduler_rig import BookKeeper, assert_books_balance, make_chunk
from tests.test_moving_scheduler import MovingExpected
from tests.test_scheduler import SESSIONS, Rig
from workbench.bound import KVBound

# Tokens from here on are placeholders: HEARD + audio * PER_AUDIO + output, or + SILENT for one that is not embedded.
HEARD, PER_AUDIO, SILENT = 1 << 20, 1000, 999


def audio_of(token: int) -> str | None:
    """The identifier of the audio that this placeholder's token stands for."""
    return f"audio {(token - HEARD) // PER_AUDIO}" if token >= HEARD else None


def feature(number: int, offset: int, mask: list[bool], modality: str = "audio") -> MultiModalFeatureSpec:
    """Audio ``number`` at ``offset`` of its chunk, one output for every True of ``mask``; without a mask if all are."""
    outputs = torch.tensor([number, sum(mask)])
    return MultiModalFeatureSpec(
        data=MultiModalKwargsItem({"heard": MultiModalFieldElem(outputs, MultiModalBatchedField())}),
        modality=modality,
        identifier=f"audio {number}",
        mm_position=PlaceholderRange(offset, len(mask), None if all(mask) else torch.tensor(mask)),
    )


def placeholders(number: int, mask: list[bool]) -> list[int]:
    """Their tokens."""
    outputs = iter(range(sum(mask)))
    return [HEARD + number * PER_AUDIO + (next(outputs) if embedded else SILENT) for embedded in mask]


def is_embedded(token: int) -> bool:
    """Whether it stands for an encoder output."""
    return token >= HEARD and (token - HEARD) % PER_AUDIO != SILENT


class Runner:
    """What of itself vLLM's runner needs to gather encoder outputs."""

    gather = GPUModelRunner._gather_mm_embeddings
    batch = GPUModelRunner._batch_mm_inputs_from_scheduler
    free = GPUModelRunner._process_encoder_cache_scheduler_output
    _get_encoder_output_from_cache = GPUModelRunner._get_encoder_output_from_cache
    is_multimodal_pruning_enabled = uses_mrope = False

    def __init__(self):
        self.encoder_cache, self.requests, self.input_batch = {}, {}, SimpleNamespace(req_ids=[])


class HearingWorker(BookKeeper):
    """As BookKeeper; ``encoded``: how often each audio was encoded, ``embedded``: of each session, which tokens."""

    def __init__(self):
        super().__init__()
        self.runner, self.encoded, self.embedded = Runner(), Counter(), {}

    @property
    def cache(self) -> dict:
        return self.runner.encoder_cache

    def run(self, output):
        result = super().run(output)
        runner = self.runner
        runner.free(output)
        for session in output.finished_req_ids:
            runner.requests.pop(session, None)
        for new in output.scheduled_new_reqs:
            runner.requests[new.req_id] = SimpleNamespace(
                mm_features=new.mm_features, num_computed_tokens=new.num_computed_tokens
            )
        cached = output.scheduled_cached_reqs
        for session, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            runner.requests[session].num_computed_tokens = computed
        self._encode(output)
        self._embed(output)
        return result

    def _encode(self, output):
        asked = [(s, i) for s, inputs in output.scheduled_encoder_inputs.items() for i in inputs]
        identifiers, items, _ = self.runner.batch(output)
        assert len(items) == len(asked), f"asked to encode what it was not given: {asked}"
        for identifier, (_, item) in zip(identifiers, items, strict=True):
            number, count = item["heard"].data.tolist()
            self.runner.encoder_cache[identifier] = HEARD + number * PER_AUDIO + torch.arange(count)[:, None]
            self.encoded[identifier] += 1

    def _embed(self, output):
        """Every placeholder of this step was given its own output, and nothing else was given any."""
        self.runner.input_batch.req_ids = list(output.num_scheduled_tokens)
        found, where = self.runner.gather(output)
        values = iter(torch.cat(found).flatten().tolist() if found else ())
        embedded, end = where.tolist(), 0
        for session, count in output.num_scheduled_tokens.items():
            first = self.runner.requests[session].num_computed_tokens
            tokens = [*self.requests[session].prompt, *self.requests[session].outputs][first : first + count]
            given = [next(values) if embedded[end + i] else None for i in range(count)]
            assert given == [token if is_embedded(token) else None for token in tokens], session
            self.embedded.setdefault(session, []).extend(value for value in given if value is not None)
            end += count
        assert next(values, None) is None


class HearingRig(Rig):
    """As Rig, with chunks that carry an audio. ``cache``: what the encoder cache holds, in outputs."""

    def __init__(self, blocks: int, cache: int = 4096, budget: int = 4096):
        super().__init__(blocks)
        self.worker = HearingWorker()
        self.scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=cache)
        self.scheduler.max_num_encoder_input_tokens = budget
        self.scheduler.vocab_size = 1 << 40
        self.heard = 0

    @property
    def manager(self) -> EncoderCacheManager:
        return self.scheduler.encoder_cache_manager

    def hear(self, name, length=20, owed=2, bound=None, number=None, mask=None, before=3, after=2, modality="audio"):
        """A chunk: ``before`` tokens, a new audio of ``length`` outputs (or audio ``number``), ``after`` tokens."""
        self.heard += 1
        number, mask = self.heard if number is None else number, mask or [True] * length
        tokens = [1] * before + placeholders(number, mask) + [2] * after
        expected = self.expected.setdefault(name, MovingExpected())
        if expected.parked:
            expected.take_up(tokens, bound)
        elif len(expected.queued) < 2:
            expected.queued.append((tokens, bound))
        else:
            return
        chunk = make_chunk(name, tokens, owed, bound)
        chunk.mm_features = [feature(number, before, mask, modality)]
        self.scheduler.add_request(chunk)

    def step(self, count=1):
        for _ in range(count):
            super().step()
            self.assert_features()

    def held(self, name) -> list[str]:
        """The audios of which the session holds a placeholder, by the rule."""
        tokens = [token for _, token in self.expected[name].context + self.expected[name].frame]
        return list(dict.fromkeys(audio for audio in map(audio_of, tokens) if audio is not None))

    def assert_features(self):
        """The sessions' features are those of resident tokens, and what is cached is of those."""
        cached = self.manager.cached
        for name, request in self.scheduler.requests.items():
            features = request.mm_features
            assert list(dict.fromkeys(f.identifier for f in features)) == self.held(name)
            ends = [(f.mm_position.offset, f.mm_position.offset + f.mm_position.length) for f in features]
            assert all(a[1] <= b[0] for a, b in pairwise(ends)), "in order and apart"
        assert set(cached) <= {audio for name in self.scheduler.requests for audio in self.held(name)}
        assert set(cached) - set(self.worker.cache) == set(), "cached by its account, and by no worker"
        assert self.manager.num_free_slots == self.manager.cache_size - sum(self.manager.num_embeds_by_hash.values())
        assert self.manager.num_freeable_slots == self.manager.num_free_slots + sum(self.manager.freeable.values())
        assert set(self.manager.freeable) == {identifier for identifier, names in cached.items() if not names}


class History(HearingRig):
    def hear_masked(self, name, mask, bound):
        self.hear(name, mask=mask, bound=bound)

    def hear_the_same(self, name, bound):
        self.hear(name, 20, bound=bound, number=0)

    def flood(self, rounds, bound):
        for _ in range(rounds):
            for name in SESSIONS:
                if name not in self.expected or self.expected[name].parked:
                    self.hear(name, 40, 3, bound)
            self.step(4)


def reasons(rig: HearingRig) -> dict[str, str]:
    """Of all that is left to do: why which session was ended."""
    told = {}
    while rig.scheduler.has_requests():
        output = rig.scheduler.schedule()
        answers = rig.scheduler.update_from_output(output, rig.worker.run(output)[0]).values()
        told |= {o.request_id: o.stop_reason for a in answers for o in a.outputs if isinstance(o.stop_reason, str)}
    return told


def preempted(bound: KVBound | None, coming: KVBound | None = None, cache: int = 120) -> tuple[HearingRig, str]:
    """A session preempted in mid-frame, and its name. A bound that is ``coming`` is set while it runs."""
    rig = HearingRig(24, cache=cache)
    for name in "ab":
        for _ in range(5):
            rig.hear(name, 50, bound=bound)
            rig.step(6)
    rig.hear("a", 20, owed=150, bound=bound)
    rig.hear("b", 20, owed=200, bound=bound)
    rig.step()
    if coming is not None:
        for name in "ab":
            rig.bound(name, coming)
    while rig.scheduler.preemptions == 0:
        rig.step()
    victim = next(n for n, r in rig.scheduler.requests.items() if r.num_preemptions)
    rig.step(200)
    return rig, victim


def resume(rig: HearingRig, victim: str) -> set[str]:
    """Give it room, see that it is given what it holds and no more, and return what was encoded for that."""
    held, cached = rig.held(victim), set(rig.manager.cached)
    encoded, embedded = rig.worker.encoded.copy(), len(rig.worker.embedded[victim])
    rig.abort("ab".replace(victim, ""))
    rig.step(300)
    assert rig.expected[victim].parked
    again = rig.worker.encoded - encoded
    # What was cached may have made room for what was not.
    assert set(held) - cached <= set(again) <= set(held) and max(again.values(), default=1) == 1
    assert rig.worker.embedded[victim][embedded:] == resident(rig, victim)
    return set(again)


def resident(rig: HearingRig, name: str) -> list[int]:
    """The outputs that a session's resident placeholders stand for."""
    tokens = [token for _, token in rig.expected[name].context + rig.expected[name].frame]
    return [token for token in tokens if is_embedded(token)]


session = st.sampled_from(SESSIONS)
bound = st.one_of(
    st.none(), st.builds(KVBound, st.sampled_from([32, 40, 64, 96]), st.sampled_from([0, 4, 33]), st.booleans())
)
length = st.integers(1, 60)
operation = st.one_of(
    st.tuples(st.just("hear"), session, length, st.integers(1, 60), bound),
    st.tuples(st.just("hear"), session, length, st.integers(1, 60), bound),
    st.tuples(st.just("hear_masked"), session, st.lists(st.booleans(), min_size=2, max_size=60), bound),
    st.tuples(st.just("hear_the_same"), session, bound),
    st.tuples(st.just("flood"), st.integers(1, 6), bound),
    st.tuples(st.just("bound"), session, bound),
    st.tuples(st.just("abort"), session),
    st.tuples(st.just("step"), st.integers(1, 20)),
    st.tuples(st.just("step"), st.integers(1, 20)),
)


def history(cache: int, budget: int, reached: Counter):
    """Histories of bounded and unbounded sessions in pools that are too small, placeholders split over steps.

    They are the same ones each time, and none is made shorter where it fails: that would take minutes.
    """

    @settings(
        max_examples=25,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(8, 20), st.sampled_from([16, 40, 2048]), st.lists(operation, min_size=15, max_size=40))
    def play(blocks, tokens_a_step, operations):
        rig = History(blocks, cache, budget)
        rig.scheduler.max_num_scheduled_tokens = tokens_a_step
        for name, *arguments in operations:
            getattr(rig, name)(*arguments)
            assert_books_balance(rig.scheduler)
        reached["cut"] += any(state.evicted for state in rig.scheduler.sessions.values())
        reached["preempted"] += rig.scheduler.preemptions
        reached["at once"] += rig.at_once
        reached["embedded"] += sum(map(len, rig.worker.embedded.values()))
        reached["encoded again"] += sum(rig.worker.encoded.values()) - len(rig.worker.encoded)
        for name in list(rig.expected):
            rig.abort(name)
        rig.step()
        assert not rig.manager.cached and not rig.worker.cache and rig.manager.num_free_slots == cache

    play()
    print(dict(reached))
    assert min(reached[what] for what in ("cut", "preempted", "at once")) > 0
