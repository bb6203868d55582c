"""ParvaGPU's scenarios on MIG instances: fewest A100s, proven."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.instances.parvagpu import Files, cuttings, files_of, models_of, profile, scenario
from benchmarks.peers.record import Record, timed
from solvers.engines.base import Limits
from solvers.engines.registry import create
from solvers.planners.counting.cuttings import cut

PUBLISHED = {1: 2.0, 2: 3.0, 3: 5.0, 4: 7.0}
SECONDS = 5.0


def records(data: Path, numbers: tuple[int, ...] = tuple(PUBLISHED), files: Files | None = None) -> Iterator[Record]:
    """One per scenario; any rows of any files of this form."""
    rows = profile(data)
    for number in numbers:
        demands = scenario(number, models_of(rows), files or files_of(data))
        problem = cuttings(rows, demands)
        found, seconds = timed(partial(cut, problem, create("highs"), Limits(time_s=SECONDS)))
        yield Record(
            case=f"ParvaGPU S{number}, {len(demands)} services on MIG",
            unit="GPUs",
            peer=PUBLISHED.get(number) if files is None else None,
            same_inputs=True,
            yardstick=None,
            yardstick_is="",
            ours=found.objective,
            bound=found.bound,
            unserved=0 if found.pieces is not None else len(demands),
            seconds=seconds,
        )
