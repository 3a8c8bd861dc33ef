"""The moshi front end on the beat: which code of which stream goes in when, and what is refused."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from workbench.audio import AudioStream, Clip
from workbench.beat import Beat
from workbench.engine.base import TokenEvent
from workbench.engine.media import AudioChunk
from workbench.frontends import FrontEndError, make_frontend, tokens_per_frame
from workbench.moshi_codec import FRAME_IN, FRAME_OUT
from workbench.profiles import load_profile
from workbench.telemetry import Tables
from workbench.weights import model_path

B, FRAMES, TEXTS, CODES = 0.08, 6, 512, 64
START, NONE = TEXTS, CODES
PROFILE = load_profile("tiny", frame_budget_s=B, tokens_owed=1, phase_groups=1, front_end="moshi")


@pytest.fixture(scope="module")
def folder():
    return model_path("moshi-tiny")


@pytest.fixture(scope="module")
def clip() -> Clip:
    return Clip("noise", np.random.RandomState(7).uniform(-0.3, 0.3, FRAMES * FRAME_IN).astype(np.float32))


def moshi(folder, frame_budget_s=B, vocab_size=TEXTS):
    return make_frontend("moshi", vocab_size=vocab_size, clip=None, frame_budget_s=frame_budget_s, model_path=folder)


def own(k: int) -> tuple[int, ...]:
    """The codes that answer chunk k."""
    return tuple(8 * k + stream for stream in range(8))


def text(k: int) -> int:
    """The text token that answers chunk k."""
    return 100 + k


class Answers:
    """Answers chunk k with text(k) and own(k), when it is told to."""

    def __init__(self) -> None:
        self.chunks: list[tuple[AudioChunk, int]] = []

    def submit(self, session, tokens, owed, bound, stop_token_ids=()) -> None:
        self.chunks.append((tokens, owed))

    def close(self, session) -> None: ...

    def answer(self, codes: bool = True) -> TokenEvent:
        k = len(self.chunks) - 1
        return TokenEvent("a", (text(k),), 0.0, done=True, codes=own(k) if codes else None)


def on_the_beat(front_end, clip, drop=False):
    engine = Answers()
    beat = Beat(PROFILE, Tables("virtual"), engine)
    stream = AudioStream(clip, B)
    session = beat.open("a", "noise", lambda k: front_end.encode(stream.chunk(k), k), 0.0, talk=front_end)
    return engine, beat, session


def heard(front_end, clip) -> list[np.ndarray]:
    """The user's codes of each frame: Mimi begins with the second, for position 0 holds no audio."""
    encoder = front_end._mimi.encoder()
    return [None, *(encoder.encode(frame) for frame in clip.samples.reshape(FRAMES, FRAME_IN)[1:])]


def table(engine) -> list[list[int]]:
    assert all(
        isinstance(chunk, AudioChunk) and len(chunk) == chunk.length == owed == 1 for chunk, owed in engine.chunks
    )
    assert all(len(chunk.audio) == 1 and chunk.audio[0].dtype == np.int64 for chunk, _ in engine.chunks)
    return [chunk.audio[0].tolist() for chunk, _ in engine.chunks]


def test_the_17_streams_of_five_frames(folder, clip):
    front_end = moshi(folder)
    engine, beat, session = on_the_beat(front_end, clip)
    for k in range(5):
        beat.advance((k + 1) * B)
        assert front_end.settled
        beat.hear(engine.answer(), (k + 1) * B + 0.01)
    users = heard(front_end, clip)
    assert table(engine) == [
        [START, *[NONE] * 8, *[NONE] * 8],
        [text(0), own(0)[0], *[NONE] * 7, users[1][0], *[NONE] * 7],
        [text(1), *own(1), users[2][0], *users[1][1:]],
        [text(2), *own(2), users[3][0], *users[2][1:]],
        [text(3), *own(3), users[4][0], *users[3][1:]],
    ]
    # The start token is past the vocabulary, so the prompt has another in its place.
    assert [list(chunk) for chunk, _ in engine.chunks] == [[0], [text(0)], [text(1)], [text(2)], [text(3)]]
    assert list(session.words) == [text(k) for k in range(5)]


def test_codes_may_come_before_or_after_their_token(folder, clip):
    positions = []
    for codes_first in (True, False):
        front_end = moshi(folder)
        for k, frame in enumerate(clip.samples.reshape(FRAMES, FRAME_IN)):
            front_end.encode(frame, k)
            positions.append(front_end.chunk(k, 1)[0].audio[0].tolist())
            answer = [lambda f=front_end, k=k: f.said((text(k),), k, 0.0), lambda f=front_end, k=k: f.spoke(own(k))]
            for part in reversed(answer) if codes_first else answer:
                part()
    assert positions[:FRAMES] == positions[FRAMES:]


def test_a_late_answer_is_waited_for_and_a_dropped_frame_is_left_out(folder, clip):
    front_end = moshi(folder)
    engine, beat, _ = on_the_beat(front_end, clip)
    beat.advance(B)
    beat.hear(engine.answer(), B)
    # No answer to chunk 1 before frames 2 to 4 are heard, of which one waits too many.
    beat.advance(5 * B)
    assert len(engine.chunks) == 2 and not front_end.settled
    for at in (5.1, 5.2):
        beat.hear(engine.answer(), at * B)
    users = heard(front_end, clip)
    assert table(engine)[2:] == [
        [text(1), *own(1), users[3][0], *users[1][1:]],
        [text(2), *own(2), users[4][0], *users[3][1:]],
    ]
    assert front_end.settled


def test_an_engine_that_makes_no_codes_ends_the_session(folder, clip):
    front_end = moshi(folder)
    engine, beat, _ = on_the_beat(front_end, clip)
    beat.advance(B)
    beat.hear(engine.answer(codes=False), B)
    beat.advance(2 * B)
    (row,) = beat.tables.session_rows.values()
    assert row.reason.startswith("front end failed: FrontEndError: moshi front end: a frame was answered without codes")


def test_pads_are_heard_by_the_model_and_shown_to_nobody(folder, clip):
    front_end = moshi(folder)
    front_end.encode(clip.samples[:FRAME_IN], 0)
    front_end.chunk(0, 1)
    assert front_end.said((3,), 0, 0.0) == ()
    front_end.spoke(own(0))
    front_end.encode(clip.samples[FRAME_IN : 2 * FRAME_IN], 1)
    assert front_end.chunk(1, 1)[0].audio[0][0] == 3
    assert front_end.said((0,), 1, 0.0) == () and front_end.said((7,), 2, 0.0) == (7,)
    assert front_end.decode((7, 8)) == "‹2 tokens of text, no tokenizer›"


def test_wrong_codes_and_samples_are_refused(folder, clip):
    front_end = moshi(folder)
    with pytest.raises(FrontEndError, match="7 codes answer a frame, not 8"):
        front_end.spoke((1,) * 7)
    front_end.encode(clip.samples[:FRAME_IN], 0)
    with pytest.raises(FrontEndError, match=r"frame 1: Mimi hears frames of 1280 floats .* not float32 \(1920,\)"):
        front_end.encode(clip.samples[:FRAME_OUT], 1)


@pytest.mark.parametrize("budget", [0.04, 0.16, 2.0, float("nan")])
def test_another_frame_budget_is_refused(folder, budget):
    for refused in (lambda: moshi(folder, budget), lambda: tokens_per_frame("moshi", budget)):
        with pytest.raises(FrontEndError, match=f"frame budget {budget} s is not 0.08 s"):
            refused()
    assert tokens_per_frame("moshi", B) == 1


def spoiled(folder, tmp_path, **changes):
    copy = shutil.copytree(folder, tmp_path / "spoiled")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | changes))
    return copy


def no_object(tmp_path):
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "config.json").write_text("[]")
    return tmp_path / "list"


def test_a_model_that_does_not_fit_is_refused_with_one_line(folder, tmp_path):
    cases = [
        (lambda: moshi(folder, vocab_size=32_000), "a text vocabulary of 512, the engine one of 32000"),
        (lambda: moshi(None), "needs the folder of a Moshi"),
        (lambda: moshi(tmp_path), "config.json cannot be read: "),
        (lambda: moshi(no_object(tmp_path)), "config.json holds no JSON object; give a Moshi folder"),
        (lambda: moshi(spoiled(folder, tmp_path / "a", audio_encoder_config=None)), "no Mimi"),
        (lambda: moshi(spoiled(folder, tmp_path / "b", architectures=["Llama"])), "is no MoshiForConditional"),
    ]
    for make, why in cases:
        with pytest.raises(FrontEndError) as refused:
            make()
        assert why in str(refused.value) and "\n" not in str(refused.value)
