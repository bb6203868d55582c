"""The governor on a node: overlays inside envelopes, freezing, new targets, and the same decisions as a plain loop."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any, cast
from unittest.mock import patch

import pytest

from agents.devices.base import DeviceSample, WorkerSample, WorkerState
from agents.devices.fake.board import FakeBoard
from agents.devices.fake.host import FakeDevices
from agents.loop.governing import AGENT_SETTINGS, NodeGoverning, envelope_of, reading_of
from agents.loop.steps import spec_of
from agents.wire import NodeTarget, WorkerTarget, decode, encode
from solvers.control.controllers import controller, names
from solvers.control.governor import MorakGovernor
from solvers.control.records import (
    DeviceEnvelope,
    DeviceReading,
    GovernorDecision,
    ReplicaEnvelope,
    ReplicaReading,
    ReplicaWish,
    Setting,
)
from solvers.sim.truth.truth import gpu_truth
from tests.unit.agents.builders import FakeClock, device_target, fake_devices, node_target, replica_target

LIMIT_MS, CAP_W, RATE = 60.0, 170.0, 300.0
SHARES = {"r1": 60, "r2": 40}


class Node:
    """Simulated devices under a governor; whatever it overlays is applied at once."""

    def __init__(self, target: NodeTarget | None = None) -> None:
        self.clock = FakeClock()
        self.devices: FakeDevices = fake_devices(self.clock)
        self.inventory = self.devices.inventory()[0]
        self.uuid = self.inventory.uuid
        self.governing = NodeGoverning(self.devices, self.clock)
        self.target = target or self.planned()
        self.held = self.target
        self.started: dict[str, str] = {}

    def planned(self, generation: int = 1, **more: object) -> NodeTarget:
        fields = {"batch": 2, "batch_max": 16, "clock_mhz_sm_min": 600, "latency_ms_limit": LIMIT_MS} | more
        replicas = (replica_target(name, share, **fields) for name, share in SHARES.items())
        return node_target(
            generation, device_target(self.uuid, *replicas, clock_mhz_sm=self.near(900), power_limit_w=CAP_W)
        )

    def near(self, clock_mhz: int) -> int:
        return min(self.inventory.clocks_mhz_sm, key=lambda each: abs(each - clock_mhz))

    def start(self) -> None:
        self.devices.set_power_limit(self.uuid, CAP_W)
        for replica in self.target.devices[0].replicas:
            self.started[replica.replica] = self.devices.start(self.uuid, spec_of(replica))
        self.apply(self.governing.overlay(self.target))
        self.clock.pass_s(30.0)
        self.devices.collect()

    def apply(self, overlaid: NodeTarget) -> None:
        self.held = overlaid
        device = overlaid.devices[0]
        if self.devices.settings(self.uuid).clock_mhz_sm != device.clock_mhz_sm:
            self.devices.set_clock(self.uuid, device.clock_mhz_sm)
        for replica in device.replicas:
            self.devices.tune(self.started[replica.replica], spec_of(replica))

    def period(self, rate_rps: float = RATE) -> NodeTarget:
        self.devices.offer(dict.fromkeys(self.started, rate_rps), 1.0)
        self.clock.pass_s(1.0)
        self.governing.observe(self.devices.collect())
        overlaid = self.governing.overlay(self.target)
        self.apply(overlaid)
        return overlaid


def plain_loop(node: Node, periods: int) -> list[GovernorDecision]:
    """The same governor without any agent: a bare simulated GPU, and readings written down by hand."""
    gpu, now_s = gpu_truth("v100"), FakeClock().now_s
    assert gpu is not None
    board = FakeBoard(gpu, node.uuid, 0, now_s)
    board.set_power_limit(CAP_W)
    for position, replica in enumerate(node.target.devices[0].replicas):
        board.start(f"{replica.replica}@{position + 1:08d}", spec_of(replica), now_s, 1.0)
    envelope = DeviceEnvelope(
        uuid=node.uuid,
        power_w_cap=CAP_W,
        clocks_mhz_sm=tuple(clock for clock in gpu.clocks_mhz_sm if 600 <= clock <= 1590),
        replicas=tuple(
            ReplicaEnvelope(replica=name, batch_min=1, batch_max=16, latency_ms_limit=LIMIT_MS, share_pct_sm=share)
            for name, share in SHARES.items()
        ),
    )
    state = controller("morak").first(envelope, Setting(batches=(2, 2), clock_mhz_sm=node.near(900)))
    board.set_clock(state.setting.clock_mhz_sm)
    now_s += 30.0
    board.advance(now_s)
    board.sample(now_s)
    decisions = []
    for _ in range(periods):
        for worker in board.workers.values():
            worker.announce(RATE, 1.0)
        now_s += 1.0
        board.advance(now_s)
        decision = MorakGovernor(settings=AGENT_SETTINGS).step(envelope, state, _reading(board.sample(now_s)))
        state = decision.state
        decisions.append(decision)
        board.set_clock(state.setting.clock_mhz_sm)
        for worker in board.workers.values():
            board.tune(worker, replace(worker.spec, batch=state.batch(worker.spec.replica)))
    return decisions


def _reading(sample: DeviceSample) -> DeviceReading:
    return DeviceReading(
        power_w=sample.power_w,
        replicas=tuple(
            ReplicaReading(
                replica=worker.reading.spec.replica,
                latency_ms=_latency_ms(worker),
                filled=worker.batch_mean >= 0.75 * worker.reading.spec.batch
                or worker.queue_length >= worker.reading.spec.batch,
            )
            for worker in sample.workers
        ),
        power_capped=sample.throttle == "power_cap",
    )


def _latency_ms(worker: WorkerSample) -> float | None:
    overloaded = worker.queue_length >= 2 * worker.reading.spec.batch or worker.dropped > 0.01 * worker.arrived
    if overloaded and worker.execution_ms_mean is not None:
        return 2.0 * worker.execution_ms_mean
    return worker.latency_ms_p99


def test_agent_and_plain_loop_decide_alike_step_by_step() -> None:
    node, periods = Node(), 120
    node.start()
    seen = []
    for _ in range(periods):
        node.period()
        seen.append(node.governing.decisions()[node.uuid])
    expected = plain_loop(node, periods)
    for position, (found, wanted) in enumerate(zip(seen, expected, strict=True)):
        assert found == wanted, position
    assert {wish for each in seen for wish in (each.clock, *(one.wish for one in each.verdicts))} >= {
        ReplicaWish.BATCH_UP,
        ReplicaWish.CLOCK_UP,
        ReplicaWish.HOLD,
    }
    assert len({each.state.setting for each in seen}) > 5


def test_limits_that_no_knob_can_keep_ask_for_a_repartition_and_say_so() -> None:
    node = Node()
    node.target = node.planned(batch=8, latency_ms_limit=1.0, latency_execution_only=True)
    node.start()
    for _ in range(12):
        node.period(rate_rps=600.0)
    problems = node.governing.problems()
    assert len(problems) == 1
    assert "latency limit broken three periods in a row" in problems[0]
    counts = node.governing.take_counts()
    assert (counts["repartition"], counts["bad"]) == (4, 12)
    assert node.governing.take_counts() == {}
    node.target = node.planned(2, batch=8)
    node.governing.overlay(node.target)
    assert node.governing.problems() == ()


def test_more_load_than_can_be_carried_does_not_shrink_batches() -> None:
    node = Node()
    node.start()
    for _ in range(30):
        overlaid = node.period(rate_rps=20_000.0)
    assert min(batches(overlaid)) > 2


def test_point_like_envelopes_leave_the_target_untouched() -> None:
    node = Node()
    fixed = node.planned(
        batch=2, batch_min=2, batch_max=2, clock_mhz_sm_min=node.near(900), clock_mhz_sm_max=node.near(900)
    )
    node.target = fixed
    node.start()
    for _ in range(5):
        assert node.period() is not None
        assert node.governing.overlay(fixed) == fixed
    assert node.governing.decisions() == {}
    assert node.governing.due_s() == math.inf


@pytest.mark.parametrize(
    ("kind", "worker", "moves"),
    [
        ("service", None, True),
        ("service", WorkerTarget(command=("serve",), batch_change="live"), True),
        ("service", WorkerTarget(command=("serve",), batch_change="reload"), False),
        ("service", WorkerTarget(command=("serve",), batch_change="restart"), False),
        ("service", WorkerTarget(command=("serve",)), False),
        ("job", None, False),
    ],
)
def test_only_batches_that_change_live_are_moved(kind: str, worker: WorkerTarget | None, moves: bool) -> None:
    node = Node()
    clock = node.near(900)
    node.target = node.planned(kind=kind, worker=worker, clock_mhz_sm_min=clock, clock_mhz_sm_max=clock)
    node.governing.overlay(node.target)
    assert math.isfinite(node.governing.due_s()) is moves


def sample_of(node: Node, latency_ms: float = 10.0, **more: Any) -> DeviceSample:
    """A calm device whose workers hold what is overlaid."""
    overlaid = node.held
    wanted = {replica.replica: spec_of(replica) for replica in overlaid.devices[0].replicas}
    workers = tuple(
        WorkerSample(
            reading=replace(reading, spec=wanted[reading.spec.replica], state=WorkerState.READY),
            gone=False,
            held_s=1.0,
            memory_mib_used=1000.0,
            completed=100.0,
            latency_ms_p99=latency_ms,
        )
        for reading in node.devices.workers()
    )
    fields: dict[str, Any] = {
        "uuid": node.uuid,
        "power_w": 100.0,
        "energy_j": 100.0,
        "utilisation_pct": 50.0,
        "memory_mib_used": 2000.0,
        "clock_mhz_sm": 900,
        "temperature_c": 50.0,
        "throttle": "",
        "healthy": True,
        "workers": workers,
    }
    return DeviceSample(**(fields | more))


def batches(target: NodeTarget) -> list[int]:
    return [replica.batch for replica in target.devices[0].replicas]


def calm(node: Node, **more: Any) -> NodeTarget:
    """One period in which the node sees a sample and applies what follows."""
    node.clock.pass_s(1.0)
    node.governing.observe((sample_of(node, **more),))
    overlaid = node.governing.overlay(node.target)
    node.apply(overlaid)
    return overlaid


def test_one_observation_makes_one_decision() -> None:
    node = Node()
    node.start()
    assert batches(calm(node)) == [3, 3]
    node.clock.pass_s(1.5)
    assert batches(node.governing.overlay(node.target)) == [3, 3]
    assert node.governing.take_counts() == {"batch_up": 2, "good": 1}


@pytest.mark.parametrize("broken", [{"power_w": 0.0}, {"power_w": math.nan}, {"healthy": False}])
def test_a_device_that_cannot_be_measured_is_left_alone(broken: dict[str, object]) -> None:
    node = Node()
    node.start()
    before = node.held
    for _ in range(4):
        assert calm(node, **broken) == before
    assert node.governing.take_counts() == {"held": 4}


def test_without_new_measurements_it_freezes_after_three_periods() -> None:
    node = Node()
    node.start()
    calm(node)
    for _ in range(6):
        node.clock.pass_s(1.0)
        node.governing.overlay(node.target)
    assert node.governing.take_counts() == {"batch_up": 2, "good": 1, "held": 3}
    assert node.governing.decisions()[node.uuid].held == "measurements are too old"


def test_nothing_is_decided_before_the_last_decision_reads_back() -> None:
    node = Node()
    node.start()
    calm(node)
    calm(node)
    node.devices.set_clock(node.uuid, node.near(700))
    before = node.governing.overlay(node.target)
    node.clock.pass_s(1.0)
    node.governing.observe((sample_of(node),))
    assert node.governing.overlay(node.target) == before
    assert node.governing.take_counts()["not_applied"] == 1
    node.apply(before)
    node.clock.pass_s(1.0)
    stale_spec = sample_of(node)
    worker = stale_spec.workers[0]
    other = replace(worker, reading=replace(worker.reading, spec=replace(worker.reading.spec, batch=11)))
    node.governing.observe((replace(stale_spec, workers=(other, *stale_spec.workers[1:])),))
    assert node.governing.overlay(node.target) == before
    assert node.governing.take_counts() == {"not_applied": 1}


def test_a_new_target_resets_what_left_its_envelope_and_keeps_the_rest() -> None:
    node = Node()
    node.start()
    for _ in range(9):
        calm(node)
    assert batches(node.governing.overlay(node.target)) == [7, 7]
    wider = node.planned(2, batch=3)
    assert batches(node.governing.overlay(wider)) == [7, 7]
    narrower = node.planned(3, batch=3, batch_max=5)
    assert batches(node.governing.overlay(narrower)) == [3, 3]


def test_a_new_generation_that_changes_nothing_for_a_device_costs_it_nothing() -> None:
    node = Node()
    node.target = node.planned(batch=8, latency_ms_limit=1.0, latency_execution_only=True)
    node.start()
    node.period(rate_rps=600.0)
    node.period(rate_rps=600.0)
    before = node.governing.decisions()[node.uuid].state
    assert before.bad_periods == 2
    node.target = replace(node.target, generation=2, plan="plan-2")
    assert batches(node.governing.overlay(node.target)) == list(before.setting.batches)
    node.period(rate_rps=600.0)
    assert len(node.governing.problems()) == 1


def test_a_default_clock_is_locked_only_when_there_is_cause() -> None:
    node = Node()
    free = node.planned(clock_mhz_sm_max=node.inventory.clocks_mhz_sm[-1])
    node.target = replace(free, governor="dfs", devices=(replace(free.devices[0], clock_mhz_sm=None),))
    node.start()
    assert node.governing.overlay(node.target).devices[0].clock_mhz_sm is None
    hot = calm(node, power_w=CAP_W + 10.0)
    top = node.inventory.clocks_mhz_sm[-1]
    assert hot.devices[0].clock_mhz_sm == max(clock for clock in node.inventory.clocks_mhz_sm if clock <= top - 90)


def test_where_clocks_cannot_be_set_only_batches_move() -> None:
    node = Node()
    node.start()
    refusing = replace(node.inventory, capabilities={"set_clock": "no privilege"})
    with patch.object(node.devices, "inventory", return_value=(refusing,)):
        node.governing = NodeGoverning(node.devices, node.clock)
    node.governing.overlay(node.target)
    node.devices.set_clock(node.uuid, node.near(700))
    overlaid = calm(node)
    assert (batches(overlaid), overlaid.devices[0].clock_mhz_sm) == ([3, 3], node.near(900))


def test_retiring_replicas_stay_as_they_are() -> None:
    node = Node()
    device = node.target.devices[0]
    leaving = replace(device.replicas[1], retire_after_s=30.0, clock_mhz_sm_min=10, clock_mhz_sm_max=20)
    node.target = replace(node.target, devices=(replace(device, replicas=(device.replicas[0], leaving)),))
    node.start()
    assert batches(calm(node)) == [3, 2]


def test_what_a_retiring_replica_draws_is_no_experience_of_who_stays() -> None:
    node = Node()
    both = node.target.devices[0]
    alone = replace(both, replicas=(replace(both.replicas[0], clock_mhz_sm_min=900, clock_mhz_sm_max=900),))
    node.start()
    sample, envelope = sample_of(node), envelope_of(alone, node.inventory)
    assert envelope is not None
    assert reading_of(sample, envelope).beside
    gone = tuple(replace(each, gone=each.reading.spec.replica != "r1") for each in sample.workers)
    assert reading_of(replace(sample, workers=gone), envelope).beside, "it drew power in the sample's time"
    (stays,) = (each for each in sample.workers if each.reading.spec.replica == "r1")
    assert not reading_of(replace(sample, workers=(stays,)), envelope).beside
    drains = replace(stays, reading=replace(stays.reading, state=WorkerState.DRAINING))
    assert reading_of(replace(sample, workers=(stays, drains)), envelope).beside
    assert reading_of(sample, envelope).coming_part == 0.0
    starts = replace(stays, reading=replace(stays.reading, state=WorkerState.STARTING))
    others = tuple(each for each in sample.workers if each.reading.spec.replica != "r1")
    told = reading_of(replace(sample, workers=(*others, starts)), envelope)
    held = sum(each.reading.spec.share_pct_sm for each in others)
    assert told.coming_part == pytest.approx(stays.reading.spec.share_pct_sm / held)


def test_execution_alone_counts_where_the_service_says_so() -> None:
    node = Node()
    node.target = node.planned(latency_execution_only=True)
    node.start()
    node.clock.pass_s(1.0)
    found = sample_of(node, latency_ms=10_000.0)
    calm_workers = tuple(replace(worker, execution_ms_mean=5.0) for worker in found.workers)
    node.governing.observe((replace(found, workers=calm_workers),))
    assert batches(node.governing.overlay(node.target)) == [3, 3]


def test_the_next_agent_goes_on_where_this_one_was() -> None:
    node = Node()
    node.start()
    for _ in range(9):
        calm(node)
    kept = json.loads(json.dumps(node.governing.memory()))
    following = NodeGoverning(node.devices, node.clock)
    following.recall(kept)
    assert following.overlay(node.target) == node.governing.overlay(node.target)
    assert batches(following.overlay(node.target)) == [7, 7]


@pytest.mark.parametrize("broken", [None, {}, {"governed": 3}, {"governed": [{}]}])
def test_a_memory_that_cannot_be_read_is_refused(broken: object) -> None:
    with pytest.raises(ValueError, match="governor"):
        Node().governing.recall(broken)


@pytest.mark.parametrize("name", names())
def test_a_target_chooses_the_controller_by_name(name: str) -> None:
    node = Node()
    node.target = replace(node.target, governor=name)
    node.start()
    overlaid, envelope = node.held, envelope_of(node.target.devices[0], node.inventory)
    assert envelope is not None
    planned = Setting(batches=(2, 2), clock_mhz_sm=node.near(900))
    begun = controller(name, AGENT_SETTINGS).first(envelope, planned).setting
    assert (tuple(batches(overlaid)), overlaid.devices[0].clock_mhz_sm) == (begun.batches, begun.clock_mhz_sm)
    calm(node)
    assert [decision.held for decision in node.governing.decisions().values()] == [""]


def test_another_controller_goes_on_from_the_settings_of_the_one_before() -> None:
    node = Node()
    node.start()
    for _ in range(9):
        calm(node)
    node.target = replace(node.target, generation=2, governor="clipper_l")
    overlaid = node.governing.overlay(node.target)
    assert batches(overlaid) == [7, 7]
    assert overlaid.devices[0].clock_mhz_sm == node.inventory.clocks_mhz_sm[-1]


def test_a_device_may_have_a_controller_of_its_own() -> None:
    node = Node()
    node.start()
    for _ in range(9):
        calm(node)
    device = replace(node.target.devices[0], governor="clipper_l")
    node.target = replace(node.target, generation=2, devices=(device,))
    overlaid = node.governing.overlay(node.target)
    assert (batches(overlaid), overlaid.devices[0].clock_mhz_sm) == ([7, 7], node.inventory.clocks_mhz_sm[-1])
    told = json.loads(json.dumps(encode(node.target)))
    assert decode(NodeTarget, told) == node.target
    plain = encode(replace(node.target, devices=(replace(device, governor=None),)))
    assert "governor" not in cast("Any", plain)["devices"][0]


def test_an_unknown_controller_moves_nothing_and_says_so() -> None:
    node = Node()
    node.target = replace(node.target, governor="from-the-future")
    node.start()
    assert calm(node) == node.target
    assert node.governing.problems() == (
        "this agent knows no controller called from-the-future; batches and clocks stay",
    )


def test_what_would_help_is_told_to_planners_until_a_period_is_good_again() -> None:
    node = Node()
    node.start()
    for _ in range(3):
        calm(node, latency_ms=LIMIT_MS + 30.0)
    (wish,) = node.governing.wishes()
    assert (wish.uuid, wish.cause, wish.share_pct_sm) == (node.uuid, "latency", 5)
    assert wish.replica in SHARES
    assert len(node.governing.problems()) == 1
    calm(node)
    assert node.governing.wishes() == ()
