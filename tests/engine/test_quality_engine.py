"""Notebook 07 on the running engine, in its smallest form: every claim holds, and so does what the page says of them."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from workbench.report import make_report

SMALLEST = {"windows": "128", "pinned": "nothing,header", "seeds": 1, "age": 512, "distance": False}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    report = make_report(
        ["07"], "smollm2", tmp_path_factory.mktemp("report"), parameters=SMALLEST, progress=lambda step: None
    )
    assert report.failures == ()
    (run,) = report.runs
    return run


@pytest.fixture(scope="module")
def saved(run):
    return json.loads((run.folder / "metrics.json").read_text())


def test_every_claim_holds_on_the_real_engine(run, saved):
    assert saved["executor"] == "vllm-cpu" and len(saved["claims"]) == 6
    assert all(claim["holds"] for claim in saved["claims"])
    page = (run.folder / f"{run.notebook}.html").read_text()
    assert "Traceback" not in page and "vllm-cpu" in page


def test_there_is_a_row_for_each_policy_in_both_regimes(saved):
    rows = {(row["window"], row["pinned"], row["regime"]): row for row in saved["metrics"]["policies"]}
    policies = [(None, None), (128, "nothing"), (128, "header")]
    assert set(rows) == {(*policy, regime) for policy in policies for regime in ("turn-based", "free-running")}
    keys = {"window", "sinks", "regime", "nll", "nll_low", "nll_high", "answered", "distinct_2", "onset_tokens"}
    assert all(keys <= set(row) for row in rows.values())
    free = {pinned: rows[window, pinned, "free-running"] for window, pinned in policies}
    assert free[None]["nll"] < free["header"]["nll"] < free["nothing"]["nll"]
    assert [free[pinned]["sinks"] for pinned in (None, "nothing", "header")] == [None, 0, 32]


def test_the_zero_sink_control_degrades_when_its_window_is_full_and_the_header_keeps_it_from_that(saved):
    ages = {row["pinned"]: row["degrades_at_tokens"] for row in saved["metrics"]["policies"] if row["window"]}
    assert 128 <= ages["nothing"] <= 256
    assert ages["header"] is None or ages["header"] > ages["nothing"]


def test_the_tables_say_what_every_session_was_fed(run, saved):
    frames = pd.read_parquet(run.folder / "tables" / "frames.parquet")
    assert set(frames["run"]) == {"listen", "converse", "remember", "speak", "judge"}
    bounded = frames[(frames["run"] == "listen") & (frames["window"] == 128)]
    assert bounded["age_tokens"].max() >= SMALLEST["age"]
    assert (frames["tokens_delivered"] <= frames["tokens_owed"]).all() and (frames["tokens_in"] > 0).all()
    pool = pd.read_parquet(run.folder / "tables" / "pool.parquet")
    assert 0 < pool["blocks_used"].max() <= pool["blocks_total"].iloc[0] == saved["params"]["pool_blocks"]
