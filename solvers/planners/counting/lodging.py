"""Every workload whole in one replica, as few devices as that takes: the answer of small problems, at once.

Owns a plain packing. For each pool at its highest clock, a workload's least share is the one that serves all of its
rate in company; the largest goes first, onto the first device where `judge` finds everybody served, shares of those who
fall short being raised while there is room. The cheapest pool wins; pools are not mixed. It refuses problems where some
workload needs more than one replica, or has a budget.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.problems.joint import Floats, JointProblem, Whole
from solvers.problems.layout import Layout
from solvers.problems.patterns import TOLERANCE, Pattern, between, judge, serve

COMPANY = 0.3
"""Pressure of the others that a least share is read for; whoever is pressed more is given more."""
RAISES_MAX = 24
SERVED = 1 - 1e-9


@dataclass(slots=True)
class _Device:
    """What lodges on one device so far."""

    shares: dict[int, int]
    """By variant."""
    pattern: Pattern


def lodge(problem: JointProblem) -> Layout | None:
    """The cheapest such layout; None where there is none."""
    if any(
        work.replicas_min > 1 or work.domains_min > 1 or np.isfinite(work.budget_usd_per_h)
        for work in problem.workloads
    ):
        return None
    layouts = (_on_pool(problem, pool) for pool in range(len(problem.pools)))
    return min((layout for layout in layouts if layout is not None), key=lambda item: item.usd_per_h, default=None)


def _on_pool(problem: JointProblem, pool: int) -> Layout | None:
    kinds = np.flatnonzero(problem.kind_pool == pool)
    if not len(kinds):
        return None
    kind = int(kinds[np.argmax(problem.kind_clock_mhz[kinds])])
    least = [_least(problem, kind, number) for number in range(len(problem.workloads))]
    devices: list[_Device] = []
    for entry in sorted((entry for entry in least if entry is not None), key=lambda entry: (-entry[1], entry[0])):
        if not any(_join(problem, kind, device, entry) for device in devices):
            alone = _fit(problem, kind, {entry[0]: entry[1]})
            if alone is None or len(devices) == problem.pools[pool].devices:
                return None
            devices.append(alone)
    wanted = sum(work.rate_rps > 0 for work in problem.workloads)
    lodged = sum(len(device.shares) for device in devices)
    if not devices or lodged < wanted or not (_capped(problem, pool, devices) and _in_quota(problem, pool, devices)):
        return None
    counts: dict[Pattern, int] = {}
    for device in devices:
        counts[device.pattern] = counts.get(device.pattern, 0) + 1
    return Layout(patterns=tuple(counts), counts=tuple(counts.values()))


def _capped(problem: JointProblem, pool: int, devices: list[_Device]) -> bool:
    """Whether power caps bear these devices, all others of the domains idle."""
    extra = sum(device.pattern.draw_w - problem.pools[pool].idle_w for device in devices)
    for cap in problem.caps:
        idle = sum(count * item.idle_w for count, item in zip(cap.devices, problem.pools, strict=True))
        if cap.devices[pool] and idle + extra > cap.limit_w + TOLERANCE:
            return False
    return True


def _in_quota(problem: JointProblem, pool: int, devices: list[_Device]) -> bool:
    """Whether every project holds no more than it may."""
    held: dict[str, float] = {}
    for device in devices:
        for variant, share in device.shares.items():
            project = problem.workloads[problem.variants[variant].workload].project
            held[project] = held.get(project, 0.0) + share / 100 * problem.pools[pool].gpu_part
    return all(held.get(project, 0.0) <= quota + TOLERANCE for project, quota in problem.quotas)


def _least(problem: JointProblem, kind: int, number: int) -> tuple[int, int] | None:
    """The variant and share that serve all of a workload's rate in company with the least share."""
    rate = problem.workloads[number].rate_rps
    table, pool = int(problem.kind_table[kind]), int(problem.kind_pool[kind])
    shares = np.arange(problem.share_step_pct, 101, problem.share_step_pct)
    found: list[tuple[int, int]] = []
    for variant in np.flatnonzero(problem.variant_workload == number):
        if rate <= 0 or not problem.allowed[pool, variant]:
            continue
        slow = problem.crowd[table, variant] * (1 + problem.sensitivity[table, variant] * COMPANY)
        mean, tail = (
            _at_shares(problem, cells[table, variant], shares) * slow for cells in (problem.mean_ms, problem.tail_ms)
        )
        _, rates = serve(problem, int(variant), mean, tail)
        rates = np.where(problem.memory_mib[table, variant] <= problem.pools[pool].memory_mib, rates, 0.0)
        # Alone on a whole device nobody slows it; then `judge` decides.
        enough = np.append(np.flatnonzero(rates.max(axis=1) >= rate * SERVED), len(shares) - 1)
        found.append((int(variant), int(shares[enough[0]])))
    return min(found, key=lambda entry: entry[1], default=None)


def _at_shares(problem: JointProblem, cells: Floats, shares: Whole) -> Floats:
    """As `patterns.at_share`, for many shares at once."""
    grid = problem.shares_pct
    above = np.minimum(np.searchsorted(grid, shares - TOLERANCE), len(grid) - 1)
    below = np.maximum(above - 1, 0)
    exact = np.abs(grid[above] - shares) <= TOLERANCE
    weight = np.where(exact, 1.0, (shares - grid[below]) / np.maximum(1, grid[above] - grid[below]))[:, None]
    values = between(cells[below], cells[above], weight)
    values[shares < grid[0]] = np.inf
    return values


def _join(problem: JointProblem, kind: int, device: _Device, entry: tuple[int, int]) -> bool:
    fitting = _fit(problem, kind, {**device.shares, entry[0]: entry[1]})
    if fitting is None:
        return False
    device.shares, device.pattern = fitting.shares, fitting.pattern
    return True


def _fit(problem: JointProblem, kind: int, shares: dict[int, int]) -> _Device | None:
    """Judge the members; those that fall short get more while there is room."""
    shares = dict(shares)
    for _ in range(RAISES_MAX):
        if sum(shares.values()) > 100:
            return None
        pattern = judge(problem, kind, tuple(shares), tuple(shares.values()))
        short = list(shares) if pattern is None else _short(problem, pattern)
        if pattern is not None and not short:
            return _Device(shares=shares, pattern=pattern)
        for variant in short:
            shares[variant] += problem.share_step_pct
    return None


def _short(problem: JointProblem, pattern: Pattern) -> list[int]:
    return [
        variant
        for variant, capacity in zip(pattern.variants, pattern.capacity_rps, strict=True)
        if capacity < problem.workloads[problem.variants[variant].workload].rate_rps * SERVED
    ]
