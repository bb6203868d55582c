"""The command that plans: on a server, or from a snapshot's file.

Owns which options go together and what of a plan is shown. It refuses to plan and to word reasons: both are the
server's, but for plans from files, which are `offline`'s.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from app.cli import offline
from app.cli.connection import Server, Token, connect
from app.cli.explaining import why_not_online
from app.cli.explaining_tables import binding_lines, candidate_table, way_lines, why_not_lines
from app.cli.output import Format, Output, show
from app.cli.planners import Settings, read_settings
from app.cli.planning_tables import choice_table, gap_table, plan_head
from app.cli.wishing import DeadlineS, PlannerName, Seed, SnapshotFile, WorkUnits
from app.client import Document
from solvers.errors import InputError


class Lane(StrEnum):
    """Whose services may move in a plan."""

    ACT = "act"
    APPROVE = "approve"
    SHADOW = "shadow"


def plan(
    lane: Annotated[
        Lane, typer.Option(help="act: services on auto; approve: also those on approve; shadow: all but off.")
    ] = Lane.ACT,
    apply: Annotated[bool, typer.Option("--apply", help="Make the plan the target.")] = False,
    output: Output = Format.TABLE,
    *,
    why_not: Annotated[
        str | None,
        typer.Option("--why-not", metavar="SERVICE:GPU_TYPE", help="Why is it not there? Plans it there, too."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only what the plan comes to, without tables.")] = False,
    snapshot: SnapshotFile = None,
    planner: PlannerName = None,
    settings: Settings = None,
    deadline_s: DeadlineS = None,
    work_units: WorkUnits = None,
    seed: Seed = None,
    out: Annotated[
        str | None,
        typer.Option("--out", help="Where the plan goes (.gz: compressed; -: standard output)."),
    ] = None,
    server: Server = None,
    token: Token = None,
) -> None:
    """Plan now and show the answer. Nothing changes unless --apply is given.

    With --snapshot, plan from a file. The exit status is 0 only if the plan verifies; demand that cannot be served is
    said with numbers and is no error.
    """
    if snapshot is not None:
        if apply:
            raise InputError("--apply needs a server; a plan from a file only goes where --out says")
        from app.services.whatif.whatif import Wish
        from solvers.cycle.record import Lane as CycleLane

        wish = Wish(
            lane=CycleLane(lane.value), planner=planner, deadline_s=deadline_s, work_units=work_units, seed=seed
        )
        showing = offline.Showing(out=out, output=output, quiet=quiet, why_not=why_not)
        offline.plan_file(snapshot, wish, showing, offline.Tuning(settings=read_settings(settings or ())))
        return
    if any(option is not None for option in (planner, settings, deadline_s, work_units, seed, out)):
        raise InputError("--planner, --set, --deadline-s, --work-units, --seed and --out go with --snapshot")
    with connect(server, token) as client:
        made = client.plan({"lane": lane.value})
        explained = client.explain(made["id"])
        made["insight"] = explained["insight"]
        if why_not is not None:
            made["why_not"] = why_not_online(client, made["id"], why_not)
        if apply:
            made["generation"] = client.apply_plan(made["id"])["generation"]
    show(made, output, [*plan_head(made), *([] if quiet else _tables(explained)), *_why_not(made)])
    if made["unplaced_count"] and output is Format.TABLE:
        typer.echo(f"headroom: {made['unplaced_count']} workloads found no place, or too little of it", err=True)


def _tables(explained: Document) -> list[Any]:
    """What each workload got beside what it could have; where the planner told no candidates, what the plan says."""
    insight = explained["insight"]
    table = candidate_table(insight["candidates"]) or [choice_table(explained)]
    return [*table, *binding_lines(insight), *gap_table(explained), *way_lines(insight)]


def _why_not(made: Document) -> list[str]:
    return why_not_lines(made["why_not"]) if "why_not" in made else []
