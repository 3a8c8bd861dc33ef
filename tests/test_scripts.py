"""What sessions say and are scored for: every token at the age at which it stands, and the chat as it has to be."""

from __future__ import annotations

import asyncio
import re
from itertools import pairwise

import pytest

from tests.scripted import SAID, Scripted
from workbench.bound import KVBound
from workbench.engine.vllm import Sampling
from workbench.quality.line import Lines
from workbench.quality.policies import Opening
from workbench.quality.questions import question, secret
from workbench.quality.scripts import (
    ASKED_EVERY,
    BEYOND,
    CARRIED,
    FRAME,
    PASSAGE,
    RECALL,
    REPLY,
    SPOKEN,
    TEMPERATURE,
    WITHIN,
    Scored,
    Spoken,
    Tokens,
    converse,
    judge,
    listen,
    remember,
    speak,
)
from workbench.quality.texts import HeldOut
from workbench.speech.chat import ASSISTANT, END, TURN, USER

AGE, SEED, BLOCK = 1500, 3, 16
MARKS = {TURN: 1, END: 2}


def encode(text: str) -> list[int]:
    """A token a letter, and a token each for the chat's marks."""
    pieces = re.findall(f"{re.escape(TURN)}|{re.escape(END)}|(?s:.)", text)
    return [MARKS.get(piece) or ord(piece) for piece in pieces]


def decode(tokens) -> str:
    return "".join(chr(token) for token in tokens if token not in MARKS.values())


TOKENS = Tokens(encode, decode)
OPENING = Opening.of(encode, BLOCK)
# Tokens that nothing else says, each at one place.
TEXT = HeldOut(lambda text: range(100_000, 107_000))
AFTER = encode(f"\n{USER}")


def played(
    script, engine: Scripted | None = None, seed: int = SEED, age: int = AGE, bound: KVBound | None = None, **options
):
    """(what the session left, its line, its engine), all tokens by one session called "a"."""
    engine = engine or Scripted(piece=5, block=BLOCK)

    async def serve():
        line = Lines(engine, "run").open("a", bound)
        return await script(line, OPENING, TOKENS, TEXT, seed, age, **options), line

    left, line = asyncio.run(serve())
    assert line.context == engine.computed["a"]
    return left, line, engine


def aged(scored: Scored) -> bool:
    """Whether the scores are those of the tokens that stand at these ages."""
    return scored.scores == tuple(-float(scored.age + k) for k in range(len(scored.scores)))


def ended(number, place, end_at=5) -> bool:
    """Of a model that ends every other reply: whether this token is the end."""
    return number % 2 == 0 and place == end_at


def some_end(session, number, place, age):
    return MARKS[END] if number > 1 and ended(number, place) else SAID + age


# -- all of them ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [listen, converse, remember, speak])
def test_all_open_alike_and_leave_the_model_in_the_middle_of_its_first_reply(script):
    _, line, engine = played(script)
    opened = OPENING.tokens
    assert opened == len(OPENING.header) + len(OPENING.content) + BLOCK
    assert line.context[: opened - BLOCK] == [*OPENING.header, *OPENING.content]
    assert line.context[opened - BLOCK : opened] == [SAID + age for age in range(opened - BLOCK, opened)]
    assert engine.chunks["a"][2].age == opened and [chunk.stop for chunk in engine.chunks["a"][:2]] == [(), ()]


# -- listen -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", [FRAME, 100])
def test_every_token_listened_to_is_scored_at_its_age(frame):
    left, line, engine = played(listen, Scripted(some_end, piece=5, block=BLOCK), frame=frame)
    opens, *heard = engine.chunks["a"][2:]
    assert opens.tokens == encode(f"{END}\n{USER}")
    assert [piece.age for piece in left.scored] == [chunk.age for chunk in heard] and len(heard) > 9
    assert all(aged(piece) and len(piece.scores) == frame for piece in left.scored)
    first = heard[0].age
    assert line.context[first:] == TEXT.read(SEED, line.age - first)
    assert line.age - frame < AGE <= line.age and left.seed == SEED
    assert not left.asked and not left.spoken and {chunk.sampling for chunk in engine.chunks["a"]} == {None}


# -- converse ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def conversation():
    return played(converse, Scripted(some_end, piece=5, block=BLOCK))


def test_the_passage_alone_is_scored_at_its_ages(conversation):
    left, line, _ = conversation
    assert len(left.scored) == len(left.asked) > 5
    for number, piece in enumerate(left.scored):
        assert aged(piece) and len(piece.scores) == PASSAGE
        passage = TEXT.read(SEED, PASSAGE, number * PASSAGE)
        assert line.context[piece.age : piece.age + PASSAGE] == passage
    assert len({token for token in line.context if token >= 100_000}) == len(left.scored) * PASSAGE


def test_replies_are_closed_once_whether_they_ended_or_not(conversation):
    _, line, engine = conversation
    turns = engine.chunks["a"][2:]
    assert {len(chunk.replied) for chunk in turns} == {6, REPLY} and {chunk.stop for chunk in turns} == {(MARKS[END],)}
    for number, (turn, following) in enumerate(pairwise(turns), 2):
        said = turn.replied[:-1] if ended(number, len(turn.replied) - 1) else turn.replied
        assert MARKS[END] not in said
        begin = turn.age + len(turn.tokens)
        whole = [*said, MARKS[END], *AFTER]
        assert line.context[begin : begin + len(whole)] == whole
        assert following.tokens[0] == (MARKS[END] if len(said) < REPLY else said[-1])


def test_the_chat_is_that_of_the_transcript(conversation):
    left, line, engine = conversation
    chat, opened = [], line.context[: OPENING.tokens]
    for k, turn in enumerate(engine.chunks["a"][2:]):
        text = [*TEXT.read(SEED, PASSAGE, k * PASSAGE), *encode(f"\n\n{question(SEED, k).text}")]
        said = [token for token in turn.replied if token != MARKS[END]]
        chat += [MARKS[END], *AFTER, *text, MARKS[END], *encode(f"\n{ASSISTANT}"), *said]
    # Of the last reply, the last token is not with the model; of one that ended itself, its end is not.
    assert line.context == opened + chat[: line.age - OPENING.tokens] and len(left.asked) == k + 1
    assert OPENING.tokens + len(chat) - line.age in (0, 1)


def test_questions_have_their_ages_replies_and_places(conversation):
    left, line, engine = conversation
    turns = engine.chunks["a"][2:]
    assert [asked.age for asked in left.asked] == [turn.age for turn in turns]
    assert [asked.spoken for asked in left.asked] == [Spoken(t.age + len(t.tokens), t.replied) for t in turns]
    assert [asked.reply for asked in left.asked] == [decode(turn.replied) for turn in turns]
    assert [asked.question for asked in left.asked] == [question(SEED, number) for number in range(len(turns))]
    assert {asked.recall for asked in left.asked} == {None}
    assert left.asked[-1].age < AGE <= line.age


def test_a_reply_is_right_by_the_words_of_its_own_question():
    said = "blue seven paris"

    def parrot(session, number, place, age):
        return MARKS[END] if place == len(said) else ord(said[place]) if place < len(said) else SAID

    left, _, _ = played(converse, Scripted(parrot, block=BLOCK), seed=0, age=2500)
    assert all(asked.reply == said for asked in left.asked)
    right = [bool({"blue", "seven", "paris"} & set(asked.question.keywords)) for asked in left.asked]
    assert [asked.right for asked in left.asked] == right and right[:5] == [True, True, True, False, False]


# -- remember ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [True, False])
def test_a_secret_is_told_and_asked_for_at_once_and_again_at_the_end(end):
    said = f"a {secret(SEED)}!"

    def reply(session, number, place, age):
        if number == 3 and place < len(said):
            return ord(said[place])
        return MARKS[END] if end and number > 1 and place == len(said) else SAID + age

    left, _, engine = played(remember, Scripted(reply, block=BLOCK))
    turns = engine.chunks["a"][2:]
    told = f"Keep this in mind: the secret word is {secret(SEED)}."
    words = [told, RECALL, *[question(SEED, k).text for k in range(len(turns) - 3)], RECALL]
    before = []
    for turn, text in zip(turns, words, strict=True):
        # A reply is closed by its own end, or by its last token and an end, in the turn that comes next.
        assert turn.tokens == [*before, *encode(f"{END}\n{USER}{text}{END}\n{ASSISTANT}")]
        before = [] if end else [turn.replied[-1]]
        assert turn.stop == (MARKS[END],) and turn.owed == REPLY
    ask, last = turns[1], turns[-1]
    assert [(each.age, each.recall, each.right) for each in left.asked] == [
        (ask.age, WITHIN, True),
        (last.age, CARRIED, False),
    ]
    assert [each.spoken.tokens for each in left.asked] == [ask.replied, last.replied] and not left.scored
    assert turns[-2].age < AGE <= last.age and left.seed == SEED


@pytest.mark.parametrize(
    ("bound", "again", "recall"),
    [
        (None, False, CARRIED),
        (KVBound(128), False, BEYOND),
        (KVBound(128), True, CARRIED),
        (KVBound(128, OPENING.tokens), False, BEYOND),
        # The secret itself is pinned, or is within the window still.
        (KVBound(128, OPENING.tokens + 128), False, CARRIED),
        (KVBound(1600), False, CARRIED),
    ],
)
def test_a_secret_is_beyond_once_no_word_of_it_is_left(bound, again, recall):
    """``again``: whether the session says it in every reply."""
    said = f"the {secret(SEED)} it is" if again else "I see what you mean"

    def reply(session, number, place, age):
        return ord(said[place]) if place < len(said) else MARKS[END]

    left, _, _ = played(remember, Scripted(reply, block=BLOCK), bound=bound)
    assert [each.recall for each in left.asked] == [WITHIN, recall]


# -- speak and judge --------------------------------------------------------------------------------------------------


def test_what_is_spoken_has_the_ages_at_which_it_stands():
    left, line, engine = played(speak)
    assert left.context == [*line.context, line.last] and len(left.context) == line.age + 1
    assert all(len(piece.tokens) == SPOKEN for piece in left.spoken)
    for piece in left.spoken:
        assert tuple(left.context[piece.age : piece.age + SPOKEN]) == piece.tokens
        assert piece.tokens == tuple(SAID + piece.age + k for k in range(SPOKEN))
    assert line.age - SPOKEN - REPLY - 100 < AGE <= line.age and left.spoken[0].age == OPENING.tokens + 1
    drawn = [chunk.sampling for chunk in engine.chunks["a"]]
    plain, likeliest = Sampling(TEMPERATURE, SEED), Sampling(TEMPERATURE, SEED, likeliest=True)
    assert set(drawn) == {plain, likeliest} and drawn[:3] == [plain] * 3
    assert drawn.count(likeliest) == len(left.asked) and {chunk.stop for chunk in engine.chunks["a"]} == {()}


def test_a_question_falls_in_each_time_so_many_tokens_were_spoken():
    left, _, engine = played(speak)
    puts = [chunk for chunk in engine.chunks["a"] if chunk.sampling.likeliest]
    assert [asked.age for asked in left.asked] == [chunk.age for chunk in puts] and len(puts) > 2
    begins = [OPENING.tokens, *(chunk.age + len(chunk.tokens) + REPLY - 1 for chunk in puts)]
    assert [chunk.age - begin for chunk, begin in zip(puts, begins, strict=False)] == [ASKED_EVERY] * len(puts)
    for number, (chunk, asked) in enumerate(zip(puts, left.asked, strict=True)):
        # The reply is open, so its last token and its end come first.
        words = encode(f"{END}\n{USER}{question(SEED, number).text}{END}\n{ASSISTANT}")
        assert chunk.tokens == [SAID + chunk.age, *words] and chunk.owed == REPLY
        assert asked.question == question(SEED, number) and asked.spoken == Spoken(
            chunk.age + len(chunk.tokens), chunk.replied
        )
        # And what is spoken next goes on with the last token of that reply.
        following = engine.chunks["a"][engine.chunks["a"].index(chunk) + 1]
        assert following.tokens == [chunk.replied[-1]]


def test_what_follows_the_end_of_a_reply_is_no_part_of_it():
    def ends(session, number, place, age):
        return MARKS[END] if place == 4 and age > OPENING.tokens + ASKED_EVERY else ord("x")

    left, line, _ = played(speak, Scripted(ends, block=BLOCK), age=700)
    assert left.asked[0].spoken.tokens == (ord("x"),) * 4 and left.asked[0].reply == "xxxx"
    # The session goes on past it all the same.
    assert all(len(piece.tokens) == SPOKEN for piece in left.spoken) and line.age >= 700


@pytest.mark.parametrize("age", [700, AGE, AGE + 5])
def test_the_judge_scores_what_was_spoken_token_by_token(age):
    left, _, engine = played(speak, age=age)

    async def serve():
        judging = Lines(engine, "judge").open("j", None)
        return await judge(judging, left), judging

    judged, judging = asyncio.run(serve())
    assert judged is left and [piece.age for piece in left.full] == [piece.age for piece in left.spoken]
    assert all(aged(piece) and len(piece.scores) == SPOKEN for piece in left.full)
    # The judge was fed these tokens at these ages: its context is the session's, with no reply of its own.
    assert engine.computed["j"] == left.context == judging.context
    assert all((chunk.owed, chunk.bound, chunk.sampling) == (1, None, None) for chunk in engine.chunks["j"])
    assert max(len(chunk.tokens) for chunk in engine.chunks["j"]) == FRAME
