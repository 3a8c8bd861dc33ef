"""The models experiment: what it serves, what it counts, what it claims, on simulated engines and made-up tables."""

from __future__ import annotations

import json

import pytest

from workbench.experiments import ExperimentError, cliff, experiment, parameters, profile_of
from workbench.experiments import models as models_experiment
from workbench.experiments.models import MODELS, claims_of, run
from workbench.plots_models import systems
from workbench.profiles import load_profile
from workbench.report import make_report

# Pools that fill within some tens of frames.
SMALL = {
    "minicpm": """
base = "sim:minicpm-o-4.5@rtx-pro-6000"
name = "sim:small minicpm"
pool_blocks = 100
max_model_len = 1600
window = 64
sessions = 4
phase_groups = 2
""",
    "moshi": """
base = "sim:moshi@rtx-pro-6000"
name = "sim:small moshi"
pool_blocks = 20
max_model_len = 320
window = 16
sinks = 0
sessions = 4
phase_groups = 1
""",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiles")
    for name, text in SMALL.items():
        (folder / f"{name}.toml").write_text(text)
    return {name: str(folder / f"{name}.toml") for name in SMALL}


@pytest.fixture(scope="module")
def said():
    return []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="module")
def result(files, said, folder):
    profile, models = load_profile(files["minicpm"]), ",".join(files.values())
    return run(profile, models=models, progress=lambda line, done: said.append((line, done)), tables_dir=folder)


def row_of(result, model):
    return next(row for row in result.metrics["models"] if row["model"] == model)


# -- a run -------------------------------------------------------------------------------------------------------------


def test_every_claim_holds_of_two_simulated_models(result):
    assert [claim.name for claim in result.claims if not claim.holds] == []
    assert len(result.claims) == 10
    assert (result.experiment, result.executor) == ("models", "simulated")


def test_a_row_says_what_was_counted(result):
    minicpm, moshi = (row_of(result, model) for model in ("minicpm-o-4.5", "moshi"))
    # 12 and 1 tokens in, 4 and 1 owed, of which the last is dropped: 15 and 1 a frame, of 1 s and of 80 ms.
    assert (minicpm["tokens_in_per_s"], moshi["tokens_in_per_s"]) == (12.0, 12.5)
    assert minicpm["fill_tokens_per_s"] == pytest.approx(4 * 15, rel=0.03)
    assert moshi["fill_tokens_per_s"] == pytest.approx(4 * 12.5, rel=0.03)
    assert minicpm["fill_blocks_per_s"] == pytest.approx(4 * 15 / 16, rel=0.06)
    assert minicpm["t_sat_from_profile_s"] == pytest.approx(100 * 16 / (4 * 15))
    assert (minicpm["kv_bytes_per_token"], moshi["kv_bytes_per_token"]) == (147_456, 524_288)
    for row in (minicpm, moshi):
        assert row["walled"] and not row["bounded_walled"] and row["delivered_bounded"] == row["owed_bounded"]
        assert row["delivered_unbounded"] < row["owed_unbounded"] and row["deadline_misses_unbounded"] == 0
        assert row["ceiling_measured"] >= row["ceiling"] > row["sessions"]
    # Of 64 + 16 and of 16 tokens kept, with what a frame adds and the rest of a block: 7 blocks and 2 at most.
    assert (minicpm["ceiling"], moshi["ceiling"]) == (100 // 7, 20 // 2)


def test_a_bounded_arm_whose_sessions_all_end_fails_its_claims_and_is_shown(files, monkeypatch):
    watch = cliff.watch

    def ending(profile, plan, manager, bound, *rest):
        if bound is not None:
            manager.wait_for(seconds=3 * profile.frame_budget_s)
            for name in list(manager.beat.sessions):
                manager.close_session(name)
        return watch(profile, plan, manager, bound, *rest)

    monkeypatch.setattr(cliff, "watch", ending)
    ended = run(load_profile(files["moshi"]), models="none")
    row = row_of(ended, "moshi")
    assert row["ceiling_measured"] is None and not ended.holds
    assert "- (10)" in systems(ended.metrics["models"], ended.metrics["cards"]).to_html()


def test_the_bounded_arm_hears_more_than_the_unbounded_one(result):
    last = result.frames.groupby(["model", "run"])["due_at_s"].max().unstack()
    assert (last["bounded"] > last["unbounded"]).all()
    # And of short frames the silence is long enough to be seen.
    moshi = row_of(result, "moshi")
    assert last.loc[moshi["profile"], "unbounded"] > moshi["t_wall_s"] + 4.5


def test_the_tables_say_which_model_a_row_is_of(result, files):
    names = {load_profile(file).name for file in files.values()}
    for table in (result.sessions, result.frames, result.pool):
        assert set(table["model"]) == names and set(table["run"]) == {"unbounded", "bounded"}
    assert set(result.params["served"]) == names
    assert result.params["served"]["sim:small moshi"]["frame_budget_s"] == 0.08


def test_each_arm_leaves_its_tables_in_a_folder_of_the_model(result, folder):
    arms = {str(path.parent.relative_to(folder)) for path in folder.glob("*/*/pool.parquet")}
    assert arms == {f"sim:small {model}/{arm}" for model in SMALL for arm in ("unbounded", "bounded")}


def test_progress_names_the_model_and_rises(result, said):
    parts = [done for _, done in said]
    assert parts == sorted(parts) and parts[-1] <= 1.0
    assert {line.partition(": ")[0] for line, _ in said} == {"sim:small minicpm", "sim:small moshi"}


def test_the_metrics_can_be_written(result):
    assert json.loads(json.dumps(result.to_dict()))["metrics"]["cards"][1]["model"] == "moshi"


@pytest.mark.parametrize(
    ("changes", "fails"),
    [
        ({"walled": False, "t_wall_s": None}, {"the unbounded arm walls", "the bounded arm does not"}),
        ({"bounded_walled": True}, {"the bounded arm does not"}),
        ({"bounded_s": 20.0}, {"the bounded arm does not"}),
        ({"t_sat_predicted_s": None}, {"Eq. 1 predicts t_sat"}),
        ({"t_sat_measured_s": None}, {"Eq. 1 predicts t_sat", "the bounded arm does not"}),
        ({"t_sat_predicted_s": 30.1, "t_sat_measured_s": 29.0}, {"Eq. 1 predicts t_sat"}),
        ({"plateau_blocks": 8.0}, {"the plateau"}),
        ({"audio_tokens_per_s": 13.0}, {"audio becomes as many tokens"}),
        ({"audio_tokens_per_s": None}, {"audio becomes as many tokens"}),
    ],
)
def test_each_claim_can_fail(result, changes, fails):
    row = row_of(result, "minicpm-o-4.5")
    failed = [c.name.partition(": ")[2] for c in claims_of({**row, **changes}) if not c.holds]
    assert len(failed) == len(fails)
    assert all(any(name.startswith(start) for start in fails) for name in failed)


def test_an_engine_off_the_beat_is_judged_in_tokens(result):
    row = row_of(result, "moshi")
    assert row["on_time"] == 1.0 and row["pool_blocks"] * row["block_size"] == 320
    # 4 sessions, a token and the rest of a block of 16 each: 68 tokens at most below the pool's.
    for tokens, holds in ((320, True), (252, True), (251, False), (None, False)):
        slow = {**row, "on_time": 0.5, "t_sat_measured_s": 99.0, "tokens_at_t_sat": tokens}
        (claim,) = (c for c in claims_of(slow) if "Eq. 1" in c.name)
        assert claim.holds is holds and "50% of the frames on time" in claim.name
    assert abs(row["tokens_at_t_sat"] - 320) <= 68


# -- what is served ----------------------------------------------------------------------------------------------------


@pytest.fixture
def served(monkeypatch):
    """The profiles that a run would serve; it ends with the last of them."""
    names = []

    def no_engine(profile, *how):
        names.append((profile.name, profile.seed))
        raise ExperimentError("the engine died in the bounded arm: of this test")

    monkeypatch.setattr(models_experiment, "_arm", no_engine)
    return names


def test_it_is_listed_with_its_parameters_and_serves_the_four():
    assert set(parameters("models")) == {"models", "hardware", "seed"}
    assert profile_of("models").name == MODELS.split(",")[0] == "qwen2.5-omni-tiny"
    assert experiment("models") is run


@pytest.mark.parametrize(
    ("profile", "models", "expected"),
    [
        ("minicpm", "none", ["sim:small minicpm"]),
        ("minicpm", "{moshi}", ["sim:small moshi", "sim:small minicpm"]),
        ("minicpm", "{moshi},{minicpm}", ["sim:small moshi", "sim:small minicpm"]),
        ("qwen2.5-omni-tiny", "{moshi}", ["sim:small moshi"]),
    ],
)
def test_which_profiles_are_served(files, profile, models, expected):
    asked = load_profile(files.get(profile, profile))
    names = [] if models == "none" else models.format(**files).split(",")
    found = models_experiment._profiles(asked, names, None)
    assert [each.name for each in found] == expected
    assert {each.seed for each in models_experiment._profiles(asked, names, 7)} == {7}


def test_what_the_command_changes_in_a_profile_is_served(files):
    asked = load_profile("qwen2.5-omni-tiny", pool_blocks=999)
    assert models_experiment._profiles(asked, ["qwen2.5-omni-tiny"], None)[0].pool_blocks == 999


def test_an_engine_that_dies_is_named(files, served):
    with pytest.raises(ExperimentError, match="^sim:small moshi: the engine died") as refused:
        run(load_profile(files["moshi"]), models="none", seed=5)
    assert served == [("sim:small moshi", 5)] and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "models", "hardware", "says"),
    [
        ({"model": "smallest"}, "none", "rtx-pro-6000", "no model card 'smallest'"),
        ({}, "none", "abacus", "no hardware card 'abacus'"),
        ({}, "{moshi},{moshi}", "rtx-pro-6000", "models names one twice"),
        ({"name": "sim:small moshi"}, "{moshi}", "rtx-pro-6000", "two profiles have one name"),
        ({"sessions": 12}, "{moshi}", "rtx-pro-6000", "sim:small minicpm: the pool is full after 9 frames, too soon"),
        ({"window": 8}, "none", "rtx-pro-6000", "sim:small minicpm: window 8 is smaller than one block"),
        ({"holding_s": 5.0}, "none", "rtx-pro-6000", "holding_s is of no use here"),
        ({"window": 500}, "none", "rtx-pro-6000", "sim:small minicpm: the bounded arm cannot hold its plateau"),
        ({"max_model_len": 300}, "none", "rtx-pro-6000", "would reach max_model_len 300"),
    ],
)
def test_bad_input_is_refused_in_one_line_before_an_engine_starts(files, served, changes, models, hardware, says):
    profile = load_profile(files["minicpm"], **{k: v for k, v in changes.items() if k != "name"})
    profile = profile.with_(name=changes.get("name", profile.name))
    with pytest.raises(ValueError, match=says) as refused:
        run(profile, models=models.format(**files), hardware=hardware)
    assert "\n" not in str(refused.value) and served == []


# -- the notebook ------------------------------------------------------------------------------------------------------


def test_the_notebook_holds_on_a_simulated_model(files, tmp_path):
    models = {"models": files["minicpm"]}
    report = make_report(["09"], "smollm2", tmp_path, parameters=models, progress=lambda step: None)
    assert report.failures == ()
    (made,) = report.runs
    metrics = json.loads((made.folder / "metrics.json").read_text())
    assert metrics["executor"] == "simulated" and len(metrics["claims"]) == 5
    page = (made.folder / f"{made.notebook}.html").read_text()
    assert "measured (simulated)" in page and "Traceback" not in page
    assert {path.stem for path in made.folder.glob("tables/*.parquet")} == {"sessions", "frames", "pool"}
