"""The applying thread's turns: silence, governing, resuming and ending, without a network."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agents.config import NodeFacts
from agents.devices.fake.host import FakeDevices
from agents.errors import DeviceError, StateFileError
from agents.log import Log
from agents.loop.loop import PASS_S, PASS_S_QUICK, Agent, Clocks
from agents.loop.told import page
from agents.state import TARGET_FILE
from agents.wire import encode
from tests.unit.agents.builders import NODE, FakeClock, device_target, fake_devices, node_target, replica_target
from tests.unit.agents.devices.nvidia.doubles import COMMAND, MemoryState, World, uuid_of

FACTS = NodeFacts(
    node=NODE,
    servers=("http://127.0.0.1:9",),
    join_token="",
    rack="rack-0",
    failure_domain="zone-0",
    region="default",
    endpoint=None,
    alone_after_s=60.0,
)


class Node:
    """An agent that is driven turn by turn."""

    def __init__(self, **more: Any) -> None:
        self.clock = FakeClock()
        self.devices: FakeDevices = fake_devices(self.clock)
        self.uuid = self.devices.inventory()[0].uuid
        self.state = MemoryState()
        self.said = io.StringIO()
        self.ahead_s = 0.0
        clocks = Clocks(self.clock, lambda: 5e8 + self.clock() + self.ahead_s)
        self.agent = Agent(replace(FACTS, **more), self.devices, self.state, Log(NODE, self.said), clocks)

    def tell(self, generation: int, *replicas: Any, **more: Any) -> None:
        self.agent.mailbox.put_target(node_target(generation, device_target(self.uuid, *replicas, **more)))

    def turns(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.agent.turn()
            self.clock.pass_s(1.0)

    def held(self) -> list[tuple[str, int]]:
        return sorted((worker.spec.replica, worker.spec.share_pct_sm) for worker in self.devices.workers())

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in map(json.loads, self.said.getvalue().splitlines()) if event["event"] == name]


@pytest.fixture
def node() -> Node:
    return Node()


def test_after_long_silence_nothing_that_works_changes_until_somebody_answers(node: Node) -> None:
    node.tell(1, replica_target("a", share=40))
    node.turns(20)
    node.agent.uplink.heard_s = node.clock()
    node.turns(59)
    assert node.agent.health() == {"alone_s": 59.0, "frozen": False, "generation": 1, "generation_applied": 1}
    node.turns(2)
    assert node.agent.health()["frozen"] is True
    node.tell(2)
    node.turns(20)
    assert node.held() == [("a", 40)]
    node.agent.uplink.heard_s = node.clock()
    node.turns(20)
    assert node.held() == []
    assert [len(node.events(name)) for name in ("changes.frozen", "changes.thawed")] == [1, 1]


def test_a_clock_that_was_ahead_and_is_right_again_costs_nothing_more(node: Node) -> None:
    """While it is ahead all is refused, also what was applied; told again is what is held, of the right time."""
    began_s = 5e8 + node.clock()
    node.tell(1, replica_target("a", share=40))
    node.turns(5)
    node.ahead_s = 86_400.0
    node.turns(30)
    node.agent._report()
    while (receipt := node.agent.mailbox.next_receipt()) is not None:
        node.agent.mailbox.drop_receipt(receipt)
    node.agent.mailbox.from_future.set()
    node.turns(2)
    assert node.agent.mailbox.next_receipt() is None
    assert not node.events("clock.set_back")
    node.ahead_s = 0.0
    node.agent._report()
    node.agent.mailbox.from_future.set()
    node.turns(2)
    node.agent._report()
    texts = [json.loads(report.text) for report in node.agent.mailbox.reports.oldest(9)]
    assert [round(each["observed_at_s"] - began_s) for each in texts] == [86_435, 86_436, 39]
    receipt = node.agent.mailbox.next_receipt()
    assert receipt is not None
    assert (receipt.outcome, round(receipt.observed_at_s - began_s)) == ("applied", 37)
    assert len(node.events("clock.set_back")) == 1


def test_a_clock_that_goes_backwards_is_not_followed_where_nobody_minds(node: Node) -> None:
    began_s = 5e8 + node.clock()
    node.tell(1)
    node.turns(5)
    node.ahead_s = -3600.0
    node.turns(5)
    node.agent._report()
    (report,) = node.agent.mailbox.reports.oldest(9)
    assert json.loads(report.text)["observed_at_s"] == began_s + 4.0


def test_it_tells_prometheus_what_it_holds_and_asks_no_device(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "headroom_agent_generation_applied 0.0\n" in page(node.agent.told())
    node.tell(1, replica_target("a", share=40))
    node.turns(20)
    node.agent._report()
    monkeypatch.setattr(node.devices, "collect", None)
    monkeypatch.setattr(node.devices, "workers", None)
    families = {family.name: family for family in text_string_to_metric_families(page(node.agent.told()))}
    values = {name: family.samples[0].value for name, family in families.items()}
    assert values["headroom_agent_generation"] == 1.0
    assert values["headroom_agent_reports_waiting"] == 1.0
    (power,) = families["headroom_agent_device_power_watts"].samples
    assert power.labels == {"device": node.uuid}
    assert power.value > 0.0
    (replicas,) = families["headroom_agent_replicas"].samples
    assert (replicas.labels, replicas.value) == ({"state": "ready"}, 1.0)


def test_what_retires_goes_on_while_nobody_answers(node: Node) -> None:
    node.tell(1, replica_target("a", share=40))
    node.turns(58)
    node.tell(2, replica_target("a", share=40, retire_after_s=10.0))
    node.turns(60)
    assert node.held() == [("a", 40)]
    node.agent.uplink.heard_s = node.clock()
    node.turns(10)
    assert node.held() == []


def test_a_turn_that_did_something_is_followed_soon(node: Node) -> None:
    node.tell(1, replica_target("a"))
    assert node.agent.turn() == PASS_S_QUICK
    assert node.agent.turn() == PASS_S
    node.clock.pass_s(10.0)
    assert node.agent.turn() <= 1.0


def test_problems_that_stay_are_written_out_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    there = ("the compute mode cannot be set",)
    monkeypatch.setattr(node.devices, "problems", lambda: there)
    for generation in (1, 2):
        node.tell(generation, replica_target("a", share_pct_sm=10 * generation))
        node.turns(10)
    assert node.agent.mailbox.next_receipt().problems == there, "receipts tell them whole"
    monkeypatch.setattr(node.devices, "problems", lambda: ())
    node.turns(3)
    said = [event["problems"] for event in node.events("target.read_back")]
    assert len(said) > 3
    assert [said[0], *{*said[1:-1]}, said[-1]] == [*there, "as before", None]


def test_governed_batches_are_applied_and_receipts_do_not_follow_each(node: Node) -> None:
    node.tell(1, replica_target("a", batch=2, batch_min=1, batch_max=16, latency_ms_limit=5000.0))
    node.turns(10)
    while (receipt := node.agent.mailbox.next_receipt()) is not None:
        node.agent.mailbox.drop_receipt(receipt)
    batches = set()
    for _ in range(60):
        node.devices.offer({"a": 400.0}, 1.0)
        node.turns(1)
        batches |= {worker.spec.batch for worker in node.devices.workers()}
        assert node.agent.applier.generation_applied == 1
    assert len(batches) > 2
    assert node.agent.mailbox.next_receipt() is None


def test_without_a_governor_batches_stay_as_planned() -> None:
    node = Node(governed=False)
    node.tell(1, replica_target("a", batch=2, batch_min=1, batch_max=16, latency_ms_limit=5000.0))
    node.turns(10)
    for _ in range(20):
        node.devices.offer({"a": 400.0}, 1.0)
        node.turns(1)
    assert [worker.spec.batch for worker in node.devices.workers()] == [2]


def test_an_unreadable_host_is_said_once_and_tried_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.tell(1, replica_target("a"))
    node.agent.turn()

    def fail() -> Any:
        raise StateFileError("no disk")

    with monkeypatch.context() as broken:
        broken.setattr(node.devices, "workers", fail)
        for _ in range(3):
            node.agent.turn()
    node.agent.turn()
    assert [len(node.events(f"devices.{state}")) for state in ("unreadable", "readable")] == [1, 2]


def test_a_target_that_the_disk_did_not_take_is_written_when_there_is_room(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.tell(1, replica_target("a"))
    node.turns(1)
    with monkeypatch.context() as full:
        full.setattr(node.state, "write_text", mock.Mock(side_effect=StateFileError("no space left")))
        node.tell(2, replica_target("b"))
        node.turns(1)
        node.agent._report()
    assert '"generation":1' in (node.state.read_text(TARGET_FILE) or "")
    node.agent._report()
    assert '"generation":2' in (node.state.read_text(TARGET_FILE) or "")
    assert [len(node.events(f"target.{state}")) for state in ("not_kept", "kept")] == [1, 1]


class TestResuming:
    """An agent that comes after another one."""

    def agent(self, world: World, said: io.StringIO) -> Agent:
        clocks = Clocks(world.clock, lambda: 5e8 + world.clock())
        facts = replace(FACTS, restore_on_exit=True)
        return Agent(facts, world.devices(), world.state, Log(NODE, said), clocks)

    def test_without_a_target_it_undoes_what_the_other_one_left(self) -> None:
        world = World()
        world.devices().set_clock(uuid_of(0), 900)
        self.agent(world, io.StringIO())._resume()
        assert world.cards[uuid_of(0)].clock_lock is None

    def test_with_one_it_goes_on_and_never_lets_a_limit_go(self) -> None:
        world = World()
        target = node_target(3, device_target(uuid_of(0), power_limit_w=200.0, clock_mhz_sm=900))
        world.state.write_json(TARGET_FILE, encode(target))
        devices = world.devices()
        devices.set_power_limit(uuid_of(0), 200.0)
        devices.set_clock(uuid_of(0), 900)
        seen = []
        world.watch = lambda: seen.append(world.cards[uuid_of(0)].power_limit_w)
        agent = self.agent(world, io.StringIO())
        agent._resume()
        agent.turn()
        assert set(seen) <= {200.0}
        assert agent.applier.generation_applied == 3

    def test_a_device_that_was_lost_meanwhile_does_not_cost_the_others(self) -> None:
        world = World()
        gone = device_target("GPU-gone", replica_target("b", worker=COMMAND))
        here = device_target(uuid_of(0), replica_target("a", worker=COMMAND))
        target = node_target(3, here, gone)
        world.state.write_json(TARGET_FILE, encode(target))
        agent = self.agent(world, io.StringIO())
        agent._resume()
        for _ in range(10):
            agent.turn()
            world.pass_s(1.0)
        assert [process.order.spec.replica for process in world.processes.values()] == ["a"]
        receipt = agent.applier.receipt("later", 0.0) or agent.mailbox.next_receipt()
        assert receipt is not None
        assert receipt.outcome == "partial"
        assert "GPU-gone: not on this host any more" in receipt.problems
        assert agent.applier.accept(target) is False

    def test_what_cannot_be_restored_is_said(self) -> None:
        world = World()
        world.devices().set_clock(uuid_of(0), 900)
        world.fault = lambda verb, uuid: DeviceError("no") if verb == "set_clock" else None
        said = io.StringIO()
        self.agent(world, said)._resume()
        assert "restore.failed" in said.getvalue()


def test_another_cluster_is_refused_once_however_often_it_promotes(node: Node) -> None:
    def told(generation: int, cluster: str) -> None:
        target = node_target(generation, device_target(node.uuid, replica_target("a")))
        node.agent.mailbox.put_target(replace(target, cluster_id=cluster, epoch=1))
        node.turns(10)

    told(3, "ours")
    for generation in (1, 7, 8, 9):
        told(generation, "theirs")
    refused = [line for line in node.said.getvalue().splitlines() if "target.refused" in line]
    assert len(refused) == 1, refused
    receipts = []
    while (receipt := node.agent.mailbox.next_receipt()) is not None:
        node.agent.mailbox.drop_receipt(receipt)
        receipts += [receipt] * (receipt.outcome == "refused")
    ((problem,),) = [receipt.problems for receipt in receipts]
    assert "cluster theirs" in problem
    assert "cluster ours" in problem
    told(4, "ours")
    assert node.agent.applier.generation_applied == 4


def test_profile_runs_of_another_cluster_are_not_asked_for(node: Node) -> None:
    """An agent that holds a cluster's target and was led to another one measures nothing for that."""
    desk_token = node.agent._desk_parts(mock.Mock()).token
    assert desk_token() == ""
    target = node_target(3, device_target(node.uuid, replica_target("a")))
    node.agent.mailbox.put_target(replace(target, cluster_id="ours", epoch=1))
    node.turns(2)
    joined = {"token": "secret", "report_interval_s": 5.0, "epoch": 1}
    for cluster, token in (("theirs", ""), ("ours", "secret"), (None, "secret")):
        node.agent.uplink._enter({**joined, "cluster_id": cluster})
        assert desk_token() == token, cluster
