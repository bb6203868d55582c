"""What stands in groups, and what each of them may carry next.

Of very many groups only those are open that host who is short, or cost most above what they are worth. What memory does
not hold beside its replacement ends before that is ready. Nothing is chosen here, and nothing weighed: see `reach`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from solvers.domain.arrays import Floats, Parallel, Whole
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import Rows
from solvers.problems.joint import WHOLE_PCT, JointProblem, Workload
from solvers.problems.patterns import Judged, Layout, Pattern, Patterns, Prices, ordered

GROUPS_MAX = 40
"""Groups that are open."""
CHANCE = 0.3
"""The least part of what a group costs above its worth that counts in a turn."""
STEPS_LEAST = 4
"""Shares that a new member is tried with."""
DUST = 1e-6


@dataclass(frozen=True, kw_only=True)
class StandingGroups:
    """Groups that are open: what stands first, then what is idle of each pool."""

    problem: JointProblem
    judge: Judge
    judged: Judged
    """Of what stands."""
    devices: Whole
    """By group."""
    pool: Whole
    closed: Judged
    closed_devices: Whole
    before_rps: Floats
    """By workload, of all that stands."""

    @staticmethod
    def of(
        problem: JointProblem,
        standing: Layout,
        most: int | None = None,
        width: int = 0,
        prices: Prices | None = None,
        turn: int = 0,
    ) -> StandingGroups:
        """All, or of more than `most` those of workloads that are short, and whose replicas cost most above what they
        are worth, more or less, by the turn; the emptiest, where nobody knows.
        """
        judge, most = Judge(problem), GROUPS_MAX if most is None else most
        every = judge.judge(Patterns.of(standing.patterns, width or judge.width))
        devices = np.array(standing.counts, dtype=np.int64)
        pool = problem.kind_pool[every.rows.kind]
        used = np.bincount(pool, weights=devices, minlength=len(problem.pools)).astype(np.int64)
        before_rps = every.served_rps(problem, devices)
        short = before_rps < problem.least_rps * (1 - DUST)
        rows = every.rows
        hosts = (short[problem.variant_workload[rows.variants]] & (rows.variants >= 0)).any(axis=1)
        worst = rows.shares_pct.sum(axis=1) if prices is None else -_above_usd(problem, every, prices, turn)
        order = np.lexsort((worst, ~hosts))
        some, rest = np.sort(order[:most]), np.sort(order[most:])
        return StandingGroups(
            problem=problem,
            judge=judge,
            judged=every.take(some),
            devices=np.concatenate([devices[some], np.maximum(problem.pool_devices - used, 0)]),
            pool=np.concatenate([pool[some], np.arange(len(problem.pools))]),
            closed=every.take(rest),
            closed_devices=devices[rest],
            before_rps=before_rps,
        )

    @property
    def count(self) -> int:
        """Groups that carry anything."""
        return len(self.judged)

    @cached_property
    def asked(self) -> JointProblem:
        """The problem with what is to be served, given what stands."""

        def asked(work: Workload, before: float) -> Workload:
            if work.may_wait or before < work.rate_least_rps * (1 - DUST):
                return work
            return replace(work, rate_rps=max(work.rate_least_rps, min(work.rate_rps, before * (1 - DUST))))

        works = map(asked, self.problem.workloads, self.before_rps.tolist())
        return replace(self.problem, workloads=tuple(works))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospects(Parallel):
    """What the devices of each group may carry. The first ones are what stands, in the order of the groups."""

    judged: Judged
    group: Whole

    @staticmethod
    def of(stands: StandingGroups, fresh: Sequence[Pattern], most: int) -> Prospects:
        """About so many at most."""
        judge, found, group = stands.judge, [stands.judged.rows], [np.arange(stands.count)]
        rows = Patterns.of([item for item in fresh if len(item.variants) <= judge.width], judge.width)
        pools = stands.problem.kind_pool[rows.kind]
        numbers = np.flatnonzero(stands.devices).tolist()
        each = most // max(1, len(numbers))
        for number in numbers:
            made = [rows.take(np.flatnonzero(pools == stands.pool[number])[: each // 2])]
            kinds = np.flatnonzero(stands.problem.kind_pool == stands.pool[number])
            empty = Patterns.singles(kinds, np.array([-1]), np.array([0])).widened(judge.width)
            made += _more(stands.problem, empty, each // 4)
            if number < stands.count:
                parts = Patterns.chained([*stands.judged.rows.take(np.array([number])).parts()])
                made += [parts, *_more(stands.problem, parts, each // 2)]
            some = Patterns.chained(made)
            found.append(some)
            group.append(np.full(len(some), number))
        none = Prospects(judged=stands.judged, group=np.arange(stands.count))
        return none.with_new(judge, Patterns.chained(found), np.concatenate(group))

    def and_also(self, stands: StandingGroups, rows: Patterns) -> Prospects:
        """With these on every open group of their pool."""
        here, there = np.nonzero(
            stands.problem.kind_pool[rows.kind][:, None] == np.where(stands.devices > 0, stands.pool, -1)
        )
        return self.with_new(stands.judge, rows.take(here), there)

    @property
    def keys(self) -> Whole:
        """Of each: its group and content."""
        return np.hstack([self.group[:, None], self.judged.rows.keys])

    def counts(self, taken: Prospects) -> Whole:
        """Devices of each where these are the contents of devices one by one."""
        place = {tuple(key): at for at, key in enumerate(self.keys.tolist())}
        at = np.array([place[tuple(key)] for key in taken.keys.tolist()], dtype=np.int64)
        return np.bincount(at, minlength=len(self))

    def with_new(self, judge: Judge, rows: Patterns, group: Whole) -> Prospects:
        """With what is new and lawful of these."""
        rows = ordered(rows)
        keys = np.vstack([self.keys, np.hstack([group[:, None], rows.keys])])
        first = np.sort(np.unique(keys, axis=0, return_index=True)[1])
        new = first[first >= len(self.group)] - len(self.group)
        judged = judge.judge(rows.take(new))
        kept = np.flatnonzero(judged.lawful & (judged.rows.variants[:, 0] >= 0))
        return self.joined(Prospects(judged=judged.take(kept), group=group[new][kept]))


def _above_usd(problem: JointProblem, judged: Judged, prices: Prices, turn: int) -> Floats:
    """What contents cost above what they are worth at these prices, for each replica; in later turns any part of it, by
    chance, since those that cost most became nothing better.
    """
    rows, part = Rows(problem), np.random.default_rng(turn).uniform(CHANCE, 1.0, len(judged)) if turn else 1.0
    above = rows.columns(judged).reduced(rows.duals(prices))
    return np.asarray(part * above / np.maximum(1, (judged.rows.variants >= 0).sum(axis=1)))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTurnover:
    """From what stands to each option: what starts, and by workload what ends before its replacement is ready."""

    launch_s: Floats
    new_part: Floats
    """Of the option's share."""
    starts: Floats
    stays: Floats
    """Replicas."""
    column: Whole
    work: Whole
    ends_rps: Floats

    @staticmethod
    def of(stands: StandingGroups, options: Prospects) -> GroupTurnover:
        problem, rows = stands.problem, options.judged.rows
        network = np.append(problem.network, -1)
        idle = options.group >= stands.count
        base = np.where(idle, 0, options.group)
        held = (stands.judged if stands.count else options.judged).take(base)
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
        room = np.array([pool.memory_mib * (pool.clients > 1) for pool in problem.pools])[stands.pool[options.group]]
        dedicated = np.append(problem.dedicated, False)
        tight = (memory > room) | dedicated[np.hstack([rows.variants, held.rows.variants])].any(axis=1)
        column, member = np.nonzero(left & tight[:, None])
        return GroupTurnover(
            launch_s=(launch_s[rows.variants] * new).sum(axis=1),
            new_part=(rows.shares_pct * new).sum(axis=1) / np.maximum(share, 1),
            starts=new.sum(axis=1).astype(np.float64),
            stays=((has >= 0) & ~left).sum(axis=1).astype(np.float64),
            column=column,
            work=problem.variant_workload[held.rows.variants[column, member]],
            ends_rps=held.capacity_rps[column, member],
        )
