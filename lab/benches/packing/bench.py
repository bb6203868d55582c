"""Pods that come one by one to a fleet and never leave, and how much of its GPUs each rule gives away.

Owns the course of the study of openb (Weng et al., ATC 2023): the pods of a list in an order drawn from the seed, then
pods drawn from it again until they ask for a given part of all GPUs; a pod that fits nowhere is lost. Allocated is what
holds, as a part of all GPUs, when so much had arrived, lost pods included. It refuses migration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lab.benches.packing.allocation import Asks, Host, Rooms, Rule
from lab.benches.packing.fragmentation import LeastFragments, expected
from lab.benches.packing.mixing import mix
from lab.benches.packing.reserving import Reserving
from lab.benches.packing.rules import SCORE_MAX, Anywhere, ByDotProduct, ByFit, ByPacking
from solvers.domain.arrays import Whole
from solvers.domain.streams import Streams
from solvers.engines.registry import create
from solvers.errors import EngineError
from solvers.sim.outcome import About, Better, Contender, Deed, Metric, Outcome, Planners, Progress, metric

OURS = ("headroom", "joint")
RULES = ("fgd", "fgd_weighted", "best_fit", "packing", "dot_product", "worst_fit", "random")
MARKS_PCT = (50, 80, 90, 100, 110, 120, 130)
GOALS_PCT = (100, 130)

WHOLE_WEIGHT = 1.0
"""How much more than its number a pod of whole GPUs counts where fragments are weighed, for ours and `fgd_weighted`."""

Decide = Callable[[int], bool]
"""Whether a pod found a place."""


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """A fleet and a list of pods, by what they ask for. `drawn`: every pod is drawn from the list, so that what comes
    differs from what history lets expect.
    """

    about: About
    asks: Asks
    hosts: tuple[Host, ...]
    pods: Whole
    arrived_part: float = 1.3
    drawn: bool = False

    def run(self, contender: Contender, seed: int, planners: Planners, progress: Progress) -> Outcome:  # noqa: ARG002
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
        return Outcome(
            scenario=self.about.name,
            contender=contender.label,
            seed=seed,
            metrics=_metrics(seen, lost),
            deeds=(Deed(at_s=0.0, kind="pods", text=f"{len(pods)} came, {lost} fitted nowhere"),),
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
        counts = np.bincount(self.pods, minlength=len(self.asks))
        hosts, ties = list(self.hosts), streams.stream("ties")
        if name in OURS:
            plan = mix(self.asks, hosts, counts, create("highs"))
            ours = Reserving(self.asks, hosts, plan, LeastFragments(expected(self.asks, counts, WHOLE_WEIGHT)))
            return lambda ask: ours.place(ask, ties) is not None
        rooms = Rooms(self.asks, hosts, self._rule(name, counts, streams))

        def decide(ask: int) -> bool:
            place = rooms.best(ask, ties)
            if place is not None:
                rooms.take(place, ask)
            return place is not None

        return decide

    def _rule(self, name: str, counts: Whole, streams: Streams) -> Rule:
        cpu_milli_max = max(host.cpu_milli for host in self.hosts)
        rules: dict[str, Callable[[], Rule]] = {
            "fgd": lambda: LeastFragments(expected(self.asks, counts), steps=SCORE_MAX),
            "fgd_weighted": lambda: LeastFragments(expected(self.asks, counts, WHOLE_WEIGHT), steps=SCORE_MAX),
            "best_fit": lambda: ByFit(cpu_milli_max),
            "worst_fit": lambda: ByFit(cpu_milli_max, most=True),
            "dot_product": lambda: ByDotProduct(cpu_milli_max),
            "packing": ByPacking,
            "random": lambda: Anywhere(streams.stream("gpu")),
        }
        if name not in rules:
            said = f"{name or 'nothing'} places no pods; known are {', '.join((*OURS, *RULES))}"
            raise EngineError(said, planner=name)
        return rules[name]()


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
