"""Commands about plans: make one, explain one.

Owns how a plan and its reasons are laid out for people. It refuses to plan and to word reasons: both are the
server's, but for plans from files, which are `offline`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from app.cli import offline
from app.cli.connection import Server, Token, connect
from app.cli.failures import CommandError, Exit
from app.cli.output import Format, Output, rows, show, usd, word
from app.cli.wishing import DeadlineS, PlannerName, Seed, SnapshotFile, WorkUnits
from app.client import Client, Document
from solvers.errors import InputError

_ALTERNATIVES_SHOWN = 6


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
    snapshot: SnapshotFile = None,
    planner: PlannerName = None,
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
        from app.services.whatif import Wish
        from solvers.cycle.record import Lane as CycleLane

        wish = Wish(
            lane=CycleLane(lane.value), planner=planner, deadline_s=deadline_s, work_units=work_units, seed=seed
        )
        offline.plan_file(snapshot, wish, out, output)
        return
    if any(option is not None for option in (planner, deadline_s, work_units, seed, out)):
        raise InputError("--planner, --deadline-s, --work-units, --seed and --out go with --snapshot")
    with connect(server, token) as client:
        made = client.plan({"lane": lane.value})
        explained = client.explain(made["id"])
        if apply:
            made["generation"] = client.apply_plan(made["id"])["generation"]
    show(made, output, [*_plan_head(made), _choices(explained), *_gaps(explained)])
    if made["unplaced_count"] and output is Format.TABLE:
        typer.echo(f"headroom: {made['unplaced_count']} workloads found no place, or too little of it", err=True)


def explain(
    workload: Annotated[str, typer.Argument(help="project/name, or the name alone where it is unique.")],
    plan_id: Annotated[str | None, typer.Option("--plan", help="A stored plan; default: the one that stands.")] = None,
    output: Output = Format.TABLE,
    server: Server = None,
    token: Token = None,
) -> None:
    """Why a workload is where it is: the choice, its cost, and what spoke against the others."""
    with connect(server, token) as client:
        name = full_name(client, workload)
        chosen = plan_id or _standing_plan(client)
        answer = client.explain(chosen, workload=name)
    show(answer, output, [*_plan_head(answer["summary"]), *_explanation(name, answer)])


def full_name(client: Client, workload: str) -> str:
    """`project/name` of a workload given by either form. Raises CommandError when it is unknown or not unique."""
    if "/" in workload:
        return workload
    found = sorted(
        f"{item['project']}/{item['name']}"
        for route in ("services", "jobs", "tasks")
        for item in client.items(route)
        if item["name"] == workload
    )
    if not found:
        raise CommandError(f"there is no workload named {workload}", Exit.NOT_FOUND)
    if len(found) > 1:
        raise CommandError(f"{workload} is ambiguous: {', '.join(found)}", Exit.USAGE)
    return found[0]


def _standing_plan(client: Client) -> str:
    """The plan that stands; before the first, the one that waits to be applied, or the newest made for shadow."""
    standing = client.fleet()["plan"]
    if standing is not None:
        return str(standing["id"])
    for state in ("awaiting_approval", "shadow"):
        waiting = next(client.items("plans", state=state, limit=1), None)
        if waiting is not None:
            return str(waiting["id"])
    raise CommandError("no plan stands yet", Exit.NOT_FOUND)


def _plan_head(summary: Document) -> list[Any]:
    cost, bound = summary["cost_usd_per_h"], summary["bound_usd_per_h"]
    gap = f", at most {100 * (cost - bound) / cost:.1f} % above the optimum" if bound is not None and cost > 0 else ""
    stands = f"generation {summary['generation']}" if summary["generation"] is not None else summary["state"]
    return [f"plan {summary['id']}", f"{stands}, by {summary['planner']}, {usd(cost, per_hour=True)}{gap}"]


_CHOICE_COLUMNS = ("workload", "GPU", ">replicas", ">share %", ">batch", ">latency ms", ">capacity rps", ">$/h", "")


def _choices(explained: Document) -> Any:
    """What each workload got, marked, and below it what else was looked at and why it was not taken."""
    lines: list[Sequence[object]] = []
    for workload, items in _by_workload(explained["assignments"]):
        others = _distinct_reasons(items, "alternatives")
        cost = next((facts["chosen_usd_per_h"] for _, facts in others if "chosen_usd_per_h" in facts), None)
        for index, (gpu_type, replicas) in enumerate(_by_gpu_type(items)):
            name = f"* {workload}" if index == 0 else "*"
            lines.append((name, *_chosen(gpu_type, replicas), cost if index == 0 else "", _verdict(replicas)))
        lines.extend(_not_chosen(reason, facts) for reason, facts in others[:_ALTERNATIVES_SHOWN])
    return rows(_CHOICE_COLUMNS, _blank(lines))


def _chosen(gpu_type: str, replicas: Sequence[Document]) -> tuple[object, ...]:
    assignments = [item["assignment"] for item in replicas]
    shares = sorted({item["share_pct_sm"] for item in assignments})
    batches = sorted({item["batch"] for item in assignments})
    latencies = [item["latency_ms_planned"] for item in assignments if item["latency_ms_planned"] is not None]
    serves = assignments[0]["kind"] == "service"
    return (
        gpu_type,
        len(replicas),
        "/".join(map(str, shares)),
        "/".join(map(str, batches)) if serves else "",
        max(latencies, default=""),
        sum(item["capacity_rps"] for item in assignments) if serves else "",
    )


def _verdict(replicas: Iterable[Document]) -> str:
    told = _distinct_reasons(replicas, "why")
    codes = [_spoken(reason["code"]) for reason, _ in told]
    sources = [f"not measured: {facts['profile_source']}" for _, facts in told if "profile_source" in facts]
    return ", ".join(dict.fromkeys((*codes, *sources)))


def _not_chosen(reason: Document, facts: Document) -> tuple[object, ...]:
    shown = (
        facts.get(name, "") for name in ("replicas", "share_pct_sm", "batch", "latency_ms", "capacity_rps", "usd_per_h")
    )
    return ("", reason["subject"], *shown, _spoken(reason["code"]))


def _distinct_reasons(items: Iterable[Document], field: str) -> list[tuple[Document, Document]]:
    """Reasons of several replicas, each once, in order, with their facts by name."""
    found: dict[str, tuple[Document, Document]] = {}
    for item in items:
        for told in item[field]:
            facts = {fact["name"]: fact["value"] for fact in told["reason"]["facts"]}
            found.setdefault(told["sentence"], (told["reason"], facts))
    return list(found.values())


def _spoken(code: str) -> str:
    return code.replace("_", " ")


def _blank(lines: Iterable[Sequence[object]]) -> Iterable[Sequence[object]]:
    """Empty cells stay empty in continuation lines, where a dash would only be noise."""
    from rich.text import Text

    for line in lines:
        yield [Text("") if cell == "" else Text(word(cell)) for cell in line]


def _explanation(name: str, answer: Document) -> list[Any]:
    items = answer["assignments"]
    gaps = _gaps(answer)
    waiting = [answer["waiting"]["sentence"]] if answer["waiting"] is not None else []
    if not items and not gaps:
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
        sentences = _sentences(items, field)
        if sentences:
            parts.extend([f"\n{title}", *(f"  {sentence}" for sentence in sentences)])
    return [*parts, *gaps, *waiting]


def _gaps(explained: Document) -> list[Any]:
    gaps = explained["unplaced"]
    if not gaps:
        return []
    lines = [
        (gap["workload"], gap["rate_rps_short"] or None, " ".join(told["sentence"] for told in gap["why"]))
        for gap in gaps
    ]
    return [rows(("without a place", ">rps short", "what blocks it"), lines)]


def _sentences(items: Iterable[Document], field: str) -> list[str]:
    """Sentences of several replicas, each once, in order."""
    return list(dict.fromkeys(told["sentence"] for item in items for told in item[field]))


def _by_workload(items: Iterable[Document]) -> list[tuple[str, list[Document]]]:
    return _grouped(items, lambda item: str(item["assignment"]["workload"]))


def _by_gpu_type(items: Iterable[Document]) -> list[tuple[str, list[Document]]]:
    return _grouped(items, lambda item: str(item["gpu_type"] or "?"))


def _grouped(items: Iterable[Document], key: Any) -> list[tuple[str, list[Document]]]:
    groups: dict[str, list[Document]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return sorted(groups.items())
