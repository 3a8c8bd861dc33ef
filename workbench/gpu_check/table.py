"""What the checks found, as values, as a table, and as an exit status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench._terminal import FAILED as CLAIM_FAILED
from workbench._terminal import HELD, speaks_for_itself, table

PASSED, FAILED, ABSENT = "passed", "failed", "not available"


class CheckFailed(RuntimeError):
    """What a check looks for is not so; one line that says what was found instead."""


class NotAvailable(RuntimeError):
    """This machine lacks what a check looks at; one line that says what."""


@dataclass(frozen=True)
class Row:
    """One thing looked at: ``outcome`` is PASSED, FAILED or ABSENT, ``detail`` one line, ``figures`` measured."""

    part: str
    outcome: str
    detail: str
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """What one check left: its rows, the seconds it took, and those it was meant to take."""

    check: str
    rows: tuple[Row, ...]
    seconds: float
    budget_s: float


def judged(part: str, holds: bool, detail: str, **figures: Any) -> Row:
    """A row of something that was measured."""
    return Row(part, PASSED if holds else FAILED, detail, figures)


def row_of(error: BaseException) -> Row:
    """The row of a check that came to no end of its own."""
    said = " ".join(str(error).split())
    if isinstance(error, NotAvailable):
        return Row("", ABSENT, said)
    return Row("", FAILED, said if speaks_for_itself(error) and said else f"{type(error).__name__}: {said}")


def render(findings: Sequence[Finding], caption: dict[str, Any]) -> str:
    """The caption and a line per row; a check's time stands on its first line."""
    lines = []
    for finding in findings:
        for k, row in enumerate(finding.rows):
            took = f"{finding.seconds:.0f} of {finding.budget_s:.0f}" if k == 0 else ""
            lines.append((f"{finding.check} {row.part}".strip(), row.outcome, took, row.detail))
    words = ", ".join(f"{name} {value}" for name, value in caption.items())
    return f"{words}\n\n{table(lines, ('check', 'outcome', 'seconds', 'what was found'))}"


def to_dict(findings: Sequence[Finding], caption: dict[str, Any]) -> dict[str, Any]:
    """All of it, for a JSON file."""
    from dataclasses import asdict

    return {**caption, "checks": [asdict(finding) for finding in findings]}


def status(findings: Sequence[Finding]) -> int:
    """Exit status: 0 when something was measured and nothing failed, else 1."""
    outcomes = [row.outcome for finding in findings for row in finding.rows]
    return HELD if PASSED in outcomes and FAILED not in outcomes else CLAIM_FAILED
