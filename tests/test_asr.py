"""The asr front end on the beat: what goes in and what is owed, replies, interruptions, and an engine that is slow."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tests.talking import PROFILE, VOCAB, Conversation, Loud, loud, save_tokenizer, words_of
from workbench.audio import sample_clip
from workbench.frontends import FrontEndError, make_frontend, tokens_per_frame
from workbench.frontends.asr import AsrFrontEnd
from workbench.session import WORDS_KEPT
from workbench.sessions import SessionError, SessionManager
from workbench.speech import SpeechError, parts
from workbench.speech.chat import ASSISTANT, END, LONGEST_REPLY, MOST_TOKENS, SYSTEM, USER
from workbench.speech.turns import MODEL, SPEAKER

B = PROFILE.frame_budget_s
ASKED = loud((1.0, 2.0), (12.0, 13.0), seconds=40.0)


def template(*turns: tuple[str, str]) -> str:
    return SYSTEM + "".join(f"{mark}{text}{END}\n" for mark, text in turns)


def test_a_turn_goes_in_when_it_has_ended_and_the_reply_comes_frame_by_frame(tmp_path):
    run = Conversation(tmp_path, ASKED, ("Hi?", "And?"), ["Yes.", "No."]).until(11.0)
    asked, replied = run.front_end.transcript()
    assert (asked.speaker, asked.text, asked.t_start, asked.t_end) == (SPEAKER, "Hi?", 0.992, 2.016)
    assert (replied.speaker, replied.text, replied.tokens, replied.ended) == (MODEL, "Yes.", 4, True)
    # Silence of 0.7 s is over in frame 5 (2.5 to 3.0 s); the words go in with the next one, due at 3.5 s.
    assert (asked.first_frame, replied.first_frame, replied.last_frame) == (6, 6, 7)
    assert (replied.t_start, replied.t_end) == (pytest.approx(3.6), pytest.approx(4.1))
    assert replied.first_word_s == pytest.approx(3.6 - 2.016)
    # What goes on with a reply begins with its last token, which the boundary of the chunks would drop.
    assert [run.text(tokens) for tokens, _ in run.engine.chunks[-3:]] == [f"Hi?{END}\n{ASSISTANT}", "e", "."]


def test_nothing_goes_in_but_the_conversation(tmp_path):
    run = Conversation(tmp_path, ASKED, ("Hi?", "And?"), ["Yes.", "No, not at all."]).until(39.0)
    whole = template((USER, "Hi?"), (ASSISTANT, "Yes."), (USER, "And?"), (ASSISTANT, "No, not at all."))
    seen = list(run.front_end.seen)
    # The end of the last reply was sampled; it goes in when somebody speaks again.
    assert run.text(seen) == whole.removesuffix(f"{END}\n")
    assert seen == run.engine.computed
    assert run.front_end.quiet and run.front_end.settled


def test_a_frame_with_nothing_new_sends_nothing_and_owes_nothing(tmp_path):
    run = Conversation(tmp_path, ASKED, ("Hi?", "And?"), ["Yes.", "No."]).until(11.0)
    rows = run.frames("frame", "tokens_in", "tokens_owed", "tokens_delivered", "status", "empty", "capped")
    quiet = [row for row in rows if row[1] == 0]
    assert len(rows) - len(quiet) == len(run.engine.chunks)
    assert {row[2:] for row in quiet} == {(0, 0, "on_time", False, False)}
    # The system message with the first frame, the opened turn with the second of speech, then the words and the reply.
    assert [row[0] for row in rows if row[1]] == [0, 2, 6, 7, 8]
    assert [row[2] for row in rows if row[1]] == [1, 1, 2, 2, 2]


def test_what_the_model_says_while_it_listens_is_shown_to_nobody(tmp_path):
    run = Conversation(tmp_path, ASKED, ("Hi?", "And?"), ["Yes.", "No."]).until(3.4)
    assert len(run.engine.chunks) == 2 and list(run.session.words) == []
    run.until(11.0)
    assert run.front_end.decode(run.session.words) == "Yes."


def test_the_content_lags_while_somebody_speaks_and_not_when_nobody_does(tmp_path):
    run = Conversation(tmp_path, ASKED, ("Hi?", "And?"), ["Yes.", "No."]).until(11.0)
    lags = {frame: lag for frame, lag in run.frames("frame", "content_lag_s")}
    assert lags[1] == 0.0
    # From the frame in which the turn began to that in which its words went in, each frame lags by one more.
    assert [lags[k] for k in (3, 4, 5)] == pytest.approx([2 * B, 3 * B, 4 * B])
    assert lags[6] == pytest.approx(0.1) and lags[12] == 0.0


INTERRUPTED = loud((1.0, 2.0), (5.2, 6.0), seconds=30.0)


def test_a_speaker_who_begins_stops_the_reply_within_one_frame(tmp_path):
    run = Conversation(tmp_path, INTERRUPTED, ("Hi?", "Stop"), ["abcdefghijklmnop", "Yes."]).until(29.0)
    _, cut, stop, replied = run.front_end.transcript()
    # Replies go on in frames 6, 7, 8 and 9; in frame 10 (5.0 to 5.5 s) the speaker begins, and it brings no more.
    assert int(stop.t_start / B) == cut.cut_frame == stop.began_frame == 10
    assert (cut.last_frame, cut.text, cut.unshown, cut.ended) == (9, "abcdefgh", 0, False)
    tokens, owed = run.engine.chunks[6]
    assert run.text(tokens) == f"h{END}\n{USER}" and owed == 1
    assert replied.text == "Yes."
    whole = template((USER, "Hi?"), (ASSISTANT, "abcdefgh"), (USER, "Stop"), (ASSISTANT, "Yes."))
    assert run.text(run.front_end.seen) == whole.removesuffix(f"{END}\n")
    assert list(run.front_end.seen) == run.engine.computed
    assert run.front_end.decode(run.session.words) == "abcdefghYes."


def test_tokens_that_come_after_an_interruption_are_not_shown(tmp_path):
    # The chunk of frame 9 is answered 0.8 s after it went out, in frame 10's time.
    run = Conversation(tmp_path, INTERRUPTED, ("Hi?", "Stop"), ["abcdefghijklmnop", "Yes."], slow={5: 0.8}).until(29.0)
    _, cut, _, replied = run.front_end.transcript()
    assert (cut.text, cut.last_frame, cut.cut_frame, cut.unshown) == ("abcdef", 8, 10, 2)
    assert replied.text == "Yes."
    # The model had said them, so they stay in the context, which is closed behind them.
    assert template((USER, "Hi?"), (ASSISTANT, "abcdefgh"), (USER, "Stop")) in run.text(run.front_end.seen)
    assert list(run.front_end.seen) == run.engine.computed


def test_a_slow_engine_loses_no_word_and_does_not_change_the_reply(tmp_path):
    slow = {k: 1.3 for k in range(40)}
    run = Conversation(tmp_path, ASKED, ("Hi?", "And?"), ["abcdef", "No."], slow=slow).until(39.0)
    assert [turn.text for turn in run.front_end.transcript()] == ["Hi?", "abcdef", "And?", "No."]
    rows = run.frames("capped", "tokens_late")
    assert any(capped for capped, _ in rows) and sum(late for _, late in rows) >= 6
    assert list(run.front_end.seen) == run.engine.computed


def test_a_pause_in_a_turn_before_the_reply_is_one_turn(tmp_path):
    # The second part begins before the first one's words are there: no reply falls between them.
    clip = loud((1.0, 2.0), (2.9, 3.5), seconds=20.0)
    run = Conversation(tmp_path, clip, ("Hi", "you"), ["Yes."]).until(19.0)
    asked, replied = run.front_end.transcript()
    assert (asked.text, replied.text) == ("Hi you", "Yes.")
    assert run.text(run.front_end.seen) == template((USER, "Hi you"), (ASSISTANT, "Yes.")).removesuffix(f"{END}\n")


def test_noise_without_words_opens_a_turn_that_the_next_words_fill(tmp_path):
    run = Conversation(tmp_path, ASKED, ("", "Hi?"), ["Yes."]).until(39.0)
    assert [turn.text for turn in run.front_end.transcript()] == ["Hi?", "Yes."]
    assert run.text(run.front_end.seen).count(USER) == 1


def test_a_long_turn_goes_in_over_several_chunks_and_is_replied_to_after_the_last(tmp_path):
    words = "x" * (3 * MOST_TOKENS)
    run = Conversation(tmp_path, ASKED, (words, "And?"), ["Yes.", "No."]).until(11.0)
    assert all(len(tokens) <= MOST_TOKENS for tokens, _ in run.engine.chunks[1:])
    assert run.text(run.front_end.seen).endswith(f"{words}{END}\n{ASSISTANT}Yes.")
    assert run.front_end.most_tokens == MOST_TOKENS


def test_a_reply_without_end_is_closed(tmp_path):
    run = Conversation(tmp_path, loud((1.0, 2.0), (30.0, 31.0), seconds=50.0), ("Hi?", "And?"), ["y" * 999, "No."])
    _, first, _, second = run.until(49.0).front_end.transcript()
    assert (first.text, first.tokens, first.ended) == ("y" * LONGEST_REPLY, LONGEST_REPLY, False)
    assert second.text == "No."
    assert template((USER, "Hi?"), (ASSISTANT, first.text), (USER, "And?")) in run.text(run.front_end.seen)


def test_a_closed_session_ends_the_thread_that_hears_for_it(tmp_path):
    from workbench.speech.worker import Background

    begun = threading.Event()
    threads = []

    def recognise(samples):
        threads.append(threading.current_thread())
        begun.set()
        return "Hi?"

    run = Conversation(tmp_path, ASKED, (), [], worker=lambda work, name: Background(recognise, name))
    run.until(2.0)
    assert not threads
    run.until(3.4)
    assert begun.wait(20)
    run.beat.shut("a", 3.4, "closed")
    threads[0].join(20)
    assert not threads[0].is_alive() and run.engine.closed == ["a"]


def test_a_recogniser_that_fails_ends_the_session_and_says_why(tmp_path):
    run = Conversation(tmp_path, ASKED, (), []).until(4.0)
    assert run.beat.tables.session_rows["a"].reason.startswith("front end failed: IndexError")


def test_a_died_engine_closes_the_front_end(tmp_path):
    run = Conversation(tmp_path, ASKED, ("Hi?", "And?"), ["Yes.", "No."]).until(3.0)
    closed = []
    run.front_end.close = lambda: closed.append(True)
    run.beat.die("gone", 3.0)
    assert closed == [True] and run.beat.tables.session_rows["a"].reason == "engine died: gone"


def make(folder, **changes):
    options = {"vocab_size": VOCAB, "clip": ASKED, "frame_budget_s": B, "model_path": folder, "detect": Loud()}
    return AsrFrontEnd(**{**options, "recognise": words_of("Hi"), **changes})


def test_what_it_needs_of_a_model_is_said_in_one_line(tmp_path):
    with pytest.raises(FrontEndError, match="needs a model with a tokenizer; serve smollm2"):
        make(None)
    with pytest.raises(FrontEndError, match="more than the model's 200"):
        make(save_tokenizer(tmp_path), vocab_size=200)
    file = save_tokenizer(tmp_path) / "tokenizer.json"
    file.write_text(file.read_text().replace("<|im_end|>", "<|no_end|>"))
    with pytest.raises(FrontEndError, match="no chat tokens; serve a model that has, as smollm2"):
        make(tmp_path)


def test_a_missing_part_is_a_front_end_error_in_one_line(tmp_path, monkeypatch):
    def missing():
        raise SpeechError("the weights are not installed: run `make setup`")

    monkeypatch.setattr("workbench.speech.whisper.whisper_folder", missing)
    with pytest.raises(FrontEndError, match="^asr front end: the weights are not installed: run `make setup`$"):
        make(save_tokenizer(tmp_path), recognise=None)


def test_it_is_registered_and_has_no_fixed_count_of_tokens(tmp_path):
    assert tokens_per_frame("asr", 0.5) is None
    with pytest.raises(FrontEndError, match="asr front end"):
        make_frontend("asr", vocab_size=VOCAB, clip=ASKED, frame_budget_s=0.5)


def test_a_session_refuses_a_prompt_of_made_up_tokens(tmp_path, monkeypatch):
    from tests.test_sessions import Fake

    engine = Fake()
    engine.model_path = save_tokenizer(tmp_path)
    monkeypatch.setattr("workbench.frontends.asr._parts", lambda detect, recognise: (Loud(), words_of("Hi")))
    with SessionManager(PROFILE, engine=engine) as manager:
        with pytest.raises(SessionError, match="opens its sessions itself: leave out prompt"):
            manager.add(sample_clip("goforward"), prompt=3)
        name = manager.add(sample_clip("goforward"), loop=False)
        assert manager.front_ends[name].most_tokens == MOST_TOKENS
        assert manager.beat.sessions[name].words.maxlen == WORDS_KEPT


def test_hearing_does_not_wait_for_words(tmp_path):
    """encode returns while the recogniser is still at it, however long that takes."""
    go = threading.Event()

    def recognise(samples):
        assert go.wait(60)
        return "Hi?"

    front_end = make(save_tokenizer(tmp_path), recognise=recognise)
    speech, silence = np.full(8000, 0.2, np.float32), np.zeros(8000, np.float32)
    for k, samples in enumerate((speech, speech, silence, silence, silence, silence)):
        front_end.encode(samples, k)
    assert not front_end.settled and front_end.transcript() == []
    go.set()
    k = 6
    while not front_end.transcript():
        front_end.encode(silence, k := k + 1)
    assert front_end.transcript()[0].text == "Hi?"
    front_end.close()


def test_parts_name_what_to_install(monkeypatch):
    monkeypatch.setattr(parts.util, "find_spec", lambda name: None)
    assert "is not installed: run `make setup`" in parts.hearing_missing()
