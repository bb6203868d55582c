"""Counts of patterns become named devices, so that the fewest replicas start and every single node bears its power.

Owns the order of steps: match to what stands, place the rest by power, snap shares to what stands, move to idle devices
what would interrupt, spread over failure domains, keep every budget and power domain, make up what that took, and give
away what is spare: to jobs, and to others where it costs nothing. A layout knows power only as sums over like nodes, no
failure domains, and may put a floor of replicas above a budget; all are made exact here. It refuses to write plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from solvers.engines.deadline import Deadline
from solvers.planners.joint.seat.breaks import make_before_break, replaced
from solvers.planners.joint.seat.budget import within_budgets
from solvers.planners.joint.seat.claims import claim_from_those_who_can_spare
from solvers.planners.joint.seat.floor import Floor
from solvers.planners.joint.seat.jobs import JobTerms, seat_jobs
from solvers.planners.joint.seat.match import match
from solvers.planners.joint.seat.mend import mend, spread
from solvers.planners.joint.seat.power import place, within_power
from solvers.planners.joint.seat.seats import Seats
from solvers.planners.joint.seat.snap import snap
from solvers.planners.joint.seat.training import spread_jobs
from solvers.planners.joint.seat.widen import widen
from solvers.problems.layout import Layout


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
    seats = Seats.empty(floor)
    matching = match(floor, layout)
    for device, pattern in sorted(matching.seated.items()):
        seats.put(device, pattern)
    place(seats, matching.loose)
    # What is served is known only now, so only now can anybody tell who has more than he needs.
    snap(seats, sorted(matching.seated), terms.launch_usd_per_s, terms.quotas)
    make_before_break(seats, terms.job_most_pct)
    claim_from_those_who_can_spare(seats)
    within_budgets(seats)
    spread(seats, terms.deadline, terms.quotas)
    within_power(seats)
    mend(seats, terms.deadline, terms.quotas)
    jobs = JobTerms(
        most_pct=terms.job_most_pct,
        left_s=terms.job_left_s,
        quotas=terms.quotas,
        kept_free=replaced(seats, terms.job_most_pct),
    )
    seat_them = spread_jobs if terms.jobs_first else seat_jobs
    seat_them(seats, jobs, terms.deadline)
    widen(seats, terms.job_most_pct, terms.quotas)
    return seats
