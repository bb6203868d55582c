"""Frozen plans of the drawn family, from 8 to 1,000 GPUs.

Owns the sizes and the work each is worth. A thousand GPUs take the joint planner more than a minute however little work
is counted, so a quick look leaves them to the greedy one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial

from benchmarks.instances.family_snapshot import family_snapshot
from benchmarks.same.frozen import Case, Taken
from benchmarks.same.planned import picture_taken, plan_taken
from solvers.domain.snapshot import Snapshot
from solvers.planners import registry

SEED = 1
UNITS = 500
JOINT_UNITS = {8: 1500, 64: 1500, 256: 600}
JOINT_UNITS_DEAR = {64: 6000, 256: 1500, 1000: 300}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """An instance by its numbers of GPUs and services."""

    gpus: int
    services: int

    @property
    def name(self) -> str:
        """As keys say it."""
        return f"{self.gpus}x{self.services}"

    def picture(self) -> Snapshot:
        """The instance, drawn once for all who plan it."""
        return _drawn(self.gpus, self.services)


SIZES = tuple(Size(gpus=gpus, services=services) for gpus, services in ((8, 5), (64, 20), (256, 60), (1000, 200)))


def cases() -> Iterator[Case]:
    """Pictures, every planner on the smallest, greedy and joint on all."""
    for size in SIZES:
        yield Case(key=f"{size.name} picture", take=partial(_picture, size))
    for planner in registry.names():
        if planner not in ("joint", "greedy"):
            yield _planned(planner, SIZES[0], UNITS)
    for size in SIZES:
        yield _planned("greedy", size, UNITS)
        if size.gpus in JOINT_UNITS:
            yield _planned("joint", size, JOINT_UNITS[size.gpus])
        if size.gpus in JOINT_UNITS_DEAR:
            yield _planned("joint", size, JOINT_UNITS_DEAR[size.gpus], dear=True)


def _planned(planner: str, size: Size, work_units: int, *, dear: bool = False) -> Case:
    take = partial(_plan, planner, size, work_units)
    return Case(key=f"{size.name} {planner}", take=take, cut=f"{work_units} units of work", dear=dear)


def _picture(size: Size) -> Taken:
    return picture_taken(size.picture())


def _plan(planner: str, size: Size, work_units: int) -> Taken:
    return plan_taken(planner, size.picture(), work_units)


@cache
def _drawn(gpus: int, services: int) -> Snapshot:
    return family_snapshot(gpus, services, SEED)
