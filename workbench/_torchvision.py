"""Lets torchvision import beside a CPU build of torch, of which its own compiled operators are none.

torchvision's Python half names two operators that its compiled half defines. That half is built for CUDA and does not
load beside a CPU torch, and then torchvision raises at import, and with it every plain ``import transformers``, which
looks for it. So the two are declared first, without an implementation: who calls one is told that there is none.

``make setup`` installs torchvision and this hook together: ``python -m workbench._torchvision`` writes a .pth file,
which Python reads at the start of every process of the environment, those that vLLM starts included. The hook itself
imports nothing until torchvision is asked for.
"""

from __future__ import annotations

import sys

PTH = "metronome-torchvision.pth"
OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class _DeclareFirst:
    """Declares the operators when torchvision is first looked for, and then lets Python find it."""

    def find_spec(self, fullname, path=None, target=None):
        """As importlib.abc.MetaPathFinder's: the spec of torchvision, None for all else."""
        if fullname != "torchvision":
            return None
        from importlib.machinery import PathFinder

        sys.meta_path.remove(self)
        found = PathFinder.find_spec(fullname, path, target)
        if found is not None:
            declare()
        return found


_kept: list = []


def declare() -> None:
    """Declare torchvision's operators, where torch is a build without CUDA."""
    import torch

    if torch.version.cuda is None and not _kept:
        # What is declared goes with the library object.
        library = torch.library.Library("torchvision", "DEF")
        for operator in OPERATORS:
            library.define(operator)
        _kept.append(library)


def watch() -> None:
    """Put the hook in place, once a process."""
    if "torchvision" not in sys.modules and not any(isinstance(each, _DeclareFirst) for each in sys.meta_path):
        sys.meta_path.insert(0, _DeclareFirst())


def install() -> None:
    """Write the .pth file of this environment; it does nothing where this package is gone."""
    import sysconfig
    from pathlib import Path

    file = Path(sysconfig.get_path("purelib")) / PTH
    file.write_text(
        "import importlib.util as u; u.find_spec('workbench') and "
        "__import__('workbench._torchvision', fromlist=['watch']).watch()\n"
    )


if __name__ == "__main__":
    install()
