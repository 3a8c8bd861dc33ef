"""What a user brings and takes away: clips that are uploaded, rows that are looked at, tables and views exported."""

from __future__ import annotations

import io
import re
import zipfile

import numpy as np
import pandas as pd
import pytest
import soundfile
from plotly.graph_objects import Figure

from tests.live_rig import FEW, TINY
from workbench.audio import SAMPLE_RATE, SAMPLES_ENV, AudioError, sample_names
from workbench.live.clips import Clips
from workbench.live.export import ExportError, tables_archive, view_page
from workbench.live.rows import MOST_ROWS, SHOWN, as_html, last_rows, rows_between
from workbench.telemetry import TABLES, FrameRow, PoolRow, SessionRow, Tables


def sound(seconds=0.5, kind="WAV"):
    file = io.BytesIO()
    soundfile.write(file, np.full(int(seconds * SAMPLE_RATE), 0.25, np.float32), SAMPLE_RATE, format=kind)
    return file.getvalue()


# -- clips -----------------------------------------------------------------------------------------------------------


def test_an_uploaded_clip_can_be_chosen_by_its_name():
    clips = Clips(TINY)
    assert clips.take("mine.wav", sound()) == "mine"
    assert clips.names() == [*sample_names(), "mine"]
    assert clips.find("mine").name == "mine" and clips.find("mine").seconds == 0.5
    assert clips.find(clips.find("mine")) is clips.find("mine")


def test_a_name_that_is_taken_gets_a_number():
    clips = Clips(TINY)
    first = sample_names()[0]
    names = [clips.take(f"{name}.flac", sound(kind="FLAC")) for name in ("mine", "mine", "mine", first)]
    assert names == ["mine", "mine (2)", "mine (3)", f"{first} (2)"]
    assert {clips.find(name).name for name in names} == set(names)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("broken.wav", sound()[:300]),
        ("words.wav", b"not a sound"),
        ("nothing.mp3", b""),
        ("headless.raw", sound()),
        ("some.folder/deep.wav", b"not a sound"),
    ],
)
def test_a_bad_file_is_refused_by_its_own_name_and_no_path_of_ours(name, data):
    clips = Clips(TINY)
    with pytest.raises(AudioError) as refusal:
        clips.take(name, data)
    said = str(refusal.value)
    assert said.startswith(f"{name.rpartition('/')[2]}: ") and "\n" not in said
    assert "/" not in said and "upload" not in said
    assert clips.names() == sample_names()


def test_the_text_front_end_takes_no_upload_and_offers_only_clips_with_a_transcript():
    clips = Clips(TINY.with_(front_end="text"))
    with pytest.raises(AudioError, match=r"^mine\.wav: the text front end needs a transcript; load it with load_clip"):
        clips.take("mine.wav", sound())
    assert clips.names() == sample_names(transcribed=True) and clips.only_words


def test_a_load_generator_needs_no_clip_whatever_is_asked_for():
    clips = Clips(FEW)
    assert clips.none_needed and clips.names() == [] and clips.find(None) is clips.find("numbers") is None


def test_without_a_name_it_is_the_first_there_is_and_an_unknown_one_is_refused():
    clips = Clips(TINY)
    assert clips.find(None).name == clips.names()[0]
    with pytest.raises(AudioError, match="nobody"):
        clips.find("nobody")


# -- rows ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tables():
    """Ten frames of each of three sessions, one of which was named by somebody with a sense of humour."""
    tables = Tables("r")
    for session in ("a", "b", "<b>"):
        tables.session_rows[session] = SessionRow("r", session, "clip", 0.0, opened_at_s=1.5, reason=None)
    for k in range(10):
        for i, session in enumerate(tables.session_rows):
            row = FrameRow("r", session, k, k + i / 4, latency_s=0.1 / 3, window=64 if k % 2 else None)
            tables.frame_rows.append(row)
    tables.pool_rows.append(PoolRow("r", 0.1, 3, 100, 1, 0, 2, 0, 3, 96, t_full_predicted_s=1 / 3))
    return tables


def test_the_last_rows_of_a_session_come_newest_first(tables):
    assert [(row.session, row.frame) for row in last_rows(tables, "b", 3)] == [("b", 9), ("b", 8), ("b", 7)]
    assert len(last_rows(tables, "a", 99)) == 10 and last_rows(tables, "nobody") == []


def test_the_rows_between_two_instants_are_those_that_fell_due(tables):
    found = rows_between(tables, 2.25, 3.0)
    assert [(row.session, row.due_at_s) for row in found] == [("b", 2.25), ("<b>", 2.5), ("a", 3.0)]
    assert len(rows_between(tables, 0, 9, count=4)) == 4
    tables.frame_rows *= 3
    assert len(rows_between(tables, 0, 9)) == MOST_ROWS


def test_rows_are_shown_with_a_column_each_and_no_markup_of_others(tables):
    page = as_html(last_rows(tables, "<b>", 1), "frames of <b>")
    assert re.findall("<th>(.*?)</th>", page) == list(SHOWN)
    cells = re.findall("<td>(.*?)</td>", page)
    shown = dict(zip(SHOWN, cells, strict=True))
    assert (shown["session"], shown["due_at_s"], shown["latency_s"]) == ("&lt;b&gt;", "9.500", "0.033")
    assert shown["content_lag_s"] == "–" and shown["window"] == "64"
    assert "frames of &lt;b&gt;" in page and "frames of <b>" not in page


# -- exports ---------------------------------------------------------------------------------------------------------


def read_back(archive, kind, tables):
    with zipfile.ZipFile(io.BytesIO(archive)) as file:
        assert file.testzip() is None
        found = {}
        for path in file.namelist():
            data = io.BytesIO(file.read(path))
            kinds = getattr(tables, path.rpartition("/")[2].partition(".")[0])().dtypes.to_dict()
            found[path] = pd.read_parquet(data) if kind == "parquet" else pd.read_csv(data, dtype=kinds)
    return found


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_an_archive_holds_the_tables_as_they_are(tables, kind):
    found = read_back(tables_archive({"unbounded": tables, "bounded": tables}, kind), kind, tables)
    assert set(found) == {f"{arm}/{name}.{kind}" for arm in ("unbounded", "bounded") for name in TABLES}
    for path, table in found.items():
        pd.testing.assert_frame_equal(table, getattr(tables, path.rpartition("/")[2].partition(".")[0])())


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_tables_without_a_row_are_exported_with_their_columns(kind):
    empty = Tables("r")
    found = read_back(tables_archive({"run": empty}, kind), kind, empty)
    assert {path: list(table) for path, table in found.items()} == {
        f"run/{name}.{kind}": list(getattr(empty, name)()) for name in TABLES
    }


def test_a_kind_that_is_none_is_refused_in_one_line(tables):
    with pytest.raises(ExportError, match=r"^no export as 'xlsx': choose from parquet, csv$"):
        tables_archive({"run": tables}, "xlsx")


def test_a_view_is_one_page_that_loads_nothing():
    figure = Figure()
    figure.add_scatter(x=[1, 2], y=[3, 4], name="arm")
    page = view_page(figure, "a <run>", ["2 sessions & more"])
    assert "<title>a &lt;run&gt;</title>" in page and "<p>2 sessions &amp; more</p>" in page
    assert "Plotly.newPlot(" in page
    # What a page loads is named by a tag; plotly.js itself is in the page.
    assert re.findall(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=", page) == []


def test_without_the_sample_clips_an_own_one_can_still_be_used(tmp_path, monkeypatch):
    monkeypatch.setenv(SAMPLES_ENV, str(tmp_path))
    clips = Clips(TINY)
    assert clips.names() == [] and "no sample clips there" in clips.missing
    with pytest.raises(AudioError, match="no sample clips there"):
        clips.find(None)
