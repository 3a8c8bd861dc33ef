"""What the GPU's checks make of an engine that answers as the reference would, or wrongly on purpose. None is real."""

from __future__ import annotations

from types import MappingProxyType, SimpleNamespace

import pytest

from workbench.engine import EngineError, TokenEvent
from workbench.gpu_check import exactness, graphs, judge, memory, runners
from workbench.gpu_check.device import Used
from workbench.gpu_check.served import Frame, Setting, WatchedEngine, words
from workbench.gpu_check.table import ABSENT, FAILED, PASSED, CheckFailed, NotAvailable, Row
from workbench.profiles import load_profile
from workbench.reference import Reference
from workbench.weights import model_path

OWED = exactness.OWED


@pytest.fixture
def setting():
    return Setting(load_profile("smollm2", model="tiny", window=64, max_sessions=8), FakeEngine)


# -- an engine that is none -------------------------------------------------------------------------------------------


class FakeEngine(WatchedEngine):
    """Answers each frame as a model in float32 with the bound would, its log-probabilities ``off`` by so much."""

    off = MappingProxyType({None: 0.0, False: 0.0, True: 0.0})  # unbounded, sinks that stay, sinks that move
    ignores_bound = False
    stays: str | None = None
    started = "Using AttentionBackendEnum.TRITON_ATTN backend."
    error: Exception | None = None
    short = 0

    async def start(self, progress=None) -> None:
        if self.error is not None:
            raise self.error
        self.eager = self._engine_args.get("enforce_eager", False)
        self.model_path, self.said = model_path("tiny"), self.started
        self.graph_mode = "NONE" if self.eager else "FULL"
        self.said += "" if self.eager else "Graph capturing finished in 1 secs"
        self.facts = SimpleNamespace(vocab_size=2048, sinks_stay=self.stays, runner="V1")
        self.sessions, self.reference = {}, Reference(self.model_path)

    def submit(self, session, tokens, owed, bound=None) -> None:
        key = None if bound is None else bound.moving
        count = owed - self.short
        frame = Frame(list(tokens), None if self.ignores_bound else bound, owed, [k % 7 for k in range(count)])
        if session not in self.sessions:
            self.sessions[session] = self.reference.session(32)
        logprobs = self.sessions[session].logprobs(frame)
        logprobs = [value + self.off[key] for value in logprobs]
        self.on_event(TokenEvent(session, tuple(frame.tokens_out), 0.0, done=True, logprobs=tuple(logprobs)))

    def close(self, session) -> None:
        self.sessions.pop(session)

    async def stop(self) -> None:
        pass


def made(**changes) -> type:
    return type("Changed", (FakeEngine,), changes)


@pytest.fixture(autouse=True)
def few_frames(monkeypatch):
    monkeypatch.setattr(exactness, "FRAMES", 5)
    monkeypatch.setattr(graphs, "ROUNDS", 5)


def outcomes(rows: list[Row]) -> dict[str, str]:
    return {row.part: row.outcome for row in rows}


def exact(setting: Setting, engine: type = FakeEngine, **options) -> list[Row]:
    return exactness.run(Setting(setting.profile, engine), lambda line: None, **options)


# -- exactness --------------------------------------------------------------------------------------------------------


def test_an_exact_engine_passes_session_by_session(setting):
    rows = exact(setting, backend="TRITON_ATTN")
    assert outcomes(rows) == dict.fromkeys(["unbounded", "S0 W64", "S4 W64", "moving sinks"], PASSED)
    assert all(row.figures["tokens"] == 5 * OWED for row in rows)


def test_a_bounded_session_alone_that_is_off_fails(setting):
    found = outcomes(exact(setting, made(off={None: 0.01, False: 0.03, True: 0.02})))
    assert found == {"unbounded": PASSED, "S0 W64": FAILED, "S4 W64": FAILED, "moving sinks": PASSED}


def test_an_engine_that_ignores_the_bound_fails(setting):
    found = outcomes(exact(setting, made(ignores_bound=True)))
    assert found == {"unbounded": PASSED, "S0 W64": FAILED, "S4 W64": FAILED, "moving sinks": FAILED}


def test_sinks_that_cannot_move_are_not_available(setting):
    rows = exact(setting, made(stays="its layout is not known"))
    assert rows[-1] == Row("moving sinks", ABSENT, "its layout is not known")
    assert [row.outcome for row in rows[:-1]] == [PASSED] * 3


def test_a_backend_the_engine_does_not_name_fails(setting):
    with pytest.raises(CheckFailed, match="asked for FLASHINFER and does not say that it uses it"):
        exact(setting, backend="FLASHINFER")


def test_a_backend_the_machine_lacks_is_not_available_and_any_other_error_is_not(setting):
    said = "ValueError: Selected backend X is not valid for this configuration. Reason: ['no such GPU']"
    with pytest.raises(NotAvailable, match="no such GPU"):
        exact(setting, made(error=EngineError(said)))
    with pytest.raises(EngineError, match="out of memory"):
        exact(setting, made(error=EngineError("out of memory")))


def test_a_frame_that_gets_too_few_tokens_fails(setting):
    with pytest.raises(CheckFailed, match=r"session \S+ was owed 4 tokens and got 3, 3 of them"):
        exact(setting, made(short=1))


def test_a_control_that_is_wrong_excuses_nobody():
    assert judge.control("unbounded", "float32", [0.0, 0.05]).outcome == PASSED
    assert judge.control("unbounded", "float32", [0.0, 0.2]).outcome == FAILED


def test_a_comparison_that_could_not_fail_is_no_pass():
    told = {"control": [0.1], "ignored": [3.0]}
    assert judge.bounded("S4", "bfloat16", [0.1], **told).outcome == PASSED
    row = judge.bounded("S4", "bfloat16", [0.1], control=[0.1], ignored=[0.3])
    assert row.outcome == ABSENT and row.detail.endswith("too little to tell in bfloat16")
    assert judge.bounded("S4", "bfloat16", [0.3], control=[0.1], ignored=[0.3]).outcome == FAILED


def test_a_model_without_a_tokenizer_is_fed_seeded_chance():
    folder = model_path("tiny")
    drawn = words(folder, 2048, 50, seed=3)
    assert drawn == words(folder, 2048, 50, seed=3) != words(folder, 2048, 50, seed=4)
    assert len(drawn) == 50 and set(drawn) <= set(range(2048))


# -- runners, graphs, memory ------------------------------------------------------------------------------------------


def test_v1_serves_and_v2_is_refused_by_name(setting):
    refused = made(error=EngineError("bounded sessions cannot be served while the V2 model runner is on (...)"))
    assert outcomes(runners.run(setting, print, v2=refused)) == {"V1": PASSED, "V2": PASSED}


@pytest.mark.parametrize("error", [None, EngineError("out of memory")])
def test_a_v2_runner_that_starts_or_fails_of_something_else_is_a_failure(setting, error):
    assert outcomes(runners.run(setting, print, v2=made(error=error)))["V2"] == FAILED


def test_graphs_that_change_nothing_pass(setting):
    assert set(outcomes(graphs.run(setting, print)).values()) == {PASSED}


class OffWithGraphs(FakeEngine):
    def submit(self, session, tokens, owed, bound=None) -> None:
        self.off = {None: 0.0, False: 0.0 if self.eager else 0.1, True: 0.0}
        super().submit(session, tokens, owed, bound)


def test_a_bounded_session_that_graphs_change_fails(setting):
    found = outcomes(graphs.run(Setting(setting.profile, OffWithGraphs), print))
    assert found["captured"] == found["unbounded"] == PASSED
    assert found["S4 W64"] == FAILED


def test_an_engine_that_captured_no_graphs_fails(setting):
    engine = made(start=no_graphs)
    row = graphs.run(Setting(setting.profile, engine), print)[0]
    assert (row.part, row.outcome) == ("captured", FAILED)


async def no_graphs(self, progress=None) -> None:
    await FakeEngine.start(self)
    self.said = ""


class RememberingEngine(FakeEngine):
    """Its sessions hold ``resident`` tokens in the end, and its memory grows by ``leak`` a frame."""

    resident, leak, pids, served = 180, 0, [1], 0

    def submit(self, session, tokens, owed, bound=None) -> None:
        type(self).served += 1
        self.on_event(TokenEvent(session, (1,) * owed, 0.0, done=True))

    def now(self) -> float:
        return 0.0

    def rss_bytes(self) -> int:
        return self.leak * self.served

    async def snapshot(self, sessions=None):
        return SimpleNamespace(sessions={"m0": SimpleNamespace(resident=self.resident)})


@pytest.mark.parametrize(
    ("changes", "grows", "expected"),
    [
        ({}, 0, {"resident": PASSED, "host": PASSED, "GPU": PASSED}),
        ({"resident": 900}, 0, {"resident": FAILED, "host": PASSED, "GPU": PASSED}),
        ({"leak": 1 << 17}, 0, {"resident": PASSED, "host": FAILED, "GPU": PASSED}),
        ({}, 1 << 20, {"resident": PASSED, "host": PASSED, "GPU": FAILED}),
    ],
)
def test_memory_that_grows_fails_where_it_grows(setting, changes, grows, expected):
    engine = type("Leaking", (RememberingEngine,), {"served": 0, **changes})
    samples = iter(range(10**6))
    rows = memory.run(Setting(setting.profile, engine), print, lambda pids: Used(grows * next(samples), "the engine's"))
    assert outcomes(rows) == expected


def test_a_driver_that_does_not_tell_leaves_the_host_s_memory(setting):
    def silent(pids):
        raise NotAvailable("no NVML")

    rows = memory.run(Setting(setting.profile, RememberingEngine), print, silent)
    assert outcomes(rows) == {"resident": PASSED, "host": PASSED, "GPU": ABSENT}
