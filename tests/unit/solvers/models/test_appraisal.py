"""What stands beside its real neighbours, judged as the verifier judges it but by other code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers.domain.codec import digest
from solvers.domain.ids import ModelName, WorkloadId
from solvers.domain.plan import Assignment, DeviceSetting, Envelope, Plan
from solvers.domain.policy import Objective
from solvers.domain.profile import Interference, Profile, ProfileGrid
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Affinity, AntiAffinity, WorkloadKind
from solvers.models.appraisal import Appraisal
from solvers.models.table import Tables
from solvers.models.worth import worth_of
from solvers.problems.fleet import open_fleet
from solvers.problems.needs import needs_of
from solvers.verify.bounds import capacity_rps, execution
from solvers.verify.picture import Picture
from tests import builders

CLOCKS = (990, 1590)
DEVICES = [builders.device("a", index, "t4") for index in range(8)]
NAMES = ("quick", "slow", "tight")
SETTINGS = tuple(DeviceSetting(device=each.id, clock_mhz_sm=CLOCKS[index % 2]) for index, each in enumerate(DEVICES))


def as_grid(profile: Profile) -> Profile:
    """The same profile in compact form."""
    grid = ProfileGrid(
        clocks_mhz_sm=CLOCKS,
        shares_pct_sm=builders.SHARES,
        batches=builders.BATCHES,
        latency_ms=tuple(each.latency_ms_mean for each in profile.points),
        power_w=tuple(each.power_w or 0.0 for each in profile.points),
        memory_mib=tuple(builders.memory_mib(batch) for batch in builders.BATCHES),
    )
    return Profile(model=profile.model, gpu_type=profile.gpu_type, grid=grid)


def world(*, known: bool = True, grid: bool = True) -> Snapshot:
    """Three services of one model each on eight T4, every second of them at a low clock."""
    services = [
        builders.service(
            name,
            model=ModelName(name),
            slo=builders.slo(limit),
            affinity=Affinity(anti_affinity=AntiAffinity.OFF),
            rate_rps_declared=10.0,
        )
        for name, limit in zip(NAMES, (60.0, 400.0, 25.0), strict=True)
    ]
    profiles = []
    for index, name in enumerate(NAMES):
        made = builders.profile(name, "t4", work=0.5 + 0.4 * index, clocks=CLOCKS)
        made = as_grid(made) if grid else made
        interference = Interference(pressure=0.1 + 0.2 * index, exponent=0.5, sensitivity=0.6 - 0.2 * index)
        profiles.append(replace(made, interference=interference if known or index else None))
    return builders.snapshot(DEVICES, services, profiles=profiles)


def crowd(seed: int) -> tuple[Assignment, ...]:
    """Up to three replicas on each device, at shares that nobody measured."""
    rng = np.random.default_rng(seed)
    made = []
    for index, device in enumerate(DEVICES):
        clock = CLOCKS[index % 2]
        for _ in range(int(rng.integers(1, 4))):
            batch = int(rng.integers(1, 20))
            made.append(
                builders.assignment(
                    f"demo/{NAMES[int(rng.integers(0, 3))]}#{len(made)}",
                    device,
                    share_pct_sm=int(rng.integers(5, 34)),
                    batch=batch,
                    memory_mib_limit=3000,
                    envelope=Envelope(batch_min=1, batch_max=batch, clock_mhz_sm_min=clock, clock_mhz_sm_max=clock),
                )
            )
    return tuple(replace(item, model=ModelName(item.workload.partition("/")[2])) for item in made)


def appraised(picture: Snapshot, standing: tuple[Assignment, ...]) -> dict[str, float]:
    """Capacity of each replica; 0 where it cannot be shown to keep its promise."""
    settings = {item.device: item for item in SETTINGS}
    fleet = open_fleet(picture, settings)
    made = Appraisal.of(fleet, Tables.of(picture.profiles), picture.policy, standing, settings)
    found: dict[str, float] = {}
    for need in needs_of(picture, builders.everything_movable(picture)):
        own = [item for item in standing if item.workload == need.workload]
        for item, capacity in zip(own, made.capacities_rps(need, own), strict=True):
            found[item.replica] = capacity or 0.0
    return found


def proven(picture: Snapshot, standing: tuple[Assignment, ...]) -> dict[str, float]:
    """The same by the verifier."""
    plan = Plan(
        snapshot=digest(picture),
        parent=picture.target.generation,
        planner="hand",
        planner_version="1",
        seed=1,
        assignments=standing,
        settings=SETTINGS,
        unplaced=(),
        objective=Objective(),
    )
    seen = Picture(picture, plan, ())
    found: dict[str, float] = {}
    for item in standing:
        slo = seen.services[item.workload].slo
        bound = execution(seen, item, seen.devices[item.device], item.batch)
        found[item.replica] = 0.0 if bound is None else capacity_rps(seen, item, slo, bound)
    return found


@pytest.mark.parametrize("grid", [True, False])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_the_verifier_finds_the_same(seed: int, known: bool, grid: bool) -> None:
    picture, standing = world(known=known, grid=grid), crowd(seed)
    mine = appraised(picture, standing)
    assert mine == pytest.approx(proven(picture, standing), rel=1e-9)
    assert sum(value > 0 for value in mine.values()) > 0
    assert any(value == 0 for value in mine.values()) or seed > 0


def test_a_neighbour_takes_capacity_away() -> None:
    picture = world()
    alone = TestWhatCannotBeShown.ITEM
    beside = replace(alone, replica=f"{alone.workload}#99")
    capacity = appraised(picture, (alone,))[alone.replica]
    assert appraised(picture, (alone, beside))[alone.replica] < capacity


def test_what_was_not_measured_everywhere_is_read_by_batch() -> None:
    picture = world(grid=False)
    thin = tuple(
        replace(each, points=tuple(point for point in each.points if (point.share_pct_sm, point.batch) != (20, 4)))
        for each in picture.profiles
    )
    picture = replace(picture, profiles=thin)
    for seed in range(4):
        standing = crowd(seed)
        shown, mine = proven(picture, standing), appraised(picture, standing)
        assert all(mine[replica] <= shown[replica] * (1 + 1e-9) for replica in mine)
        assert sum(mine.values()) > 0


class TestWhatCannotBeShown:
    ITEM = builders.assignment(
        "demo/slow#0",
        DEVICES[1],
        model=ModelName("slow"),
        envelope=Envelope(batch_min=1, batch_max=8, clock_mhz_sm_min=1590, clock_mhz_sm_max=1590),
    )

    def at_risk(self, item: Assignment, picture: Snapshot | None = None) -> bool:
        movable = (WorkloadId("demo/slow"),)
        return worth_of(picture or world(), movable, (item,), SETTINGS).objective.slo_risk > 0

    def test_it_is_fine_as_it_is(self) -> None:
        assert not self.at_risk(self.ITEM)

    def test_a_foreign_model(self) -> None:
        assert self.at_risk(replace(self.ITEM, model=ModelName("quick")))

    def test_an_alternative_counts_if_it_is_accurate_enough(self) -> None:
        picture = world()
        (slow,) = (each for each in picture.services if each.name == "slow")
        for accuracy, broken in ((80.0, False), (60.0, True)):
            models = tuple(replace(each, accuracy_pct=accuracy) for each in picture.models)
            service = replace(slow, alternatives=(ModelName("quick"),), accuracy_pct_min=70.0)
            services = tuple(service if each is slow else each for each in picture.services)
            variant = replace(picture, models=models, services=services)
            assert self.at_risk(replace(self.ITEM, model=ModelName("quick")), variant) is broken

    def test_another_clock_than_it_was_planned_for(self) -> None:
        assert self.at_risk(replace(self.ITEM, device=DEVICES[0].id))

    def test_an_open_clock_counts_by_its_worst_corner_where_nobody_keeps_the_promise_there(self) -> None:
        low = CLOCKS[0]
        wide = replace(self.ITEM, envelope=replace(self.ITEM.envelope, clock_mhz_sm_min=low))
        small = replace(wide, batch=1, envelope=replace(wide.envelope, batch_max=1))
        picture = world()
        (slow,) = (each for each in picture.services if each.name == "slow")

        def least_ms(item: Assignment, governor: str) -> int:
            """The shortest limit that it is shown to keep."""
            heeded = replace(picture, policy=replace(picture.policy, governor=governor))
            for limit_ms in range(2, 400, 2):
                service = replace(slow, slo=replace(slow.slo, latency_ms=float(limit_ms)))
                services = tuple(service if each is slow else each for each in picture.services)
                if not self.at_risk(item, replace(heeded, services=services)):
                    return limit_ms
            raise AssertionError(item)

        closed, both, least = (least_ms(item, "batchdvfs") for item in (self.ITEM, wide, small))
        assert closed < both
        assert least < both
        assert [least_ms(item, "morak") for item in (self.ITEM, wide)] == [closed, closed]

    def test_too_little_memory(self) -> None:
        assert self.at_risk(replace(self.ITEM, memory_mib_limit=1000))

    def test_a_share_below_all_that_was_measured(self) -> None:
        assert self.at_risk(replace(self.ITEM, share_pct_sm=9))

    def test_a_larger_batch_than_was_measured(self) -> None:
        assert self.at_risk(replace(self.ITEM, batch=64, envelope=replace(self.ITEM.envelope, batch_max=64)))

    def test_jobs_promise_nothing_but_press(self) -> None:
        picture = world()
        job = replace(self.ITEM, replica="demo/train#0", workload="demo/train", kind=WorkloadKind.JOB)
        settings = {item.device: item for item in SETTINGS}
        made = Appraisal.of(
            open_fleet(picture, settings),
            Tables.of(picture.profiles),
            picture.policy,
            (self.ITEM, job),
            settings,
        )
        assert made.slowdown(self.ITEM) == picture.policy.interference_margin
