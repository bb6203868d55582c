"""Commands that account: cost reports from the ledger.

Owns how a span like `24h` is cut out of time. It refuses to add anything up: sums are the database's.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated

import typer

from app.cli.connection import Server, Token, connect
from app.cli.duration import duration_s
from app.cli.output import Format, Output, rows, show, usd

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
