"""Files from the page to the kernel: an upload comes in slices, for Jupyter closes the socket on a long message.

The page's end is upload.js. It checks a file before it sends a byte of it; all is checked again here, where it counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anywidget
import traitlets

SLICE_BYTES = 1 << 20  # a tenth of the longest message that Jupyter takes
LIMIT_BYTES = 64_000_000
SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")
_NAME_SHOWN = 120


class UploadError(ValueError):
    """A file that is not taken. The message is one line that names it and says what to do."""


@dataclass
class _Incoming:
    upload: str
    name: str
    size: int
    data: bytearray = field(default_factory=bytearray)


class Upload(anywidget.AnyWidget):
    """A button that has the user choose a file. Two calls report, both on the thread that takes the page's messages:

    ``on_file(name, data)`` with a whole file, ``name`` without any folder; ``on_error(text)`` with one line on a file
    that was refused, be it in the page or here. One file at a time: a second one takes the place of a half-sent first.
    """

    _esm = Path(__file__).parent / "upload.js"
    accept = traitlets.List(traitlets.Unicode(), SUFFIXES).tag(sync=True)
    limit_bytes = traitlets.Int(LIMIT_BYTES).tag(sync=True)

    def __init__(
        self, on_file: Callable[[str, bytes], None], on_error: Callable[[str], None] | None = None, **traits: Any
    ) -> None:
        self._on_file, self._on_error = on_file, on_error
        self._incoming: _Incoming | None = None
        super().__init__(**traits)
        self.on_msg(self._received)

    def _received(self, _widget: Any, content: Any, buffers: Any) -> None:
        upload = content.get("upload") if isinstance(content, dict) else None
        try:
            match content:
                case {"kind": "begin", "upload": str(upload), "name": str(name), "size": int(size)}:
                    name = base_name(name)
                    check_file(name, size, self.accept, self.limit_bytes)
                    self._incoming = _Incoming(upload, name, size)
                    self._ask()
                case {"kind": "slice", "upload": str(upload), "name": str(name), "at": int(at)} if len(buffers) == 1:
                    self._take(upload, base_name(name), at, buffers[0])
                case {"kind": "refused", "text": str(text)}:
                    self._report(_one_line(text))
                case _:
                    raise UploadError("the page sent what no upload understands: reload the page, then choose again")
        except UploadError as error:
            self.send({"kind": "refused", "upload": upload, "text": str(error)})
            self._report(str(error))

    def _take(self, upload: str, name: str, at: int, data: Any) -> None:
        incoming = self._incoming
        if incoming is None or incoming.upload != upload:
            raise UploadError(f"{name}: another upload took its place: choose it again")
        have, more = len(incoming.data), memoryview(data).nbytes
        if at != have or not 0 < more <= SLICE_BYTES or have + more > incoming.size:
            self._incoming = None
            found = f"{more} bytes at {at} where {have} of {incoming.size} were there"
            raise UploadError(f"{incoming.name}: came out of order ({found}): choose it again")
        incoming.data += data
        if len(incoming.data) < incoming.size:
            self._ask()
            return
        self._incoming = None
        self.send({"kind": "done", "upload": upload})
        self._on_file(incoming.name, bytes(incoming.data))

    def _ask(self) -> None:
        """Have the page send the next slice."""
        incoming = self._incoming
        at = len(incoming.data)
        self.send({"kind": "next", "upload": incoming.upload, "at": at, "bytes": SLICE_BYTES})

    def _report(self, text: str) -> None:
        if self._on_error is not None:
            self._on_error(text)


def base_name(name: str) -> str:
    """The last part of a file's name as any system writes it, without what does not print; at most 120 characters."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    return "".join(filter(str.isprintable, last)).strip()[-_NAME_SHOWN:]


def check_file(name: str, size: int, accept: list[str], limit_bytes: int) -> None:
    """UploadError unless a file of that name and that many bytes is to be taken."""
    if not any(name.lower().endswith(suffix) and len(name) > len(suffix) for suffix in accept):
        raise UploadError(f"{name or 'a file without a name'}: not audio: choose a {_listed(accept)} file")
    if size < 1:
        raise UploadError(f"{name}: holds no byte")
    if size > limit_bytes:
        # Rounded up, so that a file just over the limit does not read as being at it.
        shown = math.ceil(size / 100_000) / 10
        raise UploadError(f"{name}: {shown:.1f} MB is more than {limit_bytes / 1e6:g} MB: cut it up")


def _listed(accept: list[str]) -> str:
    *firsts, last = accept
    return f"{', '.join(firsts)} or {last}" if firsts else last


def _one_line(text: str) -> str:
    return " ".join(text.split())[: 3 * _NAME_SHOWN]
