"""The three tables: their columns are the contract; what is saved comes back."""

from __future__ import annotations

import pandas as pd
import pytest

from workbench.telemetry import FrameRow, PoolRow, SessionRow, Tables, load_tables

COLUMNS = {
    "sessions": "run session clip offered_at_s opened_at_s ended_at_s reason",
    "frames": "run session frame due_at_s submitted_at_s first_token_at_s returned_at_s latency_s status eos capped "
    "missed empty tokens_in tokens_owed tokens_delivered tokens_late backlog content_lag_s age_tokens "
    "resident_tokens window sinks",
    "pool": "run at_s blocks_used blocks_total running waiting parked preemptions sessions resident_tokens "
    "grown_frames grown_tokens grown_squares admission_cap host_rss_bytes "
    "t_full_predicted_s t_full_low_s t_full_high_s",
}


@pytest.fixture
def tables():
    tables = Tables("r")
    tables.session_rows["s0"] = SessionRow("r", "s0", "clip", 0.0, opened_at_s=2.0)
    tables.frame_rows.append(FrameRow("r", "s0", 0, 4.0, tokens_in=50, window=64, sinks=4))
    tables.frame_rows.append(FrameRow("r", "s0", 1, 6.0))
    tables.pool_rows.append(PoolRow("r", 1.0, 3, 100, 1, 0, 2, 0, 3, 96))
    return tables


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_and_types_do_not_depend_on_what_is_in_them(tables, name):
    full, empty = getattr(tables, name)(), getattr(Tables("r"), name)()
    assert list(full) == list(empty) == COLUMNS[name].split()
    assert list(full.dtypes) == list(empty.dtypes)


def test_what_is_not_known_yet_is_missing_not_zero(tables):
    frames = tables.frames()
    assert frames["resident_tokens"].isna().all() and frames["returned_at_s"].isna().all()
    assert frames["window"].tolist() == [64, pd.NA]


def test_a_table_is_a_copy(tables):
    frames = tables.frames()
    frames["tokens_in"] = 7
    assert tables.frames()["tokens_in"].tolist() == [50, 0]


def test_saved_tables_come_back_equal(tables, tmp_path):
    tables.save(tmp_path / "new" / "folder")
    for name, loaded in load_tables(tmp_path / "new" / "folder").items():
        pd.testing.assert_frame_equal(loaded, getattr(tables, name)())
    assert not list(tmp_path.rglob("*.part"))
