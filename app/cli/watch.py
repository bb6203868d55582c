"""Commands that look and account: status, top, nodes, and cost reports from the ledger.

Owns the layout of the fleet's summary on a terminal, and how a span like `24h` is cut out of time. It refuses to
compute: every number is the server's, every sum the database's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.options import Server, Token, connect, duration_s
from app.cli.output import Format, Output, console, rows, show, usd, word
from app.client import Client, Document, UnreachableError

if TYPE_CHECKING:
    from rich.console import Group

_BAR_WIDTH = 20


def status(output: Output = Format.TABLE, server: Server = None, token: Token = None) -> None:
    """The fleet at a glance: nodes, plan and cost, services with their SLO attainment, jobs."""
    with connect(server, token) as client:
        fleet = client.fleet()
    show(fleet, output, [*_head(fleet), _services(fleet), *_jobs(fleet)])


def nodes(output: Output = Format.TABLE, server: Server = None, token: Token = None) -> None:
    """Nodes with their devices, what these hold, and the generation applied."""
    with connect(server, token) as client:
        fleet = client.fleet()
    answer = [
        {**node, "devices": [device for device in fleet["devices"] if device["node"] == node["id"]]}
        for node in fleet["nodes"]
    ]
    show(answer, output, [_nodes(fleet), "", _devices(fleet)])


def top(
    interval_s: Annotated[float, typer.Option("--interval", help="Seconds between looks.", min=0.2)] = 2.0,
    looks: Annotated[int, typer.Option("-n", "--looks", help="Stop after so many; 0: until Ctrl-C.", min=0)] = 0,
    server: Server = None,
    token: Token = None,
) -> None:
    """Devices and services, live."""
    from rich.live import Live

    with connect(server, token) as client:
        screens = _screens(client, looks)
        first = next(screens)
        with Live(first, console=console(), auto_refresh=False, screen=False) as live:
            for look in screens:
                live.update(look, refresh=True)
                time.sleep(interval_s)


def _screens(client: Client, looks: int) -> Iterator[Group]:
    """What to show, look after look; an outage is shown and outlived."""
    from rich.console import Group

    shown: list[Any] = [*_screen(client.fleet())]
    yield Group(*shown)
    count = 0
    while looks == 0 or count < looks:
        count += 1
        try:
            shown = _screen(client.fleet())
            yield Group(*shown)
        except UnreachableError as error:
            yield Group(*shown, f"\n{error.message}")


def _screen(fleet: Document) -> list[Any]:
    return [*_head(fleet), _devices(fleet), "", _services(fleet), *_jobs(fleet)]


def _head(fleet: Document) -> list[Any]:
    up = sum(node["up"] for node in fleet["nodes"])
    held = sum(device["share_pct_sm_held"] for device in fleet["devices"])
    cost, plan = fleet["cost"], fleet["plan"]
    whole = f" of {usd(cost['fleet_usd_per_h'], per_hour=True)}" if cost["fleet_usd_per_h"] is not None else ""
    share = f", {held / len(fleet['devices']):.0f} % of the SMs held" if fleet["devices"] else ""
    lines = [
        f"cluster {fleet['cluster']}: {up} of {len(fleet['nodes'])} nodes up, {len(fleet['devices'])} devices{share}",
        f"cost {usd(cost['planned_usd_per_h'], per_hour=True)}{whole}, SLO kept: {_percent(fleet['slo_attainment'])}",
    ]
    if plan is None:
        return [*lines, "no plan yet", ""]
    since = datetime.fromtimestamp(fleet["promoted_at_s"], UTC).strftime("%H:%M:%S UTC")
    unplaced = f", {plan['unplaced_count']} without a place" if plan["unplaced_count"] else ""
    lines.append(f"generation {fleet['generation']} by {plan['planner']}, since {since}{unplaced}")
    return [*lines, *_policies(fleet), ""]


def _policies(fleet: Document) -> list[str]:
    """Who decides where; nothing where one policy decides on everything."""
    policies = fleet.get("policies", [])
    return [_policy(item) for item in policies] if len(policies) > 1 else []


def _policy(item: Document) -> str:
    held = f", held: {', '.join(item['held'])}" if item["held"] else ""
    size = f"{item['devices']} devices, {item['workloads']} workloads"
    return f"policy {item['policy']}: {size}, planner {item['planner']}, governor {item['governor']}{held}"


def _services(fleet: Document) -> Any:
    lines = [
        (
            item["id"],
            item["mode"],
            _slo(item["slo"]),
            f"{item['replicas_ready']}/{item['replicas_planned']}",
            item["rate_rps"] if item["rate_rps"] is not None else item["rate_rps_declared"],
            item["latency_ms_p99"],
            _percent(item["slo_attainment"]),
        )
        for item in fleet["services"]
    ]
    return rows(("service", "mode", "SLO", ">ready", ">rate rps", ">p99 ms end to end", ">SLO kept"), lines)


def _jobs(fleet: Document) -> list[Any]:
    lines = [
        (
            item["id"],
            item["kind"],
            item["model"],
            f"{item['replicas_ready']}/{item['replicas_planned']}",
            _percent(item["done"] / item["total"] if item["total"] else None),
            item["evictions"],
        )
        for item in fleet["jobs"]
    ]
    columns = ("job or task", "kind", "model", ">ready", ">done", ">evictions")
    return ["", rows(columns, lines)] if lines else []


def _nodes(fleet: Document) -> Any:
    lines = [
        (
            node["id"],
            node["rack"],
            node["failure_domain"],
            "up" if node["up"] else "silent" if node["age_s"] is not None else "never seen",
            node["age_s"],
            node["generation_applied"],
            node["devices"],
        )
        for node in fleet["nodes"]
    ]
    return rows(("node", "rack", "failure domain", "state", ">last report s", ">generation", ">devices"), lines)


def _devices(fleet: Document) -> Any:
    lines = [
        (
            device["node"],
            device["index"],
            device["gpu_type"],
            _bar(device["share_pct_sm_held"]),
            device["share_pct_sm_held"],
            device["utilisation_pct"],
            device["power_w"],
            device["memory_mib_used"],
            ", ".join(replica["replica"] for replica in device["replicas"]),
        )
        for device in fleet["devices"]
    ]
    columns = ("node", ">#", "GPU", "SM share", ">%", ">busy %", ">power W", ">memory MiB", "replicas")
    return rows(columns, lines)


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


_NOTHING_YET = "nothing accounted yet in this span; minutes are accounted about a minute after they end"

report = typer.Typer(help="Reports from the ledger.", no_args_is_help=True)


class By(StrEnum):
    """What a cost report groups by."""

    SERVICE = "service"
    PROJECT = "project"
    DEVICE = "device"
    NODE = "node"
    GPU_TYPE = "gpu_type"
    HOUR = "hour"
    DAY = "day"


@report.command("cost")
def cost(
    by: Annotated[By, typer.Option(help="What to group by.")] = By.SERVICE,
    last: Annotated[str, typer.Option(help="How far back: 90m, 24h, 30d.")] = "24h",
    accounting: Annotated[
        str, typer.Option(help="share (SM share x price), memory (used memory x price) or whole (the whole GPU).")
    ] = "share",
    project: Annotated[str | None, typer.Option(help="Only this project.")] = None,
    output: Output = Format.TABLE,
    *,
    server: Server = None,
    token: Token = None,
) -> None:
    """What was spent, and on whom; idle time is a line of its own."""
    end = datetime.now(UTC)
    start = end - timedelta(seconds=duration_s(last))
    query = {"by": by.value, "accounting": accounting, "project": project}
    with connect(server, token) as client:
        answer = client.costs(**query, **{"from": start.isoformat(), "to": end.isoformat()})
    lines = [
        (item["key"], usd(item["usd"]), usd(item["usd_energy"]), item["share_gpu_h"], item["energy_kwh"])
        for item in answer["items"]
    ]
    table = rows((by.value, ">cost", ">energy", ">GPU hours", ">kWh"), [*lines, ("total", usd(answer["usd"]))])
    if not answer["items"] and output is Format.TABLE:
        typer.echo(f"headroom: {_NOTHING_YET}", err=True)
    title = f"{answer['start']} to {answer['end']}, accounting: {answer['accounting']}"
    show(answer, output, [title, table])
