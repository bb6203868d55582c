"""Commands about snapshots and plans by themselves: export a snapshot, verify a plan against its own, replay the cycle
that made it. The server's judgement is not trusted: both checks run the core here.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.files import STANDARD, check_target, decode, read_plain, write_value
from app.cli.options import Server, Token, connect
from app.cli.output import CommandError, Exit, Format, Output, rows, show, standard_output_to_error
from app.cli.planning import LaneOption
from app.cli.tables import finding_lines, finding_table
from headroom_client import Client
from solvers.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from solvers.cycle.record import CycleRecord
    from solvers.domain.ids import PolicyName, WorkloadId
    from solvers.domain.plan import Plan, Proposal
    from solvers.domain.snapshot import Snapshot
    from solvers.planners.base import PlanRequest

_MODES = {
    LaneOption.ACT: ("auto",),
    LaneOption.APPROVE: ("auto", "approve"),
    LaneOption.SHADOW: ("auto", "approve", "shadow"),
}
"""As cycles have it; said again because a cycle's modules need more than the base install."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """What a verification is about."""

    plan: Plan
    snapshot: Snapshot
    movable: tuple[WorkloadId, ...]


def verify(
    plan_file: Annotated[
        str | None, typer.Argument(help="File with a plan in JSON.", metavar="[PLAN]", show_default=False)
    ] = None,
    snapshot_file: Annotated[
        str | None, typer.Argument(help="File with its snapshot.", metavar="[SNAPSHOT]", show_default=False)
    ] = None,
    plan_name: Annotated[
        str | None, typer.Option("--plan", help="A file, with --snapshot; else the id of a stored plan.")
    ] = None,
    snapshot: Annotated[str | None, typer.Option("--snapshot", help="File with the plan's snapshot.")] = None,
    *,
    lane: Annotated[
        LaneOption | None,
        typer.Option("--lane", help="With files: whose services the plan may move. Default: act.", show_default=False),
    ] = None,
    movable: Annotated[
        list[str] | None,
        typer.Option("--movable", help="With files: a workload that might move, instead of a lane; repeatable."),
    ] = None,
    output: Output = Format.TABLE,
    server: Server = None,
    token: Token = None,
) -> None:
    """Check a plan against its snapshot; prints one line for each finding. Exit status 7 when something fatal is found.

    With --snapshot S.json --plan P.json no server is needed.
    """
    chosen = _chosen_files(plan_file, snapshot_file, plan_name, snapshot)
    if chosen is not None:
        subject = _subject_of_files(chosen, lane, movable)
    elif plan_name is not None and movable is None and lane is None:
        with connect(server, token) as client:
            subject = _stored_plan(client, plan_name)
    else:
        raise InputError("name a plan file and a snapshot file, or a stored plan with --plan")
    from solvers.domain.codec import to_plain
    from solvers.domain.ownership import moved_by
    from solvers.verify.checks import verify as find

    findings = find(subject.snapshot, subject.plan, moved_by(subject.plan, subject.snapshot, subject.movable))
    lines = [*_mismatch(subject), *finding_lines(findings)] or ["nothing is wrong with this plan"]
    found = [to_plain(finding) for finding in findings]
    show(found, output, lines if output.is_for_people else finding_table(findings))
    fatal = sum(finding.severity.value == "fatal" for finding in findings)
    if fatal:
        raise CommandError(f"{fatal} fatal finding{'s' if fatal > 1 else ''}", Exit.FOUND_WRONG)


def _mismatch(subject: _Subject) -> list[str]:
    """What is said first of a plan for another snapshot."""
    from solvers.domain.codec import picture_digest

    made_for, named = subject.plan.snapshot, picture_digest(subject.snapshot)
    words = f"this plan was made for snapshot {made_for}, not for this one, {named}; so judged by this one:"
    return [] if made_for == named else [words]


def _chosen_files(*named: str | None) -> tuple[str, str] | None:
    """Plan and snapshot, by place or by option; None when neither way names two files."""
    plan_file, snapshot_file, plan_name, snapshot = named
    if plan_file is not None and snapshot_file is not None and plan_name is None and snapshot is None:
        chosen = plan_file, snapshot_file
    elif plan_file is None and snapshot_file is None and plan_name is not None and snapshot is not None:
        chosen = plan_name, snapshot
    elif plan_file is not None or snapshot_file is not None or snapshot is not None:
        raise InputError("name both files: --snapshot S.json --plan P.json")
    else:
        return None
    if chosen == (STANDARD, STANDARD):
        raise InputError("standard input can be the plan or the snapshot, not both")
    return chosen


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
    """Plan again from a cycle's record and compare the plan's digest. Exit status 7 when it differs.

    Exit status 9 when that proves nothing: the clock or a crash had a part in a plan, or what a planner remembered
    then, or its version, is not to be had any more.
    """
    from solvers.cycle.cycle import replay as plan_again
    from solvers.cycle.record import CycleRecord
    from solvers.domain.codec import from_plain
    from solvers.domain.plan import PlannerEnding
    from solvers.planners import registry

    if cycle_id == "":
        raise InputError("the id of a cycle is empty: without one, it is the newest")
    with connect(server, token) as client:
        chosen = cycle_id or _newest_finished(client)
        stored = client.cycle(chosen)
        if stored["record"] is None:
            raise CommandError(f"cycle {chosen} ended before it had a record", Exit.NOT_FOUND)
        record = from_plain(CycleRecord, stored["record"])
        states = _states(client, record)
    late = [f"the clock ended {item.planner} then" for item in record.makers if item.ending is PlannerEnding.DEADLINE]

    def propose(planner: str, request: PlanRequest, state: bytes | None) -> Proposal:
        found = registry.propose(planner, request, state)
        if found.ending is PlannerEnding.DEADLINE:
            late.append(f"the clock ended {planner} this time")
        elif request.budget.work_units is None:
            late.append(f"the policy does not count the work of {planner} (work_units)")
        return found

    with standard_output_to_error():
        again = plan_again(record, propose, states)
    same = again == record.plan_digest or (None if late else False)
    answer = {"cycle": chosen, "recorded": record.plan_digest, "replayed": again, "same": same}
    show(answer, output, rows(tuple(answer), [tuple(answer.values())]))
    if same is None:
        raise CommandError(f"the replay made another plan, which proves nothing: {late[0]}", Exit.UNDECIDED)
    if not same:
        raise CommandError("the replay made another plan", Exit.FOUND_WRONG)


def _states(client: Client, record: CycleRecord) -> dict[PolicyName, bytes]:
    """What the plan's makers were handed then. Raises CommandError where they cannot make it again."""
    from solvers.domain.ids import PolicyName
    from solvers.domain.plan import PlannerEnding
    from solvers.planners import registry

    makers, kept, states = record.makers, dict[str, str | None](), dict[PolicyName, bytes]()
    if any(maker.state_digest for maker in makers):
        kept = {item["digest"]: item["state"] for item in client.cycle_states(record.id)}
    for maker in makers:
        planner, here = maker.planner, registry.create(maker.planner).spec.version
        state = kept.get(maker.state_digest or "")
        if state is not None:
            states[maker.policy] = b64decode(state)
        if maker.ending in (PlannerEnding.KILLED, PlannerEnding.FAILED):
            why = f"{planner} did not end by itself ({maker.ending.value}); its best plan until then was taken"
        elif here != maker.version:
            why = f"it is a plan of {planner} {maker.version}, and here is {planner} {here}"
        elif maker.state_digest and state is None:
            why = f"what {planner} remembered then is not kept any more"
        else:
            continue
        raise CommandError(f"cycle {record.id} cannot be repeated: {why}", Exit.UNDECIDED)
    return states


def _newest_finished(client: Client) -> str:
    newest = next(client.items("cycles", state="closed", limit=1), None)
    if newest is None:
        raise CommandError("no cycle has finished yet", Exit.NOT_FOUND)
    return str(newest["id"])


def _stored_plan(client: Client, plan_id: str) -> _Subject:
    from solvers.domain.ids import WorkloadId

    stored = client.stored_plan(plan_id)
    if stored["cycle_id"] is None:
        raise CommandError(f"plan {plan_id} was stored without a cycle, so its snapshot is not known", Exit.NOT_FOUND)
    record = client.cycle(stored["cycle_id"])["record"]
    if record is None:
        raise CommandError(f"the cycle of plan {plan_id} has no record", Exit.NOT_FOUND)
    plan, snapshot = _values(stored, record["snapshot"], (plan_id, f"the snapshot of {plan_id}"))
    return _Subject(plan=plan, snapshot=snapshot, movable=tuple(WorkloadId(name) for name in record["movable"]))


def _subject_of_files(files: tuple[str, str], lane: LaneOption | None, movable: Sequence[str] | None) -> _Subject:
    from solvers.domain.ids import WorkloadId

    if lane is not None and movable is not None:
        raise InputError("name a lane or single workloads, not both")
    plan, snapshot = _values(read_plain(files[0]), read_plain(files[1]), files)
    names: Iterable[str]
    if movable is not None:
        names = movable
        known = {item.id for works in (snapshot.services, snapshot.jobs, snapshot.tasks) for item in works}
        for name in names:
            if name not in known:
                raise InputError(f"--movable: there is no workload {name}{did_you_mean(name, known)}")
    else:
        modes: dict[str, str] = {item.id: item.mode.value for item in snapshot.services}
        modes |= {item.id: item.mode.value for item in snapshot.jobs}
        modes |= {item.id: item.mode.value for item in snapshot.tasks}
        names = sorted(name for name, mode in modes.items() if mode in _MODES[lane or LaneOption.ACT])
    return _Subject(plan=plan, snapshot=snapshot, movable=tuple(WorkloadId(name) for name in names))


def _values(plan_plain: Any, snapshot_plain: Any, names: tuple[str, str]) -> tuple[Plan, Snapshot]:
    from solvers.domain.plan import Plan
    from solvers.domain.snapshot import Snapshot

    # What the API answers may be given as it is: the plan then stands inside it.
    inner = plan_plain.get("plan") if isinstance(plan_plain, dict) else None
    plan = decode(Plan, inner if isinstance(inner, dict) else plan_plain, names[0])
    return plan, decode(Snapshot, snapshot_plain, names[1])


snapshot = typer.Typer(no_args_is_help=True, help="The picture of the fleet that plans are made from.")


@snapshot.command()
def export(
    out: Annotated[str, typer.Option("--out", help="Where it goes (.gz: compressed; -: standard output).")] = STANDARD,
    plan: Annotated[
        str | None, typer.Option("--plan", help="The snapshot that this stored plan was made from, not that of now.")
    ] = None,
    *,
    server: Server = None,
    token: Token = None,
) -> None:
    """Write the picture of the fleet as it is now, for `plan --snapshot`, `simulate --snapshot` and `verify`."""
    from solvers.domain.codec import digest
    from solvers.domain.snapshot import Snapshot

    check_target(out)
    with connect(server, token) as client:
        if plan is None:
            plain = client.snapshot()
        else:
            cycle = client.stored_plan(plan)["cycle_id"]
            record = client.cycle(cycle)["record"] if cycle is not None else None
            if record is None:
                raise CommandError(f"the snapshot of plan {plan} was not kept", Exit.NOT_FOUND)
            plain = record["snapshot"]
    # Decoded and written anew: the file is canonical, whatever stood between, and read as it will be read again.
    found = decode(Snapshot, plain, client.server)
    write_value(out, found)
    if out != STANDARD:
        typer.echo(f"{out}: {digest(found)}")
