"""Pods that come one by one to a fleet and never leave, and how much of its GPUs each rule gives away.

The course is that of the study of openb (Weng et al., ATC 2023): the pods of a list in an order drawn from the seed,
then pods drawn from it again until they ask for a given part of all GPUs; a pod that fits nowhere is lost. Allocated is
what holds, as a part of all GPUs, when so much had arrived, lost pods included. Nothing migrates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from lab.benches.packing.allocation import (
    WHOLE_MILLI,
    Asks,
    EmptyHost,
    HostRooms,
    Mix,
    PlacingRule,
    RoomLeft,
    mix,
    reduced,
)
from lab.outcome import About, Better, Metric, Planners, ProgressListener, RunContender, RunEvent, RunOutcome, metric
from solvers.domain.arrays import Flags, Floats, Streams, Whole
from solvers.engines.base import create
from solvers.errors import EngineError

# --- Places for pods that come one by one, when it is known which are to be expected: each takes a place kept for its
# kind, or room that is kept for nobody, or, where only kept room is left, that
#
# A pod that fits anywhere is taken: keeping room steers where pods go, never whether.


@dataclass(slots=True)
class _HostBook:
    """One host as a row each (model, CPU, memory, then GPUs by number): what it has left, and what of that is open."""

    real: tuple[int, ...]
    open: tuple[int, ...]
    busy: bool = False

    @property
    def overdrawn(self) -> bool:
        return min(self.open[1:3]) < 0 or any(
            left - open_ > max(left, 0) for left, open_ in zip(self.real[3:], self.open[3:], strict=True)
        )


class Reserving:
    """Decides host by host; `rule` chooses among rooms that are kept for nobody."""

    def __init__(self, asks: Asks, hosts: list[EmptyHost], mix: Mix, rule: PlacingRule) -> None:
        self._asks = asks
        width = max(host.gpus for host in hosts)
        empty = [host.row(width) for host in hosts]
        self._books = [_HostBook(real=row, open=row) for row in empty]
        self._kept: list[dict[int, list[int]]] = [{} for _ in range(len(asks))]
        self._alike = _alike(asks)
        self._keep_all(hosts, mix)
        self._real, self._open = HostRooms(asks, hosts, rule), HostRooms(asks, hosts, rule)
        for number, book in enumerate(self._books):
            self._open.set(number, book.open)

    def _keep_all(self, hosts: list[EmptyHost], mix: Mix) -> None:
        free: dict[EmptyHost, list[int]] = {}
        for number, host in reversed(list(enumerate(hosts))):
            free.setdefault(host, []).append(number)
        for kind, filling, times in mix:
            for _ in range(times):
                number = free[kind].pop()
                for ask, gpu in filling:
                    self._keep(number, ask, gpu, 1)

    def _keep(self, host: int, ask: int, gpu: int, sign: int) -> None:
        book, places = self._books[host], self._kept[ask]
        book.open = reduced(book.open, self._asks, ask, self._gpus(ask, gpu), sign)
        if sign > 0:
            places.setdefault(host, []).append(gpu)
        else:
            places[host].remove(gpu)
            if not places[host]:
                del places[host]

    def place(self, ask: int, ties: np.random.Generator) -> int | None:
        """The host that a pod goes to; None where it fits nowhere."""
        kept = self._kept[ask]
        if kept:
            host = next((each for each in kept if self._books[each].busy), next(iter(kept)))
            gpu = kept[host][0]
            self._keep(host, ask, gpu, -1)
            self._take(host, ask, self._gpus(ask, gpu))
            return host
        found = self._open.best(ask, ties)
        if found is not None:
            self._take(found.host, ask, _numbers(self._books[found.host].open[3:], found.gpus))
            return found.host
        other = self._alike_place(ask)
        if other is not None:
            return other
        found = self._real.best(ask, ties)
        if found is None:
            return None
        self._take(found.host, ask, _numbers(self._books[found.host].real[3:], found.gpus))
        return found.host

    def _alike_place(self, ask: int) -> int | None:
        """A place kept for pods of the same size that may run elsewhere, or also elsewhere."""
        for alike in self._alike[ask]:
            for host in self._kept[alike]:
                if self._asks.allowed[ask][self._books[host].real[0]]:
                    gpu = self._kept[alike][host][0]
                    self._keep(host, alike, gpu, -1)
                    self._take(host, ask, self._gpus(ask, gpu))
                    return host
        return None

    def room(self) -> RoomLeft:
        """What is left on every host, kept places included."""
        table = np.array([book.real for book in self._books], dtype=np.int64)
        return RoomLeft(table[:, 0], table[:, 1], table[:, 2], table[:, 3:])

    def _take(self, host: int, ask: int, gpus: tuple[int, ...]) -> None:
        book = self._books[host]
        book.busy = True
        book.real, book.open = (reduced(row, self._asks, ask, gpus) for row in (book.real, book.open))
        if book.overdrawn:
            self._give_up(host)
        self._real.set(host, book.real)
        self._open.set(host, book.open)

    def _give_up(self, host: int) -> None:
        """Places of this host that cannot be kept any more, those that ask most of a GPU first."""
        book = self._books[host]
        places = [(ask, gpu) for ask, kept in enumerate(self._kept) for gpu in kept.get(host, ())]
        for ask, gpu in sorted(places, key=lambda item: (-int(self._asks.need_milli[item[0]]), item)):
            if min(book.open[1:3]) < 0 or any(book.open[3 + each] < 0 for each in self._gpus(ask, gpu)):
                self._keep(host, ask, gpu, -1)

    def _gpus(self, ask: int, first: int) -> tuple[int, ...]:
        return tuple(range(first, first + int(self._asks.gpus[ask])))


def _numbers(left: tuple[int, ...], positions: tuple[int, ...]) -> tuple[int, ...]:
    """GPUs by number, from their positions in falling order of room."""
    order = sorted(range(len(left)), key=lambda gpu: -left[gpu])
    return tuple(order[position] for position in positions)


def _alike(asks: Asks) -> list[list[int]]:
    """Other asks of the same size, those that may run on most GPU models first: they find another place most easily."""
    sizes: dict[tuple[int, ...], list[int]] = {}
    for ask in sorted(range(len(asks)), key=lambda ask: (-int(asks.allowed[ask].sum()), ask)):
        sizes.setdefault(_size(asks, ask), []).append(ask)
    return [[other for other in sizes[_size(asks, ask)] if other != ask] for ask in range(len(asks))]


def _size(asks: Asks, ask: int) -> tuple[int, ...]:
    parts = (asks.cpu_milli, asks.memory_mib, asks.gpus, asks.gpu_milli)
    return tuple(int(part[ask]) for part in parts)


# --- Rules by which others place pods one by one, and placement where the least fragments are left (FGD)


@dataclass(frozen=True, slots=True)
class Expected:
    """Pods that are expected, those without a GPU left out; parts sum to 1."""

    cpu_milli: Whole
    gpus: Whole
    gpu_milli: Whole
    allowed: Flags
    part: Floats

    def fragments(self, model: Whole, cpu_milli: Whole, gpu_milli: Whole) -> Floats:
        """GPU thousandths of each room that the expected pod could not use."""
        left = np.maximum(gpu_milli, 0)
        enough = gpu_milli[:, None, :] >= self.gpu_milli[:, None]
        able = (enough.sum(axis=2) >= self.gpus) & (cpu_milli[:, None] >= self.cpu_milli) & self.allowed[:, model].T
        small = np.where(enough, 0, left[:, None, :]).sum(axis=2)
        return np.asarray(np.where(able, small, left.sum(axis=1)[:, None]) @ self.part)


def expected(asks: Asks, counts: Whole, whole_weight: float = 0.0) -> Expected:
    """What history lets expect. A pod with whole GPUs counts 1 + `whole_weight` x GPUs."""
    merged: dict[tuple[int, int, int, tuple[bool, ...]], float] = defaultdict(float)
    for ask in np.nonzero((counts > 0) & (asks.gpus > 0))[0]:
        gpus, milli = int(asks.gpus[ask]), int(asks.gpu_milli[ask])
        weight = 1.0 + whole_weight * gpus * (milli == WHOLE_MILLI)
        key = (int(asks.cpu_milli[ask]), gpus, milli, tuple(bool(one) for one in asks.allowed[ask]))
        merged[key] += weight * int(counts[ask])
    keys = sorted(merged)
    part = np.array([merged[key] for key in keys], dtype=np.float64)
    return Expected(
        cpu_milli=np.array([key[0] for key in keys], dtype=np.int64),
        gpus=np.array([key[1] for key in keys], dtype=np.int64),
        gpu_milli=np.array([key[2] for key in keys], dtype=np.int64),
        allowed=np.array([key[3] for key in keys], dtype=np.bool_).reshape(len(keys), asks.allowed.shape[1]),
        part=part / part.sum() if len(part) else part,
    )


@dataclass(frozen=True, slots=True)
class LeastFragments:
    """Goes where fragments grow least. With `steps`, differences are rounded to so many steps of a sigmoid, as the
    scores of Kubernetes are: places that differ little are then equal.
    """

    expected: Expected
    steps: int = 0

    def rate(self, asks: Asks, ask: int, room: RoomLeft) -> tuple[Floats, Whole]:
        """Growth in thousandths of a GPU, and the GPU where it is least."""
        before = self.expected.fragments(room.model, room.cpu_milli, room.gpu_milli)
        cpu_milli = room.cpu_milli - asks.cpu_milli[ask]
        cost, pick = np.full(len(before), np.inf), np.zeros(len(before), dtype=np.int64)
        milli = int(asks.gpu_milli[ask])
        for gpu in range(room.gpu_milli.shape[1] if asks.shares(ask) else 1):
            left = room.gpu_milli.copy()
            if asks.shares(ask):
                left[:, gpu] -= milli
            else:
                left[:, : int(asks.gpus[ask])] -= milli
            able = room.gpu_milli[:, gpu] >= milli
            grown = self._rounded(self.expected.fragments(room.model, cpu_milli, left) - before)
            better = able & (grown < cost) if asks.gpus[ask] else grown < cost
            cost[better], pick[better] = grown[better], gpu
        return cost, pick

    def _rounded(self, grown: Floats) -> Floats:
        if not self.steps:
            return grown
        return np.asarray(-np.floor(self.steps / (1 + np.exp(grown / WHOLE_MILLI))), dtype=np.float64)


SCORE_MAX = 100
GPUS_MAX = 8


@dataclass(frozen=True, slots=True)
class Anywhere:
    """Every place is as good; of the GPUs that fit, one by chance."""

    chance: np.random.Generator

    def rate(self, asks: Asks, ask: int, room: RoomLeft) -> tuple[Floats, Whole]:
        """No cost."""
        able = room.gpu_milli >= max(1, int(asks.gpu_milli[ask]))
        return np.zeros(len(room.model)), np.asarray((able * self.chance.random(able.shape)).argmax(axis=1))


@dataclass(frozen=True, slots=True)
class ByFit:
    """Least (or most) room left of CPU and GPU together, each by the most that a host has; the fullest (or emptiest)
    GPU.
    """

    cpu_milli_max: int
    most: bool = False

    def rate(self, asks: Asks, ask: int, room: RoomLeft) -> tuple[Floats, Whole]:
        """Room left, in steps."""
        gpu_milli = np.maximum(room.gpu_milli, 0).sum(axis=1) - asks.need_milli[ask]
        left = ((room.cpu_milli - asks.cpu_milli[ask]) / self.cpu_milli_max + gpu_milli / (GPUS_MAX * WHOLE_MILLI)) / 2
        cost = np.floor(SCORE_MAX * left)
        return (-cost if self.most else cost), _gpu(asks, ask, room, emptiest=self.most)


@dataclass(frozen=True, slots=True)
class ByDotProduct:
    """Least product of what a host has left and what the pod asks for, by the most that a host has; on the GPU where
    that is least.
    """

    cpu_milli_max: int

    def rate(self, asks: Asks, ask: int, room: RoomLeft) -> tuple[Floats, Whole]:
        """The product, in steps."""
        pick = _gpu(asks, ask, room, emptiest=False)
        cpu = room.cpu_milli / self.cpu_milli_max * asks.cpu_milli[ask] / self.cpu_milli_max
        gpu_milli = np.maximum(room.gpu_milli, 0).sum(axis=1) / (GPUS_MAX * WHOLE_MILLI)
        gpu = gpu_milli * asks.need_milli[ask] / (GPUS_MAX * WHOLE_MILLI)
        return np.floor(SCORE_MAX * (cpu + gpu) / 2), pick


@dataclass(frozen=True, slots=True)
class ByPacking:
    """GPUs that others use already before idle ones of busy hosts before idle hosts; fullest first. Pods without a GPU
    go where least of GPUs is left.
    """

    def rate(self, asks: Asks, ask: int, room: RoomLeft) -> tuple[Floats, Whole]:
        """Classes far apart, then room."""
        pick = _gpu(asks, ask, room, emptiest=False)
        if not asks.gpus[ask]:
            return np.maximum(room.gpu_milli, 0).sum(axis=1).astype(np.float64), pick
        idle = (room.gpu_milli == WHOLE_MILLI).sum(axis=1)
        there = (room.gpu_milli >= 0).sum(axis=1)
        taken = room.gpu_milli[np.arange(len(pick)), pick]
        shared = asks.shares(ask) & (taken < WHOLE_MILLI)
        on_busy = np.where(shared, taken * SCORE_MAX // WHOLE_MILLI // 10, SCORE_MAX // 2 + asks.gpus[ask])
        return np.where(idle == there, SCORE_MAX + idle, on_busy).astype(np.float64), pick


def _gpu(asks: Asks, ask: int, room: RoomLeft, *, emptiest: bool) -> Whole:
    """Position of the fullest (or emptiest) GPU that a sharing pod fits on; rooms fall with the position."""
    if not asks.shares(ask) or emptiest:
        return np.zeros(len(room.model), dtype=np.int64)
    return np.asarray((room.gpu_milli >= asks.gpu_milli[ask]).sum(axis=1) - 1)


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
        name = contender.planners[0] if contender.planners else ""
        if name not in _DECIDERS:
            raise EngineError(f"{name or 'nothing'} places no pods; known are {', '.join(RULES)}", planner=name)
        counts = np.bincount(self.pods, minlength=len(self.asks))
        inputs = PackingInputs(asks=self.asks, hosts=list(self.hosts), counts=counts, streams=streams)
        decide = _DECIDERS[name](inputs)
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
        need, chance = self.asks.need_milli, streams.stream("arrivals")
        pods = [] if self.drawn else [int(ask) for ask in chance.permutation(self.pods)]
        total = int(sum(int(need[ask]) for ask in pods))
        while True:
            ask = int(self.pods[chance.integers(len(self.pods))])
            if total + int(need[ask]) > self.arrived_part * capacity_milli:
                return np.array(pods, dtype=np.int64)
            total += int(need[ask])
            pods.append(ask)


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
