"""Pods that ask for CPU, memory and parts of GPUs, the hosts that have them, what is left, and how to fill hosts.

Hosts of equal room are one state, so that a rule is asked once for a state and an ask, however many hosts and pods
there are. A pod shares one GPU, or has whole GPUs of one host. The fillings of hosts that give the pods expected the
most GPU come from a linear programme, generated at its prices; whole numbers at its end are rounded down: hosts that no
filling is sure of stay free for what was not expected.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.engines.base import Engine, EngineAnswer, Limits, Program

WHOLE_MILLI = 1000
ABSENT = -1
"""Room of a GPU that a host does not have."""


@dataclass(frozen=True, slots=True)
class Asks:
    """Everything that pods may ask for, one element per kind of pod."""

    cpu_milli: Whole
    memory_mib: Whole
    gpus: Whole
    """0: none; 1: `gpu_milli` of one; more: so many whole ones."""
    gpu_milli: Whole
    allowed: Flags
    """By ask and GPU model."""

    def __len__(self) -> int:
        return len(self.cpu_milli)

    @property
    def need_milli(self) -> Whole:
        """GPU that a pod takes, thousandths."""
        return self.gpus * self.gpu_milli

    def shares(self, ask: int) -> bool:
        """Whether a pod of this ask leaves something of its GPU."""
        return bool(self.gpus[ask] == 1 and self.gpu_milli[ask] < WHOLE_MILLI)


@dataclass(frozen=True, slots=True, order=True)
class EmptyHost:
    model: int
    cpu_milli: int
    memory_mib: int
    gpus: int

    def row(self, width: int) -> tuple[int, ...]:
        """Model, CPU, memory, and room on so many GPUs."""
        gpus = [WHOLE_MILLI] * self.gpus + [ABSENT] * (width - self.gpus)
        return (self.model, self.cpu_milli, self.memory_mib, *gpus)


@dataclass(frozen=True, slots=True)
class RoomLeft:
    """What is left, one element per host or state; GPUs by falling room, `ABSENT` where there is none."""

    model: Whole
    cpu_milli: Whole
    memory_mib: Whole
    gpu_milli: Whole

    def of(self, which: Whole | Flags) -> RoomLeft:
        return RoomLeft(self.model[which], self.cpu_milli[which], self.memory_mib[which], self.gpu_milli[which])

    def fits(self, asks: Asks, ask: int) -> Flags:
        enough = (self.gpu_milli >= max(int(asks.gpu_milli[ask]), 1)).sum(axis=1) >= asks.gpus[ask]
        return np.asarray(
            enough
            & asks.allowed[ask][self.model]
            & (self.cpu_milli >= asks.cpu_milli[ask])
            & (self.memory_mib >= asks.memory_mib[ask])
        )


class PlacingRule(Protocol):
    """How good a place is."""

    def rate(self, asks: Asks, ask: int, room: RoomLeft) -> tuple[Floats, Whole]:
        """Cost of each place, the least is taken, and there the GPU to share (by position; 0 for whole GPUs). Only
        places where the pod fits are asked about.
        """


@dataclass(frozen=True, slots=True)
class PodPlace:
    """Where a pod goes: a host, and its GPUs by position in that host's present room."""

    host: int
    gpus: tuple[int, ...]


class HostRooms:
    """What is left on every host, kept up to date."""

    def __init__(self, asks: Asks, hosts: list[EmptyHost], rule: PlacingRule) -> None:
        self._asks, self._rule = asks, rule
        width = max(host.gpus for host in hosts)
        self._known: dict[tuple[int, ...], int] = {}
        self._members: list[list[int]] = []
        size = 1024
        self._rows = np.zeros((size, 3 + width), dtype=np.int64)
        self._cost = np.full((size, len(asks)), np.nan)
        self._pick = np.zeros((size, len(asks)), dtype=np.int64)
        self._active: set[int] = set()
        self.state = np.zeros(len(hosts), dtype=np.int64)
        for number, host in enumerate(hosts):
            self._enter(number, host.row(width))

    def _enter(self, host: int, row: tuple[int, ...]) -> None:
        state = self._known.get(row)
        if state is None:
            state = self._known[row] = len(self._known)
            self._members.append([])
            if state >= len(self._rows):
                self._grow()
            self._rows[state] = row
        insort(self._members[state], host)
        self._active.add(state)
        self.state[host] = state

    def _grow(self) -> None:
        self._rows = np.vstack([self._rows, np.zeros_like(self._rows)])
        self._cost = np.vstack([self._cost, np.full_like(self._cost, np.nan)])
        self._pick = np.vstack([self._pick, np.zeros_like(self._pick)])

    def row(self, host: int) -> tuple[int, ...]:
        """Model, CPU, memory and GPUs left on a host."""
        return tuple(int(part) for part in self._rows[self.state[host]])

    def set(self, host: int, row: tuple[int, ...]) -> None:
        """What is left there now; GPUs come in any order."""
        state = int(self.state[host])
        members = self._members[state]
        members.pop(bisect_left(members, host))
        if not members:
            self._active.discard(state)
        self._enter(host, (*row[:3], *sorted(row[3:], reverse=True)))

    def best(self, ask: int, ties: np.random.Generator) -> PodPlace | None:
        """The best place for a pod, one of them by chance where several are equal; None where it fits nowhere."""
        states = np.fromiter(self._active, dtype=np.int64, count=len(self._active))
        states.sort()
        unknown = states[np.isnan(self._cost[states, ask])]
        if len(unknown):
            self._rate(ask, unknown)
        costs = self._cost[states, ask]
        least = costs.min(initial=np.inf)
        if not np.isfinite(least):
            return None
        equal = states[costs == least]
        among = np.array([len(self._members[state]) for state in equal])
        chosen = int(ties.integers(int(among.sum())))
        part = int(np.searchsorted(among.cumsum(), chosen, side="right"))
        host = self._members[int(equal[part])][chosen - int(among[:part].sum())]
        return PodPlace(host, self._gpus(int(equal[part]), ask))

    def _rate(self, ask: int, states: Whole) -> None:
        rows = self._rows[states]
        room = RoomLeft(rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3:])
        fit = room.fits(self._asks, ask)
        self._cost[states, ask] = np.inf
        if fit.any():
            cost, pick = self._rule.rate(self._asks, ask, room.of(fit))
            self._cost[states[fit], ask], self._pick[states[fit], ask] = cost, pick

    def _gpus(self, state: int, ask: int) -> tuple[int, ...]:
        if self._asks.shares(ask):
            return (int(self._pick[state, ask]),)
        return tuple(range(int(self._asks.gpus[ask])))

    def take(self, place: PodPlace, ask: int) -> None:
        self.set(place.host, reduced(self.row(place.host), self._asks, ask, place.gpus))


def reduced(row: tuple[int, ...], asks: Asks, ask: int, gpus: tuple[int, ...], pods: int = 1) -> tuple[int, ...]:
    """What is left of a room with so many pods more, GPUs by position."""
    left = list(row)
    left[1] -= pods * int(asks.cpu_milli[ask])
    left[2] -= pods * int(asks.memory_mib[ask])
    for gpu in gpus:
        left[3 + gpu] -= pods * int(asks.gpu_milli[ask])
    return tuple(left)


MILLI_STEP = 10
CORE_MILLI = 1000
STEPS = WHOLE_MILLI // MILLI_STEP
WORTH = 1e-9
MEMORY_PRICE_MAX = 0.05
"""Value per MiB at which no pod is worth its memory."""
HALVINGS = 7
NO_GPU = -1

Filling = tuple[tuple[int, int], ...]
"""Pods of a host: what they ask for, and their first GPU."""


@dataclass(frozen=True, slots=True)
class _Tables:
    value: Floats
    choice: Whole
    spare: Floats
    spare_choice: Whole


class HostFiller:
    """Fills hosts; the steps it thinks in are tenths of a percent of a GPU and cores."""

    def __init__(self, asks: Asks, hosts: list[EmptyHost]) -> None:
        self._asks, self._hosts = asks, hosts
        self._cores_max = max(host.cpu_milli for host in hosts) // CORE_MILLI
        self._cores = -(-asks.cpu_milli // CORE_MILLI)
        self._steps = -(-asks.gpu_milli // MILLI_STEP)

    def best(self, host: EmptyHost, price: Floats) -> Filling | None:
        """The filling of most worth. None where memory lets nothing in that is worth anything."""
        filling = self._at(host, price, 0.0)
        if self._memory_mib(filling) <= host.memory_mib:
            return filling
        low, high, found = 0.0, MEMORY_PRICE_MAX, None
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            filling = self._at(host, price, middle)
            if self._memory_mib(filling) <= host.memory_mib:
                high, found = middle, filling
            else:
                low = middle
        return found

    def _memory_mib(self, filling: Filling) -> int:
        return sum(int(self._asks.memory_mib[ask]) for ask, _ in filling)

    def _at(self, host: EmptyHost, price: Floats, memory_price: float) -> Filling:
        value = price - memory_price * self._asks.memory_mib
        worthy = (value > WORTH) & self._asks.allowed[:, host.model] & (self._cores <= self._cores_max)
        one, choice = self._one_gpu(value, np.nonzero(worthy & (self._asks.gpus == 1))[0])
        spare, spare_choice = self._spare(value, np.nonzero(worthy & (self._asks.gpus == 0) & (self._cores > 0))[0])
        tables = _Tables(one, choice, spare, spare_choice)
        return self._host(host, tables, value, [int(ask) for ask in np.nonzero(worthy & (self._asks.gpus > 1))[0]])

    def _one_gpu(self, value: Floats, asks: Whole) -> tuple[Floats, Whole]:
        """Most value of a GPU by steps and cores."""
        width = self._cores_max + 1
        table, choice = np.zeros((STEPS + 1, width)), np.full((STEPS + 1, width), -1)
        before = np.arange(width)[None, :] - self._cores[asks][:, None]
        steps = self._steps[asks]
        for step in range(1, STEPS + 1):
            table[step] = table[step - 1]
            able = np.nonzero(steps <= step)[0]
            if not len(able):
                continue
            worth = table[(step - steps[able])[:, None], np.maximum(before[able], 0)] + value[asks[able]][:, None]
            worth[before[able] < 0] = -1.0
            first = worth.argmax(axis=0)
            most = worth[first, np.arange(width)]
            better = most > table[step] + WORTH
            table[step][better] = most[better]
            choice[step][better] = asks[able[first[better]]]
        return table, choice

    def _spare(self, value: Floats, asks: Whole) -> tuple[Floats, Whole]:
        """Most value of cores alone."""
        table, choice = np.zeros(self._cores_max + 1), np.full(self._cores_max + 1, -1)
        for cores in range(1, self._cores_max + 1):
            table[cores] = table[cores - 1]
            able = asks[self._cores[asks] <= cores]
            if len(able):
                worth = table[cores - self._cores[able]] + value[able]
                first = int(worth.argmax())
                if worth[first] > table[cores] + WORTH:
                    table[cores], choice[cores] = worth[first], able[first]
        return table, choice

    def _host(self, host: EmptyHost, tables: _Tables, value: Floats, several: list[int]) -> Filling:
        """Most value of all GPUs by cores, then read back from the end."""
        width = host.cpu_milli // CORE_MILLI + 1
        one = tables.value[STEPS][:width]
        total, split = [tables.spare[:width]], [np.zeros(width, dtype=np.int64)]
        whole: list[Whole] = [np.full(width, -1)]
        before = np.arange(width)[:, None] - np.arange(width)[None, :]
        for gpus in range(1, host.gpus + 1):
            worth = np.where(before >= 0, total[gpus - 1][np.maximum(before, 0)] + one[None, :], -1.0)
            cores = worth.argmax(axis=1)
            most, taken = worth[np.arange(width), cores], np.full(width, -1)
            for ask in several:
                need, count = int(self._cores[ask]), int(self._asks.gpus[ask])
                if count <= gpus and need < width:
                    other = np.full(width, -1.0)
                    other[need:] = total[gpus - count][: width - need] + value[ask]
                    better = other > most + WORTH
                    most[better], taken[better] = other[better], ask
            total.append(most)
            split.append(cores)
            whole.append(taken)
        return self._read(host, tables, split, whole)

    def _read(self, host: EmptyHost, tables: _Tables, split: list[Whole], whole: list[Whole]) -> Filling:
        pods: list[tuple[int, int]] = []
        gpus, cores, gpu = host.gpus, host.cpu_milli // CORE_MILLI, 0
        while gpus > 0:
            ask = int(whole[gpus][cores])
            if ask >= 0:
                count = int(self._asks.gpus[ask])
                pods.append((ask, gpu))
            else:
                count = 1
                pods.extend((each, gpu) for each in self._shared(tables.choice, int(split[gpus][cores])))
            used = int(self._cores[ask]) if ask >= 0 else int(split[gpus][cores])
            gpus, gpu, cores = gpus - count, gpu + count, cores - used
        while cores > 0:
            ask = int(tables.spare_choice[cores])
            if ask >= 0:
                pods.append((ask, NO_GPU))
            cores -= int(self._cores[ask]) if ask >= 0 else 1
        return tuple(sorted(pods))

    def _shared(self, choice: Whole, cores: int) -> list[int]:
        found, step = [], STEPS
        while step > 0:
            ask = int(choice[step][cores])
            if ask < 0:
                step -= 1
                continue
            found.append(ask)
            step, cores = step - int(self._steps[ask]), cores - int(self._cores[ask])
        return found


ROUNDS_MAX = 200
CORE_VALUE = 60.0
"""Thousandths of a GPU that a core is worth to a pod without a GPU: enough that none of them is left out."""
GAIN = 1e-6
LIMITS = Limits(time_s=60.0)
LATER_PART = 0.3
"""Beyond the pods of one capacity, so many more of each are planned for: room that only some pods may use, or that is
left over, is then left where it is of use.
"""
LATER_VALUE, LATER_VALUE_SCARCE = 0.5, 0.95
"""What these count, and what they count where the pods of one capacity cannot fill the hosts, because too many of them
are bound to the same few.
"""
FULL_PART = 0.94


Mix: TypeAlias = tuple[tuple[EmptyHost, Filling, int], ...]
"""How many hosts of a kind are filled so."""


def mix(asks: Asks, hosts: list[EmptyHost], counts: Whole, engine: Engine) -> Mix:
    """A plan for as many pods as the hosts can take of those expected, in the proportions of `counts`."""
    made, first_part = _mix(asks, hosts, counts, engine, LATER_VALUE)
    return made if first_part >= FULL_PART else _mix(asks, hosts, counts, engine, LATER_VALUE_SCARCE)[0]


def _mix(asks: Asks, hosts: list[EmptyHost], counts: Whole, engine: Engine, later_value: float) -> tuple[Mix, float]:
    """The plan, and the part of all GPUs that the pods of one capacity get in it."""
    capacity_milli = 1000 * sum(host.gpus for host in hosts)
    scale = min(1.0, capacity_milli / max(1.0, float((counts * asks.need_milli).sum())))
    expected = np.asarray(counts * scale, dtype=np.float64)
    kinds = sorted(set(hosts))
    counted = Counter(hosts)
    numbers = np.array([counted[kind] for kind in kinds], dtype=np.float64)
    worth = np.where(asks.gpus > 0, asks.need_milli, CORE_VALUE * asks.cpu_milli / CORE_MILLI).astype(np.float64)
    value = np.concatenate([worth, later_value * worth])
    filler, price, rent = HostFiller(asks, kinds), worth, np.zeros(len(kinds))
    columns: dict[tuple[int, Filling], None] = {}
    answer = EngineAnswer(status=engine.solve(_programme(asks, [], numbers, expected, value), LIMITS).status)
    for _ in range(ROUNDS_MAX):
        known = len(columns)
        for kind, host in enumerate(kinds):
            filling = filler.best(host, price)
            if filling and sum(price[ask] for ask, _ in filling) - rent[kind] > GAIN:
                columns[kind, filling] = None
        if len(columns) == known:
            break
        answer = engine.solve(_programme(asks, list(columns), numbers, expected, value), LIMITS)
        if answer.row_duals is None:
            break
        price, rent = -answer.row_duals[: len(asks)], -answer.row_duals[len(asks) :]
    values = answer.values if answer.values is not None else np.zeros(len(columns) + 2 * len(asks))
    first_part = float(values[len(columns) : len(columns) + len(asks)] @ asks.need_milli) / capacity_milli
    whole = [(kinds[kind], filling, int(values[number] + GAIN)) for number, (kind, filling) in enumerate(list(columns))]
    return tuple(item for item in whole if item[2]), first_part


def _programme(
    asks: Asks, columns: list[tuple[int, Filling]], numbers: Floats, expected: Floats, value: Floats
) -> Program:
    """Fillings, pods served, pods served later: no more than expected, than places; no more fillings than hosts."""
    start, row, entry = [0], [], []
    for kind, filling in columns:
        places = sorted(Counter(ask for ask, _ in filling).items())
        row += [ask for ask, _ in places] + [len(asks) + kind]
        entry += [-float(count) for _, count in places] + [1.0]
        start.append(len(row))
    for ask in (*range(len(asks)), *range(len(asks))):
        row.append(ask)
        entry.append(1.0)
        start.append(len(row))
    total = len(columns) + 2 * len(asks)
    return Program(
        cost=np.concatenate([np.zeros(len(columns)), -value]),
        lower=np.zeros(total),
        upper=np.concatenate([np.full(len(columns), np.inf), expected, LATER_PART * expected]),
        integer=np.zeros(total, dtype=np.bool_),
        start=np.array(start, dtype=np.int64),
        row=np.array(row, dtype=np.int64),
        value=np.array(entry, dtype=np.float64),
        row_lower=np.full(len(asks) + len(numbers), -np.inf),
        row_upper=np.concatenate([np.zeros(len(asks)), numbers]),
    )
