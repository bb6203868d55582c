"""HetSev cycle by cycle: AC-HET-03, its windows, its anti-affinity and what it remembers.

AC-HET-04: placement ends, everybody is placed or waits, and no queue starves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from solvers.domain.arrays import Whole
from solvers.domain.evidence import ReasonCode, SilentReporter
from solvers.domain.ids import Generation, ModelName, WorkloadId
from solvers.domain.plan import Plan
from solvers.domain.snapshot import Snapshot
from solvers.domain.telemetry import Demand
from solvers.domain.workload import Affinity, AntiAffinity, Service
from solvers.engines.base import Engine, EngineAnswer, Limits
from solvers.planners.base import kept, recalled
from solvers.planners.case import Case
from solvers.planners.counting.scaling import CountScaling, Direction, scale
from solvers.planners.draft import Draft
from solvers.planners.traits import Sample, mean_rate_rps
from solvers.planners.tuning import Counts
from solvers.policies.hetsev import deciding
from solvers.policies.hetsev.deciding import Controlled, HetsevParameters, Remembered, Resources, grow, programme_of
from solvers.policies.hetsev.planner import HetSev, HetsevMemory, Pending, grouped, seat_all, weight
from solvers.verify.checks import is_fatal, verify
from tests import builders


def pending(model: str, memory_mib: int, waited_s: float = 0.0) -> Pending:
    return Pending(
        workload=WorkloadId(f"demo/{model}"), model=ModelName(model), memory_mib=memory_mib, waited_s=waited_s
    )


def queues(items: list[Pending], groups: int = 4, seed: int = 1) -> list[list[int]]:
    return grouped(items, groups, np.random.default_rng(seed))


def test_the_worked_weight() -> None:
    assert weight([2, 3, 10, 2, 3, 10]) == pytest.approx(18)
    assert weight([]) == 0


def test_like_instances_share_a_queue() -> None:
    items = [pending("a", 1000, 1), pending("b", 1000), pending("a", 1000, 5), pending("b", 8000)]
    assert sorted(queues(items)) == [[1], [2, 0], [3]]
    assert queues([]) == []


@pytest.mark.parametrize("groups", [1, 2, 4, 9])
def test_everybody_is_in_one_queue(groups: int) -> None:
    rng = np.random.default_rng(groups)
    items = [pending(str(rng.choice(["a", "b", "c"])), int(rng.integers(500, 9000))) for _ in range(40)]
    found = queues(items, groups)
    assert sorted(number for queue in found for number in queue) == list(range(40))
    assert len(found) <= groups
    assert found == queues(items, groups)


def test_queues_have_medians_as_their_centres() -> None:
    """At the end no instance is nearer to the median of another queue of its model than to that of its own."""
    rng = np.random.default_rng(3)
    for seed in range(40):
        sizes = [int(1000 * 9 ** rng.random() ** 3) for _ in range(12)]
        found = queues([pending("a", size) for size in sizes], groups=3, seed=seed)
        medians = [float(np.median([sizes[number] for number in queue])) for queue in found]
        for queue, own in zip(found, medians, strict=True):
            for number in queue:
                assert abs(sizes[number] - own) <= min(abs(sizes[number] - each) for each in medians) + 1e-6


def test_ac_het_04_it_ends_with_everybody_placed_or_waiting() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        items = [
            pending(str(rng.choice(["a", "b", "c"])), int(rng.integers(1, 9)), float(rng.integers(0, 60)))
            for _ in range(int(rng.integers(1, 30)))
        ]
        room, seated, asked = int(rng.integers(0, 60)), list[int](), 0

        def seat(number: int) -> bool:
            nonlocal room, asked
            asked += 1
            if items[number].memory_mib > room:  # noqa: B023 - called at once
                return False
            room -= items[number].memory_mib  # noqa: B023 - called at once
            seated.append(number)  # noqa: B023 - called at once
            return True

        left = seat_all(items, queues(items), 8, seat)
        assert sorted([*seated, *left]) == list(range(len(items)))
        assert all(items[number].memory_mib > room for number in left)
        assert asked <= (len(items) + 1) ** 2


def test_one_success_gives_everybody_another_try() -> None:
    items, tries = [pending("a", 1), pending("b", 1)], list[int]()

    def only_after_the_other(number: int) -> bool:
        tries.append(number)
        return number == 1 or 1 in tries

    assert seat_all(items, [[0], [1]], 1, only_after_the_other) == []


@pytest.mark.parametrize(("size", "asked"), [(3, [0, 1, 2, 0]), (1, [0, 1, 0, 2])])
def test_a_round_takes_so_many_before_anybody_is_asked_again(size: int, asked: list[int]) -> None:
    tries = list[int]()

    def only_the_second(number: int) -> bool:
        tries.append(number)
        return number == 1

    assert seat_all([pending("a", 1)] * 3, [[0, 1, 2]], size, only_the_second) == [0, 2]
    assert tries == asked


def test_ac_het_04_no_queue_starves_under_constant_arrivals() -> None:
    """One place per round; a long queue and a lone instance: the lone one is served before long."""
    waits = {"many": [0.0] * 6, "lone": [0.0]}
    served: list[str] = []
    for _ in range(200):
        items = [pending(name, 1, wait) for name, known in waits.items() for wait in known]
        taken: list[int] = []

        def seat(number: int) -> bool:
            if taken:  # noqa: B023 - called at once
                return False
            taken.append(number)  # noqa: B023 - called at once
            return True

        seat_all(items, queues(items), 8, seat)
        served.append(items[taken[0]].model)
        waits = {
            name: [15.0 + item.waited_s for at, item in enumerate(items) if item.model == name and at not in taken]
            for name in waits
        }
        # Whoever was served is followed by one of its kind: as many come as go.
        waits[served[-1]].append(0.0)
    gaps = np.diff([-1, *(at for at, name in enumerate(served) if name == "lone"), len(served)])
    assert served.count("lone") >= 5
    assert gaps.max() <= 40


STEP_S = 15.0


def farm(*services: Service, **changes: Any) -> Snapshot:
    """Four V100 and four T4."""
    devices = [builders.device(f"v{at}", 0, "v100") for at in range(4)]
    devices += [builders.device(f"t{at}", 0, "t4") for at in range(4)]
    return builders.snapshot(devices, services, **changes)


class Run:
    """A service of resnet50 under HetSev, one cycle after the other."""

    def __init__(self, picture: Snapshot, parameters: HetsevParameters | None = None) -> None:
        self.picture, self.state = picture, b""
        self.planner = HetSev(parameters=parameters or HetsevParameters(rate_window_s=0, share_pct=50))
        self.plan: Plan | None = None

    def step(self, rate_rps: float, seconds: float = STEP_S, *, held: bool = False) -> list[str]:
        """Plan at a rate, then let so much time pass; the replicas of the plan. `held`: it is not promoted."""
        return self.step_with(builders.demand("demo/vision", rate_rps), seconds, held=held)

    def step_with(self, demand: Demand, seconds: float = STEP_S, *, held: bool = False) -> list[str]:
        self.picture = replace(self.picture, demands=(demand,))
        request = builders.request(self.picture)
        thought = self.planner.think(request, self.state, SilentReporter())
        plan = thought.proposal.plan
        assert plan is not None
        assert thought.state is not None
        assert not is_fatal(verify(self.picture, plan, request.movable))
        self.plan, self.state = plan, thought.state
        generation = Generation(self.picture.target.generation + 1)
        if not held:
            target = builders.target(plan.assignments, settings=plan.settings, generation=generation)
            self.picture = replace(self.picture, target=target)
        self.picture = replace(self.picture, taken_at_s=self.picture.taken_at_s + seconds)
        return [item.replica for item in plan.assignments]

    @property
    def memory(self) -> Remembered:
        memory = recalled(HetsevMemory, self.state)
        assert memory is not None
        return memory.services[0]

    @property
    def capacity_rps(self) -> float:
        assert self.plan is not None
        return sum(item.capacity_rps for item in self.plan.assignments)


def test_it_sizes_for_eighty_percent() -> None:
    run = Run(farm(builders.service()))
    run.step(200)
    assert run.capacity_rps >= 200 / 0.8
    assert run.plan is not None
    assert {item.share_pct_sm for item in run.plan.assignments} == {50}


def test_demand_is_the_mean_of_two_minutes() -> None:
    """Each demand here is the mean of a minute, so a step of demand is seen whole only a minute later."""
    run = Run(farm(builders.service()), HetsevParameters(sustained_s=0, anti_affinity=AntiAffinity.OFF))
    run.step(100)
    means, counts = list[float](), list[int]()
    for _ in range(6):
        counts.append(len(run.step(400)))
        means.append(mean_rate_rps(run.memory.rates, 120))
    assert means == [250, 300, 325, 340, 400, 400]
    assert counts == sorted(counts)
    assert run.capacity_rps >= 400 / 0.8 - 1e-9


@pytest.mark.parametrize(
    ("models", "changes", "share"),
    [
        (1, {}, 100),
        (2, {}, 50),
        (3, {}, 30),
        (4, {}, 25),
        (4, {"tenants_max": 2}, 50),
        (1, {"anti_affinity": AntiAffinity.OFF}, 25),
        (3, {"share_pct": 70}, 70),
    ],
)
def test_shares_are_cut_for_as_many_as_may_meet(models: int, changes: dict[str, Any], share: int) -> None:
    names = ("bert", "gpt", "resnet50", "yolo")[:models]
    services = [builders.service(name, model=name, rate_rps_declared=20) for name in names]
    profiles = [
        builders.profile(name, kind, shares=(10, 25, 30, 50, 70, 100)) for name in names for kind in ("t4", "v100")
    ]
    request = builders.request(farm(*services, profiles=profiles))
    plan = HetSev(parameters=HetsevParameters(**changes)).propose(request, b"", SilentReporter()).plan
    assert plan is not None
    assert {item.share_pct_sm for item in plan.assignments} == {share}


def test_growth_aims_where_it_is_told() -> None:
    aims = {}
    for aim in (0.4, 0.8, 1.0):
        run = Run(farm(builders.service()), HetsevParameters(target_saturation=aim))
        run.step(200)
        assert run.capacity_rps >= 200 / aim
        aims[aim] = run.capacity_rps
    assert aims[0.4] > aims[0.8] >= aims[1.0]


def test_batches_are_those_of_the_paper_where_they_are_given() -> None:
    for batches, wanted in (("resnet50=4", 4), ("resnet50=5", 4), ("bert=2,resnet50=2", 2)):
        run = Run(farm(builders.service()), HetsevParameters(batches=Counts(batches)))
        run.step(200)
        assert run.plan is not None
        assert {item.batch for item in run.plan.assignments} == {wanted}


def test_what_it_stops_does_not_stay_for_want_of_better() -> None:
    """The busiest moment is above what is left after shrinking, the mean is far below it."""
    run = Run(farm(builders.service()), HetsevParameters(cooldown_s=15))
    high = len(run.step(400))
    demand = replace(builders.demand("demo/vision", 60.0), rate_rps_upper=400.0, rate_rps_mean=60.0)
    low = high
    for _ in range(16):
        low = len(run.step_with(demand))
    assert low < high


def test_it_grows_only_after_a_sustained_period() -> None:
    run = Run(farm(builders.service()))
    before = run.step(100)
    assert run.step(400) == before
    assert run.plan is not None
    assert run.plan.unplaced[0].reasons[0].code is ReasonCode.WAITS_IN_LINE
    assert run.step(400) == before
    assert len(run.step(400)) > len(before)
    assert run.capacity_rps >= 400 / 0.8


def test_a_short_peak_changes_nothing() -> None:
    run = Run(farm(builders.service()))
    before = run.step(100)
    for rate in (400, 100, 400, 100, 400, 100):
        assert run.step(rate) == before


def test_growth_that_was_held_is_asked_for_again_at_once() -> None:
    """Or services whose growth helps only together ask in turns for ever."""
    run = Run(farm(builders.service()))
    few = run.step(200)
    while len(more := run.step(400, held=True)) == len(few):
        assert run.memory.saturated_since_s is not None
    assert [run.step(400, held=True) for _ in range(3)] == [more] * 3
    assert run.step(400) == more
    # Done, its windows begin anew.
    assert run.step(800) == more
    assert run.step(800) == more
    assert len(run.step(800)) > len(more)


def test_what_was_held_is_no_change_that_others_wait_for() -> None:
    run = Run(farm(builders.service()))
    many = run.step(400)
    while len(fewer := run.step(50, held=True)) == len(many):
        pass
    assert run.step(50, held=True) == fewer
    assert run.step(50) == fewer
    rest = [run.step(50) for _ in range(int(300 / STEP_S) - 1)]
    assert all(standing == fewer for standing in rest)


def test_ac_het_03_it_shrinks_only_after_the_cool_down() -> None:
    run = Run(farm(builders.service()))
    before = run.step(600)
    counts = [len(run.step(60)) for _ in range(24)]
    assert counts[:20] == [len(before)] * 20
    assert counts[-1] < len(before)
    assert run.capacity_rps >= 60 / 0.8


def test_the_newest_instances_go_first() -> None:
    devices = [builders.device(f"v{at}", 0, "v100") for at in range(4)]
    run = Run(builders.snapshot(devices, [builders.service()]))
    run.step(60)
    before = sorted(run.step(900, seconds=60.0) and run.step(900, seconds=60.0))
    after = before
    for _ in range(24):
        after = run.step(300)
    assert 1 <= len(after) < len(before)
    assert sorted(after) == before[: len(after)]


def test_the_newest_stays_where_it_is_alone_in_its_failure_domain() -> None:
    devices = [builders.device(f"v{at}", 0, "v100") for at in range(4)]
    run = Run(builders.snapshot(devices[:3], [builders.service()]))
    run.step(600)
    before = run.step(600, seconds=60.0) and run.step(600, seconds=60.0)
    assert len(before) == 3
    service = builders.service(affinity=Affinity(failure_domains_min=2))
    nodes = tuple(builders.node(f"v{at}", failure_domain=f"zone-{at // 2}") for at in range(4))
    run.picture = replace(run.picture, services=(service,), nodes=nodes[:3])
    where = {item.device for item in run.picture.target.assignments}
    for _ in range(24):
        run.step(60)
    assert run.plan is not None
    assert len(run.plan.assignments) == 2
    assert devices[2].id in {item.device for item in run.plan.assignments} & where


def test_the_owners_least_is_kept_however_little_is_asked() -> None:
    run = Run(farm(builders.service(replicas_min=3)))
    run.step(900)
    counts = [len(run.step(5)) for _ in range(24)]
    assert counts[-1] == 3


def test_instances_are_traded_for_cheaper_ones_only_where_that_is_allowed() -> None:
    """It runs on T4, since there was nothing else; then V100 come, whose memory serves more for its price."""
    for free in (False, True):
        first = [builders.device(f"t{at}", 0, "t4") for at in range(3)]
        parameters = HetsevParameters(rate_window_s=0, share_pct=50, sustained_s=0, allow_substitution=free)
        run = Run(builders.snapshot(first, [builders.service(slo=builders.slo(400.0))]), parameters)
        assert len(run.step(400)) == 3
        before = {(item.replica, item.device) for item in run.plan.assignments} if run.plan is not None else set()
        more = [builders.device(f"v{at}", 0, "v100") for at in range(6)]
        whole = builders.snapshot([*first, *more], run.picture.services)
        run.picture = replace(whole, target=run.picture.target, taken_at_s=run.picture.taken_at_s)
        run.step(1200)
        after = {(item.replica, item.device) for item in run.plan.assignments} if run.plan is not None else set()
        assert (before <= after) is not free


def controlled(*rates_rps: float) -> Controlled:
    """A service of which nothing runs, and what was asked of it lately."""
    request = builders.request(farm(builders.service()))
    draft = Draft.of(request, Case.of(request))
    need = draft.needs[0]
    rates = tuple(Sample(at_s=15.0 * at, rate_rps=rate, window_s=60.0) for at, rate in enumerate(rates_rps))
    return Controlled(
        draft=draft,
        need=need,
        running=(),
        parameters=HetsevParameters(),
        memory=Remembered(workload=need.workload, rates=rates),
        room=lambda _need, _option: 0,
    )


def test_what_is_paid_is_the_memory_that_an_instance_holds() -> None:
    service = controlled(100.0)
    made = programme_of(service, Direction.OUT)
    assert len(made.starts) >= 2
    for option, usd in zip(made.starts, made.scaling.usd, strict=True):
        kind = service.draft.fleet.classes[option.device_class]
        assert usd == pytest.approx(kind.usd_per_h * option.memory_mib / kind.memory_mib)
    assert made.scaling.wanted_rps == pytest.approx(100.0 / 0.8)


def test_where_an_engine_ends_early_the_plain_rule_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    service = replace(controlled(100.0), room=lambda _need, _option: 3)
    best = grow(service)
    assert not best.fell_back

    def early(problem: CountScaling, engine: Engine, limits: Limits) -> tuple[Whole | None, EngineAnswer]:
        change, answer = scale(problem, engine, limits)
        assert change is not None
        return change + 1, answer

    monkeypatch.setattr(deciding, "scale", early)
    found = grow(service)
    assert found.fell_back
    assert len(found.start) < len(best.start) + 2
    assert found.objective >= best.objective - 1e-9


def test_lambda_grows_with_how_much_the_rate_varied() -> None:
    def risk(*rates_rps: float) -> float:
        return controlled(*rates_rps).risk_per_s

    assert risk(200.0, 200.0) == risk() == pytest.approx(0.05)
    assert risk(100.0, 300.0) == pytest.approx(0.05 * 1.5)
    # Only the newest ten tell.
    assert risk(9000.0, *[200.0] * 10) == pytest.approx(0.05)


def test_ac_het_03_it_comes_to_rest_under_constant_load() -> None:
    """AC-HET-03: at most one action, then none for an hour."""
    run = Run(farm(builders.service()))
    run.step(90)
    for _ in range(4):
        run.step(310)
    settled = run.step(310)
    for _ in range(240):
        assert run.step(310) == settled


def test_ac_het_03_no_device_holds_a_model_twice() -> None:
    free = Affinity(anti_affinity=AntiAffinity.OFF)
    first, second = builders.service("one", affinity=free), builders.service("two", affinity=free)
    picture = farm(replace(first, rate_rps_declared=300), replace(second, rate_rps_declared=300))
    plan = HetSev().propose(builders.request(picture), b"", SilentReporter()).plan
    assert plan is not None
    devices = [item.device for item in plan.assignments]
    assert len(devices) == len(set(devices)) > 2
    off = HetSev(parameters=HetsevParameters(anti_affinity=AntiAffinity.OFF))
    shared = off.propose(builders.request(picture), b"", SilentReporter()).plan
    assert shared is not None
    assert not is_fatal(verify(picture, shared, builders.everything_movable(picture)))


THIRTY = HetsevParameters(rate_window_s=0, share_pct=30)


def placed(picture: Snapshot, parameters: HetsevParameters = THIRTY, state: bytes = b"") -> dict[str, list[str]]:
    """By workload its devices, after one cycle."""
    thought = HetSev(parameters=parameters).think(builders.request(picture), state, SilentReporter())
    plan = thought.proposal.plan
    assert plan is not None
    found: dict[str, list[str]] = {}
    for item in plan.assignments:
        found.setdefault(item.workload.removeprefix("demo/"), []).append(item.device)
    return found


def small(name: str, model: str = "resnet50", **changes: Any) -> Service:
    """What one instance serves."""
    return builders.service(name, model=model, rate_rps_declared=20.0, slo=builders.slo(400.0), **changes)


def test_a_model_is_on_a_gpu_once_whoever_owns_it_though_there_is_room() -> None:
    free = Affinity(anti_affinity=AntiAffinity.OFF)
    picture = builders.snapshot([builders.device("v", 0, "v100")], [small(name, affinity=free) for name in "ab"])
    assert len(placed(picture)) == 1
    off = replace(THIRTY, anti_affinity=AntiAffinity.OFF)
    assert placed(picture, off) == {"a": ["GPU-v-0"], "b": ["GPU-v-0"]}


def test_an_instance_goes_where_most_is_free_unless_its_model_is_there() -> None:
    devices = [builders.device("v", at, "v100") for at in range(2)]
    apart = placed(builders.snapshot(devices, [small("a"), small("b", "bert")]))
    assert sorted(device for each in apart.values() for device in each) == ["GPU-v-0", "GPU-v-1"]
    stand = [
        builders.assignment("demo/a#0", devices[0], share_pct_sm=30, memory_mib_limit=2000),
        builders.assignment("demo/b#0", devices[1], model=ModelName("bert"), share_pct_sm=50, memory_mib_limit=2000),
    ]
    services = [small("a"), small("b", "bert"), small("c")]
    picture = builders.snapshot(devices, services, target=builders.target(stand))
    for rule, device in ((AntiAffinity.OFF, "GPU-v-0"), (AntiAffinity.SOFT, "GPU-v-1")):
        assert placed(picture, replace(THIRTY, anti_affinity=rule))["c"] == [device]


def test_who_lost_the_room_it_counted_on_chooses_again_in_the_same_cycle() -> None:
    """Both want the cheap T4, where one of the same model may be."""
    devices = [builders.device("t", 0, "t4"), builders.device("v", 0, "v100")]
    found = placed(builders.snapshot(devices, [small("a"), small("b")]))
    assert sorted(device for each in found.values() for device in each) == ["GPU-t-0", "GPU-v-0"]


@pytest.mark.parametrize(("first", "later"), [("a", "b"), ("b", "a")])
def test_who_waited_longer_is_placed_first(first: str, later: str) -> None:
    picture = builders.snapshot([builders.device("v", 0, "v100")], [small("a"), small("b")])
    waits = Remembered(workload=WorkloadId(f"demo/{first}"), pending_since_s=(picture.taken_at_s - 500.0,))
    new = Remembered(workload=WorkloadId(f"demo/{later}"))
    state = kept(HetsevMemory(services=tuple(sorted((waits, new), key=lambda item: item.workload))))
    assert placed(picture, state=state) == {first: ["GPU-v-0"]}


def test_who_has_no_other_choice_keeps_its_turn_while_others_choose_again() -> None:
    """All want the T4; `b` waited longest, `c` takes the V100 then, and `a` may be nowhere else."""
    devices = [builders.device("t", 0, "t4"), builders.device("v", 0, "v100")]
    services = [small("a", gpu_types_allowed=("t4",)), small("b"), small("c")]
    picture = builders.snapshot(devices, services)
    since_s = {name: picture.taken_at_s - waited_s for name, waited_s in (("a", 300.0), ("b", 500.0), ("c", 100.0))}
    waits = [
        Remembered(workload=WorkloadId(f"demo/{name}"), pending_since_s=(at_s,), saturated_since_s=at_s)
        for name, at_s in since_s.items()
    ]
    state = kept(HetsevMemory(services=tuple(waits)))
    assert placed(picture, state=state) == {"b": ["GPU-t-0"], "c": ["GPU-v-0"]}
    thought = HetSev(parameters=THIRTY).think(builders.request(picture), state, SilentReporter())
    memory = recalled(HetsevMemory, thought.state)
    assert memory is not None
    after = memory.services[0]
    assert (after.pending_since_s, after.saturated_since_s) == ((since_s["a"],), since_s["a"])
    assert after.acted_at_s is None
    assert all(not item.pending_since_s for item in memory.services[1:])


def test_who_chooses_again_goes_on_waiting_from_when_it_began() -> None:
    """Each of the instances keeps its own turn, not that of the newest."""
    picture = builders.snapshot([builders.device("t", 0, "t4")], [builders.service(rate_rps_declared=2000.0)])
    now_s = picture.taken_at_s
    waits = Remembered(workload=WorkloadId("demo/vision"), pending_since_s=(now_s - 300.0, now_s - 200.0))
    state = kept(HetsevMemory(services=(waits,)))
    thought = HetSev(parameters=replace(THIRTY, resources=Resources.SUMS)).think(
        builders.request(picture), state, SilentReporter()
    )
    memory = recalled(HetsevMemory, thought.state)
    assert memory is not None
    # The first is placed.
    assert memory.services[0].pending_since_s[:2] == (now_s - 200.0, now_s)


def test_a_turn_outlasts_cycles_in_which_there_is_no_room() -> None:
    picture = builders.snapshot([builders.device("t", 0, "t4")], [small("a"), small("b")])
    state, since = b"", list[tuple[float, ...]]()
    for _ in range(3):
        thought = HetSev(parameters=THIRTY).think(builders.request(picture), state, SilentReporter())
        memory, plan = recalled(HetsevMemory, thought.state), thought.proposal.plan
        assert memory is not None
        assert plan is not None
        assert thought.state is not None
        since += [item.pending_since_s for item in memory.services if item.workload not in {"demo/a"}]
        state = thought.state
        picture = replace(picture, target=builders.target(plan.assignments), taken_at_s=picture.taken_at_s + STEP_S)
    assert since == [(1_000_000.0,)] * 3


def test_models_share_devices_by_worst_fit() -> None:
    other = builders.service("text", model="bert", rate_rps_declared=900.0)
    picture = farm(builders.service(rate_rps_declared=900.0), other)
    plan = HetSev().propose(builders.request(picture), b"", SilentReporter()).plan
    assert plan is not None
    by_device = {item.device: set[str]() for item in plan.assignments}
    for item in plan.assignments:
        by_device[item.device].add(item.model)
    assert {"bert", "resnet50"} in by_device.values()
    assert sum(map(len, by_device.values())) == len(plan.assignments)


def test_ac_het_04_what_finds_no_place_waits_and_keeps_its_turn() -> None:
    run = Run(builders.snapshot([builders.device("a", 0, "t4")], [builders.service()]))
    run.step(2000)
    assert run.plan is not None
    assert [item.workload for item in run.plan.unplaced] == ["demo/vision"]
    assert len(run.plan.assignments) == 1
    assert run.plan.unplaced[0].rate_rps_short > 0


def test_a_missing_profile_is_a_reason() -> None:
    picture = farm(builders.service(), profiles=())
    proposal = HetSev().propose(builders.request(picture), b"", SilentReporter())
    assert proposal.plan is not None
    assert proposal.plan.assignments == ()
    assert ReasonCode.NO_PROFILE in {item.code for item in proposal.plan.unplaced[0].reasons}


@pytest.mark.parametrize("engine", ["cbc", "cp-sat", "highs"])
def test_every_engine_finds_the_same_growth(engine: str) -> None:
    picture = farm(builders.service(rate_rps_declared=500.0))
    planner = HetSev(parameters=HetsevParameters(engine=engine))
    proposal = planner.propose(builders.request(picture), b"", SilentReporter())
    plain = HetSev().propose(builders.request(picture), b"", SilentReporter())
    assert proposal.plan == plain.plan
    facts = {fact.name: fact.value for fact in proposal.reasons[1].facts}
    assert facts["solver"] == f"{engine}: optimal"
    assert facts["fell_back"] == "false"


def test_only_with_substitution_a_running_instance_is_traded() -> None:
    kept = []
    for free in (False, True):
        run = Run(farm(builders.service()), HetsevParameters(sustained_s=0, allow_substitution=free))
        run.step(100)
        before = {(item.replica, item.device) for item in (run.plan.assignments if run.plan else ())}
        run.step(2000)
        after = {(item.replica, item.device) for item in (run.plan.assignments if run.plan else ())}
        kept.append(before <= after)
    assert kept[0]


def test_foreign_state_is_no_state() -> None:
    request = builders.request(farm(builders.service()))
    fresh = HetSev().think(request, b"", SilentReporter())
    for state in (b"junk", b'{"form":"other","services":[]}', b"\xff"):
        assert HetSev().think(request, state, SilentReporter()) == fresh
