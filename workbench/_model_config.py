"""The config.json of a model's folder, for all who read one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path


def read_config(folder: Path, refuse: Callable[[str], Exception]) -> dict:
    """What it holds. Raises ``refuse(line)``, the line naming the file, where that is no JSON object."""
    file = folder / "config.json"
    try:
        config = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise refuse(f"{file} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(config, dict):
        raise refuse(f"{file} holds no JSON object")
    return config
