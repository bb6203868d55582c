"""Agents as real processes against a small control plane: joining, outages, kills and restarts."""

from __future__ import annotations

import http.client
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from agents.servers import Servers
from tests import nursery
from tests.integration.agents.control_plane import JOIN_TOKEN, NODE_TOKEN, ControlPlane
from tests.waiting import wait_until

pytestmark = pytest.mark.integration
LIMITS_MIB = {"t4": 15_360, "v100": 32_768}


class AgentProcess:
    """`python -m agents` with two simulated GPUs, started and ended as often as a test likes."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        self.state = folder / "state"
        self.log = folder / "agent.log"
        self.process: nursery.Running | None = None

    def start(self, *options: str, token: str = JOIN_TOKEN, inherits: bool = False) -> None:
        """`inherits`: a child of this process, with its limits; others are forked from one that has loaded agents."""
        command = [sys.executable, *(["-u"] if inherits else []), "-m", "agents", "--node", "node-1"]
        command += ["--server", self.plane.url]
        command += ["--devices", "fake:T4,V100", "--state-dir", str(self.state), "--time-factor", "20", *options]
        with self.log.open("ab") as log:
            self.process = nursery.start(command, {**os.environ, "HEADROOM_TOKEN": token}, log)

    def end(self, how: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        return self.process.wait(timeout=20)

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == name]


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    found = ControlPlane()
    yield found
    found.go_away()


@pytest.fixture
def agent(plane: ControlPlane, tmp_path: Path) -> Iterator[AgentProcess]:
    found = AgentProcess(plane, tmp_path)
    yield found
    if found.process is not None and found.process.poll() is None:
        found.process.kill()
        found.process.wait(timeout=20)


def replica(name: str, share: int, **more: object) -> dict[str, Any]:
    fields = {
        "replica": name,
        "kind": "service",
        "workload": "team/svc",
        "project": "team",
        "model": "resnet50",
        "share_pct_sm": share,
        "memory_mib_limit": 3000,
        "batch": 8,
        "batch_min": 1,
        "batch_max": 16,
        "clock_mhz_sm_min": 300,
        "clock_mhz_sm_max": 1590,
        "latency_ms_limit": 200.0,
        "launch_s": 6.0,
    }
    return fields | more


def target(plane: ControlPlane, generation: int, *by_device: list[dict[str, Any]]) -> dict[str, Any]:
    uuids = [device["uuid"] for device in plane.joins[0]["devices"]]
    devices = [
        {"uuid": uuid, "mode": "mps", "clock_mhz_sm": None, "power_limit_w": None, "replicas": replicas}
        for uuid, replicas in zip(uuids, by_device, strict=True)
    ]
    return {"node": "node-1", "generation": generation, "plan": f"plan-{generation}", "devices": devices}


def applied(plane: ControlPlane, generation: int, boot_id: str | None = None) -> bool:
    return any(
        receipt["generation"] == generation
        and receipt["outcome"] == "applied"
        and boot_id in (None, receipt["boot_id"])
        for receipt in plane.receipts
    )


def later(plane: ControlPlane, boots: set[str]) -> list[dict[str, Any]]:
    """Receipts of boots other than these."""
    return [receipt for receipt in plane.receipts if receipt["boot_id"] not in boots]


def assert_never_over_limits(plane: ControlPlane) -> None:
    types = {device["uuid"]: device["gpu_type"] for device in plane.joins[0]["devices"]}
    for receipt in plane.receipts:
        for uuid, gpu_type in types.items():
            rows = [row for row in receipt["replicas"] if row["uuid"] == uuid]
            assert sum(row["memory_mib_limit"] for row in rows) <= LIMITS_MIB[gpu_type]


def test_it_joins_applies_what_the_bell_announces_and_reports(plane: ControlPlane, agent: AgentProcess) -> None:
    agent.start("--rack", "rack-7")
    plane.wait_for(lambda: plane.joins)
    joined = plane.joins[0]
    assert (joined["node"], joined["rack"], joined["token"]) == ("node-1", "rack-7", JOIN_TOKEN)
    assert [device["gpu_type"] for device in joined["devices"]] == ["t4", "v100"]
    plane.promote(target(plane, 1, [replica("a", 50)], [replica("b", 30)]))
    plane.wait_for(lambda: applied(plane, 1))
    token_file = agent.state / "token"
    assert token_file.read_text(encoding="utf-8").strip() == NODE_TOKEN
    assert token_file.stat().st_mode & 0o777 == 0o600
    assert agent.state.stat().st_mode & 0o777 == 0o700
    seen = len(plane.reports)
    plane.wait_for(lambda: len(plane.reports) >= seen + 3)
    report = plane.reports[-1]
    assert report["generation_applied"] == 1
    assert {row["replica"]: row["state"] for row in report["replicas"]} == {"a": "ready", "b": "ready"}
    for device in report["devices"]:
        rows = [row for row in report["replicas"] if row["uuid"] == device["uuid"]]
        assert device["share_pct_sm_total"] == sum(row["share_pct_sm"] for row in rows)


def test_its_endpoint_takes_load_and_the_reports_show_it(plane: ControlPlane, agent: AgentProcess) -> None:
    agent.start()
    plane.wait_for(lambda: plane.joins)
    plane.promote(target(plane, 1, [replica("a", 50)], []))
    plane.wait_for(lambda: applied(plane, 1))
    load = {"replicas": {"a": 40, "nobody": 3}, "interval_s": 0.5}
    with closing(http.client.HTTPConnection(urlsplit(plane.joins[0]["endpoint"]).netloc, timeout=5)) as connection:
        connection.request("POST", "/load", json.dumps(load))
        answer = json.loads(connection.getresponse().read())
    assert answer == {"unknown": ["nobody"], "not_ready": []}

    def finished() -> float:
        return sum(row["completed"] for report in plane.reports for row in report["replicas"])

    plane.wait_for(lambda: finished() > 39.999)
    assert finished() == pytest.approx(40.0)
    latencies = [row["latency_ms_p99"] for report in plane.reports for row in report["replicas"] if row["completed"]]
    assert all(0.0 < latency < 200.0 for latency in latencies)


def test_older_generations_are_refused_and_the_newer_one_stays(plane: ControlPlane, agent: AgentProcess) -> None:
    agent.start()
    plane.wait_for(lambda: plane.joins)
    plane.promote(target(plane, 5, [replica("a", 50)], []))
    plane.wait_for(lambda: applied(plane, 5))
    plane.promote(target(plane, 4, [], []))
    # The bell never rings backwards, so make the stream tell of something newer while the target is old.
    agent.end(signal.SIGKILL)
    agent.start()
    plane.wait_for(lambda: any(receipt["outcome"] == "refused" for receipt in plane.receipts))
    refused = next(receipt for receipt in plane.receipts if receipt["outcome"] == "refused")
    assert refused["generation"] == 4
    assert "older" in refused["problems"][0]
    assert [row["replica"] for row in refused["replicas"]] == ["a"]
    seen = len(plane.reports)
    plane.wait_for(lambda: len(plane.reports) > seen + 1)
    assert [row["replica"] for row in plane.reports[-1]["replicas"]] == ["a"]


def test_reports_of_an_outage_arrive_afterwards_once_and_in_order(plane: ControlPlane, agent: AgentProcess) -> None:
    agent.start()
    plane.wait_for(lambda: len(plane.reports) >= 2)
    plane.failing = True
    attempts = plane.attempts
    plane.wait_for(lambda: agent.events("control-plane.away"))
    plane.go_away()
    before = plane.reports[-1]["sequence"]
    plane.come_back()
    plane.wait_for(lambda: plane.reports[-1]["sequence"] >= before + 5)
    sequences = [report["sequence"] for report in plane.reports]
    assert sequences == list(range(1, len(sequences) + 1))
    assert plane.attempts > attempts
    moments = [report["observed_at_s"] for report in plane.reports]
    assert all(earlier <= later for earlier, later in pairwise(moments))
    assert len({report["boot_id"] for report in plane.reports}) == 1


def sequences(plane: ControlPlane, boot_id: str) -> list[int]:
    return [report["sequence"] for report in plane.reports if report["boot_id"] == boot_id]


def test_reports_that_a_killed_agent_could_not_send_are_sent_by_the_next_one(
    plane: ControlPlane, agent: AgentProcess
) -> None:
    agent.start()
    plane.wait_for(lambda: plane.reports)
    boots = [plane.joins[0]["boot_id"]]
    file = agent.state / "reports.jsonl"
    for more in (5000, 300):
        # Killed with reports that were cut and never acknowledged, twice, the second time without having joined.
        plane.failing = True
        least = file.stat().st_size + more
        wait_until(lambda least=least: file.stat().st_size > least, "reports wait")
        agent.end(signal.SIGKILL)
        agent.start()
    wait_until(lambda: len(agent.events("control-plane.away")) >= 3, "it has tried")
    before = len(plane.reports)
    plane.come_back()
    plane.wait_for(lambda: len(plane.joins) == 2 and len(plane.reports) > before + 30)
    boots.append(plane.joins[1]["boot_id"])
    # Whoever lives speaks first, so that nothing of before it can speak for the node.
    assert plane.reports[before]["boot_id"] == boots[1]
    own = sequences(plane, boots[1])
    assert own == list(range(1, len(own) + 1))
    left = {report["boot_id"] for report in plane.reports} - {boots[1]}
    assert len(left) == 2
    for boot in left:
        told = sequences(plane, boot)
        assert told == list(range(1, len(told) + 1))
    # Seconds that nobody told of are those in which no agent lived, and an interval that a death cut off.
    moments = sorted((report["observed_at_s"], report["interval_s"]) for report in plane.reports)
    unseen_s = [moment - interval_s - earlier for (earlier, _), (moment, interval_s) in pairwise(moments)]
    assert sum(gap_s > 0.05 for gap_s in unseen_s) <= 2
    wait_until(lambda: file.stat().st_size < 100, "nothing waits any more")


def test_a_disk_that_is_full_costs_no_report_while_the_agent_lives(plane: ControlPlane, agent: AgentProcess) -> None:
    agent.start()
    plane.wait_for(lambda: plane.reports)
    assert agent.process is not None
    resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE, (8192, 8192))
    plane.failing = True
    wait_until(lambda: agent.events("reports.in_memory_only"), "it says so")
    wait_until(lambda: len(agent.events("reports.in_memory_only")[0]["reason"]) > 5, "with the reason")
    plane.come_back()
    boot = plane.joins[0]["boot_id"]
    count = len(plane.reports)
    plane.wait_for(lambda: len(plane.reports) > count + 20)
    told = sequences(plane, boot)
    assert told == list(range(1, len(told) + 1))
    assert agent.end(signal.SIGTERM) == 0


def test_where_nothing_can_be_written_it_joins_and_works_all_the_same(plane: ControlPlane, agent: AgentProcess) -> None:
    """Its token, target and reports are in memory alone then; its log is a file that takes nothing either."""
    bound = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, bound[1]))
    try:
        agent.start(inherits=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, bound)
    plane.wait_for(lambda: len(plane.reports) >= 3)
    plane.promote(target(plane, 1, [replica("a", 30)], []))
    plane.wait_for(lambda: applied(plane, 1))
    seen = len(plane.reports)
    plane.wait_for(lambda: len(plane.reports) >= seen + 3)
    assert not (agent.state / "token").exists()
    assert agent.log.stat().st_size == 0
    assert agent.end(signal.SIGTERM) == 0


def test_who_is_turned_away_comes_again_when_it_was_told_and_loses_nothing(
    plane: ControlPlane, agent: AgentProcess
) -> None:
    plane.busy_s = 1
    agent.start()
    plane.wait_for(lambda: len(plane.turned_away_s) >= 4)
    assert plane.joins == []
    plane.busy_s = None
    plane.wait_for(lambda: plane.reports)
    joining_s, plane.turned_away_s, plane.busy_s = plane.turned_away_s, [], 1
    sent = len(plane.reports)
    plane.wait_for(lambda: len(plane.turned_away_s) >= 5)
    assert len(plane.reports) <= sent + 1
    for moments_s in (joining_s, plane.turned_away_s):
        pauses_s = [after - before for before, after in pairwise(moments_s)]
        # Half to one and a half of what was told; a busy machine adds to that.
        assert min(pauses_s) >= 0.5
        assert sorted(pauses_s)[len(pauses_s) // 2] < 3.0
    plane.busy_s = None
    newest = sent + 10
    plane.wait_for(lambda: len(plane.reports) >= newest)
    sequences = [report["sequence"] for report in plane.reports]
    assert sequences == list(range(sequences[0], sequences[0] + len(sequences)))


def test_of_two_servers_it_keeps_to_its_own_while_that_serves(plane: ControlPlane, agent: AgentProcess) -> None:
    other = ControlPlane()
    try:
        own, second = (
            plane if url == plane.url else other for url in Servers((plane.url, other.url), "node-1").addresses
        )
        agent.start("--server", other.url)
        own.wait_for(lambda: len(own.reports) >= 3)
        assert (second.attempts, second.joins) == (0, [])
        own.go_away()
        second.wait_for(lambda: second.doorbells > 0 and len(second.reports) >= 3)
        said = len(own.reports)
        own.come_back()
        own.wait_for(lambda: own.doorbells > 1 and len(own.reports) > said + 3)
        told = (*own.reports[:said], *second.reports, *own.reports[said:])
        # One whose answer was cut off is told twice; the database that real servers share knows it.
        sequences = list(dict.fromkeys(report["sequence"] for report in told))
        assert sequences == list(range(1, len(sequences) + 1)), "no report is lost"
        assert [event["server"] for event in agent.events("server.chosen")] == [own.url, second.url, own.url]
    finally:
        other.go_away()


def test_a_report_that_is_refused_is_dropped_alone(plane: ControlPlane, agent: AgentProcess) -> None:
    plane.refuse_sequences = {2, 5}
    agent.start()
    plane.wait_for(lambda: any(report["sequence"] >= 8 for report in plane.reports))
    sequences = [report["sequence"] for report in plane.reports]
    assert sequences[:6] == [1, 3, 4, 6, 7, 8]
    assert [event["sequence"] for event in agent.events("report.refused")] == [2, 5]


def test_the_target_is_held_across_a_restart_with_nobody_there(plane: ControlPlane, agent: AgentProcess) -> None:
    agent.start()
    plane.wait_for(lambda: plane.joins)
    plane.promote(target(plane, 1, [replica("a", 50)], [replica("b", 30)]))
    plane.wait_for(lambda: applied(plane, 1))
    plane.go_away()
    assert agent.end(signal.SIGTERM) == 0
    devices = json.loads((agent.state / "devices.json").read_text(encoding="utf-8"))
    assert sum(len(board["workers"]) for board in devices["boards"]) == 2
    # As if the host had rebooted: no process survived, only the accepted target did.
    (agent.state / "devices.json").unlink()
    said = len(agent.events("target.read_back"))
    agent.start(token="")
    plane.wait_for(lambda: any(each["outcome"] == "applied" for each in agent.events("target.read_back")[said:]))
    plane.come_back()
    plane.wait_for(lambda: len(plane.joins) == 2)
    assert plane.joins[1]["token"] == NODE_TOKEN
    assert plane.joins[1]["boot_id"] != plane.joins[0]["boot_id"]
    plane.wait_for(lambda: applied(plane, 1, plane.joins[1]["boot_id"]))


@pytest.mark.parametrize("passes", range(3))
def test_killed_in_the_middle_of_a_change_it_converges_after_a_restart(
    plane: ControlPlane, agent: AgentProcess, passes: int
) -> None:
    agent.start()
    plane.wait_for(lambda: plane.joins)
    plane.promote(target(plane, 1, [replica("a", 60), replica("b", 40)], [replica("c", 50)]))
    plane.wait_for(lambda: applied(plane, 1))
    seen = len(plane.receipts)
    plane.promote(target(plane, 2, [replica("a", 30), replica("b", 70)], [replica("c", 40), replica("d", 20)]))
    # An agent that is slow tells of a whole change at once.
    plane.wait_for(lambda: len(plane.receipts) > seen + passes or applied(plane, 2))
    agent.end(signal.SIGKILL)
    boots = {receipt["boot_id"] for receipt in plane.receipts}
    agent.start()
    plane.wait_for(lambda: any(applied(plane, 2, each["boot_id"]) for each in later(plane, boots)))
    last = next(each for each in later(plane, boots) if (each["generation"], each["outcome"]) == (2, "applied"))
    held = {row["replica"]: row["share_pct_sm"] for row in last["replicas"]}
    assert held == {"a": 30, "b": 70, "c": 40, "d": 20}
    assert all(row["ready"] for row in last["replicas"])
    plane.wait_for(lambda: plane.reports[-1]["generation_applied"] == 2)
    assert_never_over_limits(plane)


def test_told_to_end_it_keeps_workers_and_restores_clocks_only_when_asked(
    plane: ControlPlane, agent: AgentProcess
) -> None:
    agent.start("--restore-on-exit")
    plane.wait_for(lambda: plane.joins)
    wanted = target(plane, 1, [replica("a", 50)], [])
    wanted["devices"][0] |= {"clock_mhz_sm": 1200, "power_limit_w": 65.0}
    plane.promote(wanted)
    plane.wait_for(lambda: applied(plane, 1))
    assert agent.end(signal.SIGTERM) == 0
    board = json.loads((agent.state / "devices.json").read_text(encoding="utf-8"))["boards"][0]
    assert (board["clock_mhz_sm"], board["power_limit_w"], len(board["workers"])) == (None, None, 1)
    assert agent.events("agent.ended")


def test_a_second_agent_on_the_same_state_is_turned_away(plane: ControlPlane, agent: AgentProcess) -> None:
    agent.start()
    plane.wait_for(lambda: plane.joins)
    twin = subprocess.run(
        [sys.executable, "-m", "agents", "--server", plane.url, "--devices", "fake:T4", "--state-dir", agent.state],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert twin.returncode == 2
    assert "another agent" in twin.stderr


def test_a_wrong_token_is_said_and_does_not_end_the_agent(plane: ControlPlane, agent: AgentProcess) -> None:
    agent.start(token="wrong")
    plane.wait_for(lambda: agent.events("control-plane.refuses"))
    assert "unknown token" in agent.events("control-plane.refuses")[0]["reason"]
    assert agent.process is not None
    assert agent.process.poll() is None
    assert plane.joins == []


A = {"cluster_id": "aaaaaaaa-0000-4000-8000-000000000001", "epoch": 1}
B = {"cluster_id": "bbbbbbbb-0000-4000-8000-000000000002", "epoch": 1}


def refusals(plane: ControlPlane) -> list[dict[str, Any]]:
    return [receipt for receipt in plane.receipts if receipt["outcome"] == "refused"]


def held(agent: AgentProcess) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((agent.state / "target.json").read_text(encoding="utf-8"))
    return found


def test_heartbeats_fetch_nothing(plane: ControlPlane, agent: AgentProcess) -> None:
    plane.heartbeat_s = 0.05
    agent.start()
    plane.wait_for(lambda: plane.joins)
    plane.promote(target(plane, 1, [], []))
    plane.wait_for(lambda: applied(plane, 1))
    seen, fetches = len(plane.reports), plane.fetches
    plane.wait_for(lambda: len(plane.reports) > seen + 10)
    assert plane.fetches - fetches <= 1


def test_it_follows_a_new_epoch_at_once_whatever_its_generation(plane: ControlPlane, agent: AgentProcess) -> None:
    """The bell rings for a lower number as for a higher one, and the agent makes itself known again first."""
    plane.history = dict(A)
    agent.start()
    plane.wait_for(lambda: plane.joins)
    plane.promote(target(plane, 14, [replica("a", 50)], []))
    plane.wait_for(lambda: applied(plane, 14))
    plane.promote(target(plane, 12, [replica("b", 40)], []))
    plane.wait_for(lambda: refusals(plane))
    assert refusals(plane)[0]["problems"] == ["generation 12 is older than 14, which this node holds"]
    assert held(agent)["generation"] == 14
    plane.go_away()
    plane.history["epoch"] = 7
    plane.promote(target(plane, 12, [replica("b", 40)], []))
    plane.come_back()
    plane.wait_for(lambda: applied(plane, 12), deadline_s=20.0)
    assert len(plane.joins) == 2
    assert plane.joins[0]["boot_id"] == plane.joins[1]["boot_id"]
    assert (held(agent)["epoch"], held(agent)["generation"]) == (7, 12)
    assert plane.receipts[-1]["epoch"] == 7
    # Whoever comes back with the history that is over is refused, also by the next agent of this node.
    agent.end(signal.SIGKILL)
    plane.history["epoch"] = 1
    plane.promote(target(plane, 20, [], []))
    agent.start()
    plane.wait_for(lambda: "epoch 1, which is over" in str(refusals(plane)[-1]["problems"]))
    assert held(agent)["generation"] == 12


def test_it_tells_two_control_planes_apart_until_it_is_handed_over(
    plane: ControlPlane, agent: AgentProcess, tmp_path: Path
) -> None:
    plane.history = dict(A)
    agent.start()
    plane.wait_for(lambda: plane.joins)
    plane.promote(target(plane, 3, [replica("a", 50)], []))
    plane.wait_for(lambda: applied(plane, 3))
    agent.end(signal.SIGTERM)
    other = ControlPlane()
    try:
        other.history = dict(B)
        other.promote(target(plane, 40, [replica("b", 40)], []))
        moved = AgentProcess(other, tmp_path)
        moved.start()
        try:
            other.wait_for(lambda: refusals(other))
            other.promote(target(plane, 41, [], []))
            fetches = other.fetches
            other.wait_for(lambda: other.fetches > fetches)
            (receipt,) = refusals(other)
            assert B["cluster_id"] in receipt["problems"][0]
            assert (receipt["cluster_id"], receipt["generation"]) == (A["cluster_id"], 40)
            assert [row["replica"] for row in receipt["replicas"]] == ["a"]
            assert len(moved.events("target.refused")) == 1
            assert held(moved)["generation"] == 3
            # What the refusal names as the way to hand a node over.
            moved.end(signal.SIGTERM)
            (moved.state / "target.json").unlink()
            moved.start()
            other.wait_for(lambda: applied(other, 41))
            assert held(moved)["cluster_id"] == B["cluster_id"]
        finally:
            if moved.process is not None and moved.process.poll() is None:
                moved.end(signal.SIGKILL)
    finally:
        other.go_away()


def test_servers_of_the_version_before_and_after_take_turns(plane: ControlPlane, agent: AgentProcess) -> None:
    """One that tells of no history hears of none, for it would refuse what it does not know; generations go on."""
    agent.start()
    plane.wait_for(lambda: plane.joins)
    plane.promote(target(plane, 3, [replica("a", 50)], []))
    plane.wait_for(lambda: applied(plane, 3))
    assert not any({"cluster_id", "epoch"} & set(told) for told in (*plane.receipts, *plane.joins, *plane.reports))
    starts = len(agent.events("target.accepted"))
    plane.history = dict(A)
    plane.promote(target(plane, 3, [replica("a", 50)], []))
    plane.wait_for(lambda: plane.receipts[-1].get("cluster_id") == A["cluster_id"])
    assert plane.receipts[-1]["outcome"] == "applied"
    assert len(agent.events("target.accepted")) == starts + 1
    plane.history = {}
    plane.promote(target(plane, 4, [replica("a", 60)], []))
    plane.wait_for(lambda: applied(plane, 4))
    assert not {"cluster_id", "epoch"} & set(plane.receipts[-1])
    plane.promote(target(plane, 2, [], []))
    plane.wait_for(lambda: refusals(plane))
    assert "older" in refusals(plane)[0]["problems"][0]
    assert not {"cluster_id", "epoch"} & set(refusals(plane)[0])
