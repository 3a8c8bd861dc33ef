"""Each omni model through its real multimodal path: streamed as at once, and bounded as with the equivalent mask."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.engine.omni import Omni, without_bound
from tests.engine.omni_reference import Decoder
from workbench.bound import KVBound
from workbench.engine.media import AudioChunk

TOLERANCE = 2e-3
SECONDS, CHUNKS, FRAMES, LONG = 0.8, 6, 24, 500
BOUNDS = {
    "S0": lambda k: KVBound(96, 0),
    "S4": lambda k: KVBound(96, 4),
    "S40": lambda k: KVBound(128, 40),
    "switched": lambda k: None if 10 <= k < 14 else KVBound(96, 4) if k < 18 else KVBound(70, 40),
}
OTHERS = [pytest.param(name, marks=pytest.mark.models) for name in ("qwen3-omni-tiny", "minicpm-o-4.5-tiny")]


@pytest.fixture(scope="module", params=["qwen2.5-omni-tiny", *OTHERS])
def omni(request):
    # Few tokens a step, for with them comes the size of the encoder cache.
    served = Omni(request.param, SECONDS, pool_blocks=64, max_model_len=1024, max_batched_tokens=256)
    yield served
    served.stop()


@pytest.fixture(scope="module")
def decoder(omni):
    return Decoder(omni.folder)


@pytest.fixture(autouse=True)
def nobody_stays(omni):
    yield
    omni.close(*omni.driver.frames)


def farthest(got, expected) -> float:
    return max((torch.tensor(g.logprobs) - e).abs().max().item() for g, e in zip(got, expected, strict=True))


def test_streamed_chunks_equal_one_prompt_of_the_same_audio(omni):
    starts = {"one": 0.0, "two": 3.0}
    for _ in range(CHUNKS):
        omni.round(dict.fromkeys(starts), starts=starts)
    for name in starts:
        whole = omni.one_shot(name)
        at_once = omni.driver.round({f"{name} at once": (whole, None)}, 3)[f"{name} at once"]
        streamed = omni.frames(name)[-1]
        assert len(whole.audio) == CHUNKS
        assert at_once.tokens_out == streamed.tokens_out
        difference = max(abs(a - b) for a, b in zip(at_once.logprobs, streamed.logprobs, strict=True))
        print(f"{name}: {CHUNKS} chunks, {whole.length} tokens, largest difference {difference:.1e}")
        assert difference < TOLERANCE
    assert omni.frames("one")[-1].logprobs != omni.frames("two")[-1].logprobs


def test_the_front_end_counts_as_the_model_does(omni):
    for _ in range(3):
        omni.round({"one": None})
    view = omni.driver.snapshot().sessions["one"]
    assert view.resident == sum(sent.length for sent in omni.sent["one"]) + 3 * 2


@pytest.fixture(scope="module")
def bounded(omni):
    """The frames and the embeddings of sessions under different bounds and of an unbounded one, all served together."""
    starts = {name: 2.0 * i for i, name in enumerate([*BOUNDS, "unbounded"])}
    omni.embeddings()
    for k in range(FRAMES):
        omni.round({**{name: bound(k) for name, bound in BOUNDS.items()}, "unbounded": None}, starts=starts)
    views = omni.driver.snapshot().sessions
    return {name: list(omni.frames(name)) for name in starts}, omni.embeddings(), views


@pytest.mark.parametrize("name", [*BOUNDS, "unbounded"])
def test_log_probabilities_are_those_of_the_equivalent_mask(omni, decoder, bounded, name):
    frames, embeddings, views = bounded
    # The last token of each frame is sampled and never computed; all others were, once.
    expected = decoder.logprobs(frames[name], embeddings[name], omni.profile.block_size)
    difference = farthest(frames[name], expected)
    evicted = views[name].evicted
    print(f"{name}: {FRAMES * 3} tokens compared, {evicted} evicted, largest difference {difference:.1e}")
    assert difference < TOLERANCE
    assert (evicted > 0) == (name != "unbounded")


def test_a_bound_that_is_ignored_would_be_noticed(omni, decoder, bounded):
    frames, embeddings, _ = bounded
    expected = decoder.logprobs(without_bound(frames["S4"]), embeddings["S4"], omni.profile.block_size)
    assert farthest(frames["S4"], expected) > 10 * TOLERANCE


def test_sinks_that_move_are_those_of_a_cache_whose_keys_are_rotated_on(omni, decoder):
    moving = KVBound(96, 40, moving=True)
    if omni.profile.name.startswith("qwen"):
        why = omni.engine.facts.sinks_stay
        assert "M-RoPE" in why and why in omni.round({"refused": moving})["refused"].ended
        del omni.driver.frames["refused"]
        return
    omni.embeddings()
    for _ in range(FRAMES):
        omni.round({"one": moving})
    frames, embeddings, block = omni.frames("one"), omni.embeddings()["one"], omni.profile.block_size
    difference = farthest(frames, decoder.moving_logprobs(frames, embeddings, block))
    print(f"moving: {FRAMES * 3} tokens compared, largest difference {difference:.1e}")
    assert difference < TOLERANCE
    assert omni.driver.snapshot().sessions["one"].evicted > 0
    assert farthest(frames, decoder.logprobs(frames, embeddings, block)) > 10 * TOLERANCE


def test_what_is_heard_is_what_the_model_s_own_encoder_makes_of_it(omni, decoder):
    if not omni.profile.name.startswith("qwen"):
        pytest.skip("no other implementation of this model's audio encoder is installed")
    omni.embeddings()
    omni.round({"one": None})
    (sent,) = omni.sent["one"]
    heard = decoder.heard(sent.audio[0][0]).numpy()
    begin = sent.length - 1 - len(heard)
    assert np.abs(omni.embeddings()["one"][begin : begin + len(heard)] - heard).max() < 1e-4
    assert np.abs(heard).max() > 1e-2


def test_a_preempted_session_encodes_again_what_the_engine_let_go(omni, decoder):
    """Three sessions hold more audio than the encoder cache keeps, and their replies get longer than the pool is."""
    names = {"one": 0.0, "two": 3.0, "three": 6.0}
    held = omni.driver.do(omni.engine.media())["encoder_cache"] // (omni.profile.frame_tokens - 2)
    for _ in range(held // 3 + 2):
        omni.round(dict.fromkeys(names), starts=names)
    before = omni.driver.snapshot()
    assert omni.driver.do(omni.engine.media())["features"] > held
    encoded, free = omni.rpc("metronome_encoded"), before.free_blocks * omni.profile.block_size
    # A third of what is left each, and a block more. What has been answered keeps its blocks, so one has to go.
    omni.outgrow(names, free // 3 + omni.profile.block_size)
    again = omni.rpc("metronome_encoded") - encoded - len(names)
    assert omni.driver.snapshot().preemptions > before.preemptions
    assert again > 0
    embeddings = omni.embeddings()
    for name in names:
        frames = omni.frames(name)
        count = sum(len(frame.tokens_in) + len(frame.tokens_out) - 1 for frame in frames)
        # One that was preempted was computed afresh from its first token on.
        difference = farthest(frames, decoder.logprobs(frames, embeddings[name][-count:], omni.profile.block_size))
        print(f"{name}: {count} tokens, {again} features encoded again, largest difference {difference:.1e}")
        assert difference < TOLERANCE


def test_host_memory_is_flat_over_five_hundred_frames(omni):
    seen = []
    for k in range(LONG):
        omni.round({"one": KVBound(96, 4)}, owed=1)
        if k % 100 == 99:
            # What this worker and this test record of it is no part of what a session costs.
            omni.rpc("metronome_forget")
            omni.sent["one"][:] = [None] * (k + 1)
            seen.append((k + 1, omni.driver.resident_mib(), *omni.driver.media()))
    for frames, rss, features, scheduler, worker in seen:
        print(f"frame {frames}: {rss:.0f} MiB resident, {features} features, {scheduler} + {worker} encoder entries")
    # What a pinned block, the window, a block that is not full and the newest frame can hold a part of.
    most = 2 + (96 + 32) // omni.profile.frame_tokens + 3
    assert all(0 < min(counts) and max(counts) <= most < seen[0][0] for _, _, *counts in seen)
    assert abs(seen[-1][1] - seen[0][1]) < 16
    omni.close("one")
    assert omni.driver.media() == [0, 0, 0]


def test_a_chunk_that_cannot_be_served_ends_its_session_alone(omni):
    omni.round({"one": None})
    (sent,) = omni.sent["one"]
    short = AudioChunk(list(sent), (np.zeros(80, np.float32), 16_000), sent.length)
    ended = omni.driver.round({"short": (short, None), "one": (omni.chunk("one"), None)})
    assert ended["short"].ended.startswith("refused by the engine: ") and "\n" not in ended["short"].ended
    assert ended["one"].ended is None and len(ended["one"].tokens_out) == 3
    if omni.profile.name.startswith("qwen"):
        open_ended = AudioChunk(list(sent)[:-1], sent.audio, sent.length - 1)
        assert "end of audio" in omni.driver.round({"open": (open_ended, None)})["open"].ended
        del omni.driver.frames["open"]
    del omni.driver.frames["short"]
    assert omni.round({"one": None})["one"].ended is None
