"""The sinks experiment: what was planted in its sessions comes out, every claim can fail, and what it refuses."""

from __future__ import annotations

import pandas as pd
import pytest

from tests.planted import AGE, BLOCK, COMPARED, GAPS, OPENING, SEEDS, WRONG, asked, over, row_of, waves
from workbench.experiments import ExperimentError, experiment
from workbench.experiments._sinks_claims import claims_of
from workbench.experiments._sinks_metrics import (
    FREE_RUNNING,
    TURN_BASED,
    Regime,
    Wave,
    excess,
    losses,
    metrics_of,
    said,
)
from workbench.profiles import load_profile
from workbench.quality.policies import CONTENT, HEADER, NOTHING, PINNED, REPLY, UNBOUNDED, Policy, policies
from workbench.quality.questions import QUESTIONS
from workbench.quality.scripts import BEYOND, CARRIED, FRAME, WITHIN, Left, Scored, Spoken

run = experiment("sinks")
LISTING = " ".join(word for question in QUESTIONS for word in question.keywords)


@pytest.fixture(scope="module")
def metrics():
    return metrics_of(waves(), COMPARED, OPENING, AGE, seed=0)


def claims(compared=COMPARED, **changes):
    """The claims on planted waves, by name."""
    made = waves(**changes)
    return {claim.name: claim for claim in claims_of(metrics_of(made, compared, OPENING, AGE, 0), made, BLOCK)}


# -- metrics ----------------------------------------------------------------------------------------------------------


def test_there_is_a_row_for_each_policy_and_regime_and_bin_of_age(metrics):
    assert len(metrics["policies"]) == len(COMPARED) * 2 and len(metrics["by_age"]) == len(COMPARED) * 2 * 8
    assert [row_of(metrics, policy)["sinks"] for policy in COMPARED] == [None, 0, 32, 0, 32]
    deeper = metrics_of(
        {n: Wave(n, w.lines, w.left | {Policy(64, p): w.left[UNBOUNDED] for p in PINNED}) for n, w in waves().items()},
        policies((64,), PINNED),
        OPENING,
        AGE,
        0,
    )
    assert [row_of(deeper, Policy(64, pinned))["sinks"] for pinned in (CONTENT, REPLY)] == [64, 96]


def test_what_is_said_and_scored_has_the_age_of_each_token_not_of_its_frame():
    replies = [asked(40, True, None, (5, 6)), asked(50, True, WITHIN, (7,))]
    assert said(Left(0, asked=replies), 0, 100) == [(40, 5), (41, 6)]
    spoken = Left(0, asked=replies, spoken=[Spoken(10, (1, 2, 3)), Spoken(20, (4,))])
    assert said(spoken, 11, 20) == [(11, 2), (12, 3)] and said(spoken, 12, 21) == [(12, 3), (20, 4)]
    assert losses([Scored(10, (-1.0, -2.0, -3.0)), Scored(20, (-4.0,))], 11, 20) == [2.0, 3.0]


def test_a_text_is_compared_where_the_other_met_it_between_those_ages():
    """Replies of another length bring the same passage at another age, more so with every turn."""
    ours, theirs = (
        Regime([Left(0, [Scored(age, (-nats,)) for age, nats in pieces])], [], full=False)
        for pieces in (((20, 9.0), (30, 2.5), (41, 9.0), (50, 7.0)), ((19, 1.0), (28, 2.0), (39, 1.0)))
    )
    found = excess(ours, theirs, 20, 40, 0)
    assert (found.mean, found.seeds) == ((0.5 + 8.0) / 2, 1) and excess(ours, theirs, 60, 80, 0) is None


@pytest.mark.parametrize(("regime", "part"), [(FREE_RUNNING, 1.0), (TURN_BASED, 0.5)])
def test_excess_is_what_was_planted_though_seeds_differ(metrics, regime, part):
    for policy in COMPARED:
        row, planted = row_of(metrics, policy, regime), part * over(policy, 0, AGE)
        assert row["nll"] == pytest.approx(3.0 + planted) and row["nll_low"] < 2.8 + planted < row["nll_high"] - 0.4
        # Seeds are a nat apart, but not from their own text under the full model.
        assert [row[f"excess{end}"] for end in ("", "_low", "_high")] == pytest.approx([planted] * 3)


def test_it_degrades_from_the_bin_in_which_it_breaks_to_the_end(metrics):
    found = {policy: row_of(metrics, policy)["degrades_at_tokens"] for policy in COMPARED}
    assert found == dict.fromkeys(COMPARED) | {Policy(64, NOTHING): 256, Policy(128, NOTHING): 512}
    assert row_of(metrics, Policy(64, NOTHING), TURN_BASED)["degrades_at_tokens"] == 256


@pytest.mark.parametrize(("mended", "begin"), [(range(640, 768), 768), (range(896, AGE), None)])
def test_what_mends_again_did_not_degrade_before(mended, begin):
    changed = waves(over=lambda policy, seed, age: 0.0 if age in mended else over(policy, seed, age))
    row = row_of(metrics_of(changed, COMPARED, OPENING, AGE, 0), Policy(64, NOTHING))
    assert row["degrades_at_tokens"] == begin


def test_answers_are_those_of_the_late_half(metrics):
    shares = [row_of(metrics, policy, TURN_BASED)["answered"] for policy in COMPARED]
    assert shares == pytest.approx([1, 0, 2 / 3, 0, 2 / 3])
    row = row_of(metrics, Policy(64, HEADER), TURN_BASED)
    # Questions at 596 + 5, 696 + 5 and so on to 996 + 5, of each seed; a whole seed is wrong.
    assert row["questions"] == 15 and (row["answered_low"], row["answered_high"]) == (0, 1)
    assert row_of(metrics, Policy(64, HEADER))["questions"] == 3


def test_repetition_is_what_was_planted(metrics):
    found = {p: row_of(metrics, p) for p in COMPARED}
    assert found[UNBOUNDED]["distinct_2"] == found[Policy(64, HEADER)]["distinct_2"] == 1.0
    # A piece of 64 tokens has 63 pairs, of which two are distinct.
    assert found[Policy(64, NOTHING)]["distinct_2"] == pytest.approx(2 / 63)
    keys = ("loop_tokens", "looping", "onset_tokens")
    none, some, all_ = ([found[p][key] for key in keys] for p in (UNBOUNDED, Policy(128, HEADER), Policy(128, NOTHING)))
    assert none == [0, 0, None] and some == pytest.approx([(AGE - 800) / 3, 1 / 3, 800])
    # From 480, 496 and 512 on, but for the gap; what falls silent before shifts no age.
    assert all_ == [AGE - 496 - len(GAPS[1]), 1.0, 496]
    row = found[Policy(128, NOTHING)]
    assert (row["onset_tokens_low"], row["onset_tokens_high"]) == (480, 512)
    assert row["loop_tokens_low"] < row["loop_tokens"] < row["loop_tokens_high"]


def test_replies_are_judged_by_the_full_model_where_it_speaks_on(metrics):
    assert row_of(metrics, UNBOUNDED)["full_nll"] == pytest.approx(3)
    assert row_of(metrics, Policy(64, HEADER))["full_nll"] == pytest.approx(7)
    assert {row["full_nll"] for row in metrics["policies"] if row["regime"] == TURN_BASED} == {None}


def test_every_bin_of_age_has_its_own(metrics):
    bins = pd.DataFrame(metrics["by_age"]).set_index(["window", "pinned", "regime"]).sort_index()
    broken = bins.loc[(128, NOTHING, FREE_RUNNING)]
    assert broken["age_tokens"].tolist() == [*range(64, AGE, 128)] and pd.isna(broken["nll"].iloc[0])
    assert broken["nll"].tolist()[1:] == pytest.approx([3.0] * 3 + [3.5] * 4)
    assert broken["answered"].dropna().tolist() == [1.0, 0.0]
    # 32 tokens are no piece, and in the fourth bin each seed begins to repeat itself at another age.
    assert pd.isna(broken["distinct_2"].iloc[0]) and broken["distinct_2"].tolist()[1:3] == [1.0, 1.0]
    assert 2 / 63 < broken["distinct_2"].iloc[3] < 1 and broken["distinct_2"].tolist()[4:] == pytest.approx(
        [2 / 63] * 4
    )
    talked = bins.loc[(128, NOTHING, TURN_BASED)]
    assert talked["answered"].tolist() == [1.0] * 4 + [0.0] * 4


def test_each_further_pin_is_set_against_one_less(metrics):
    rules = {(row["regime"], row["window"], row["pinned"]): row for row in metrics["rule"]}
    assert set(rules) == {(regime, window, HEADER) for regime in (TURN_BASED, FREE_RUNNING) for window in (64, 128)}
    gains = {key: [row[f"gain{end}"] for end in ("", "_low", "_high")] for key, row in rules.items()}
    assert gains[FREE_RUNNING, 64, HEADER] == pytest.approx([0.4375] * 3)
    assert gains[TURN_BASED, 128, HEADER] == pytest.approx([0.4375 / 2] * 3)
    assert rules[TURN_BASED, 64, HEADER]["answered_gain"] == pytest.approx(2 / 3)


def test_recall_is_by_how_far_away_the_secret_is():
    planted = waves(recalls=lambda policy, seed, when: seed > 0 if when == WITHIN else seed > 1)
    recall = {(r["window"], r["pinned"]): r for r in metrics_of(planted, COMPARED, OPENING, AGE, 0)["recall"]}
    whens = ("within", "carried", "beyond")
    shares = {key: [row[when] for when in whens] for key, row in recall.items()}
    counts = {key: [row[f"{when}_seeds"] for when in whens] for key, row in recall.items()}
    third = pytest.approx(1 / 3)
    assert shares[None, None] == [pytest.approx(2 / 3), third, None] and counts[None, None] == [3, 3, 0]
    assert shares[64, HEADER] == [pytest.approx(2 / 3), 0, 1 / 2] and counts[64, HEADER] == [3, 1, 2]
    assert shares[128, NOTHING] == [pytest.approx(2 / 3), None, third] and counts[128, NOTHING] == [3, 0, 3]


def test_leniency_and_examples(metrics):
    assert metrics["leniency"][TURN_BASED] == {"by_chance": 0.0, "replies": 10 * SEEDS}
    lenient = metrics_of(waves(reply=LISTING), COMPARED, OPENING, AGE, 0)["leniency"]
    assert {lenient[regime]["by_chance"] for regime in lenient} == {1.0}
    examples = {(e["window"], e["pinned"], e["regime"]): e for e in metrics["examples"]}
    assert len(examples) == len(metrics["examples"]) == 2 * len(COMPARED)
    last = examples[64, NOTHING, TURN_BASED]
    assert (last["age_tokens"], last["reply"], last["right"]) == (1001, WRONG, False)


# -- claims -----------------------------------------------------------------------------------------------------------

HELD, SCORED = "every session holds what its policy says", "every token listened to is scored"
LOST, BACK = (
    "without sinks a text is less likely than unbounded, at every window",
    "pinning the header takes back most of that",
)
COUNTS, RECALLED = "a reply that counts is a reply to its question", "no bound recalls what it has evicted"


def nothing_gains(policy, seed, age):
    return -0.3 if policy == Policy(64, NOTHING) and seed == 2 else over(policy, 0, age) * 1.8


def little_back(policy, seed, age):
    return 0.3 if policy == Policy(128, HEADER) else over(policy, seed, age)


def of(policy, **changes):
    """Another account of the last session of ``policy`` that speaks on."""
    return lambda *at: at[2]._replace(**changes) if at[:2] == ("speak", f"{policy.name}-2") else at[2]


def test_claims_hold_on_what_was_planted():
    found = claims()
    assert list(found) == [HELD, SCORED, LOST, BACK, COUNTS, RECALLED]
    assert all(claim.holds for claim in found.values())
    assert found[HELD].value["sessions"] == 5 * len(COMPARED) * SEEDS
    assert found[SCORED].value == len(COMPARED) * SEEDS * (AGE - 128)
    assert found[LOST].value == pytest.approx({64: 0.5, 128: 0.5})
    assert found[BACK].value == pytest.approx({64: 0.875, 128: 0.875})
    assert found[COUNTS].value == {"of its own": 1.0, "of any other": 0.0}
    assert list(found[RECALLED].value.values()) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({"held": of(Policy(64, HEADER), evicted=AGE)}, HELD),
        ({"held": of(Policy(64, HEADER), evicted=AGE - 161)}, HELD),
        # One token more than its bound allows, and all there are.
        ({"held": of(Policy(64, HEADER), resident=161, evicted=AGE - 161)}, HELD),
        ({"held": of(UNBOUNDED, resident=AGE - 1, evicted=1)}, HELD),
        ({"lose": 1}, SCORED),
        ({"over": nothing_gains}, LOST),
        ({"over": little_back}, BACK),
        ({"reply": LISTING}, COUNTS),
        ({"right": lambda policy, seed, age: False}, COUNTS),
        ({"recalls": lambda policy, seed, when: when != BEYOND or seed == 2}, RECALLED),
        # What none recalls at once tells nothing.
        ({"recalls": lambda policy, seed, when: False}, RECALLED),
    ],
)
def test_every_claim_can_fail(changes, failed):
    assert [name for name, claim in claims(**changes).items() if not claim.holds] == [failed]


def test_what_was_not_run_is_not_claimed():
    assert list(claims(compared=policies((64,), [HEADER]))) == [HELD, SCORED, COUNTS, RECALLED]
    assert list(claims(compared=policies((64,), [NOTHING]))) == [HELD, SCORED, LOST, COUNTS, RECALLED]
    # Nor is anything of what no session was asked for.
    assert RECALLED not in claims(away=lambda policy, seed: CARRIED)


# -- the whole run ----------------------------------------------------------------------------------------------------


class Never:
    def __init__(self, *args, **kwargs):
        raise AssertionError("an engine was made")


@pytest.mark.parametrize(
    ("profile", "options", "words"),
    [
        ("sim:smollm2", {}, "quality needs a model that speaks, .* is simulated: give smollm2"),
        (
            "smollm2",
            {"pinned": "header,roof"},
            "pinned must be some of nothing, header, content, reply, not 'header,roof'",
        ),
        ("smollm2", {"windows": "128,512"}, "window 512 is not left behind by half of age 1024: raise age"),
        ("smollm2", {"windows": "wide"}, "windows must be whole numbers of tokens separated by commas, not 'wide'"),
        ("smollm2", {"windows": "128,128"}, "windows names one twice"),
        ("smollm2", {"seeds": 33}, "seeds must be 1 to 32, not 33"),
        ("smollm2", {"seeds": -1}, "seeds must be 1 to 32, not -1"),
        ("smollm2", {"age": 8 * FRAME - 1}, "age must be 512 tokens or more, not 511"),
        ("smollm2", {"age": -5}, "age must be 512 tokens or more, not -5"),
    ],
)
def test_it_refuses_in_one_line_before_an_engine_is_started(monkeypatch, profile, options, words):
    monkeypatch.setattr("workbench.experiments.sinks.VllmEngine", Never)
    with pytest.raises(ExperimentError, match=f"^{words}") as caught:
        run(load_profile(profile), **options)
    assert "\n" not in str(caught.value)
