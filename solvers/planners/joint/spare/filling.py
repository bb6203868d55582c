"""Spare share for services that can always use more, on devices that are in use anyway.

A service whose demand is not counted and whose promise says nothing of waiting (execution time alone, or a floor under
the rate) is open-ended: its declared rate is a floor, and whatever more it serves counts by its priority. On devices
that carry nothing but such services, and on which nothing stands yet, contents are exchanged for contents that serve
more in all, copies of a service included; declared rates come first, and no cap is exceeded. What was filled once
stays. Whole devices are never added, and a device is paid whole, so only energy is spent. Services with budgets, quotas
or spread are left alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement, product
from types import MappingProxyType

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.ids import DeviceId, WorkloadId
from solvers.domain.policy import CostBasis
from solvers.domain.snapshot import Snapshot
from solvers.planners.joint.seat.seats import DUST, DUST_W, Move, Seats
from solvers.planners.joint.write.members import CEILING_PART
from solvers.problems.joint import JointProblem
from solvers.problems.needs import open_ended_services
from solvers.problems.patterns import Pattern, judge

MEMBERS_MAX = 4
JUDGED_MAX = 4000
"""Contents that are looked at, over all kinds of a pool."""
PAIRS_MAX = 8
"""Devices of a pool up to which two are exchanged at a time."""
KEPT_MAX = 250
"""Contents of a pool that are remembered."""
GAIN_PART_MIN = 1e-3
DECLARED_FACTOR = 20.0
"""What is declared counts so many times as much as what comes on top."""
_NO_CLOCKS: Mapping[DeviceId, int] = MappingProxyType({})


def open_ended(snapshot: Snapshot) -> frozenset[WorkloadId]:
    """Services that can always use more, as far as filling may serve them."""
    if snapshot.policy.cost_basis is not CostBasis.DEVICE:
        return frozenset()
    endless = open_ended_services(snapshot)
    bounded = {item.name for item in snapshot.projects if item.quota_gpus is not None}
    return frozenset(
        WorkloadId(item.id)
        for item in snapshot.services
        if item.id in endless
        and item.project not in bounded
        and item.budget_usd_per_h is None
        and item.affinity.failure_domains_min < 2
    )


def fill(seats: Seats, open_to: Collection[WorkloadId], clocks_mhz: Mapping[DeviceId, int] = _NO_CLOCKS) -> bool:
    """Keep what was filled before, and exchange other contents until nothing serves more; whether anything changed.
    `clocks_mhz`: clocks of devices, as they stand.
    """
    problem = seats.floor.problem
    mine = frozenset(number for number, item in enumerate(problem.workloads) if item.id in open_to)
    changed = _keep_standing(seats, mine, clocks_mhz)
    for pool in range(len(problem.pools) if mine else 0):
        devices = [
            device
            for device in seats.floor.devices(pool)
            if device not in seats.floor.held and _all_of(problem, seats.patterns[device], mine)
        ]
        if devices:
            table = _Table.of(seats, list(_contents(problem, pool, sorted(mine))))
            while _improve(seats, table, devices):
                changed = True
    return changed


def _all_of(problem: JointProblem, pattern: Pattern | None, mine: Collection[int]) -> bool:
    return pattern is not None and all(problem.variants[item].workload in mine for item in pattern.variants)


def _contents(problem: JointProblem, pool: int, mine: Sequence[int]) -> Iterator[Pattern]:
    """Few replicas first, in as many partings of the device as there is time for, at the highest clock that power and
    promises bear.
    """
    variants = [
        number
        for number, item in enumerate(problem.variants)
        if item.workload in mine and problem.allowed[pool, number]
    ]
    clocks = sorted({int(clock) for clock in problem.kind_clock_mhz[problem.kind_pool == pool]}, reverse=True)
    left = JUDGED_MAX
    for size in range(1, MEMBERS_MAX + 1):
        groups = list(combinations_with_replacement(variants, size))
        partings = _partings(problem.shares_pct.tolist(), size, left // max(1, len(groups)))
        left -= len(groups) * len(partings)
        for members, parting in product(groups, partings):
            kinds = (kind for clock in clocks for kind in problem.like(pool, clock))
            found = (judge(problem, kind, members, parting) for kind in kinds)
            best = next((pattern for pattern in found if pattern is not None), None)
            if best is not None:
                yield best


def _partings(shares_pct: Sequence[int], size: int, most: int) -> list[tuple[int, ...]]:
    """Shares of so many members that leave nothing: all of them, else in steps of ten, else even ones; never more than
    so many.
    """
    coarse = [share for share in shares_pct if share % 10 == 0]
    for steps in (shares_pct, coarse):
        made = [parts for parts in product(steps, repeat=size) if sum(parts) == 100] if len(steps) ** size < 1e5 else []
        if made and len(made) <= most:
            return made
    even = max((share for share in shares_pct if share * size <= 100), default=0)
    return [(even,) * size] if even and most else []


def _keep_standing(seats: Seats, mine: Collection[int], clocks_mhz: Mapping[DeviceId, int]) -> bool:
    """Give devices their standing contents back, as far as these are of such workloads alone; whether anything changed.
    A solve sees declared rates alone, so it would take away what fills a device, for the energy it draws, cycle after
    cycle.
    """
    changed = False
    for device in sorted(seats.floor.held):
        now, stood = seats.patterns[device], _standing(seats, device, mine, clocks_mhz)
        if now is None or stood is None or stood.key == now.key or not _all_of(seats.floor.problem, now, mine):
            continue
        move = Move(device=device, after=stood)
        if seats.powers(move) and _keeps_bounds(seats, move):
            seats.make(move)
            changed = True
    return changed


def _standing(seats: Seats, device: int, mine: Collection[int], clocks_mhz: Mapping[DeviceId, int]) -> Pattern | None:
    """What stands on a device at its clock, or at the highest that bears it; None where it may not go on so."""
    floor, problem = seats.floor, seats.floor.problem
    held, pool = floor.held[device], int(floor.pool_of[device])
    if not all(problem.variants[item.variant].workload in mine for item in held):
        return None
    listed = sorted({int(clock) for clock in problem.kind_clock_mhz[problem.kind_pool == pool]}, reverse=True)
    stands = clocks_mhz.get(floor.names[device], listed[0])
    clocks = [stands] * (stands in listed) + [clock for clock in listed if clock != stands]
    variants, shares = [item.variant for item in held], [item.share_pct for item in held]
    judged = (judge(problem, kind, variants, shares) for clock in clocks for kind in problem.like(pool, clock))
    return next((pattern for pattern in judged if pattern is not None), None)


def _keeps_bounds(seats: Seats, move: Move) -> bool:
    """Whether no workload falls short by it, or below or above its numbers of replicas, further than it is."""
    for number, delta in seats.change(move).items():
        work, served, count = seats.floor.problem.workloads[number], seats.served_rps[number], seats.replicas[number]
        if served + delta.rps < min(work.rate_least_rps, served) * (1 - DUST):
            return False
        if not min(work.replicas_min, count) <= count + delta.replicas <= max(work.replicas_max, count):
            return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Contents of one pool, none worse than another in everything: what they serve, in all and by workload."""

    patterns: tuple[Pattern, ...]
    value: Floats
    rates_rps: Floats
    """Contents x workload."""
    replicas: Floats
    dynamic_w: Floats

    @staticmethod
    def of(seats: Seats, found: Sequence[Pattern]) -> _Table:
        """The best of what was found, the most valuable first."""
        rows = [_row(seats, pattern) for pattern in found]
        rates = np.array([rates for rates, _ in rows]).reshape(len(rows), -1)
        value = rates @ _weights(seats.floor.problem)
        watts = np.array([seats.floor.dynamic_w(pattern) for pattern in found])
        kept: list[int] = []
        matters = [*rates.T, *([-watts] if len(seats.floor.room_w) else [])]
        merits = np.stack(matters, axis=1) if len(found) else np.zeros((0, 1))
        for index in np.argsort(-value, kind="stable").tolist():
            if len(kept) == KEPT_MAX:
                break
            if not kept or not (merits[kept] >= merits[index] - DUST).all(axis=1).any():
                kept.append(index)
        return _Table(
            patterns=tuple(found[index] for index in kept),
            value=value[kept],
            rates_rps=rates[kept],
            replicas=np.array([rows[index][1] for index in kept]).reshape(len(kept), -1),
            dynamic_w=watts[kept],
        )


def _row(seats: Seats, pattern: Pattern) -> tuple[Floats, Floats]:
    """Rates and replicas by workload."""
    problem = seats.floor.problem
    rates, replicas = np.zeros(len(problem.workloads)), np.zeros(len(problem.workloads))
    for variant, capacity in zip(pattern.variants, pattern.capacity_rps, strict=True):
        rates[problem.variants[variant].workload] += capacity
        replicas[problem.variants[variant].workload] += 1
    return rates, replicas


def _weights(problem: JointProblem) -> Floats:
    return np.array([float(max(1, item.priority)) for item in problem.workloads])


def _improve(seats: Seats, table: _Table, devices: Sequence[int]) -> bool:
    """The one exchange, on one device or else on two, that gains most."""
    for size in (1, 2) if len(devices) <= PAIRS_MAX else (1,):
        best: tuple[float, tuple[int, ...], tuple[int, ...]] | None = None
        seen: set[tuple[object, ...]] = set()
        for at in combinations(devices, size):
            key = tuple(_kind_of(seats, device) for device in at)
            if key in seen:
                continue
            seen.add(key)
            found = _exchange(seats, table, at)
            if found is not None and (best is None or found[0] > best[0] + DUST):
                best = found[0], at, found[1]
        if best is not None:
            for device, number in zip(best[1], best[2], strict=True):
                seats.put(device, table.patterns[number])
            return True
    return False


def _kind_of(seats: Seats, device: int) -> tuple[object, ...]:
    """Devices that are equal in this need be tried once."""
    pattern = seats.patterns[device]
    return (pattern.key if pattern is not None else None, *seats.floor.domain_of[device].tolist())


def _exchange(seats: Seats, table: _Table, at: tuple[int, ...]) -> tuple[float, tuple[int, ...]] | None:
    """What the best contents of these devices gain, and which they are."""
    problem, weights = seats.floor.problem, _weights(seats.floor.problem)
    rows = [_row(seats, pattern) for device in at if (pattern := seats.patterns[device]) is not None]
    rates, replicas = sum(row[0] for row in rows), sum(row[1] for row in rows)
    served, count = np.asarray(seats.served_rps), np.array(seats.replicas, dtype=np.float64)
    floors = np.array([item.rate_least_rps for item in problem.workloads])
    # A replica under a controller begins with a batch that serves a little less than the best.
    least = np.minimum(floors / CEILING_PART, served) * (1 - DUST) - served + rates
    fewest = np.minimum(np.array([item.replicas_min for item in problem.workloads]), count) - count + replicas
    most = np.maximum(np.array([item.replicas_max for item in problem.workloads]), count) - count + replicas
    fits = [table.dynamic_w <= seats.left_at(device) + seats.dynamic_w(device) + DUST_W for device in at]
    if len(at) == 1:
        made_rates, made_count, value = table.rates_rps, table.replicas, table.value
        able = fits[0]
    else:
        made_rates = table.rates_rps[:, None] + table.rates_rps[None]
        made_count = table.replicas[:, None] + table.replicas[None]
        value, able = table.value[:, None] + table.value[None], fits[0][:, None] & fits[1][None]
    able = able & (made_rates >= least).all(axis=-1) & (made_count >= fewest).all(axis=-1)
    able = able & (made_count <= most).all(axis=-1)
    short = np.maximum(0.0, floors - served + rates - made_rates) @ weights
    short_now = float(np.maximum(0.0, floors - served) @ weights)
    gain = np.where(able, value - float(rates @ weights) + DECLARED_FACTOR * (short_now - short), -np.inf)
    chosen = int(np.argmax(gain)) if gain.size else 0
    if not gain.size or gain.flat[chosen] <= GAIN_PART_MIN * float(rates @ weights):
        return None
    numbers = np.unravel_index(chosen, gain.shape)
    return float(gain.flat[chosen]), tuple(int(number) for number in numbers)
