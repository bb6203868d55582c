"""Which replica processes get traffic while a service changes."""

from __future__ import annotations

from dataclasses import replace

from app.services.routes import Process, choose_routes
from solvers.domain.plan import Assignment
from tests.unit.app.services.small_fleet import assignment

ROW = Process(
    replica="vision/labels#0",
    kind="service",
    workload="vision/labels",
    uuid="GPU-a0",
    share_pct_sm=25,
    memory_mib_limit=2000,
    batch=4,
)


def row(ordinal: int = 0, uuid: str = "GPU-a0", *, share_pct_sm: int = 25, kind: str = "service") -> Process:
    replica = f"vision/labels#{ordinal}"
    return replace(ROW, replica=replica, uuid=uuid, share_pct_sm=share_pct_sm, kind=kind)


def planned(ordinal: int = 0, uuid: str = "GPU-a0", share_pct_sm: int = 25) -> Assignment:
    return assignment("vision/labels", uuid, ordinal=ordinal, share_pct_sm=share_pct_sm)


def test_what_is_ready_as_planned_gets_traffic() -> None:
    rows = [row(0), row(2, "GPU-b0", kind="job")]
    assert choose_routes(rows, [planned(0), planned(1, "GPU-b0")]) == {row(0): True}


def test_a_replica_that_moves_or_grows_is_used_in_its_old_form_until_the_new_one_is_ready() -> None:
    old, new = row(0), row(0, "GPU-b0", share_pct_sm=50)
    wanted = [planned(0, "GPU-b0", 50)]
    assert choose_routes([old], wanted) == {old: False}
    assert choose_routes([old, new], wanted) == {new: True}


def test_replicas_on_their_way_out_are_used_until_everything_planned_is_ready() -> None:
    small = [row(1), row(2)]
    large = row(0, "GPU-b0", share_pct_sm=100)
    wanted = [planned(0, "GPU-b0", 100)]
    assert choose_routes(small, wanted) == {small[0]: False, small[1]: False}
    assert choose_routes([*small, large], wanted) == {large: True}


def test_a_replica_that_ends_for_good_gets_nothing_from_the_first_moment_on() -> None:
    assert choose_routes([row(0), row(1)], [planned(0)]) == {row(0): True}


def test_what_no_plan_knows_is_not_routed_to() -> None:
    assert choose_routes([row(0)], []) == {}
