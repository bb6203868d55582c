"""Accepting and refusing targets, retries, receipts and gaps, against simulated and faulty devices."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from agents.devices.base import DeviceSettings, Mode, WorkerReading, WorkerSpec, WorkerState
from agents.devices.fake.host import FakeDevices
from agents.errors import DeviceError, LostError, NoPermissionError, TargetRefusedError
from agents.loop.apply import (
    BACKOFF_S_MAX,
    FORGIVEN_AFTER_S,
    PROBLEM_LENGTH_MAX,
    PROBLEMS_MAX,
    Applier,
    Restarts,
    problem_line,
)
from agents.wire import NodeReceipt, NodeTarget, WorkerTarget
from tests.unit.agents.builders import (
    NODE,
    FakeClock,
    device_target,
    fake_devices,
    node_target,
    replica_target,
    worker_spec,
)


class FaultyDevices:
    """Simulated devices whose verbs fail when a rule says so. Everything else goes through."""

    def __init__(self, devices: FakeDevices) -> None:
        self._devices = devices
        self.fault: Callable[[str, tuple[object, ...]], DeviceError | None] = lambda verb, arguments: None
        self.calls: list[str] = []

    def __getattr__(self, verb: str) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            error = self.fault(verb, arguments)
            self.calls.append(verb)
            if error is not None:
                raise error
            return getattr(self._devices, verb)(*arguments)  # type: ignore[no-any-return]

        return call


class Host:
    """An applier over faulty simulated devices, and a clock."""

    def __init__(self, gpu_types: tuple[str, ...] = ("v100",)) -> None:
        self.clock = FakeClock()
        self.fakes = fake_devices(self.clock, gpu_types)
        self.devices = FaultyDevices(self.fakes)
        self.applier = Applier(NODE, self.devices, self.clock, random.Random(1))
        self.uuids = [device.uuid for device in self.fakes.inventory()]

    def settle(self, seconds: float = 60.0) -> NodeReceipt | None:
        """Pass by pass until settled or the time is over; the last receipt that was due."""
        last = None
        for _ in range(int(seconds / 0.5)):
            passed = self.applier.run_pass()
            last = self.receipt() or last
            if passed.settled:
                break
            self.clock.pass_s(0.5)
        return last

    def receipt(self) -> NodeReceipt | None:
        return self.applier.receipt("boot-1", self.clock())


@pytest.fixture
def host() -> Host:
    return Host()


def test_a_target_is_applied_and_the_receipt_says_what_is_read_back(host: Host) -> None:
    target = node_target(3, device_target(host.uuids[0], replica_target("r1", share=33), clock_mhz_sm=1380))
    assert host.applier.accept(target)
    host.applier.run_pass()
    first = host.receipt()
    assert first is not None
    assert (first.outcome, first.generation, first.plan, first.problems) == ("partial", 3, "plan-3", ())
    assert host.applier.generation_applied == 0
    last = host.settle()
    assert last is not None
    assert (last.outcome, last.node, last.boot_id) == ("applied", NODE, "boot-1")
    assert [(each.replica, each.share_pct_sm, each.sm_count, each.ready) for each in last.replicas] == [
        ("r1", 33, 26, True)
    ]
    assert last.devices[0].clock_mhz_sm == 1380
    assert last.elapsed_ms == pytest.approx(6000.0, abs=600.0)
    assert host.applier.generation_applied == 3
    assert host.receipt() is None


def test_the_same_target_again_changes_nothing(host: Host) -> None:
    target = node_target(3, device_target(host.uuids[0], replica_target()))
    host.applier.accept(target)
    host.settle()
    host.devices.calls.clear()
    assert not host.applier.accept(node_target(3, device_target(host.uuids[0], replica_target())))
    host.applier.run_pass()
    assert set(host.devices.calls) <= {"workers", "settings"}
    assert host.receipt() is None


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda uuid: node_target(2, device_target(uuid)), "older"),
        (lambda uuid: node_target(3, device_target(uuid, clock_mhz_sm=765)), "another content"),
        (lambda uuid: node_target(4, device_target(uuid), node="node-2"), "node-2"),
        (lambda uuid: node_target(4, device_target(uuid), device_target(uuid)), "device is named twice"),
        (lambda uuid: node_target(4, device_target(uuid, mode="shared")), "unknown mode"),
        (
            lambda uuid: node_target(4, device_target(uuid, replica_target("a"), replica_target("a"))),
            "replica is named twice",
        ),
        (
            lambda uuid: node_target(
                4, device_target(uuid, replica_target("a", share=60), replica_target("b", share=41))
            ),
            "101 %",
        ),
        (
            lambda uuid: node_target(
                4, device_target(uuid, replica_target("a", memory=30_000), replica_target("b", memory=2_769))
            ),
            "32769 of 32768",
        ),
        (lambda uuid: node_target(4, device_target(uuid, replica_target("a", share=0))), "out of range"),
        (lambda uuid: node_target(4, device_target(uuid, replica_target("a", batch=0))), "out of range"),
        (
            lambda uuid: node_target(
                4, device_target(uuid, replica_target("a"), replica_target("b"), mode="dedicated")
            ),
            "dedicated",
        ),
    ],
)
def test_targets_that_must_not_be_held_are_refused(host: Host, make: Callable[[str], NodeTarget], reason: str) -> None:
    held = node_target(3, device_target(host.uuids[0], replica_target("r1")))
    host.applier.accept(held)
    host.settle()
    with pytest.raises(TargetRefusedError, match=reason):
        host.applier.accept(make(host.uuids[0]))
    assert host.applier.target == held
    refusal = host.applier.refusal("boot-1", 1.0, node_target(4), reason)
    assert (refusal.outcome, refusal.generation, refusal.problems) == ("refused", 4, (reason,))
    assert [each.replica for each in refusal.replicas] == ["r1"]


def test_a_device_that_is_gone_does_not_cost_the_others_a_target(host: Host) -> None:
    """Where the host restarted with a GPU less, its targets go on to name it, empty or with what may not move."""
    here = device_target(host.uuids[0], replica_target("r1"))
    host.applier.accept(node_target(3, here, device_target("GPU-gone")))
    told = host.settle()
    assert told is not None
    assert (told.outcome, told.problems) == ("applied", ())
    host.applier.accept(node_target(4, here, device_target("GPU-gone", replica_target("r2"))))
    told = host.settle()
    assert told is not None
    assert (told.outcome, told.problems) == ("partial", ("GPU-gone: not on this host any more",))
    assert [each.replica for each in told.replicas] == ["r1"]


A, B = "aaaaaaaa-0000-4000-8000-000000000001", "bbbbbbbb-0000-4000-8000-000000000002"


def of(cluster_id: str | None, epoch: int | None, generation: int, uuid: str, share: int = 50) -> NodeTarget:
    """A target of a history; without names as servers of the version before tell it."""
    told = node_target(generation, device_target(uuid, replica_target("r1", share=share)))
    return replace(told, cluster_id=cluster_id, epoch=epoch)


@pytest.mark.parametrize(
    ("cluster_id", "epoch", "generation", "reason"),
    [
        (A, 2, 15, None),
        (A, 2, 14, "another content"),
        (A, 2, 13, "older"),
        (A, 3, 13, None),
        (A, 3, 14, None),
        (A, 1, 20, "epoch 1, which is over"),
        (B, 2, 20, f"of cluster {B}, this node belongs to cluster {A}"),
        (B, 9, 20, r"remove target\.json"),
        (None, None, 15, None),
        (None, None, 14, "another content"),
        (None, None, 13, "older"),
    ],
)
def test_generations_compare_within_an_epoch_of_a_cluster(
    host: Host, cluster_id: str | None, epoch: int | None, generation: int, reason: str | None
) -> None:
    uuid = host.uuids[0]
    host.applier.accept(of(A, 2, 14, uuid))
    host.settle()
    wanted = of(cluster_id, epoch, generation, uuid, share=60)
    if reason is None:
        assert host.applier.accept(wanted)
        assert host.applier.generation_applied == (14 if epoch == 2 else 0)
        receipt = host.settle()
        assert receipt is not None
        assert (receipt.cluster_id, receipt.epoch, receipt.generation) == (cluster_id, epoch, generation)
        return
    with pytest.raises(TargetRefusedError, match=reason):
        host.applier.accept(wanted)
    refusal = host.applier.refusal("boot-1", 1.0, wanted, reason)
    # Servers that tell of no history know no such fields; to others the node says what it holds instead.
    assert (refusal.cluster_id, refusal.epoch) == ((A, 2) if cluster_id else (None, None))
    assert (refusal.generation, refusal.plan) == (generation, None)


@pytest.mark.parametrize(("before", "after"), [((None, None), (A, 1)), ((A, 1), (None, None)), ((A, 1), (A, 2))])
def test_the_same_target_under_another_name_touches_nothing(
    host: Host, before: tuple[str | None, int | None], after: tuple[str | None, int | None]
) -> None:
    """As where agents were of this version before their server was, or the other way round."""
    uuid = host.uuids[0]
    host.applier.accept(of(*before, 14, uuid))
    host.settle()
    host.devices.calls.clear()
    assert host.applier.accept(of(*after, 14, uuid))
    assert not host.applier.accept(of(*after, 14, uuid))
    receipt = host.settle()
    assert not {"start", "stop", "drain", "tune"} & set(host.devices.calls)
    assert receipt is not None
    assert (receipt.outcome, receipt.cluster_id, receipt.epoch) == ("applied", *after)
    with pytest.raises(TargetRefusedError, match=r"older|epoch 1, which is over"):
        host.applier.accept(of(*before, 13, uuid))


def test_a_failed_start_is_told_retried_later_and_forgotten_when_it_works(host: Host) -> None:
    host.devices.fault = lambda verb, arguments: LostError("fell off the bus") if verb == "start" else None
    host.applier.accept(node_target(1, device_target(host.uuids[0], replica_target("r1"))))
    host.applier.run_pass()
    first = host.receipt()
    assert first is not None
    assert first.outcome == "partial"
    assert first.problems == (f"{host.uuids[0]} start r1: lost: fell off the bus",)
    host.devices.calls.clear()
    host.applier.run_pass()
    assert "start" not in host.devices.calls
    for _ in range(40):
        host.clock.pass_s(0.5)
        host.applier.run_pass()
    assert 3 <= host.devices.calls.count("start") <= 6
    host.devices.fault = lambda verb, arguments: None
    host.clock.pass_s(60.0)
    last = host.settle()
    assert last is not None
    assert (last.outcome, last.problems) == ("applied", ())


def test_a_failed_start_stays_told_while_another_process_has_its_turn(host: Host) -> None:
    def fault(verb: str, arguments: tuple[object, ...]) -> DeviceError | None:
        failing = verb == "start" and getattr(arguments[1], "replica", "") == "r1"
        return LostError("no such program") if failing else None

    host.devices.fault = fault
    described = [
        replica_target(name, worker=WorkerTarget(command=("serve",)), launch_s=30.0, memory=2000)
        for name in ("r1", "r2")
    ]
    host.applier.accept(node_target(1, device_target(host.uuids[0], *described)))
    told = []
    for _ in range(40):
        host.applier.run_pass()
        found = host.receipt()
        told += [found.problems] if found is not None else []
        host.clock.pass_s(0.25)
    assert [worker.spec.replica for worker in host.fakes.workers()] == ["r2"]
    assert any("no such program" in problem for problem in told[-1])
    assert all(problems for problems in told[told.index(next(each for each in told if each)) :])


def test_what_cannot_be_set_leaves_the_rest_applied_and_partial(host: Host) -> None:
    host.devices.fault = lambda verb, arguments: NoPermissionError("not root") if verb == "set_clock" else None
    host.applier.accept(node_target(1, device_target(host.uuids[0], replica_target("r1"), clock_mhz_sm=1380)))
    last = host.settle(30.0)
    assert last is not None
    assert last.outcome == "partial"
    assert last.problems == (f"{host.uuids[0]} lower_clock : no-permission: not root",)
    assert last.replicas[0].ready
    assert host.applier.generation_applied == 0


def test_no_load_is_added_while_the_power_limit_could_not_be_lowered(host: Host) -> None:
    host.devices.fault = lambda verb, arguments: LostError("no") if verb == "set_power_limit" else None
    host.applier.accept(node_target(1, device_target(host.uuids[0], replica_target("r1"), power_limit_w=200.0)))
    host.settle(5.0)
    assert host.fakes.workers() == ()


def test_one_lost_device_does_not_hold_up_the_other() -> None:
    host = Host(("v100", "t4"))
    lost = host.uuids[0]
    host.devices.fault = lambda verb, arguments: LostError("gone") if verb == "settings" and lost in arguments else None
    host.applier.accept(
        node_target(1, device_target(lost, replica_target("a")), device_target(host.uuids[1], replica_target("b")))
    )
    for _ in range(20):
        host.applier.run_pass()
        host.clock.pass_s(0.5)
    assert [worker.spec.replica for worker in host.fakes.workers()] == ["b"]


def test_a_gap_is_measured_and_told(host: Host) -> None:
    host.applier.accept(node_target(1, device_target(host.uuids[0], replica_target("r1", memory=20_000))))
    host.settle()
    host.applier.accept(node_target(2, device_target(host.uuids[0], replica_target("r1", memory=21_000))))
    last = host.settle()
    assert last is not None
    assert last.outcome == "applied"
    (problem,) = last.problems
    assert problem.startswith("r1: ")
    assert 6.0 <= float(problem.split()[1]) <= 8.0


def test_a_replica_that_moves_between_devices_is_ready_there_before_it_ends_here() -> None:
    host = Host(("v100", "t4"))
    here, there = host.uuids
    host.applier.accept(node_target(1, device_target(here, replica_target("r1")), device_target(there)))
    host.settle()
    host.applier.accept(node_target(2, device_target(here), device_target(there, replica_target("r1"))))
    lowest = 1
    for _ in range(40):
        host.applier.run_pass()
        host.clock.pass_s(0.5)
        lowest = min(lowest, sum(worker.state == "ready" for worker in host.fakes.workers()))
    assert lowest == 1
    assert [worker.uuid for worker in host.fakes.workers()] == [there]


def test_a_device_that_the_target_leaves_out_is_emptied() -> None:
    host = Host(("v100", "t4"))
    both = (device_target(host.uuids[0], replica_target("a")), device_target(host.uuids[1], replica_target("b")))
    host.applier.accept(node_target(1, *both))
    host.settle()
    host.applier.accept(node_target(2, both[0]))
    host.settle()
    assert [worker.spec.replica for worker in host.fakes.workers()] == ["a"]


def test_a_worker_that_dies_is_started_again_and_the_receipts_follow(host: Host) -> None:
    host.applier.accept(node_target(1, device_target(host.uuids[0], replica_target("r1"))))
    host.settle()
    host.fakes.stop(host.fakes.workers()[0].worker)
    host.applier.run_pass()
    fallen = host.receipt()
    assert fallen is not None
    assert fallen.outcome == "partial"
    risen = host.settle()
    assert risen is not None
    assert risen.outcome == "applied"


def test_without_a_target_workers_are_left_alone(host: Host) -> None:
    host.fakes.start(host.uuids[0], WorkerSpec(**_plain_spec()))
    assert host.applier.run_pass().settled
    assert len(host.fakes.workers()) == 1
    assert host.receipt() is None
    assert host.fakes.settings(host.uuids[0]) == DeviceSettings(
        uuid=host.uuids[0], mode=Mode.MPS, clock_mhz_sm=None, power_limit_w=None
    )


def _plain_spec() -> dict[str, object]:
    return {
        "replica": "stray",
        "kind": "service",
        "workload": "team/svc",
        "project": "team",
        "model": "resnet50",
        "share_pct_sm": 10,
        "memory_mib_limit": 2000,
        "batch": 1,
    }


def test_a_retiring_replica_ends_when_its_time_is_over(host: Host) -> None:
    uuid = host.uuids[0]
    host.applier.accept(node_target(1, device_target(uuid, replica_target("old", share=40))))
    host.settle()
    retiring = device_target(
        uuid, replica_target("old", share=40, retire_after_s=30.0), replica_target("new", share=60)
    )
    host.applier.accept(node_target(2, retiring))
    last = host.settle()
    assert last is not None
    assert (last.outcome, host.applier.generation_applied) == ("applied", 2)
    assert {worker.spec.replica for worker in host.fakes.workers()} == {"old", "new"}
    host.clock.pass_s(30.0)
    last = host.settle()
    assert last is not None
    assert (last.outcome, [replica.replica for replica in last.replicas]) == ("applied", ["new"])


def test_a_retiring_replica_counts_among_what_a_device_can_hold_but_by_its_share(host: Host) -> None:
    old = replica_target("old", share=60, memory=20_000, retire_after_s=30.0)
    with pytest.raises(TargetRefusedError, match="33000"):
        host.applier.accept(node_target(1, device_target(host.uuids[0], old, replica_target("new", memory=13_000))))
    assert host.applier.accept(node_target(1, device_target(host.uuids[0], old, replica_target("new", share=50))))


def test_problems_are_cut_to_what_the_control_plane_takes() -> None:
    assert problem_line("ended\n\x1b[31mso\udcff") == "ended  [31mso "
    told = problem_line(f"r1: ended; last lines: Traceback{' | at' * 1000} | OSError: address already in use")
    assert PROBLEM_LENGTH_MAX - 1 <= len(told) <= PROBLEM_LENGTH_MAX
    assert told.startswith("r1: ended; last lines: Traceback")
    assert told.endswith(" | OSError: address already in use")


def test_problems_that_a_receipt_has_no_room_for_are_counted_and_devices_come_first(host: Host) -> None:
    host.applier.accept(node_target(1, device_target(host.uuids[0], replica_target("r1"))))
    host.applier.more_problems = lambda: tuple(f"p{number}" for number in range(PROBLEMS_MAX + 5))
    host.applier.run_pass()
    receipt = host.receipt()
    assert receipt is not None
    assert len(receipt.problems) == PROBLEMS_MAX
    assert (receipt.problems[0], receipt.problems[-1]) == ("p0", "6 more problems")


def test_a_lost_device_is_not_in_the_receipt_and_costs_only_what_is_not_wanted_there() -> None:
    host = Host(("v100", "t4"))
    lost, other = host.uuids
    both = (device_target(lost, replica_target("a")), device_target(other, replica_target("b")))
    host.applier.accept(node_target(1, *both))
    host.settle()
    host.devices.fault = lambda verb, arguments: LostError("gone") if verb == "settings" and lost in arguments else None
    host.applier.run_pass()
    told = host.receipt()
    assert told is not None
    assert ([device.uuid for device in told.devices], told.outcome) == ([other], "partial")
    assert any("lost: gone" in problem for problem in told.problems)
    assert {worker.spec.replica for worker in host.fakes.workers()} == {"a", "b"}
    host.applier.accept(node_target(2, device_target(lost), both[1]))
    for _ in range(10):
        host.applier.run_pass()
        host.clock.pass_s(0.5)
    assert {worker.spec.replica for worker in host.fakes.workers()} == {"b"}


def test_what_the_devices_know_is_in_the_receipt_and_a_change_of_it_is_told(host: Host) -> None:
    host.applier.accept(node_target(1, device_target(host.uuids[0])))
    host.settle()
    assert host.receipt() is None
    host.applier.more_problems = lambda: ("a stranger",)
    told = host.receipt()
    assert told is not None
    assert (told.outcome, told.problems) == ("applied", ("a stranger",))
    assert host.receipt() is None


def test_frozen_it_holds_what_works_whatever_is_wanted(host: Host) -> None:
    host.applier.accept(node_target(1, device_target(host.uuids[0], replica_target("a"))))
    host.settle()
    host.applier.frozen = True
    host.applier.accept(node_target(2, device_target(host.uuids[0])))
    host.settle(5.0)
    assert len(host.fakes.workers()) == 1
    host.applier.frozen = False
    host.settle(5.0)
    assert host.fakes.workers() == ()


# --- Counting deaths, waiting longer after each, and forgiving.


def reading(number: int, state: WorkerState = WorkerState.FAILED, **more: Any) -> WorkerReading:
    found = WorkerReading(
        worker=f"r1@{number}",
        uuid="GPU-1",
        spec=worker_spec("r1", launch_s=1.0),
        sm_count=0,
        state=state,
        state_s=0.0,
        drained=False,
        problem="status 9",
    )
    return replace(found, **more)


def test_who_is_late_or_waits_for_its_turn_is_told_and_who_comes_up_is_not(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = host.uuids[0]
    host.applier.accept(node_target(1, device_target(uuid, replica_target("r1"))))
    starting = reading(1, WorkerState.STARTING, uuid=uuid, problem="answered 503")
    told = []
    for state_s in (0.0, 0.5, 2.0):
        workers = (replace(starting, state_s=state_s),)
        monkeypatch.setattr(host.fakes, "workers", partial(tuple, workers))
        host.applier.run_pass()
        receipt = host.receipt()
        assert receipt is not None
        told.append(receipt.problems)
    assert told == [(line := (f"{uuid} r1: not ready: answered 503",)), (), line]


def test_who_runs_and_does_nothing_is_told_though_the_target_is_held(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = host.uuids[0]
    host.applier.accept(node_target(1, device_target(uuid, replica_target("r1"))))
    host.settle()
    (standing,) = host.fakes.workers()
    monkeypatch.setattr(host.fakes, "workers", lambda: (replace(standing, stalled="no progress"),))
    host.applier.run_pass()
    receipt = host.receipt()
    assert receipt is not None
    assert (receipt.outcome, receipt.problems) == ("applied", (f"{uuid} r1: no progress",))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def restarts(clock: FakeClock) -> Restarts:
    return Restarts(clock, random.Random(1))


def waits_s(restarts: Restarts, clock: FakeClock) -> float:
    began_s = clock()
    while restarts.delayed("GPU-1"):
        clock.pass_s(0.1)
    return clock() - began_s


def test_each_death_doubles_the_wait_up_to_a_minute(restarts: Restarts, clock: FakeClock) -> None:
    waits = []
    for number in range(10):
        restarts.observe([reading(number)])
        assert restarts.delayed("GPU-1") == {"r1"}
        assert restarts.delayed("GPU-2") == frozenset()
        waits.append(waits_s(restarts, clock))
    assert all(0.5 * 2.0**n <= wait <= 2.0**n + 0.2 for n, wait in enumerate(waits[:6]))
    assert max(waits) <= BACKOFF_S_MAX + 0.2
    assert restarts.problems() == ["GPU-1 r1: 10 workers failed, the last one: status 9"]


def test_a_death_is_counted_once_however_often_it_is_seen(restarts: Restarts) -> None:
    for _ in range(5):
        restarts.observe([reading(1)])
    assert restarts.problems() == ["GPU-1 r1: 1 worker failed, the last one: status 9"]


def test_whoever_is_long_overdue_has_failed_too(restarts: Restarts) -> None:
    restarts.observe([reading(1, WorkerState.STARTING, state_s=59.0)])
    assert restarts.problems() == []
    restarts.observe([reading(1, WorkerState.STARTING, state_s=61.0, problem="answered 503")])
    assert restarts.problems() == ["GPU-1 r1: 1 worker failed, the last one: not ready in time: answered 503"]


def test_whoever_is_well_for_long_is_forgiven(restarts: Restarts) -> None:
    restarts.observe([reading(1)])
    restarts.observe([reading(2, WorkerState.READY, state_s=FORGIVEN_AFTER_S - 1.0)])
    assert restarts.problems() != []
    restarts.observe([reading(2, WorkerState.READY, state_s=FORGIVEN_AFTER_S)])
    assert (restarts.problems(), restarts.delayed("GPU-1")) == ([], frozenset())


def test_whoever_is_not_wanted_any_more_is_forgotten(restarts: Restarts) -> None:
    restarts.observe([reading(1)])
    restarts.keep([("GPU-1", "r1")])
    assert restarts.delayed("GPU-1") == {"r1"}
    restarts.keep([("GPU-2", "r1")])
    assert restarts.delayed("GPU-1") == frozenset()


def test_a_replacement_that_failed_leaves_the_one_before_it(restarts: Restarts) -> None:
    standing = reading(1, WorkerState.READY)
    restarts.observe([standing, reading(2)])
    assert restarts.problems() == ["GPU-1 r1: 1 worker failed, the last one: status 9; the one before it goes on"]
    restarts.observe([standing, reading(3, WorkerState.READY)])
    assert restarts.problems() == ["GPU-1 r1: 1 worker failed, the last one: status 9"]
