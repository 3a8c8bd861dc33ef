"""Texts and questions: every session reads another place, and no echo, list or secret passes for an answer."""

from __future__ import annotations

from itertools import pairwise

import pytest

from workbench.quality import texts
from workbench.quality.questions import QUESTIONS, SECRETS, Question, by_chance, question, secret
from workbench.quality.scripts import RECALL, TELL
from workbench.quality.texts import HeldOut, TextError, described, reference_text
from workbench.speech.turns import plain_words

LENGTH = 1000
SEEDS = range(32)  # as many as an experiment takes


@pytest.fixture
def text():
    """Of LENGTH tokens, each of which is its own place."""
    return HeldOut(lambda text: range(LENGTH))


# -- the text ---------------------------------------------------------------------------------------------------------


def test_the_text_is_long_and_the_same_at_each_reading():
    assert len(reference_text().split()) > 50_000
    assert HeldOut(str.split).tokens == reference_text().split()


def test_it_is_described_by_what_it_says(monkeypatch):
    before = described()
    monkeypatch.setattr(texts, "reference_text", lambda: "another text")
    assert before != described() and before.partition(", sha256 ")[0] == described().partition(", sha256 ")[0]


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_reading_goes_on_from_its_offset_and_wraps_at_the_end(text, seed):
    whole = text.read(seed, LENGTH)
    assert sorted(whole) == list(range(LENGTH))
    assert all((b - a) % LENGTH == 1 for a, b in pairwise(whole))
    assert text.read(seed, 64, 700) == whole[700:764]
    assert text.read(seed, 64, LENGTH + 700) == whole[700:764]
    assert text.read(seed, 20, LENGTH - 10) == whole[-10:] + whole[:10]


def test_places_of_seeds_are_apart(text):
    places = sorted(text.read(seed, 1)[0] for seed in SEEDS)
    apart = [(after - place) % LENGTH for place, after in zip(places, places[1:] + places[:1], strict=True)]
    assert min(apart) > LENGTH / len(SEEDS) / 3


def test_more_than_the_whole_text_is_refused_in_one_line(text):
    with pytest.raises(TextError, match=r"^the text has 1000 tokens, 1001 were asked for: ask for shorter sessions$"):
        text.read(0, LENGTH + 1)


# -- questions and secrets --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda asked: asked.text)
def test_a_question_is_not_answered_by_its_echo_but_by_each_keyword(asked):
    assert not asked.answered_by(asked.text)
    assert asked.keywords and all(asked.answered_by(f"Well, it is {word.upper()}!") for word in asked.keywords)


def test_keywords_are_whole_words_as_words_are_told_apart():
    assert all(plain_words(word) == [word] for asked in QUESTIONS for word in asked.keywords)
    ice, seven = Question("What is frozen water called?", ("ice",)), Question("How many?", ("seven", "7"))
    assert ice.answered_by("Ice.") and ice.answered_by("it's called\nice")
    assert not ice.answered_by("Nice slices of rice") and not ice.answered_by("icebergs") and not ice.answered_by("")
    assert seven.answered_by("There are 7.") and not seven.answered_by("There are 77, or seventy.")


@pytest.mark.parametrize("seed", [0, 3, 100])
def test_the_list_goes_round(seed):
    count = len(QUESTIONS)
    asked = [question(seed, number) for number in range(2 * count)]
    assert set(asked[:count]) == set(QUESTIONS) and asked[count:] == asked[:count]


def test_each_seed_begins_at_another_place():
    assert len({question(seed, 0) for seed in range(len(QUESTIONS))}) == len(QUESTIONS) == len(set(QUESTIONS))
    assert [secret(seed) for seed in range(len(SECRETS))] == list(SECRETS) and secret(len(SECRETS)) == SECRETS[0]


def test_a_secret_is_in_no_answer_and_in_no_question():
    others = {word for asked in QUESTIONS for word in (*asked.keywords, *plain_words(asked.text))}
    others |= {*plain_words(TELL), *plain_words(RECALL)}
    assert len(set(SECRETS)) == len(SECRETS) and others.isdisjoint(SECRETS)
    assert all(plain_words(word) == [word] for word in SECRETS)


# -- how lenient the scorer is ----------------------------------------------------------------------------------------


def test_honest_replies_count_for_no_other_question():
    assert by_chance([(asked, f"It is {asked.keywords[0]}.") for asked in QUESTIONS]) == 0.0
    assert by_chance([(asked, "") for asked in QUESTIONS]) == 0.0


def test_a_reply_that_lists_everything_counts_for_all():
    everything = " ".join(word for asked in QUESTIONS for word in asked.keywords)
    assert by_chance([(asked, everything) for asked in QUESTIONS]) == 1.0


def test_without_replies_there_is_no_chance():
    assert by_chance([]) is None and by_chance(iter([])) is None


def test_chance_is_the_share_of_pairs_that_count_and_those_of_shared_keywords_are_none():
    tall, wide, same = Question("How tall?", ("one", "two")), Question("How wide?", ("three",)), Question("?", ("two",))
    assert by_chance([(tall, "two"), (tall, "three")], (tall, wide, same)) == 1 / 2
    assert by_chance([(wide, "one two three")], (tall, wide, same)) == 1.0
    assert by_chance([(tall, "two")], (tall, same)) is None
