"""`headroom profile`: have a node measure a service on one of its devices, and follow how it goes.

Owns the command, its following and the table of runs. It refuses to measure: the node's agent does, and what it
measured is in the profiles as it comes, whether or not anybody follows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.failures import CommandError, Exit
from app.cli.modelling.profiles import profiles
from app.cli.options import Server, Token, connect, duration_s
from app.cli.output import Format, Output, rows, show
from app.client import Client, Document
from solvers.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

LOOK_S = 2.0
ENDED = ("done", "failed", "cancelled")
_COLUMNS = ("id", "state", "service", "beside", "node", "device", "measured", "doubtful", "detail")


def profile(
    service: Annotated[str | None, typer.Argument(help="PROJECT/NAME of the service to measure.")] = None,
    *,
    node: Annotated[str, typer.Option("--node", help="The node that measures.")],
    budget: Annotated[str, typer.Option("--budget", help="How long it may measure, such as 20m.")] = "20m",
    device: Annotated[str | None, typer.Option("--device", help="UUID; default: the first free one.")] = None,
    pairs: Annotated[str | None, typer.Option("--pairs", help="A,B: measure two services side by side.")] = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="Take a device with live traffic; its replicas are moved away first.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow the run to its end.")] = True,
    output: Output = Format.TABLE,
    server: Server = None,
    token: Token = None,
) -> None:
    """Run a service's process over the configurations that tell most, and learn from what comes out."""
    measured, beside = _subjects(service, pairs)
    wanted = {"service": measured, "beside": beside, "node": node, "device": device, "drain": drain}
    with connect(server, token) as client:
        run = client.create_profile_run({**wanted, "budget_s": float(duration_s(budget))})
        if wait:
            typer.echo(f"run {run['id']} on {run['uuid']}: ctrl-c stops watching, not the run", err=True)
            for look in _looks(client, run["id"]):
                typer.echo(_progress(look), err=True)
                run = look
    show(run, output, [_table([run])])
    if run["state"] == "failed":
        raise CommandError(f"the run failed: {run['detail']}", Exit.FAILED)


@profiles.command("runs")
def runs(output: Output = Format.TABLE, server: Server = None, token: Token = None) -> None:
    """List runs that measured or measure, the newest first."""
    with connect(server, token) as client:
        found = list(client.items("profile-runs"))
    show(found, output, [_table(found)])


@profiles.command("cancel")
def cancel(
    run: Annotated[int, typer.Argument(help="Id of the run.", min=1)],
    server: Server = None,
    token: Token = None,
) -> None:
    """End a run; what it measured stays."""
    with connect(server, token) as client:
        client.delete_profile_run(run)


def _subjects(service: str | None, pairs: str | None) -> tuple[str, str | None]:
    if (service is None) == (pairs is None):
        raise InputError("name one service, or two with --pairs A,B")
    if pairs is None:
        return service or "", None
    parts = [part.strip() for part in pairs.split(",")]
    if len(parts) != 2 or not all(parts):
        raise InputError(f"--pairs {pairs!r}: expected two services with a comma between them")
    return parts[0], parts[1]


def _looks(client: Client, number: int) -> Iterator[Document]:
    """The run whenever something about it is new, up to its end."""
    told = None
    while True:
        run = client.profile_run(number)
        now = (run["state"], run["measured"], run["doubtful"], run["detail"])
        if now != told:
            told = now
            yield run
        if run["state"] in ENDED:
            return
        time.sleep(LOOK_S)


def _progress(run: Document) -> str:
    counts = f"{run['measured']} measured" + (f", {run['doubtful']} doubtful" if run["doubtful"] else "")
    return f"{run['state']}: {counts}" + (f"; {run['detail']}" if run["detail"] else "")


def _table(found: list[Document]) -> Table:
    return rows(
        _COLUMNS,
        [
            (
                str(run["id"]),
                run["state"],
                run["service"],
                run["beside"] or "",
                run["node_id"],
                run["uuid"],
                str(run["measured"]),
                str(run["doubtful"]),
                run["detail"],
            )
            for run in found
        ],
    )
