"""Task schedulers by name, as contenders of benches of kind `tasks`.

OLTunes, OLTunes with another predictor or without one of its parts, Orion, MLaaS' reserve-and-pack, and the least added
latency. All of them get the same offline profile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from lab.benches.tasks.assigning import AddedLatency
from lab.benches.tasks.contract import TaskScheduler
from lab.benches.tasks.first_come import FirstCome, OrionRule, ReserveAndPack
from lab.benches.tasks.parameters import SchedulerParameters
from lab.benches.tasks.scheduler import OltunesScheduler
from solvers.errors import EngineError
from solvers.models.base import Facts, Samples
from solvers.planners.tuning import Scalar, tuned
from solvers.policies.oltunes.parameters import MF, RFR


@dataclass(frozen=True, slots=True)
class SchedulerInputs:
    """What every scheduler begins with."""

    facts: Facts
    samples: Samples
    seed: int


Maker = Callable[[SchedulerInputs, Mapping[str, Scalar], str], TaskScheduler]
"""From what is known, the settings, and the name that errors tell."""


def _oltunes(
    known: SchedulerInputs, settings: Mapping[str, Scalar], name: str, *, plain: SchedulerParameters
) -> TaskScheduler:
    return OltunesScheduler(known.facts, tuned(plain, settings, name), known.samples, known.seed)


def _orion(known: SchedulerInputs, settings: Mapping[str, Scalar], name: str) -> TaskScheduler:
    tuned(None, settings, name)
    return FirstCome(OrionRule(known.facts), known.facts, known.samples, known.seed)


def _mlaas(known: SchedulerInputs, settings: Mapping[str, Scalar], name: str) -> TaskScheduler:
    tuned(None, settings, name)
    return FirstCome(ReserveAndPack(known.facts), known.facts, known.samples, known.seed)


def _added_latency(known: SchedulerInputs, settings: Mapping[str, Scalar], name: str) -> TaskScheduler:
    tuned(None, settings, name)
    return AddedLatency(known.facts, known.samples, known.seed)


_PLAIN = SchedulerParameters()
_MAKERS: Mapping[str, Maker] = {
    "oltunes": partial(_oltunes, plain=_PLAIN),
    # Neither learns single outcomes: both fit their window again, which pays for many outcomes at once alone.
    "oltunes_mf": partial(_oltunes, plain=replace(_PLAIN, predictor=MF, learned_at_once=128)),
    "oltunes_rfr": partial(_oltunes, plain=replace(_PLAIN, predictor=RFR, learned_at_once=128)),
    "oltunes_no_affinity": partial(_oltunes, plain=replace(_PLAIN, with_affinity=False)),
    "oltunes_fixed_window": partial(_oltunes, plain=replace(_PLAIN, window_ms_step=0.0)),
    "oltunes_no_tuning": partial(_oltunes, plain=replace(_PLAIN, with_tuning=False)),
    "oltunes_alone": partial(_oltunes, plain=replace(_PLAIN, group_max=1)),
    "oltunes_mig": partial(_oltunes, plain=replace(_PLAIN, slice_spare_mib=8192.0)),
    "added_latency": _added_latency,
    "orion": _orion,
    "mlaas": _mlaas,
}
SCHEDULERS = tuple(_MAKERS)
"""Names of contenders that only benches of this kind know; none of them is what `headroom` names elsewhere."""


def scheduler(name: str, known: SchedulerInputs, settings: Mapping[str, Scalar]) -> TaskScheduler:
    """A scheduler by name. Raises EngineError for a name that schedules no tasks, FieldError for a bad setting."""
    if name not in _MAKERS:
        raise EngineError(f"{name or 'nothing'} schedules no tasks; known are {', '.join(SCHEDULERS)}", planner=name)
    return _MAKERS[name](known, settings, name)
