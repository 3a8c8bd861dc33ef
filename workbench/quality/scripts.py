"""What the sessions of the sinks experiment do: listen to a text, answer turn by turn, or speak on and on.

All open alike (workbench.quality.policies.Opening). Ages are in tokens that the session has computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from workbench.engine.base import Engine
from workbench.engine.vllm import Sampling
from workbench.frontends import FrontEndError
from workbench.frontends.text import load_tokenizer
from workbench.quality.line import Line
from workbench.quality.policies import Opening
from workbench.quality.questions import Question, question, secret
from workbench.quality.texts import HeldOut
from workbench.speech.chat import ASSISTANT, END, TURN, USER

FRAME = 64  # tokens of text in a frame that is only listened to
PASSAGE = 48  # and in a turn, before its question
REPLY = 24  # tokens owed to a question
SPOKEN = 16  # and in a frame of a session that speaks on
ASKED_EVERY = 128  # tokens of age between two questions to it
TEMPERATURE = 0.7
# How far away a secret is when it is asked for: CARRIED, where the session has kept it or has said it again.
WITHIN, CARRIED, BEYOND = "within", "carried", "beyond"
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
    """Of an engine that is started. Raises FrontEndError where its model has no tokenizer or no chat tokens."""
    tokenizer = load_tokenizer(engine.model_path, engine.facts.vocab_size)
    if None in (tokenizer.token_to_id(TURN), tokenizer.token_to_id(END)):
        raise FrontEndError(
            f"{engine.model_path}: its tokenizer has no chat tokens; serve a model that has, as smollm2"
        )
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
class Spoken:
    """Generated tokens that belong together, the first of them at ``age``."""

    age: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Asked:
    """A question whose turn begins at ``age``, and its reply; ``recall``: of the secret, how far away it is."""

    age: int
    question: Question
    reply: str
    spoken: Spoken
    recall: str | None = None

    @property
    def right(self) -> bool:
        return self.question.answered_by(self.reply)


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
    """``before``, which ends what the model had to say, a turn of the user, and the model's opened."""
    return [*before, *tokens.encode(f"{END}\n{USER}"), *text, *tokens.encode(f"{END}\n{ASSISTANT}")]


async def _ask(line: Line, tokens: Tokens, asked: Question, before: list[int], passage: Sequence[int] = ()):
    """Put a question in a turn of its own, behind a passage where there is one, for a reply that ends itself.

    What came of it, the scores of the passage, and what of the reply has to go in before anything else does.
    """
    words = tokens.encode(f"\n\n{asked.text}" if passage else asked.text)
    begin, mark = line.age, len(before) + len(tokens.encode(f"{END}\n{USER}"))
    fed = _turn(tokens, [*passage, *words], before)
    answer = await line.feed(fed, REPLY, (tokens.end,))
    scored = Scored(begin + mark, answer.scores[mark : mark + len(passage)])
    # A token that ended the reply is its end already.
    kept = [] if answer.eos else [line.last]
    spoken = Spoken(begin + len(fed), answer.tokens)
    return Asked(begin, asked, tokens.decode(answer.tokens), spoken), scored, kept


async def listen(
    line: Line, opening: Opening, tokens: Tokens, text: HeldOut, seed: int, age: int, frame: int = FRAME
) -> Left:
    """The user's turn is a text that does not end, ``frame`` tokens at a time: every token of it is scored."""
    left, fed = Left(seed), 0
    await _open(line, opening)
    await line.feed(tokens.encode(f"{END}\n{USER}"))
    while line.age < age:
        begin = line.age
        answer = await line.feed(text.read(seed, frame, fed))
        left.scored.append(Scored(begin, answer.scores))
        fed += frame
    return left


async def remember(line: Line, opening: Opening, tokens: Tokens, text: HeldOut, seed: int, age: int) -> Left:
    """A secret is told behind the opening and asked for; then questions go on, and at the end it is asked for again."""
    left, word, number = Left(seed), Question(RECALL, (secret(seed),)), 0
    await _open(line, opening)
    _, _, kept = await _ask(line, tokens, Question(TELL.format(*word.keywords), ()), [])
    asked, _, kept = await _ask(line, tokens, word, kept)
    left.asked.append(replace(asked, recall=WITHIN))
    while line.age < age:
        _, _, kept = await _ask(line, tokens, question(seed, number), kept)
        number += 1
    # A reply may have named it again, and then it is no further away than that reply.
    carried = word.answered_by(tokens.decode(await line.visible()))
    asked, _, _ = await _ask(line, tokens, word, kept)
    left.asked.append(replace(asked, recall=CARRIED if carried else BEYOND))
    return left


async def converse(line: Line, opening: Opening, tokens: Tokens, text: HeldOut, seed: int, age: int) -> Left:
    """Turn by turn: a passage of the text, which is scored, and a question on something else."""
    left, number, kept = Left(seed), 0, []
    await _open(line, opening)
    while line.age < age:
        passage = text.read(seed, PASSAGE, number * PASSAGE)
        asked, scored, kept = await _ask(line, tokens, question(seed, number), kept, passage)
        left.asked.append(asked)
        left.scored.append(scored)
        number += 1
    return left


async def speak(line: Line, opening: Opening, tokens: Tokens, text: HeldOut, seed: int, age: int) -> Left:
    """One reply that nothing ends, drawn at random; now and then a question falls into it, and it goes on."""
    left, number, sampling = Left(seed), 0, Sampling(TEMPERATURE, seed)
    await _open(line, opening, sampling)
    asks = line.age + ASKED_EVERY
    while line.age < age:
        if line.age >= asks:
            asked, begin = question(seed, number), line.age
            words = _turn(tokens, tokens.encode(asked.text), [line.last])
            answer = await line.feed(words, REPLY, sampling=sampling._replace(likeliest=True))
            reply = answer.tokens[: answer.tokens.index(tokens.end)] if tokens.end in answer.tokens else answer.tokens
            left.asked.append(Asked(begin, asked, tokens.decode(reply), Spoken(begin + len(words), reply)))
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
