"""How sessions open and what is pinned: whole blocks, the chat intact, and one policy for each choice."""

from __future__ import annotations

import json
import re

import pytest

from workbench.bound import KVBound
from workbench.frontends.text import load_tokenizer
from workbench.quality.policies import (
    CONTENT,
    FIRST,
    HEADER,
    NOTHING,
    PINNED,
    REPLY,
    SYSTEM,
    UNBOUNDED,
    Opening,
    Policy,
    policies,
)
from workbench.speech.chat import ASSISTANT, END, TURN, USER
from workbench.weights import available, model_path

SIZES = (16, 32, 64)
SYSTEM_TURN, FIRST_TURN = f"{TURN}system\n{SYSTEM}", f"{USER}{FIRST}"


class MadeUp:
    """A tokenizer of the chat's marks and of what matches ``pattern``, each of them a token."""

    def __init__(self, pattern: str) -> None:
        self.pattern = "|".join((re.escape(TURN), re.escape(END), "\n", pattern))
        self.known: list[str] = []

    def encode(self, text: str) -> list[int]:
        pieces = re.findall(self.pattern, text)
        assert "".join(pieces) == text
        self.known += [piece for piece in dict.fromkeys(pieces) if piece not in self.known]
        return [self.known.index(piece) for piece in pieces]

    def decode(self, tokens) -> str:
        return "".join(self.known[token] for token in tokens)


class Real:
    """SmolLM2's."""

    def __init__(self) -> None:
        folder = model_path("smollm2")
        self.tokenizer = load_tokenizer(folder, json.loads((folder / "config.json").read_text())["vocab_size"])

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False)


@pytest.fixture(scope="module", params=["words", "letters", "smollm2"])
def tokenizer(request):
    if request.param != "smollm2":
        return MadeUp({"words": r" ?\w+|.", "letters": "."}[request.param])
    there, why = available("smollm2")
    if not there:
        pytest.skip(why)
    return Real()


@pytest.mark.parametrize("block", SIZES)
def test_every_part_is_whole_blocks_and_no_more_than_it_needs(tokenizer, block):
    opening = Opening.of(tokenizer.encode, block)
    parts = len(opening.header), len(opening.content), opening.reply
    assert all(part and part % block == 0 for part in parts) and opening.reply == block
    assert opening.tokens == sum(parts)
    needed = len(tokenizer.encode(f"{SYSTEM_TURN}{END}\n")), len(tokenizer.encode(f"{FIRST_TURN}{END}\n{ASSISTANT}"))
    assert all(part - block < least <= part for part, least in zip(parts, needed, strict=False))


@pytest.mark.parametrize("block", SIZES)
def test_the_chat_is_intact_but_for_empty_lines_before_the_end_of_a_turn(tokenizer, block):
    opening = Opening.of(tokenizer.encode, block)
    header, content = tokenizer.decode(opening.header), tokenizer.decode(opening.content)
    assert re.fullmatch(f"{re.escape(SYSTEM_TURN)}\n*{re.escape(END)}\n", header)
    assert re.fullmatch(f"{re.escape(FIRST_TURN)}\n*{re.escape(END)}\n{re.escape(ASSISTANT)}", content)
    (turn,), (end,) = tokenizer.encode(TURN), tokenizer.encode(END)
    assert [opening.header.count(mark) for mark in (turn, end)] == [1, 1] and opening.header[0] == turn
    assert [opening.content.count(mark) for mark in (turn, end)] == [2, 1] and opening.content[0] == turn


@pytest.mark.parametrize("block", SIZES)
def test_each_part_more_that_is_pinned_is_more_sinks(tokenizer, block):
    opening = Opening.of(tokenizer.encode, block)
    sinks = [opening.sinks(pinned) for pinned in PINNED]
    assert sinks == [0, len(opening.header), len(opening.header) + len(opening.content), opening.tokens]
    # So pinning one more is never the same bound in whole blocks.
    assert len({KVBound(64, s).sink_tokens(block) for s in sinks}) == len(PINNED)


def test_a_part_that_fills_its_blocks_is_not_padded():
    letters = MadeUp(".")
    length = len(letters.encode(f"{SYSTEM_TURN}{END}\n"))
    assert letters.decode(Opening.of(letters.encode, length).header) == f"{SYSTEM_TURN}{END}\n"


def test_policies_are_unbounded_and_every_window_with_everything_pinned():
    compared = policies((128, 256), iter((NOTHING, REPLY)))
    names = [policy.name for policy in compared]
    assert names == ["unbounded", "W128-nothing", "W128-reply", "W256-nothing", "W256-reply"]
    assert compared[0] == UNBOUNDED == Policy() and compared[2] == Policy(128, REPLY)
    assert len({policy.name for policy in policies((64, 128, 256), PINNED)}) == 3 * len(PINNED) + 1
    assert policies((), PINNED) == [UNBOUNDED]


def test_a_policy_is_its_window_and_as_many_sinks_as_it_pins():
    opening = Opening((1,) * 32, (2,) * 64, 16)
    assert UNBOUNDED.bound(opening) is None
    bounds = [Policy(256, pinned).bound(opening) for pinned in (NOTHING, HEADER, CONTENT, REPLY)]
    assert bounds == [KVBound(256, 0), KVBound(256, 32), KVBound(256, 96), KVBound(256, 112)]
