"""The metastability experiment on a pool that a few sessions fill within some thirty frames."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from workbench.experiments import ExperimentError, experiment
from workbench.experiments._metastability import (
    SOURCES,
    Strengths,
    account,
    churn_s,
    eq1_s,
    growth_with_eos,
    one_run,
    serve,
    stair_s,
    vary,
)
from workbench.experiments._metastability_metrics import PAPER_FULL_S, cells, claims_of, good, needed_cv
from workbench.profiles import ProfileError, load_profile
from workbench.runs import Runs

run = experiment("metastability")
STRENGTHS = Strengths(start_jitter=1.0, eos_chance=0.05, step_noise=0.5, holding=4.0, silence=0.9)
B = 2.0


def small(**changes):
    """Qwen3-Omni's card on a pool of 4,000 tokens: 32 a frame, so that 4 sessions fill it after 31 frames."""
    profile = load_profile(
        "sim:qwen3-omni@rtx-pro-6000", pool_blocks=250, phase_groups=4, max_model_len=4000, window=64
    )
    return profile.with_(**{"sessions": 4, **changes})


@pytest.fixture(scope="module")
def result():
    return run(small(), n="4,5", duration_s="60", runs_per_cell=2, bounded_runs=7, full=True, runs=Runs(workers=1))


def of(result, **wanted) -> list[dict]:
    return [c for c in result.metrics["cells"] if all(c[key] == value for key, value in wanted.items())]


# -- what Eq. 1 says ---------------------------------------------------------------------------------------------------


def test_eq_1_and_its_stair():
    profile = small()
    assert eq1_s(profile) == 4000 / (4 * 32) * B == 62.5
    assert eq1_s(profile, 16.0) == 2 * 62.5
    # Two blocks a frame and session: 31 frames take 248 of 250 blocks. In the 32nd one session still finds its two.
    assert stair_s(profile) == stair_s(profile.with_(pool_blocks=251)) == 32 * B + 1 * B / 4
    assert stair_s(profile.with_(phase_groups=1)) == 32 * B
    # All but two blocks of 200 are left over by 11 frames of 9 sessions, and the first group has three of them.
    assert stair_s(profile.with_(sessions=9, pool_blocks=200, max_model_len=3200)) == 12 * B


@pytest.mark.parametrize(("n", "groups"), [(4, 1), (5, 4), (7, 32)])
def test_the_engine_refuses_on_the_stair_that_was_counted(n, groups):
    profile = small(sessions=n, phase_groups=groups)
    row = account(serve(profile, "unbounded", 100.0))
    assert 0 <= row["full_at_s"] - stair_s(profile) < 0.5
    assert row["n"] == n and row["growth"] == 32


def test_the_mean_of_a_reply_that_may_end():
    profile = small()
    assert growth_with_eos(profile, 0) == 32
    # 26 in, 1 to 7 out, the last one not kept.
    assert growth_with_eos(profile, 0.5) == 25 + sum((j + 1) * 0.5 ** (j + 1) for j in range(6)) + 7 * 0.5**6
    row = account(serve(small(sessions=4, eos_chance=0.3), "unbounded", 100.0))
    assert row["growth"] == pytest.approx(growth_with_eos(profile, 0.3), abs=0.5)


def test_sessions_that_come_and_go_fill_the_pool_later_or_never():
    profile = small()
    for stay, mean_age in ((4 * 62.5, None), (62.5, math.inf), (30.0, math.inf)):
        at_s = churn_s(profile.with_(holding_s=stay))
        if mean_age is None:
            # The mean age of the open sessions then is what Eq. 1 says they have to be old.
            assert stay * (1 - math.exp(-at_s / stay)) == pytest.approx(62.5) and at_s > 62.5
        else:
            assert at_s == mean_age


# -- sources of variance -----------------------------------------------------------------------------------------------


def test_each_source_switches_on_its_own_and_all_switches_on_all():
    fields = ("start_jitter", "eos_chance", "step_noise", "holding_s", "arrivals_per_s")
    on = {s: {f for f in fields if getattr(vary(small(), s, STRENGTHS), f)} for s in SOURCES}
    assert on == {
        "none": set(),
        "start_jitter": {"start_jitter"},
        "eos": {"eos_chance"},
        "step_noise": {"step_noise"},
        "churn": {"holding_s", "arrivals_per_s"},
        "replies": {"eos_chance"},
        "all": set(fields),
    }


def test_churn_offers_n_on_average():
    profile = vary(small(), "churn", STRENGTHS)
    assert profile.holding_s == 4 * 62.5 and profile.arrivals_per_s * profile.holding_s == pytest.approx(4)


def test_replies_are_drawn_once_for_a_run_and_by_its_seed():
    profile = small()
    drawn = [vary(profile.with_(seed=seed), "replies", STRENGTHS).eos_chance for seed in range(200)]
    assert drawn == [vary(profile.with_(seed=seed), "replies", STRENGTHS).eos_chance for seed in range(200)]
    assert len(set(drawn)) == 200 and 0 <= min(drawn) < 0.05 and 0.85 < max(drawn) <= 0.9
    assert sum(drawn) / 200 == pytest.approx(0.45, abs=0.06)


# -- the run -----------------------------------------------------------------------------------------------------------


def test_all_claims_hold_with_every_source(result):
    assert result.holds, [claim for claim in result.claims if not claim.holds]
    assert len(result.claims) == 9 and result.executor == "simulated"
    assert set(result.pool["run"]) == {"unbounded", "bounded"}


def test_a_cell_counts_the_runs_that_had_walled_by_its_duration(result):
    rows = [row for row in result.metrics["runs"] if row["policy"] == "unbounded"]
    for cell in of(result, policy="unbounded"):
        mine = [r for r in rows if (r["variance"], r["n"]) == (cell["variance"], cell["n"])]
        assert cell["runs"] == len(mine) == 2
        assert cell["walled"] == sum(r["wall_at_s"] is not None and r["wall_at_s"] <= cell["duration_s"] for r in mine)
        assert cell["low"] <= cell["walled"] / 2 <= cell["high"] and cell["high"] - cell["low"] > 0.3


def test_p_never_falls_with_the_duration_and_is_0_or_1_without_variance(result):
    for source in SOURCES:
        for n in (4, 5):
            walled = [c["walled"] for c in of(result, policy="unbounded", variance=source, n=n)]
            assert len(walled) == 9 and walled == sorted(walled)
            if source == "none":
                assert set(walled) == {0, 2}


def test_a_run_is_watched_past_its_last_duration(result):
    for row in result.metrics["runs"]:
        last = max(result.params["durations_s"][str(row["n"])])
        assert row["wall_at_s"] is not None or row["ended_at_s"] >= last + 3 * B - 0.5


def test_every_run_has_a_seed_of_its_own(result):
    seeds = [row["seed"] for row in result.metrics["runs"]]
    assert len(seeds) == len(set(seeds)) == 7 + 7 * 2 * 2


def test_what_is_common_to_a_run_sets_its_growth_and_what_is_not_averages_out(result):
    spread = {row["variance"]: row for row in result.metrics["spread"] if row["n"] == 5}
    assert spread["none"]["sd_s"] == spread["none"]["full_sd_s"] == 0 and spread["none"]["walled"] == 2
    # A frame is 4 % of this pool's time.
    assert all(spread[source]["full_sd_s"] <= B for source in ("start_jitter", "step_noise", "eos"))
    replies = [row for row in result.metrics["runs"] if (row["policy"], row["variance"]) == ("unbounded", "replies")]
    assert len({row["eos_chance"] for row in replies}) == len(replies) == 4
    for row in replies:
        assert row["growth"] == pytest.approx(growth_with_eos(small(), row["eos_chance"]), abs=0.7)


def test_bounded_runs_take_turns_and_are_counted(result):
    bounded = result.metrics["bounded"]
    assert (bounded["runs"], bounded["good"], bounded["walled"], bounded["low"]) == (7, 7, 0, 0.0)
    assert bounded["least_ingested_over_pool"] >= 2 and bounded["high"] == pytest.approx(1.96**2 / (7 + 1.96**2))
    turns = {(r["variance"], r["n"]) for r in result.metrics["runs"] if r["policy"] == "bounded"}
    assert len(turns) == 7
    assert sum(c["walled"] for c in of(result, policy="bounded")) == 0


def test_the_quick_form_serves_the_largest_n_with_every_source_and_finds_its_points_again(tmp_path):
    options = {"n": "4,5", "runs_per_cell": 3, "bounded_runs": 1, "sources": "none,eos,all"}
    first, second = Runs(tmp_path, workers=1), Runs(tmp_path, workers=1)
    results = [run(small(seed=3), runs=runs, **options) for runs in (first, second)]
    served = [(r["policy"], r["variance"], r["n"]) for r in results[0].metrics["runs"]]
    assert sorted(served) == sorted(
        [("bounded", "all", 4)]
        + 2 * [("unbounded", "none", 4), ("unbounded", "none", 5), ("unbounded", "eos", 5)]
        + 3 * [("unbounded", "all", 5)]
    )
    assert (first.computed, second.computed, second.reused) == (10, 0, 10)
    assert results[0].metrics == results[1].metrics and results[0].claims == results[1].claims


def test_a_bounded_run_that_walls_is_seen():
    row = one_run(small(window=1000, max_model_len=4000), "bounded", "none", 200.0, 8000)
    assert row["wall_at_s"] is not None and not good(row)


# -- claims that can fail ----------------------------------------------------------------------------------------------


def failed(result, rows) -> list[str]:
    durations = {n: [(at, None) for at in result.params["durations_s"][str(n)]] for n in (4, 5)}
    return [c.name for c in claims_of(small(), STRENGTHS, rows, cells(rows, durations)) if not c.holds]


@pytest.mark.parametrize(
    ("changed", "change", "fails"),
    [
        (("bounded", "all"), {"wall_at_s": 50.0}, ["no bounded run walls"]),
        (("bounded", "all"), {"capped": 1}, ["every bounded run is a good bounded arm"]),
        (("bounded", "all"), {"ingested_over_pool": 1.99}, ["every bounded run is a good bounded arm"]),
        (("bounded", "all"), {"answered": 0.98}, ["every bounded run is a good bounded arm"]),
        (("unbounded", "none"), {"wall_at_s": None}, ["without variance every run walls within the durations"]),
        (("unbounded", "none"), {"wall_at_s": 80.0}, ["without variance every run walls within the durations"]),
        # One of four sessions was preempted: its blocks last the other three for a third of Eq. 1's 62.5 s.
        (("unbounded", "none"), {"wall_at_s": 80.0, "preemptions": 1}, []),
        (("unbounded", "none"), {"full_at_s": 58.0}, ["without variance the pool is full", "with N fixed"]),
        (("unbounded", "replies"), {"growth": 20.0}, ["with N fixed"]),
        (("unbounded", "replies"), {"full_at_s": None, "ended_at_s": 500.0}, ["with N fixed"]),
        (("unbounded", "eos"), {"full_at_s": 90.0}, ["with N fixed", "eos: the pools"]),
    ],
)
def test_a_claim_fails_when_a_run_breaks_it(result, changed, change, fails):
    rows = [dict(row) for row in result.metrics["runs"]]
    assert failed(result, rows) == []
    next(row for row in rows if (row["policy"], row["variance"]) == changed).update(change)
    names = failed(result, rows)
    assert len(names) == len(fails) and all(n.startswith(start) for n, start in zip(names, fails, strict=True))


def test_a_run_that_would_not_repeat_fails_its_claim(result):
    from workbench.experiments.metastability import _same

    manager = serve(small(), "unbounded", 80.0)
    row = {"variance": "none", **account(manager)}
    assert _same([row], [manager]).holds
    assert _same([row | {"frames": 1}], [manager]).value == ["frames"]


# -- the paper's cell --------------------------------------------------------------------------------------------------


def test_at_the_paper_s_growth_no_spread_gives_its_survivors(result):
    assert PAPER_FULL_S == {96: pytest.approx(197.33, abs=0.01), 128: 148}
    # Half of all walls come before the median, and the median before 300 s: 4 of 10 is out of reach.
    assert needed_cv(300, 148, 4, 10) is None
    assert needed_cv(300, 148, 14, 20) == pytest.approx((300 / 148 - 1) / 0.5244, rel=1e-3)
    assert needed_cv(300, 316, 4, 10) == pytest.approx((1 - 300 / 316) / 0.2533, rel=1e-3)
    assert needed_cv(300, 316, 14, 20) is None and needed_cv(300, 148, 5, 10) is None
    paper = result.metrics["paper"]
    assert [(b["walled"], b["runs"]) for b in paper["batches"]] == [(4, 10), (10, 10), (14, 20), (0, 20)]


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"n": "0"}, ExperimentError, "n must be above 0"),
        ({"n": "4,1.5"}, ExperimentError, "whole numbers"),
        ({"n": "2000"}, ProfileError, "max_sessions"),
        ({"n": "60"}, ExperimentError, "plateau"),
        ({"n": "18", "sources": "none"}, ExperimentError, "too few to tell"),
        ({"n": "1"}, ExperimentError, "before the pool is full"),
        ({"duration_s": "0"}, ExperimentError, "duration_s must be above 0"),
        ({"duration_s": "nan"}, ExperimentError, "finite"),
        ({"duration_s": "1e9"}, ExperimentError, "shorter"),
        ({"parts": "1,-1"}, ExperimentError, "parts must be above 0"),
        ({"sources": "none,weather"}, ExperimentError, "no source of variance 'weather'.*replies"),
        ({"sources": "eos,eos"}, ExperimentError, "twice"),
        ({"runs_per_cell": 0}, ExperimentError, "runs_per_cell"),
        ({"bounded_runs": -1}, ExperimentError, "bounded_runs"),
        ({"window": 1000}, ExperimentError, "plateau"),
        ({"start_jitter": 2.0}, ProfileError, "start_jitter"),
        ({"eos_chance": math.nan}, ProfileError, "eos_chance"),
        ({"holding": 0.0}, ExperimentError, "holding"),
        ({"silence": math.nan}, ExperimentError, "silence"),
    ],
)
def test_bad_input_is_one_line_before_an_engine_starts(monkeypatch, options, error, words):
    monkeypatch.setattr("workbench.sessions.make_engine", lambda profile: pytest.fail("an engine was started"))
    with pytest.raises(error, match=words) as refused:
        run(small(), **{"n": "4", "duration_s": "60", "runs": Runs(workers=1), **options})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        (small(eos_chance=0.1), "eos_chance"),
        (small(shared_prefix=32), "shared_prefix"),
        (load_profile("smollm2"), "sim:"),
        (replace(small(), max_positions=500), "max_positions"),
    ],
)
def test_a_profile_that_cannot_serve_it_is_refused(profile, words):
    with pytest.raises(ExperimentError, match=words):
        run(profile, n="4", duration_s="60", runs=Runs(workers=1))
