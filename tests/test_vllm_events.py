"""What the vLLM engine makes of vLLM's outputs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from workbench.bound import ENDED
from workbench.engine.vllm import VllmEngine
from workbench.profiles import load_profile


def event(tokens=(), finish=None, stop=None):
    output = SimpleNamespace(token_ids=list(tokens), finish_reason=finish, stop_reason=stop, logprobs=None)
    return VllmEngine(load_profile("tiny"))._event("s0", output)


@pytest.mark.parametrize(
    ("output", "done", "eos", "ended"),
    [
        ({"tokens": (5,)}, False, False, None),
        ({"tokens": (5,), "finish": "length"}, True, False, None),
        ({"tokens": (2,), "finish": "stop", "stop": 2}, True, True, None),
        ({"finish": "length", "stop": ENDED + "too long"}, True, False, "too long"),
        ({"finish": "abort"}, True, False, "given up by the engine: abort"),
        ({"finish": "error"}, True, False, "given up by the engine: error"),
    ],
)
def test_an_output_is_an_answer_an_end_or_neither(output, done, eos, ended):
    said = event(**output)
    assert (said.done, said.eos, said.ended) == (done, eos, ended)
    assert said.tokens == output.get("tokens", ())
