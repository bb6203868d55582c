"""Daemons, parts and proofs on a host where everything goes right, in both protocols; and what the agent refuses."""

from __future__ import annotations

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agents.devices.parts import Sharing
from agents.errors import BusyError, NotFoundError, OutOfRangeError, SharingError
from agents.mps import MpsOptions, MpsSharing
from tests.integration.agents.mps.bench import Bench, part
from tests.standins.mps import GPUS, StandInGpu
from tests.waiting import wait_until

pytestmark = pytest.mark.integration
UUID, OTHER = GPUS[1].uuid, GPUS[0].uuid


def test_a_worker_gets_its_part_and_it_is_proved(bench: Bench) -> None:
    bench.sharing.open(UUID)
    order = part(UUID)
    environment = bench.sharing.grant(order)
    assert bench.sharing.check(order, ()).pending
    worker = bench.worker(environment)
    check = bench.sharing.check(order, (worker.pid,))
    assert (check.sm_count, check.problem, check.pending) == (46, "", False)
    assert worker.ask("sm") == "46"
    assert worker.ask("mib 900") == "ok"
    assert worker.ask("mib 200") == "error 2"
    assert bench.sharing.problem(UUID) == ""
    assert bench.sharing.running(UUID)


def test_workers_of_one_device_have_different_parts_and_other_devices_their_own_daemons(bench: Bench) -> None:
    orders = [part(UUID, "a", 25, 1000), part(UUID, "b", 50, 4000), part(OTHER, "c", 30, 2000)]
    for uuid in (UUID, OTHER):
        bench.sharing.open(uuid)
    environments = [bench.sharing.grant(order) for order in orders]
    workers = [bench.worker(environment) for environment in environments]
    assert [worker.ask("sm") for worker in workers] == ["46", "94", "32"]
    assert [worker.ask("mib 3000") for worker in workers] == ["error 2", "ok", "error 2"]
    checks = [bench.sharing.check(order, (worker.pid,)) for order, worker in zip(orders, workers, strict=True)]
    assert [(check.sm_count, check.problem) for check in checks] == [(46, ""), (94, ""), (32, "")]
    assert len(bench.host.daemons()) == 2
    assert bench.host.daemon_of(UUID) != bench.host.daemon_of(OTHER)


def test_what_is_well_is_not_asked_again_every_second(bench: Bench) -> None:
    bench.sharing.open(UUID)
    order = part(UUID)
    worker = bench.worker(bench.sharing.grant(order))
    assert bench.sharing.check(order, (worker.pid,)).problem == ""
    asked = len(bench.host.commands())
    for _ in range(20):
        bench.clock.pass_s(1.0)
        bench.sharing.open(UUID)
        assert bench.sharing.running(UUID)
        assert bench.sharing.problem(UUID) == ""
        assert bench.sharing.check(order, (worker.pid,)).problem == ""
    assert len(bench.host.commands()) == asked
    bench.clock.pass_s(300.0)
    assert bench.sharing.check(order, (worker.pid,)).problem == ""
    assert len(bench.host.commands()) > asked


def test_an_sm_count_is_probed_once_per_share_also_by_the_next_agent(bench: Bench) -> None:
    bench.sharing.open(UUID)
    first, second = part(UUID, "a"), part(UUID, "b", memory=500)
    workers = [bench.worker(bench.sharing.grant(order)) for order in (first, second)]
    assert bench.sharing.check(first, (workers[0].pid,)).sm_count == 46
    bench.sharing = bench.agent(probe_command=("/nowhere/probe",))
    assert bench.sharing.check(second, (workers[1].pid,)).sm_count == 46
    assert bench.sharing.check(first, (workers[0].pid,)).problem == ""


def test_a_process_outside_mps_is_seen_however_it_came_there(bench: Bench) -> None:
    bench.sharing.open(UUID)
    bench.sharing.open(OTHER)
    order = part(UUID)
    environment = dict(bench.sharing.grant(order))
    elsewhere = dict(bench.sharing.grant(part(OTHER, "w2")))
    nowhere = bench.worker({**environment, "CUDA_MPS_PIPE_DIRECTORY": "/nowhere"})
    assert nowhere.ask("sm") == "188"
    assert "runs outside MPS" in bench.sharing.check(order, (nowhere.pid,)).problem
    wrong_daemon = bench.worker(elsewhere)
    assert "runs outside MPS" in bench.sharing.check(order, (wrong_daemon.pid,)).problem
    good = bench.worker(environment)
    assert bench.sharing.check(order, (good.pid,)).problem == ""
    both = part(UUID, processes_max=2)
    assert "runs outside MPS" in bench.sharing.check(both, (good.pid, nowhere.pid)).problem


def test_a_client_with_another_part_than_its_own_is_seen(bench: Bench) -> None:
    bench.sharing.open(UUID)
    small, large = part(UUID, "small", 25, 1000), part(UUID, "large", 50, 2000)
    environments = [dict(bench.sharing.grant(order)) for order in (small, large)]
    stolen = bench.worker(environments[1])
    assert stolen.ask("sm") == "94"
    assert "was started with CUDA_MPS_" in bench.sharing.check(small, (stolen.pid,)).problem
    contradicting = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "90", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{OTHER}=1G"}
    for name, value in contradicting.items():
        worker = bench.worker({**environments[0], name: value})
        assert f"was started with {name}" in bench.sharing.check(small, (worker.pid,)).problem
        worker.end()


def test_more_processes_than_planned_each_with_the_whole_part_are_seen(bench: Bench) -> None:
    bench.sharing.open(UUID)
    one, two = part(UUID, "one"), part(UUID, "two", processes_max=2)
    for order, fine in ((one, False), (two, True)):
        environment = bench.sharing.grant(order)
        pids = tuple(bench.worker(environment).pid for _ in range(2))
        assert (bench.sharing.check(order, pids).problem == "") is fine
    assert "2 processes use the device, 1 were planned" in bench.sharing.check(one, pids).problem


def test_client_slots_are_counted_with_shadows_processes_and_connections(bench: Bench) -> None:
    sharing = bench.agent(client_slots={UUID: 8})
    sharing.open(UUID)
    sharing.grant(part(UUID, "a", 1, 100))
    sharing.grant(part(UUID, "a-shadow", 1, 100))
    sharing.grant(part(UUID, "b", 1, 100, processes_max=2))
    with pytest.raises(BusyError, match="4 client slots; 5 of 8 are taken"):
        sharing.grant(part(UUID, "c", 1, 100, processes_max=2, connections=4))
    sharing.grant(part(UUID, "c", 1, 100, processes_max=1, connections=5))
    with pytest.raises(BusyError):
        sharing.grant(part(UUID, "d", 1, 100))
    sharing.grant(part(UUID, "c", 2, 100, processes_max=1, connections=5))
    sharing.revoke(part(UUID, "a"))
    sharing.grant(part(UUID, "d", 1, 100))


def test_the_last_slot_is_left_to_the_probe(bench: Bench) -> None:
    bench.host.slots(3)
    sharing = bench.agent(client_slots={UUID: 3})
    sharing.open(UUID)
    orders = [part(UUID, "a", 10), part(UUID, "b", 20)]
    workers = [bench.worker(sharing.grant(order)) for order in orders]
    assert [sharing.check(o, (w.pid,)).sm_count for o, w in zip(orders, workers, strict=True)] == [18, 36]


def test_a_client_is_ended_before_it_may_be_killed(bench: Bench) -> None:
    bench.sharing.open(UUID)
    order, other = part(UUID), part(UUID, "w2")
    worker, neighbour = bench.worker(bench.sharing.grant(order)), bench.worker(bench.sharing.grant(other))
    bench.sharing.end_client(order, worker.pid)
    assert worker.ask("sync") == "error 810"
    assert bench.host.clients(UUID) == (neighbour.pid,)
    bench.sharing.end_client(order, worker.pid)
    bench.sharing.end_client(order, os.getpid())
    worker.kill()
    assert neighbour.ask("sync") == "ok"
    assert bench.host.abrupt() == ()
    neighbour.kill()
    bench.await_clients(UUID, 0)
    assert bench.host.abrupt() == (neighbour.pid,)


def test_a_daemon_with_clients_or_parts_is_not_shut_and_one_that_is_shut_leaves_nothing(bench: Bench) -> None:
    bench.sharing.open(UUID)
    order = part(UUID)
    worker = bench.worker(bench.sharing.grant(order))
    with pytest.raises(BusyError, match="still granted to w1"):
        bench.sharing.shut(UUID)
    bench.sharing.revoke(order)
    with pytest.raises(BusyError, match="still has clients"):
        bench.sharing.shut(UUID)
    worker.end()
    bench.await_clients(UUID, 0)
    bench.sharing.shut(UUID)
    bench.sharing.shut(UUID)
    assert bench.host.processes() == ()
    assert list(bench.host.pipe_base.iterdir()) == []
    assert not bench.sharing.running(UUID)
    assert bench.sharing.problem(UUID) == ""
    assert json.loads((bench.state / "mps.json").read_text())["daemons"] == {}
    bench.sharing.open(UUID)
    assert bench.sharing.running(UUID)


def test_a_client_that_has_just_ended_does_not_keep_a_daemon(bench: Bench) -> None:
    bench.sharing.open(UUID)
    order = part(UUID)
    worker = bench.worker(bench.sharing.grant(order))
    bench.sharing.revoke(order)
    bench.host.linger(0.5)
    worker.end()
    bench.sharing.shut(UUID)
    assert bench.host.processes() == ()


def test_a_daemon_outlives_its_agent_and_is_adopted_with_what_it_holds(bench: Bench) -> None:
    bench.sharing.open(UUID)
    order = part(UUID)
    worker = bench.worker(bench.sharing.grant(order))
    daemon = bench.host.daemon_of(UUID)
    bench.restart_agent()
    assert bench.sharing.running(UUID)
    bench.sharing.open(UUID)
    assert bench.host.daemons() == (daemon,)
    assert bench.sharing.check(order, (worker.pid,)).problem == ""
    with pytest.raises(BusyError):
        bench.sharing.shut(UUID)


def test_an_agent_without_its_file_finds_daemons_and_workers_again(bench: Bench) -> None:
    bench.sharing.open(UUID)
    order = part(UUID)
    worker = bench.worker(bench.sharing.grant(order))
    (bench.state / "mps.json").write_text("{")
    bench.restart_agent()
    assert "mps.json" in bench.sharing.state_lost
    bench.sharing.open(UUID)
    assert bench.sharing.check(order, (worker.pid,)).problem == ""
    bench.host.crash_daemon(UUID)
    bench.sharing.open(UUID)
    again = bench.worker(dict(bench.sharing.grant(order)))
    assert again.ask("sm") == "46"


def test_a_daemon_is_started_for_one_device_in_a_session_of_its_own_and_private_directories(bench: Bench) -> None:
    bench.sharing.open(UUID)
    pid = bench.host.daemon_of(UUID)
    told = dict(
        pair.split("=", 1) for pair in Path(f"/proc/{pid}/environ").read_text().split("\0") if pair.startswith("CUDA")
    )
    assert told.pop("CUDA_VISIBLE_DEVICES") == UUID
    assert told.pop("CUDA_MPS_PROTOCOL_VERSION") == bench.protocol
    assert os.getsid(pid) != os.getsid(0)
    assert Path(f"/proc/{pid}").stat().st_uid == os.getuid()
    directories = [Path(path) for path in told.values()]
    assert len(directories) == 2
    assert [stat.S_IMODE(path.stat().st_mode) for path in directories] == [0o700, 0o700]
    assert len(directories[0].name) == 8


def test_a_pipe_directory_too_long_for_a_socket_is_refused_at_once(bench: Bench) -> None:
    fits = (
        107
        - len("/12345678")
        - (len("/gpu/w_123456789012") if bench.protocol == "3" else 0)
        - len("/control_privileged")
    )
    base = "/tmp/" + "x" * (fits - 5 + 1)
    with pytest.raises(SharingError, match="too long"):
        bench.agent(pipe_base=Path(base)).open(UUID)
    assert not Path(base).exists()
    assert bench.host.daemons() == ()


def test_a_mig_device_is_divided_like_a_whole_one(bench: Bench) -> None:
    mig = "MIG-0a0a0a0a-1b1b-2c2c-3d3d-4e4e4e4e4e4e"
    bench.host.add(StandInGpu(uuid=mig, sms=14, memory_mib=9856))
    found = bench.agent(client_slots={mig: 6})
    found.open(mig)
    orders = [part(mig, "a", 50), part(mig, "b", 30)]
    workers = [bench.worker(found.grant(order)) for order in orders]
    checks = [found.check(order, (worker.pid,)) for order, worker in zip(orders, workers, strict=True)]
    assert [(check.sm_count, check.problem) for check in checks] == [(6, ""), (4, "")]


def test_clients_are_ended_beside_everything_else(bench: Bench) -> None:
    bench.sharing.open(UUID)
    orders = [part(UUID, f"w{n}", 10, 100) for n in range(6)]
    workers = [bench.worker(bench.sharing.grant(order)) for order in orders]
    with ThreadPoolExecutor(6) as pool:
        ended = [pool.submit(bench.sharing.end_client, o, w.pid) for o, w in zip(orders[:5], workers[:5], strict=True)]
        for n in range(5):
            bench.sharing.grant(part(UUID, f"more{n}", 10 + n, 100))
            assert bench.sharing.check(orders[5], (workers[5].pid,)).problem == ""
        assert [future.result() for future in ended] == [None] * 5
    assert bench.host.clients(UUID) == (workers[5].pid,)


def test_parts_that_are_none_and_devices_that_are_not_there_are_refused(bench: Bench) -> None:
    with pytest.raises(SharingError):
        bench.sharing.grant(part(UUID))
    bench.sharing.open(UUID)
    for wrong in (part(UUID, share=0), part(UUID, share=101), part(UUID, memory=0)):
        with pytest.raises(OutOfRangeError):
            bench.sharing.grant(wrong)
    with pytest.raises(NotFoundError):
        bench.sharing.open("GPU-nowhere")


@pytest.mark.parametrize(("version", "protocol"), [("13.4", "3"), ("13.1", "2"), ("what?", "2")])
def test_auto_takes_protocol_3_where_the_driver_has_it(bench: Bench, version: str, protocol: str) -> None:
    (bench.host.root / "bin" / "version").write_text(f"CUDA MPS {version}\n")
    sharing: Sharing = MpsSharing(
        MpsOptions(
            state_dir=bench.state,
            pipe_base=bench.host.pipe_base,
            control_binary=bench.host.control_binary,
            protocol="auto",
            sm_counts=bench.host.sm_counts,
            client_slots={UUID: 48},
            probe_command=bench.host.probe_command,
        ),
        bench.clock,
    )
    sharing.open(UUID)
    environment = sharing.grant(part(UUID))
    assert ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in environment) is (protocol == "2")
    wait_until(lambda: sharing.running(UUID), "the daemon")


def test_a_daemon_of_the_other_protocol_is_spoken_to_in_its_own(bench: Bench) -> None:
    bench.sharing.open(UUID)
    order = part(UUID)
    worker = bench.worker(bench.sharing.grant(order))
    other = bench.agent(protocol="3" if bench.protocol == "2" else "2")
    other.open(UUID)
    assert other.check(order, (worker.pid,)).problem == ""
    assert ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in other.grant(part(UUID, "w2"))) is (bench.protocol == "2")


def test_workers_of_several_users_are_proved_where_the_daemon_takes_all(bench: Bench) -> None:
    orders = [part(UUID, "a"), part(UUID, "b")]

    def pids() -> list[int]:
        given = [{**bench.sharing.grant(order), "STANDIN_CUDA_UID": f"{1000 + at}"} for at, order in enumerate(orders)]
        return [bench.worker(environment).pid for environment in given]

    bench.sharing = bench.agent(many_users=True)
    bench.sharing.open(UUID)
    checks = [bench.sharing.check(order, (pid,)) for order, pid in zip(orders, pids(), strict=True)]
    assert [(check.sm_count, check.problem) for check in checks] == [(46, ""), (46, "")]
    # Whoever it is finds the way, and may not change it.
    (pipe,) = bench.host.pipe_base.iterdir()
    assert stat.S_IMODE(pipe.stat().st_mode) == 0o755


def test_whoever_made_the_folder_of_pipes_all_users_find_through_it(bench: Bench) -> None:
    # As by an agent that was killed before it had opened the folder, or was of one user.
    base = bench.host.pipe_base / "p"
    base.mkdir(0o700)
    bench.sharing = bench.agent(many_users=True, pipe_base=base)
    bench.sharing.open(UUID)
    assert stat.S_IMODE(base.stat().st_mode) & 0o011 == 0o011
    bench.sharing.shut(UUID)


def test_a_daemon_of_before_that_serves_one_user_is_left_to_its_workers(bench: Bench) -> None:
    bench.sharing.open(UUID)
    order = part(UUID)
    worker = bench.worker(bench.sharing.grant(order))
    assert bench.sharing.check(order, (worker.pid,)).problem == ""
    bench.sharing.close()
    bench.sharing = bench.agent(many_users=True)
    with pytest.raises(SharingError, match="serves one user alone"):
        bench.sharing.open(UUID)
    assert bench.sharing.check(order, (worker.pid,)).problem == ""
