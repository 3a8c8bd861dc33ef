"""What browser tests share: one Chromium and one server of each kind, a fresh page for each test, its evidence."""

from __future__ import annotations

import sys

import pytest
from playwright.sync_api import sync_playwright

from workbench.browser import FLAGS, BrowserError, ensure_chromium

from .driver import LabServer, NotebookPage, VoilaPage, VoilaServer, WidgetPage

CHROMIUM_FLAGS = (
    *FLAGS,
    # The same page on every machine, connected or not.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
VIEWPORT = {"width": 1400, "height": 1000}

# Package, not session: while playwright runs, its event loop counts as this thread's, and the tests of other folders
# that come after these could run none of their own.


@pytest.fixture(scope="package")
def chromium():
    """The browser, headless and with an empty profile."""
    try:
        path = ensure_chromium(lambda step: print(step, file=sys.stderr, flush=True))
    except BrowserError as error:
        pytest.fail(str(error), pytrace=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=list(CHROMIUM_FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def served_folder(tmp_path_factory):
    """The folder that the servers serve; tests write or copy their notebooks into it."""
    return tmp_path_factory.mktemp("notebooks")


@pytest.fixture(scope="package")
def lab(served_folder):
    """JupyterLab on the served folder."""
    with LabServer(served_folder) as server:
        yield server


@pytest.fixture(scope="package")
def voila(served_folder):
    """Voila on the served folder."""
    with VoilaServer(served_folder) as server:
        yield server


@pytest.fixture
def notebook_page(chromium, lab):
    """A tab for JupyterLab. A test must forget the errors it expects: any other fails it. No kernel outlives it."""
    with chromium.new_context(viewport=VIEWPORT) as context:
        page = NotebookPage(context, lab)
        yield page
        left = page.errors
    lab.shut_sessions()
    _fail_if(left)


@pytest.fixture
def voila_page(chromium, voila):
    """A tab for Voila, with the same rule about errors."""
    with chromium.new_context(viewport=VIEWPORT) as context:
        page = VoilaPage(context, voila)
        yield page
        left = page.errors
        if not page.page.is_closed():
            page.close_tab()
    _fail_if(left)


def _fail_if(errors: list[str]) -> None:
    if errors:
        pytest.fail(f"errors that the test did not expect: {'; '.join(errors)}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Keep what each page of a failed test shows."""
    report = yield
    if report.when == "call" and report.failed:
        # One page may be known by the names of several fixtures.
        for page in {value for value in item.funcargs.values() if isinstance(value, WidgetPage)}:
            report.sections.append(("browser", "\n".join(map(str, page.keep_evidence(item.nodeid)))))
    return report
