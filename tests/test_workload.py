"""Who calls when: the events of a run, and a manager that lets them happen on virtual time."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.test_simulated import BASE, make
from workbench.experiments import ExperimentError, experiment
from workbench.profiles import load_profile
from workbench.workload import events, play, voice

OPEN = BASE.with_(sessions=4, arrivals_per_s=0.5, holding_s=20.0, pool_blocks=2000, max_model_len=4000)


def first(profile, count=400):
    return list(islice(events(profile), count))


def test_without_churn_the_sessions_are_there_from_the_start_and_stay():
    assert [(e.at_s, e.call, e.opens) for e in events(BASE.with_(sessions=3))] == [(0, k, True) for k in range(3)]


def test_events_come_in_order_and_each_call_opens_before_it_hangs_up():
    happened = first(OPEN)
    assert [e.at_s for e in happened] == sorted(e.at_s for e in happened)
    opened = set()
    for event in happened:
        if event.opens:
            opened.add(event.call)
        else:
            opened.remove(event.call)


def test_arrivals_and_stays_have_the_means_they_were_given():
    happened = first(OPEN.with_(sessions=1, arrivals_per_s=2.0, holding_s=5.0), 8000)
    opened = {e.call: e.at_s for e in happened if e.opens}
    stays = [e.at_s - opened[e.call] for e in happened if not e.opens]
    assert len(opened) / happened[-1].at_s == pytest.approx(2.0, rel=0.05)
    assert sum(stays) / len(stays) == pytest.approx(5.0, rel=0.05)


def test_the_seed_decides_and_the_streams_do_not_mix():
    assert first(OPEN) == first(OPEN) != first(OPEN.with_(seed=1))
    left = {e.call: e.at_s for e in first(OPEN) if not e.opens and e.call < 4}
    busier = {e.call: e.at_s for e in first(OPEN.with_(arrivals_per_s=5.0), 4000) if not e.opens and e.call < 4}
    assert left == busier


def test_a_manager_opens_and_closes_at_the_instants_of_the_events():
    told = []
    with make(OPEN) as manager:
        play(manager, 60.0, lambda call: manager.add(None), tell=told.append)
        assert manager.now() == 60.0
    happened = [e for e in first(OPEN) if e.at_s <= 60.0]
    sessions = manager.sessions()
    assert sessions["offered_at_s"].tolist() == pytest.approx([e.at_s for e in happened if e.opens])
    hung_up = sessions.query("reason == 'closed'")["ended_at_s"]
    assert sorted(hung_up) == pytest.approx([e.at_s for e in happened if not e.opens])
    assert told == sorted(told) and len(told) >= 30


def test_it_stops_when_it_is_told_to():
    with make(BASE) as manager:
        play(manager, 500.0, lambda call: manager.add(None), stop=lambda: manager.beat.first_refused_at_s is not None)
        assert manager.beat.first_refused_at_s <= manager.now() < 40


def test_a_call_that_was_shed_never_hangs_up():
    with make(OPEN) as manager:
        play(manager, 60.0, lambda call: None if call % 2 else manager.add(None))
    assert (manager.sessions()["reason"].isin(["closed", "closed with the manager"])).all()


def test_no_two_voices_say_the_same():
    voices = [(clip.name, start) for clip, start in (voice(BASE, call) for call in range(40))]
    assert len(set(voices)) == 40 and voices[0] == (voice(BASE, 0)[0].name, voice(BASE, 0)[1])


@pytest.mark.parametrize("name", ["cliff", "saturation", "agreement"])
@pytest.mark.parametrize("field", ["arrivals_per_s", "holding_s"])
def test_an_experiment_with_sessions_of_its_own_refuses_churn_in_place_of_ignoring_it(name, field):
    with pytest.raises(ExperimentError, match=field):
        experiment(name)(load_profile("smollm2", **{field: 5.0}))
