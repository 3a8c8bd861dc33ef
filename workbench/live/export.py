"""What a user takes away: the tables as one archive, and the view as a page that opens anywhere."""

from __future__ import annotations

import io
import zipfile
from html import escape

from workbench.telemetry import TABLES, Tables

FORMATS = ("parquet", "csv")


class ExportError(ValueError):
    """Something that cannot be exported; one line that says what to do."""


def tables_archive(runs: dict[str, Tables], kind: str) -> bytes:
    """A ZIP of the three tables of each run as Parquet or CSV. ``runs``: by the folder they get in it."""
    if kind not in FORMATS:
        raise ExportError(f"no export as {kind!r}: choose from {', '.join(FORMATS)}")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for folder, tables in runs.items():
            for name in TABLES:
                table = getattr(tables, name)()
                data = table.to_csv(index=False).encode() if kind == "csv" else table.to_parquet(index=False)
                file.writestr(f"{folder}/{name}.{kind}", data)
    return archive.getvalue()


def view_page(figure, title: str, lines: list[str]) -> str:
    """An HTML page with the figure and ``lines`` of words under it; it asks nothing of a network."""
    words = "".join(f"<p>{escape(line)}</p>" for line in lines)
    plot = figure.to_html(full_html=False, include_plotlyjs=True, config={"displaylogo": False})
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{escape(title)}</title></head>"
        f"<body style='font-family:sans-serif;max-width:1200px;margin:1em auto'>{plot}{words}</body></html>"
    )
