"""Whole runs of the experiments on quality, with an engine of a script in place of vLLM: what is served, and kept."""

from __future__ import annotations

import json
from itertools import accumulate

import pytest

from tests.planted import row_of
from tests.scripted import Scripted
from tests.talking import VOCAB, save_tokenizer
from workbench.engine.base import EngineError
from workbench.experiments import ExperimentError, experiment
from workbench.experiments._sinks_metrics import TURN_BASED
from workbench.experiments.sinks import SHARES
from workbench.frontends import FrontEndError
from workbench.profiles import load_profile
from workbench.quality.policies import HEADER, NOTHING, Policy, policies
from workbench.quality.scripts import tokens_of
from workbench.speech.chat import END, USER
from workbench.telemetry import load_tables

CONTEXT = 2048


def breaks_without_sinks(age, bound):
    return -2.0 if bound is None or age < 300 else -2.1 if bound.sinks else -2.5


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """In place of vLLM, engines that compute all they are fed and read letters."""
    folder = save_tokenizer(tmp_path_factory.mktemp("model"))

    def engine() -> Scripted:
        made = Scripted(block=32)
        made.score, made.model_path = breaks_without_sinks, folder
        return made

    return engine


@pytest.fixture
def model(tmp_path):
    """A folder that says how many positions its model was trained for, and no more."""
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": CONTEXT}))
    return str(tmp_path)


@pytest.fixture
def engine(make, monkeypatch):
    """The one that both experiments serve with."""
    engine = make()
    for name in ("sinks", "distance"):
        monkeypatch.setattr(f"workbench.experiments.{name}.VllmEngine", lambda *args, **kwargs: engine)
    return engine


@pytest.fixture(scope="module")
def served(make, tmp_path_factory):
    """(result, what was told, the folder of its tables, the engine, what that was made of)."""
    told, made, folder, engine = [], [], tmp_path_factory.mktemp("tables"), make()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("workbench.experiments.sinks.VllmEngine", lambda *args, **kw: made.append((args, kw)) or engine)
        options = {"windows": "128", "pinned": "nothing,header", "seeds": 2, "age": 1024, "seed": 5}
        result = experiment("sinks")(
            load_profile("smollm2"), progress=lambda *line: told.append(line), tables_dir=folder, full=True, **options
        )
    return result, told, folder, engine, made


def test_a_run_serves_every_policy_in_every_wave_and_stops_the_engine(served):
    result, told, folder, engine, made = served
    assert engine.stopped and (result.experiment, result.executor, result.seed) == ("sinks", "vllm-cpu", 5)
    assert result.params["windows"] == [128] and (result.params["seeds"], result.params["age"]) == (2, 1024)
    (((profile,), options),) = made
    # All sessions of a wave at once, whatever they hold: nobody waits for a block.
    assert options == {"scores": True} and profile.max_sessions == 6
    assert profile.pool_tokens >= 2 * (1024 + 2 * 128 + 128)
    frames = result.frames
    assert list(frames["run"].unique()) == ["listen", "converse", "remember", "speak", "judge"]
    assert set(frames["session"]) == {f"{p.name}-{k}" for p in policies((128,), (NOTHING, HEADER)) for k in (0, 1)}
    bounds = frames[frames["run"] != "judge"].groupby("session")[["window", "sinks"]].agg(["min", "max"])
    assert bounds.loc["W128-nothing-0"].tolist() == [128, 128, 0, 0] and bounds.loc["unbounded-1"].isna().all()
    sinks = row_of(result.metrics, Policy(128, HEADER))["sinks"]
    assert bounds.loc["W128-header-1"].tolist() == [128, 128, sinks, sinks] and sinks > 0
    assert frames[frames["run"] == "judge"]["window"].isna().all()
    # Each seed draws, and reads, with one of its own.
    assert {chunk.sampling.seed for chunk in engine.served if chunk.sampling} == {5, 6}
    shares = [share for _, share in told]
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] <= 1
    firsts = [next(share for line, share in told if line.startswith(wave)) for wave in SHARES]
    assert firsts == pytest.approx([0, *accumulate(SHARES.values())][:-1]) and sum(SHARES.values()) == pytest.approx(1)
    saved = {run: len(load_tables(folder / run)["frames"]) for run in frames["run"].unique()}
    assert saved == frames["run"].value_counts().to_dict()


@pytest.mark.parametrize("seeds", [1, 32])
def test_no_chunk_that_is_drawn_at_random_is_split_over_two_steps(served, make, monkeypatch, seeds):
    """A CPU engine dies of that; and all sessions may be at such a chunk in the same step."""
    drawn = [len(chunk.tokens) for chunk in served[3].served if chunk.sampling is not None]
    made = []
    monkeypatch.setattr("workbench.experiments.sinks.VllmEngine", lambda p, **options: made.append(p) or make())
    experiment("sinks")(load_profile("smollm2"), windows="128", pinned="header", age=512, seeds=seeds)
    (profile,) = made
    assert profile.max_batched_tokens >= profile.max_sessions * max(drawn) and len(drawn) > 100


def test_what_it_found_is_what_the_engine_did(served):
    metrics = served[0].metrics
    rows = [row_of(metrics, policy) for policy in policies((128,), (NOTHING, HEADER))]
    assert [row["excess"] for row in rows] == pytest.approx([0, 0.5, 0.1])
    assert [row["full_nll"] for row in rows] == pytest.approx([2.0] * 3)
    # It answers nothing, and recalls nothing at once.
    failed = ["a reply that counts is a reply to its question", "no bound recalls what it has evicted"]
    assert [claim.name for claim in served[0].claims if not claim.holds] == failed
    assert metrics["leniency"][TURN_BASED]["by_chance"] == 0


def test_an_engine_that_fails_is_stopped(engine):
    engine.ends["W128-header-0"] = "no"
    with pytest.raises(EngineError, match=r"^session W128-header-0 ended: no$"):
        experiment("sinks")(load_profile("smollm2"), windows="128")
    assert engine.stopped


def test_the_tokenizer_is_that_of_the_engines_model(tmp_path):
    engine = Scripted()
    with pytest.raises(FrontEndError, match="needs model_path"):
        tokens_of(engine)
    engine.model_path = save_tokenizer(tmp_path)
    tokens = tokens_of(engine)
    assert engine.facts.vocab_size == VOCAB and tokens.encode(END) == [tokens.end]
    assert tokens.decode(tokens.encode(f"{USER}Is it so?{END}")) == "user\nIs it so?"


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("sinks", {"windows": "8"}, "window 8 is shorter than a frame: use 128 or more"),
        ("sinks", {"windows": "100"}, "window 100 is shorter than a frame: use 128 or more"),
        ("distance", {"window": 100}, "window 100 is shorter than a frame: use 128 or more"),
    ],
)
def test_a_window_that_cannot_be_served_is_refused_in_one_line(engine, model, name, options, words):
    with pytest.raises(ExperimentError, match=f"^{words}$"):
        experiment(name)(load_profile("smollm2", model=model), **options)
    assert not engine.started


def farther_is_worse(age, bound):
    """Sinks gain 0.4 nats; those that stay cost a nat from the second context on, and so does all that is kept."""
    if bound is None:
        return -1.5 if age < CONTEXT else -2.5
    return -2.0 if not bound.sinks else -1.6 if bound.moving or age < CONTEXT else -2.6


def test_sessions_far_older_than_the_context_are_served_and_compared(engine, model, tmp_path):
    engine.score = farther_is_worse
    profile = load_profile("smollm2", model=model)
    result = experiment("distance")(profile, factors="3", window=128, seeds=2, tables_dir=tmp_path)
    assert engine.stopped and result.experiment == "distance"
    assert [claim for claim in result.claims if not claim.holds] == []
    assert (result.params["window"], result.params["factors"], result.params["seeds"]) == (128, [3], 2)
    frames = load_tables(tmp_path / "distance")["frames"]
    assert len(frames) == len(result.frames)
    ages = frames.groupby("session")["age_tokens"].max()
    for name, contexts in (("no sinks", 3), ("sinks", 3), ("moving sinks", 3), ("unbounded", 2)):
        for seed in (0, 1):
            assert contexts * CONTEXT <= ages[f"{name}-{seed}"] < contexts * CONTEXT + 512
    kept = frames.groupby("session")["sinks"].max()
    assert kept["no sinks-0"] == 0 and kept["sinks-0"] == kept["moving sinks-1"] == result.params["sinks"] > 0
    metrics = result.metrics
    assert metrics["within"]["moving sinks"]["over_no_sinks"] == pytest.approx(-0.4)
    assert metrics["at"][0]["sinks"]["over_no_sinks"] == pytest.approx(0.6)
    assert metrics["breaks_at_tokens"]["sinks"] == metrics["breaks_at_tokens"]["unbounded"] == CONTEXT
