"""A what-if question as a whole: changes, how to plan, and whether advice is wanted; and its answer.

Owns the limits of a question and which plans have to be made for it. Where the pictures come from (a file, a live
fleet) and where planners run is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.services.whatif.advice import Advised, Advising, advise
from app.services.whatif.changes import Changes
from app.services.whatif.whatif import Simulation, Wish, compare, solved
from solvers.cycle.attempts import Asking
from solvers.cycle.record import Lane
from solvers.domain.device import GpuType
from solvers.domain.snapshot import Snapshot
from solvers.domain.value import check_range, value
from solvers.errors import FieldError

ADVISE_MAX = 8
DEVICES_MAX = 1000


@value
class WhatIfQuestion:
    """What is asked. `advise` types are tried with `devices` more each, in the fleet as changed; 0: no advice."""

    changes: Changes = Changes()
    lane: Lane = Lane.ACT
    planner: str | None = None
    deadline_s: float | None = None
    work_units: int | None = None
    seed: int | None = None
    advise: int = 0
    devices: int = 1

    def __post_init__(self) -> None:
        check_range("advise", self.advise, 0, ADVISE_MAX)
        check_range("devices", self.devices, 1, DEVICES_MAX)
        if not self.plans:
            raise FieldError("changes", "there is nothing to simulate: name changes, or ask for advice")

    @property
    def changed(self) -> bool:
        """Whether anything is to be different."""
        return self.changes != Changes()

    @property
    def plans(self) -> int:
        """How many plans have to be made; none when nothing is asked."""
        return 1 + self.changed + self.advise if self.changed or self.advise else 0

    @property
    def wish(self) -> Wish:
        """How to plan."""
        return Wish(
            lane=self.lane,
            planner=self.planner,
            deadline_s=self.deadline_s,
            work_units=self.work_units,
            seed=self.seed,
        )


@value
class WhatIf:
    """The answer; the parts that were not asked for are None."""

    simulation: Simulation | None = None
    advised: Advised | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """The fleet as it is and as it would be (the same where nothing changes), types that could be had, and the way to
    complete a picture with what is believed.
    """

    before: Snapshot
    after: Snapshot
    types: tuple[GpuType, ...]
    complete: Callable[[Snapshot], Snapshot]


def answer(question: WhatIfQuestion, pictures: Pictures, asking: Asking) -> WhatIf:
    """Make the plans that the question needs, one after the other."""
    wish = question.wish
    chosen = solved(pictures.before, wish, asking)
    simulation: Simulation | None = None
    picture = pictures.before
    if question.changed:
        picture, chosen, simulation = compare((pictures.before, chosen), pictures.after, wish, asking)
    if not question.advise:
        return WhatIf(simulation=simulation)
    how = Advising(
        wish=wish,
        asking=asking,
        count=question.advise,
        devices=question.devices,
        types=pictures.types,
        complete=pictures.complete,
    )
    return WhatIf(simulation=simulation, advised=advise(picture, chosen, how))
