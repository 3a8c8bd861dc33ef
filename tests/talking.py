"""Stand-ins for a conversation: a detector that hears loudness, a tokenizer of few words, a model with a script."""

from __future__ import annotations

import heapq
import math
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from workbench.audio import SAMPLE_RATE, AudioStream, Clip
from workbench.beat import Beat
from workbench.engine.base import TokenEvent
from workbench.frontends.asr import AsrFrontEnd
from workbench.profiles import load_profile
from workbench.speech.chat import END, TURN
from workbench.speech.worker import AtOnce
from workbench.telemetry import Tables

PROFILE = load_profile("tiny", frame_budget_s=0.5, tokens_owed=2, phase_groups=1, front_end="asr")
VOCAB = 2048


class Loud:
    """Speech is what is loud: a probability of 1 or 0 for each 512 samples."""

    window = 512

    def __init__(self) -> None:
        self.left = np.zeros(0, np.float32)

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        audio = np.concatenate((self.left, samples))
        count = audio.size // self.window
        self.left = audio[count * self.window :]
        return (np.abs(audio[: count * self.window].reshape(-1, self.window)).mean(axis=1) > 0.1).astype(np.float32)


def loud(*spans: tuple[float, float], seconds: float) -> Clip:
    """A clip that is loud in these spans of seconds: the loudness of the n-th says which it is."""
    samples = np.zeros(round(seconds * SAMPLE_RATE), np.float32)
    for i, (start, end) in enumerate(spans):
        samples[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)] = 0.2 + 0.1 * i
    return Clip("loud", samples)


def words_of(*texts: str):
    """A recogniser for ``loud``: by its loudness, the words of the n-th span."""
    return lambda samples: texts[round((float(samples.max()) - 0.2) / 0.1)]


def save_tokenizer(folder: Path) -> Path:
    """A byte-level tokenizer of a token a byte, with the two chat tokens; ``folder``."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(TURN, special=True), AddedToken(END, special=True)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


class Script:
    """An engine that replies by a script, a reply at a time, and keeps the tokens that a real one would have computed.

    A chunk that ends with an opened assistant's turn begins the next reply, any other goes on with it or, owing one
    token, gets one of no meaning. ``slow``: seconds that an answer takes, by the number of the chunk.
    """

    def __init__(self, front_end: AsrFrontEnd, replies: list[str], slow: dict[int, float] | None = None) -> None:
        self.encode = lambda text: front_end._tokenizer.encode(text, add_special_tokens=False).ids
        self.opening, (self.end,) = self.encode(f"{TURN}assistant\n"), self.encode(END)
        self.replies = [[*self.encode(reply), self.end] for reply in replies]
        self.reply: list[int] = []
        self.slow, self.now = slow or {}, 0.0
        self.computed: list[int] = []
        self.chunks: list[tuple[list[int], int]] = []
        self.coming: list[tuple[float, TokenEvent]] = []
        self.closed: list[str] = []

    def submit(self, session, tokens, owed, bound, stop_token_ids=()) -> None:
        assert tokens and owed
        if tokens[-len(self.opening) :] == self.opening:
            self.reply = self.replies.pop(0)
        listens = owed == 1 and tokens != self.computed[-1:] and tokens[-len(self.opening) :] != self.opening
        said = [3] if listens and len(tokens) > 1 else self.reply[:owed]
        if not (listens and len(tokens) > 1):
            self.reply = self.reply[owed:]
        after = self.now + self.slow.get(len(self.chunks), 0.1)
        self.chunks.append((list(tokens), owed))
        self.computed += [*tokens, *said[:-1]]
        done = TokenEvent(session, tuple(said), after, done=True, eos=said[-1:] == [self.end])
        heapq.heappush(self.coming, (after, done))

    def close(self, session) -> None:
        self.closed.append(session)


class Conversation:
    """A beat with one conversation on it and the virtual clock that drives both."""

    def __init__(self, folder: Path, clip: Clip, heard: tuple[str, ...], replies: list[str], slow=None, worker=AtOnce):
        self.front_end = AsrFrontEnd(
            vocab_size=VOCAB,
            clip=clip,
            frame_budget_s=PROFILE.frame_budget_s,
            model_path=save_tokenizer(folder),
            detect=Loud(),
            recognise=words_of(*heard),
            worker=worker,
        )
        self.engine = Script(self.front_end, replies, slow)
        self.beat = Beat(PROFILE, Tables("virtual"), self.engine)
        stream = AudioStream(clip, PROFILE.frame_budget_s, loop=False)
        self.session = self.beat.open(
            "a",
            "loud",
            lambda k: self.front_end.encode(stream.chunk(k), k),
            0.0,
            stop_token_ids=self.front_end.stop_token_ids,
            frames_limit=stream.frames,
            talk=self.front_end,
        )

    def until(self, end: float) -> Conversation:
        while True:
            coming = self.engine.coming
            at = min(self.beat.next_at(), coming[0][0] if coming else math.inf)
            if at > end:
                self.engine.now = end
                return self
            self.engine.now = at
            if coming and coming[0][0] == at:
                self.beat.hear(heapq.heappop(coming)[1], at)
            else:
                self.beat.advance(at)

    def text(self, tokens) -> str:
        return self.front_end._tokenizer.decode(list(tokens), skip_special_tokens=False)

    def frames(self, *columns):
        return [tuple(row) for row in self.beat.tables.frames()[list(columns)].itertuples(index=False)]
