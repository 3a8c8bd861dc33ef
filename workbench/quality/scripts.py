"""What the sessions of the sinks experiment do: listen to a text, answer turn by turn, or speak on and on.

All open alike (workbench.quality.policies.Opening). Ages are in tokens that the session has computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from workbench.engine.base import Engine
from workbench.engine.vllm import Sampling
from workbench.frontends.text import load_tokenizer
from workbench.quality.line import Line
from workbench.quality.policies import Opening
from workbench.quality.questions import Question, question, secret
from workbench.quality.texts import HeldOut
from workbench.speech.chat import ASSISTANT, END, USER

FRAME = 64  # tokens of text in a frame that is only listened to
PASSAGE = 48  # and in a turn, before its question
REPLY = 24  # tokens owed to a question
SPOKEN = 16  # and in a frame of a session that speaks on
ASKED_EVERY = 256  # tokens of age between two questions to it
TEMPERATURE = 0.7
WITHIN, BEYOND = "within", "beyond"
TELL, RECALL = "Keep this in mind: the secret word is {}.", "What is the secret word?"


@dataclass(frozen=True)
class Tokens:
    """The model's tokenizer as the scripts need it."""

    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]

    @property
    def end(self) -> int:
        (end,) = self.encode(END)
        return end


def tokens_of(engine: Engine) -> Tokens:
    """Of an engine that is started. Raises FrontEndError where its model has no tokenizer."""
    tokenizer = load_tokenizer(engine.model_path, engine.facts.vocab_size)
    return Tokens(
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True),
    )


@dataclass(frozen=True)
class Scored:
    """Log-probabilities of tokens that were fed one after the other, the first of them at ``age``."""

    age: int
    scores: tuple[float, ...]


@dataclass(frozen=True)
class Asked:
    """A question put at ``age``, and the reply in words and tokens; ``recall``: "within" or "beyond" the horizon, where
    it is the secret that is asked for.
    """

    age: int
    question: Question
    reply: str
    tokens: tuple[int, ...]
    recall: str | None = None

    @property
    def right(self) -> bool:
        return self.question.answered_by(self.reply)


@dataclass(frozen=True)
class Spoken:
    """Generated tokens that belong together, the first of them at ``age``."""

    age: int
    tokens: tuple[int, ...]


@dataclass
class Left:
    """What a session left. ``context``: every token computed; ``full``: the spoken tokens under the full model."""

    seed: int
    scored: list[Scored] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    spoken: list[Spoken] = field(default_factory=list)
    context: list[int] = field(default_factory=list)
    full: list[Scored] = field(default_factory=list)


async def _open(line: Line, opening: Opening, sampling: Sampling | None = None) -> None:
    await line.feed(opening.header, sampling=sampling)
    # One more than is kept, for the last is dropped. It speaks on past the end of a turn, so all openings are as long.
    await line.feed(opening.content, opening.reply + 1, sampling=sampling)


def _turn(tokens: Tokens, text: list[int], before: list[int]) -> list[int]:
    """A turn of the user behind ``before``, which the model's reply is still open behind; then the model's is opened."""
    return [*before, *tokens.encode(f"{END}\n{USER}"), *text, *tokens.encode(f"{END}\n{ASSISTANT}")]


async def listen(
    line: Line, opening: Opening, tokens: Tokens, text: HeldOut, seed: int, age: int, frame: int = FRAME
) -> Left:
    """The user's turn is a text that does not end, ``frame`` tokens at a time: every token of it is scored."""
    left = Left(seed)
    await _open(line, opening)
    await line.feed(tokens.encode(f"{END}\n{USER}"))
    fed = 0
    while line.age < age:
        begin = line.age
        answer = await line.feed(text.read(seed, frame, fed))
        left.scored.append(Scored(begin, answer.scores))
        fed += frame
    return left


async def converse(line: Line, opening: Opening, tokens: Tokens, text: HeldOut, seed: int, age: int) -> Left:
    """Turn by turn: a passage of the text and a question on something else, and a reply that ends itself.

    The passage is scored. The second turn tells a secret, the third asks for it, and so does the last.
    """
    left, number, kept, word = Left(seed), 0, [], Question(RECALL, (secret(seed),))

    async def turn(asked: Question, passage: Sequence[int] = (), recall: str | None = None) -> Asked:
        nonlocal kept
        words = asked.text
        fed = _turn(tokens, [*passage, *tokens.encode(f"\n\n{words}" if passage else words)], kept)
        begin, mark = line.age, len(kept) + len(tokens.encode(f"{END}\n{USER}"))
        answer = await line.feed(fed, REPLY, (tokens.end,))
        if passage:
            left.scored.append(Scored(begin + mark, answer.scores[mark : mark + len(passage)]))
        kept = [] if answer.eos else [line.last]
        return Asked(begin, asked, tokens.decode(answer.tokens), answer.tokens, recall)

    await _open(line, opening)
    await turn(Question(TELL.format(*word.keywords), ()))
    left.asked.append(await turn(word, recall=WITHIN))
    while line.age < age:
        passage = text.read(seed, PASSAGE, number * PASSAGE)
        left.asked.append(await turn(question(seed, number), passage))
        number += 1
    left.asked.append(await turn(word, recall=BEYOND))
    return left


async def speak(line: Line, opening: Opening, tokens: Tokens, text: HeldOut, seed: int, age: int) -> Left:
    """One reply that nothing ends, drawn at random; now and then a question falls into it, and it goes on."""
    left, number, sampling = Left(seed), 0, Sampling(TEMPERATURE, seed)
    await _open(line, opening, sampling)
    asks = line.age + ASKED_EVERY
    while line.age < age:
        if line.age >= asks:
            asked, begin = question(seed, number), line.age
            answer = await line.feed(_turn(tokens, tokens.encode(asked.text), [line.last]), REPLY)
            reply = answer.tokens[: answer.tokens.index(tokens.end)] if tokens.end in answer.tokens else answer.tokens
            left.asked.append(Asked(begin, asked, tokens.decode(reply), reply))
            number, asks = number + 1, line.age + ASKED_EVERY
        else:
            begin = line.age + 1
            answer = await line.feed([line.last], SPOKEN, sampling=sampling)
            left.spoken.append(Spoken(begin, answer.tokens))
    left.context = [*line.context, line.last]
    return left


async def judge(line: Line, left: Left) -> Left:
    """Feed all that a session has computed to one that forgets nothing, for the likelihood of what was spoken."""
    scores: list[float] = []
    for k in range(0, len(left.context), FRAME):
        scores += (await line.feed(left.context[k : k + FRAME])).scores
    for spoken in left.spoken:
        # The session's first token has no score.
        begin = spoken.age - 1
        left.full.append(Scored(spoken.age, tuple(scores[begin : begin + len(spoken.tokens)])))
    return left
