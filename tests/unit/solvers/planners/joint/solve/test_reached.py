"""What stands is changed for the better as far as that goes at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers.domain.arrays import Floats, Whole
from solvers.engines.anneal import GroupChoices, Heat
from solvers.engines.deadline import Deadline
from solvers.errors import EngineError
from solvers.planners.joint.solve import prospects, reach
from solvers.planners.joint.solve.pricing import Found, Look, Pricing
from solvers.planners.joint.solve.prospects import Prospects
from solvers.planners.joint.solve.reach import ReachTerms, reached
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout, Pattern, Prices
from tests.unit.solvers.planners.joint.seat.floors import pattern, problem, workload

TERMS = ReachTerms(launch_usd_per_s=0.0, restart_part=0.01, period_s=60.0)


def _prices(of: JointProblem, *demand_usd: float) -> Prices:
    """What demands are worth, and nothing else."""
    none = np.zeros(len(of.workloads))
    return Prices(
        demand_usd=np.array(demand_usd),
        pool_usd=np.zeros(len(of.pools)),
        cap_usd=np.zeros(len(of.caps)),
        quota_usd=np.zeros(len(of.quotas)),
        most_usd=none,
        fewest_usd=none,
        budget_usd=none,
    )


class TestReached:
    def changed(self, made: JointProblem, standing: Layout, fresh: tuple[Pattern, ...] = ()) -> Layout:
        return reached(made, standing, fresh, TERMS, Deadline(seconds=60.0, work_units=500)).layout

    def test_surplus_goes(self) -> None:
        made = problem(2, workloads=(workload(0, 40.0), workload(1)))
        both, alone = pattern(made, (0, 40), (1, 20)), pattern(made, (0, 40))
        kept = self.changed(made, Layout.of({both: 1, alone: 2}))
        assert dict(kept.pairs) == {both: 1}

    def test_what_stands_on_many_devices_moves_to_few(self) -> None:
        made = problem(2, workloads=(workload(0, 40.0), workload(1, 40.0)))
        apart = Layout.of({pattern(made, (number, 40)): 1 for number in (0, 1)})
        kept = self.changed(made, apart)
        assert (kept.counts, len(kept.patterns[0].variants)) == ((1,), 2)
        assert (kept.served_rps(made) >= made.rate_rps * (1 - 1e-6)).all()

    def test_money_alone_interrupts_nobody(self) -> None:
        made = problem(2, devices=(2,), workloads=(workload(0, 40.0), workload(1, 40.0)))
        small = replace(made, pools=tuple(replace(pool, memory_mib=3000.0) for pool in made.pools))
        apart = Layout.of({pattern(made, (number, 100)): 1 for number in (0, 1)})
        dense = pattern(made, (0, 40), (1, 40))
        assert sorted(self.changed(small, apart, fresh=(dense,)).counts) == [1, 1]
        assert self.changed(made, apart, fresh=(dense,)).patterns == (dense,)

    def test_where_something_is_idle_nobody_is_interrupted_by_the_same(self) -> None:
        made = problem(2, devices=(3,), workloads=(workload(0, 40.0), workload(1, 40.0)))
        apart = Layout.of({pattern(made, (number, 100)): 1 for number in (0, 1)})
        dense = pattern(made, (0, 40), (1, 40))
        assert self.changed(made, apart, fresh=(dense,)).patterns == (dense,)

    def test_however_little_is_short_counts_more_than_a_device(self) -> None:
        """Half a per cent at what serving is worth would be half a device."""
        made = problem(1, devices=(2,), workloads=(workload(0, 100.5),))
        kept = self.changed(made, Layout.of({pattern(made, (0, 100)): 1}))
        assert sum(kept.counts) == 2
        assert (kept.served_rps(made) >= 100.5).all()

    def test_contents_that_nobody_found_are_priced(self) -> None:
        made = problem(3, devices=(2, 1), workloads=tuple(workload(number, 40.0) for number in range(3)))
        wide = Layout.of({pattern(made, (number, 80)): 1 for number in (0, 1)})
        kept = self.changed(made, wide)
        assert (kept.served_rps(made) >= made.rate_rps * (1 - 1e-6)).all()
        assert sum(kept.counts) == 2

    def test_what_is_priced_has_shares_of_the_policys_step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        steps, price = list[int](), Pricing.price

        def watched(self: Pricing, duals: Floats, look: Look, deadline: Deadline, until_part: float) -> Found:
            steps.append(look.step_pct)
            return price(self, duals, look, deadline, until_part)

        monkeypatch.setattr(Pricing, "price", watched)
        made = problem(3, devices=(2, 1), workloads=tuple(workload(number, 40.0) for number in range(3)))
        for step_pct in (1, 2, 5, 7, 20):
            wide = Layout.of({pattern(made, (0, 80)): 1})
            self.changed(replace(made, share_step_pct=step_pct), wide)
            assert {step % step_pct for step in steps} == {0}
            steps.clear()

    def test_of_very_many_the_others_stay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(prospects, "GROUPS_MAX", 2)
        made = problem(4, devices=(6,), workloads=tuple(workload(number, 40.0) for number in range(4)))
        standing = Layout.of({pattern(made, (number, 40 + 20 * number)): 1 for number in range(3)})
        kept = self.changed(made, standing)
        assert (kept.served_rps(made) >= made.rate_rps * (1 - 1e-6)).all()
        assert standing.patterns[2] in kept.patterns

    def test_of_very_many_those_are_open_that_cost_most_above_what_they_are_worth(self) -> None:
        """For each of their replicas; the emptiest, where no prices are known; first whoever is short is on."""
        made = problem(3, devices=(6,), workloads=tuple(workload(number, 40.0) for number in range(3)))
        cheap, dear = pattern(made, (0, 40)), pattern(made, (1, 100))
        standing = Layout.of(dict.fromkeys((cheap, dear, pattern(made, (2, 60))), 1))
        prices = _prices(made, 1.0, 0.1, 1.0)

        def opened(of: JointProblem, prices: Prices | None, turn: int = 0) -> list[Pattern]:
            groups = prospects.StandingGroups.of(of, standing, 1, prices=prices, turn=turn)
            return list(groups.judge.patterns(groups.judged))

        assert opened(made, None) == [cheap]
        assert opened(made, prices) == [dear]
        # What became nothing better once may not be open again: in later turns chance has its part.
        near = _prices(made, 0.5, 0.1, 1.0)
        later = [opened(made, near, turn) for turn in range(20)]
        assert later == [opened(made, near, turn) for turn in range(20)]
        assert (later[0], {item[0] for item in later}) == ([dear], {dear, cheap})
        short = replace(made, workloads=(*made.workloads[:2], workload(2, 100.0)))
        assert opened(short, prices) == [standing.patterns[2]]

    def test_where_changes_are_few_a_programme_goes_on_from_where_exchanges_are_stuck(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = problem(4, devices=(8,), workloads=tuple(workload(number, 120.0) for number in range(4)))
        apart = Layout.of({pattern(made, (number, 100)): 2 for number in range(4)})
        dense = [pattern(made, (0, 40), (1, 40)), pattern(made, (2, 40), (3, 40))]

        def stuck(_choices: GroupChoices, counts: Whole, _price: Floats, _how: Heat) -> Whole:
            return counts

        monkeypatch.setattr(reach, "annealed", stuck)
        for units, changes_max, used in ((2000, 3, 7), (2000, 2, 7), (2000, 1, 8), (500, 3, 8)):
            terms = replace(TERMS, changes_max=changes_max)
            layout = reached(made, apart, dense, terms, Deadline(seconds=60.0, work_units=units)).layout
            assert (layout.served_rps(made) >= made.rate_rps * (1 - 1e-6)).all()
            assert sum(layout.counts) == used, (units, changes_max)

        def broken(*_: object) -> None:
            raise EngineError("it broke", engine="highs")

        monkeypatch.setattr(reach, "programme_answer", broken)
        terms, within = replace(TERMS, changes_max=3), Deadline(seconds=60.0, work_units=2000)
        assert sum(reached(made, apart, dense, terms, within).layout.counts) == 8

        def asked(*_: object) -> None:
            raise AssertionError("changes are not few")

        monkeypatch.setattr(reach, "programme_answer", asked)
        layout = reached(made, apart, dense, TERMS, Deadline(seconds=60.0, work_units=500)).layout
        assert sum(layout.counts) == 8

    def test_an_earlier_answer_of_other_groups_is_nothing_to_begin_with(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What it says of the first group is said of another one where prices are others."""
        monkeypatch.setattr(reach, "GROUPS_MAX", 1)
        made = problem(2, devices=(3,), workloads=(workload(0, 40.0), workload(1, 40.0)))
        apart = Layout.of({pattern(made, (number, 100)): 1 for number in (0, 1)})
        known, begun = Prospects.counts, list[int]()

        def watched(self: Prospects, taken: Prospects) -> Whole:
            begun.append(len(taken))
            return known(self, taken)

        monkeypatch.setattr(Prospects, "counts", watched)
        within = Deadline(seconds=60.0, work_units=500)
        first = reached(made, apart, (), TERMS, within)
        assert first.taken
        reached(made, apart, (), TERMS, within, begin=first)
        reached(made, apart, (), TERMS, within, begin=replace(first, prices=_prices(made, 1.0, 1.0)))
        assert begun == [0, len(first.taken), 0]

    def test_an_earlier_answer_is_where_a_later_search_begins(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """And where it ends, if there is nothing more to be had; though nobody tells it of the contents."""
        made = problem(2, devices=(3,), workloads=(workload(0, 40.0), workload(1, 40.0)))
        apart = Layout.of({pattern(made, (number, 100)): 1 for number in (0, 1)})
        dense, within = pattern(made, (0, 40), (1, 40)), Deadline(seconds=60.0, work_units=500)
        first = reached(made, apart, (dense,), TERMS, within)
        assert first.layout.patterns == (dense,)

        def nothing(*_: object) -> Whole:
            raise AssertionError("there is nothing to search")

        monkeypatch.setattr(reach, "annealed", nothing)
        monkeypatch.setattr(reach, "PRICED_MAX", 0)
        again = reached(made, apart, (), TERMS, within, begin=first)
        assert again.layout == first.layout
        assert again.left_usd == pytest.approx(first.left_usd)
        # What is far from the best that is thought of now is searched anew.
        with pytest.raises(AssertionError, match="nothing to search"):
            reached(made, apart, (), TERMS, within, begin=replace(first, left_usd=-1.0))

    @pytest.mark.parametrize("lasts_s", [0.0, 60.0])
    def test_what_a_search_without_time_left_is_searched_again(
        self, monkeypatch: pytest.MonkeyPatch, lasts_s: float
    ) -> None:
        """Whether the deadline came before the programme or within it."""
        made = problem(2, workloads=(workload(0, 40.0), workload(1, 40.0)))
        apart = Layout.of({pattern(made, (number, 40)): 1 for number in (0, 1)})

        deadline = Deadline(seconds=lasts_s)

        def slow(_: GroupChoices, counts: Whole, *_others: object) -> Whole:
            deadline.seconds = 0.0
            return counts

        with monkeypatch.context() as patch:
            patch.setattr(reach, "annealed", slow)
            first = reached(made, apart, (), TERMS, deadline)
        assert (sum(first.layout.counts), first.left_usd) == (2, 0.0)
        again = reached(made, apart, (), TERMS, Deadline(seconds=60.0, work_units=500), begin=first)
        assert sum(again.layout.counts) == 1

    def test_a_search_in_haste_is_searched_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Though the deadline has not come when it ends."""
        made = problem(2, workloads=(workload(0, 40.0), workload(1, 40.0)))
        apart = Layout.of({pattern(made, (number, 40)): 1 for number in (0, 1)})
        asked = list[int]()

        def vain(_: GroupChoices, counts: Whole, _price: Floats, how: Heat) -> Whole:
            asked.append(how.steps)
            return counts

        with monkeypatch.context() as patch:
            patch.setattr(reach, "annealed", vain)
            patch.setattr(reach, "STEPS_PER_S", reach.STEPS / 1e4)  # a minute is a moment
            first = reached(made, apart, (), TERMS, Deadline(seconds=60.0))
        assert 0 < asked[0] < reach.STEPS
        assert (sum(first.layout.counts), first.left_usd) == (2, 0.0)
        again = reached(made, apart, (), TERMS, Deadline(seconds=60.0, work_units=500), begin=first)
        assert sum(again.layout.counts) == 1
        # Without haste it is over with what it left.
        with monkeypatch.context() as patch:
            patch.setattr(reach, "annealed", vain)
            first = reached(made, apart, (), TERMS, Deadline(seconds=60.0))
        assert first.left_usd > 0
        assert sum(reached(made, apart, (), TERMS, Deadline(seconds=60.0), begin=first).layout.counts) == 2
