"""The whole chain on one host, as its users and operators see it: what is declared is planned, promoted, started under
MPS, routed, counted, measured, handed over, kept through failures and given back. Only the GPUs and the model server
are stand-ins. The tests are one story, each going on where the one before it ended.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from agents.processes import environment_of
from tests.integration.agents.whole_host import CLOCK_MHZ, NODE, POLICY, SECRET, SERVICE, WholeHost, send
from tests.standins.nvml.fixtures import compile_library

pytestmark = pytest.mark.integration

LOW_RPS, HIGH_RPS = 15.0, 40.0
EXCLUSIVE = 3
REQUESTS = 60
FREEZES_MAX = 5
GIVEN_BACK = {
    "clock_mhz_sm": None,
    "clock_mhz_memory": None,
    "power_limit_w": 70.0,
    "power_limit_w_default": 70.0,
    "compute_mode": 0,
}
TAKEN = GIVEN_BACK | {"clock_mhz_sm": CLOCK_MHZ, "compute_mode": EXCLUSIVE}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeHost]:
    found = WholeHost(compile_library(tmp_path_factory.mktemp("libnvidia-ml")))
    try:
        found.do("up", "--no-demo")
        yield found
    finally:
        found.close()


def answering(whole: WholeHost) -> set[int]:
    """The processes that the routes lead to."""
    return {pid for route in whole.replicas() for pid in send(route["endpoint"], 1)}


def test_what_is_declared_is_planned_started_routed_and_counted(whole: WholeHost) -> None:
    whole.apply("documents.yaml", f"{POLICY}---\nkind: project\nname: vision\n---\n{whole.profiles()}\n")
    assert whole.apply("service.yaml", whole.service(LOW_RPS)).split() == ["created", f"service/{SERVICE}"]
    whole.start_agent()
    whole.until("the service is routed", whole.replicas)
    whole.until("the node says that it holds its target", whole.applied)

    (wanted,), receipt = whole.wanted(), whole.receipt()
    (held,), (route,) = receipt["replicas"], whole.replicas()
    for field in ("share_pct_sm", "memory_mib_limit", "batch"):
        assert held[field] == wanted[field]
    assert held["sm_count"] == 40 * wanted["share_pct_sm"] // 100
    assert (held["uuid"], held["endpoint"]) == (wanted["device"], route["endpoint"])
    assert receipt["problems"] == []
    (pid,) = whole.pids()
    assert whole.host.mps.clients(held["uuid"]) == (pid,)
    assert whole.settings() == TAKEN

    rendered = whole.do("routes", "render", "haproxy")
    assert f"backend {SERVICE.replace('/', ':')}" in rendered
    assert f"127.0.0.1:{route['port']} weight 100" in rendered
    assert send(route["endpoint"], REQUESTS) == {pid}
    whole.until("the requests are counted", lambda: whole.completed() >= REQUESTS)
    # The warm-up is in nobody's numbers.
    assert whole.completed() == REQUESTS
    assert "1/1" in whole.do("status")


def test_a_secret_is_its_workers_alone(whole: WholeHost) -> None:
    """Neither the database's files, its log of writes among them, nor any log, state or answer has it."""
    (pid,) = whole.pids()
    assert (environment_of(pid) or {})["API_KEY"] == SECRET
    assert whole.value("SELECT count(*) FROM cycles") > 0
    files = {path: _content(path) for path in whole.folder.rglob("*") if path.is_file() and path != whole.secret}
    assert [path for path, content in files.items() if SECRET.encode() in content] == []
    told = [path for path, content in files.items() if str(whole.secret).encode() in content]
    assert {"target.json"} < {path.name for path in told}, "the reference is there"
    for words in (f"get service {SERVICE} -o json", "snapshot export", "routes list -o json", "get events -o json"):
        assert SECRET not in whole.do(*words.split())
    for route in ("receipts", "targets", "cycles"):
        assert SECRET not in json.dumps(whole.client.call("GET", f"/v1/{route}").body)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_what_a_worker_writes_is_read_from_anywhere(whole: WholeHost) -> None:
    lines = whole.do("logs", SERVICE, "--tail", "3").splitlines()
    assert [line.partition(" on ")[0] for line in lines] == [f"{SERVICE}#0: serving resnet50"]
    assert SECRET not in "".join(lines)


def test_a_service_with_a_worker_is_the_same_in_files_and_over_http(whole: WholeHost) -> None:
    printed = whole.do("get", "service", SERVICE, "-o", "yaml")
    assert whole.apply("printed.yaml", printed).split() == ["unchanged", f"service/{SERVICE}"]
    project, name = SERVICE.split("/")
    before = whole.client.get("service", project, name)
    after = whole.client.put("service", before.body, if_match=before.etag)
    assert (after.body, after.etag) == (before.body, before.etag)
    assert before.body["worker"]["warm_up"]["requests"] == 2

    wrong = json.loads(whole.service(LOW_RPS))
    wrong["worker"]["command"].append("--port={prot}")
    file = whole.folder / "wrong.yaml"
    file.write_text(json.dumps(wrong), encoding="utf-8")
    refused = whole.run("apply", "-f", str(file))
    assert refused.returncode == 2
    assert ": worker.command" in refused.stderr
    assert "unknown placeholder {prot}" in refused.stderr


def test_more_traffic_is_a_hand_over_to_a_larger_worker(whole: WholeHost) -> None:
    (first,), (old,), (pid,) = whole.wanted(), whole.replicas(), whole.pids()
    whole.apply("service.yaml", whole.service(HIGH_RPS))
    routed: list[list[str]] = []

    def handed_over() -> bool:
        routed.append([each["endpoint"] for each in whole.replicas()])
        return routed[-1] not in ([], [old["endpoint"]]) and whole.applied()

    whole.until("another worker serves", handed_over)
    (second,), (new,), receipt = whole.wanted(), whole.replicas(), whole.receipt()
    assert second["share_pct_sm"] > first["share_pct_sm"]
    assert new["endpoint"] != old["endpoint"]
    # Somebody was in the routes all the time, and nobody waited for room.
    assert all(routed)
    assert receipt["problems"] == []
    (other,) = whole.pids()
    assert other != pid
    assert send(new["endpoint"], 3) == {other}


def test_a_changed_worker_replaces_the_one_that_runs(whole: WholeHost) -> None:
    generation, (pid,) = whole.client.fleet()["generation"], whole.pids()
    whole.apply("service.yaml", whole.service(HIGH_RPS, step_ms=5.0))
    whole.until("another process serves", lambda: whole.applied() and answering(whole) not in (set(), {pid}))
    whole.until("the former one is gone", lambda: pid not in whole.pids())
    assert whole.client.fleet()["generation"] == generation + 1


def test_a_killed_agent_adopts_its_worker_and_measures_what_was_ordered_meanwhile(whole: WholeHost) -> None:
    (wanted,), workers, routes = whole.wanted(), whole.pids(), whole.replicas()
    whole.end_agent(signal.SIGKILL)
    assert whole.settings() == TAKEN
    ordered = json.loads(whole.do("profile", SERVICE, "--node", NODE, "--budget", "1m", "--no-wait", "-o", "json"))
    assert ordered["uuid"] != wanted["device"]
    before = whole.value("SELECT count(*) FROM profile_points")
    whole.start_agent()
    whole.until("the next agent holds the same", whole.heard)
    assert workers[0] in whole.pids()
    assert [each["endpoint"] for each in whole.replicas()] == [each["endpoint"] for each in routes]
    whole.until("a point is measured", lambda: whole.client.profile_run(ordered["id"])["measured"] > 0)
    whole.do("profiles", "cancel", str(ordered["id"]))
    whole.until("the device is free again", lambda: whole.host.pids(ordered["uuid"]) == [])
    assert whole.value("SELECT count(*) FROM profile_points") > before
    whole.until("what was learned is applied", whole.applied)


def test_without_its_control_plane_it_changes_nothing_and_keeps_workers_alive(whole: WholeHost) -> None:
    # From here on nothing shall move because it became a little cheaper by what was learned.
    whole.apply("policy.yaml", POLICY.replace("gain_usd_per_h_min: 0", "gain_usd_per_h_min: 1000"))
    # What was decided before may still move it: who is frozen within a hand-over has two workers, and is let go.
    for times in range(1, FREEZES_MAX + 1):
        whole.until("one worker holds the target", whole.settled)
        whole.signal_api(signal.SIGSTOP)
        whole.until("changes are frozen", partial(whole.told, "changes.frozen", times))
        if len(whole.pids()) == 1:
            break
        whole.signal_api(signal.SIGCONT)
        whole.until("changes are allowed again", partial(whole.told, "changes.thawed", times))
    try:
        (worker,) = whole.pids()
        os.kill(worker, signal.SIGKILL)
        whole.until("the worker is started again", lambda: whole.pids() not in ([], [worker]))
    finally:
        whole.signal_api(signal.SIGCONT)
    whole.until("changes are allowed again", partial(whole.told, "changes.thawed", times))
    whole.until("the new worker is routed", lambda: answering(whole) == set(whole.pids()))


def test_told_to_end_it_gives_devices_back_and_workers_go_on(whole: WholeHost) -> None:
    whole.until("one worker holds the target", whole.settled)
    (route,), workers = whole.replicas(), whole.pids()
    assert whole.settings() == TAKEN
    assert whole.end_agent(signal.SIGTERM) == 0
    assert whole.settings() == GIVEN_BACK
    assert send(route["endpoint"], 3) == set(workers)


def test_without_privilege_it_works_through_the_helper_which_cleans_up_after_it(whole: WholeHost) -> None:
    assert len(workers := whole.pids()) == 1
    whole.start_helper()
    whole.start_agent("--helper", str(whole.socket), privileged=False)
    whole.until("the agent of little privilege holds the same", whole.heard)
    assert whole.receipt()["problems"] == []
    assert whole.pids() == workers
    assert whole.settings() == TAKEN
    whole.end_agent(signal.SIGKILL)
    whole.until("the helper gives devices back", lambda: whole.settings() == GIVEN_BACK)
    assert whole.pids() == workers


def test_what_is_deleted_ends_and_nothing_is_left(whole: WholeHost) -> None:
    whole.start_agent("--helper", str(whole.socket), privileged=False)
    whole.until("the agent is back", whole.heard)
    whole.apply("policy.yaml", POLICY)
    whole.do("delete", "service", SERVICE)
    whole.until("no worker is left", lambda: whole.pids() == [])
    whole.until("the empty target is held", whole.applied)
    assert whole.end_agent(signal.SIGTERM) == 0
    whole.end_helper()
    assert whole.host.leftovers() == []
