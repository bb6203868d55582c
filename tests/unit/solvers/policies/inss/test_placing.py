"""The trained actor as a placer: it decides where it was trained for the picture; for others the planner says why not.

The knapsack by engines, by trying everything, and by the plain rule.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

from lab.learning.packing import packed
from solvers import extensions
from solvers.domain.evidence import SilentReporter
from solvers.domain.plan import Plan, ProposalStatus
from solvers.domain.profile import Interference
from solvers.domain.snapshot import Snapshot
from solvers.engines.base import Limits, create
from solvers.errors import FieldError
from solvers.planners import registry
from solvers.planners.case import Case
from solvers.planners.draft import Draft
from solvers.policies.inss import actor as trained_actors
from solvers.policies.inss import placing as room
from solvers.policies.inss.actor import ActorLayer, Artefact, InssActor, Shape, read, write
from solvers.policies.inss.belief import InssBelief
from solvers.policies.inss.placing import columns_of, exact, greedy
from solvers.problems.knapsack import Knapsack
from solvers.verify.checks import is_fatal, verify
from tests import builders

TOY = ((0, 30, 1.0, 500), (0, 60, 1.0, 800), (1, 30, 1.9, 180), (1, 60, 1.9, 260), (2, 40, 1.5, 90), (2, 60, 1.5, 140))


def toy(rows: tuple[tuple[float, ...], ...] = TOY, gpus: int = 2) -> Knapsack:
    table = np.repeat(np.array(rows, dtype=np.float64), gpus, axis=0)
    return Knapsack(
        model=table[:, 0].astype(np.int64),
        gpu=np.tile(np.arange(gpus, dtype=np.int64), len(rows)),
        share_pct=table[:, 1],
        memory_mib=table[:, 2],
        throughput_rps=table[:, 3],
        served=np.ones(len(table)),
        wanted=np.ones(3, dtype=np.int64),
        share_room_pct=np.full(gpus, 100.0),
        memory_room_mib=np.array([8.0, 6.0])[:gpus],
    )


def every(problem: Knapsack) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return np.ones(len(problem), dtype=np.bool_)


@pytest.mark.parametrize("engine", ["highs", "cbc", "cp-sat"])
def test_the_toy_has_its_best(engine: str) -> None:
    problem = toy()
    chosen = exact(problem, every(problem), create(engine), Limits())
    assert chosen is not None
    assert problem.capacity_rps(chosen) == 1150.0
    assert problem.feasible(chosen)


def test_no_choice_of_all_is_worth_more() -> None:
    problem = toy()
    choices = (np.array(flags) for flags in itertools.product((False, True), repeat=len(problem)))
    best = max(problem.worth[flags].sum() for flags in choices if problem.feasible(flags))
    chosen = exact(problem, every(problem), create("highs"), Limits())
    assert chosen is not None
    assert problem.worth[chosen].sum() == pytest.approx(best)


def random_knapsack(rng: np.random.Generator) -> Knapsack:
    """Two models, each with two sizes on two GPUs that are short of share or of memory."""
    count = 8
    return Knapsack(
        model=np.repeat(np.arange(2, dtype=np.int64), 4),
        gpu=np.tile(np.arange(2, dtype=np.int64), 4),
        share_pct=rng.choice([20.0, 40.0, 60.0, 80.0], count),
        memory_mib=rng.uniform(1.0, 6.0, count),
        throughput_rps=rng.uniform(50.0, 500.0, count),
        served=rng.choice([0.5, 1.0], count),
        wanted=rng.integers(1, 3, 2),
        share_room_pct=rng.uniform(60.0, 100.0, 2),
        memory_room_mib=rng.uniform(4.0, 9.0, 2),
    )


def test_on_random_ones_the_engine_finds_the_best_of_all_and_the_plain_rule_keeps_the_bounds() -> None:
    rng, engine, plainer = np.random.default_rng(4), create("highs"), 0
    flags = [np.array(some) for some in itertools.product((False, True), repeat=8)]
    for _ in range(25):
        problem = random_knapsack(rng)
        best = max(problem.worth[some].sum() for some in flags if problem.feasible(some))
        chosen = exact(problem, every(problem), engine, Limits())
        plain = greedy(problem, every(problem))
        assert chosen is not None
        assert problem.feasible(plain)
        assert problem.worth[chosen].sum() == pytest.approx(best, rel=1e-3)
        plainer += problem.worth[plain].sum() < best - 1e-6
    assert plainer


def listed_of(picture: Snapshot, **settings: float) -> tuple[Draft, InssBelief, room.KnapsackColumns]:
    request = builders.request(picture)
    case = Case.of(request)
    draft, belief = Draft.of(request, case), InssBelief(case=case, interference=True)
    return draft, belief, columns_of(draft, belief, room.InssParameters(**settings))


def test_models_come_by_rate_over_limit_and_shares_with_their_best_batch_in_time() -> None:
    services = [
        builders.service("slow", rate_rps_declared=30.0, slo=builders.slo(400.0)),
        builders.service("keen", rate_rps_declared=20.0, slo=builders.slo(60.0)),
        builders.service("many", model="bert", rate_rps_declared=200.0, slo=builders.slo(400.0)),
    ]
    _, belief, listed = listed_of(builders.snapshot(DEVICES, services))
    assert [need.workload for need in listed.needs] == ["demo/many", "demo/keen", "demo/slow"]
    for column, option in enumerate(listed.options):
        need = listed.needs[int(listed.problem.model[column])]
        rate, slowdown = listed.rate_rps_least(int(listed.problem.model[column])), belief.beside_usual(need, option)
        assert belief.in_time(need, option, slowdown, rate)
        others = [replace(option, batch=batch) for batch in builders.BATCHES]
        timely = [each for each in others if belief.in_time(need, each, slowdown, rate)]
        # The largest of those that a plan can prove; in what nothing proves, the best of all in time.
        assert option.batch in {each.batch for each in timely}
        if option.capacity_rps >= rate and option.batch < max(each.batch for each in timely):
            assert option.batch > min(each.batch for each in timely)


def test_what_is_sized_for_growth_is_in_time_before_it_grows() -> None:
    """The fewer requests come, the longer a batch takes to fill: one that fills in time at twice the rate may be late
    at the rate there is, and then serves nobody in time.
    """
    service = builders.service("slow", rate_rps_declared=30.0, slo=builders.slo(400.0))
    made = builders.snapshot(DEVICES, [service])
    roomy = replace(made, policy=replace(made.policy, demand_headroom=2.0, demand_noise_sigmas=0.0))
    _, belief, listed = listed_of(roomy)
    (need,) = listed.needs
    assert need.rate_rps == pytest.approx(2.0 * need.rate_rps_least)
    sides = [belief.beside_usual(need, option) for option in listed.options]
    assert all(
        belief.in_time(need, option, beside, need.rate_rps_least)
        for option, beside in zip(listed.options, sides, strict=True)
    )
    larger = [replace(option, batch=option.batch + 4) for option in listed.options]
    assert any(
        belief.in_time(need, option, beside, need.rate_rps)
        and not belief.in_time(need, option, beside, need.rate_rps_least)
        for option, beside in zip(larger, sides, strict=True)
    )
    # Beside neighbours, too, nobody is struck for the growth that is not there yet.
    chosen = np.zeros(len(listed.problem), dtype=np.bool_)
    chosen[0] = True
    assert listed.broken(chosen, belief) == []


def test_going_on_as_it_is_is_worth_a_part_of_its_throughput() -> None:
    service = builders.service("slow", rate_rps_declared=30.0, slo=builders.slo(400.0))
    stands = builders.assignment("demo/slow#0", DEVICES[1], share_pct_sm=40, memory_mib_limit=9000)
    picture = builders.snapshot(DEVICES, [service], target=builders.target([stands]))
    _, _, listed = listed_of(picture, stay_part=0.5)
    bonus = np.broadcast_to(listed.problem.staying_rps, len(listed.problem))
    here = (listed.problem.gpu == 1) & (listed.problem.share_pct == 40.0)
    assert here.any()
    assert bonus[here] == pytest.approx(0.5 * listed.problem.throughput_rps[here])
    assert not bonus[~here].any()


def test_who_is_late_beside_its_very_neighbours_is_named() -> None:
    """Neighbours use more of L2 than usual, which only the choice itself tells."""
    services = [builders.service(name, model=name, slo=builders.slo(200.0)) for name in MODELS]
    calm = builders.snapshot(DEVICES[:1], services)
    for l2_pct, late in ((0.0, 0), (100.0, 2)):
        profiles = [
            replace(
                item,
                points=tuple(
                    replace(point, l2_util_pct=min(100.0, l2_pct * point.share_pct_sm / 40.0)) for point in item.points
                ),
                interference=Interference(pressure=8.0, sensitivity=1.0, exponent=1.0),
            )
            for item in calm.profiles
        ]
        _, belief, listed = listed_of(replace(calm, profiles=tuple(profiles)))
        chosen = np.zeros(len(listed.problem), dtype=np.bool_)
        for model in range(2):
            mine = np.flatnonzero((listed.problem.model == model) & (listed.problem.share_pct >= 40.0))
            chosen[mine[0]] = True
        assert len(listed.broken(chosen, belief)) == late


def test_the_plain_rule_keeps_every_rule_and_takes_struck_columns_never() -> None:
    problem = toy()
    allowed = every(problem)
    allowed[:4] = False
    chosen = greedy(problem, allowed)
    assert problem.feasible(chosen)
    assert not chosen[:4].any()
    assert chosen.sum() == 2


def test_a_replica_served_comes_before_throughput() -> None:
    problem = toy(gpus=1)
    chosen = exact(problem, every(problem), create("highs"), Limits())
    assert chosen is not None
    assert sorted(problem.model[chosen]) == [0, 1, 2]


DEVICES = tuple(builders.device("a", index, "t4") for index in range(2))
MODELS = ("resnet50", "bert")
SHAPE = Shape(
    models=MODELS,
    rate_rps_max=(100.0, 100.0),
    gpu_types=("t4", "t4"),
    units=(20, 20),
    memory_mib=(15360.0, 15360.0),
)


def trained(places: tuple[int, int], levels: tuple[int, int], full: int | None = None) -> Artefact:
    """An actor that always answers the same; with `full`, the first network leaves that GPU when its memory is used."""
    bias = np.zeros(sum(SHAPE.heads), dtype=np.float32)
    for model in range(2):
        bias[2 * model + places[model]] = 5.0
        bias[4 + 20 * model + levels[model]] = 5.0
    weights = np.zeros((len(bias), SHAPE.state_size), dtype=np.float32)
    if full is not None:
        weights[1 - full, full] = 1000.0
    return Artefact(
        shape=SHAPE, actor=InssActor(layers=(ActorLayer(weights=weights, bias=bias),)), record={}, digest="d" * 64
    )


def room_of_two(rate_rps: float = 20.0) -> Snapshot:
    services = [
        builders.service(name, model=model, rate_rps_declared=rate_rps, replicas_max=4)
        for name, model in zip(("one", "two"), MODELS, strict=True)
    ]
    return builders.snapshot(DEVICES, services)


def plan_of(picture: Snapshot, name: str = "inss_rl") -> tuple[Plan, dict[str, float | str]]:
    proposal = registry.create(name).propose(builders.request(picture), b"", SilentReporter())
    assert proposal.plan is not None
    assert not is_fatal(verify(picture, proposal.plan, builders.everything_movable(picture)))
    return proposal.plan, {fact.name: fact.value for reason in proposal.reasons for fact in reason.facts}


def places_of(plan: Plan) -> dict[str, tuple[str, int]]:
    return {item.model: (item.device, item.share_pct_sm) for item in plan.assignments}


@pytest.fixture
def _shipped(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(room, "shipped_for", lambda *_: request.param)


@pytest.mark.parametrize("_shipped", [trained((1, 1), (14, 4))], indirect=True)
@pytest.mark.usefixtures("_shipped")
def test_everybody_goes_where_the_actor_says_with_no_more_than_it_grants() -> None:
    plan, facts = plan_of(room_of_two())
    where = places_of(plan)
    assert {device for device, _ in where.values()} == {DEVICES[1].id}
    # 15 and 5 of 20 units are 75 and 25 %; the measured shares below are 60 and 20, and leftover goes where it fits.
    assert where["resnet50"][1] >= 60
    assert where["resnet50"][1] + where["bert"][1] <= 100
    assert facts["actor"] == "d" * 16
    assert plan_of(room_of_two())[0] == plan


@pytest.mark.parametrize("_shipped", [trained((0, 1), (9, 9), full=0)], indirect=True)
@pytest.mark.usefixtures("_shipped")
def test_the_actor_sees_what_stands() -> None:
    first, _ = plan_of(room_of_two())
    assert places_of(first)["resnet50"][0] == DEVICES[0].id
    target = replace(builders.target(first.assignments), settings=first.settings)
    # Batches alone cannot serve this, and the actor, asked again, sees memory in use on the first GPU.
    crowded = replace(room_of_two(100_000.0), target=target)
    draft = room.Draft.of(builders.request(crowded))
    needs = sorted(draft.needs, key=lambda need: MODELS.index(need.model))
    chosen, _ = room._chosen(draft, trained((0, 1), (9, 9), full=0), needs, [0, 1])
    assert chosen == [1, 1]


def refused(picture: Snapshot, **settings: str) -> str:
    """Why the planner does not apply."""
    proposal = registry.create("inss_rl", settings).propose(builders.request(picture), b"", SilentReporter())
    assert (proposal.status, proposal.plan) == (ProposalStatus.NOT_APPLICABLE, None)
    ((fact,),) = (reason.facts for reason in proposal.reasons)
    return str(fact.value)


def test_for_another_picture_no_other_placer_stands_in_silently() -> None:
    assert "no actor that comes with headroom is for these networks" in refused(room_of_two())
    said = refused(room_of_two(), actor="six")
    assert said.startswith("actor six was trained for alexnet, resnet50, vgg16, ")
    assert said.endswith("on 2 x rtx-2060, 2 x rtx-2060-super, and this is for bert, resnet50 on 2 x t4")


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, artefact: Artefact) -> str:
    """As pip would, from the wheel that a training writes; its version."""
    text = write(artefact.shape, artefact.actor, artefact.record)
    version = read(text).version
    file, content = packed(name, version, text)
    assert file == f"headroom_actor_{name}-0+{version}-py3-none-any.whl"
    with ZipFile(BytesIO(content)) as wheel:
        wheel.extractall(folder)
    monkeypatch.syspath_prepend(str(folder))
    return version


def test_a_policy_names_an_installed_actor_and_its_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def forget() -> None:
        extensions.found.cache_clear()
        trained_actors._installed.cache_clear()

    request.addfinalizer(forget)
    version = install(monkeypatch, tmp_path, "edge", trained((1, 1), (14, 4)))
    forget()
    for reference in ("edge", f"edge@{version}"):
        planner = registry.create("inss_rl", {"actor": reference})
        plan = planner.propose(builders.request(room_of_two()), b"", SilentReporter()).plan
        assert plan is not None
        assert {device for device, _ in places_of(plan).values()} == {DEVICES[1].id}
    assert f"is of version {version}, not {'0' * 12}" in refused(room_of_two(), actor=f"edge@{'0' * 12}")
    assert "no trained actor other is installed; there are six, eight, edge" in refused(room_of_two(), actor="other")
    (tmp_path / "headroom_actor_edge" / "actor.json").write_text("nothing")
    forget()
    sys.modules.pop("headroom_actor_edge")
    assert "this is no trained actor" in refused(room_of_two(), actor="edge")


@pytest.mark.parametrize("reference", ["Edge", "edge@12", "../six", "edge@" + "g" * 12])
def test_what_names_no_actor_is_refused_where_it_is_set(reference: str) -> None:
    with pytest.raises(FieldError, match="a name, and a version"):
        registry.create("inss_rl", {"actor": reference})


@pytest.mark.parametrize("_shipped", [trained((0, 0), (9, 9))], indirect=True)
@pytest.mark.usefixtures("_shipped")
def test_two_services_of_one_network_are_no_picture_for_an_actor() -> None:
    services = [builders.service(name, model="resnet50", replicas_max=4) for name in ("one", "two")]
    assert "each served once" in refused(builders.snapshot(DEVICES, services))
