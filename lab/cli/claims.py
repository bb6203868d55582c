"""The command that judges the claims of the papers and of Headroom itself.

Owns its options and the exit status: 0 however claims come out, because the table is the answer; a claim that could
not be judged is in it as failed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import DATA, Data
from app.cli.output import Format, Output, rows, show, standard_output_to_error


def judge(
    *,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="AC-…", help="Claims whose id begins so. Repeatable.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of simulated claims.")] = 3,
    examples: Annotated[int, typer.Option(min=1, help="Random cases of properties.")] = 200,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Runs at a time.")] = 1,
    results: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Take runs from here, and keep those that are missing.")
    ] = None,
    data: Data = DATA,
    output: Output = Format.TABLE,
) -> None:
    """Judge what the papers state, as far as it is known how: recomputed, tried, or simulated."""
    from lab.claims.catalogue import claims
    from lab.claims.claim import Effort, Judged, judged

    def tell(each: Judged) -> None:
        typer.echo(f"{each['id']}: {each['status']}", err=True)

    effort = Effort(seeds=seeds, examples=examples, jobs=jobs, results=results, data=data)
    chosen = claims([each.upper() for each in only or []])
    with standard_output_to_error():
        found = judged(chosen, effort, tell)
    lines = [
        (each["id"], each["class"], each["status"], each["stated"], each["measured"], each["note"]) for each in found
    ]
    show(found, output, rows(("id", "class", "status", "stated", "measured", "note"), lines))
