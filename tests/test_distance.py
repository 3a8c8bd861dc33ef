"""The distance experiment: what was planted in sessions far older than the context comes out, and what it refuses."""

from __future__ import annotations

import pytest

from workbench.experiments import ExperimentError, experiment
from workbench.experiments._distance_metrics import MOVING, NO_SINKS, SINKS, UNBOUNDED, metrics_of
from workbench.experiments.distance import _claims
from workbench.profiles import load_profile
from workbench.quality.scripts import Left, Scored

run = experiment("distance")
CONTEXT, FRAME, FIRST, SEEDS = 1024, 128, 96, 2
FACTORS = [2, 4]
NAMES = (NO_SINKS, SINKS, MOVING, UNBOUNDED)


def nats(name, age):
    """Planted: sinks gain 0.4 from half the context on, those that stay for a context; unbounded breaks at its end."""
    if name == UNBOUNDED:
        return 1.5 if age < CONTEXT else 4.0
    gained = 2.0 if age < CONTEXT / 2 else 1.6
    return {NO_SINKS: 2.0, MOVING: gained, SINKS: gained if age < 1.5 * CONTEXT else 2.5}[name]


def left(nats=nats, factors=FACTORS):
    """Sessions of frames of FRAME tokens to their ages, seeds a nat apart."""
    ends = {name: CONTEXT * (2 if name == UNBOUNDED else factors[-1]) for name in NAMES}
    return {
        name: [
            Left(
                seed,
                [
                    Scored(age, tuple(-nats(name, age + k) - seed for k in range(FRAME)))
                    for age in range(FIRST, ends[name], FRAME)
                ],
            )
            for seed in range(SEEDS)
        ]
        for name in NAMES
    }


@pytest.fixture(scope="module")
def metrics():
    return metrics_of(left(), CONTEXT, FACTORS, seed=0)


def flat(row, name="over_no_sinks"):
    return [row[f"{name}{end}"] for end in ("", "_low", "_high")]


def test_likelihood_by_age_is_that_of_each_quarter_of_a_context(metrics):
    assert metrics["context"] == CONTEXT and [each["policy"] for each in metrics["sessions"]] == list(NAMES)
    curves = {each["policy"]: each["nll_by_age"] for each in metrics["sessions"]}
    ages = {name: [row["age_tokens"] for row in curve] for name, curve in curves.items()}
    assert ages[SINKS] == [*range(128, 4 * CONTEXT, 256)] and ages[UNBOUNDED] == [*range(128, 2 * CONTEXT, 256)]
    # Half a nat for seeds that lie a nat apart.
    assert [row["nll"] for row in curves[SINKS]] == pytest.approx([2.5] * 2 + [2.1] * 4 + [3.0] * 10)
    assert [row["nll"] for row in curves[UNBOUNDED]] == pytest.approx([2.0] * 4 + [4.5] * 4)
    assert all(row["nll_low"] + 0.9 < row["nll_high"] for row in curves[MOVING])


def test_within_the_context_and_on_the_last_one_they_are_set_against_no_sinks(metrics):
    within = {name: flat(row) for name, row in metrics["within"].items()}
    planted = {NO_SINKS: 0.0, SINKS: -0.4, MOVING: -0.4, UNBOUNDED: -0.5}
    assert within == {name: pytest.approx([gain] * 3, abs=1e-9) for name, gain in planted.items()}
    twice, last = metrics["at"]
    assert (twice["factor"], last["factor"]) == (2, 4)
    # The second context: sinks that stay gain in its first half, and lose in the other.
    assert flat(twice[SINKS]) == pytest.approx([(-0.4 + 0.5) / 2] * 3)
    assert flat(twice[UNBOUNDED]) == pytest.approx([2.0] * 3) and twice[UNBOUNDED]["nll"] == pytest.approx(4.5)
    assert set(last) == {"factor", NO_SINKS, SINKS, MOVING}
    assert flat(last[SINKS]) == pytest.approx([0.5] * 3) and flat(last[MOVING]) == pytest.approx([-0.4] * 3)


def test_it_breaks_where_it_was_planted_against_sinks_that_move(metrics):
    assert metrics["breaks_at_tokens"] == {NO_SINKS: CONTEXT / 2, SINKS: 1.5 * CONTEXT, UNBOUNDED: CONTEXT}
    well = metrics_of(left(lambda name, age: 2.0), CONTEXT, FACTORS, seed=0)
    assert set(well["breaks_at_tokens"].values()) == {None}
    mends = left(lambda name, age: 3.0 if name == SINKS and not 2048 <= age < 2304 else 2.0)
    assert metrics_of(mends, CONTEXT, FACTORS, seed=0)["breaks_at_tokens"][SINKS] == 2304


# -- claims -----------------------------------------------------------------------------------------------------------

GAIN, COST, KEPT = (
    "within the context, sinks gain whether they move or not",
    "beyond it, sinks that stay cost more than none",
    "sinks that move keep their gain",
)


def claims(metrics):
    return {claim.name: claim for claim in _claims(metrics)}


def test_claims_hold_on_what_was_planted(metrics):
    found = claims(metrics)
    assert list(found) == [GAIN, COST, KEPT] and all(claim.holds for claim in found.values())
    assert found[GAIN].value == {SINKS: pytest.approx(-0.4), MOVING: pytest.approx(-0.4)}
    assert found[COST].value == pytest.approx(0.5)
    assert found[KEPT].value == {"within": pytest.approx(-0.4), "beyond": pytest.approx(-0.4)}


@pytest.mark.parametrize(
    ("name", "begin", "instead", "failed"),
    [
        (SINKS, 0, 2.1, GAIN),
        (SINKS, 3 * CONTEXT, 1.9, COST),
        (MOVING, 3 * CONTEXT, 1.81, KEPT),
    ],
)
def test_every_claim_can_fail(name, begin, instead, failed):
    changed = left(lambda who, age: instead if who == name and age >= begin else nats(who, age))
    found = claims(metrics_of(changed, CONTEXT, FACTORS, seed=0))
    assert [each for each, claim in found.items() if not claim.holds] == [failed]


def test_claims_are_on_the_last_context_of_the_longest_sessions():
    short = claims(metrics_of(left(factors=[2]), CONTEXT, [2], seed=0))
    assert short[COST].holds and short[COST].value == pytest.approx(0.05)


# -- refusals ---------------------------------------------------------------------------------------------------------


class Never:
    def __init__(self, *args, **kwargs):
        raise AssertionError("an engine was made")


@pytest.fixture
def folder(tmp_path):
    """A model that was trained for CONTEXT positions, and of which nobody reads more."""
    (tmp_path / "config.json").write_text(f'{{"max_position_embeddings": {CONTEXT}}}')
    return str(tmp_path)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"factors": "1,2"}, ExperimentError, "factors must be 2 to 16 times the model's context, not 1,2"),
        ({"factors": "4,17"}, ExperimentError, "factors must be 2 to 16 times the model's context, not 4,17"),
        ({"factors": "far"}, ExperimentError, "factors must be whole numbers separated by commas, not 'far'"),
        ({"factors": "2,2"}, ExperimentError, "factors names one twice"),
        ({"seeds": 9}, ExperimentError, "seeds must be 1 to 8, not 9"),
        ({"seeds": -1}, ExperimentError, "seeds must be 1 to 8, not -1"),
        ({"window": 0}, ExperimentError, "window 0 is shorter than a frame: use 128 or more"),
    ],
)
def test_it_refuses_in_one_line_before_an_engine_is_started(monkeypatch, folder, options, error, words):
    monkeypatch.setattr("workbench.experiments.distance.VllmEngine", Never)
    with pytest.raises(error, match=f"^{words}") as caught:
        run(load_profile("smollm2", model=folder), **options)
    assert "\n" not in str(caught.value)


def test_it_refuses_what_is_simulated(monkeypatch):
    monkeypatch.setattr("workbench.experiments.distance.VllmEngine", Never)
    with pytest.raises(ExperimentError, match=r"^quality needs a model that speaks, .* is simulated: give smollm2$"):
        run(load_profile("sim:smollm2"))
