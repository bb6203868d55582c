"""Task schedulers by name, as contenders of benches of kind `tasks`.

Owns the table: OLTunes, OLTunes with another predictor or without one of its parts, Orion, MLaaS' reserve-and-pack, and
ours. All of them get the same offline profile. It refuses names that are no scheduler of tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from lab.benches.tasks.assigning import Headroom
from lab.benches.tasks.first_come import FirstCome
from lab.benches.tasks.mlaas import ReserveAndPack
from lab.benches.tasks.orion import OrionRule
from lab.benches.tasks.scheduler import OltunesScheduler
from solvers.errors import EngineError
from solvers.models.base import Facts, Samples
from solvers.planners.tuning import Scalar, tuned
from solvers.policies.oltunes.parameters import MF, RFR, Parameters
from solvers.policies.oltunes.tasking import TaskScheduler

OLTUNES = "oltunes"
OURS = ("headroom", "joint")


@dataclass(frozen=True, slots=True)
class Known:
    """What every scheduler begins with."""

    facts: Facts
    samples: Samples
    seed: int


_PLAIN = Parameters()
_VARIANTS: Mapping[str, Parameters] = {
    OLTUNES: _PLAIN,
    # Neither learns single outcomes: both fit their window again, which pays for many outcomes at once alone.
    "oltunes_mf": replace(_PLAIN, predictor=MF, learned_at_once=128),
    "oltunes_rfr": replace(_PLAIN, predictor=RFR, learned_at_once=128),
    "oltunes_no_affinity": replace(_PLAIN, with_affinity=False),
    "oltunes_fixed_window": replace(_PLAIN, with_window=False),
    "oltunes_no_tuning": replace(_PLAIN, with_tuning=False),
    "oltunes_alone": replace(_PLAIN, group_max=1),
    "oltunes_mig": replace(_PLAIN, slice_spare_mib=8192.0),
}


def _oltunes(known: Known, parameters: Parameters) -> TaskScheduler:
    return OltunesScheduler(known.facts, parameters, known.samples, known.seed)


def _orion(known: Known) -> TaskScheduler:
    return FirstCome(OrionRule(known.facts), known.facts, known.samples, known.seed)


def _mlaas(known: Known) -> TaskScheduler:
    return FirstCome(ReserveAndPack(known.facts), known.facts, known.samples, known.seed)


def _ours(known: Known) -> TaskScheduler:
    return Headroom(known.facts, known.samples, known.seed)


_MAKERS: Mapping[str, Callable[[Known], TaskScheduler]] = {
    **{name: partial(_oltunes, parameters=parameters) for name, parameters in _VARIANTS.items()},
    "orion": _orion,
    "mlaas": _mlaas,
}
SCHEDULERS = tuple(_MAKERS)
"""Names of contenders that only benches of this kind know."""


def scheduler(name: str, known: Known, settings: Mapping[str, Scalar]) -> TaskScheduler:
    """A scheduler by name. Raises EngineError for a name that schedules no tasks, FieldError for a bad setting."""
    if name in OURS:
        return _ours(known)
    if name in _VARIANTS:
        return _oltunes(known, tuned(_VARIANTS[name], settings, name))
    if name not in _MAKERS:
        said = f"{name or 'nothing'} schedules no tasks; known are {', '.join((OURS[0], *SCHEDULERS))}"
        raise EngineError(said, planner=name)
    tuned(None, settings, name)
    return _MAKERS[name](known)
