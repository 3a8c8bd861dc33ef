"""The conversation as the model has it: whose turn is open, what goes in next, and which reply tokens are shown.

Nothing but the chat itself goes in. A chunk that only listens owes one token, and vLLM drops the last token sampled at
the next chunk; one that goes on with a reply begins with the token that was dropped. So what the model has seen is
the chat template of the transcript, token for token, and a reply is what it would be without frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

TURN, END = "<|im_start|>", "<|im_end|>"
SYSTEM = f"{TURN}system\nYou are on the phone. Answer in one short sentence.{END}\n"
USER, ASSISTANT = f"{TURN}user\n", f"{TURN}assistant\n"
MOST_TOKENS = 64  # in one chunk: a longer turn goes in over several
LONGEST_REPLY = 64  # tokens; a reply that has not ended by then is closed


class Chat:
    """``encode``: text -> token ids, with SmolLM2's chat tokens as one each. Every method is called on one thread.

    ``listening`` is set by whoever hears the speaker: while it is True no reply is begun and one that goes is closed.
    """

    def __init__(
        self, encode: Callable[[str], list[int]], most_tokens: int = MOST_TOKENS, longest_reply: int = LONGEST_REPLY
    ) -> None:
        self._encode, self.most_tokens, self._longest = encode, most_tokens, longest_reply
        (self.end,) = encode(END)
        self._after_end = encode("\n")
        self._user, self._closing = encode(USER), encode(f"{END}\n{ASSISTANT}")
        self.listening = False
        self._prompt = encode(SYSTEM)  # what has still to go in before anything else
        self._words: list[int] = []  # words that have still to go in
        self._said_since_reply = False
        self._role: str | None = None
        self.answering = False  # whether the chunk in flight is one of a reply
        self.replies = 0  # opened so far
        self._over = self._cut = False
        self._last: list[int] = []  # the reply's last token: sampled, not yet seen by the model
        self._replied = 0
        self.seen: list[int] = []  # every token that the model has computed, in order

    # -- what is heard ----------------------------------------------------------------------------------------------

    @property
    def replying(self) -> bool:
        """Whether a reply goes on."""
        return self._role == ASSISTANT and not self._over and not self._cut

    @property
    def settled(self) -> bool:
        """Whether all words that were heard are with the model."""
        return not (self.listening or self._words or self._said_since_reply)

    def interrupt(self) -> bool:
        """The speaker begins. Whether that cuts a reply short: none of its tokens is shown from here on."""
        self.listening = True
        cut = self.replying
        self._cut |= cut
        return cut

    def add(self, words: str) -> None:
        """Words of the speaker's turn."""
        begun = self._said_since_reply
        self._words += self._encode(f" {words}" if begun else words)
        self._said_since_reply = True

    # -- to the engine and back -------------------------------------------------------------------------------------

    def chunk(self, owed: int) -> tuple[list[int], int]:
        """The tokens that go in now and how many are owed, ``owed`` at most; ([], 0) where there is nothing to say."""
        self.answering, tokens = False, []
        if self._prompt:
            tokens, self._prompt = self._prompt[: self.most_tokens], self._prompt[self.most_tokens :]
            self.seen += tokens
            return tokens, 1
        if self._role == ASSISTANT and (self._over or self._cut) and (self.listening or self._words):
            # A token that ended the reply is its end already.
            tokens = tokens + self._last + ([] if self._last == [self.end] else [self.end]) + self._after_end
            self._role, self._last, self._over, self._cut = None, [], False, False
        if self._role is None and (self.listening or self._words):
            tokens = tokens + self._user
            self._role = USER
        if self._role == USER:
            tokens = self._with_words(tokens)
        elif self.replying:
            tokens, self.answering = tokens + self._last, True
            self._last = []
        self.seen += tokens
        if not tokens:
            return [], 0
        return list(tokens), min(owed, self._longest - self._replied) if self.answering else 1

    def _with_words(self, tokens: list[int]) -> list[int]:
        room = self.most_tokens - len(tokens) - len(self._closing)
        tokens, self._words = tokens + self._words[:room], self._words[room:]
        if self._said_since_reply and not self._words and not self.listening:
            tokens = tokens + self._closing
            self._role, self.answering, self.replies = ASSISTANT, True, self.replies + 1
            self._replied, self._said_since_reply = 0, False
        return tokens

    def said(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Tokens that came for the chunk in flight: those to show. Of a chunk that only listened, none."""
        if not self.answering or not tokens:
            return ()
        self.seen += [*self._last, *tokens[:-1]]
        self._last = [tokens[-1]]
        self._replied += len(tokens)
        shown = () if self._cut else tuple(token for token in tokens if token != self.end)
        self._over |= self._last == [self.end] or self._replied >= self._longest
        return shown
