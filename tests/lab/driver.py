"""Notebooks as their users see them, in JupyterLab and in Voila: open, run, press, ask the kernel, come back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import nbformat
import psutil

from .servers import LabServer, ServerError, VoilaServer, runs, wait_for
from .widgets import LIMIT_S, SHOWN, PageError, WidgetPage, shots_folder

__all__ = [
    "LIMIT_S",
    "LabServer",
    "NotebookPage",
    "PageError",
    "ServerError",
    "VoilaPage",
    "VoilaServer",
    "WidgetPage",
    "runs",
    "shots_folder",
    "wait_for",
    "write_notebook",
]

_NOTEBOOK = "window.jupyterapp?.shell.currentWidget"
_KERNEL = "jupyterapp.shell.currentWidget.sessionContext.session.kernel"
_READY = f"""() => {{
    const session = {_NOTEBOOK}?.sessionContext;
    return session?.isReady && {_NOTEBOOK}.context.isReady && {_NOTEBOOK}.content.widgets.length > 0
        && session.session?.kernel?.connectionStatus === 'connected' && session.session.kernel.status !== 'restarting';
}}"""
# A widget callback's error belongs to no cell and is shown nowhere: only the kernel's messages tell of it.
_TELL = """(message) => {
    const {ename, evalue, name, text} = message.content;
    if (message.header.msg_type === 'error') metronomeHeard('error', `${ename}: ${evalue}`);
    if (message.header.msg_type === 'stream' && name === 'stderr') metronomeHeard('stderr', text);
}"""
_LISTEN_LAB = f"() => {{ {_NOTEBOOK}.sessionContext.iopubMessage.connect((_, message) => ({_TELL})(message)); }}"
_LISTEN_VOILA = f"""async id => {{
    const kernels = jupyterapp.serviceManager.kernels;
    await kernels.ready;
    window.metronomeKernel = kernels.connectTo({{model: {{id, name: 'python3'}}}});
    metronomeKernel.iopubMessage.connect((_, message) => ({_TELL})(message));
}}"""
_RUN = """async ([command, cell]) => {
    const notebook = jupyterapp.shell.currentWidget.content;
    if (cell !== null) {
        notebook.deselectAll();
        notebook.activeCellIndex = cell;
    }
    return await jupyterapp.commands.execute(command);
}"""
# A question that waited behind a cell that failed is thrown away with it: ask again.
_EVALUATE = f"""async expression => {{
    const options = {{code: '', user_expressions: {{value: expression}}, store_history: false}};
    let answer;
    do {{
        answer = (await {_KERNEL}.requestExecute(options).done).content;
    }} while (answer.status === 'aborted');
    return answer.user_expressions.value;
}}"""
_CELL_ERRORS = f"""() => ({_NOTEBOOK}?.content?.widgets ?? []).flatMap(cell => cell.model.outputs?.toJSON() ?? [])
    .filter(output => output.output_type === 'error').map(output => `${{output.ename}}: ${{output.evalue}}`)"""


def write_notebook(path: Path, cells: Sequence[str]) -> str:
    """Write a Python notebook of these code cells; its name comes back."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    nbformat.write(notebook, path)
    return path.name


class NotebookPage(WidgetPage):
    """A notebook in JupyterLab. Its kernel lives on when the tab closes."""

    server: LabServer

    def run_cell(self, index: int, timeout_s: float = LIMIT_S) -> str:
        """Run one cell to its end, well or not, and return what its output shows. Markdown cells count."""
        self._promise(_RUN, ["notebook:run-cell", index], timeout_s)
        return self.output(index)

    def start_cell(self, index: int) -> None:
        """Run one cell and do not wait for it."""
        self._start(_RUN, ["notebook:run-cell", index])

    def run_all(self, timeout_s: float = LIMIT_S) -> None:
        """Run all cells to the end, or to the first that fails."""
        self._promise(_RUN, ["notebook:run-all-cells", None], timeout_s)

    def output(self, index: int) -> str:
        """What a cell's output shows, as a user reads it."""
        return self.page.evaluate(f"index => ({SHOWN})({_NOTEBOOK}.content.widgets[index].outputArea.node)", index)

    def save(self) -> None:
        """Save the notebook with its outputs."""
        self._promise(_RUN, ["docmanager:save", None])

    @property
    def kernel_id(self) -> str:
        """The id of this notebook's kernel, asked of the server: it needs no open tab."""
        for session in self.server.request("api/sessions"):
            if session["path"] == self.notebook:
                return session["kernel"]["id"]
        raise ServerError(f"{self.notebook} has no kernel")

    def kernel_process(self) -> psutil.Process:
        """The kernel's process, busy or not; ``children(recursive=True)`` of it are its engines."""
        return self.server.kernel_process(self.kernel_id)

    def kernel_eval(self, expression: str, timeout_s: float = LIMIT_S) -> str:
        """The repr of an expression in the kernel, which must be free to answer."""
        answer = self._promise(_EVALUATE, expression, timeout_s)
        if answer["status"] != "ok":
            raise PageError(f"{expression}: {answer['ename']}: {answer['evalue']}")
        return answer["data"]["text/plain"]

    def interrupt(self) -> None:
        """Interrupt the kernel, as the stop button does."""
        self._promise(f"() => {_KERNEL}.interrupt()")

    def restart(self) -> None:
        """Restart the kernel, as the button does once its question is answered, and wait until it is there again."""
        self._promise(f"() => {_KERNEL}.restart()")
        self.page.wait_for_function(_READY)

    def shut_kernel(self) -> None:
        """End the notebook's session and kernel, as the list of running kernels does."""
        self.server.shut_sessions(self.notebook)

    def _await_ready(self) -> None:
        self.page.wait_for_function(_READY)
        self.page.evaluate(_LISTEN_LAB)

    def _shown_errors(self) -> list[str]:
        return self.page.evaluate(_CELL_ERRORS)


class VoilaPage(WidgetPage):
    """A notebook in Voila, run to its end when it opens. Voila ends its kernel when the tab closes."""

    server: VoilaServer
    kernel_id: str

    def kernel_process(self) -> psutil.Process:
        """The kernel's process, busy or not."""
        return self.server.kernel_process(self.kernel_id)

    def _await_ready(self) -> None:
        self.page.wait_for_function("() => window.jupyterapp?.serviceManager")
        config = "JSON.parse(document.getElementById('jupyter-config-data').textContent)"
        self.kernel_id = self.page.evaluate(f"() => {config}.kernelId")
        self._promise(_LISTEN_VOILA, self.kernel_id)
        self.page.wait_for_function("() => metronomeKernel.connectionStatus === 'connected'")

    def _shown_errors(self) -> list[str]:
        # Cells ran before the page was there to listen; an error shows as its traceback, the last line says which.
        texts = [text.strip() for text in self.page.locator(".jp-OutputArea-output").all_inner_texts()]
        return [text.split("\n")[-1] for text in texts if "Traceback (most recent call last)" in text]
