"""Options that say how to plan, shared by the commands that plan outside a cycle.

Owns their names, ranges and help. What they default to is the snapshot's policy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PlannerName = Annotated[
    str | None, typer.Option("--planner", help="The only planner to ask. Default: the policy's chain.")
]
DeadlineS = Annotated[
    float | None, typer.Option("--deadline-s", min=0.05, max=3600, help="For each plan. Default: the policy's.")
]
WorkUnits = Annotated[
    int | None, typer.Option("--work-units", min=1, help="Stop by this count, not by time: the same answer again.")
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Default: the policy's.")]
SnapshotFile = Annotated[
    str | None, typer.Option("--snapshot", help="Plan from this file, without a server (-: standard input).")
]
Data = Annotated[
    Path, typer.Option("--data", envvar="HEADROOM_DATA", help="Folder of public data that scenarios read traces from.")
]
DATA = Path("../shared/data")
