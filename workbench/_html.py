"""The pages of a report: an executed notebook and the index. Each is one file that asks nothing of a network."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from workbench.report import NotebookRun

PLOTLY = "application/vnd.plotly.v1+json"
_ERROR_TAG, _ERROR_LINK = "papermill-error-cell-tag", "#papermill-error-cell"


def notebook_page(notebook: Any, title: str, failure: str | None = None) -> str:
    """HTML of an executed notebook (an nbformat node, left as it is); ``failure`` is shown on top.

    A cell whose code JupyterLab folds away (``source_hidden``) shows its outputs alone.
    """
    from nbconvert import HTMLExporter

    page = deepcopy(notebook)
    # Without its kernel a widget shows nothing, and its state weighs megabytes.
    page.metadata.pop("widgets", None)
    _inline_plots(page)
    for cell in page.cells:
        if cell.metadata.get("jupyter", {}).get("source_hidden"):
            cell.metadata["transient"] = {"remove_source": True}
    if failure is not None:
        _put_on_top(page, failure)
    offline = dict.fromkeys(("require_js_url", "mathjax_url", "mermaid_js_url", "mermaid_layout_elk_js_url"), "")
    body, _ = HTMLExporter(**offline).from_notebook_node(page, resources={"metadata": {"name": title}})
    return body.replace("</head>", f"<style>{_PAGE_STYLE}</style></head>", 1)


def _put_on_top(page: Any, failure: str) -> None:
    """The failure in one line, in place of papermill's own, which gives the number of the cell alone."""
    from nbformat.v4 import new_markdown_cell

    text = f"<strong>failed</strong> {escape(failure)}"
    if page.cells and _ERROR_TAG in page.cells[0].metadata.get("tags", []):
        del page.cells[0]
        text = f'{text} <a href="{_ERROR_LINK}">(go there)</a>'
    page.cells.insert(0, new_markdown_cell(f'<p class="failure">{text}</p>'))


def _inline_plots(page: Any) -> None:
    """Plotly outputs become HTML. The first carries plotly.js for all, for that is 5 MB."""
    from plotly.io import to_html

    drawn = 0
    outputs = (output for cell in page.cells if cell.cell_type == "code" for output in cell.outputs)
    for output in outputs:
        figure = output.get("data", {}).get(PLOTLY)
        if figure is None:
            continue
        html = to_html(
            {key: figure[key] for key in ("data", "layout", "frames") if key in figure},
            config={"responsive": True, "displaylogo": False},
            full_html=False,
            include_plotlyjs=drawn == 0,
            validate=False,
            div_id=f"figure-{drawn}",
        )
        output.data = {"text/html": html}
        drawn += 1


def index_page(runs: Iterable[NotebookRun]) -> str:
    """The list of all notebooks run: what served, when, how long, which claims held and which failed."""
    articles = "".join(_article(run) for run in runs) or "<p>No notebook has been run here yet.</p>"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Metronome workbench: reports</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
        f"<body><h1>Metronome workbench: reports</h1>{articles}</body></html>\n"
    )


def _article(run: NotebookRun) -> str:
    metrics = run.metrics or {}
    claims = metrics.get("claims", [])
    status = "failed" if run.error is not None else "held" if claims else "ran"
    error = "" if run.error is None else f'<p class="error">{escape(run.error)}</p>'
    facts = {key: metrics[key] for key in ("executor", "profile", "seed") if key in metrics}
    facts |= {"notebook": run.notebook, "started": run.started_at, "took": _duration(run.duration_s)}
    shown = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(str(value))}</dd></div>" for key, value in facts.items())
    simulated = ' <span class="badge simulated">simulated</span>' if metrics.get("executor") == "simulated" else ""
    links = " ".join(f'<a href="{quote(f"{run.notebook}/{name}")}">{words}</a>' for name, words in _files(run))
    return (
        f'<article><h2><span class="badge {status}">{status}</span> {escape(run.title)}{simulated}</h2>{error}'
        f"<dl>{shown}</dl>{_claims(claims)}<p class=links>{links}</p></article>"
    )


def _files(run: NotebookRun) -> list[tuple[str, str]]:
    files = (
        (f"{run.notebook}.html", "report"),
        (f"{run.notebook}.ipynb", "notebook"),
        ("metrics.json", "metrics"),
        ("tables", "tables"),
        ("kernel.log", "kernel log"),
    )
    return [(name, words) for name, words in files if (run.folder / name).exists()]


def _claims(claims: list[dict[str, Any]]) -> str:
    if not claims:
        return "<p>No claims.</p>"
    rows = "".join(_claim(claim) for claim in sorted(claims, key=lambda claim: bool(claim["holds"])))
    held = sum(bool(claim["holds"]) for claim in claims)
    head = "<thead><tr><th></th><th>claim</th><th>measured</th><th>had to be</th></tr></thead>"
    return f"<p>{held} of {len(claims)} claims held.</p><table>{head}<tbody>{rows}</tbody></table>"


def _claim(claim: dict[str, Any]) -> str:
    status = "held" if claim["holds"] else "failed"
    badge = f'<span class="badge {status}">{status}</span>'
    words = (claim["name"], in_words(claim.get("value")), in_words(claim.get("bound", "")))
    cells = (badge, *(escape(each) for each in words))
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def in_words(value: Any) -> str:
    """A measured value as a person reads it: four significant digits, the parts of a dict with their names."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {in_words(part)}" for key, part in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


_PAGE_STYLE = """
.failure{padding:.7em 1em;background:#fbe9e0;border-left:6px solid #b34700;overflow-wrap:anywhere}
.jp-OutputArea-output.jp-RenderedMarkdown,.jp-OutputArea-output.jp-RenderedHTMLCommon{padding-left:10px}
"""
_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;color:#222;background:#f5f6f7;max-width:60rem;margin:0 auto;padding:1rem}
h1{font-size:1.5rem;margin:.5rem 0 1rem}h2{font-size:1.15rem;margin:0 0 .5rem}
article{background:#fff;border:1px solid #d8dbde;border-radius:8px;padding:1rem 1.2rem;margin:0 0 1rem}
article,td:nth-child(n+2){overflow-wrap:anywhere}th{overflow-wrap:normal}p{margin:.4rem 0}
.badge{font-size:.8rem;font-weight:600;padding:.1rem .5rem;border-radius:4px;white-space:nowrap}
.held,.ran{background:#dcecf7;color:#00486f}.failed{background:#fbe0d0;color:#8a3500}
.simulated{background:#eee;color:#444;border:1px dashed #777}
.error{background:#fbe9e0;border-left:6px solid #b34700;padding:.4rem .8rem}
dl{display:flex;flex-wrap:wrap;gap:.2rem 1.6rem;margin:.5rem 0}dt{font-size:.8rem;color:#666}dd{margin:0}
table{border-collapse:collapse;width:100%;font-size:.92rem;margin:.4rem 0}
th{text-align:left;font-weight:600;color:#666}th,td{padding:.3rem .6rem .3rem 0;border-bottom:1px solid #e6e8ea}
td{vertical-align:top}.links a{margin-right:1.2rem}a{color:#005a8c}
@media(max-width:36rem){th:nth-child(4),td:nth-child(4){display:none}article{padding:.8rem}}
"""
