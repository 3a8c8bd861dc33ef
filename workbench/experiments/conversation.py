"""A conversation one can hear: spoken turns in, replies out, the same audio once unbounded and once bounded.

Real clips and, where espeak-ng is installed, spoken questions; one of the turns interrupts a reply. Each arm has a
fresh engine and lasts as long as the dialogue, some 80 s; without espeak-ng some 45 s.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from workbench.audio import Clip, sample_clip
from workbench.bound import KVBound, blocks_for
from workbench.experiments import ExperimentError, Progress, Result, joined, params_of
from workbench.experiments._conversation import ARMS, FRAME_BUDGET_S, TOKENS_OWED, Asked, claims_of, of_arm
from workbench.profiles import Profile
from workbench.sessions import SessionManager
from workbench.speech.dialogue import Line, as_mp3, both_sides, track
from workbench.speech.parts import hearing_missing, voice_missing
from workbench.speech.turns import Turn, word_error_rate

POOL_BLOCKS = 32  # a small pool, in which one conversation can be seen
BEGINS_S = 1.0
# After the end of the turn whose reply it interrupts. A story is long; what is replied to a real clip lasts a few
# seconds, and on a busy machine it may not have begun: so nothing is claimed of that.
INTERRUPTS_AFTER_S, MAY_INTERRUPT_AFTER_S = 7.0, 4.0
SETTLES_S = 30.0  # silence at the end; the run ends as soon as the last reply has
REAL = ("librivox_0880", "librivox_0930")
LONG = ("librivox_0870", "goforward")  # without a voice: a turn with a longer reply, and what may interrupt it
# A question and the words of which its answer should have one.
QUESTIONS = (
    ("What is the capital of France?", ("paris",)),
    ("What color is the sky on a clear day?", ("blue",)),
    ("How many days are in a week?", ("seven", "7")),
)
STORY, STOP = "Tell me a long story about a ship and its captain.", "Stop. What is two plus two?"


def dialogue(pause_s: float, voice: bool) -> list[Asked]:
    """The turns of the speaker, with ``pause_s`` of silence between them. Raises SpeechError, AudioError."""
    asked, at = [], BEGINS_S

    def say(clip: Clip, said: str | None, after_s: float, keywords=(), real=True, interrupts=False) -> None:
        nonlocal at
        asked.append(Asked(Line(clip, at + after_s, interrupts), said, tuple(keywords), real))
        at = asked[-1].line.ends_s

    for name in REAL:
        clip = sample_clip(name)
        say(clip, clip.transcript, pause_s if asked else 0.0)
    if voice:
        from workbench.speech.speak import SPEAKER as VOICE
        from workbench.speech.speak import speak

        for question, keywords in QUESTIONS:
            say(speak(question, VOICE), question, pause_s, keywords, real=False)
        say(speak(STORY, VOICE), STORY, pause_s, real=False)
        say(speak(STOP, VOICE), STOP, INTERRUPTS_AFTER_S, ("four", "4"), real=False, interrupts=True)
    else:
        long, stop = (sample_clip(name) for name in LONG)
        say(long, long.transcript, pause_s)
        say(stop, stop.transcript, MAY_INTERRUPT_AFTER_S)
    return asked


def run(
    profile: Profile,
    *,
    progress: Progress | None = None,
    tables_dir: Path | None = None,
    window: int = 64,
    sinks: int = 32,
    pause: float = 10.0,
    voice: bool = True,
    seed: int | None = None,
) -> Result:
    """Hold the dialogue in both arms. ``pause``: seconds of silence after a turn, in which its reply comes.

    ``voice``: with questions spoken by espeak-ng, where it is installed. ``profile`` says which model is served; frames
    and pool are the conversation's own. Raises ExperimentError, SpeechError, BoundError, ProfileError, EngineError.
    """
    if profile.executor != "vllm":
        raise ExperimentError(f"a conversation needs a model that speaks, {profile.name} is simulated: give smollm2")
    if missing := hearing_missing():
        raise ExperimentError(missing)
    if not 2 <= pause <= 60:
        raise ExperimentError(f"pause must be 2 to 60 s, long enough for a reply, not {pause:g}")
    profile = profile.with_(
        front_end="asr",
        frame_budget_s=FRAME_BUDGET_S,
        tokens_owed=TOKENS_OWED,
        phase_groups=1,
        sessions=1,
        pool_blocks=POOL_BLOCKS,
        max_model_len=POOL_BLOCKS * profile.block_size,
        window=window,
        sinks=sinks,
        seed=profile.seed if seed is None else seed,
    )
    say = progress or (lambda message, fraction: None)
    voice = voice and voice_missing() is None
    asked = dialogue(pause, voice)
    clip, ends_s = _heard(asked), asked[-1].line.ends_s
    arms = {}
    for i, (arm, bound) in enumerate(zip(ARMS, (None, profile.bound), strict=True)):

        def tell(message: str, fraction: float | None, i=i, arm=arm) -> None:
            say(f"{arm}: {message}", (i + (fraction or 0.0)) / len(ARMS))

        folder = None if tables_dir is None else Path(tables_dir) / arm
        arms[arm] = _hold(profile, arm, bound, clip, ends_s, tell, folder)
    return _result(profile, asked, arms, {"pause_s": pause, "voice": voice})


def recording(result: Result, arm: str) -> bytes:
    """An arm as an MP3 file, the speaker left and the replies right, which are silent without espeak-ng."""
    from workbench.speech.speak import speak

    asked = dialogue(result.params["pause_s"], result.params["voice"])
    turns = turns_of(result, arm)
    seconds = max(asked[-1].line.ends_s, *(turn.t_end for turn in turns)) + 3.0
    voice = None if voice_missing() else speak
    return as_mp3(both_sides(_heard(asked), turns, FRAME_BUDGET_S, voice, seconds))


def turns_of(result: Result, arm: str) -> list[Turn]:
    """The transcript of an arm."""
    return [Turn(**{key: row[key] for key in Turn.__dataclass_fields__}) for row in result.metrics[arm]["turns"]]


def _heard(asked: list[Asked]) -> Clip:
    lines = [each.line for each in asked]
    return track("dialogue", lines, lines[-1].ends_s + SETTLES_S)


@dataclass(frozen=True)
class Held:
    """What an arm leaves. ``seen``: the tokens that its model had computed at the end."""

    manager: SessionManager
    turns: list[Turn]
    seen: tuple[int, ...]
    most_tokens: int


def _hold(profile: Profile, arm: str, bound: KVBound | None, clip: Clip, spoken_s: float, say, folder) -> Held:
    with SessionManager(profile, arm, progress=lambda m: say(m, 0.0), save_to=folder) as manager:
        name = manager.add(clip, bound, loop=False)
        front_end = manager.front_ends[name]

        def over(m: SessionManager) -> bool:
            """Everything is said, and the frames since are known."""
            with m.tables.lock:
                session = m.beat.sessions.get(name)
                if session is None:
                    return True
                heard = session.frame * profile.frame_budget_s > spoken_s + 2.0
                last = [row for row in m.tables.frame_rows[-3:] if row.tokens_owed == 0 and row.age_tokens is not None]
                return heard and front_end.quiet and session.in_flight is None and len(last) == 3

        while not manager.wait_for(over, seconds=FRAME_BUDGET_S) and manager.beat.dead is None:
            done = manager.beat.sessions[name].frame * profile.frame_budget_s if name in manager.beat.sessions else 0.0
            say(_latest(front_end.transcript()), min(1.0, done / spoken_s))
        ended = manager.tables.session_rows[name].reason
        turns = front_end.transcript()
    if manager.beat.dead is not None:
        raise ExperimentError(f"the engine died in the {arm} arm: {manager.beat.dead}")
    if ended is not None:
        raise ExperimentError(f"the {arm} arm ended before its dialogue did: {ended}")
    return Held(manager, turns, front_end.seen, front_end.most_tokens)


def _latest(turns: list[Turn]) -> str:
    return f"{turns[-1].speaker}: {turns[-1].text}" if turns else "listening"


# -- what comes of it --------------------------------------------------------------------------------------------------


def _result(profile: Profile, asked: list[Asked], arms: dict[str, Held], params: dict) -> Result:
    metrics = {arm: of_arm(held.manager.tables, held.turns, len(held.seen), asked) for arm, held in arms.items()}
    facts = arms["bounded"].manager.engine.facts
    most = arms["bounded"].most_tokens
    plateau = blocks_for(profile.bound.resident_max(profile.block_size, most, profile.tokens_owed), profile.block_size)
    metrics["plateau_blocks"] = plateau
    real = [row for row in metrics["unbounded"]["lines"] if row["real"] and row["said"]]
    metrics["word_error_rate"] = word_error_rate((row["heard"], row["said"]) for row in real)
    questions = [row for row in metrics["bounded"]["lines"] if row["right"] is not None]
    metrics["questions"] = len(questions)
    for arm in ARMS:
        metrics[arm]["answered"] = sum(bool(row["right"]) for row in metrics[arm]["lines"])
    return Result(
        experiment="conversation",
        profile=profile.name,
        executor=facts.executor,
        vllm=facts.vllm,
        seed=profile.seed,
        params={**params_of(profile, facts), **params},
        metrics=metrics,
        claims=tuple(claims_of(metrics, asked)),
        **joined([held.manager.tables for held in arms.values()]),
    )
