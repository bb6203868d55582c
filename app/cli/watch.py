"""Commands that look and account: status, top, nodes, and cost reports from the ledger.

Every number is the server's, every sum the database's.
"""

from __future__ import annotations

import calendar
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app import kinds
from app.cli.looking import is_outage
from app.cli.options import IntervalS, Server, Token, connect, duration_s
from app.cli.output import (
    Cell,
    CommandError,
    Exit,
    Format,
    Output,
    PrintedTable,
    console,
    listed,
    rows,
    show,
    usd,
    word,
)
from app.cli.planning import full_name
from app.cli.reviewing import clock, hold_lines, waiting_plans
from app.cli.tables import answered_line
from app.client.documents import told_near
from headroom_client import ApiError, Client, Document, UnreachableError
from solvers.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from rich.console import Group

_BAR_WIDTH = 20
SHORT_SHOWN = 8
NO_SERVICES = "no services yet: headroom apply -f FILE declares some (examples/vision.yaml)"
NO_NODES = "no nodes yet: headroom agent on a GPU host turns it into one"


def status(output: Output = Format.TABLE, server: Server = None, token: Token = None) -> None:
    """The fleet at a glance: nodes, plan and cost, services with their SLO attainment, jobs."""
    with connect(server, token) as client:
        fleet, waiting = client.fleet(), waiting_plans(client)
    show(fleet, output, [*_head(fleet, waiting), _services(fleet), *_jobs(fleet)])


nodes = typer.Typer(help="Nodes with their devices, what these hold, and the generation applied.")


@nodes.callback(invoke_without_command=True)
def list_nodes(
    context: typer.Context, output: Output = Format.TABLE, server: Server = None, token: Token = None
) -> None:
    """Nodes with their devices, what these hold, and the generation applied."""
    if context.invoked_subcommand is not None:
        return
    with connect(server, token) as client:
        fleet = client.fleet()
    answer = _with_devices(fleet["nodes"], fleet["devices"])
    devices = listed(_DEVICES, fleet["devices"], none="no devices yet")
    show(answer, output, [listed(_NODES, fleet["nodes"], none=NO_NODES), "", devices])


def _with_devices(nodes: Sequence[Document], devices: Sequence[Document]) -> list[Document]:
    """Nodes, each with its own; every device is looked at once, for fleets have many of both."""
    held: dict[str, list[Document]] = {node["id"]: [] for node in nodes}
    for device in devices:
        held.get(device["node"], []).append(device)
    return [{**node, "devices": held[node["id"]]} for node in nodes]


@nodes.command("identities")
def list_identities(output: Output = Format.TABLE, server: Server = None, token: Token = None) -> None:
    """Which key speaks for each node, who signed it, and until when; a node without any has its token alone."""
    with connect(server, token) as client:
        items = list(client.items("identities"))
        signer = client.call("GET", "/v1/authorities").body["sha256"]
    show(items, output, [listed(_IDENTITIES, items), *_changed_over(items, signer)])


def _changed_over(items: Sequence[Document], signer: str | None) -> list[str]:
    """Whether the authority that signs has signed every node's newest key: none needs the authority before then,
    though keys of its time are good for weeks.
    """
    now, newest = datetime.now(UTC), dict[str, Document]()
    for item in items:
        if item["authority"] and not item["revoked_at"] and datetime.fromisoformat(item["expires_at"]) > now:
            newest[item["node_id"]] = max(newest.get(item["node_id"], item), item, key=_issued_at)
    if signer is None or not newest:
        return []
    old = [node for node, item in newest.items() if item["authority"] != signer]
    if not old:
        return [f"{signer[:16]} signs, and signed every node's newest key"]
    out = f"`headroom ca retire` would shut {'it' if len(old) == 1 else 'them'} out"
    return [f"{signer[:16]} signs, but not the newest key of {', '.join(old)}: {out}"]


def _issued_at(item: Document) -> datetime:
    return datetime.fromisoformat(item["issued_at"])


@nodes.command("revoke")
def revoke_node(
    name: Annotated[str, typer.Argument(help="The node to turn out.")], server: Server = None, token: Token = None
) -> None:
    """End a node's tokens and keys now. It comes back by a join token alone that is made for its name afterwards."""
    with connect(server, token) as client:
        client.revoke_node(name)
    typer.echo(f"turned out {name}")


def top(
    interval_s: IntervalS = 2.0,
    looks: Annotated[int, typer.Option("-n", "--looks", help="Stop after so many; 0: until Ctrl-C.", min=0)] = 0,
    server: Server = None,
    token: Token = None,
) -> None:
    """Devices and services, live; a pipe gets look after look."""
    from rich.live import Live

    with connect(server, token) as client:
        screens, screen = _screens(client, looks), console()
        with Live(next(screens), console=screen, auto_refresh=False, transient=not screen.is_terminal) as live:
            told = partial(live.update, refresh=True) if screen.is_terminal else _piped
            for look in screens:
                told(look)
                time.sleep(interval_s)


def _piped(look: Group) -> None:
    show(None, Format.TABLE, look, goes_on=True)


def _screens(client: Client, looks: int) -> Iterator[Group]:
    """What to show, look after look; an outage is shown and outlived."""
    from rich.console import Group

    shown: list[Any] = [*_screen(client.fleet())]
    yield Group(*shown)
    for _ in range(looks) if looks else count():
        try:
            shown = _screen(client.fleet())
            yield Group(*shown)
        except (ApiError, UnreachableError) as error:
            if not is_outage(error):
                raise
            yield Group(*shown, f"\n{error.message}")


def _screen(fleet: Document) -> list[Any]:
    return [*_head(fleet), listed(_DEVICES, fleet["devices"]), "", _services(fleet), *_jobs(fleet)]


def _head(fleet: Document, waiting: Sequence[str] = ()) -> list[Any]:
    up = sum(node["up"] for node in fleet["nodes"])
    held = sum(device["share_pct_sm_held"] for device in fleet["devices"])
    cost, plan = fleet["cost"], fleet["plan"]
    whole = f" of {usd(cost['fleet_usd_per_h'], per_hour=True)}" if cost["fleet_usd_per_h"] is not None else ""
    share = f", {held / len(fleet['devices']):.0f} % of the SMs held" if fleet["devices"] else ""
    lines = [
        f"cluster {fleet['cluster']}: {up} of {len(fleet['nodes'])} nodes up, {len(fleet['devices'])} devices{share}",
        f"cost {usd(cost['planned_usd_per_h'], per_hour=True)}{whole}, SLO kept: {_percent(fleet['slo_attainment'])}",
    ]
    planning = [_planning(fleet["planning"])] if fleet["planning"] is not None else []
    planning += [f"WARNING: {fleet['unled']}"] if fleet.get("unled") else []
    planning += [*hold_lines(fleet.get("held")), *waiting]
    planning += [f"beyond its project's bounds: {told}" for told in fleet.get("beyond", ())]
    planning += fleet.get("problems", ())
    planning += [fleet["beliefs"]] if fleet.get("beliefs") else []
    if plan is None:
        return [*lines, "no plan yet", *planning, ""]
    since = clock(datetime.fromtimestamp(fleet["promoted_at_s"], UTC).isoformat())
    unplaced = f", {plan['unplaced_count']} without a place" if plan["unplaced_count"] else ""
    seen = plan.get("seen_at")
    when = "when planned" if seen is None else f"as of {clock(seen)}"
    near = plan["gap_told"] and f"{when} {plan['gap_told']}"
    told = filter(None, [f"generation {fleet['generation']} by {plan['planner']}", f"since {since}", near])
    lines.append(", ".join(told) + unplaced)
    lines += short_lines(fleet.get("short", ()))
    # Who decides where is no news where one policy decides on everything.
    policies = fleet.get("policies", [])
    return [*lines, *planning, *(map(_policy, policies) if len(policies) > 1 else ()), ""]


def short_lines(short: Sequence[Document]) -> list[str]:
    """Who has no place, too little of it, or none that keeps its SLO, and why."""
    more = len(short) - SHORT_SHOWN
    rest = [f"and {more} more: headroom explain WORKLOAD says why of each"] if more > 0 else []
    return [*(f"{item['id']}: {item['told']}" for item in short[:SHORT_SHOWN]), *rest]


def _planning(told: Document) -> str:
    """How the newest plan came about, and when."""
    return f"{answered_line(told)} ({clock(told['at'])})"


def _policy(item: Document) -> str:
    held = f", held: {', '.join(item['held'])}" if item["held"] else ""
    size = f"{item['devices']} devices, {item['workloads']} workloads"
    return f"policy {item['policy']}: {size}, planner {item['planner']}, governor {item['governor']}{held}"


def _services(fleet: Document) -> Any:
    return listed(_SERVICES, fleet["services"], none=NO_SERVICES)


def _jobs(fleet: Document) -> list[Any]:
    return ["", listed(_JOBS, fleet["jobs"])] if fleet["jobs"] else []


def _ready(item: Document) -> str:
    return f"{item['replicas_ready']}/{item['replicas_planned']}"


def _device_state(device: Document) -> str:
    if not device["up"]:
        return "silent"
    slow = (device.get("slow_factor") or 1.0) > 1.0
    return "ill" if device["healthy"] is False else "slow" if slow else "up"


def _bar(share_pct: float) -> str:
    filled = min(_BAR_WIDTH, round(share_pct * _BAR_WIDTH / 100))
    return "█" * filled + "·" * (_BAR_WIDTH - filled)


def _slo(slo: Document) -> str:
    if slo["kind"] == "latency":
        scope = "" if slo["scope"] == "end_to_end" else f" {slo['scope']}"
        return f"p{slo['percentile']:g} {word(slo['latency_ms'])} ms{scope}"
    if slo["kind"] == "tokens":
        return f"first {word(slo['first_token_ms'])} ms, next {word(slo['inter_token_ms'])} ms"
    return f"{slo['kind']}"


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.1f} %"


_SERVICES: Mapping[str, Cell] = {
    "service": "id",
    "mode": "mode",
    "SLO": lambda item: _slo(item["slo"]),
    ">ready": _ready,
    ">rate rps": lambda item: item["rate_rps"] if item["rate_rps"] is not None else item["rate_rps_declared"],
    ">p99 ms end to end": "latency_ms_p99",
    ">SLO kept": lambda item: _percent(item["slo_attainment"]),
}
_JOBS: Mapping[str, Cell] = {
    "job or task": "id",
    "kind": "kind",
    "model": "model",
    ">ready": _ready,
    ">done": lambda item: _percent(item["done"] / item["total"] if item["total"] else None),
    ">evictions": "evictions",
}
_IDENTITIES: Mapping[str, Cell] = {
    "node": "node_id",
    "key": lambda item: (item["key"] or "")[:16] or None,
    "authority": lambda item: (item["authority"] or "")[:16] or None,
    "expires": "expires_at",
    "revoked": "revoked_at",
}
_NODES: Mapping[str, Cell] = {
    "node": "id",
    "rack": "rack",
    "failure domain": "failure_domain",
    "state": lambda node: "up" if node["up"] else "silent" if node["age_s"] is not None else "never seen",
    "schedulable": lambda node: "yes" if node.get("schedulable", True) else "drained",
    ">last report s": "age_s",
    ">generation": "generation_applied",
    ">devices": "devices",
}
_DEVICES: Mapping[str, Cell] = {
    "node": "node",
    ">#": "index",
    "GPU": "gpu_type",
    "state": _device_state,
    "SM share": lambda device: _bar(device["share_pct_sm_held"]),
    ">%": "share_pct_sm_held",
    ">busy %": "utilisation_pct",
    ">power W": "power_w",
    ">memory MiB": "memory_mib_used",
    "replicas": lambda device: ", ".join(replica["replica"] for replica in device["replicas"]),
}
_NOTHING = "nothing was spent in this span"
_NOTHING_YET = "nothing accounted yet in this span; minutes are accounted about a minute after they end"

report = typer.Typer(help="Reports from the ledger.", no_args_is_help=True)


_GROUPS = ("service", "project", "device", "node", "gpu_type", "model", "hour", "day", "month")
_OF_ALL = ("start", "end", "accounting", "accounted_until")
"""What a cost report says of all its lines: in CSV, which has no other place for it, each of them does."""
_MONTHS = re.compile(r"(\d+)(months?|y|years?)")
From = Annotated[
    str | None,
    typer.Option("--from", help="Begin, such as 2026-11-01 or 2026-11-01T08:00, in UTC.", show_default=False),
]
To = Annotated[str | None, typer.Option("--to", help="End; default: now.", show_default=False)]
Last = Annotated[
    str | None, typer.Option("--last", help="How far back: 90m, 24h, 30d, 2weeks, 1month, 1y; default: 24h.")
]
OnlyProject = Annotated[str | None, typer.Option(help="Only this project.")]


def span_of(start: str | None, end: str | None, last: str | None) -> tuple[datetime, datetime]:
    """From when to when, in UTC, to the minute. Raises InputError."""
    if start is not None and last is not None:
        raise InputError("say either --from or --last")
    until = _moment(end) if end is not None else datetime.now(UTC).replace(second=0, microsecond=0)
    since = _moment(start) if start is not None else _back(until, last or "24h")
    if last is not None and since == until:
        raise InputError(f"--last {last} is no time at all")
    return since, until


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (OverflowError, ValueError):
        raise InputError(f"{text!r} is no moment; write 2026-11-01 or 2026-11-01T08:00, which is UTC") from None


def _back(until: datetime, last: str) -> datetime:
    """So long before; months and years as the calendar has them. Raises InputError."""
    months = _MONTHS.fullmatch(last.strip())
    weeks = re.fullmatch(r"(\d+)(?:w|weeks?)", last.strip())
    try:
        if months is not None:
            back = int(months[1]) * (12 if months[2].startswith("y") else 1)
            year, month = divmod(until.year * 12 + until.month - 1 - back, 12)
            day = min(until.day, calendar.monthrange(year, month + 1)[1])
            return until.replace(year=year, month=month + 1, day=day)
        return until - (timedelta(weeks=int(weeks[1])) if weeks is not None else timedelta(seconds=duration_s(last)))
    except (OverflowError, ValueError):
        raise InputError(f"{last!r} is too far back") from None
    except InputError as error:
        raise InputError(f"{error.message}; --last also takes 2weeks, 1month or 1y") from None


@report.command("cost")
def cost(
    by: Annotated[str, typer.Option(help=f"What to group by: {', '.join(_GROUPS)}, or label:KEY.")] = "service",
    last: Last = None,
    accounting: Annotated[
        str, typer.Option(help="share (SM share x price), memory (used memory x price) or whole (the whole GPU).")
    ] = "share",
    project: OnlyProject = None,
    output: Output = Format.TABLE,
    *,
    start: From = None,
    end: To = None,
    server: Server = None,
    token: Token = None,
) -> None:
    """What was spent, and on whom; idle time is a line of its own. As CSV, every number that there is, and in each line
    of what span it is and up to when that is accounted.
    """
    group, _, label = by.partition(":")
    if (group == "label") != bool(label) or group not in (*_GROUPS, "label"):
        raise InputError(f"{by!r} is no grouping{did_you_mean(by, (*_GROUPS, 'label:KEY'), all_known=True)}")
    since, until = span_of(start, end, last)
    query = {"by": group, "label": label or None, "accounting": accounting, "project": project}
    with connect(server, token) as client, told_near(client, kinds.PROJECT, [project or ""]):
        answer = client.costs(**query, **{"from": since.isoformat(), "to": until.isoformat()})
    accounted = answer.get("accounted_until")
    whole = accounted is not None and datetime.fromisoformat(accounted) >= datetime.fromisoformat(answer["end"])
    if not answer["items"] and (output.is_for_people or output is Format.CSV):
        typer.echo(f"headroom: {_NOTHING if whole else _NOTHING_YET}", err=True)
    if output is Format.CSV:
        of_all = {name: answer.get(name) for name in _OF_ALL}
        show(answer, output, _numbers([{**item, **of_all} for item in answer["items"]], ("key", "usd", *_OF_ALL)))
        return
    lines = [
        (item["key"], usd(item["usd"]), usd(item["usd_energy"]), item["share_gpu_h"], item["energy_kwh"])
        for item in answer["items"]
    ]
    table = rows(
        (by, ">cost", ">energy", ">GPU hours held", ">kWh"), [*lines, ("total", usd(answer["usd"]), "", "", "")]
    )
    title = f"{answer['start']} to {answer['end']}, accounting: {answer['accounting']}"
    show(answer, output, [title if whole or accounted is None else f"{title}, accounted until {accounted}", table])


def _numbers(items: Sequence[Mapping[str, object]], columns: tuple[str, ...]) -> PrintedTable:
    """All that was answered, as it was; these columns where nothing was."""
    return rows(tuple(items[0]) if items else columns, (tuple(item.values()) for item in items))


@report.command("focus")
def focus(
    last: Last = None,
    project: OnlyProject = None,
    output: Output = Format.CSV,
    *,
    start: From = None,
    end: To = None,
    server: Server = None,
    token: Token = None,
) -> None:
    """The ledger by hour, device and holder in the columns of FOCUS 1.2, as CSV; 400 days at most. `x_AccountedUntil`
    says up to when it is accounted.
    """
    if output is not Format.CSV:
        raise InputError("FOCUS is written as CSV only")
    since, until = span_of(start, end, last)
    with connect(server, token) as client, told_near(client, kinds.PROJECT, [project or ""]):
        found = client.focus(**{"from": since.isoformat(), "to": until.isoformat()}, project=project)
    if not found.partition("\n")[2]:
        typer.echo(f"headroom: {_NOTHING}, or {_NOTHING_YET}", err=True)
    sys.stdout.write(found)


def logs(
    workload: Annotated[str, typer.Argument(metavar="SERVICE|JOB|TASK", help="NAME, or PROJECT/NAME.")],
    replica: Annotated[
        str | None, typer.Option("--replica", help="Only this one, also when it is gone.", show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    tail: Annotated[
        int, typer.Option("--tail", "-n", min=1, max=1000, help="Last lines of each replica to begin with.")
    ] = 100,
    server: Server = None,
    token: Token = None,
) -> None:
    """What the processes of a workload's replicas wrote last, and write."""
    told = False
    problems: list[str] = []
    with connect(server, token) as client:
        project, name = full_name(client, workload).split("/")
        for item in client.logs(project, name, replica=replica, tail=tail, follow=follow):
            who = "" if replica else f"{item['replica']}: "
            if "line" in item:
                told = True
                print(f"{who}{item['line']}", flush=True)
            else:
                problems.append(f"{item['replica']}: {item['problem']}")
                typer.echo(f"headroom: {problems[-1]}", err=True)
    if problems and not told:
        raise CommandError("no node handed over any line", Exit.UNREACHABLE)


_BUDGETS: Mapping[str, Cell] = {
    "budget": "budget",
    "of": lambda item: item["project"] or item["label"] or "everything",
    ">$ a month": lambda item: usd(item["usd_per_month"]),
    ">spent": lambda item: usd(item["usd_spent"]),
    ">at the month's end": lambda item: usd(item["usd_forecast"]),
    ">$/h lately": lambda item: usd(item["usd_per_h"]),
    "": lambda item: (
        "broken" if item["usd_spent"] > item["usd_per_month"] else "will be broken" if item["at_risk"] else "kept"
    ),
}


def budget(output: Output = Format.TABLE, server: Server = None, token: Token = None) -> None:
    """Budgets of this month: what was spent, what that comes to at its end, and whether they are kept. As CSV, every
    number that there is.

    They are documents: `headroom apply -f`, `headroom get budgets`.
    """
    with connect(server, token) as client:
        items = client.budget_forecasts()
    show(items, output, _numbers(items, ("budget",)) if output is Format.CSV else listed(_BUDGETS, items))
