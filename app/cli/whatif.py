"""The command that asks what if: simulate, against a server's live fleet or a snapshot's file; or a scenario's run.

Documents become one set of changes: those that `headroom apply` reads, and `kind: changes` for everything else. Nothing
is ever changed: a server only plans, and a file is only read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from app import kinds
from app.cli.declare import Files
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
)
from app.cli.output import CommandError, Exit, Format, Output, show
from app.cli.planning import LaneOption
from app.cli.tables import whatif_tables
from app.client import Document
from app.client.documents import PROFILES, Declared, read_documents
from solvers.errors import InputError

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
        return [("policy", {name: item for name, item in declared.fields.items() if name != "name"})]
    if declared.kind == PROFILES:
        raise InputError(
            f"{declared.origin}: profiles stand in a document of kind changes, as `profiles` of a snapshot do"
        )
    return [(kinds.named(declared.kind).table, [declared.fields])]


def _add(changes: Document, name: str, part: Any, origin: str) -> None:
    """Lists and objects of several documents are joined; anything else may be said once."""
    before = changes.get(name)
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
        int, typer.Option("--devices", min=1, max=1000, help="With --advise: so many more of a type.")
    ] = 1,
    lane: Annotated[LaneOption, typer.Option(help="Whose services may move.")] = LaneOption.ACT,
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
        if files or snapshot is not None or advise:
            raise InputError("--scenario stands alone: it takes neither files of changes, nor a snapshot, nor --advise")
        policy = {"deadline_s": deadline_s, "work_units": work_units}
        fields = tuple(f"{name}={item}" for name, item in policy.items() if item is not None)
        run_scenario = plugged("scenario")
        run_scenario(output, scenario=scenario, planner=planner, seed=seed or 0, data=data, policy=fields)
        return
    question: Document = {"lane": lane.value, "advise": advise, "devices": devices}
    wish = {"planner": planner, "deadline_s": deadline_s, "work_units": work_units, "seed": seed}
    question |= {name: item for name, item in wish.items() if item is not None}
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
