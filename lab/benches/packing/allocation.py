"""Pods that ask for CPU, memory and parts of GPUs, hosts that have them, and how much of each host is left.

Owns what is free on every host and which hosts look alike: hosts of equal room are one state, so that a rule is asked
once for a state and an ask, however many hosts and pods there are. A pod shares one GPU, or has whole GPUs of one host.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole

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
    """What a host has when nothing runs on it."""

    model: int
    cpu_milli: int
    memory_mib: int
    gpus: int


@dataclass(frozen=True, slots=True)
class RoomLeft:
    """What is left, one element per host or state; GPUs by falling room, `ABSENT` where there is none."""

    model: Whole
    cpu_milli: Whole
    memory_mib: Whole
    gpu_milli: Whole

    def of(self, which: Whole | Flags) -> RoomLeft:
        """Some of them."""
        return RoomLeft(self.model[which], self.cpu_milli[which], self.memory_mib[which], self.gpu_milli[which])

    def fits(self, asks: Asks, ask: int) -> Flags:
        """Where a pod could go."""
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
        ...


@dataclass(frozen=True, slots=True)
class PodPlace:
    """Where a pod goes: a host, and its GPUs by position in that host's present room."""

    host: int
    gpus: tuple[int, ...]


class HostRooms:
    """What is left on every host, kept up to date."""

    def __init__(self, asks: Asks, hosts: list[EmptyHost], rule: PlacingRule) -> None:
        self._asks, self._rule = asks, rule
        self._width = max(host.gpus for host in hosts)
        self._known: dict[tuple[int, ...], int] = {}
        self._members: list[list[int]] = []
        size = 1024
        self._rows = np.zeros((size, 3 + self._width), dtype=np.int64)
        self._cost = np.full((size, len(asks)), np.nan)
        self._pick = np.zeros((size, len(asks)), dtype=np.int64)
        self._active: set[int] = set()
        self.state = np.zeros(len(hosts), dtype=np.int64)
        for number, host in enumerate(hosts):
            gpus = [WHOLE_MILLI] * host.gpus + [ABSENT] * (self._width - host.gpus)
            self._enter(number, (host.model, host.cpu_milli, host.memory_mib, *gpus))

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
        """A pod is there now."""
        self.set(place.host, reduced(self.row(place.host), self._asks, ask, place.gpus))


def reduced(row: tuple[int, ...], asks: Asks, ask: int, gpus: tuple[int, ...]) -> tuple[int, ...]:
    """What is left of a room with a pod more, GPUs by position."""
    left = list(row)
    left[1] -= int(asks.cpu_milli[ask])
    left[2] -= int(asks.memory_mib[ask])
    for gpu in gpus:
        left[3 + gpu] -= int(asks.gpu_milli[ask])
    return tuple(left)
