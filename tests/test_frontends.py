"""workbench.frontends: token counts, ranges, determinism, pace, and what is refused."""

import json
import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from workbench.audio import SAMPLE_RATE, AudioError, AudioStream, Clip, sample_clip, sample_clips
from workbench.frontends import FrontEndError, make_frontend, tokens_per_frame
from workbench.frontends.codec2 import token_range

VOCAB = 49_152


def codec2(clip, frame_budget_s=0.08, vocab_size=VOCAB):
    return make_frontend("codec2", vocab_size=vocab_size, clip=clip, frame_budget_s=frame_budget_s)


def acoustic_stream(clip, frame_budget_s=0.08, seconds=2.0, start_s=0.0, vocab_size=VOCAB):
    """codec2's tokens of the first `seconds`, one list per frame."""
    front_end = codec2(clip, frame_budget_s, vocab_size)
    stream = AudioStream(clip, frame_budget_s, start_s=start_s)
    return [front_end.encode(stream.chunk(k), k) for k in range(round(seconds / frame_budget_s))]


def flat(frames):
    return [token for frame in frames for token in frame]


# codec2


@pytest.mark.parametrize(("frame_budget_s", "tokens"), [(0.04, 1), (0.08, 2), (0.12, 3), (1.0, 25), (2.0, 50)])
def test_codec2_gives_one_token_per_40_ms_from_the_first_frame_on(frame_budget_s, tokens):
    frames = acoustic_stream(sample_clip("numbers"), frame_budget_s, seconds=4 * frame_budget_s)
    assert [len(frame) for frame in frames] == [tokens] * 4
    assert tokens_per_frame("codec2", frame_budget_s) == tokens


@pytest.mark.parametrize("vocab_size", [8, 1_000, 32_000, VOCAB])
def test_codec2_stays_in_its_range_of_the_vocabulary(vocab_size):
    allowed = token_range(vocab_size)
    assert (allowed.start, len(allowed)) == (vocab_size // 2, min(4_096, vocab_size // 4))
    tokens = flat(acoustic_stream(sample_clip("numbers"), vocab_size=vocab_size))
    assert set(tokens) <= set(allowed)
    assert len(set(tokens)) > 1


def test_codec2_hears_the_same_whatever_the_frame_budget():
    short, long = (flat(acoustic_stream(sample_clip("goforward"), budget)) for budget in (0.04, 2.0))
    assert short == long


def test_codec2_is_the_same_in_a_fresh_instance_and_a_fresh_process():
    code = (
        "import json; from workbench.audio import AudioStream, sample_clip;"
        "from workbench.frontends import make_frontend;"
        "clip = sample_clip('numbers'); stream = AudioStream(clip, 0.08);"
        f"front_end = make_frontend('codec2', vocab_size={VOCAB}, clip=clip, frame_budget_s=0.08);"
        "print(json.dumps([front_end.encode(stream.chunk(k), k) for k in range(25)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    frames = acoustic_stream(sample_clip("numbers"))
    assert acoustic_stream(sample_clip("numbers")) == frames
    assert json.loads(done.stdout) == frames


def test_distinct_audio_gives_distinct_streams():
    streams = [flat(acoustic_stream(clip)) for clip in sample_clips()]
    streams += [flat(acoustic_stream(sample_clip("numbers"), start_s=start_s)) for start_s in (0.5, 1.0, 1.01)]
    for one, other in combinations(streams, 2):
        alike = sum(a == b for a, b in zip(one, other, strict=True))
        # Leading silence may sound the same for a few tokens; the speech after it never does.
        assert alike < len(one) / 4


@pytest.mark.parametrize(("hertz", "gain"), [(300, 1.0), (1_000, 1.0), (3_000, 1.0), (4_200, 0.0), (7_000, 0.0)])
def test_codec2_hears_the_telephone_band_and_nothing_folded_into_it(hertz, gain):
    wave = 0.5 * np.sin(2 * np.pi * hertz * np.arange(16_000) / SAMPLE_RATE)
    heard = codec2(Clip("tone", wave), 1.0)._to_codec_rate(wave.astype(np.float32))
    assert heard.shape == (8_000,)
    assert np.abs(heard[100:]).max() / (0.5 * 32_767) == pytest.approx(gain, abs=2e-3)


def test_codec2_says_that_its_words_mean_nothing():
    front_end = codec2(sample_clip("numbers"))
    assert (front_end.name, front_end.meaningful, front_end.stop_token_ids) == ("codec2", False, ())
    assert front_end.decode([1, 2, 3]) == "‹3 tokens of load, no meaning›"


@pytest.mark.parametrize("frame_budget_s", [0.0, -0.04, 0.02, 0.05, 0.1, float("nan"), float("inf")])
def test_codec2_refuses_a_frame_budget_that_is_no_multiple_of_40_ms(frame_budget_s):
    for refusing in (
        lambda: codec2(sample_clip("numbers"), frame_budget_s),
        lambda: tokens_per_frame("codec2", frame_budget_s),
    ):
        with pytest.raises(FrontEndError, match=f"frame budget {frame_budget_s} s is not a multiple of 0.04 s"):
            refusing()


def test_codec2_refuses_a_tiny_vocabulary_and_a_frame_of_another_length():
    with pytest.raises(FrontEndError, match="vocabulary of 7 tokens"):
        codec2(sample_clip("numbers"), vocab_size=7)
    with pytest.raises(FrontEndError, match="frame 5 has shape"):
        codec2(sample_clip("numbers")).encode(np.zeros(640, np.float32), 5)


# text

SPOKEN = "he was not an ill disposed young man"


def train(folder, special_tokens):
    """A byte-level tokenizer in which each word of SPOKEN is one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special_tokens, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([f" {SPOKEN}"] * 5, trainer)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return train(tmp_path_factory.mktemp("models") / "plain", [])


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    return train(tmp_path_factory.mktemp("models") / "chat", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])


def spoken_clip(seconds=4.0):
    """Eight words over `seconds`: one every half second when that is 4."""
    return Clip("spoken", np.zeros(round(seconds * SAMPLE_RATE), np.float32), transcript=SPOKEN)


def speak(model_path, clip, frame_budget_s, frames, **options):
    """The text front end's frames, decoded one by one."""
    front_end = make_frontend(
        "text", vocab_size=VOCAB, clip=clip, frame_budget_s=frame_budget_s, model_path=model_path, **options
    )
    stream = AudioStream(clip, frame_budget_s, **options)
    return [front_end.decode(front_end.encode(stream.chunk(k), k)) for k in range(frames)]


def test_words_come_at_speaking_pace_and_loop_with_the_clip(plain):
    assert speak(plain, spoken_clip(), 1.0, 5) == [" he was", " not an", " ill disposed", " young man", " he was"]


def test_a_frame_between_two_words_is_one_newline(plain):
    assert speak(plain, spoken_clip(), 0.25, 4) == [" he", "\n", " was", "\n"]


def test_a_frame_longer_than_the_clip_says_it_again(plain):
    assert speak(plain, spoken_clip(), 5.0, 1) == [f" {SPOKEN} he was"]


def test_words_follow_the_start_of_the_audio(plain):
    assert speak(plain, spoken_clip(), 1.0, 2, start_s=3.0) == [" young man", " he was"]


def test_words_end_with_audio_that_does_not_loop(plain):
    assert speak(plain, spoken_clip(), 1.0, 3, loop=False, start_s=3.0) == [" young man", "\n", "\n"]


@pytest.mark.parametrize("frame_budget_s", [0.08, 0.3, 1.7])
@pytest.mark.parametrize("seconds", [2.99, 3.1415926])
def test_no_word_is_lost_or_said_twice_over_many_loops(plain, frame_budget_s, seconds):
    loops = 20
    frames = speak(plain, spoken_clip(seconds), frame_budget_s, round(loops * seconds / frame_budget_s) + 1)
    said = " ".join(frames).split()
    assert len(said) >= loops * len(SPOKEN.split()) - 1
    assert said == (SPOKEN.split() * (loops + 2))[: len(said)]


def test_the_first_frame_opens_the_chat(chat):
    clip = spoken_clip()
    front_end = make_frontend("text", vocab_size=VOCAB, clip=clip, frame_budget_s=1.0, model_path=chat)
    tokenizer = Tokenizer.from_file(str(chat / "tokenizer.json"))
    start, end = (tokenizer.token_to_id(token) for token in ("<|im_start|>", "<|im_end|>"))
    assert front_end.stop_token_ids == (end,)
    assert front_end.meaningful
    # The first frame this session encodes, whatever its number: frames before it may have been dropped.
    first, second = front_end.encode(np.zeros(0), 2), front_end.encode(np.zeros(0), 3)
    assert (first[0], first.count(start), first.count(end)) == (start, 2, 1)
    shown = tokenizer.decode(first, skip_special_tokens=False)
    assert shown.startswith("<|im_start|>system\n")
    assert shown.endswith("<|im_end|>\n<|im_start|>user\n ill disposed")
    assert tokenizer.decode(second) == " young man"
    assert "<|" not in front_end.decode(first)


def test_without_chat_tokens_there_is_no_header_and_no_stop_token(plain):
    front_end = make_frontend("text", vocab_size=VOCAB, clip=spoken_clip(), frame_budget_s=1.0, model_path=plain)
    assert front_end.stop_token_ids == ()
    assert front_end.decode(front_end.encode(np.zeros(0), 0)) == " he was"


def test_text_tokens_stay_in_the_vocabulary_and_repeat(chat):
    size = Tokenizer.from_file(str(chat / "tokenizer.json")).get_vocab_size()
    options = {"vocab_size": size, "clip": sample_clip("librivox_0870"), "frame_budget_s": 0.08, "model_path": chat}
    front_ends = [make_frontend("text", **options) for _ in range(2)]
    one, other = ([front_end.encode(np.zeros(0), k) for k in range(200)] for front_end in front_ends)
    assert one == other
    assert all(frame for frame in one)
    assert 0 <= min(flat(one)) <= max(flat(one)) < size
    assert tokens_per_frame("text", 0.08) is None


def test_a_clip_without_a_transcript_is_refused_with_those_that_have_one(plain, tmp_path, monkeypatch):
    options = {"vocab_size": VOCAB, "frame_budget_s": 1.0, "model_path": plain}
    with pytest.raises(FrontEndError) as caught:
        make_frontend("text", clip=sample_clip("numbers"), **options)
    transcribed = [clip.name for clip in sample_clips() if clip.transcript]
    assert transcribed
    assert all(name in str(caught.value) for name in ["numbers", *transcribed])
    monkeypatch.setenv("METRONOME_AUDIO", str(tmp_path))
    with pytest.raises(FrontEndError, match="clip mute has no transcript; load it"):
        make_frontend("text", clip=Clip("mute", np.zeros(10), transcript=" \n"), **options)


def test_tokenizers_that_cannot_serve_are_refused(plain, tmp_path):
    options = {"vocab_size": VOCAB, "clip": spoken_clip(), "frame_budget_s": 1.0}
    with pytest.raises(FrontEndError, match="needs model_path"):
        make_frontend("text", **options)
    with pytest.raises(FrontEndError, match=r"tokenizer\.json: no such tokenizer"):
        make_frontend("text", model_path=tmp_path, **options)
    (tmp_path / "tokenizer.json").write_text("{\n}")
    with pytest.raises(FrontEndError, match="not a tokenizer") as caught:
        make_frontend("text", model_path=tmp_path, **options)
    assert "\n" not in str(caught.value)
    with pytest.raises(FrontEndError, match="more than the model's 100"):
        make_frontend("text", model_path=plain, **{**options, "vocab_size": 100})
    words = Tokenizer(models.WordLevel({"he": 0, "?": 1}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(FrontEndError, match="no newline token"):
        make_frontend("text", model_path=tmp_path, **options)


def test_text_refuses_bad_budgets_and_starts(plain):
    options = {"vocab_size": VOCAB, "clip": spoken_clip(), "model_path": plain}
    with pytest.raises(AudioError, match="frame budget nan"):
        make_frontend("text", frame_budget_s=float("nan"), **options)
    with pytest.raises(AudioError, match="start_s -1"):
        make_frontend("text", frame_budget_s=1.0, start_s=-1, **options)
    with pytest.raises(AudioError, match="frame -2"):
        make_frontend("text", frame_budget_s=1.0, **options).encode(np.zeros(0), -2)


# The registry


def test_an_unknown_front_end_lists_those_there_are():
    for refusing in (
        lambda: make_frontend("mimi", vocab_size=VOCAB, clip=spoken_clip(), frame_budget_s=1.0),
        lambda: tokens_per_frame("mimi", 1.0),
    ):
        with pytest.raises(FrontEndError, match="'mimi'; there are codec2, text, asr, moshi, load:COUNT, scratch"):
            refusing()
