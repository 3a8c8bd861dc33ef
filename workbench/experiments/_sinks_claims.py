"""What the sinks experiment asserts; what it only finds stands in its metrics."""

from __future__ import annotations

from workbench.bound import KVBound
from workbench.experiments import Claim
from workbench.experiments._sinks_metrics import FREE_RUNNING, TURN_BASED, Wave
from workbench.quality.line import Lines
from workbench.quality.policies import HEADER, NOTHING

TAKEN_BACK = 0.5  # of what a missing sink costs


def claims_of(metrics: dict, waves: dict[str, Wave], block: int) -> list[Claim]:
    """In tokens, nats and shares of questions; those on what was not run are left out."""
    claims = [resident_claim([wave.lines for wave in waves.values()], block), _scored(waves)]
    rows = {(row["window"], row["pinned"], row["regime"]): row for row in metrics["policies"]}
    windows = sorted({window for window, pinned, _ in rows if pinned == NOTHING})
    lost = {window: rows[window, NOTHING, FREE_RUNNING] for window in windows}
    if lost:
        claims.append(
            Claim(
                "without sinks a text is less likely than unbounded, at every window",
                all(row["excess_low"] > 0 for row in lost.values()),
                {window: row["excess"] for window, row in lost.items()},
                "more nats per token than unbounded, over all seeds",
            )
        )
    both = [window for window in windows if (window, HEADER, FREE_RUNNING) in rows]
    if both:
        left = {w: (rows[w, HEADER, FREE_RUNNING]["excess"], lost[w]["excess"]) for w in both}
        claims.append(
            Claim(
                "pinning the header takes back most of that",
                all(header <= (1 - TAKEN_BACK) * nothing and nothing > 0 for header, nothing in left.values()),
                {w: 1 - header / nothing if nothing > 0 else None for w, (header, nothing) in left.items()},
                f">= {TAKEN_BACK} of it, at every window",
            )
        )
    base, lenient = rows[None, None, TURN_BASED], metrics["leniency"][TURN_BASED]["by_chance"]
    claims.append(
        Claim(
            "a reply that counts is a reply to its question",
            lenient is not None and base["answered"] is not None and lenient < base["answered"],
            {"of its own": base["answered"], "of any other": lenient},
            "more often right for its own question than for others",
        )
    )
    beyond = [row["beyond"] for row in metrics["recall"] if row["window"] is not None and row["beyond"] is not None]
    if beyond:
        at_once = metrics["recall"][0]["within"]
        claims.append(
            Claim(
                "no bound recalls what it has evicted",
                max(beyond) == 0 < at_once,
                {"bounded, beyond its horizon": max(beyond), "unbounded, at once": at_once},
                "no secret, of those that can be recalled at once",
            )
        )
    return claims


def resident_claim(served: list[Lines], block: int) -> Claim:
    """Of every session: nothing is lost but what was evicted, and what is held is what its bound allows."""
    off, over = 0, 0
    for lines in served:
        rows = lines.tables.frame_rows
        ages = {row.session: row for row in rows}
        for name, held in lines.held.items():
            last = ages[name]
            off += held.resident + held.evicted != last.age_tokens
            if last.window is not None:
                most_in = max(row.tokens_in for row in rows if row.session == name)
                most_owed = max(row.tokens_owed for row in rows if row.session == name)
                bound = KVBound(last.window, last.sinks)
                over += held.resident > bound.resident_max(block, most_in, most_owed)
            else:
                over += held.evicted > 0
    sessions = sum(len(lines.held) for lines in served)
    return Claim(
        "every session holds what its policy says",
        off == over == 0,
        {"sessions": sessions, "with tokens unaccounted for": off, "over the bound": over},
        "none",
    )


def _scored(waves: dict[str, Wave]) -> Claim:
    """Of every session that listened: each token of the text has its score."""
    listened = waves["listen"]
    pieces = [piece for each in listened.left.values() for left in each for piece in left.scored]
    scored = sum(len(piece.scores) for piece in pieces)
    ages = {piece.age for piece in pieces}
    rows = listened.lines.tables.frame_rows
    text = sum(row.tokens_in for row in rows if row.age_tokens - row.tokens_in in ages)
    return Claim("every token listened to is scored", scored == text > 0, scored, f"{text} tokens")
