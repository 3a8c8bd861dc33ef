"""What hears: turns out of speech, the real detector and the real recogniser on real clips, work on a thread."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tests.talking import Loud, loud
from workbench.audio import SAMPLE_RATE, Clip, sample_clip
from workbench.speech import parts
from workbench.speech.listen import BEFORE_S, BEGINS_S, ENDS_S, LONGEST_S, Began, Listener, Piece
from workbench.speech.turns import word_error_rate
from workbench.speech.worker import AtOnce, Background

needs_hearing = pytest.mark.skipif(parts.hearing_missing() is not None, reason=str(parts.hearing_missing()))
LIBRIVOX = ("librivox_0870", "librivox_0880", "librivox_0890", "librivox_0920", "librivox_0930")

# -- turns of the speaker ----------------------------------------------------------------------------------------------


def heard(clip: Clip, samples: int = 8000) -> list:
    listener = Listener(Loud())
    return [
        event
        for start in range(0, clip.samples.size, samples)
        for event in listener.hear(clip.samples[start : start + samples])
    ]


def test_a_turn_begins_with_speech_and_ends_with_silence():
    clip = loud((1.0, 2.0), seconds=4.0)
    began, piece = heard(clip)
    window = Loud.window / SAMPLE_RATE
    assert isinstance(began, Began) and abs(began.at_s - 1.0) <= window
    assert piece.last and piece.from_s == began.at_s and abs(piece.to_s - 2.0) <= window
    # Some silence before it and half of that behind it go with the words.
    assert piece.samples.size / SAMPLE_RATE == pytest.approx(1.0 + BEFORE_S + ENDS_S / 2, abs=2 * window)
    assert np.abs(piece.samples).sum() == pytest.approx(np.abs(clip.samples).sum())


@pytest.mark.parametrize("samples", [100, 512, 1280, 32_000])
def test_turns_do_not_hang_on_how_the_audio_is_cut(samples):
    clip = loud((0.5, 1.5), (3.0, 3.4), seconds=6.0)
    events, usual = heard(clip, samples), heard(clip)
    assert [type(event) for event in events] == [Began, Piece, Began, Piece]
    for event, other in zip(events, usual, strict=True):
        if isinstance(event, Began):
            assert event == other
        else:
            assert (event.from_s, event.to_s) == (other.from_s, other.to_s)
            assert np.array_equal(event.samples, other.samples)


def test_a_click_begins_no_turn_and_a_short_pause_ends_none():
    click = BEGINS_S - 2 * Loud.window / SAMPLE_RATE
    assert heard(loud((1.0, 1.0 + click), seconds=4.0)) == []
    events = heard(loud((1.0, 2.0), (2.0 + ENDS_S - 0.1, 3.0), seconds=5.0))
    assert [type(event) for event in events] == [Began, Piece]


def test_a_long_turn_is_handed_on_in_pieces_without_a_gap():
    clip = loud((1.0, 1.0 + 2.5 * LONGEST_S), seconds=3 * LONGEST_S + 1)
    began, *pieces = heard(clip)
    assert [piece.last for piece in pieces] == [False, False, True]
    assert pieces[0].from_s == began.at_s
    assert [piece.from_s for piece in pieces[1:]] == [piece.to_s for piece in pieces[:-1]]
    assert sum(float(np.abs(p.samples).sum(dtype=np.float64)) for p in pieces) == pytest.approx(
        float(np.abs(clip.samples).sum(dtype=np.float64)), rel=1e-5
    )


def test_audio_that_nobody_speaks_in_is_let_go():
    listener = Listener(Loud())
    for _ in range(200):
        listener.hear(np.zeros(8000, np.float32))
    assert listener._audio.size < SAMPLE_RATE


# -- the real detector and the real recogniser -------------------------------------------------------------------------


@needs_hearing
def test_the_detector_hears_speech_in_speech_and_none_in_silence_or_noise():
    from workbench.speech.vad import Silero

    for name in LIBRIVOX:
        assert np.mean(Silero()(sample_clip(name).samples) > 0.5) > 0.5
    noise = np.random.default_rng(0).normal(0, 0.01, 5 * SAMPLE_RATE).astype(np.float32)
    assert Silero()(np.zeros(5 * SAMPLE_RATE, np.float32)).max() < 0.5
    assert Silero()(noise).max() < 0.5


@needs_hearing
def test_the_detector_hears_the_same_however_the_audio_is_cut():
    from workbench.speech.vad import WINDOW, Silero

    clip = sample_clip("librivox_0880").samples
    whole, cut = Silero(), Silero()
    pieces = np.concatenate([cut(clip[i : i + 700]) for i in range(0, clip.size, 700)])
    assert pieces.shape == (clip.size // WINDOW,)
    assert pieces == pytest.approx(whole(clip), abs=1e-4)


@needs_hearing
def test_words_of_real_clips_are_recognised():
    from workbench.speech.whisper import recogniser

    recognise = recogniser()
    pairs = [((recognise(sample_clip(name).samples)), sample_clip(name).transcript) for name in LIBRIVOX]
    assert word_error_rate(pairs) <= 0.25, pairs
    assert recognise(sample_clip(LIBRIVOX[0]).samples) == pairs[0][0]


@needs_hearing
def test_a_real_clip_is_one_turn_whose_words_are_the_clips():
    from workbench.speech.vad import Silero
    from workbench.speech.whisper import recogniser

    clip = sample_clip("librivox_0880")
    listener, silence = Listener(Silero()), np.zeros(2 * SAMPLE_RATE, np.float32)
    began, piece = listener.hear(np.concatenate((silence, clip.samples, silence)))
    assert 2.0 <= began.at_s < 2.7 and piece.last and piece.to_s <= 2.0 + clip.seconds + 0.1
    assert word_error_rate([(recogniser()(piece.samples), clip.transcript)]) <= 0.4


# -- work on a thread --------------------------------------------------------------------------------------------------


def test_work_is_done_in_order_on_another_thread_and_taken_without_waiting():
    go, names = threading.Event(), []

    def work(what):
        names.append(threading.current_thread().name)
        assert go.wait(60)
        return 2 * what

    worker = Background(work, "doubles")
    assert worker.take() == []
    for k in range(3):
        worker.put(f"k{k}", k)
    assert worker.take() == []
    go.set()
    found = []
    while len(found) < 3:
        found += worker.take()
    assert found == [("k0", 0), ("k1", 2), ("k2", 4)] and names == ["doubles"] * 3
    worker.close()
    worker._thread.join(60)
    assert not worker._thread.is_alive()


def test_a_worker_that_is_closed_drops_what_it_has_not_begun():
    begun, go, done = threading.Event(), threading.Event(), []

    def work(what):
        begun.set()
        assert go.wait(60)
        done.append(what)

    worker = Background(work, "slow")
    worker.put("a", 1)
    worker.put("b", 2)
    assert begun.wait(60)
    worker.close()
    worker.close()
    go.set()
    worker._thread.join(60)
    assert done == [1]


@pytest.mark.parametrize("kind", [Background, AtOnce])
def test_what_the_work_raises_is_raised_where_it_is_taken_or_put(kind):
    worker = kind(lambda what: 1 / what, "divides")
    with pytest.raises(ZeroDivisionError):
        worker.put("a", 0)
        while not worker.take():
            pass
    worker.close()
