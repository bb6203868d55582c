"""What stands, changed for the better: one programme over every device with what stands on it.

Devices with the same contents are a group, idle devices of a pool another. A group's columns are what its devices may
carry next: as it stands, without some members, with one more, something else alone, or contents that a solve found;
each with the true cost of the change: launches, and a part of what each started replica costs. What memory does not
hold beside its replacement ends first: by workload, no more may end than is spare, and what is interrupted beyond
counts as demand that is never served in `period_s`.

What stands is enough while it covers what must be served; whoever is short is sized anew, and counts more than any
device. Where somebody would stay short only because interruptions weigh so much, they weigh as long as demand is
remembered. The search exchanges devices; where fewer changes may be made than would pay, an exchange has to wait for
another one, and an integer programme over the nearest columns goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from solvers.domain.arrays import Whole, most_of
from solvers.engines.anneal import GroupChoices, Heat, RowEnds, annealed
from solvers.engines.deadline import Deadline, ProgrammeWork, programme_answer
from solvers.engines.highs import ColumnMaster, Columns, Relaxed
from solvers.errors import EngineError
from solvers.planners.joint.solve.master import Rows
from solvers.planners.joint.solve.pricing import Look, Pricing
from solvers.planners.joint.solve.prospects import DUST, GROUPS_MAX, GroupTurnover, Prospects, StandingGroups
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import EMPTY, Layout, Pattern, Patterns, Prices

ROWS_MAX, ROWS_PER_S, ROWS_PER_UNIT = 20_000, 6000.0, 120.0
"""Contents that are looked at in all, and for each second or unit of work that there is."""
PRICED_MAX, PRICED_LOOK = 4, Look(part=0.02, step_pct=5, repeats=4)
"""Times that contents are priced at what the programme's relaxed optimum would pay for them, and how closely."""
CHURN_SPARED = 5
"""One in so many changes is spared."""
MANY_PART = 0.8
"""Of the changes, where not all groups are open: nodes of large fleets bear less of them than pools do."""
SEARCH_PART = 0.5
"""Of the deadline, kept from looking for contents for the search."""
COLUMNS_MOST, STEPS, STEPS_PER_S = 1600, 40_000_000, 1e8
"""Of the search: columns, and elementary steps, in a second of haste."""
HOT, COLD = 0.25, 0.01
"""Of the dearest device, and of that: what a move may lose at first, and at last."""
NEAREST, NEAREST_WORK = 300, ProgrammeWork(part=0.6, first_units=500, node_units=8.0, gap=3e-3)
"""Columns of the integer programme, and what it may take."""
FAR = 0.01
"""How far above the relaxed optimum it is asked."""
GAP = 5e-4
"""What is nothing."""
SURE = 1e-6
"""Of what must be served, beside it: engines round."""
HIGH_USD = 1e6
"""What a device costs that is not open."""
SHORT_LEAST = 50.0
"""However little is short of a workload: it counts so many of the dearest devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachTerms:
    """What changes are weighed by: $/h per second of launching, the part of itself that a restarted replica counts,
    over how many seconds interruptions count, for how many demand is remembered; which part gained is
    nothing, and how far above the relaxed optimum an earlier search ended that found nothing better.
    """

    launch_usd_per_s: float
    restart_part: float
    period_s: float
    remembered_s: float = 0.0
    gap: float = GAP
    left_usd: float = 0.0
    changes_max: float = inf
    """Of replicas: that start, but where those are free; and that end, of which one that moves is both."""
    starts_free: bool = False
    prices: Prices | None = None
    turn: int = 0
    """What contents are worth, of a solve; and which of those that cost most above it are open, of very many."""

    @property
    def changes_most(self) -> float:
        """So many start, and so many end: a little less, for not all who start are those who end elsewhere."""
        return self.changes_max - self.changes_max // CHURN_SPARED if self.changes_max < inf else inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """The best that what stands can become at once. Interruptions were weighed as if it stood for `period_s`."""

    layout: Layout
    period_s: float
    left_usd: float
    """$/h that it costs more than the relaxed optimum; 0 where the search had not the time that it takes."""
    short: bool
    """Whether anybody is short of what must be served."""
    prices: Prices | None = None
    """By which groups were opened."""
    taken: Prospects | None = None
    """What open groups become, device by device."""
    fewer: Callable[[float, Deadline], Reached] | None = None
    """The same again where so many changes are the most: seating, which knows of nodes, may make more of them."""


def reached(
    problem: JointProblem,
    standing: Layout,
    fresh: Sequence[Pattern],
    terms: ReachTerms,
    deadline: Deadline,
    begin: Reached | None = None,
) -> Reached:
    """`fresh`: contents that a solve found. `begin`: what came out of the same with other ones."""
    stands = StandingGroups.of(problem, standing, prices=terms.prices, turn=terms.turn)
    if len(stands.closed):
        terms = replace(terms, changes_max=MANY_PART * terms.changes_max)
    in_time = ROWS_PER_S * deadline.left_s / deadline.crowding
    rows = in_time if deadline.work_units is None else ROWS_PER_UNIT * deadline.work_units
    options = Prospects.of(stands, fresh, int(min(rows, ROWS_MAX)))
    if begin is not None and begin.prices is not terms.prices and len(standing.patterns) > GROUPS_MAX:
        begin = None  # others are open
    taken = begin.taken if begin is not None and begin.taken is not None else options.take(np.s_[:0])
    options = options.with_new(stands.judge, taken.judged.rows, taken.group)
    deadline.spend(1 + int(len(options.group) / ROWS_PER_UNIT))
    for _ in range(PRICED_MAX):
        before = deadline.left_part
        more = options.and_also(stands, _ReachProgramme(stands, options, terms).priced(deadline))
        if len(more.group) == len(options.group):
            break
        options = more
        if 2 * deadline.left_part - before < SEARCH_PART:
            break  # another look like this one would be taken from the search
    if begin is not None and begin.period_s == terms.period_s:
        terms = replace(terms, left_usd=begin.left_usd)
    return _chosen(stands, options, terms, deadline, options.counts(taken))


def _chosen(
    stands: StandingGroups, options: Prospects, terms: ReachTerms, deadline: Deadline, earlier: Whole
) -> Reached:
    """Of these contents; from so many devices of each, if any."""
    sheet = _ReachProgramme(stands, options, terms)
    counts = sheet.whole(terms, deadline, earlier)
    if terms.period_s < terms.remembered_s and sheet.short(counts) and not deadline.over:
        terms = replace(terms, period_s=terms.remembered_s)
        sheet = _ReachProgramme(stands, options, terms)
        counts = sheet.whole(terms, deadline, counts)
    chosen = np.flatnonzero(counts)
    patterns = stands.judge.patterns(options.judged.take(chosen).joined(stands.closed))
    found = Layout(patterns=tuple(patterns), counts=(*counts[chosen].tolist(), *stands.closed_devices.tolist()))
    return Reached(
        layout=EMPTY.and_also(found),
        period_s=terms.period_s,
        left_usd=0.0 if deadline.late or np.isinf(sheet.left_usd) else sheet.left_usd,
        short=sheet.short(counts),
        prices=terms.prices,
        taken=options.take(np.repeat(np.arange(len(options)), counts)),
        fewer=lambda most, within: _chosen(
            stands, options, replace(terms, changes_max=most, left_usd=0.0), within, np.zeros_like(counts)
        ),
    )


class _ReachProgramme:
    """The programme. Rows: those of the master, devices of each group, what may end of each workload, and whether who
    must be served is short or interrupted at all. Columns: what may stay undone, see `_undone`, then contents.
    """

    def __init__(self, stands: StandingGroups, options: Prospects, terms: ReachTerms) -> None:
        self.stands, self.options, problem = stands, options, stands.asked
        self.left_usd = np.inf
        closed, devices, works = stands.closed, stands.closed_devices, len(problem.workloads)
        self.master = master = Rows(problem, Rows(problem).activity(closed, devices))
        own, change = master.columns(options.judged), GroupTurnover.of(stands, options)
        usd, groups = options.judged.usd_per_h, len(stands.devices)
        ends_at, each = master.count + groups, np.arange(len(usd))
        least = problem.least_rps
        self.least = np.maximum(0.0, least - closed.served_rps(problem, devices))
        self.must = np.flatnonzero(self.least > SURE * least)
        flags = 2 * len(self.must)
        starts_at = np.full(len(usd), ends_at + works + flags)
        wide = own.and_in(
            column=np.concatenate([each, change.column, each, each]),
            row=np.concatenate([master.count + options.group, ends_at + change.work, starts_at, starts_at + 1]),
            value=np.concatenate([np.ones(len(usd)), change.ends_rps, change.starts, change.stays]),
        )
        cost = usd + terms.launch_usd_per_s * change.launch_s + terms.restart_part * usd * change.new_part
        contents = replace(wide, cost=cost, upper=stands.devices[options.group].astype(np.float64))
        spare = np.where(self.least > SURE * least, np.maximum(0.0, stands.before_rps - least), np.inf)
        # How many replicas have to go on as they are.
        replicas = float(stands.devices[: stands.count] @ (stands.judged.rows.variants >= 0).sum(axis=1))
        stay, free = replicas - terms.changes_most, np.full(groups + works + flags + 1, -np.inf)
        self.lower = np.concatenate([master.lower, free, [stay]])
        most = [np.zeros(flags), [inf if terms.starts_free else terms.changes_most, inf]]
        self.upper = np.concatenate([master.upper, stands.devices.astype(np.float64), spare, *most])
        undone = self._undone(master, ends_at, terms)
        self.columns, self.first = Columns.joined([*undone, contents]), sum(len(item) for item in undone)
        self.choices = GroupChoices(
            columns=contents, group=options.group, devices=stands.devices, ends=self._ends(undone, ends_at)
        )

    def _undone(self, master: Rows, ends_at: int, terms: ReachTerms) -> list[Columns]:
        """What is short of what is sized for; replicas that are missing; what is short of what must be served, and what
        is interrupted; at last whether anything is.
        """
        problem, must = self.stands.asked, self.must
        least = problem.least_rps[must]
        slack, demand = master.slack(), np.flatnonzero(master.wanted)
        asked, count = master.rate[must], len(must)
        headroom = np.maximum(0.0, 1 - self.least[demand] / master.rate[demand])
        usd, part = problem.unserved_usd[must], problem.launch_s[must] / max(terms.period_s, DUST)
        flag_at = ends_at + len(self.least)
        both, slight_usd = np.arange(2 * count), SHORT_LEAST * problem.dearest_usd
        return [
            replace(slack, upper=np.concatenate([headroom, np.full(len(slack) - len(demand), np.inf)])),
            Columns.of(
                np.concatenate([usd * asked / least, usd * part / least]),
                column=np.concatenate([both, both]),
                row=np.concatenate([must, ends_at + must, flag_at + both]),
                value=np.concatenate([np.ones(count), np.full(count, -1.0), asked / least, 1 / least]),
            ),
            Columns.of(
                np.concatenate([np.full(count, slight_usd), slight_usd * np.minimum(1.0, part)]),
                column=both,
                row=flag_at + both,
                value=np.full(2 * count, -(1 + 2 * SURE)),
                upper=np.ones(2 * count),
            ),
        ]

    def _ends(self, undone: Sequence[Columns], ends_at: int) -> RowEnds:
        """The same, as what each row costs that is short or over."""
        slack, (rest_usd, held_usd), (once_usd, any_usd) = undone[0], *(np.split(item.cost, 2) for item in undone[1:])
        first, first_usd = np.zeros((2, len(self.lower)))
        first[slack.row], first_usd[slack.row] = slack.upper, slack.cost
        short_usd, short_once, over_usd, over_once = short = np.full((4, len(self.lower)), np.inf)
        short[:2, self.must], short[2:, ends_at + self.must] = (rest_usd, once_usd), (held_usd, any_usd)
        return RowEnds(
            lower=self.lower,
            upper=self.upper,
            first=first,
            first_usd=first_usd,
            short_usd=short_usd,
            once_usd=short_once,
            over_usd=over_usd,
            over_once_usd=over_once,
        )

    def short(self, counts: Whole) -> bool:
        """Whether anybody is short of what must be served once all have launched."""
        served = self.options.judged.served_rps(self.stands.problem, counts)
        return bool((served[self.must] < self.least[self.must] * (1 - DUST)).any())

    def _relaxed(self, deadline: Deadline) -> Relaxed | None:
        master = ColumnMaster(self.lower, self.upper)
        master.add(self.columns)
        return master.solve(deadline.time_left_s, primal=False)

    def priced(self, deadline: Deadline) -> Patterns:
        """Contents that are worth more than they cost on the cheapest devices of their pools, launches aside."""
        relaxed, stands, rows = self._relaxed(deadline), self.stands, self.master
        if relaxed is None:
            return Patterns.none(stands.judge.width)
        duals, groups = relaxed.row_duals[: rows.count], relaxed.row_duals[rows.count :]
        used, nothing = stands.devices > 0, np.full(len(stands.problem.pools), -np.inf)
        room = most_of(groups[: len(stands.pool)][used], stands.pool[used], nothing)
        duals[rows.pool_at : rows.cap_at] += np.where(np.isfinite(room), room, -HIGH_USD)
        step = max(1, stands.problem.share_step_pct)
        look = replace(PRICED_LOOK, step_pct=step * max(1, PRICED_LOOK.step_pct // step))
        return Pricing(stands.judge, rows, stands.judge.width).price(duals, look, deadline, 0.0).rows

    def whole(self, terms: ReachTerms, deadline: Deadline, earlier: Whole) -> Whole:
        """Devices of every column: the best that was found, which may be what stands, or an earlier answer."""
        choices, stands = self.choices, np.zeros_like(earlier)
        stands[: self.stands.count] = self.stands.devices[: self.stands.count]
        counts = min((stands, earlier) if earlier.any() else (stands,), key=choices.usd)
        usd, relaxed = choices.usd(counts), self._relaxed(deadline)
        if relaxed is None:
            return counts
        self.left_usd = usd - relaxed.value
        if self.left_usd <= terms.left_usd + terms.gap * abs(relaxed.value):
            return counts
        steps = min(STEPS, int(STEPS_PER_S * deadline.time_left_s / deadline.crowding))
        reduced = self.columns.reduced(relaxed.row_duals)[self.first :]
        reduced[: self.stands.count] = reduced[counts > 0] = -np.inf
        # What costs more than all that could be gained is in no better answer.
        useful = int((reduced <= self.left_usd).sum())
        chosen = np.argsort(reduced, kind="stable")[: min(useful, max(self.stands.count, COLUMNS_MOST))]
        hot_usd = HOT * self.stands.problem.dearest_usd
        how = Heat(hot_usd=hot_usd, cold_usd=COLD * hot_usd, steps=steps)
        found = np.zeros_like(counts)
        found[chosen] = annealed(choices.take(chosen), counts[chosen], relaxed.row_duals, how)
        if choices.usd(found) < usd:
            self.left_usd, counts = choices.usd(found) - relaxed.value, found
        if np.abs(relaxed.row_duals[-2:]).max() > DUST and self.left_usd > FAR * abs(relaxed.value):
            reduced[counts > 0] = -np.inf
            counts = self._nearest(counts, np.argsort(reduced, kind="stable")[:NEAREST], deadline)
            self.left_usd = choices.usd(counts) - relaxed.value
        if steps < STEPS:
            self.left_usd = np.inf
        return counts

    def _nearest(self, counts: Whole, chosen: Whole, deadline: Deadline) -> Whole:
        """The same of some columns by an integer programme, if that finds anything better."""
        some = np.concatenate([np.arange(self.first), self.first + chosen])
        integer = np.arange(len(self.columns))[some] >= self.first - 2 * len(self.must)
        program = self.columns.take(some).programme(integer, self.lower, self.upper)
        hint = np.concatenate([np.zeros(self.first), counts[chosen]])
        try:
            answer = programme_answer(program, NEAREST_WORK, deadline, hint)
        except EngineError:
            return counts  # which is an answer, too
        if answer is None or answer.values is None:
            return counts
        found = np.zeros_like(counts)
        found[chosen] = np.rint(answer.values[self.first :]).astype(np.int64)
        return min(counts, found, key=self.choices.usd)
