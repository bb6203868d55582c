"""One request on its way through the joint planner: what was read, the first plan, how the time is divided, and what a
solve leaves to the next one: patterns, prices, and when everything was last solved.

Time goes by the size of the fleet: what seating, writing and explaining will take is kept back from the solve. What is
kept goes by names, so that it survives whatever comes and goes between two snapshots; other bytes are as good as none.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from solvers.domain.arrays import Whole
from solvers.domain.evidence import Reporter, SilentReporter
from solvers.domain.ids import DeviceId, WorkloadId
from solvers.domain.plan import Plan
from solvers.domain.policy import Objective, Term
from solvers.engines.deadline import Deadline
from solvers.models.worth import Step, aim_of, worth_acting, worth_of
from solvers.planners.base import Knob, PlannerSpec, PlanRequest
from solvers.planners.joint.certificate import CLOSER_UNITS, WARM_MAX, Certificate, Shown, loosened, most_on_a_device
from solvers.planners.joint.explain.explaining import SHORT_MAX
from solvers.planners.joint.reading.formulation import Reading
from solvers.planners.joint.seat.seats import Floor, Seats, Terms, floor_of
from solvers.planners.joint.solve.branch import Leaves, few_devices
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import Rows
from solvers.planners.joint.solve.prospects import GROUPS_MAX
from solvers.planners.joint.solve.solve import worth_units
from solvers.planners.joint.write import Seated, write
from solvers.problems.jobs import trains_first
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout, Pattern, Patterns, Prices

KEPT_MAX = 20_000
"""Patterns; the first ones win, so the most useful come first."""
_FORM, _LEAF, _TAB = "joint-13", "leaf_", "\t"
_TOLD = ("full_at_s", "question", "left_usd")
DUST = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What the solves before have left."""

    patterns: tuple[Pattern, ...] = ()
    prices: Prices | None = None
    full_at_s: float | None = None
    """Of the snapshot of the last full solve; None: there was none that is known."""
    question: str = ""
    """What was asked last, see `change`."""
    left_usd: float = 0.0
    """$/h above the relaxed optimum where the search ended that answered it."""
    toward: tuple[tuple[DeviceId, Pattern], ...] = ()
    """What the last plan that changes anything leads to, by device."""
    shown: Shown | None = None
    """What branching proved of the last plan."""


NOTHING = Kept()


def remember(problem: JointProblem, kept: Kept) -> bytes:
    """Its patterns, each once, its prices, and the moment: arrays, and beside them one document."""
    patterns = (*(item for _, item in kept.toward), *kept.patterns)
    chosen = list({item.key: item for item in patterns}.values())[:KEPT_MAX]
    number = {item.key: place for place, item in enumerate(chosen)}
    rows = Patterns.of(chosen, max((len(item.variants) for item in chosen), default=1))
    prices, shown, none = kept.prices, kept.shown, np.zeros(0)
    told = {
        "form": _FORM,
        **{name: getattr(kept, name) for name in _TOLD},
        "kinds": list(_kinds(problem)),
        "variants": list(_variants(problem)),
        "toward": {name: number[item.key] for name, item in kept.toward},
        "usd": {} if prices is None else named(problem, prices),
        "worth_of": problem.fingerprint,
        "shown": None if shown is None else asdict(replace(shown, leaves=None)),
    }
    leaves = {} if shown is None or shown.leaves is None else asdict(shown.leaves)
    store = io.BytesIO()
    np.savez_compressed(
        store,
        told=np.array(json.dumps(told)),
        kind=rows.kind.astype(np.int32),
        variants=rows.variants.astype(np.int32),
        shares_pct=rows.shares_pct.astype(np.int16),
        worth=none if prices is None or prices.worth_usd is None else prices.worth_usd,
        watt=none if prices is None else Rows(problem).watt_usd(prices),
        rates=problem.rate_rps,
        **{f"{_LEAF}{name}": value for name, value in leaves.items()},
    )
    return store.getvalue()


def recall(state: bytes, problem: JointProblem) -> Kept:
    """The moment, and those of the kept patterns that this problem still knows and that keep its rules."""
    try:
        with np.load(io.BytesIO(state), allow_pickle=False) as file:
            kept = {name: np.asarray(file[name]) for name in file.files}
        told = json.loads(str(kept["told"]))
        if told["form"] != _FORM:
            return NOTHING
        rows, known = _rows(kept, told, problem)
    except (ValueError, OSError, EOFError, KeyError, IndexError, zipfile.BadZipFile):
        return NOTHING
    judge = Judge(problem)
    judged = judge.judge(rows)
    good = np.flatnonzero(judged.lawful & (judged.rows.variants[:, 0] >= 0))
    patterns = tuple(judge.patterns(judged.take(good)))
    now = dict(zip(known[good].tolist(), patterns, strict=True))
    toward = tuple((DeviceId(name), now[row]) for name, row in told["toward"].items() if row in now)
    leaves = {name.removeprefix(_LEAF): value for name, value in kept.items() if name.startswith(_LEAF)}
    shown = told["shown"] and Shown(**told["shown"] | {"leaves": Leaves(**leaves) if leaves else None})
    return Kept(
        patterns=patterns,
        toward=toward if len(toward) == len(told["toward"]) else (),
        prices=_still_shown(problem, prices_of(problem, told["usd"]), kept, told["worth_of"]) if told["usd"] else None,
        shown=shown,
        **{name: told[name] for name in _TOLD},
    )


def _price_names(problem: JointProblem) -> dict[str, list[str]]:
    works = [str(item.id) for item in problem.workloads]
    return {
        **dict.fromkeys(("demand_usd", "most_usd", "fewest_usd", "budget_usd"), works),
        "pool_usd": [item.name for item in problem.pools],
        "cap_usd": [item.name for item in problem.caps],
        "quota_usd": [str(name) for name, _ in problem.quotas],
    }


def named(problem: JointProblem, prices: Prices) -> dict[str, float]:
    """Prices that another problem can read: of one request per second, one device, one watt."""
    each = replace(prices, demand_usd=prices.demand_usd / problem.rate_rps)
    return {
        f"{kind}{_TAB}{name}": usd
        for kind, names in _price_names(problem).items()
        for name, usd in zip(names, getattr(each, kind).tolist(), strict=True)
        if usd > 0
    }


def prices_of(problem: JointProblem, usd: Mapping[str, float]) -> Prices:
    """Those prices in this problem's numbers; what nobody priced costs nothing. Nothing is shown of them here."""
    each = {
        kind: np.array([usd.get(f"{kind}{_TAB}{name}", 0.0) for name in names], dtype=np.float64)
        for kind, names in _price_names(problem).items()
    }
    return Prices(**each | {"demand_usd": each["demand_usd"] * problem.rate_rps})


def _still_shown(problem: JointProblem, prices: Prices, kept: Mapping[str, np.ndarray], of: str) -> Prices:
    """With what was shown then, `of` which problem, where it goes on to hold: where only rates are others. A part of a
    rate is worth no more where the rate is less. Where it is more, a device that carried all of it may now carry more:
    that is worth nothing, so the price of a request falls as far as a device could.
    """
    if not len(kept["worth"]) or of != problem.fingerprint:
        return prices
    # Watts that cost less than they did, under a cap that was lifted or moved, make contents worth more.
    if (Rows(problem).watt_usd(prices) < kept["watt"] * (1 - DUST)).any():
        return prices
    before = kept["rates"].astype(np.float64)
    most = np.maximum(before, np.minimum(most_on_a_device(problem, problem.rate_rps > before), problem.rate_rps))
    part = np.divide(before, most, out=np.ones_like(most), where=most > 0)
    return replace(prices, demand_usd=prices.demand_usd * part, worth_usd=kept["worth"])


def _rows(kept: Mapping[str, np.ndarray], told: Mapping[str, Any], problem: JointProblem) -> tuple[Patterns, Whole]:
    """Kept patterns in this problem's numbers, and which they are: those that it knows."""
    # The last number is that of an empty place.
    kinds, variants = (
        np.array([*(number.get(name, -1) for name in names), -1], dtype=np.int64)
        for number, names in ((_kinds(problem), told["kinds"]), (_variants(problem), told["variants"]))
    )
    width = max((pool.clients for pool in problem.pools), default=1)
    shares_pct = kept["shares_pct"].astype(np.int64)
    every = Patterns(kind=kinds[kept["kind"]], variants=variants[kept["variants"]], shares_pct=shares_pct)
    strange = (every.variants < 0) & (kept["variants"] >= 0)
    known = np.flatnonzero((every.kind >= 0) & ~strange.any(axis=1) & (kept["variants"][:, width:] < 0).all(axis=1))
    return every.take(known).narrowed(width).widened(width), known


def _variants(problem: JointProblem) -> dict[str, int]:
    """Variants by name: workload, network, largest batch."""
    named = ((problem.workloads[item.workload].id, item.model, str(item.batch_max)) for item in problem.variants)
    return {_TAB.join(parts): number for number, parts in enumerate(named)}


def _kinds(problem: JointProblem) -> dict[str, int]:
    """Kinds by name: pool, type, clock, and which of the kinds that are alike in these."""
    found: dict[str, int] = {}
    for number, (pool, clock) in enumerate(zip(problem.kind_pool, problem.kind_clock_mhz, strict=True)):
        item = problem.pools[int(pool)]
        after = len(problem.like(int(pool), int(clock))) - problem.like(int(pool), int(clock)).index(number)
        found[_TAB.join((item.name, item.gpu_type, str(int(clock)), str(after)))] = number
    return found


SPEC = PlannerSpec(
    name="joint",
    about="all knobs in one problem, with a proven bound",
    version="1",
    knobs=tuple(Knob),
    leaves_clock_open=True,
)
SEATING_PART_MIN = 0.1
"""Of the deadline: so much is left to seating, whatever came before."""
FIRST_PART_MAX = 0.05
"""Of the deadline: the first planner is not asked where it would take longer."""
FIRST_S_MAX = 5.0
"""Of larger fleets the solve's own first layout is as good, and there sooner."""
FIRST_MOMENT_S = 1.0
"""At most, where our own plan leaves somebody short and there is no time for another one."""
FIRST_S_PER_WORKLOAD, FIRST_S_PER_PAIR = 0.004, 1.4e-6
"""Of workload and device."""
RESERVE_S, RESERVE_S_PER_DEVICE, RESERVE_S_PER_WORKLOAD = 0.05, 0.0003, 0.0003
"""What seating, writing and bounding take."""
EXCHANGE_S, EXCHANGE_PART = 0.3, 0.04
"""Kept for exchanging devices under every node's own cap; of the deadline at most."""
WRITING_PART = 0.5
"""Of that: with less left nobody begins to."""
SOLVE_S_PER_UNIT = 0.002
"""At most, roughly."""
PROOF_UNITS_LEAST, PROOF_UNITS_PER_WORKLOAD = 100, 5
"""What a bound may take beside the work that is counted, where it is of earlier prices."""
CLOSER_TIMES, CLOSER_PART, URGENT_UNITS = 3, 0.25, 400
"""What a nearer bound may take where devices are few, in times all else; what is kept of the deadline; and what it may
take while somebody waits for the plan, or where something was proven before."""
WAY_TIMES = 4
"""So many times what a promotion may change: of more replicas, room does not come first."""
WAY_PART, WAY_WRITES = 0.1, 2
"""Of the deadline, for finding room where what stands is of many groups; and how many plans are written besides."""
EXPLAIN_S, EXPLAIN_S_PER_WORKLOAD, EXPLAIN_S_PER_SHORT = 0.05, 0.0006, 0.25
EXPLAIN_SHORT_PART, EXPLAIN_PART = 0.02, 0.05
"""Of the deadline, for those that are short, and at most for all."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    request: PlanRequest
    reading: Reading
    clock: Deadline
    """Runs since the request came."""
    first: Plan | None = None
    """What sets the mark, as ours: what stands, where that serves everybody; else another planner's, if any."""
    first_by: str = ""
    """Its name among the contenders."""
    reporter: Reporter = field(default_factory=SilentReporter)

    @cached_property
    def floor(self) -> Floor:
        """The devices behind the reading's pools."""
        return floor_of(self.reading)

    def _explain_s(self) -> float:
        """What it takes to explain a plan in which no workload is short."""
        return self.clock.crowding * (EXPLAIN_S + EXPLAIN_S_PER_WORKLOAD * len(self.reading.problem.workloads))

    def _write_s(self) -> float:
        """What it takes to seat and write a plan."""
        devices, workloads = sum(len(pool) for pool in self.reading.pool_devices), len(self.reading.problem.workloads)
        return self.clock.crowding * (RESERVE_S + RESERVE_S_PER_DEVICE * devices + RESERVE_S_PER_WORKLOAD * workloads)

    @property
    def hurried(self) -> bool:
        """Whether there is hardly time to write another plan."""
        return self.clock.left_s < WRITING_PART * self._write_s()

    def solve_deadline(self) -> Deadline:
        """What is left to the solve, with enough kept back for seating, writing and explaining. Where nobody counts
        work, a small problem gets as much of it as it is worth, on a busy machine as on any other.
        """
        budget = self.request.budget
        explain_s = self._explain_s() + min(SHORT_MAX * EXPLAIN_S_PER_SHORT, EXPLAIN_SHORT_PART * budget.deadline_s)
        reserve_s = self._write_s() + min(explain_s, EXPLAIN_PART * budget.deadline_s)
        reserve_s += CLOSER_PART * budget.deadline_s * few_devices(self.reading.problem)
        if self.floor.parts_few:
            reserve_s += min(self.clock.crowding * EXCHANGE_S, EXCHANGE_PART * budget.deadline_s)
        if self.of_many_groups:
            way_s = WAY_PART * budget.deadline_s * rearranges(self.request)
            reserve_s += way_s + WAY_WRITES * self._write_s()
        left_s, units = self.clock.left_s - reserve_s, budget.work_units
        if units is None:
            worth = worth_units(self.reading.problem)
            units = round(worth) if worth * SOLVE_S_PER_UNIT * self.clock.crowding < left_s else None
        return Deadline(left_s, units)

    def spare_deadline(self, units: int | None = None, plans: int = 1) -> Deadline:
        """What so much work may take, with enough kept back for writing so many plans and for explaining."""
        return Deadline(self.clock.left_s - plans * self._write_s() - self._explain_s(), units)

    @property
    def of_many_groups(self) -> bool:
        """Whether only a part of what can be had at once of what stands is looked at."""
        return len(self.reading.stands.patterns) > GROUPS_MAX

    def certificate(self, kept: Kept, *found: Layout) -> Certificate:
        """What prices of this solve, or of an earlier one, prove of whatever plan. `found`: what is known to do."""
        loose = loosened(self.request.snapshot, self.request.movable, self.reading)
        prices, same = kept.prices, loose.problem is self.reading.problem
        if prices is not None and not same:
            prices = prices_of(loose.problem, named(self.reading.problem, prices))
        certificate = Certificate.of(loose, prices, self.proof_deadline())
        return replace(certificate, warm=kept.patterns[:WARM_MAX], found=found) if same else certificate

    def proof_deadline(self, plan: Plan | None = None) -> Deadline:
        """What a bound may take that is of earlier prices; or of those settled anew, little where a plan is urgent."""
        by_size = PROOF_UNITS_PER_WORKLOAD * len(self.reading.problem.workloads)
        return self.spare_deadline(PROOF_UNITS_LEAST + (0 if plan is not None and self.urgent(plan) else by_size))

    def closer_deadline(self, plan: Plan, shown: Shown | None) -> Deadline:
        """What branching may take for a nearer bound: no more work than there is time for, for parts are of that."""
        again = shown is not None and shown.leaves is not None
        most = URGENT_UNITS if again or self.urgent(plan) else CLOSER_UNITS
        units = min(most, CLOSER_TIMES * (self.request.budget.work_units or CLOSER_UNITS))
        return self.spare_deadline(max(1, int(self.spare_deadline(units).units_until(0.0))))

    def urgent(self, plan: Plan) -> bool:
        """Whether it serves more of somebody whom what stands leaves short."""
        problem, stands = self.reading.problem, self.reading.stands
        served, before = plan.served_rps, zip(problem.workloads, stands.served_rps(problem), strict=True)
        more = [served[work.id] > rps * (1 + DUST) for work, rps in before]
        return bool(stands.patterns) and bool((stands.short(problem) & more).any())

    def explained_most(self) -> int | None:
        """Of how many short workloads there is time to tell what would have to give; None: no time for anything."""
        spare_s = self.clock.left_s - self._explain_s()
        return None if spare_s < 0 else min(SHORT_MAX, int(spare_s / self.clock.crowding / EXPLAIN_S_PER_SHORT))

    @cached_property
    def stands(self) -> Objective:
        """What stands, by today's numbers."""
        snapshot, target = self.request.snapshot, self.request.snapshot.target
        return worth_of(snapshot, self.request.movable, target.assignments, target.settings).objective

    def step(self, plan: Plan) -> Step:
        """From what stands."""
        return Step.of(self.request.snapshot, self.stands, plan)

    def better(self, plans: Sequence[Plan], interrupted: Sequence[float] = ()) -> int:
        """Index of the plan to propose; the first sets the mark. `interrupted`: counts as unserved, where known."""
        snapshot, more = self.request.snapshot, interrupted or [0.0] * len(plans)
        aims = [aim_of(snapshot, plan) for plan in plans]
        terms = snapshot.policy.terms
        keys = [replace(aim, unserved=aim.unserved + part).key(terms) for aim, part in zip(aims, more, strict=True)]
        able = [index for index, key in enumerate(keys) if key <= keys[0]]
        if len(able) > 1:
            able = [able[number] for number in worth_acting(self.step(plans[index]) for index in able)]
        return min(able, key=lambda index: (keys[index], index))

    def held_openly(self, plan: Plan, other: Plan) -> bool:
        """Whether this plan changes nothing, and the other would be made but for its many changes: people may allow
        them.
        """
        return self.step(other).waits_for_churn and not self.step(plan).transition.changes

    @cached_property
    def terms(self) -> Terms:
        snapshot = self.reading.snapshot
        done = {item.workload: item.done for item in snapshot.job_statuses}
        by_id = {WorkloadId(job.id): job for job in snapshot.jobs}
        jobs = {at: by_id[work.id] for at, work in enumerate(self.reading.problem.workloads) if work.id in by_id}
        left = {at: job.iterations_total - done.get(WorkloadId(job.id), 0) for at, job in jobs.items()}
        return Terms(
            capacity=Term.CAPACITY in snapshot.policy.terms,
            deadline=Deadline(max(self.clock.left_s, SEATING_PART_MIN * self.request.budget.deadline_s)),
            job_most_pct={at: job.share_pct_sm_max for at, job in jobs.items()},
            job_left_s={at: left[at] * job.iteration_ms_reference / 1000 for at, job in jobs.items()},
            jobs_first=trains_first(snapshot.policy),
        )

    def written(self, seats: Seats, *, eager: bool = False) -> Plan:
        """Of these seats; `eager`: what stands goes on with the largest batches that it bears."""
        seated = Seated(request=self.request, reading=self.reading, seats=seats, first=self.first, eager=eager)
        return write(SPEC, seated)


def rearranges(request: PlanRequest) -> bool:
    """Whether promotions may change enough of what stands that room on the way could ever be made and used."""
    return len(request.snapshot.target.assignments) <= WAY_TIMES * request.snapshot.policy.changes_max


def affords_first(request: PlanRequest, urged: bool = False) -> bool:
    """Whether the first planner is done in a small part of the time, or where it is `urged` in a moment, by size."""
    snapshot = request.snapshot
    devices = len(snapshot.devices) + sum(offer.count_max for offer in snapshot.offers)
    seconds = FIRST_S_PER_WORKLOAD * len(request.movable) + FIRST_S_PER_PAIR * len(request.movable) * devices
    return seconds <= (FIRST_MOMENT_S if urged else min(FIRST_S_MAX, FIRST_PART_MAX * request.budget.deadline_s))
