"""From rows to a snapshot."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from agents.wire import NodeReceipt, RepartitionReport
from app import kinds
from app.services.planning import snapshots
from app.services.planning.planning import Planning
from app.services.planning.snapshots import StoreObserver, read_snapshot
from app.store import documents, nodes, profiles, telemetry
from app.store.engine import Database
from solvers.domain.codec import digest
from solvers.domain.ids import ClusterName, NodeId, PolicyName, ReplicaId
from solvers.domain.policy import Policy, Pool
from solvers.domain.snapshot import ReplicaState, Snapshot
from solvers.domain.telemetry import BrokenLimit, DemandOrigin, RepartitionWish
from tests.integration.planner.test_planning import lead
from tests.integration.planner.world import BOOT, CLUSTER, World, replica_report
from tests.unit.app.services.whatif.small_fleet import POLICY, job, profile, service, snapshot, task

pytestmark = pytest.mark.integration


def observed(world: World) -> Snapshot:
    return StoreObserver(world.database, CLUSTER).observe()


def test_a_picture_may_be_slow_to_take_in(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    patience = []

    def read(session: Session, *more: Any) -> Snapshot:
        patience.append(session.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one())
        return read_snapshot(session, *more)

    monkeypatch.setattr(snapshots, "read_snapshot", read)
    observed(world)
    assert patience == ["15min"]


def test_an_empty_database_is_an_empty_world_under_the_default_policy(world: World) -> None:
    found = observed(world)
    assert found.policy == Policy(name=found.policy.name)
    assert (found.nodes, found.services, found.replicas, found.target.generation) == ((), (), (), 0)


def test_documents_come_out_as_they_were_declared(world: World) -> None:
    world.build()
    world.declare(job(), task())
    found, wished = observed(world), snapshot()
    assert found.policy == POLICY
    assert found.gpu_types == wished.gpu_types
    assert found.devices == wished.devices
    assert found.models == wished.models
    assert found.services == wished.services
    assert (found.jobs, found.tasks) == (wished.jobs, wished.tasks)
    assert found.profiles == tuple(
        replace(each, points=tuple(sorted(each.points, key=lambda point: (point.share_pct_sm, point.batch))))
        for each in (profile(wished.gpu_types[0]), profile(wished.gpu_types[1], 2.5))
    )
    assert [status.node for status in found.node_statuses] == ["a", "b"]
    assert all(status.age_s is not None and status.age_s < 30 for status in found.node_statuses)


def test_equal_rows_have_equal_digests(world: World) -> None:
    world.build()
    with world.database.reading() as session:
        first = read_snapshot(session, ClusterName(CLUSTER))
        second = read_snapshot(session, ClusterName(CLUSTER))
    assert digest(first) == digest(second)


def test_a_snapshot_sees_one_moment(world: World, database: Database) -> None:
    world.build()
    with database.reading() as session:
        before = documents.all_specs(session, kinds.SERVICE)
        world.declare(service("late"))
        inside = read_snapshot(session, ClusterName(CLUSTER))
    assert len(inside.services) == len(before) == 2
    assert len(observed(world).services) == 3


def test_a_planner_whose_clock_is_ahead_keeps_the_cooldown(
    world: World, planning: Planning, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows bear the database's time, so what is reckoned from them is told from that."""
    world.policy = replace(POLICY, cooldown_s=300.0)
    world.build(service("labels", rate_rps=150.0))
    leader = lead(world)
    planning.run_lanes(leader)
    monkeypatch.setattr("time.time", lambda: 4e9)
    # It would only save, so it waits for the cooldown.
    world.declare(service("labels", rate_rps=5.0))
    (record,) = planning.run_lanes(leader)
    assert 0.0 <= record.snapshot.taken_at_s - record.snapshot.target.promoted_at_s < 300.0
    assert record.generation is None


def test_nodes_are_live_as_each_policy_sees_it(world: World) -> None:
    world.build()
    world.declare(replace(POLICY, name=PolicyName("edge"), pool=Pool(nodes=(NodeId("b"),)), device_silent_after_s=30.0))
    world.rows("UPDATE node_states SET last_report_at = now() - interval '1 minute' WHERE node_id = 'b' RETURNING 1")
    assert world.database.read(snapshots.nodes_heard) == (("a",), ("a", "b"))


def test_how_long_nobody_was_heard_is_told_of_all_nodes_that_ever_reported(world: World) -> None:
    assert world.database.read(telemetry.hearing) == telemetry.Hearing(nodes=0, unheard_s=0.0)
    world.build()
    world.rows("UPDATE node_states SET last_report_at = now() - interval '1 hour' WHERE node_id = 'a' RETURNING 1")
    world.rows("UPDATE node_states SET last_report_at = now() - interval '1 minute' WHERE node_id = 'b' RETURNING 1")
    found = world.database.read(telemetry.hearing)
    assert found.nodes == 2
    assert 60.0 <= found.unheard_s < 3600.0
    world.rows("UPDATE node_states SET revoked_at = now() WHERE node_id = 'b' RETURNING 1")
    revoked = world.database.read(telemetry.hearing)
    assert revoked.nodes == 1
    assert revoked.unheard_s >= 3600.0


def test_demand_is_observed_where_an_edge_counts_it_and_declared_elsewhere(world: World) -> None:
    world.build()
    world.offer({"vision/labels": 120.0}, "edge-1")
    world.offer({"vision/labels": 180.0}, "edge-1")
    world.offer({"vision/labels": 10.0}, "edge-2")
    labels, search = observed(world).demands
    assert (labels.service, labels.origin) == ("vision/labels", DemandOrigin.OBSERVED)
    assert labels.rate_rps_mean == pytest.approx(160.0)
    assert labels.rate_rps_upper == pytest.approx(160.0)
    assert 0 <= labels.age_s < 30
    assert (search.origin, search.rate_rps_mean) == (DemandOrigin.DECLARED, 50.0)


def test_the_busiest_bin_is_the_upper_demand_and_old_load_is_forgotten(world: World) -> None:
    world.build()
    for rate in (30.0, 300.0, 90.0):
        world.offer({"vision/labels": rate})
    # Thirty seconds ago, just now, and so long ago that it no longer counts.
    shift = (
        "UPDATE rate_samples SET received_at = received_at - make_interval(secs => {}) WHERE arrived = {} RETURNING 1"
    )
    assert world.column(shift.format(30, 300)) == [1]
    assert world.column(shift.format(100, 90)) == [1]
    labels = observed(world).demands[0]
    assert labels.rate_rps_mean == pytest.approx(165.0)
    assert labels.rate_rps_upper == pytest.approx(300.0)


def test_upper_demand_falls_only_when_the_look_back_has_passed(world: World) -> None:
    world.build()
    for rate in (400.0, 300.0, 200.0, 30.0):
        world.offer({"vision/labels": rate})
    age = "UPDATE rate_samples SET received_at = received_at - make_interval(secs => {}) WHERE arrived = {} RETURNING 1"
    for age_s, rate in ((700.0, 400), (570.0, 300), (70.0, 200)):
        assert world.column(age.format(age_s, rate)) == [1]
    labels = observed(world).demands[0]
    assert labels.rate_rps_mean == pytest.approx(30.0)
    assert labels.rate_rps_upper == pytest.approx(300.0)
    assert world.column(age.format(60.0, 300)) == [1]
    assert observed(world).demands[0].rate_rps_upper == pytest.approx(200.0)


@pytest.mark.parametrize("shift_s", [0, 5, 10, 300])
def test_a_burst_counts_the_same_wherever_now_cuts_it(world: World, shift_s: int) -> None:
    """Ten seconds of two reports, between silent ones: as bins counted back from now fall, they are one bin or two."""
    world.build()
    for rate in (2.0, 200.0, 202.0, 4.0):
        world.offer({"vision/labels": rate})
    places = "CASE arrived WHEN 2 THEN 17 WHEN 200 THEN 12 WHEN 202 THEN 7 ELSE 2 END"
    shift = f"received_at = now() - make_interval(secs => {shift_s} + {places})"
    assert len(world.column(f"UPDATE rate_samples SET {shift} RETURNING 1")) == 4
    world.offer({"vision/labels": 1.0})
    assert observed(world).demands[0].rate_rps_upper == pytest.approx(201.0)


@pytest.mark.parametrize("shift_s", [0, 5, 12, 300])
def test_a_jump_counts_with_the_first_report_of_it(world: World, shift_s: int) -> None:
    """Five seconds of two gateways, before them less: what of both chance does not explain, and that is remembered."""
    world.build()
    for rate in (20.0, 400.0, 21.0):
        world.offer({"vision/labels": rate}, "edge-1")
    for rate in (100.0, 22.0):
        world.offer({"vision/labels": rate}, "edge-2")
    later = f"CASE arrived WHEN 20 THEN 6 WHEN 400 THEN 1 WHEN 100 THEN 1 ELSE -4 END + {shift_s}"
    change = "interval_s = 5, arrived = 5 * arrived, received_at = now() - make_interval(secs => {})"
    assert len(world.column(f"UPDATE rate_samples SET {change.format(later)} RETURNING 1")) == 5
    world.rows("DELETE FROM rate_samples WHERE received_at > now() RETURNING 1")
    if shift_s > 60:
        world.offer({"vision/labels": 1.0}, "edge-1")
    labels = observed(world).demands[0]
    assert labels.rate_rps_upper == pytest.approx(500.0 - 3.0 * math.sqrt(2500.0) / 5.0)


def test_what_gateways_counted_last_counts_when_it_is_sure(world: World) -> None:
    """One tells of a jump by the second that shows it, along with what was before; the other by its usual report."""
    world.build()
    for rate in (100.0, 20.0):
        world.offer({"vision/labels": rate}, "edge-1")
    world.offer({"vision/labels": 50.0}, "edge-2")
    change = "arrived = 5 * arrived, interval_s = 5, received_at = now() - interval '4 s'"
    assert len(world.column(f"UPDATE rate_samples SET {change} RETURNING 1")) == 3
    for rate in (101.0, 400.0):
        world.offer({"vision/labels": rate}, "edge-1")
    together = "received_at = (SELECT max(received_at) FROM rate_samples) WHERE arrived = 101"
    assert len(world.column(f"UPDATE rate_samples SET {together} RETURNING 1")) == 1
    sure_rps = 450.0 - 3.0 * math.sqrt(400.0 / 1.0 + 50.0 / 5.0)
    labels = observed(world).demands[0]
    assert labels.rate_rps_upper == pytest.approx(sure_rps)
    counted = world.database.read(lambda session: telemetry.counted_last(session, 10.0))
    assert counted == {"vision/labels": pytest.approx(sure_rps)}
    # Of a moment nothing is sure.
    world.rows("UPDATE rate_samples SET interval_s = 0.001, arrived = 30 WHERE arrived = 400 RETURNING 1")
    assert observed(world).demands[0].rate_rps_upper < 200.0


def test_a_bin_lasts_as_long_as_the_slowest_gateway_reports(world: World) -> None:
    world.build()
    world.offer({"vision/labels": 60.0}, "edge-1")
    world.offer({"vision/labels": 40.0}, "edge-2")
    slower = "UPDATE rate_samples SET interval_s = 30, arrived = arrived * 30 WHERE gateway = 'edge-2' RETURNING 1"
    assert world.column(slower) == [1]
    older = slower.replace("interval_s = 30, arrived = arrived * 30", "received_at = received_at - interval '25 s'")
    assert world.column(older) == [1]
    assert observed(world).demands[0].rate_rps_upper == pytest.approx(100.0)


def test_observed_silence_counts_as_no_demand(world: World) -> None:
    world.build()
    world.offer({"vision/labels": 0.0})
    labels = observed(world).demands[0]
    assert (labels.origin, labels.rate_rps_upper) == (DemandOrigin.OBSERVED, 0.0)


def test_replicas_are_those_of_each_nodes_newest_report(world: World) -> None:
    world.build()
    world.report("a", replica_report("vision/labels#0", "GPU-a0"), replica_report("vision/labels#1", "GPU-a1"))
    world.report("a", replica_report("vision/labels#0", "GPU-a0", "draining"))
    world.report("b", replica_report("vision/labels#0", "GPU-b0"))
    found = observed(world)
    assert [(each.id, each.device, each.state) for each in found.replicas] == [
        ("vision/labels#0", "GPU-a0", ReplicaState.DRAINING),
        ("vision/labels#0", "GPU-b0", ReplicaState.READY),
    ]
    assert len(found.replica_telemetry) == 1
    reading = found.replica_telemetry[0]
    assert (reading.rate_rps, reading.violation_fraction, reading.latency_ms_p99) == (30.0, 0.25, 90.0)
    assert [each.device for each in found.device_telemetry] == ["GPU-a0", "GPU-a1", "GPU-b0"]


def test_a_process_that_ended_within_the_interval_stands_no_more(world: World) -> None:
    world.build()
    ended = replace(replica_report("vision/labels#0", "GPU-a0", "draining"), memory_mib_used=0.0)
    world.report("a", ended, replica_report("vision/labels#0", "GPU-a0"))
    assert [(each.id, each.state) for each in observed(world).replicas] == [("vision/labels#0", ReplicaState.READY)]


def test_silent_nodes_show_their_age_and_no_replicas(world: World) -> None:
    world.policy = replace(POLICY, device_silent_after_s=300.0)
    world.build()
    world.report("a", replica_report("vision/labels#0", "GPU-a0"))
    silence = "now() - make_interval(secs => 600)"
    assert world.column(f"UPDATE node_samples SET received_at = {silence} WHERE node_id = 'a' RETURNING 1")
    assert world.column(f"UPDATE node_states SET last_report_at = {silence} WHERE node_id = 'a' RETURNING 1") == [1]
    found = observed(world)
    assert found.node_statuses[0].age_s == pytest.approx(600.0, abs=200.0)
    assert found.replicas == ()
    assert [each.device for each in found.device_telemetry] == ["GPU-b0"]


def test_a_strange_reading_is_clamped_not_fatal(world: World) -> None:
    world.build()
    world.report("a", replica_report("vision/labels#0", "GPU-a0"))
    assert world.column(
        "UPDATE node_samples SET device_utilisation_pct[1] = 140, device_power_w[1] = -3, replica_violated[1] = 99,"
        " replica_state = '{confused}', interval_s = 0 WHERE cardinality(replica_violated) = 1 RETURNING 1"
    ) == [1]
    found = observed(world)
    assert (found.device_telemetry[0].utilisation_pct, found.device_telemetry[0].power_w) == (100.0, 0.0)
    assert found.replicas == ()
    assert found.replica_telemetry[0].violation_fraction == 1.0


def test_progress_of_jobs_is_seen(world: World) -> None:
    world.build()
    world.declare(job())
    world.rows("INSERT INTO job_progress VALUES ('job', 'vision', 'train', 41.7, 2) RETURNING 1")
    (status,) = observed(world).job_statuses
    assert (status.workload, status.done, status.evictions) == ("vision/train", 41, 2)


def test_what_controllers_ask_for_is_shown_until_the_next_generation(world: World) -> None:
    world.build()
    wish = RepartitionReport(
        uuid="GPU-a1", cause="latency", replica="vision/labels#0", donor="vision/search#0", share_pct_sm=5
    )
    receipt = NodeReceipt(
        node="a",
        boot_id=BOOT,
        generation=0,
        plan=None,
        outcome="applied",
        observed_at_s=1_000.0,
        elapsed_ms=1.0,
        devices=(),
        replicas=(),
        wishes=(wish,),
    )
    with world.database.transaction() as session:
        assert nodes.keep_read_back(session, receipt)
    asked = {each.device: each.repartition for each in observed(world).device_telemetry}
    told = RepartitionWish(
        cause=BrokenLimit.LATENCY,
        replica=ReplicaId("vision/labels#0"),
        donor=ReplicaId("vision/search#0"),
        share_pct_sm=5,
    )
    assert asked == {"GPU-a0": None, "GPU-a1": told, "GPU-b0": None}
    with world.database.transaction() as session:
        assert nodes.keep_read_back(session, replace(receipt, generation=1, observed_at_s=1_001.0))
    assert {each.repartition for each in observed(world).device_telemetry} == {None}


def test_points_at_clocks_that_no_agent_may_set_are_left_out(world: World) -> None:
    world.build()
    gpu = snapshot().gpu_types[0]
    with world.database.transaction() as session:
        slower = [replace(point, clock_mhz_sm=gpu.clocks_mhz_sm[0]) for point in profile(gpu).points]
        profiles.put_points(session, slower)
    devices = [device.id for device in observed(world).devices if device.gpu_type == gpu.name]

    def clocks(*refusing: str) -> set[int]:
        with world.database.transaction() as session:
            for device in devices:
                said = "this process may not write to GPUs" if device in refusing else ""
                nodes.note_device(session, device, driver_version="580", capabilities={"set_clock": said})
        found = next(each for each in observed(world).profiles if each.gpu_type == gpu.name)
        return {point.clock_mhz_sm for point in found.points}

    assert len(devices) > 1
    assert clocks() == set(gpu.clocks_mhz_sm)
    assert clocks(devices[0]) == set(gpu.clocks_mhz_sm), "another one can"
    assert clocks(*devices) == {gpu.clock_mhz_sm_max}
