"""Notebook 09 on the real engine: the four tiny models, each to its wall and on its plateau. For `make test-models`."""

from __future__ import annotations

import json

import pytest

from workbench.cards import model_card
from workbench.experiments.models import MODELS
from workbench.report import make_report

pytestmark = [pytest.mark.models, pytest.mark.timeout(6600)]

# What a busy machine can upset: it belongs to reports, not to tests.
ON_THE_CLOCK = ("Eq. 1 predicts t_sat",)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    report = make_report(["09"], "smollm2", out, progress=lambda step: None, cell_timeout_s=5400, timeout_s=6000)
    (run,) = report.runs
    file = run.folder / "metrics.json"
    assert file.is_file(), report.failures
    return run, json.loads(file.read_text())


def test_it_ran_to_its_claims_and_what_is_not_on_the_clock_held(made):
    run, metrics = made
    failed = [claim["name"] for claim in metrics["claims"] if not claim["holds"]]
    assert [name for name in failed if not name.endswith(ON_THE_CLOCK)] == []  # judged in tokens it is not on the clock
    assert run.error is None or failed, run.error
    assert (metrics["executor"], metrics["profile"]) == ("vllm-cpu", MODELS.replace(",", ", "))


def test_each_model_walls_unbounded_and_stays_on_its_plateau_bounded(made):
    rows = {row["model"]: row for row in made[1]["metrics"]["models"]}
    assert list(rows) == ["qwen2.5-omni", "qwen3-omni", "minicpm-o-4.5", "moshi"]
    for model, row in rows.items():
        card = model_card(model)
        assert row["walled"] and not row["bounded_walled"]
        assert row["audio_tokens_per_s"] == pytest.approx(card.tokens_per_frame / card.frame_budget_s, rel=0.01)
        assert abs(row["plateau_blocks"] - row["plateau_blocks_predicted"]) <= 1
        assert 0 < row["kv_bytes_per_token"] < card.kv_bytes_per_token


def test_the_page_has_the_table_and_both_arms_of_each_model(made):
    run, _ = made
    page = (run.folder / f"{run.notebook}.html").read_text()
    assert "measured (vllm-cpu)" in page and "from the model card" in page
    arms = {str(path.parent.relative_to(run.folder / "tables")) for path in run.folder.glob("tables/*/*/pool.parquet")}
    assert arms == {f"{name}/{arm}" for name in MODELS.split(",") for arm in ("unbounded", "bounded")}
