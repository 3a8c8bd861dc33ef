"""What a conversation's transcript and tables say: each line and its reply, interruptions in frames, and the claims."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from workbench.experiments import Claim
from workbench.speech.dialogue import Line
from workbench.speech.turns import MODEL, SPEAKER, Turn, plain_words
from workbench.telemetry import Tables

ARMS = ("unbounded", "bounded")
# A frame of half a second and two tokens: a reply grows at about the pace at which it is spoken.
FRAME_BUDGET_S, TOKENS_OWED = 0.5, 2
WORD_ERRORS = 0.35  # of real clips; Whisper tiny.en makes fewer, and this is no test of Whisper


@dataclass(frozen=True)
class Asked:
    """A line of the dialogue; ``said``: its words; ``keywords``: of a good answer; ``real``: recorded by a person."""

    line: Line
    said: str | None
    keywords: tuple[str, ...] = ()
    real: bool = True


def answered(turns: list[Turn], asked: list[Asked]) -> list[dict]:
    """Each line of the dialogue with what was heard of it and what was replied."""
    found = []
    for each in asked:
        line = each.line
        heard = [t for t in turns if t.speaker == SPEAKER and t.t_start < line.ends_s and line.at_s < t.t_end]
        ends = {t.t_end for t in heard}
        replies = [t for t in turns if t.speaker == MODEL and t.answers_end_s in ends]
        reply = " ".join(t.text for t in replies)
        right = bool(set(each.keywords) & set(plain_words(reply))) if each.keywords else None
        row = {"clip": line.clip.name, "at_s": line.at_s, "ends_s": line.ends_s, "real": each.real}
        row |= {"said": each.said, "heard": " ".join(t.text for t in heard), "reply": reply, "right": right}
        found.append(row | {"first_word_s": replies[0].first_word_s if replies and replies[0].tokens else None})
    return found


def interruptions(turns: list[Turn]) -> list[dict]:
    """Each reply that was cut short, in frames: when the speech began, was heard, and the last frame with tokens."""
    found = []
    for i, turn in enumerate(turns):
        if turn.cut_frame is None:
            continue
        after = next((t for t in turns[i + 1 :] if t.speaker == SPEAKER), None)
        found.append(
            {
                "speech_frame": None if after is None else int(after.t_start / FRAME_BUDGET_S),
                "heard_frame": turn.cut_frame,
                "last_reply_frame": turn.last_frame if turn.tokens else None,
                "shown": turn.tokens,
                "unshown": turn.unshown,
            }
        )
    return found


def of_arm(tables: Tables, turns: list[Turn], seen: int, asked: list[Asked]) -> dict:
    """An arm's metrics. ``seen``: tokens that the model has computed by the front end's count."""
    frames, pool = tables.frames(), tables.pool()
    replied = [turn for turn in turns if turn.speaker == MODEL]
    known = frames["age_tokens"].dropna()
    return {
        "turns": [asdict(turn) | {"first_word_s": turn.first_word_s} for turn in turns],
        "lines": answered(turns, asked),
        "interruptions": interruptions(turns),
        "first_word_s": [turn.first_word_s for turn in replied if turn.tokens],
        "max_content_lag_s": float(frames["content_lag_s"].max()),
        "frames": len(frames),
        "chunks": int((frames["tokens_in"] > 0).sum()),
        "capped_frames": int(frames["capped"].sum()),
        "seen_tokens": seen,
        "age_tokens": int(known.iloc[-1]),
        "resident_tokens": int(frames["resident_tokens"].dropna().iloc[-1]),
        "evicted_tokens": int(known.iloc[-1] - frames["resident_tokens"].dropna().iloc[-1]),
        "most_blocks": int(pool["blocks_used"].max()),
    }


def claims_of(metrics: dict, asked: list[Asked]) -> list[Claim]:
    """What the experiment asserts, in frames, tokens, blocks and words."""
    both = [metrics[arm] for arm in ARMS]
    heard = [sum(bool(row["heard"]) for row in arm["lines"]) for arm in both]
    replied = [sum(bool(row["reply"]) for row in arm["lines"]) for arm in both]
    cuts = [arm["interruptions"] for arm in both]
    late = [
        cut["heard_frame"] - cut["speech_frame"] for each in cuts for cut in each if cut["speech_frame"] is not None
    ]
    after = [
        cut["last_reply_frame"] - cut["heard_frame"]
        for each in cuts
        for cut in each
        if cut["last_reply_frame"] is not None
    ]
    meant = sum(each.line.interrupts for each in asked)
    bounded = metrics["bounded"]
    return [
        Claim("every turn is heard, in both arms", heard == [len(asked)] * 2, heard, f"{len(asked)} each"),
        Claim(
            "the words of real clips are recognised",
            metrics["word_error_rate"] <= WORD_ERRORS,
            metrics["word_error_rate"],
            f"word error rate <= {WORD_ERRORS}",
        ),
        Claim(
            "the two arms heard the same words",
            [row["heard"] for row in both[0]["lines"]] == [row["heard"] for row in both[1]["lines"]],
            len(both[0]["lines"]),
            "every line of the dialogue",
        ),
        Claim("every turn is replied to", replied == heard, replied, f"{len(asked)} each"),
        Claim(
            "the reply is interrupted, in both arms",
            min(map(len, cuts)) >= meant,
            [len(each) for each in cuts],
            f"{meant} each",
        ),
        Claim(
            "an interrupted reply stops within one frame",
            max(late, default=0) <= 1 and max(after, default=-1) < 0,
            {"frames until heard": late, "last reply frame after that": after},
            "<= 1 frame until heard, and no token from then on",
        ),
        Claim(
            "nothing but the conversation is in the context",
            all(arm["age_tokens"] == arm["seen_tokens"] for arm in both),
            [(arm["age_tokens"], arm["seen_tokens"]) for arm in both],
            "tokens computed = tokens of the transcript and its marks",
        ),
        Claim("the bound evicts", bounded["evicted_tokens"] > 0, bounded["evicted_tokens"], "> 0 tokens"),
        Claim(
            "the bounded session holds no more than its plateau",
            bounded["most_blocks"] <= metrics["plateau_blocks"],
            bounded["most_blocks"],
            f"<= {metrics['plateau_blocks']} blocks",
        ),
        Claim("the unbounded one keeps everything", both[0]["evicted_tokens"] == 0, both[0]["evicted_tokens"], "0"),
    ]
