"""The simulated notebooks run from end to end on a small profile, and every claim of theirs holds."""

from __future__ import annotations

import json

import pytest

from workbench.report import make_report

# A card's costs in a pool that fills within some tens of frames.
FEW = """
base = "sim:minicpm-o-4.5@rtx-pro-6000"
name = "sim:few"
pool_blocks = 400
max_model_len = 3200
window = 128
sessions = 12
max_sessions = 60
phase_groups = 4
"""
# An engine that latency limits, at 129 bounded sessions, and a pool that fewer unbounded ones fill.
SLOW = """
base = "sim:qwen2.5-omni@rtx-pro-6000"
name = "sim:slow"
pool_blocks = 20000
slowdown = 4.0
"""
NOTEBOOKS = {
    "00": (FEW, {"pair_sessions": 8, "pair_blocks": 1000}),
    "03": (FEW, {}),
    "04": (SLOW, {"paper": False, "duration": 400.0}),
    "05": (FEW, {"models": "none"}),
    "06": (FEW.replace("400", "2400"), {"beyond_voice": False, "windows": "64,128"}),
}


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_a_simulated_notebook_holds_on_a_small_profile(notebook, tmp_path):
    text, parameters = NOTEBOOKS[notebook]
    profile = tmp_path / "small.toml"
    profile.write_text(text)
    if notebook == "06":
        parameters = {**parameters, "simulated": str(profile)}
    report = make_report([notebook], str(profile), tmp_path / "out", parameters=parameters, progress=lambda step: None)
    assert report.failures == ()
    (run,) = report.runs
    metrics = json.loads((run.folder / "metrics.json").read_text())
    assert metrics["executor"] == "simulated" and metrics["claims"]
    page = (run.folder / f"{run.notebook}.html").read_text()
    assert "simulated" in page and "Traceback" not in page
    assert {path.stem for path in run.folder.glob("tables/*.parquet")} == {"sessions", "frames", "pool"}
