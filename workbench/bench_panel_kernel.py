"""The kernel's side of the panel's bench: it measures, and asks by files for the page to be opened or closed.

Turns are taken in the order A B C C B A, as everywhere in the bench.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

from workbench.profiles import load_profile

OFF, CLOSED, SHOWN = "no panel", "panel, browser closed", "panel in an open browser"
TURNS, TURN_S, SETTLE_S = 6, 8.0, 2.0
START_S = 300.0
MOST_OF_DEMAND = 0.9  # an engine that serves more of what is demanded has time to spare, and shows no loss


class PanelBenchError(RuntimeError):
    """The panel cannot be measured here; one line that says what to do."""


def in_kernel(kind: str, folder: str):
    """Called by the notebook's one cell: shows a panel, and measures on a thread of its own."""
    from workbench.panel import Workbench

    shared = Path(folder)
    params = json.loads((shared / "params.json").read_text())
    if kind == "throughput":
        budget_s = params["frame_budget_s"]
        bench = Workbench(load_profile(params["profile"], frame_budget_s=budget_s), folder=shared / "tables")
        measure = _measure_throughput
    else:
        bench = Workbench(params["profile"], folder=shared / "tables")
        measure = _measure_redraws
    bench.shown = bench.panel()

    def run() -> None:
        try:
            figures = measure(bench, params, shared)
        except Exception as error:  # noqa: BLE001, it is told to the bench, which has no other way to hear of it
            figures = {"error": f"{type(error).__name__}: {error}"}
        finally:
            bench.end()
        write(shared / "figures.json", json.dumps(figures))

    threading.Thread(target=run, name="metronome-bench", daemon=True).start()
    return bench.shown


def _measure_throughput(bench, params: dict, shared: Path) -> dict:
    from workbench.bound import KVBound

    live, profile = bench.live, bench.profile
    _until(lambda: live.open_now or not bench.alive, START_S, "the engine did not start")
    bench.bound(KVBound(params["window"], profile.sinks)).result(60)
    bench.add(None, params["sessions"]).result(60)
    beat = bench.manager().beat
    # Old enough that every frame evicts: what is served stays the same from turn to turn.
    _until(lambda: beat.latest.evicted_tokens > params["sessions"] * params["window"], START_S, "no session grew old")
    rates: dict[str, list[float]] = {OFF: [], CLOSED: [], SHOWN: []}
    for turn in range(TURNS):
        for what in (OFF, CLOSED, SHOWN) if turn % 2 == 0 else (SHOWN, CLOSED, OFF):
            write(shared / "said", f"throughput, {what}, turn {turn + 1} of {TURNS}")
            write(shared / "part", str(turn / TURNS))
            _ask(shared, f"{turn} {what}")
            live.resting = what == OFF
            time.sleep(SETTLE_S)
            rates[what].append(_tokens_per_s(bench, TURN_S))
    live.resting = False
    demanded = params["sessions"] * profile.growth / profile.frame_budget_s
    if max(map(max, rates.values())) > MOST_OF_DEMAND * demanded:
        raise PanelBenchError(f"the engine serves {demanded:.0f} tokens/s with room to spare: more sessions are needed")
    return {"tokens_per_s": rates, "executor": bench.manager().engine.facts.executor}


def _tokens_per_s(bench, seconds: float) -> float:
    """Tokens by which the sessions grew in a second, by the scheduler's own count and clock."""
    rows = bench.manager().tables.pool_rows
    first = rows[-1]
    time.sleep(seconds)
    last = rows[-1]
    return (last.grown_tokens - first.grown_tokens) / (last.at_s - first.at_s)


def _measure_redraws(bench, params: dict, shared: Path) -> dict:
    _until(lambda: bench.live.open_now or not bench.alive, START_S, "the engine did not start")
    bench.add(None, params["sessions"]).result(60)
    view = bench.shown.view
    _until(lambda: view.redraws > 10, START_S, "no page draws the panel")
    began, before, lags = time.monotonic(), view.redraws, []
    while (passed := time.monotonic() - began) < params["seconds"]:
        write(shared / "said", f"redraws, {passed:.0f} of {params['seconds']:.0f} s")
        write(shared / "part", str(passed / params["seconds"]))
        time.sleep(0.25)
        lags.append(view.lag_s)
    live = bench.live
    points = sum(len(trace["x"]) for trace in live.drawing()["figure"]["data"])
    return {"redraws": view.redraws - before, "seconds": passed, "lags_s": lags, "points": points}


def _ask(shared: Path, what: str) -> None:
    write(shared / "asked", what)
    _until(lambda: read(shared / "done") == what, START_S, "the page was not opened or closed")


def _until(true: Callable[[], bool], seconds: float, otherwise: str) -> None:
    ends = time.monotonic() + seconds
    while not true():
        if time.monotonic() > ends:
            raise PanelBenchError(f"{otherwise} within {seconds:g} s")
        time.sleep(0.05)


def read(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def write(file: Path, text: str) -> None:
    """Whole or not at all: the other side may read at any moment."""
    part = file.with_suffix(".part")
    part.write_text(text)
    part.replace(file)
