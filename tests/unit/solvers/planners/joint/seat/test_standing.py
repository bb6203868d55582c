"""Who ends before what replaces it is ready, what that counts, and how a plan avoids it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solvers.engines.deadline import Deadline
from solvers.planners.joint.seat.seating import mend
from solvers.planners.joint.seat.seats import Floor, Seats
from solvers.planners.joint.seat.standing import breaks_usd, make_before_break, replaced, shed, stopover
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import EMPTY, Layout, Pattern
from tests.unit.solvers.planners.joint.seat.floors import floor, held, pattern, problem, workload

LARGE_MIB = 9000
"""So much that nothing starts beside it on a device of 10,000."""


def seated(of: Floor, **where: Pattern) -> Seats:
    seats = Seats(of)
    for name, item in where.items():
        seats.put(int(name.removeprefix("at")), item)
    return seats


class TestEnded:
    def test_what_has_room_beside_its_replacement_goes_on(self) -> None:
        made = problem(2)
        stands = floor(made, {1: [held(0, 40)]})
        assert Seats(stands).ended(1, pattern(made, (0, 60))) == ()

    def test_shares_overlap_meanwhile(self) -> None:
        made = problem(2)
        stands = floor(made, {1: [held(0, 60), held(1, 20)]})
        assert Seats(stands).ended(1, pattern(made, (0, 80), (1, 20))) == ()

    def test_what_memory_does_not_hold_ends_first(self) -> None:
        made = problem(2)
        stands = floor(made, {1: [held(0, 20, memory_mib=9000), held(1, 20)]})
        assert Seats(stands).ended(1, pattern(made, (0, 40), (1, 20))) == (held(0, 20, memory_mib=9000),)

    def test_nothing_starts_beside_who_is_alone(self) -> None:
        made = problem(2, workloads=(workload(0), workload(1, dedicated=True)))
        stands = floor(made, {1: [held(0, 20)]})
        assert Seats(stands).ended(1, pattern(made, (1, 100))) == (held(0, 20),)
        other_mode = floor(made, {1: [replace(held(1, 100), alone=True)]})
        assert Seats(other_mode).ended(1, pattern(made, (0, 20))) == (replace(held(1, 100), alone=True),)
        one = replace(made, pools=tuple(replace(pool, clients=1) for pool in made.pools))
        assert Seats(floor(one, {1: [held(0, 20)]})).ended(1, pattern(one, (0, 40))) == (held(0, 20),)

    def test_what_stays_as_it_is_or_leaves_its_device_empty_is_not_interrupted(self) -> None:
        made = problem(2)
        seats = Seats(floor(made, {1: [held(0, 100)]}))
        assert seats.ended(1, pattern(made, (0, 100))) == ()
        assert seats.ended(1, None) == ()


class TestWorth:
    def test_it_counts_what_is_missing_for_the_launch(self) -> None:
        made = problem(1, workloads=(workload(0, 60.0),))
        stands = floor(made, {0: [held(0, 40)], 1: [held(0, 60, LARGE_MIB, launch_s=6.0)]})
        after = seated(stands, at0=pattern(made, (0, 40)), at1=pattern(made, (0, 80)))
        # 60 of 60 rps are served now, 40 while the other launches.
        assert breaks_usd(after, 60.0) == pytest.approx(100.0 * (20.0 / 60.0) * 6.0 / 60.0)

    def test_spare_capacity_may_be_interrupted(self) -> None:
        made = problem(1, workloads=(workload(0, 40.0),))
        stands = floor(made, {0: [held(0, 40)], 1: [held(0, 60, LARGE_MIB)]})
        after = seated(stands, at0=pattern(made, (0, 40)), at1=pattern(made, (0, 80)))
        assert breaks_usd(after, 60.0) == 0.0


class TestRemedy:
    def test_the_new_contents_go_to_an_idle_device(self) -> None:
        made = problem(1, devices=(2,), workloads=(workload(0, 80.0),))
        seats = seated(floor(made, {0: [held(0, 60, LARGE_MIB)]}), at0=pattern(made, (0, 80)))
        make_before_break(seats)
        assert seats.patterns == [None, pattern(made, (0, 80))]
        assert breaks_usd(seats, 60.0) == 0.0

    def test_not_where_something_stands_or_power_is_missing(self) -> None:
        made = problem(2, devices=(2,), workloads=(workload(0, 80.0), workload(1)))
        taken = seated(floor(made, {0: [held(0, 60, LARGE_MIB)], 1: [held(1, 20)]}), at0=pattern(made, (0, 80)))
        make_before_break(taken)
        assert taken.patterns == [pattern(made, (0, 80)), None]
        weak = floor(made, {0: [held(0, 60, LARGE_MIB)]}, nodes=(1, 100.0))
        weak.room_w[1] = 10.0
        poor = seated(weak, at0=pattern(made, (0, 80)))
        make_before_break(poor)
        assert poor.patterns == [pattern(made, (0, 80)), None]

    def test_who_is_short_gets_another_replica_rather_than_an_interruption(self) -> None:
        made = problem(1, devices=(2,), workloads=(workload(0, 70.0),))
        seats = seated(floor(made, {0: [held(0, 60, LARGE_MIB)]}), at0=pattern(made, (0, 60)))
        mend(seats, Deadline(60.0))
        assert seats.served_rps[0] >= 70.0
        assert seats.ended(0, seats.patterns[0]) == ()

    def test_where_there_is_nothing_else_it_grows_all_the_same(self) -> None:
        made = problem(1, devices=(1,), workloads=(workload(0, 90.0, replicas_max=1),))
        seats = seated(floor(made, {0: [held(0, 60, LARGE_MIB)]}), at0=pattern(made, (0, 60)))
        mend(seats, Deadline(60.0))
        assert seats.patterns[0] == pattern(made, (0, 100))


class TestStopover:
    """A device is to carry more of what stands on it; another pool's is idle in both."""

    @staticmethod
    def both(idle: int = 1) -> tuple[Seats, Seats]:
        made = problem(2, devices=(1, idle), workloads=(workload(0, 60.0), workload(1)))
        stands = floor(made, {0: [held(0, 60, LARGE_MIB)]})
        return seated(stands, at0=pattern(made, (0, 60))), seated(stands, at0=pattern(made, (0, 80), (1, 20)))

    def test_what_would_be_missing_is_served_meanwhile_on_what_is_idle(self) -> None:
        stands, toward = self.both()
        asked = list[JointProblem]()

        def meanwhile(of: JointProblem) -> Layout:
            asked.append(of)
            return Layout(patterns=(pattern(of, (0, 60), kind=3),), counts=(1,))

        room = stopover(stands, toward, meanwhile)
        assert room is not None
        (of,) = asked
        assert [pool.devices for pool in of.pools] == [0, 1]
        assert [(work.rate_least_rps, work.unserved_usd) for work in of.workloads] == [(60.0, 100.0), (0.0, 0.0)]
        assert room.patterns == [pattern(of, (0, 60)), pattern(of, (0, 60), kind=3)]

    def test_there_is_no_way_where_somebody_would_be_short_meanwhile(self) -> None:
        stands, toward = self.both()
        little = Layout(patterns=(pattern(stands.floor.problem, (0, 40), kind=3),), counts=(1,))
        assert stopover(stands, toward, lambda _: little) is None
        assert stopover(*self.both(), lambda _: EMPTY) is None

    def test_nor_where_nobody_is_interrupted_or_power_is_missing(self) -> None:
        stands, _ = self.both()
        assert stopover(stands, stands, lambda _: EMPTY) is None
        stands, toward = self.both()
        enough = Layout(patterns=(pattern(stands.floor.problem, (0, 60), kind=3),), counts=(1,))
        weak = floor(stands.floor.problem, stands.floor.held, nodes=(1, 100.0))
        weak.room_w[1] = 10.0
        poor = [seated(weak, at0=item) for item in (stands.patterns[0], toward.patterns[0]) if item]
        assert stopover(poor[0], poor[1], lambda _: enough) is None


class TestJobsYield:
    def test_contents_go_where_nobody_but_a_job_stands(self) -> None:
        made = problem(2, devices=(2,), workloads=(workload(0, 80.0), workload(1)))
        stands = floor(made, {0: [held(0, 60, LARGE_MIB)], 1: [held(1, 20)]})
        seats = seated(stands, at0=pattern(made, (0, 80)), at1=pattern(made, (1, 20)))
        make_before_break(seats, {1})
        assert seats.patterns == [None, pattern(made, (0, 80))]

    def test_a_job_alone_is_interrupted_without_a_remedy(self) -> None:
        made = problem(2, devices=(2,), workloads=(workload(0, 20.0), workload(1)))
        seats = seated(floor(made, {0: [held(1, 100, LARGE_MIB)]}), at0=pattern(made, (0, 20), (1, 80)))
        make_before_break(seats, {1})
        assert seats.patterns == [pattern(made, (0, 20), (1, 80)), None]

    def test_room_is_kept_for_who_goes_on_until_he_is_replaced(self) -> None:
        made = problem(3, devices=(3,), workloads=tuple(workload(number) for number in range(3)))
        stands = floor(made, {0: [held(0, 40), held(1, 20)], 2: [held(2, 60)]})
        seats = seated(stands, at1=pattern(made, (0, 60), (2, 40)))
        # Workload 1 is served no more, and workload 2 is a job: nobody waits for either.
        assert replaced(seats, {2}) == {0: [held(0, 40)], 2: []}

    def test_the_share_of_who_goes_on_is_free_at_once(self) -> None:
        made = problem(2, devices=(2,))
        seats = seated(floor(made, {0: [held(0, 60)]}), at0=pattern(made, (1, 40)), at1=pattern(made, (0, 60)))
        seats.kept = replaced(seats, {1})
        assert seats.kept[0] == [held(0, 60)]
        assert seats.spare_pct(0) == 60


class TestShed:
    def test_what_would_start_and_nobody_needs_does_not(self) -> None:
        made = problem(2, workloads=(workload(0, 40.0), workload(1, 20.0)))
        after = seated(floor(made), at0=pattern(made, (0, 40), (1, 20)), at1=pattern(made, (1, 40)))
        shed(after, ())
        assert after.patterns[:2] == [pattern(made, (0, 40)), pattern(made, (1, 40))]

    def test_what_stands_stays_and_jobs_keep_all(self) -> None:
        made = problem(2, workloads=(workload(0, 40.0), workload(1, 20.0)))
        twice = {"at0": pattern(made, (0, 40), (1, 20)), "at1": pattern(made, (1, 40))}
        standing = seated(floor(made, {0: [held(1, 20)], 1: [held(1, 40)]}), **twice)
        shed(standing, ())
        training = seated(floor(made), **twice)
        shed(training, (1,))
        assert standing.replicas == training.replicas == [1, 2]

    def test_what_is_asked_for_is_needed(self) -> None:
        made = problem(1, workloads=(workload(0, 20.0, replicas_min=2),))
        after = seated(floor(made), at0=pattern(made, (0, 20)), at1=pattern(made, (0, 40)))
        shed(after, ())
        assert after.replicas == [2]
