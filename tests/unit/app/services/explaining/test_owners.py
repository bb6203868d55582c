"""Every knob of a device has one owner: the planner, or the controller where the plan left it room."""

from __future__ import annotations

from dataclasses import replace

from app.services.explaining.sentences import owner_sentences, owner_words
from solvers.cycle.owners import KNOBS, StandingOwners, knob_owners
from solvers.domain.ids import DeviceId, NodeId, PolicyName
from solvers.domain.ownership import Owners, owners_of
from solvers.domain.plan import Assignment, PlanPart
from solvers.domain.policy import Objective, Pool
from solvers.domain.workload import WorkloadKind
from tests import builders

EDGE = builders.policy(
    name=PolicyName("edge"), planners=("morak", "greedy"), governor="dfs", pool=Pool(nodes=(NodeId("a"),))
)
HERE = builders.device("a", 0, "t4")
THERE = builders.device("b", 0, "v100")


def owners() -> Owners:
    return owners_of(builders.lab([builders.service()], policies=(EDGE,)))


def standing(*items: Assignment, planner: str | None = "greedy", parts: tuple[PlanPart, ...] = ()) -> StandingOwners:
    return StandingOwners.of(items, planner, parts)


def words(device: str, stands: StandingOwners) -> dict[str, str]:
    return owner_words(knob_owners(owners(), DeviceId(device), stands))


def part(planner: str) -> PlanPart:
    return PlanPart(policy=EDGE.name, planner=planner, planner_version="1", objective=Objective())


def test_an_empty_device_belongs_to_whoever_will_plan_it() -> None:
    found = words(HERE.id, standing(planner=None))
    assert list(found) == [knob.value for knob in KNOBS]
    assert set(found.values()) == {"edge: planner morak"}
    assert set(words(THERE.id, standing(planner=None)).values()) == {"default: planner greedy"}


def test_what_an_envelope_leaves_open_is_the_controllers() -> None:
    closed = builders.assignment("demo/vision#0", HERE)
    clock = closed.envelope.clock_mhz_sm_max
    assert words(HERE.id, standing(closed))["batch"] == "edge: governor dfs"
    assert words(HERE.id, standing(closed))["clock"] == "edge: planner greedy"
    fixed = replace(closed, envelope=replace(closed.envelope, batch_min=8))
    assert set(words(HERE.id, standing(fixed)).values()) == {"edge: planner greedy"}
    both = replace(closed, envelope=replace(closed.envelope, clock_mhz_sm_min=clock - 600))
    assert words(HERE.id, standing(both))["clock"] == "edge: governor dfs"
    # A neighbour whose clock is fixed fixes it for all.
    assert words(HERE.id, standing(both, replace(closed, replica=both.replica)))["clock"] == "edge: planner greedy"
    # Nobody moves the batch of a training job.
    job = replace(closed, kind=WorkloadKind.JOB)
    assert words(HERE.id, standing(job))["batch"] == "edge: planner greedy"


def test_the_planner_is_the_one_that_made_the_part_that_stands() -> None:
    item = builders.assignment("demo/vision#0", HERE)
    assert words(HERE.id, standing(item, planner="pools", parts=(part("greedy"),)))["share"] == "edge: planner greedy"
    # Who is no more in the chain, or only kept what stood, decides on nothing from now on.
    for gone in ("keep-target", "hetsev"):
        assert words(HERE.id, standing(item, planner="pools", parts=(part(gone),)))["share"] == "edge: planner morak"


def test_sentences_put_like_devices_together() -> None:
    items = (builders.assignment("demo/vision#0", THERE), builders.assignment("demo/vision#1", HERE))
    places = {str(HERE.id): "a/gpu-0", str(THERE.id): "b/gpu-0"}
    assert owner_sentences(owners(), standing(*items), "demo/vision", places) == [
        "batch on a/gpu-0 is owned by policy edge: governor dfs",
        "placement, replicas, share, memory, clock and power on a/gpu-0 are owned by policy edge: planner greedy",
        "batch on b/gpu-0 is owned by policy default: governor morak",
        "placement, replicas, share, memory, clock and power on b/gpu-0 are owned by policy default: planner greedy",
    ]
    assert owner_sentences(owners(), standing(*items), "demo/other", places) == []
