"""Short factual questions, the words that tell a right answer, and how lenient it is to go by words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from workbench.speech.turns import plain_words


@dataclass(frozen=True)
class Question:
    """A question and the words of which a right answer has one."""

    text: str
    keywords: tuple[str, ...]

    def answered_by(self, reply: str) -> bool:
        """Whether ``reply`` has one of the keywords as a whole word, whatever else it says."""
        return not set(self.keywords).isdisjoint(plain_words(reply))


def _capital(country: str, capital: str) -> Question:
    return Question(f"What is the capital of {country}?", (capital,))


# No keyword stands in its own question, and few are shared: else any echo of the question would count.
QUESTIONS = (
    _capital("France", "paris"),
    Question("What color is the sky on a clear day?", ("blue",)),
    Question("How many days are in a week?", ("seven", "7")),
    Question("Which is the largest ocean on Earth?", ("pacific",)),
    _capital("Japan", "tokyo"),
    Question("How many legs does a spider have?", ("eight", "8")),
    Question("Who wrote Romeo and Juliet?", ("shakespeare",)),
    _capital("Egypt", "cairo"),
    Question("Which metal has the symbol Au?", ("gold",)),
    Question("What is the opposite of hot?", ("cold",)),
    _capital("Italy", "rome"),
    Question("Which organ pumps blood?", ("heart",)),
    Question("What do bees make?", ("honey",)),
    _capital("Spain", "madrid"),
    Question("What is frozen water called?", ("ice",)),
    Question("Which language is spoken in Brazil?", ("portuguese",)),
    _capital("Germany", "berlin"),
    Question("Which gas do we breathe in to live?", ("oxygen",)),
    Question("Who painted the Mona Lisa?", ("leonardo", "vinci")),
    _capital("Greece", "athens"),
    Question("What is the first month of the year?", ("january",)),
    Question("On which continent is Kenya?", ("africa",)),
    _capital("China", "beijing"),
    Question("Which star does the Earth orbit?", ("sun",)),
)
# Told early and asked for late: words that no answer above has by chance.
SECRETS = ("lantern", "walnut", "harbour", "violin", "meadow", "copper", "falcon", "velvet", "pepper", "anchor")


def question(seed: int, number: int) -> Question:
    """The ``number``-th question of a session: the list goes round, from another place for each seed."""
    return QUESTIONS[(5 * seed + number) % len(QUESTIONS)]


def secret(seed: int) -> str:
    """The word that the session of ``seed`` is told to keep."""
    return SECRETS[seed % len(SECRETS)]


def by_chance(replies: Iterable[tuple[Question, str]], questions: Sequence[Question] = QUESTIONS) -> float | None:
    """The scorer's leniency: the share of pairs of a reply and another question that the reply would count for.

    A reply that lists everything counts for all, one that answers what it was asked for none. None without replies.
    """
    pairs = [
        other.answered_by(reply)
        for asked, reply in replies
        for other in questions
        if set(other.keywords).isdisjoint(asked.keywords)
    ]
    return sum(pairs) / len(pairs) if pairs else None
