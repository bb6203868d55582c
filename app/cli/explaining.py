"""The command that explains: why a workload is where it is, what binds, what else there is, what would have to give.

Owns where explanations come from: a stored plan on a server, or a plan made now from a snapshot's file; and which
questions take solves of their own. Wording is the services', layout `explaining_tables`'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import offline
from app.cli.connection import Server, Token, connect
from app.cli.explaining_tables import candidate_table, curve_table, price_lines, split_question, way_lines
from app.cli.failures import CommandError, Exit
from app.cli.offline_explaining import explained_offline, name_in, unique, why_not_anew
from app.cli.output import Format, Output, rows, show
from app.cli.planning_tables import gap_table, plan_head, sentences
from app.cli.values import decode, read_value
from app.cli.wishing import DeadlineS, PlannerName, Seed, SnapshotFile, WorkUnits
from app.client import Client, Document
from solvers.errors import InputError

if TYPE_CHECKING:
    from app.services.whatif.whatif import Wish
    from solvers.domain.snapshot import Snapshot

Curve = Annotated[bool, typer.Option("--slo-curve", help="What its SLO costs at 0.5 to 2 times its length: solves.")]


def explain(
    workload: Annotated[str, typer.Argument(help="project/name, or the name alone where it is unique.")],
    plan_id: Annotated[str | None, typer.Option("--plan", help="A stored plan; default: the one that stands.")] = None,
    output: Output = Format.TABLE,
    *,
    slo_curve: Curve = False,
    snapshot: SnapshotFile = None,
    planner: PlannerName = None,
    deadline_s: DeadlineS = None,
    work_units: WorkUnits = None,
    seed: Seed = None,
    server: Server = None,
    token: Token = None,
) -> None:
    """Why a workload is where it is: the choice, its cost, what spoke against the others, what binds, what would help.

    With --snapshot, of a plan made now from a file.
    """
    if snapshot is not None and plan_id is not None:
        raise InputError("--plan needs a server; a plan from a file is made anew")
    if snapshot is None and not slo_curve and any(item is not None for item in (planner, deadline_s, work_units, seed)):
        raise InputError("--planner, --deadline-s, --work-units and --seed go with --snapshot or --slo-curve")
    from app.services.whatif.whatif import Wish

    wish = Wish(planner=planner, deadline_s=deadline_s, work_units=work_units, seed=seed)
    offline.known_planner(planner)
    if snapshot is not None:
        from solvers.domain.snapshot import Snapshot

        picture = read_value(Snapshot, snapshot)
        name = name_in(picture, workload)
        answer = explained_offline(picture, wish, offline.asking(), name)
        if slo_curve:
            answer["slo_curve"] = _curve(picture, wish, name)
    else:
        with connect(server, token) as client:
            name = full_name(client, workload)
            answer = client.explain(plan_id or standing_plan(client), workload=name)
            if slo_curve:
                answer["slo_curve"] = _curve(_live(client), wish, name)
    show(answer, output, [*plan_head(answer["summary"]), *_explanation(name, answer)])


def why_not_online(client: Client, plan_id: str, asked: str) -> Document:
    """Why a service is not on a GPU type in a stored plan; where it could be, or nobody looked, by plans made now."""
    service, gpu_type = split_question(asked)
    answer = client.explain(plan_id, workload=full_name(client, service), why_not=gpu_type)
    found: Document = answer["why_not"]
    if found["verdict"] in ("dearer", "no_room", "not_looked_at"):
        return why_not_anew(_live(client), offline.asking(), found)
    found["forced"] = None
    return found


def full_name(client: Client, workload: str) -> str:
    """`project/name` of a workload given by either form. Raises CommandError when it is unknown or not unique."""
    if "/" in workload:
        return workload
    return unique(
        workload,
        [
            f"{item['project']}/{item['name']}"
            for route in ("services", "jobs", "tasks")
            for item in client.items(route)
            if item["name"] == workload
        ],
    )


def standing_plan(client: Client) -> str:
    """The plan that stands; before the first, the one that waits to be applied, or the newest made for shadow."""
    standing = client.fleet()["plan"]
    if standing is not None:
        return str(standing["id"])
    for state in ("awaiting_approval", "shadow"):
        waiting = next(client.items("plans", state=state, limit=1), None)
        if waiting is not None:
            return str(waiting["id"])
    raise CommandError("no plan stands yet", Exit.NOT_FOUND)


def _live(client: Client) -> Snapshot:
    from solvers.domain.snapshot import Snapshot

    return decode(Snapshot, client.snapshot(), client.server)


def _curve(picture: Snapshot, wish: Wish, name: str) -> list[Any]:
    from app.services.explaining.solves import Solves
    from solvers.domain.codec import to_plain

    points = Solves.of(picture, wish, offline.asking()).slo_curve(name)
    return [to_plain(point) for point in points]


def _explanation(name: str, answer: Document) -> list[Any]:
    items, insight = answer["assignments"], answer["insight"]
    missing = gap_table(answer)
    waiting = [answer["waiting"]["sentence"]] if answer["waiting"] is not None else []
    if not items and not missing:
        return [f"{name} has no part in this plan", *waiting]
    lines = [
        (
            item["assignment"]["replica"],
            item["gpu_type"],
            item["assignment"]["device"],
            item["assignment"]["share_pct_sm"],
            item["assignment"]["memory_mib_limit"],
            item["assignment"]["batch"],
            item["assignment"]["latency_ms_planned"],
            item["assignment"]["capacity_rps"],
        )
        for item in items
    ]
    columns = ("replica", "GPU", "device", ">share %", ">memory MiB", ">batch", ">latency ms", ">capacity rps")
    parts: list[Any] = [rows(columns, lines)] if lines else []
    for title, field in (("why", "why"), ("why not", "alternatives")):
        told = sentences(items, field)
        if told:
            parts.extend([f"\n{title}", *(f"  {sentence}" for sentence in told)])
    table = candidate_table(insight["candidates"])
    parts += ["\nwhat it could have", *table] if table else []
    parts += [*price_lines(insight, name), *missing, *way_lines(insight), *waiting]
    if answer.get("owners"):
        parts += ["\nwho decides", *(f"  {sentence}" for sentence in answer["owners"])]
    if answer.get("slo_curve"):
        parts += ["\nwhat its SLO costs", curve_table(answer["slo_curve"])]
    return parts
