"""Sessions that hear under the real scheduler: each position gets its own encoder output, and memory stays flat."""

from __future__ import annotations

from collections import Counter

import pytest
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from kernels_patch.scheduler import BoundedScheduler
from tests.features_rig import (
    HearingRig,
    HearingWorker,
    feature,
    history,
    placeholders,
    preempted,
    reasons,
    resident,
    resume,
)
from tests.scheduler_rig import BLOCK, assert_books_balance, make_chunk, make_scheduler
from tests.test_scheduler import decisions
from workbench.bound import ENDED, KVBound

FIXED = KVBound(64, 4)
FRAME, OWED = 25, 2


def test_every_position_gets_its_own_output_in_any_history():
    history(4096, 4096, Counter())


def test_every_position_gets_its_own_output_where_the_cache_is_small():
    reached = Counter()
    history(70, 70, reached)
    assert reached["encoded again"] > 0


def test_what_a_bounded_session_keeps_is_flat():
    rig, counts = HearingRig(40), []
    for _ in range(500):
        rig.hear("a", bound=FIXED, owed=OWED)
        rig.step(4)
        features = rig.scheduler.requests["a"].mm_features
        counts.append((len(features), len(rig.manager.cached), len(rig.worker.cache)))
    assert rig.expected["a"].parked and rig.expected["a"].evicted > 12_000
    most = FIXED.resident_max(BLOCK, FRAME, OWED) // (FRAME + OWED - 1) + 2
    assert max(max(count) for count in counts) <= most
    assert max(counts[250:]) == max(counts[20:250]), "no more than it was"
    assert all(len(set(count)) == 1 for count in counts), "nothing is cached that no session holds"
    assert max(rig.worker.encoded.values()) == 1, "and each audio was encoded once"


def test_an_unbounded_session_keeps_every_feature_as_vllm_made_it():
    rig = HearingRig(60)
    for _ in range(40):
        rig.hear("a", bound=None)
        rig.step(4)
    kept = [f.mm_position for f in rig.scheduler.requests["a"].mm_features]
    assert [(p.offset, p.length, p.is_embed) for p in kept] == [(3 + 26 * k, 20, None) for k in range(40)]


def test_without_bounds_what_is_encoded_and_freed_is_the_stock_schedulers():
    schedulers = [make_scheduler(kind, 20) for kind in (BoundedScheduler, Scheduler)]
    workers = [HearingWorker(), HearingWorker()]
    for scheduler in schedulers:
        scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=70)
        scheduler.max_num_encoder_input_tokens, scheduler.vocab_size = 70, 1 << 40
    for number in range(12):
        for scheduler in schedulers:
            chunk = make_chunk("ab"[number % 2], [1, *placeholders(number, [True] * 20), 2], 3)
            chunk.mm_features = [feature(number, 1, [True] * 20)]
            scheduler.add_request(chunk)
        for _ in range(4):
            outputs = [scheduler.schedule() for scheduler in schedulers]
            assert decisions(outputs[0]) == decisions(outputs[1])
            heard = [(o.scheduled_encoder_inputs, o.free_encoder_mm_hashes) for o in outputs]
            assert heard[0] == heard[1]
            for scheduler, output, worker in zip(schedulers, outputs, workers, strict=True):
                scheduler.update_from_output(output, worker.run(output)[0])
    caches = [(s.encoder_cache_manager.cached, list(s.encoder_cache_manager.freeable)) for s in schedulers]
    assert caches[0] == caches[1] and len(caches[0][0]) == 3


def test_a_bound_that_goes_comes_and_pins_otherwise():
    rig = HearingRig(60)
    held = {}
    for k, bound in enumerate([FIXED, None, KVBound(40, 33), KVBound(96, 0), KVBound(64, 4, moving=True), None]):
        for _ in range(8):
            rig.hear("a", 20, OWED, bound)
            rig.step(4)
        assert rig.expected["a"].parked
        held[k] = len(rig.scheduler.requests["a"].mm_features)
    assert held[1] == held[0] + 8 and held[5] == held[4] + 8, "without a bound none goes"
    assert held[2] < held[1] and held[4] < held[5]


# -- preempted and waiting sessions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [None, KVBound(192, 4), KVBound(192, 4, moving=True)])
def test_a_preempted_session_encodes_again_what_it_still_holds(bound):
    rig, victim = preempted(bound)
    held, cached = rig.held(victim), set(rig.manager.cached)
    assert len(held) > 4 and len(set(held) - cached) > 2, "the others' audios took the place of its own"
    assert resume(rig, victim)


def test_where_the_cache_holds_them_a_preempted_session_encodes_none_again():
    rig, victim = preempted(KVBound(192, 4), cache=4096)
    assert resume(rig, victim) == set()


@pytest.mark.parametrize("then", [KVBound(64, 4), KVBound(64, 33), KVBound(64, 0), KVBound(64, 4, moving=True)])
def test_cut_at_once_it_encodes_none_that_went(then):
    rig, victim = preempted(None)
    before = rig.held(victim)
    rig.bound(victim, then)
    assert rig.at_once == 1 and rig.scheduler.requests[victim].status == RequestStatus.WAITING
    held, cached = rig.held(victim), set(rig.manager.cached)
    assert set(held) < set(before) and not cached & (set(before) - set(held))
    assert rig.scheduler.requests[victim].mm_features[-1].mm_position.offset > 0
    assert resume(rig, victim)
    assert len(resident(rig, victim)) < 50 * (len(held) - 1) + 20, "the cut fell into an audio, of which a part stayed"


def test_a_bound_that_came_while_it_ran_cuts_it_as_it_is_preempted():
    rig, victim = preempted(None, coming=FIXED)
    assert rig.cut_when_preempted > 0
    assert not rig.expected[victim].parked and resume(rig, victim)


def test_a_waiting_session_is_cut_at_once_with_its_features():
    rig = HearingRig(20)
    for _ in range(200):
        for name in "ab":
            if name not in rig.expected or rig.expected[name].parked:
                rig.hear(name, 30, 4, None)
        rig.step(6)
        if not any(expected.parked for expected in rig.expected.values()):
            break
    assert {request.status for request in rig.scheduler.requests.values()} == {RequestStatus.WAITING}
    before = {name: rig.held(name) for name in "ab"}
    for name in "ab":
        rig.bound(name, FIXED)
        rig.assert_features()
    assert rig.at_once == 2 and all(len(rig.held(name)) < len(before[name]) for name in "ab")
    newest = {before[name][-1] for name in "ab"}
    encoded = rig.worker.encoded.copy()
    rig.step(20)
    assert all(expected.parked for expected in rig.expected.values())
    assert set(rig.worker.encoded - encoded) == newest, "their KV is there: only what is new is encoded"


# -- audios that two sessions hear, and ends -------------------------------------------------------------------------


SHARED = 700


def test_an_audio_that_another_session_holds_stays_its_own():
    rig = HearingRig(60)
    for name in "ab":
        rig.hear(name, 60, number=SHARED)
        rig.step(5)
    assert rig.worker.encoded["audio 700"] == 1, "encoded once for both"
    for _ in range(4):
        rig.hear("a", 30, bound=KVBound(32, 0))
        rig.step(5)
    assert "audio 700" not in rig.held("a") and rig.held("b") == ["audio 700"]
    rig.hear("b", 60, number=SHARED)
    rig.step(5)
    assert rig.expected["b"].parked and len(rig.scheduler.requests["b"].mm_features) == 2
    assert rig.worker.encoded["audio 700"] == 2, "none needed it any more, then one did"


def test_one_that_is_in_use_is_not_forgotten_when_another_session_evicts_or_ends():
    rig = HearingRig(60)
    rig.hear("a", 60, number=SHARED, before=0)
    rig.step(5)
    rig.hear("c", 60, number=SHARED, before=0)
    rig.step(5)
    rig.hear("a", 30)
    rig.step(5)
    rig.scheduler.max_num_scheduled_tokens = 20
    rig.hear("b", 60, number=SHARED, before=0)
    rig.step(1)
    assert rig.manager.cached["audio 700"] == {"b"} and rig.scheduler.requests["b"].num_computed_tokens == 20
    rig.hear("a", 2, bound=KVBound(32, 0))
    assert rig.scheduler.sessions["a"].evicted == 64 and "audio 700" not in rig.held("a")
    rig.abort("c")
    assert rig.manager.cached["audio 700"] == {"b"}
    rig.step(10)
    assert rig.expected["b"].parked and rig.worker.encoded["audio 700"] == 1


def test_a_session_that_ends_leaves_nothing_in_either_cache():
    rig = HearingRig(60)
    for name in "ab":
        for _ in range(3):
            rig.hear(name, bound=FIXED)
            rig.step(4)
    mine = set(rig.held("a"))
    rig.abort("a")
    rig.step()
    assert set(rig.worker.cache) == set(rig.manager.cached) == set(rig.held("b")) and not mine & set(rig.manager.cached)
    rig.abort("b")
    rig.step()
    assert rig.worker.cache == {} == rig.manager.cached and rig.worker.runner.requests == {}
    assert rig.manager.num_free_slots == rig.manager.num_freeable_slots == rig.manager.cache_size


# -- what is refused -------------------------------------------------------------------------------------------------


NO_IMAGE = ENDED + "a session that may lose tokens hears audio and no image"


def test_an_image_ends_a_bounded_session_alone():
    rig = HearingRig(60)
    rig.hear("a", bound=FIXED, modality="image")
    rig.hear("b", bound=FIXED)
    rig.hear("c", modality="image")
    rig.hear("b", bound=FIXED, modality="image")
    assert reasons(rig) == {"a": NO_IMAGE, "b": NO_IMAGE}, "at its first chunk, and at a queued one"
    rig.hear("d", bound=FIXED)
    assert reasons(rig) == {}
    rig.expected["d"].parked = True
    rig.hear("d", bound=FIXED, modality="image")
    assert reasons(rig) == {"d": NO_IMAGE}, "when it is parked"
    rig.hear("c", bound=FIXED)
    assert reasons(rig) == {"c": NO_IMAGE}, "and one that saw an image before it was bounded"
    assert not rig.scheduler.requests and not rig.manager.cached
    assert_books_balance(rig.scheduler)


def test_a_session_that_lost_tokens_sees_no_image_though_it_is_set_free():
    rig = HearingRig(60)
    for _ in range(8):
        rig.hear("a", bound=FIXED)
        rig.step(4)
    assert rig.scheduler.sessions["a"].evicted
    rig.hear("a", bound=None, modality="image")
    assert reasons(rig) == {"a": NO_IMAGE}, "its positions are made of offsets, which an image's are not"


ENDS_IN_AUDIO = ENDED + "a chunk that ends in audio cannot be served: close it with the model's end of audio"


def test_where_positions_are_three_a_chunk_that_ends_in_audio_is_refused():
    rig = HearingRig(60)
    rig.scheduler.uses_mrope = True
    rig.hear("a", after=0)
    rig.hear("b", after=1)
    rig.hear("b", after=0)
    assert reasons(rig) == {"a": ENDS_IN_AUDIO, "b": ENDS_IN_AUDIO}, "the first chunk, and a queued one"
    rig.hear("c", after=1, bound=FIXED)
    assert reasons(rig) == {}
    rig.expected["c"].parked = True
    rig.hear("c", after=0, bound=FIXED)
    assert reasons(rig) == {"c": ENDS_IN_AUDIO}, "when it is parked"
    rig.scheduler.add_request(make_chunk("d", [1] * 40, 2))
    assert reasons(rig) == {} and set(rig.scheduler.requests) == {"d"}, "one that hears nothing ends as it likes"


def test_where_it_is_one_such_a_chunk_is_served():
    rig = HearingRig(60)
    assert rig.scheduler.uses_mrope is False
    for _ in range(8):
        rig.hear("a", after=0, bound=FIXED)
        rig.step(4)
    assert rig.expected["a"].parked and rig.scheduler.sessions["a"].evicted
