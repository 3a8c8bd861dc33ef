"""Moshi on vLLM is transformers' Moshi with the same weights: text token and codes of every frame, bounded or not.

The codes of the user are random, the text tokens and Moshi's own codes are those that it answered.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import DynamicCache, MoshiForConditionalGeneration

from tests.engine.driver import Driver, Frame
from tests.engine.fed import Fed
from tests.engine.reference import visible_positions
from workbench.audio import AudioStream, sample_clip
from workbench.bound import KVBound
from workbench.engine.media import AudioChunk
from workbench.frontends import make_frontend
from workbench.profiles import load_profile
from workbench.reference import ReferenceSession
from workbench.tiny_models.moshi import WINDOW
from workbench.weights import model_path

FRAMES, TEXTS, CODES = 150, 512, 64
TOLERANCE = 1e-4
# A frame is one position, so in blocks of 32 a cut comes every 32 frames.
BOUNDS = {
    "unbounded": None,
    "S0-W64": KVBound(64, 0),
    "S4-W32": KVBound(32, 4),
    "own window": KVBound(WINDOW - 1, 0),
}
ONE_SHOT = 40  # positions


class MoshiDriver(Driver):
    """Keeps what went in, ``streams`` (17,), and the codes that came out of each frame."""

    def _submit(self, session, tokens, bound, owed) -> None:
        super()._submit(session, tokens, bound, owed)
        frame = self.frames[session][-1]
        frame.streams, frame.codes = tokens.audio, None

    def _hear(self, event) -> None:
        if event.codes is not None:
            self.frames[event.session][-1].codes = event.codes
        super()._hear(event)


def position(*streams: np.ndarray) -> AudioChunk:
    return AudioChunk([int(each[0]) % TEXTS for each in streams], list(streams), len(streams))


@pytest.fixture(scope="module")
def folder():
    return model_path("moshi-tiny")


@pytest.fixture(scope="module")
def driver():
    profile = load_profile("moshi-tiny", pool_blocks=48)
    limits = {"limit_mm_per_prompt": {"audio": ONE_SHOT}}
    driver = MoshiDriver(profile, engine_args=limits)
    yield driver
    driver.stop()


@pytest.fixture(scope="module")
def served(driver) -> dict[str, list[Frame]]:
    """All sessions together, each answered before its next frame."""
    draw = np.random.RandomState(1)
    # The last token's text and codes: at first the ones past all others, which say that there is nothing yet.
    last = {name: [TEXTS, *[CODES] * 8] for name in BOUNDS}
    for _ in range(FRAMES):
        chunks = {}
        for name, bound in BOUNDS.items():
            streams = np.array([*last[name], *draw.randint(0, CODES, 8)], dtype=np.int64)
            chunks[name] = position(streams), bound
        for name, frame in driver.round(chunks, owed=1).items():
            last[name] = [*frame.tokens_out, *frame.codes]
    return {name: list(driver.frames[name]) for name in BOUNDS}


@pytest.fixture(scope="module")
def model(folder):
    return MoshiForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()


@torch.inference_mode()
def embedded(model, frames) -> torch.Tensor:
    streams = torch.tensor(np.concatenate([frame.streams for frame in frames]))
    audio = sum(table(codes) for table, codes in zip(model.embed_tokens, streams.T[1:], strict=True))
    return audio + model.decoder.model.embed_tokens(streams[:, 0])


@torch.inference_mode()
def hidden_states(model, frames, block: int) -> torch.Tensor:
    """Of each frame, from one forward pass with the mask that the frames' bounds amount to."""
    _, before, own = visible_positions(frames, block)
    n = len(frames)
    mask = torch.full((n, n), torch.finfo(torch.float32).min)
    for seen, (here,) in zip(before, own, strict=True):
        mask[here, [*seen, here]] = 0.0
    inputs = embedded(model, frames)[None]
    at = torch.arange(n)[None]
    return model.decoder.model(inputs_embeds=inputs, position_ids=at, attention_mask=mask[None, None])[0][0]


@torch.inference_mode()
def native_states(model, frames) -> torch.Tensor:
    """Of each frame, step by step with transformers' own cache of the model's own window."""
    cache = DynamicCache(config=model.config)
    steps = embedded(model, frames)[None].split(1, dim=1)
    states = [model.decoder.model(inputs_embeds=step, past_key_values=cache, use_cache=True)[0][0] for step in steps]
    assert cache.layers[0].keys.shape[2] == WINDOW - 1
    return torch.cat(states)


@torch.inference_mode()
def text_differences(model, states, frames) -> torch.Tensor:
    """|served - reference| log-probability of each frame's text token."""
    tokens = torch.tensor([frame.tokens_out for frame in frames])
    given = torch.tensor([frame.logprobs for frame in frames])
    return (torch.log_softmax(model.decoder.lm_head(states), dim=-1).gather(1, tokens) - given).abs()[:, 0]


@torch.inference_mode()
def likeliest_codes(model, states, frames) -> torch.Tensor:
    """Each code the likeliest after those served before it in the frame, (frames, 8)."""
    served = torch.tensor([[*frame.tokens_out, *frame.codes[:-1]] for frame in frames])
    return model.depth_decoder(input_ids=served, last_hidden_state=states[:, None], use_cache=False).logits.argmax(-1)


@pytest.mark.parametrize("name", BOUNDS)
def test_every_frame_is_that_of_transformers(served, driver, model, name):
    frames = served[name]
    states = hidden_states(model, frames, driver.profile.block_size)
    worst = text_differences(model, states, frames).max().item()
    codes = torch.tensor([frame.codes for frame in frames])
    print(f"{name}: {len(frames)} text tokens, largest difference {worst:.2e}; {codes.numel()} codes")
    assert worst < TOLERANCE
    assert torch.equal(likeliest_codes(model, states, frames), codes)
    # It says different things: a model that always answers the same would pass too.
    assert len({frame.tokens_out[0] for frame in frames}) > 50 and len(codes.unique(dim=0)) > 100


def test_an_ignored_bound_would_be_noticed(served, driver, model):
    frames = served["S4-W32"]
    unbounded = [Frame(frame.tokens_in, None, frame.tokens_out, frame.logprobs) for frame in frames]
    for mine, theirs in zip(unbounded, frames, strict=True):
        mine.streams, mine.codes = theirs.streams, theirs.codes
    states = hidden_states(model, unbounded, driver.profile.block_size)
    assert text_differences(model, states, frames).max() > 100 * TOLERANCE
    codes = torch.tensor([frame.codes for frame in frames])
    assert (likeliest_codes(model, states, frames) != codes).sum() > 100


def test_the_own_window_is_a_bound_but_for_the_size_of_a_block(served, driver, model):
    """A bound of one less is the model's own window in blocks of one token; in larger ones it sees up to one more."""
    frames = served["own window"]
    native = native_states(model, frames)
    assert (hidden_states(model, frames, block=1) - native).abs().max() < TOLERANCE
    # As served: equal until the window is full, then a little apart, and nearer than without any bound.
    served_apart = text_differences(model, native, frames)
    print(f"own window against blocks of {driver.profile.block_size}: median {served_apart[WINDOW:].median():.3f}")
    assert served_apart[:WINDOW].max() < TOLERANCE < served_apart[WINDOW:].max()
    _, before, _ = visible_positions(frames, driver.profile.block_size)
    most = WINDOW - 1 + driver.profile.block_size - 1
    assert {len(seen) for seen in before[WINDOW:]} == set(range(WINDOW - 1, most + 1))


def test_sinks_that_move_are_those_of_a_cache_whose_keys_are_rotated_on(driver, model):
    assert driver.engine.facts.sinks_stay is None
    draw, moving, last = np.random.RandomState(2), KVBound(32, 4, moving=True), [TEXTS, *[CODES] * 8]
    for _ in range(FRAMES):
        streams = np.array([*last, *draw.randint(0, CODES, 8)], dtype=np.int64)
        frame = driver.round({"moving": (position(streams), moving)}, owed=1)["moving"]
        last = [*frame.tokens_out, *frame.codes]
    frames, block = driver.frames["moving"], driver.profile.block_size
    rotary = model.decoder.model.layers[0].self_attn.rotary_emb
    fed = Fed(model.decoder.model, model.decoder.lm_head, embedded(model, frames), rotary)
    session = ReferenceSession(fed, block)
    expected = [session.logprobs(frame)[0] for frame in frames]
    worst = max(abs(frame.logprobs[0] - each) for frame, each in zip(frames, expected, strict=True))
    codes = torch.tensor([frame.codes for frame in frames])
    print(f"moving: {len(frames)} text tokens, largest difference {worst:.2e}; {codes.numel()} codes")
    assert worst < TOLERANCE and torch.equal(likeliest_codes(model, torch.cat(fed.states), frames), codes)
    # As if they stayed where they were said.
    assert text_differences(model, hidden_states(model, frames, block), frames).max() > 100 * TOLERANCE
    driver.close("moving")


def test_frames_in_one_prompt_are_answered_as_frames_one_by_one(served, driver):
    """Also what a session that lost its blocks computes again: the items alone say what its positions are."""
    streams = [frame.streams[0] for frame in served["unbounded"][:ONE_SHOT]]
    whole = driver.round({"whole": (position(*streams), None)}, owed=1)["whole"]
    last = served["unbounded"][ONE_SHOT - 1]
    assert (whole.tokens_out, whole.codes) == (last.tokens_out, last.codes)
    assert whole.logprobs == pytest.approx(last.logprobs, abs=TOLERANCE)
    driver.close("whole")


def test_what_is_resident_is_what_the_bound_says(served, driver):
    sessions = driver.snapshot().sessions
    resident = {name: (sessions[name].resident, sessions[name].evicted) for name in BOUNDS}
    # Of 150 frames whole blocks are gone: behind one block of sinks, before the window.
    assert resident == {"unbounded": (150, 0), "S0-W64": (86, 64), "S4-W32": (86, 64), "own window": (118, 32)}


def test_host_memory_is_flat_over_five_hundred_frames(driver, folder):
    """Through the front end, whose codec is a part of what a session holds."""
    clip, bound = sample_clip("numbers"), KVBound(64, 4)
    vocab_size, budget = driver.engine.facts.vocab_size, driver.profile.frame_budget_s
    heard = make_frontend("moshi", vocab_size=vocab_size, clip=clip, frame_budget_s=budget, model_path=folder)
    stream, seen, before = AudioStream(clip, budget, loop=True), [], driver.media()
    for k in range(500):
        heard.encode(stream.chunk(k), k)
        chunk, owed = heard.chunk(k, 1)
        frame = driver.round({"long": (chunk, bound)}, owed)["long"]
        heard.said(frame.tokens_out, k, 0.0)
        heard.spoke(frame.codes)
        if k % 100 == 99:
            mine = [now - then for now, then in zip(driver.media(), before, strict=True)]
            seen.append((k + 1, driver.resident_mib(), mine, driver.snapshot().sessions["long"].resident))
    most = bound.resident_max(driver.profile.block_size, 1, 1)
    assert most < seen[-1][0] / 3
    for frames, rss, (features, scheduler, worker), held in seen:
        print(f"frame {frames}: {rss:.0f} MiB resident, {features} features, {scheduler} + {worker} encoder entries")
        assert features == held <= most and max(scheduler, worker) <= held
    assert abs(seen[-1][1] - seen[0][1]) < 16
    driver.close("long")
    assert driver.media()[0] == before[0]


def test_a_wrong_position_ends_its_session_alone(served, driver):
    good = served["unbounded"][-1].streams[0]
    beyond, short = good.copy(), good[:16]
    beyond[3] = CODES + 1
    chunks = {"beyond": (position(beyond), None), "short": (position(short), None), "good": (position(good), None)}
    answers = driver.round(chunks, owed=1)
    assert "refused by the engine: " in answers["beyond"].ended and "a code 0 to 64" in answers["beyond"].ended
    assert "17 whole numbers, not int64 (16,)" in answers["short"].ended
    assert answers["good"].ended is None and len(answers["good"].codes) == 8
    assert all("\n" not in (answer.ended or "") for answer in answers.values())
    driver.close("good")
