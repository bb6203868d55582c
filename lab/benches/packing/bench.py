"""Pods that come one by one to a fleet and never leave, and how much of its GPUs each rule gives away.

The course is that of the study of openb (Weng et al., ATC 2023): the pods of a list in an order drawn from the seed,
then pods drawn from it again until they ask for a given part of all GPUs; a pod that fits nowhere is lost. Allocated is
what holds, as a part of all GPUs, when so much had arrived, lost pods included. Nothing migrates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from lab.benches.packing.allocation import Asks, EmptyHost, HostRooms, PlacingRule
from lab.benches.packing.mixing import mix
from lab.benches.packing.reserving import Reserving
from lab.benches.packing.rules import SCORE_MAX, Anywhere, ByDotProduct, ByFit, ByPacking, LeastFragments, expected
from solvers.domain.arrays import Whole
from solvers.domain.streams import Streams
from solvers.engines.registry import create
from solvers.errors import EngineError
from solvers.sim.outcome import (
    About,
    Better,
    Metric,
    Planners,
    ProgressListener,
    RunContender,
    RunEvent,
    RunOutcome,
    metric,
)

MARKS_PCT = (50, 80, 90, 100, 110, 120, 130)
GOALS_PCT = (100, 130)

WHOLE_WEIGHT = 1.0
"""How much more than its number a pod of whole GPUs counts where fragments are weighed: `reserving`, `fgd_weighted`."""

Decide = Callable[[int], bool]
"""Whether a pod found a place."""


@dataclass(frozen=True, slots=True, eq=False)
class PackingInputs:
    """What every rule begins with: who may come, the empty fleet, how often each is to be expected, chance."""

    asks: Asks
    hosts: list[EmptyHost]
    counts: Whole
    streams: Streams


def _reserving(known: PackingInputs) -> Decide:
    asks, ties = known.asks, known.streams.stream("ties")
    plan = mix(asks, known.hosts, known.counts, create("highs"))
    kept = Reserving(asks, known.hosts, plan, LeastFragments(expected(asks, known.counts, WHOLE_WEIGHT)))
    return lambda ask: kept.place(ask, ties) is not None


def _fragments(known: PackingInputs, *, weight: float = 0.0) -> PlacingRule:
    return LeastFragments(expected(known.asks, known.counts, weight), steps=SCORE_MAX)


def _cpu_milli_max(known: PackingInputs) -> int:
    return max(host.cpu_milli for host in known.hosts)


def _one_by_one(make: Callable[[PackingInputs], PlacingRule]) -> Callable[[PackingInputs], Decide]:
    def decider(known: PackingInputs) -> Decide:
        ties = known.streams.stream("ties")
        rooms = HostRooms(known.asks, known.hosts, make(known))

        def decide(ask: int) -> bool:
            place = rooms.best(ask, ties)
            if place is not None:
                rooms.take(place, ask)
            return place is not None

        return decide

    return decider


_DECIDERS: Mapping[str, Callable[[PackingInputs], Decide]] = {
    "reserving": _reserving,
    "fgd": _one_by_one(_fragments),
    "fgd_weighted": _one_by_one(partial(_fragments, weight=WHOLE_WEIGHT)),
    "best_fit": _one_by_one(lambda known: ByFit(_cpu_milli_max(known))),
    "packing": _one_by_one(lambda _: ByPacking()),
    "dot_product": _one_by_one(lambda known: ByDotProduct(_cpu_milli_max(known))),
    "worst_fit": _one_by_one(lambda known: ByFit(_cpu_milli_max(known), most=True)),
    "random": _one_by_one(lambda known: Anywhere(known.streams.stream("gpu"))),
}
RULES = tuple(_DECIDERS)
"""Names of contenders that only benches of this kind know; none of them is what `headroom` names elsewhere."""


@dataclass(frozen=True, slots=True, eq=False)
class PodPacking:
    """A fleet and a list of pods, by what they ask for. `drawn`: every pod is drawn from the list, so that what comes
    differs from what history lets expect.
    """

    about: About
    asks: Asks
    hosts: tuple[EmptyHost, ...]
    pods: Whole
    arrived_part: float = 1.3
    drawn: bool = False

    def run(self, contender: RunContender, seed: int, planners: Planners, progress: ProgressListener) -> RunOutcome:  # noqa: ARG002
        """All pods, to the end. Raises EngineError for a name that is no rule here."""
        streams = Streams(seed)
        decide = self._decider(contender.planners[0] if contender.planners else "", streams)
        need, capacity_milli = self.asks.need_milli, 1000 * sum(host.gpus for host in self.hosts)
        pods = self._arrivals(streams, capacity_milli)
        seen: dict[int, list[float]] = {}
        arrived = used = lost = 0
        for number, ask in enumerate(pods):
            arrived += int(need[ask])
            if decide(int(ask)):
                used += int(need[ask])
            else:
                lost += 1
            seen.setdefault(round(100 * arrived / capacity_milli), []).append(100 * used / capacity_milli)
            if not number % 500:
                progress(number / len(pods))
        return RunOutcome(
            scenario=self.about.name,
            contender=contender.label,
            seed=seed,
            metrics=_metrics(seen, lost),
            deeds=(RunEvent(at_s=0.0, kind="pods", text=f"{len(pods)} came, {lost} fitted nowhere"),),
        )

    def _arrivals(self, streams: Streams, capacity_milli: int) -> Whole:
        """Pods in the order of their arrival."""
        need, chance = self.asks.need_milli, streams.stream("arrivals")
        pods = [] if self.drawn else [int(ask) for ask in chance.permutation(self.pods)]
        total = int(sum(int(need[ask]) for ask in pods))
        while True:
            ask = int(self.pods[chance.integers(len(self.pods))])
            if total + int(need[ask]) > self.arrived_part * capacity_milli:
                return np.array(pods, dtype=np.int64)
            total += int(need[ask])
            pods.append(ask)

    def _decider(self, name: str, streams: Streams) -> Decide:
        if name not in _DECIDERS:
            raise EngineError(f"{name or 'nothing'} places no pods; known are {', '.join(RULES)}", planner=name)
        counts = np.bincount(self.pods, minlength=len(self.asks))
        return _DECIDERS[name](PackingInputs(asks=self.asks, hosts=list(self.hosts), counts=counts, streams=streams))


def _metrics(seen: dict[int, list[float]], lost: int) -> tuple[Metric, ...]:
    marks = (
        metric(
            f"allocated_pct_at_{mark}",
            float(np.mean(seen[mark])),
            Better.HIGHER if mark in GOALS_PCT else Better.NEITHER,
        )
        for mark in MARKS_PCT
        if mark in seen
    )
    return (*marks, metric("pods_lost", lost, Better.NEITHER))
