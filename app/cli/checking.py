"""Commands that check a plan by themselves: verify it against its snapshot, replay the cycle that made it.

Owns where plan and snapshot come from: files, or the server's store. It refuses to trust the server's judgement: both
run the core here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.connection import Server, Token, connect
from app.cli.failures import CommandError, Exit
from app.cli.output import Format, Output, rows, show, word
from app.client import Client
from solvers.errors import InputError

if TYPE_CHECKING:
    from solvers.domain.evidence import Finding
    from solvers.domain.ids import WorkloadId
    from solvers.domain.plan import Plan
    from solvers.domain.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """What a verification is about."""

    plan: Plan
    snapshot: Snapshot
    movable: tuple[WorkloadId, ...]


def verify(
    plan_file: Annotated[Path | None, typer.Argument(help="File with a plan in JSON.", show_default=False)] = None,
    snapshot_file: Annotated[Path | None, typer.Argument(help="File with its snapshot.", show_default=False)] = None,
    plan_id: Annotated[str | None, typer.Option("--plan", help="A stored plan instead of files.")] = None,
    movable: Annotated[
        list[str] | None,
        typer.Option(
            "--movable", help="With files: a workload that might move; repeatable, default: all but those off."
        ),
    ] = None,
    output: Output = Format.TABLE,
    *,
    server: Server = None,
    token: Token = None,
) -> None:
    """Check a plan against its snapshot. Exit status 7 when something fatal is found."""
    if (plan_id is None) == (plan_file is None or snapshot_file is None):
        raise InputError("name a plan file and a snapshot file, or a stored plan with --plan")
    if plan_id is not None:
        with connect(server, token) as client:
            subject = _stored_plan(client, plan_id)
    else:
        subject = _subject(_json(plan_file), _json(snapshot_file), movable)
    from solvers.domain.codec import to_plain
    from solvers.verify.checks import verify as find

    findings = find(subject.snapshot, subject.plan, subject.movable)
    show([to_plain(finding) for finding in findings], output, _findings(findings))
    fatal = sum(finding.severity.value == "fatal" for finding in findings)
    if fatal:
        raise CommandError(f"{fatal} fatal findings", Exit.FOUND_WRONG)


def replay(
    cycle_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[CYCLE]", help="Id of a stored cycle; default: the newest finished.", show_default=False
        ),
    ] = None,
    output: Output = Format.TABLE,
    server: Server = None,
    token: Token = None,
) -> None:
    """Plan again from a cycle's record and compare the plan's digest. Exit status 7 when it differs."""
    from solvers.cycle.record import CycleRecord
    from solvers.cycle.replay import replay as plan_again
    from solvers.domain.codec import from_plain

    with connect(server, token) as client:
        chosen = cycle_id or _newest_finished(client)
        stored = client.cycle(chosen)
    if stored["record"] is None:
        raise CommandError(f"cycle {chosen} ended before it had a record", Exit.NOT_FOUND)
    record = from_plain(CycleRecord, stored["record"])
    again = plan_again(record)
    answer = {"cycle": chosen, "recorded": record.plan_digest, "replayed": again, "same": again == record.plan_digest}
    show(answer, output, rows(tuple(answer), [tuple(answer.values())]))
    if not answer["same"]:
        raise CommandError("the replay made another plan", Exit.FOUND_WRONG)


def _newest_finished(client: Client) -> str:
    newest = next(client.items("cycles", state="closed", limit=1), None)
    if newest is None:
        raise CommandError("no cycle has finished yet", Exit.NOT_FOUND)
    return str(newest["id"])


def _stored_plan(client: Client, plan_id: str) -> _Subject:
    stored = client.stored_plan(plan_id)
    if stored["cycle_id"] is None:
        raise CommandError(f"plan {plan_id} was stored without a cycle, so its snapshot is not known", Exit.NOT_FOUND)
    record = client.cycle(stored["cycle_id"])["record"]
    if record is None:
        raise CommandError(f"the cycle of plan {plan_id} has no record", Exit.NOT_FOUND)
    return _subject(stored, record["snapshot"], record["movable"])


def _subject(plan_plain: Any, snapshot_plain: Any, movable: Sequence[str] | None) -> _Subject:
    from solvers.domain.codec import from_plain
    from solvers.domain.ids import WorkloadId
    from solvers.domain.plan import Plan
    from solvers.domain.snapshot import Snapshot
    from solvers.domain.workload import ServiceMode

    # What the API answers may be given as it is: the plan then stands inside it.
    inner = plan_plain.get("plan") if isinstance(plan_plain, dict) else None
    plan_read = from_plain(Plan, inner if isinstance(inner, dict) else plan_plain)
    snapshot = from_plain(Snapshot, snapshot_plain)
    modes: dict[str, ServiceMode] = {service.id: service.mode for service in snapshot.services}
    modes |= {job.id: job.mode for job in snapshot.jobs} | {task.id: task.mode for task in snapshot.tasks}
    names = movable or [name for name, mode in modes.items() if mode is not ServiceMode.OFF]
    return _Subject(plan=plan_read, snapshot=snapshot, movable=tuple(WorkloadId(name) for name in names))


def _json(file: Path | None) -> Any:
    if file is None or not file.is_file():
        raise InputError(f"{file}: no such file")
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file}: {error}") from None


def _findings(findings: Sequence[Finding]) -> Any:
    if not findings:
        return "nothing is wrong with this plan"
    lines = [
        (
            finding.severity.value,
            finding.code.value,
            finding.subject,
            ", ".join(f"{fact.name} {word(fact.value)}" for fact in finding.facts),
        )
        for finding in findings
    ]
    return rows(("severity", "finding", "about", "facts"), lines)
