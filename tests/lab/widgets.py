"""A browser tab with widgets in it: press and set them by the words a user reads, read what they show, keep evidence."""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, ConsoleMessage, Error, Locator, Page, Request, TimeoutError

from .servers import ServerProcess

LIMIT_S = 60.0
_POLL_MS = 100
_OUTPUTS = ".jp-OutputArea"
# Output widgets hold outputs of their own, whose text would count twice.
SHOWN = """root => [...root.querySelectorAll('.jp-OutputArea-output')]
    .filter(output => !output.parentElement.closest('.jp-OutputArea-output'))
    .map(output => output.innerText).join('\\n')"""
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:\s.*\n)*(\S.*)")
# JupyterLab asks kernels things of its own all the time and complains of each that a restart or an end cut short.
_NOISE = re.compile(r"Canceled future for \w+ message before replies were done")
# A script cannot be waited for with a limit, but a flag that it sets can.
_START = """([ticket, argument]) => {{
    const done = window.metronomeDone ??= {{}};
    ({script})(argument).then(value => {{ done[ticket] = {{value: value ?? null}}; }},
                              error => {{ done[ticket] = {{error: String(error)}}; }});
}}"""


class PageError(RuntimeError):
    """The page did not do or show what the test waits for; the message says what it shows."""


def shots_folder() -> Path:
    """Where pictures go: METRONOME_SHOTS, else reports/lab-tests of the checkout."""
    named = os.environ.get("METRONOME_SHOTS")
    return Path(named) if named else Path(__file__).parents[2] / "reports" / "lab-tests"


class WidgetPage:
    """One tab on one notebook, in a context of its own. ``page`` is playwright's own, for what is not here."""

    def __init__(self, context: BrowserContext, server: ServerProcess) -> None:
        self.context = context
        self.server = server
        self.notebook: str | None = None
        self.outside: list[str] = []  # every address asked for that is not on this machine
        self.stderr = ""  # what kernels wrote there while a tab was open
        self._console: list[str] = []
        self._errors: list[str] = []
        self._forgotten: set[str] = set()
        self._tickets = itertools.count()
        context.set_default_timeout(LIMIT_S * 1000)
        context.expose_binding("metronomeHeard", lambda source, kind, text: self._hear(kind, text))
        self.page = self._tab()

    def open(self, notebook: str) -> None:
        """Open a notebook of the served folder and wait until it can be used."""
        self.notebook = notebook
        self.page.goto(self.server.page_url(notebook), timeout=LIMIT_S * 1000)
        self._await_ready()

    def close_tab(self) -> None:
        """Close the tab as a user does; what that means to the kernel is the server's matter."""
        with self.page.expect_event("close"):
            # So that the page's own farewells run; playwright leaves when asked about unsaved changes.
            self.page.close(run_before_unload=True)

    def reopen(self) -> None:
        """Open the same notebook in a new tab."""
        if not self.page.is_closed():
            self.close_tab()
        self.page = self._tab()
        self.open(self.notebook)

    def text(self) -> str:
        """All that the outputs show, as a user reads it."""
        return self.page.evaluate(f"() => ({SHOWN})(document)")

    def wait_text(self, wanted: str | re.Pattern, timeout_s: float = LIMIT_S) -> re.Match:
        """Wait until the outputs show a string, or match a compiled pattern; the match comes back."""
        pattern = re.compile(re.escape(wanted)) if isinstance(wanted, str) else wanted
        deadline = time.monotonic() + timeout_s
        while not (found := pattern.search(self.text())):
            if time.monotonic() > deadline:
                said = f"no {getattr(wanted, 'pattern', wanted)!r} within {timeout_s:g} s; errors: {self.errors}"
                raise PageError(f"{said}; shown: {self._tail()}")
            self.page.wait_for_timeout(_POLL_MS)
        return found

    def control(self, description: str) -> Locator:
        """The widget whose description is exactly this one."""
        return self.page.locator(f"{_OUTPUTS} :has(> label:text-is({json.dumps(description)}))")

    def button(self, label: str) -> Locator:
        """The button with exactly this text, toggle buttons among them."""
        # Not by its accessible name, which an icon's glyph belongs to.
        return self.page.locator(f"{_OUTPUTS} button").filter(has_text=re.compile(rf"^\s*{re.escape(label)}\s*$"))

    def click(self, label: str) -> None:
        """Press a button once it is enabled."""
        self.button(label).click()

    def select(self, description: str, option: str) -> None:
        """Choose an option of a dropdown or list by its text."""
        self.control(description).locator("select").select_option(label=option)

    def set_number(self, description: str, value: float) -> None:
        """Type a number into its box."""
        self._type(self.control(description).locator("input[type=number]"), str(value))

    def set_text(self, description: str, value: str) -> None:
        """Type into a line of text."""
        self._type(self.control(description).locator("input[type=text]"), value)

    def set_slider(self, description: str, value: float) -> str:
        """Type a value into a slider's readout; what it then shows comes back, clamped or formatted as it may be."""
        readout = self.control(description).locator(".widget-readout")
        self._type(readout, str(value))
        return readout.inner_text()

    def set_checkbox(self, description: str, ticked: bool) -> None:
        """Tick a box or clear it."""
        self.page.locator(f"{_OUTPUTS} label:has(> span:text-is({json.dumps(description)})) input").set_checked(ticked)

    def upload(self, path: Path, label: str | None = None) -> None:
        """Give a file to the one file input on the page, or to the chooser that the button ``label`` opens."""
        if label is None:
            self.page.locator(f"{_OUTPUTS} input[type=file]").set_input_files(path)
            return
        with self.page.expect_file_chooser() as chooser:
            self.click(label)
        chooser.value.set_files(path)

    def screenshot(self, name: str) -> Path:
        """Keep a picture of the tab as NAME.png in the folder of pictures."""
        path = shots_folder() / f"{_file_name(name)}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=path)
        return path

    @property
    def errors(self) -> list[str]:
        """Each different error so far: of the page and its console, of cells, widget callbacks and kernel threads."""
        # The look comes first: what happened meanwhile is heard during a call into the page.
        shown = [error for error in self._look() if error not in self._forgotten]
        raised = [f"stderr: {line}" for line in _TRACEBACK.findall(self.stderr)]
        return list(dict.fromkeys([*self._errors, *shown, *raised]))

    def forget_errors(self) -> list[str]:
        """The errors so far, which the test expected. They count no more, unless one happens again."""
        known = self.errors
        self._forgotten.update(self._look())
        self._errors, self.stderr = [], ""
        return known

    def keep_evidence(self, name: str) -> list[Path]:
        """After a failure: a picture, and a text with errors, console, kernel's stderr and the server's log."""
        kept = []
        try:
            kept.append(self.screenshot(name))
        except Error as error:
            self._console.append(f"harness: no picture: {error}")
        parts = {"errors": "\n".join(self.errors), "console": "\n".join(self._console), "outside": str(self.outside)}
        parts |= {"kernel stderr": self.stderr, "server log": self.server.log()}
        path = shots_folder() / f"{_file_name(name)}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"== {part} ==\n{text}\n" for part, text in parts.items()))
        return [*kept, path]

    def _tail(self) -> str:
        return " / ".join(self.text().splitlines())[-600:]

    def _look(self) -> list[str]:
        return [] if self.page.is_closed() else self._shown_errors()

    def _await_ready(self) -> None:
        raise NotImplementedError

    def _shown_errors(self) -> list[str]:
        return []

    def _promise(self, script: str, argument=None, timeout_s: float = LIMIT_S):
        """Start an async function of the page and return what it resolves to, within the limit."""
        ticket = self._start(script, argument)
        try:
            done = self.page.wait_for_function(
                "ticket => window.metronomeDone[ticket]", arg=ticket, timeout=timeout_s * 1000
            ).json_value()
        except TimeoutError:
            said = f"{script if argument is None else argument} not done within {timeout_s:g} s"
            raise PageError(f"{said}; errors: {self.errors}; shown: {self._tail()}") from None
        if "error" in done:
            raise PageError(f"the page's script failed: {done['error']}")
        return done["value"]

    def _start(self, script: str, argument=None) -> int:
        ticket = next(self._tickets)
        self.page.evaluate(_START.format(script=script), [ticket, argument])
        return ticket

    def _tab(self) -> Page:
        page = self.context.new_page()
        page.on("console", self._hear_console)
        page.on("pageerror", self._hear_page_error)
        page.on("request", self._hear_request)
        return page

    def _type(self, box: Locator, value: str) -> None:
        box.fill(value)
        box.press("Enter")

    def _hear(self, kind: str, text: str) -> None:
        if kind == "stderr":
            self.stderr += text
        else:
            self._errors.append(text)

    def _hear_console(self, message: ConsoleMessage) -> None:
        self._console.append(f"{message.type}: {message.text}")
        # A resource of another machine that did not load is told by ``outside``.
        if message.type == "error" and _is_here(message.location["url"]) and not _NOISE.search(message.text):
            self._hear("error", f"console: {message.text}")

    def _hear_page_error(self, error: Error) -> None:
        self._console.append(f"page: {error}")
        if not _NOISE.search(str(error)):
            self._hear("error", f"page: {error}")

    def _hear_request(self, request: Request) -> None:
        if not _is_here(request.url):
            self.outside.append(request.url)


def _is_here(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme not in ("http", "https", "ws", "wss") or parts.hostname == "127.0.0.1"


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name)
