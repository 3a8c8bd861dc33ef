"""The scratchpad and video front ends: lengths, determinism, what stands for audio, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.frontends import FrontEndError, audio_s_per_frame, make_frontend, tokens_per_frame
from workbench.frontends.scratchpad import mean_tokens

VOCAB = 49_152


def made_up(name, session=0, vocab_size=VOCAB):
    return make_frontend(name, vocab_size=vocab_size, clip=None, frame_budget_s=1.0, session=session)


def lengths(name, frames, session=0):
    front_end = made_up(name, session)
    return [len(front_end.encode(None, k)) for k in range(frames)]


def test_a_scratchpads_chunks_are_of_all_lengths_as_likely_in_each_octave():
    drawn = np.array([n for session in range(20) for n in lengths("scratchpad:16-255", 400, session)])
    assert (drawn.min(), drawn.max()) == (16, 255)
    shares = [np.mean((drawn >= 16 * 2**k) & (drawn < 32 * 2**k)) for k in range(4)]
    assert shares == pytest.approx([0.25] * 4, abs=0.02)
    assert drawn.mean() == pytest.approx(mean_tokens(16, 255), rel=0.02)


def test_the_mean_of_a_scratchpads_chunks_is_that_of_its_chances():
    # One token with a chance of ln 2 / ln 4 (half), two or three with what is left.
    assert mean_tokens(1, 3) == pytest.approx(0.5 * 1 + np.log(1.5) / np.log(4) * 2 + np.log(4 / 3) / np.log(4) * 3)
    assert mean_tokens(7, 7) == 7


def test_a_scratchpads_lengths_hang_on_seed_session_and_frame_alone():
    base = lengths("scratchpad:1-500:5", 50, session=3)
    front_end = made_up("scratchpad:1-500:5", session=3)
    assert [len(front_end.encode(None, k)) for k in reversed(range(50))] == base[::-1]
    assert lengths("scratchpad:1-500:6", 50, session=3) != base != lengths("scratchpad:1-500:5", 50, session=4)
    assert lengths("scratchpad:1-500", 50) == lengths("scratchpad:1-500:0", 50)
    assert lengths("scratchpad:9-9", 5) == [9] * 5


def test_a_video_frame_is_its_picture_and_two_marks():
    assert lengths("video:258", 3) == [260] * 3
    assert tokens_per_frame("video:258", 1.0) == made_up("video:258").most_tokens == 260
    assert (tokens_per_frame("scratchpad:16-255", 1.0), made_up("scratchpad:16-255").most_tokens) == (None, 255)


@pytest.mark.parametrize("name", ["scratchpad:8-64", "video:20"])
def test_what_is_made_up_says_so_and_stays_in_the_vocabulary(name):
    front_end = made_up(name, session=70, vocab_size=64)
    assert not front_end.meaningful and not front_end.hears
    assert "no meaning" in front_end.decode([1, 1])
    one, other = front_end.encode(None, 1), front_end.encode(None, 2)
    assert one[:3] != other[:3] != made_up(name, session=71).encode(None, 2)[:3]
    assert all(2 <= token < 64 for k in range(200) for token in front_end.encode(None, k))


def test_only_the_tokens_of_audio_stand_for_audio():
    seconds = {
        name: audio_s_per_frame(name, 2.0) for name in ("codec2", "text", "load:26", "video:9", "scratchpad:1-2")
    }
    assert seconds == {"codec2": 2.0, "text": 2.0, "load:26": 2.0, "video:9": 0.0, "scratchpad:1-2": 0.0}


@pytest.mark.parametrize(
    "name",
    ["scratchpad:16", "scratchpad:0-5", "scratchpad:9-8", "scratchpad:a-b", "scratchpad:1-5:x", "scratchpad:-3-5"],
)
def test_a_scratchpad_without_a_range_is_refused(name):
    for refusing in (lambda: made_up(name), lambda: tokens_per_frame(name, 1.0)):
        with pytest.raises(FrontEndError, match="no range of tokens: give scratchpad:16-2048"):
            refusing()


@pytest.mark.parametrize("name", ["video:0", "video:", "video:-1", "video:1.5"])
def test_a_video_without_a_count_is_refused(name):
    with pytest.raises(FrontEndError, match="no count of tokens: give video:258"):
        made_up(name)
