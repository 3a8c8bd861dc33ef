"""The conversation experiment without its engine: the dialogue, what comes of a transcript, which claims fail when."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from workbench.experiments import EXPERIMENTS, ExperimentError, parameters
from workbench.experiments import conversation as module
from workbench.experiments._conversation import ARMS, FRAME_BUDGET_S, answered, claims_of, interruptions
from workbench.profiles import load_profile
from workbench.speech.turns import MODEL, SPEAKER, Turn

REAL = module.dialogue(10.0, voice=False)
ASKED = [*REAL[:-1], replace(REAL[-1], line=replace(REAL[-1].line, interrupts=True))]


def transcript() -> list[Turn]:
    """Each line heard and replied to; the last one interrupts the reply to the one before."""
    turns = []
    for each in ASKED:
        line = each.line
        begins, ends = int(line.at_s / FRAME_BUDGET_S), int(line.ends_s / FRAME_BUDGET_S)
        if line.interrupts:
            turns[-1] = replace(turns[-1], cut_frame=begins, last_frame=begins - 1, ended=False)
        words = each.said or "go forward"
        turns.append(Turn(SPEAKER, line.at_s, line.ends_s, words, ends + 2, ends + 2, began_frame=begins))
        at = line.ends_s + 1.5
        turns.append(
            Turn(MODEL, at, at + 1, "I see.", ends + 3, ends + 5, tokens=3, answers_end_s=line.ends_s, ended=True)
        )
    return turns


def metrics(**bounded) -> dict:
    turns = transcript()
    arm = {"lines": answered(turns, ASKED), "interruptions": interruptions(turns)}
    arm |= {"age_tokens": 200, "seen_tokens": 200, "evicted_tokens": 0, "most_blocks": 7}
    return {
        "unbounded": arm,
        "bounded": {**arm, "evicted_tokens": 64, "most_blocks": 5, **bounded},
        "plateau_blocks": 6,
        "word_error_rate": 0.1,
    }


def failed(found: dict) -> list[str]:
    return [claim.name for claim in claims_of(found, ASKED) if not claim.holds]


def test_the_dialogue_is_real_clips_with_pauses_of_which_the_last_is_short():
    lines = [each.line for each in REAL]
    assert [line.clip.name for line in lines] == [*module.REAL, *module.LONG]
    gaps = [after.at_s - before.ends_s for before, after in pairwise(lines)]
    assert gaps == pytest.approx([10.0] * (len(gaps) - 1) + [module.MAY_INTERRUPT_AFTER_S])
    assert not any(line.interrupts for line in lines)


def test_each_line_has_what_was_heard_of_it_and_the_reply():
    rows = answered(transcript(), ASKED)
    assert [row["heard"] for row in rows] == [each.said or "go forward" for each in ASKED]
    assert {row["reply"] for row in rows} == {"I see."} and {row["right"] for row in rows} == {None}
    assert [row["first_word_s"] for row in rows] == pytest.approx([1.5] * len(rows))
    asked = [replace(ASKED[0], keywords=("see",)), replace(ASKED[1], keywords=("paris",))]
    assert [row["right"] for row in answered(transcript(), asked)] == [True, False]


def test_claims_hold_on_a_good_conversation():
    assert failed(metrics()) == []


@pytest.mark.parametrize(
    ("bounded", "name"),
    [
        ({"evicted_tokens": 0}, "the bound evicts"),
        ({"most_blocks": 7}, "the bounded session holds no more than its plateau"),
        ({"age_tokens": 201}, "nothing but the conversation is in the context"),
        ({"interruptions": []}, "the reply is interrupted, in both arms"),
        ({"lines": []}, "every turn is heard, in both arms"),
    ],
)
def test_a_claim_that_is_not_so_fails(bounded, name):
    assert name in failed(metrics(**bounded))


@pytest.mark.parametrize("change", [{"heard_frame": 10, "speech_frame": 8}, {"last_reply_frame": 99}])
def test_a_reply_that_goes_on_after_the_interruption_fails_its_claim(change):
    (cut,) = metrics()["bounded"]["interruptions"]
    assert failed(metrics(interruptions=[{**cut, **change}])) == ["an interrupted reply stops within one frame"]


def test_where_no_reply_is_sure_to_go_on_none_has_to_be_interrupted():
    found = metrics(interruptions=[])
    assert [claim.name for claim in claims_of(found, REAL) if not claim.holds] == []


def test_words_that_are_not_recognised_fail_their_claim():
    assert failed({**metrics(), "word_error_rate": 0.5}) == ["the words of real clips are recognised"]


def test_what_cannot_be_run_is_refused_in_one_line(monkeypatch):
    assert "conversation" in EXPERIMENTS and {"window", "sinks", "pause", "voice"} <= set(parameters("conversation"))
    with pytest.raises(ExperimentError, match="simulated: give smollm2"):
        module.run(load_profile("sim:tiny"))
    monkeypatch.setattr(module, "hearing_missing", lambda: None)
    with pytest.raises(ExperimentError, match="pause must be 2 to 60 s"):
        module.run(load_profile("smollm2"), pause=1.0)
    monkeypatch.setattr(module, "hearing_missing", lambda: "the words are missing: run `make setup`")
    with pytest.raises(ExperimentError, match="^the words are missing: run `make setup`$"):
        module.run(load_profile("smollm2"))


def test_the_recording_and_the_transcript_come_back_from_the_result():
    from workbench.experiments import Result

    turns = [{**turn.__dict__, "first_word_s": turn.first_word_s} for turn in transcript()]
    found = {arm: {"turns": turns} for arm in ARMS}
    empty = dict.fromkeys(("sessions", "frames", "pool"))
    params = {"pause_s": 10.0, "voice": False}
    result = Result("conversation", "p", "vllm-cpu", "0", 0, params, found, (), **empty)
    assert module.turns_of(result, "bounded") == transcript()
    assert len(module.recording(result, "bounded")) > 10_000
