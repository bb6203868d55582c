"""Findings as values: how severe, and whether they block.

Owns the rule of severity. A finding is fatal unless everything it is about had to stay as it is (pinned): a plan is not
to blame for what it may not touch. Promises (latency, capacity, memory for the model) have one more excuse: a replica
that stands already may stay although it can no longer be shown to keep its promise, if the plan says so by listing its
workload among the unplaced.
"""

from __future__ import annotations

from collections.abc import Iterable

from solvers.domain.evidence import Fact, Finding, FindingCode, Severity
from solvers.domain.plan import Assignment
from solvers.verify.picture import Picture


def is_fatal(findings: Iterable[Finding]) -> bool:
    """Whether these findings block promotion."""
    return any(item.severity is Severity.FATAL for item in findings)


def fatal(code: FindingCode, subject: str, **facts: float | str) -> Finding:
    """A finding about the plan as a whole."""
    return _finding(code, subject, Severity.FATAL, facts)


def about(
    picture: Picture, code: FindingCode, subject: str, involved: Iterable[Assignment], **facts: float | str
) -> Finding:
    """A finding about these assignments: a warning when all of them are pinned."""
    excused = all(picture.pinned(item) for item in involved)
    return _finding(code, subject, Severity.WARNING if excused else Severity.FATAL, facts)


def promise(picture: Picture, code: FindingCode, item: Assignment, **facts: float | str) -> Finding:
    """A finding about one replica's promise: also a warning when the replica stands and the plan declares its workload
    short.
    """
    declared = picture.stands(item) and item.workload in picture.short_rps
    excused = picture.pinned(item) or declared
    return _finding(code, item.replica, Severity.WARNING if excused else Severity.FATAL, facts)


def warning(code: FindingCode, subject: str, **facts: float | str) -> Finding:
    """What its owner should know, and has chosen."""
    return _finding(code, subject, Severity.WARNING, facts)


def shortage(picture: Picture, code: FindingCode, workload: str, **facts: float | str) -> Finding:
    """A finding about what a workload lacks: a warning when the plan declares it, fatal when it is silent."""
    declared = workload in picture.short_rps
    return _finding(code, workload, Severity.WARNING if declared else Severity.FATAL, facts)


def _finding(code: FindingCode, subject: str, severity: Severity, facts: dict[str, float | str]) -> Finding:
    return Finding(
        code=code,
        severity=severity,
        subject=subject,
        facts=tuple(Fact(name=name, value=number) for name, number in sorted(facts.items())),
    )
