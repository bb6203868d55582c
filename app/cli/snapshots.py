"""Commands about snapshots: export.

Owns where a snapshot goes. What is in it is the server's.
"""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.connection import Server, Token, connect
from app.cli.failures import CommandError, Exit
from app.cli.values import STANDARD, check_target, decode, write_value

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
