"""A whole run: which points, for how long, and what happens with what was measured.

Owns the budget, going on where an earlier run stopped, and handing results over as they come, so that a run that is cut
off loses one point at most. It refuses to start a point that the budget will not see the end of, going by how long
points took so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agents.devices.base import WorkerSpec
from agents.profiling.pairing import steps
from agents.profiling.points import Measured, Point, ResultFile
from agents.profiling.session import Bench, StoppedError, measure

POINT_S_USUAL = 40.0
"""How long a point is thought to take before any was measured."""
FAILURES_MAX = 3
"""So many points in a row without a result: something is wrong with the worker, not with the points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What a run is told. `spec_of` gives the worker of a point; `propose` the next points to measure, most useful
    first, knowing what was delivered; `deliver` hands results over; `say` tells the user.
    """

    budget_s: float
    spec_of: Callable[[Point], WorkerSpec]
    propose: Callable[[], Sequence[Point]]
    deliver: Callable[[Sequence[Measured]], None]
    say: Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairErrand:
    """What a run of two services is told. `spec_of` gives the worker of the first (0) or second (1) at a point;
    `deliver` takes one result of a worker alone, or two of workers side by side.
    """

    budget_s: float
    spec_of: Callable[[int, Point], WorkerSpec]
    deliver: Callable[[Sequence[Measured]], None]
    say: Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended."""

    measured: int
    doubtful: int
    resumed: int
    why: str
    """budget, complete, stopped, or failing"""


def run(bench: Bench, errand: Errand, results: ResultFile) -> Outcome:
    """Measure until the budget is spent, nothing is left to ask, or nothing works."""
    before = [item for item in results.read() if not item.beside]
    kept = [item for item in before if item.usable]
    if kept:
        errand.deliver(kept)
    done = {item.point for item in before}
    fresh: list[Measured] = []
    until_s = bench.now_s() + errand.budget_s
    longest_s, failing = POINT_S_USUAL, 0
    while True:
        point = next((point for point in errand.propose() if point not in done), None)
        why = "complete" if point is None else _over(bench.now_s() + longest_s > until_s, failing)
        if point is None or why:
            return _outcome(fresh, len(before), why)
        started_s = bench.now_s()
        try:
            (item,) = measure(bench, (errand.spec_of(point),), point.clock_mhz_sm)
        except StoppedError:
            return _outcome(fresh, len(before), "stopped")
        item = replace(item, point=point)
        took_s = bench.now_s() - started_s
        longest_s = took_s if not fresh else max(longest_s, took_s)
        done.add(point)
        fresh.append(item)
        results.add(item)
        failing = 0 if item.usable else failing + 1
        if item.usable:
            errand.deliver([item])
        errand.say(sentence(item, took_s))


def run_pairs(bench: Bench, errand: PairErrand) -> Outcome:
    """Measure two services alone and side by side until the budget is spent or the design is through."""
    fresh: list[Measured] = []
    until_s = bench.now_s() + errand.budget_s
    longest_s, failing, why = POINT_S_USUAL, 0, "complete"
    for step in steps():
        why = _over(bench.now_s() + longest_s > until_s, failing)
        if why:
            break
        specs = [errand.spec_of(place, point) for place, point in enumerate(step) if point is not None]
        started_s = bench.now_s()
        try:
            found = measure(bench, specs, None)
        except StoppedError:
            return _outcome(fresh, 0, "stopped")
        longest_s = max(longest_s if fresh else 0.0, bench.now_s() - started_s)
        fresh += found
        failing = 0 if all(item.usable for item in found) else failing + 1
        errand.deliver(found)
        for item in found:
            errand.say(sentence(item, bench.now_s() - started_s))
    return _outcome(fresh, 0, why or "complete")


def _over(too_late: bool, failing: int) -> str:
    if failing >= FAILURES_MAX:
        return "failing"
    return "budget" if too_late else ""


def _outcome(fresh: Sequence[Measured], resumed: int, why: str) -> Outcome:
    usable = sum(item.usable for item in fresh)
    return Outcome(measured=usable, doubtful=len(fresh) - usable, resumed=resumed, why=why)


def sentence(item: Measured, took_s: float) -> str:
    """A result in one line."""
    point = item.point
    clock = f", {point.clock_mhz_sm} MHz" if point.clock_mhz_sm else ""
    where = f"batch {point.batch}, {point.share_pct_sm} %{clock}"
    if item.latency_ms_mean is None or item.problem:
        return f"{where}: no result, {item.problem} ({took_s:.0f} s)"
    parts = [f"{item.latency_ms_mean:.3f} ms ± {item.half_width_pct or 0.0:.1f} %"]
    if item.throughput_rps is not None:
        parts.append(f"{item.throughput_rps:.0f}/s")
    if item.memory_mib is not None:
        parts.append(f"{item.memory_mib:.0f} MiB")
    if item.power_w is not None:
        parts.append(f"{item.power_w:.0f} W")
    return f"{where}: {', '.join(parts)} ({item.sm_count} SMs, {took_s:.0f} s)"
