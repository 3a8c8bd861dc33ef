"""A process that is sent SIGTERM, as Jupyter sends it to a kernel that is slow to go, has saved its tables before."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from workbench.telemetry import load_tables

HELD = """
import sys, threading
sys.path.insert(0, {tests!r})
from pathlib import Path
from tests.live_rig import Ready, TINY
from workbench.live.hands import Hands

hands = Hands(TINY, folder=Path({folder!r}), engine=lambda profile: Ready())
hands.add(n=2).result(60)
arm = hands.live.arms[0].desk
while not len(arm.manager.tables.frame_rows):
    threading.Event().wait(0.01)
# As what SIGTERM interrupts may: it holds a lock that the ending needs.
with arm.manager.tables.lock:
    print("open", flush=True)
    threading.Event().wait(1.0)
{after}
threading.Event().wait()
"""


def told(tmp_path: Path, after: str = "") -> tuple[int, str]:
    """How a process ended that was sent SIGTERM while its tables had rows, and what it said of it."""
    root = str(Path(__file__).parents[1])
    script = HELD.format(tests=root, folder=str(tmp_path), after=after)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root
    ) as process:
        assert process.stdout.readline() == "open\n", process.stderr.read()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=120)
    return process.returncode, said


def test_the_tables_are_saved_and_the_signal_has_its_way(tmp_path):
    assert told(tmp_path) == (-signal.SIGTERM, "")
    tables = load_tables(tmp_path / "run-1")
    assert len(tables["sessions"]) == 2 and len(tables["frames"]) > 0


def test_a_handler_of_the_program_s_own_stays():
    script = """
import signal
signal.signal(signal.SIGTERM, lambda *a: None)
own = signal.getsignal(signal.SIGTERM)
from workbench.live.ending import end_when_told
class Live:
    def end(self): pass
end_when_told(Live())
assert signal.getsignal(signal.SIGTERM) is own
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
