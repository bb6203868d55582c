"""The live side of the fleet, and the small repositories: progress, receipts, profiles, planner states, events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Row, select, text
from sqlalchemy.orm import Session

from agents.wire import NodeReceipt, ReplicaReadBack, encode
from app import kinds
from app.store import cycles, events, nodes, profiles, tasks
from app.store.engine import Database
from app.store.events import Event
from app.store.pages import PageOrder
from app.store.tables import devices
from solvers.domain.ids import ModelName
from solvers.domain.profile import ProfileOrigin
from solvers.domain.workload import WorkloadKind
from solvers.errors import NotFoundError
from tests.builders import profile
from tests.integration.store.samples import device, gpu_type, joining, progress_of, put, put_node

pytestmark = pytest.mark.integration


def test_joining_again_in_a_new_boot_starts_the_generation_over(database: Database) -> None:
    with database.transaction() as session:
        put_node(session, "n1")
        assert nodes.raise_generation(session, "n1", "boot-a", 5)
        assert not nodes.raise_generation(session, "n1", "boot-a", 4)
        assert not nodes.raise_generation(session, "n1", "boot-b", 9)
        again = nodes.join(session, joining("n1", endpoint="http://n1:1", agent_version="2"))
        assert (again.generation_applied, again.endpoint, again.agent_version) == (5, "http://n1:1", "2")
        other = nodes.join(session, joining("n1", "boot-b", agent_version="2"))
        assert (other.boot_id, other.generation_applied, other.age_s) == ("boot-b", 0, None)
        assert nodes.all_states(session) == (other,)
        assert nodes.find(session, "n2") is None
        with pytest.raises(NotFoundError):
            nodes.get(session, "n2")


def _live(session: Session, uuid: str) -> Row[Any]:
    return session.execute(select(devices).where(devices.c.uuid == uuid)).one()


def test_devices_are_billed_from_when_they_came_until_they_left(database: Database) -> None:
    with database.transaction() as session:
        put(session, kinds.GPU_TYPE, gpu_type())
        put_node(session, "n1")
        put(session, kinds.DEVICE, device("GPU-1", "n1"))
        put(session, kinds.DEVICE, device("GPU-0", "n1"))
        assert nodes.devices_of(session, "n1") == ("GPU-0", "GPU-1")
        came = _live(session, "GPU-1")
        assert (came.billed_until, came.capabilities) == (None, {})
    with database.transaction() as session:
        assert nodes.stop_billing(session, "GPU-1")
        assert not nodes.stop_billing(session, "GPU-1")
        left = _live(session, "GPU-1")
        assert left.billed_until is not None
        assert left.billed_from == came.billed_from
    with database.transaction() as session:
        nodes.note_device(session, "GPU-1", driver_version="550", capabilities={"mps": ""})
        back = _live(session, "GPU-1")
        assert (back.billed_until, back.driver_version, back.capabilities) == (None, "550", {"mps": ""})
        assert back.billed_from >= left.billed_until
    with database.transaction() as session:
        nodes.note_device(session, "GPU-1", driver_version="560", capabilities={})
        assert _live(session, "GPU-1").billed_from == back.billed_from


def test_evictions_are_counted_and_progress_can_be_forgotten(database: Database) -> None:
    with database.transaction() as session:
        assert progress_of(session, WorkloadKind.JOB, "train") is None
        assert tasks.count_eviction(session, WorkloadKind.JOB, "vision", "train") == 1
        assert tasks.count_eviction(session, WorkloadKind.JOB, "vision", "train") == 2
        found = progress_of(session, WorkloadKind.JOB, "train")
        assert found is not None
        assert (found.kind, found.done, found.evictions) == (WorkloadKind.JOB, 0.0, 2)
        assert progress_of(session, WorkloadKind.TASK, "train") is None
        assert tasks.forget(session, WorkloadKind.JOB, "vision", "train")
        assert not tasks.forget(session, WorkloadKind.JOB, "vision", "train")


RECEIPT = NodeReceipt(
    node="n1", boot_id="boot-a", generation=3, plan="sha256:x", outcome="partial", observed_at_s=1_000.5,
    elapsed_ms=12.5, devices=(), problems=("GPU-1 is gone",),
    replicas=(
        ReplicaReadBack(
            replica="vision/a#0", uuid="GPU-1", share_pct_sm=30, sm_count=12, memory_mib_limit=4_000, batch=8,
            ready=True,
        ),
    ),
)  # fmt: skip


def test_receipts_are_kept_once_and_read_newest_first(database: Database) -> None:
    with database.transaction() as session:
        assert nodes.put_receipt(session, RECEIPT)
        assert not nodes.put_receipt(session, RECEIPT)
        assert nodes.put_receipt(session, replace(RECEIPT, observed_at_s=1_001.5, outcome="applied"))
        assert nodes.put_receipt(session, replace(RECEIPT, node="n2", generation=4))
    with database.transaction() as session:
        first = nodes.receipts_page(session, PageOrder(limit=2))
        rest = nodes.receipts_page(session, PageOrder(limit=2, cursor=first.next_cursor))
        found = [(item.node_id, item.outcome) for item in (*first.items, *rest.items)]
        assert found == [("n2", "partial"), ("n1", "applied"), ("n1", "partial")]
        assert [item.generation for item in nodes.receipts_page(session, PageOrder(limit=9), generation=4).items] == [4]
        own = nodes.receipts_page(session, PageOrder(limit=9), node="n1").items
        assert [item.node_id for item in own] == ["n1", "n1"]
        assert own[-1].problems == ("GPU-1 is gone",)
        assert own[-1].document["replicas"] == [encode(RECEIPT.replicas[0])]
        session.execute(text("UPDATE receipts SET received_at = now() - interval '2 days' WHERE node_id = 'n1'"))
        assert nodes.delete_older_receipts(session, 1.0) == 2


def test_profiles_come_back_whole_and_newer_points_replace_older(database: Database) -> None:
    grid = profile("resnet50", "t4")
    beside = replace(grid.points[0], neighbours=(ModelName("bert"),), latency_ms_mean=99.0)
    with database.transaction() as session:
        assert profiles.put_points(session, [*grid.points, *profile("resnet50", "l4").points]) == 2 * len(grid.points)
        assert profiles.get(session, "resnet50", "t4") == profile_in_order(grid)
        assert (
            profiles.put_points(session, [beside, replace(grid.points[0], latency_ms_mean=7.5, latency_ms_p99=None)])
            == 2
        )
        found = profiles.get(session, "resnet50", "t4")
        assert len(found.points) == len(grid.points) + 1
        assert found.points[-1] == beside
        assert [item.gpu_type for item in profiles.all_profiles(session)] == ["l4", "t4"]
        assert profiles.count(session) == 2 * len(grid.points) + 1
        assert profiles.count(session, model="resnet50", gpu_type="l4") == len(grid.points)
        assert profiles.count(session, gpu_type="none") == 0


def profile_in_order(grid: profiles.Profile) -> profiles.Profile:
    """The same profile with points in the order of its contract."""
    return replace(
        grid,
        points=tuple(
            sorted(
                grid.points, key=lambda point: (point.neighbours, point.clock_mhz_sm, point.share_pct_sm, point.batch)
            )
        ),
    )


def test_the_last_of_equal_points_wins_and_large_imports_work(database: Database) -> None:
    point = replace(profile().points[0], origin=ProfileOrigin.SIMULATED)
    many = [replace(point, batch=batch) for batch in range(1, 2_501)]
    with database.transaction() as session:
        assert (
            profiles.put_points(session, [*many, replace(point, batch=1, latency_ms_mean=0.5, latency_ms_p99=None)])
            == 2_500
        )
        assert profiles.get(session, point.model, point.gpu_type).points[0].latency_ms_mean == 0.5
        assert profiles.put_points(session, []) == 0


def test_profiles_are_listed_and_deleted(database: Database) -> None:
    with database.transaction() as session:
        for name in ("l4", "t4", "v100"):
            profiles.put_points(session, profile("resnet50", name).points)
        first = profiles.page(session, PageOrder(limit=2))
        rest = profiles.page(session, PageOrder(limit=2, cursor=first.next_cursor))
        assert [item.gpu_type for item in (*first.items, *rest.items)] == ["l4", "t4", "v100"]
        assert first.items[0].points == len(profile("resnet50", "l4").points)
        assert profiles.delete_profile(session, "resnet50", "l4") == first.items[0].points
        for call in (profiles.delete_profile, profiles.get):
            with pytest.raises(NotFoundError):
                call(session, "resnet50", "l4")


def test_the_newest_planner_state_counts_and_older_ones_are_found_by_digest(database: Database) -> None:
    with database.transaction() as session:
        assert cycles.newest_state(session, "learner", "1") is None
        first = cycles.put_state(session, "learner", "1", b"\x00one")
        second = cycles.put_state(session, "learner", "1", b"two")
        found = cycles.newest_state(session, "learner", "1")
        assert found is not None
        assert (found.state, found.digest) == (b"two", second)
        older = cycles.find_state(session, "learner", first)
        assert older is not None
        assert older.state == b"\x00one"
        assert cycles.newest_state(session, "learner", "2") is None
        cycles.put_state(session, "learner", "1", b"\x00one")
        again = cycles.newest_state(session, "learner", "1")
        assert again is not None
        assert again.digest == first


def test_planner_states_go_with_the_cycles_that_were_handed_them(database: Database) -> None:
    """What a planner of an older release kept is nobody's any more; the newest of each planner stays however old."""
    ages = {("learner", "1", b"old"): 50, ("learner", "1", b"older release"): 40, ("learner", "2", b"now"): 20,
            ("calm", "1", b"calm"): 90}  # fmt: skip
    with database.transaction() as session:
        found = {state: cycles.put_state(session, name, version, state) for name, version, state in ages}
        for (_, _, state), days in ages.items():
            aged = "UPDATE planner_states SET updated_at = now() - make_interval(days => :days) WHERE digest = :digest"
            session.execute(text(aged), {"days": days, "digest": found[state]})
        # The older release's last was handed to cycles until twenty days ago.
        assert cycles.delete_older_states(session, 30) == 1
        assert cycles.find_state(session, "learner", found[b"old"]) is None
        assert cycles.find_state(session, "learner", found[b"older release"]) is not None
        assert cycles.delete_older_states(session, 10) == 1
        left = session.execute(text("SELECT state FROM planner_states ORDER BY updated_at")).scalars()
        assert list(left) == [b"calm", b"now"]


def test_the_oldest_planner_states_make_room(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cycles, "STATES_BYTES_MAX", 10)
    with database.transaction() as session:
        kept = [cycles.put_state(session, "learner", "1", letter * 4) for letter in (b"a", b"b", b"c")]
        found = [cycles.find_state(session, "learner", digest) is not None for digest in kept]
        assert found == [False, True, True]
        largest = cycles.put_state(session, "learner", "1", b"d" * 99)
        newest = cycles.newest_state(session, "learner", "1")
        assert newest is not None
        assert newest.digest == largest
        assert cycles.find_state(session, "learner", kept[-1]) is None


def test_the_audit_trail_is_read_newest_first_by_subject_and_project(database: Database) -> None:
    with database.transaction() as session:
        for number in range(4):
            project = "vision" if number % 2 else None
            event = Event(
                name="service.changed",
                actor="ann",
                subject=f"s{number % 2}",
                project=project,
                request_id="r",
                facts={"n": number},
            )
            events.append(session, event)
        first = events.page(session, PageOrder(limit=3))
        rest = events.page(session, PageOrder(limit=3, cursor=first.next_cursor))
        assert [item.facts["n"] for item in (*first.items, *rest.items)] == [3, 2, 1, 0]
        assert [item.facts["n"] for item in events.page(session, PageOrder(limit=9), subject="s0").items] == [2, 0]
        assert [item.facts["n"] for item in events.page(session, PageOrder(limit=9), project="vision").items] == [3, 1]
