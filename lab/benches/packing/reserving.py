"""Places for pods that come one by one, when it is known which are to be expected: each takes a place kept for its
kind, or room that is kept for nobody, or, where only kept room is left, that.

Owns the kept places and gives them up where something else had to go. A pod that fits anywhere is taken: keeping room
steers where pods go, never whether.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lab.benches.packing.allocation import ABSENT, WHOLE_MILLI, Asks, EmptyHost, HostRooms, PlacingRule, RoomLeft
from lab.benches.packing.mixing import Mix


@dataclass(slots=True)
class _Book:
    """What one host has left and what of it is kept; GPUs keep their numbers here."""

    model: int
    cpu_milli: int
    memory_mib: int
    gpu_milli: list[int]
    kept_cpu_milli: int = 0
    kept_memory_mib: int = 0
    kept_gpu_milli: list[int] = field(default_factory=list)
    busy: bool = False

    def real(self) -> tuple[int, ...]:
        """All that is left."""
        return (self.model, self.cpu_milli, self.memory_mib, *self.gpu_milli)

    def open(self) -> tuple[int, ...]:
        """What is left and kept for nobody."""
        gpus = (left - kept for left, kept in zip(self.gpu_milli, self.kept_gpu_milli, strict=True))
        return (self.model, self.cpu_milli - self.kept_cpu_milli, self.memory_mib - self.kept_memory_mib, *gpus)

    @property
    def overdrawn(self) -> bool:
        """Whether more is kept than is left."""
        return min(self.open()[1:3]) < 0 or any(
            kept > max(left, 0) for left, kept in zip(self.gpu_milli, self.kept_gpu_milli, strict=True)
        )


class Reserving:
    """Decides host by host; `rule` chooses among rooms that are kept for nobody."""

    def __init__(self, asks: Asks, hosts: list[EmptyHost], mix: Mix, rule: PlacingRule) -> None:
        self._asks = asks
        width = max(host.gpus for host in hosts)
        self._books = [
            _Book(
                model=host.model,
                cpu_milli=host.cpu_milli,
                memory_mib=host.memory_mib,
                gpu_milli=[WHOLE_MILLI] * host.gpus + [ABSENT] * (width - host.gpus),
                kept_gpu_milli=[0] * width,
            )
            for host in hosts
        ]
        self._kept: list[dict[int, list[int]]] = [{} for _ in range(len(asks))]
        self._alike = _alike(asks)
        self._keep_all(hosts, mix)
        self._real, self._open = HostRooms(asks, hosts, rule), HostRooms(asks, hosts, rule)
        for number, book in enumerate(self._books):
            self._open.set(number, book.open())

    def _keep_all(self, hosts: list[EmptyHost], mix: Mix) -> None:
        free: dict[EmptyHost, list[int]] = {}
        for number, host in reversed(list(enumerate(hosts))):
            free.setdefault(host, []).append(number)
        for kind, filling, times in mix.fillings:
            for _ in range(times):
                number = free[kind].pop()
                for ask, gpu in filling:
                    self._keep(number, ask, gpu, 1)

    def _keep(self, host: int, ask: int, gpu: int, sign: int) -> None:
        book, asks = self._books[host], self._asks
        book.kept_cpu_milli += sign * int(asks.cpu_milli[ask])
        book.kept_memory_mib += sign * int(asks.memory_mib[ask])
        for each in range(gpu, gpu + int(asks.gpus[ask])):
            book.kept_gpu_milli[each] += sign * int(asks.gpu_milli[ask])
        places = self._kept[ask]
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
            self._take(host, ask, tuple(range(gpu, gpu + int(self._asks.gpus[ask]))))
            return host
        found = self._open.best(ask, ties)
        if found is not None:
            self._take(found.host, ask, _numbers(self._books[found.host].open()[3:], found.gpus))
            return found.host
        other = self._alike_place(ask)
        if other is not None:
            return other
        found = self._real.best(ask, ties)
        if found is None:
            return None
        self._take(found.host, ask, _numbers(self._books[found.host].real()[3:], found.gpus))
        return found.host

    def _alike_place(self, ask: int) -> int | None:
        """A place kept for pods of the same size that may run elsewhere, or also elsewhere."""
        for alike in self._alike[ask]:
            for host in self._kept[alike]:
                if self._asks.allowed[ask][self._books[host].model]:
                    gpu = self._kept[alike][host][0]
                    self._keep(host, alike, gpu, -1)
                    self._take(host, ask, tuple(range(gpu, gpu + int(self._asks.gpus[ask]))))
                    return host
        return None

    def room(self) -> RoomLeft:
        """What is left on every host, kept places included."""
        table = np.array([book.real() for book in self._books], dtype=np.int64)
        return RoomLeft(table[:, 0], table[:, 1], table[:, 2], table[:, 3:])

    def _take(self, host: int, ask: int, gpus: tuple[int, ...]) -> None:
        book = self._books[host]
        book.busy = True
        book.cpu_milli -= int(self._asks.cpu_milli[ask])
        book.memory_mib -= int(self._asks.memory_mib[ask])
        for gpu in gpus:
            book.gpu_milli[gpu] -= int(self._asks.gpu_milli[ask])
        if book.overdrawn:
            self._give_up(host)
        self._real.set(host, book.real())
        self._open.set(host, book.open())

    def _give_up(self, host: int) -> None:
        """Places of this host that cannot be kept any more, those that ask most of a GPU first."""
        book = self._books[host]
        places = [(ask, gpu) for ask, kept in enumerate(self._kept) for gpu in kept.get(host, ())]
        for ask, gpu in sorted(places, key=lambda item: (-int(self._asks.need_milli[item[0]]), item)):
            over = min(book.open()[1:3]) < 0 or any(
                book.kept_gpu_milli[each] > book.gpu_milli[each] for each in range(gpu, gpu + int(self._asks.gpus[ask]))
            )
            if over:
                self._keep(host, ask, gpu, -1)


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
