"""Commands that plan, explain and ask what if, by a server or from a snapshot's file; and the one that lists planners,
each of which publishes its own table of parameters. What answers look like is `tables`'.

Of a what-if, documents become one set of changes: those that `headroom apply` reads, and `kind: changes` for everything
else. Nothing is changed by it: a server only plans, and a file is only read.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from app import kinds
from app.cli.declare import Files
from app.cli.files import STANDARD
from app.cli.options import (
    DATA,
    Data,
    DeadlineS,
    PlannerName,
    Seed,
    Server,
    SnapshotFile,
    Token,
    WorkUnits,
    connect,
    plugged,
    project_and_name,
)
from app.cli.output import CommandError, Exit, Format, Output, listed, rows, show
from app.cli.tables import (
    binding_lines,
    candidate_table,
    choice_table,
    curve_table,
    gap_table,
    known_question,
    plan_head,
    price_lines,
    sentences,
    split_question,
    unique,
    way_lines,
    whatif_tables,
    why_not_lines,
)
from app.client.documents import PROFILES, Declared, read_documents
from headroom_client import Client, Document
from solvers.domain.policy import DEFAULT_POLICY
from solvers.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from solvers.planners.registry import PlannerListing


Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME.PARAMETER=VALUE", help="Tune a planner for this plan; may be given again."),
]


def planners(
    name: Annotated[
        str | None, typer.Argument(help="One planner, also of a file: my.py:MyPlanner. Default: all.")
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """List planners: what each decides and keeps; with a name, what of it can be tuned."""
    from app import own_planners
    from solvers.domain.codec import to_plain
    from solvers.planners import registry

    if name is None:
        table = registry.table()
        show(
            [to_plain(item) for item in table],
            output,
            rows(("planner", "decides", "keeps", "tunable", "what it does"), map(_row, table)),
        )
        return
    if not own_planners.is_own(name) and name not in registry.names():
        raise InputError(f"there is no planner {name}{did_you_mean(name, registry.names(), all_known=True)}")
    one = registry.listing(own_planners.create(name))
    show(to_plain(one), output, _told(one))


def _row(item: PlannerListing) -> tuple[object, ...]:
    names = ", ".join(each.name for each in item.parameters)
    return item.name, " ".join(knob.value for knob in item.knobs), item.remembers, names, item.about


def _told(item: PlannerListing) -> list[Any]:
    decides = ", ".join(knob.value for knob in item.knobs) or "nothing"
    head = [f"{item.name} {item.version}" + (f": {item.about}" if item.about else ""), f"decides {decides}"]
    if not item.parameters:
        return [*head, "nothing of it can be tuned"]
    lines = ((each.name, str(_plain(each.default)), each.allowed, each.meaning) for each in item.parameters)
    return [*head, rows(("parameter", "default", "may be", "what it means"), lines)]


def _plain(default: object) -> object:
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else default


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
    wish: dict[str, Any] = {"planner": planner, "deadline_s": deadline_s, "work_units": work_units, "seed": seed}
    if snapshot is not None:
        from app.cli import offline

        name, answer = offline.explained(snapshot, offline.wished(**wish), workload, slo_curve=slo_curve)
    else:
        with connect(server, token) as client:
            name = full_name(client, workload)
            answer = client.explain(plan_id or standing_plan(client), workload=name)
            if slo_curve:
                from app.cli import offline

                answer["slo_curve"] = offline.curve(offline.live(client), offline.wished(**wish), name)
    show(
        answer,
        output,
        [
            *plan_head({**answer["summary"], "gap_told": answer["gap_told"], "cheaper": answer["cheaper"]}),
            *_explanation(name, answer),
        ],
    )


def why_not_online(client: Client, plan_id: str, asked: tuple[str, str]) -> Document:
    """Why a service is not on a GPU type in a stored plan; where it could be, or nobody looked, by plans made now."""
    service, gpu_type = asked
    answer = client.explain(plan_id, workload=service, why_not=gpu_type)
    found: Document = answer["why_not"]
    if found["verdict"] in ("dearer", "not_dearer", "no_room", "not_looked_at"):
        from app.cli import offline

        return offline.why_not_anew(client, found)
    found["forced"] = None
    return found


def _known(client: Client, asked: str) -> tuple[str, str]:
    """The workload and the GPU type of a question, before anything is planned for it."""
    split_question(asked)
    return known_question(asked, _workloads(client), [item["name"] for item in client.items("gpu-types")])


def full_name(client: Client, workload: str) -> str:
    """`project/name` of a workload given by either form. Raises CommandError when it is unknown or not unique,
    InputError when it is of neither.
    """
    if workload and "/" not in workload:
        return unique(workload, _workloads(client))
    return "/".join(project_and_name("workload", workload, "NAME or PROJECT/NAME"))


def _workloads(client: Client) -> list[str]:
    routes = (kind.plural for kind in kinds.workloads())
    return [f"{item['project']}/{item['name']}" for route in routes for item in client.items(route)]


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


_REPLICAS = {
    "replica": "assignment.replica",
    "GPU": "gpu_type",
    "device": "assignment.device",
    ">share %": "assignment.share_pct_sm",
    ">memory MiB": "assignment.memory_mib_limit",
    ">batch": "assignment.batch",
    ">latency ms": "assignment.latency_ms_planned",
    ">capacity rps": "assignment.capacity_rps",
}


def _explanation(name: str, answer: Document) -> list[Any]:
    items, insight = answer["assignments"], answer["insight"]
    missing = gap_table(answer)
    waiting = [answer["waiting"]["sentence"]] if answer["waiting"] is not None else []
    if not items and not missing:
        return [f"{name} has no part in this plan", *(waiting or ["a newer one may: headroom plans, then --plan ID"])]
    parts: list[Any] = [listed(_REPLICAS, items)] if items else []
    if answer.get("demand"):
        parts.append(f"\n{answer['demand']}" if items else answer["demand"])
    if answer.get("problems"):
        parts += ["\nwhat stands in the way", *(f"  {sentence}" for sentence in answer["problems"])]
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


class LaneOption(StrEnum):
    """Whose services may move in a plan."""

    ACT = "act"
    APPROVE = "approve"
    SHADOW = "shadow"


def plan(
    lane: Annotated[
        LaneOption, typer.Option(help="act: services on auto; approve: also those on approve; shadow: all but off.")
    ] = LaneOption.ACT,
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
    memory: Annotated[
        str | None,
        typer.Option("--memory", help="What planners keep for the next plan: read if it is there, written after."),
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
        from app.cli import offline

        wish = offline.wished(lane.value, planner, deadline_s=deadline_s, work_units=work_units, seed=seed)
        showing = offline.Showing(out=out, output=output, quiet=quiet, why_not=why_not, memory=memory)
        offline.plan_file(snapshot, wish, showing, offline.Tuning(settings=offline.read_settings(settings or ())))
        return
    if any(option is not None for option in (planner, settings, deadline_s, work_units, seed, out, memory)):
        raise InputError("--planner, --set, --deadline-s, --work-units, --seed, --out and --memory go with --snapshot")
    with connect(server, token) as client:
        asked = _known(client, why_not) if why_not is not None else None
        made = client.plan({"lane": lane.value})
        explained = client.explain(made["id"])
        made |= {"insight": explained["insight"], "cheaper": explained["cheaper"]}
        if asked is not None:
            made["why_not"] = why_not_online(client, made["id"], asked)
        if apply:
            made["generation"] = client.apply_plan(made["id"])["generation"]
    told = why_not_lines(made["why_not"]) if "why_not" in made else []
    show(made, output, [*plan_head(made), *([] if quiet else _tables(explained)), *told])
    if made["unplaced_count"] and output.is_for_people:
        many = "1 workload" if made["unplaced_count"] == 1 else f"{made['unplaced_count']} workloads"
        typer.echo(f"headroom: {many} found no place, or too little of it", err=True)


def _tables(explained: Document) -> list[Any]:
    """What each workload got beside what it could have; where the planner told no candidates, what the plan says."""
    insight = explained["insight"]
    table = candidate_table(insight["candidates"]) or [choice_table(explained)]
    return [*table, *binding_lines(insight), *gap_table(explained), *way_lines(insight)]


CHANGES = "changes"


def read_changes(files: Iterable[str]) -> Document:
    """One set of changes out of all documents. Raises InputError naming the place."""
    changes: Document = {}
    for declared in read_documents(files, loose=CHANGES):
        for name, part in _parts(declared):
            _add(changes, name, part, declared.origin)
    return changes


def _parts(declared: Declared) -> Iterable[tuple[str, Any]]:
    if declared.kind == CHANGES:
        return declared.fields.items()
    if declared.kind == kinds.POLICY.name:
        unnamed = {name: item for name, item in declared.fields.items() if (name, item) != ("name", DEFAULT_POLICY)}
        return [("policy", unnamed)]
    if declared.kind == PROFILES:
        raise InputError(
            f"{declared.origin}: profiles stand in a document of kind changes, as `profiles` of a snapshot do"
        )
    return [(kinds.named(declared.kind).table, [declared.fields])]


def _add(changes: Document, name: str, part: Any, origin: str) -> None:
    """Lists and objects of several documents are joined; anything else may be said once."""
    before = changes.get(name)
    if name == "policy" and isinstance(before, dict) and isinstance(part, dict):
        meant = [each.get("name", DEFAULT_POLICY) for each in (before, part)]
        if meant[0] != meant[1]:
            raise InputError(f"{origin}: one question changes one policy, {meant[0]} or {meant[1]}")
    if before is None:
        changes[name] = part
    elif isinstance(before, list) and isinstance(part, list):
        changes[name] = [*before, *part]
    elif isinstance(before, dict) and isinstance(part, dict) and not before.keys() & part.keys():
        changes[name] = {**before, **part}
    else:
        raise InputError(f"{origin}: `{name}` is said twice")


ADVISE_DEFAULT = 3


class AdviseCommand(TyperCommand):
    """A command whose option `--advise` may stand without its number."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Say the number where it is left out."""
        found: list[str] = []
        for index, word in enumerate(args):
            following = args[index + 1] if index + 1 < len(args) else ""
            alone = word == "--advise" and not following.isdigit()
            found.append(f"--advise={ADVISE_DEFAULT}" if alone else word)
        return list(super().parse_args(ctx, found))


def simulate(
    files: Files = None,
    output: Output = Format.TABLE,
    *,
    snapshot: SnapshotFile = None,
    scenario: Annotated[
        str | None, typer.Option("--scenario", help="Run this scenario of the arena instead: a file or a name.")
    ] = None,
    data: Data = DATA,
    advise: Annotated[
        int,
        typer.Option("--advise", min=0, max=8, metavar="[N]", help="Which GPU types to add next: try the N best."),
    ] = 0,
    devices: Annotated[
        int | None, typer.Option("--devices", min=1, max=1000, help="With --advise: so many more of a type. Default: 1")
    ] = None,
    lane: Annotated[
        LaneOption | None, typer.Option(help="Whose services may move. Default: act.", show_default=False)
    ] = None,
    planner: PlannerName = None,
    deadline_s: DeadlineS = None,
    work_units: WorkUnits = None,
    seed: Seed = None,
    server: Server = None,
    token: Token = None,
) -> None:
    """What would change if: plan the fleet as it is and as the files say, and show the difference. Changes nothing.

    With --scenario: run one contender through a simulated scenario and print its numbers.
    """
    if scenario is not None:
        if files or snapshot is not None or advise or devices is not None or lane is not None:
            raise InputError("--scenario stands alone: it takes no changes, no snapshot, no --advise and no --lane")
        policy = {"deadline_s": deadline_s, "work_units": work_units}
        fields = tuple(f"{name}={item}" for name, item in policy.items() if item is not None)
        run_scenario = plugged("scenario")
        run_scenario(output, scenario=scenario, planner=planner, seed=seed or 0, data=data, policy=fields)
        return
    if devices is not None and not advise:
        raise InputError("--devices goes with --advise")
    question: Document = {"lane": (lane or LaneOption.ACT).value, "advise": advise, "devices": devices or 1}
    wish = {"planner": planner, "deadline_s": deadline_s, "work_units": work_units, "seed": seed}
    question |= {name: item for name, item in wish.items() if item is not None}
    if snapshot == STANDARD and STANDARD in (files or []):
        raise InputError("standard input can be the snapshot or the changes, not both")
    if files:
        question["changes"] = read_changes(files)
    if not files and not advise:
        raise InputError("name a file of changes with -f, or ask for advice with --advise")
    if snapshot is not None:
        from app.cli import offline

        found = offline.simulated(snapshot, question, files or [])
    else:
        with connect(server, token) as client:
            found = client.simulate(question)
    show(found, output, whatif_tables(found))
    if not _verified(found):
        raise CommandError("the verifier refutes a plan of this simulation", Exit.FOUND_WRONG)


def _verified(found: Document) -> bool:
    outcomes: list[Document] = []
    if found["simulation"] is not None:
        outcomes += [found["simulation"]["before"], found["simulation"]["after"]]
    if found["advised"] is not None:
        outcomes += [found["advised"]["before"], *found["advised"]["advice"]]
    return all(item["verified"] for item in outcomes)
