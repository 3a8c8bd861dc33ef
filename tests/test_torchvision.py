"""torchvision imports beside the CPU build of torch, in every process of the environment, and costs those nothing."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from workbench._torchvision import PTH, install

MODELS = "from transformers import LlamaForCausalLM, Qwen2VLImageProcessor"


def python(script: str, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, *options, "-c", script], check=False, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("script", [MODELS, f"import torchvision.transforms.v2; {MODELS}"])
def test_it_imports_whoever_asks_for_it_first(script):
    python(script)


def test_without_the_hook_it_does_not():
    """What the hook is for: when this fails, the hook can go."""
    with pytest.raises(AssertionError, match="torchvision::nms"):
        python(
            "import sys; sys.meta_path = [m for m in sys.meta_path if type(m).__name__ != '_DeclareFirst']\n" + MODELS
        )


def test_a_process_that_asks_for_nothing_has_loaded_nothing():
    loaded = python("import sys; print(*sorted({name.split('.')[0] for name in sys.modules}))").split()
    assert not {"torch", "torchvision", "numpy"} & set(loaded)


def test_the_operators_have_no_implementation_and_say_so():
    said = python(
        "import torch, torchvision\n"
        "try:\n    torchvision.ops.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)\n"
        "except RuntimeError as error:\n    print(error)"
    )
    assert "C++ ops" in said


def test_set_up_wrote_what_install_writes(monkeypatch, tmp_path):
    written = (Path(sysconfig.get_path("purelib")) / PTH).read_text()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    install()
    assert (tmp_path / PTH).read_text() == written
