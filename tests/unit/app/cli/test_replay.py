"""`headroom replay` hands planners of a stored cycle what they remembered then, and says when nothing can be told."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace

import pytest

from app.cli.output import Exit
from solvers.cycle.cycle import run_cycle
from solvers.cycle.ports import CycleOrder
from solvers.cycle.record import CycleRecord, Lane
from solvers.domain.codec import bytes_digest, to_plain
from solvers.domain.ids import CycleId, Digest
from solvers.domain.plan import PlannerEnding, Proposal
from solvers.planners import registry
from solvers.planners.base import PlanRequest
from tests import builders
from tests.memory import World
from tests.unit.app.cli.conftest import Api, Headroom

STATE = b"what morak knew"


def recorded(planner: str = "morak", work_units: int | None = 100) -> CycleRecord:
    policy = builders.policy(planners=(planner,), work_units=work_units)
    world = World(builders.lab([builders.service()], policy=policy))
    world.memory.states[planner] = STATE
    return run_cycle(world.ports, CycleOrder(id=CycleId("c1"), lane=Lane.ACT, seed=7, software_version="1"))


def stored(api: Api, record: CycleRecord, state: bytes | None = STATE) -> None:
    held = None if state is None else b64encode(state).decode()
    handed = [
        {"policy": record.snapshot.policy.name, "planner": item.planner, "digest": item.state_digest, "state": held}
        for item in record.attempts
    ]
    api.answers |= {"GET /v1/cycles/c1": {"record": to_plain(record)}, "GET /v1/cycles/c1/states": {"items": handed}}


def another(record: CycleRecord) -> CycleRecord:
    return replace(record, plan_digest=Digest("sha256:" + "0" * 64))


def ending(record: CycleRecord, how: PlannerEnding) -> CycleRecord:
    return replace(record, attempts=tuple(replace(item, ending=how) for item in record.attempts))


def outdated(record: CycleRecord) -> CycleRecord:
    assert record.proposal is not None
    assert record.plan is not None
    return replace(record, proposal=replace(record.proposal, plan=replace(record.plan, planner_version="0")))


def test_the_planner_is_handed_what_it_remembered_then(
    api: Api, headroom: Headroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(api, recorded())
    handed: list[bytes | None] = []

    def propose(planner: str, request: PlanRequest, state: bytes | None) -> Proposal:
        handed.append(state)
        return kept(planner, request, state)

    kept = registry.propose
    monkeypatch.setattr(registry, "propose", propose)
    said = headroom("replay", "c1", "-o", "json")
    assert (said.status, said.err, said.json["same"]) == (Exit.OK, "", True)
    assert handed == [STATE]


def test_another_plan_of_counted_work_is_wrong(api: Api, headroom: Headroom) -> None:
    stored(api, another(recorded()))
    said = headroom("replay", "c1", "-o", "json")
    assert (said.status, said.json["same"]) == (Exit.FOUND_WRONG, False)
    assert said.err == "headroom: the replay made another plan\n"


@pytest.mark.parametrize(
    ("record", "state", "words"),
    [
        (lambda: ending(recorded(), PlannerEnding.KILLED), STATE, "morak did not end by itself (killed)"),
        (lambda: ending(recorded(), PlannerEnding.FAILED), STATE, "morak did not end by itself (failed)"),
        (lambda: outdated(recorded()), STATE, "it is a plan of morak 0, and here is morak"),
        (recorded, None, "what morak remembered then is not kept any more"),
    ],
)
def test_what_cannot_be_repeated_is_not_tried(
    api: Api, headroom: Headroom, record: Callable[[], CycleRecord], state: bytes | None, words: str
) -> None:
    stored(api, record(), state)
    said = headroom("replay", "c1", "-o", "json")
    assert (said.status, said.out) == (Exit.UNDECIDED, "")
    assert said.err.startswith("headroom: cycle c1 cannot be repeated: ")
    assert words in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (lambda: ending(recorded(), PlannerEnding.DEADLINE), "the clock ended morak then"),
        (lambda: recorded(work_units=None), "the policy does not count the work of morak (work_units)"),
    ],
)
def test_another_plan_proves_nothing_where_the_clock_had_a_part(
    api: Api, headroom: Headroom, record: Callable[[], CycleRecord], words: str
) -> None:
    stored(api, another(record()))
    said = headroom("replay", "c1", "-o", "json")
    assert (said.status, said.json["same"]) == (Exit.UNDECIDED, None)
    assert said.err == f"headroom: the replay made another plan, which proves nothing: {words}\n"
    stored(api, record())
    assert headroom("replay", "c1", "-o", "json").json["same"] is True


def test_a_replay_that_the_clock_ends_proves_nothing(
    api: Api, headroom: Headroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(api, another(recorded()))
    propose = registry.propose
    monkeypatch.setattr(registry, "propose", lambda *asked: replace(propose(*asked), ending=PlannerEnding.DEADLINE))
    said = headroom("replay", "c1")
    assert said.status == Exit.UNDECIDED
    assert "the clock ended morak this time" in said.err


def test_a_record_tells_whose_plan_it_has_and_what_that_planner_was_handed() -> None:
    (maker,) = recorded().makers
    assert (maker.policy, maker.planner, maker.state_digest) == ("default", "morak", bytes_digest(STATE))


def test_an_empty_cycle_is_not_the_newest_one(api: Api, headroom: Headroom) -> None:
    said = headroom("replay", "")
    assert (said.status, said.err) == (
        Exit.USAGE,
        "headroom: the id of a cycle is empty: without one, it is the newest\n",
    )
    assert not api.asked
