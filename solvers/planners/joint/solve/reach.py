"""What stands, changed for the better: one programme over every device with what stands on it.

Devices with the same contents are a group, idle devices of a pool another. A group's columns are what its devices may
carry next: as it stands, without some members, with one more where there is room, or contents that a solve found; each
with the true cost of the change: launches, and a part of what each started replica costs. Where new contents and those
that go do not fit beside each other, what goes ends before its replacement is ready: by workload, no more may end than
is spare, and what is interrupted beyond counts as demand that is never served. So the optimum can be acted on as it
is, and what stands is consolidated as far as that goes at once; the next solve begins from there.

What stands is enough while it covers what must be served; whoever is short is sized anew. With very many groups only
those are open that host a workload with a reason to change, or are filled worst; the others stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.engines.base import Limits, ProgrammeRows, create
from solvers.engines.deadline import Deadline
from solvers.engines.highs import ColumnMaster, Columns, Relaxed
from solvers.planners.joint.solve.judge import Judge, Judged, Patterns, ordered
from solvers.planners.joint.solve.master import Rows
from solvers.problems.joint import WHOLE_PCT, JointProblem
from solvers.problems.patterns import Layout, Pattern, Standing

ENGINE = "highs"
GROUPS_MAX = 40
"""Groups that are open."""
DROPPED_MAX = 2
"""Members that go from a device that keeps others, where there are many."""
SUBSETS_MAX = 16
ROWS_MAX, ROWS_PER_S, ROWS_PER_UNIT = 20_000, 8000.0, 60.0
"""Contents that are looked at in all, and for each second or unit of work that there is."""
STEPS_LEAST = 4
"""Shares that a new member is tried with."""
ENTRIES_MAX, COLUMNS_LEAST, COLUMNS_MAX = 200_000, 100, 1500
"""Of the integer programme: rows times columns, and columns."""
NODE_ENTRIES, NODES_LEAST, NODES_MAX = 2e6, 5.0, 200.0
"""Rows times columns that are looked at in all nodes, where work is counted."""
GAP = 5e-4
DUST = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachTerms:
    """What changes are weighed by: $/h per second of launching, the part of itself that a restarted replica counts,
    and over how many seconds interruptions count.
    """

    launch_usd_per_s: float
    restart_part: float
    period_s: float


def reached(
    problem: JointProblem,
    standing: Sequence[Standing],
    fresh: Sequence[Pattern],
    terms: ReachTerms,
    deadline: Deadline,
) -> Layout:
    """The best layout that what stands can become at once. `fresh`: contents that a solve found."""
    as_it_is = Layout(
        patterns=tuple(item.pattern for item in standing), counts=tuple(item.devices for item in standing)
    )
    stands = _StandingGroups.of(problem, standing)
    rows = ROWS_PER_S * deadline.left_s if deadline.work_units is None else ROWS_PER_UNIT * deadline.work_units
    options = _Prospects.of(stands, fresh, int(min(rows, ROWS_MAX)))
    deadline.spend(1 + int(len(options.group) / ROWS_PER_UNIT))
    sheet = _ReachProgramme(stands, options, terms)
    relaxed = sheet.relaxed(deadline.time_left_s)
    if relaxed is None:
        return as_it_is
    counts = sheet.whole(relaxed, deadline)
    if counts is None:
        return as_it_is
    chosen = np.flatnonzero(counts)
    patterns = stands.judge.patterns(options.judged.take(chosen))
    return Layout(patterns=(), counts=()).and_also(
        Layout(patterns=tuple(patterns), counts=tuple(counts[chosen].tolist()))
    )


@dataclass(frozen=True, kw_only=True)
class _StandingGroups:
    """Groups: what stands first, then what is idle of each pool."""

    problem: JointProblem
    judge: Judge
    judged: Judged
    """Of what stands."""
    devices: Whole
    """By group."""
    pool: Whole

    @staticmethod
    def of(problem: JointProblem, standing: Sequence[Standing]) -> _StandingGroups:
        judge = Judge(problem)
        judged = judge.judge(Patterns.of([item.pattern for item in standing], judge.width))
        pool = problem.kind_pool[judged.rows.kind]
        devices = np.array([item.devices for item in standing], dtype=np.int64)
        idle = problem.pool_devices - np.bincount(pool, weights=devices, minlength=len(problem.pools)).astype(np.int64)
        return _StandingGroups(
            problem=problem,
            judge=judge,
            judged=judged,
            devices=np.concatenate([devices, np.maximum(idle, 0)]),
            pool=np.concatenate([pool, np.arange(len(problem.pools))]),
        )

    @property
    def count(self) -> int:
        """Groups that carry anything."""
        return len(self.judged)

    @cached_property
    def before_rps(self) -> Floats:
        at, place = np.nonzero(self.judged.rows.variants >= 0)
        rate = self.judged.capacity_rps[at, place] * self.devices[at]
        work = self.problem.variant_workload[self.judged.rows.variants[at, place]]
        return np.bincount(work, weights=rate, minlength=len(self.problem.workloads)).astype(np.float64)

    @cached_property
    def asked(self) -> JointProblem:
        """The problem with what is to be served, given what stands."""
        works = zip(self.problem.workloads, self.before_rps.tolist(), strict=True)
        return replace(
            self.problem,
            workloads=tuple(
                work
                if work.may_wait or before < work.rate_least_rps * (1 - DUST)
                else replace(work, rate_rps=max(work.rate_least_rps, min(work.rate_rps, before * (1 - DUST))))
                for work, before in works
            ),
        )

    @cached_property
    def open(self) -> Flags:
        """Groups that may get anything: all, or of very many those of workloads that are short and the emptiest."""
        found = np.ones(len(self.devices), dtype=bool)
        if self.count > GROUPS_MAX:
            least = np.array([work.rate_least_rps for work in self.problem.workloads])
            short = self.before_rps < least * (1 - DUST)
            stands = self.judged.rows.variants >= 0
            hosts = (short[self.problem.variant_workload[self.judged.rows.variants]] & stands).any(axis=1)
            order = np.lexsort((self.judged.rows.shares_pct.sum(axis=1), ~hosts))
            found[: self.count] = False
            found[order[:GROUPS_MAX]] = True
        return found


@dataclass(frozen=True, kw_only=True)
class _Prospects:
    """What the devices of each group may carry."""

    judged: Judged
    group: Whole

    @staticmethod
    def of(stands: _StandingGroups, fresh: Sequence[Pattern], most: int) -> _Prospects:
        """About so many at most."""
        judge, found, group = stands.judge, [stands.judged.rows], [np.arange(stands.count)]
        rows = Patterns.of([item for item in fresh if len(item.variants) <= judge.width], judge.width)
        pools = stands.problem.kind_pool[rows.kind]
        numbers = np.flatnonzero(stands.open & (stands.devices > 0)).tolist()
        each = most // max(1, len(numbers))
        for number in numbers:
            made = [rows.take(np.flatnonzero(pools == stands.pool[number])[: each // 2])]
            if number < stands.count:
                parts = Patterns.chained([*_parts(stands.judged.rows.take(np.array([number])))])
                made += [parts, *_more(stands.problem, parts, each // 2)]
            else:
                made += _alone(stands.problem, int(stands.pool[number]), judge.width, each // 2)
            some = Patterns.chained(made)
            found.append(some)
            group.append(np.full(len(some), number))
        every, of = ordered(Patterns.chained(found)), np.concatenate(group)
        _, first = np.unique(np.hstack([of[:, None], every.keys]), axis=0, return_index=True)
        first = np.sort(first)
        judged = judge.judge(every.take(first))
        kept = np.flatnonzero(judged.lawful & (judged.rows.variants[:, 0] >= 0))
        return _Prospects(judged=judged.take(kept), group=of[first][kept])


def _parts(row: Patterns) -> Iterator[Patterns]:
    """One device's contents without some of its members."""
    members = np.flatnonzero(row.variants[0] >= 0).tolist()
    sizes = range(len(members)) if 2 ** len(members) <= SUBSETS_MAX else range(DROPPED_MAX + 1)
    for size in sizes:
        for gone in combinations(members, size):
            variants, shares = row.variants.copy(), row.shares_pct.copy()
            variants[:, list(gone)], shares[:, list(gone)] = -1, 0
            yield ordered(Patterns(kind=row.kind, variants=variants, shares_pct=shares))


def _more(problem: JointProblem, rows: Patterns, most: int) -> Iterator[Patterns]:
    """With one member more, where there is a place for it: the first rows, in as many shares as there is room for."""
    variants = np.flatnonzero(problem.allowed[problem.kind_pool[rows.kind]].any(axis=0))
    count = max(1, most // max(1, STEPS_LEAST * len(variants)))
    rows = rows.take(np.flatnonzero(rows.variants[:, -1] < 0)[:count])
    free = WHOLE_PCT - rows.shares_pct.sum(axis=1)
    steps = min(len(problem.shares_pct), most // max(1, len(rows) * len(variants)))
    places = np.unique(np.linspace(0, len(problem.shares_pct) - 1, steps).round().astype(np.int64))
    for share in problem.shares_pct[places].tolist():
        some = rows.take(np.flatnonzero(free >= share))
        for variant in variants.tolist() if len(some) else ():
            member, share_pct = some.variants.copy(), some.shares_pct.copy()
            member[:, -1], share_pct[:, -1] = variant, share
            yield Patterns(kind=some.kind, variants=member, shares_pct=share_pct)


def _alone(problem: JointProblem, pool: int, width: int, most: int) -> list[Patterns]:
    """One replica on a device of a pool."""
    kinds = np.flatnonzero(problem.kind_pool == pool)
    empty = np.full((len(kinds), width), -1, dtype=np.int64)
    return [*_more(problem, Patterns(kind=kinds, variants=empty, shares_pct=np.zeros_like(empty)), most)]


class _ReachProgramme:
    """The programme. Rows: those of the master, devices of each group, and what may end of each workload."""

    def __init__(self, stands: _StandingGroups, options: _Prospects, terms: ReachTerms) -> None:
        self.stands, self.options, problem = stands, options, stands.asked
        self.rows = Rows(problem)
        own = self.rows.columns(options.judged)
        self.slack = self.rows.slack()
        change = _Turnover.of(stands, options)
        self.cost = options.judged.usd_per_h + terms.launch_usd_per_s * change.launch_s
        self.cost = self.cost + terms.restart_part * options.judged.usd_per_h * change.new_part
        groups, works = len(stands.devices), problem.workloads
        self.group_at, self.ends_at = self.rows.count, self.rows.count + groups
        self.column = np.concatenate([own.number, np.arange(len(options.group)), change.column])
        self.row = np.concatenate([own.row, self.group_at + options.group, self.ends_at + change.work])
        self.value = np.concatenate([own.value, np.ones(len(options.group)), change.ends_rps])
        least = np.array([work.rate_least_rps for work in works])
        self.must = np.flatnonzero(least > 0)
        spare = np.where(least > 0, np.maximum(0.0, stands.before_rps - least), np.inf)
        launch_s = np.zeros(len(works))
        np.maximum.at(launch_s, problem.variant_workload, [item.launch_s for item in problem.variants])
        each = problem.unserved_usd[self.must] / least[self.must]
        self.broken_usd = each * launch_s[self.must] / terms.period_s
        self.lower = np.concatenate([self.rows.lower, np.full(groups + len(works), -np.inf)])
        self.upper = np.concatenate([self.rows.upper, stands.devices.astype(np.float64), spare])

    def relaxed(self, time_s: float) -> Relaxed | None:
        """The relaxed optimum over all columns."""
        master = ColumnMaster(self.lower, self.upper)
        master.add(self.slack)
        broken = np.arange(len(self.must))
        master.add(
            Columns.of(self.broken_usd, column=broken, row=self.ends_at + self.must, value=np.full(len(broken), -1.0))
        )
        master.add(Columns.of(self.cost, column=self.column, row=self.row, value=self.value))
        return master.solve(time_s, primal=False)

    def _stays_usd(self) -> float:
        """What it costs to leave everything as it stands; infinite where that is not lawful."""
        devices, group = np.zeros(len(self.cost)), self.options.group[: self.stands.count]
        devices[: len(group)] = self.stands.devices[group]
        held = np.bincount(self.row, weights=self.value * devices[self.column], minlength=len(self.lower))
        short = np.maximum(0.0, self.lower - held)
        if (held > self.upper + DUST * np.maximum(1.0, np.abs(self.upper))).any():
            return float("inf")
        return float(self.cost @ devices + self.slack.cost @ short[self.slack.row])

    def whole(self, relaxed: Relaxed, deadline: Deadline) -> Whole | None:
        """Devices of every column, where anything better than what stands was found."""
        worth = np.bincount(self.column, weights=self.value * relaxed.row_duals[self.row], minlength=len(self.cost))
        reduced = self.cost - worth
        stays, dearest = np.arange(self.stands.count), self._stays_usd() - relaxed.value
        if dearest <= GAP * abs(relaxed.value):
            return None
        reduced[stays] = -np.inf
        most = max(len(stays), min(COLUMNS_MAX, max(COLUMNS_LEAST, ENTRIES_MAX // len(self.lower))))
        # What costs more than all that could be gained is in no better answer.
        most = min(most, int((reduced <= dearest).sum()))
        chosen = np.sort(np.argsort(reduced, kind="stable")[:most])
        place = np.full(len(self.cost), -1, dtype=np.int64)
        place[chosen] = np.arange(len(chosen))
        rows = ProgrammeRows()
        slack = rows.add_columns(self.slack.cost, np.full(len(self.slack), np.inf), integer=False)
        broken = rows.add_columns(self.broken_usd, np.full(len(self.must), np.inf), integer=False)
        take = rows.add_columns(self.cost[chosen], self.stands.devices[self.options.group[chosen]].astype(np.float64))
        sides = rows.add_rows(self.lower, self.upper)
        rows.enter(sides[self.slack.row], slack[self.slack.number], self.slack.value)
        rows.enter(sides[self.ends_at + self.must], broken, -1.0)
        some = place[self.column] >= 0
        summed = Columns.of(
            self.cost[chosen], column=place[self.column[some]], row=self.row[some], value=self.value[some]
        )
        rows.enter(sides[summed.row], take[summed.number], summed.value)
        nodes = min(NODES_MAX, max(NODES_LEAST, NODE_ENTRIES / (len(self.lower) * len(chosen))))
        limits = Limits(time_s=deadline.time_left_s, work=None if deadline.work_units is None else nodes, gap=GAP)
        answer = create(ENGINE).solve(rows.program(), limits)
        if answer.values is None:
            return None
        counts = np.zeros(len(self.cost), dtype=np.int64)
        counts[chosen] = np.rint(answer.values[take]).astype(np.int64)
        return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turnover:
    """From what stands to each option: what starts, and by workload what ends before its replacement is ready."""

    launch_s: Floats
    new_part: Floats
    """Of the option's share."""
    column: Whole
    work: Whole
    ends_rps: Floats

    @staticmethod
    def of(stands: _StandingGroups, options: _Prospects) -> _Turnover:
        problem, rows = stands.problem, options.judged.rows
        network = np.append(problem.network, -1)
        idle = options.group >= stands.count
        base = np.where(idle, 0, options.group)
        held = stands.judged.take(base)
        has = np.where(idle[:, None], -1, network[held.rows.variants])
        left = has >= 0
        new = np.zeros(rows.variants.shape, dtype=bool)
        for place in range(rows.variants.shape[1]):
            same = left & (has == network[rows.variants[:, place], None])
            same &= held.rows.shares_pct == rows.shares_pct[:, place, None]
            hit, first = same.any(axis=1), np.argmax(same, axis=1)
            left[np.flatnonzero(hit), first[hit]] = False
            new[:, place] = ~hit & (rows.variants[:, place] >= 0)
        launch_s = np.append([item.launch_s for item in problem.variants], 0.0)
        share = rows.shares_pct.sum(axis=1)
        memory = options.judged.memory_mib.sum(axis=1) + (held.memory_mib * left).sum(axis=1)
        room = np.array([pool.memory_mib for pool in problem.pools])[stands.pool[options.group]]
        tight = (share + (held.rows.shares_pct * left).sum(axis=1) > WHOLE_PCT) | (memory > room)
        column, member = np.nonzero(left & tight[:, None])
        return _Turnover(
            launch_s=(launch_s[rows.variants] * new).sum(axis=1),
            new_part=(rows.shares_pct * new).sum(axis=1) / np.maximum(share, 1),
            column=column,
            work=problem.variant_workload[held.rows.variants[column, member]],
            ends_rps=held.capacity_rps[column, member],
        )
