"""How many hosts to fill in which way, so that the pods expected get the most GPU: a linear programme over fillings.

Owns the generation of fillings at the programme's prices, and the whole numbers at its end, rounded down: hosts that no
filling is sure of stay free for what was not expected. It refuses to know where pods really went.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from lab.benches.packing.allocation import Asks, EmptyHost
from lab.benches.packing.filling import CORE_MILLI, Filling, HostFiller
from solvers.domain.arrays import Floats, Whole
from solvers.engines.base import Engine, EngineAnswer, Limits, Program

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


@dataclass(frozen=True, slots=True)
class Mix:
    """Hosts by kind and filling, and the part of all GPUs that the fractional plan gives away: no way of packing the
    same pods gives more, but for what rounding to cores costs.
    """

    fillings: tuple[tuple[EmptyHost, Filling, int], ...]
    allocated_part: float


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
    first, later = (values[len(columns) :].reshape(2, len(asks)) @ asks.need_milli) / capacity_milli
    whole = [(kinds[kind], filling, int(values[number] + GAIN)) for number, (kind, filling) in enumerate(list(columns))]
    return Mix(tuple(item for item in whole if item[2]), float(first + later)), float(first)


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
