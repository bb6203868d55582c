"""Counts of patterns become named devices, so that the fewest replicas start and every single node bears its power.

A layout knows power only as sums over like nodes, no failure domains, and may put a floor of replicas above a budget;
all are made exact here, in this order: match to what stands, place the rest by power, snap shares to what stands, spare
what would be interrupted, spread over failure domains, keep every budget and power domain, make up what that took, and
give away what is spare: to jobs, and to others where it costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from solvers.engines.deadline import Deadline
from solvers.planners.joint.seat.excess import within_budgets, within_power
from solvers.planners.joint.seat.floor import Floor
from solvers.planners.joint.seat.jobs import JobTerms, seat_jobs, spread_jobs
from solvers.planners.joint.seat.match import match, place
from solvers.planners.joint.seat.seats import Seats
from solvers.planners.joint.seat.shortage import mend, spread
from solvers.planners.joint.seat.standing import make_before_break, replaced, snap, take_spare_devices, widen
from solvers.problems.patterns import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What seating is bound to beside the floor: time, what a launch may cost, quotas, and how far jobs may grow."""

    deadline: Deadline
    launch_usd_per_s: float
    quotas: Mapping[str, float]
    job_most_pct: Mapping[int, int]
    job_left_s: Mapping[int, float] = field(default_factory=dict)
    jobs_first: bool = False
    """Whether how fast jobs run counts before what devices cost."""


def seat(floor: Floor, layout: Layout, terms: Terms) -> Seats:
    """Every device with what it is to carry."""
    seats = Seats.empty(floor, terms.quotas)
    matching = match(floor, layout)
    for device, pattern in sorted(matching.seated.items()):
        seats.put(device, pattern)
    place(seats, matching.loose)
    # What is served is known only now, and with it which workload has more than it needs.
    snap(seats, sorted(matching.seated), terms.launch_usd_per_s)
    make_before_break(seats, terms.job_most_pct)
    take_spare_devices(seats)
    within_budgets(seats)
    spread(seats, terms.deadline)
    within_power(seats)
    mend(seats, terms.deadline)
    seats.kept = replaced(seats, terms.job_most_pct)
    seat_them = spread_jobs if terms.jobs_first else seat_jobs
    seat_them(seats, JobTerms(most_pct=terms.job_most_pct, left_s=terms.job_left_s), terms.deadline)
    widen(seats, terms.job_most_pct)
    return seats
