"""The best filling of one empty host at given prices of pods: the columns of the plan of `reserving`.

Owns three nested knapsacks: of one GPU by thousandths and cores, of a host's GPUs by cores, of its spare cores. Memory
is kept by a price on it, raised until a filling keeps it. It refuses fillings of hosts where something already runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lab.benches.packing.allocation import WHOLE_MILLI, Asks, EmptyHost
from solvers.domain.arrays import Floats, Whole

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
        """Pods of one GPU."""
        found, step = [], STEPS
        while step > 0:
            ask = int(choice[step][cores])
            if ask < 0:
                step -= 1
                continue
            found.append(ask)
            step, cores = step - int(self._steps[ask]), cores - int(self._cores[ask])
        return found
