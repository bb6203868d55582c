"""What goes wrong with MPS, in both protocols: crashes, faults, slowness, lies; nothing of it may go unnoticed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from agents.errors import DeviceError, DeviceTimeoutError, NotSupportedError, SharingError, StateFileError
from agents.mps import daemon, proofs, protocols, sharing
from agents.mps.protocols import namespace_of
from agents.state import StateDirectory
from tests.integration.agents.mps.bench import Bench, part
from tests.standins.mps import GPUS, StandInGpu
from tests.waiting import wait_until

pytestmark = pytest.mark.integration
UUID, OTHER = GPUS[1].uuid, GPUS[0].uuid


SHORT_S = 0.2
ANSWER, START, LEAVE, END = (
    (protocols, "COMMAND_TIMEOUT_S"),
    (daemon, "START_S"),
    (sharing, "LEAVE_S"),
    (daemon, "END_S"),
)


@contextmanager
def impatient(*limits: tuple[ModuleType, str]) -> Iterator[None]:
    """Wait less long for what a planted fault keeps from coming; everything else may take what a busy host takes."""
    with pytest.MonkeyPatch.context() as patched:
        for module, name in limits:
            patched.setattr(module, name, SHORT_S)
        yield


def test_after_a_crash_workers_are_told_apart_and_all_parts_are_held_again(bench: Bench) -> None:
    bench.sharing.open(UUID)
    orders = [part(UUID, "a", 25, 1000), part(UUID, "b", 50, 2000)]
    environments = [bench.sharing.grant(order) for order in orders]
    old = bench.worker(environments[0])
    assert bench.sharing.check(orders[0], (old.pid,)).problem == ""
    bench.host.crash_daemon(UUID)
    assert not bench.sharing.running(UUID)
    assert "down" in bench.sharing.problem(UUID)
    assert "down" in bench.sharing.check(orders[0], (old.pid,)).problem
    with pytest.raises(SharingError, match="down"):
        bench.sharing.grant(part(UUID, "c"))
    bench.restart_agent()
    assert "down" in bench.sharing.problem(UUID)
    bench.sharing.open(UUID)
    assert bench.sharing.problem(UUID) == ""
    assert "outside MPS" in bench.sharing.check(orders[0], (old.pid,)).problem
    bench.sharing.end_client(orders[0], old.pid)
    workers = [bench.worker(environment) for environment in environments]
    assert [worker.ask("sm") for worker in workers] == ["46", "94"]
    checks = [bench.sharing.check(order, (worker.pid,)) for order, worker in zip(orders, workers, strict=True)]
    assert [check.problem for check in checks] == ["", ""]


def test_on_a_full_disk_nothing_more_is_given_and_all_that_was_is_taken_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.sharing.open(UUID)
    order = part(UUID, "a")
    worker = bench.worker(bench.sharing.grant(order))

    def full(state: StateDirectory, name: str, text: str) -> None:
        raise StateFileError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(StateDirectory, "write_text", full)
        with pytest.raises(SharingError):
            bench.sharing.grant(part(UUID, "b"))
        wait_until(lambda: not bench.sharing.check(order, (worker.pid,)).pending, "its limits are proved")
        worker.kill()
        bench.await_clients(UUID, 0)
        bench.sharing.revoke(order)
        bench.sharing.shut(UUID)
        assert not bench.sharing.running(UUID)
    bench.sharing.open(UUID)
    bench.restart_agent()
    bench.sharing.shut(UUID)


def test_a_pid_used_again_by_another_process_is_not_taken_for_the_daemon(bench: Bench) -> None:
    bench.sharing.open(UUID)
    bench.host.crash_daemon(UUID)
    (pipe,) = bench.host.pipe_base.iterdir()
    (pipe / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))
    assert not bench.sharing.running(UUID)
    bench.sharing.open(OTHER)
    (pipe / "nvidia-cuda-mps-control.pid").write_text(str(bench.host.daemon_of(OTHER)))
    assert not bench.sharing.running(UUID)
    bench.sharing.open(UUID)
    assert len(bench.host.daemons()) == 2


def test_a_server_that_died_is_started_anew_and_its_clients_are_seen(bench: Bench) -> None:
    bench.sharing.open(UUID)
    order = part(UUID)
    environment = bench.sharing.grant(order)
    old = bench.worker(environment)
    assert bench.sharing.check(order, (old.pid,)).problem == ""
    bench.host.crash_server(UUID)
    assert bench.sharing.problem(UUID) == "it has no server"
    assert "outside MPS" in bench.sharing.check(order, (old.pid,)).problem
    bench.sharing.open(UUID)
    assert bench.sharing.problem(UUID) == ""
    again = bench.worker(environment)
    assert again.ask("sm") == "46"
    assert bench.sharing.check(order, (again.pid,)).problem == ""


def test_another_agent_sees_a_server_die_that_it_has_not_opened(bench: Bench) -> None:
    bench.sharing.open(UUID)
    order = part(UUID)
    worker = bench.worker(bench.sharing.grant(order))
    bench.restart_agent()
    assert bench.sharing.check(order, (worker.pid,)).problem == ""
    bench.host.crash_server(UUID)
    assert "outside MPS" in bench.sharing.check(order, (worker.pid,)).problem


def test_a_server_that_outlived_its_daemon_is_ended_once_nobody_is_on_it(bench: Bench) -> None:
    bench.host.orphans()
    bench.sharing.open(UUID)
    order = part(UUID)
    worker = bench.worker(bench.sharing.grant(order))
    bench.host.crash_daemon(UUID)
    orphans = bench.host.processes()
    assert len(orphans) == 1
    bench.restart_agent()
    with pytest.raises(SharingError, match=f"must end: {worker.pid}"):
        bench.sharing.open(UUID)
    worker.kill()
    bench.sharing.open(UUID)
    assert orphans[0] not in bench.host.processes()
    assert len(bench.host.processes()) == 2


def test_a_fault_is_told_and_nothing_starts_until_all_its_clients_have_ended(bench: Bench) -> None:
    bench.sharing.open(UUID)
    bench.sharing.open(OTHER)
    order, neighbour = part(UUID), part(OTHER, "w2")
    worker, beside = bench.worker(bench.sharing.grant(order)), bench.worker(bench.sharing.grant(neighbour))
    bench.host.fault(UUID)
    assert worker.ask("sync") == "error 719"
    assert beside.ask("sync") == "ok"
    with pytest.raises(SharingError, match="in fault"):
        bench.sharing.grant(part(UUID, "late"))
    assert "in fault" in bench.sharing.problem(UUID)
    assert bench.sharing.problem(OTHER) == ""
    with pytest.raises(SharingError, match="in fault"):
        bench.sharing.open(UUID)
    worker.end()
    bench.await_clients(UUID, 0)
    bench.sharing.open(UUID)
    assert bench.sharing.problem(UUID) == ""
    assert bench.worker(bench.sharing.grant(order)).greeting == "open"


def test_a_fault_is_noticed_in_time_without_anybody_starting(bench: Bench) -> None:
    bench.sharing.open(UUID)
    bench.worker(bench.sharing.grant(part(UUID)))
    bench.host.fault(UUID)
    bench.clock.pass_s(daemon.LOOK_S)
    assert "in fault" in bench.sharing.problem(UUID)


def refusal(action: Callable[[], object]) -> str:
    """What an action fails with; empty when it does not."""
    try:
        action()
    except DeviceError as error:
        return str(error)
    return ""


def test_a_daemon_that_starts_slowly_does_not_hold_the_agent_up(bench: Bench) -> None:
    bench.host.slow_start()
    with impatient(START), pytest.raises(SharingError, match="starting"):
        bench.sharing.open(UUID)
    assert not bench.sharing.running(UUID)
    wait_until(bench.host.daemons, "the daemon's process")
    bench.host.heal()
    bench.sharing.open(UUID)
    assert len(bench.host.daemons()) == 1
    assert bench.sharing.running(UUID)


def test_a_server_that_does_not_take_clients_yet_is_waited_for(bench: Bench) -> None:
    bench.host.slow_server(0.5)
    bench.sharing.open(UUID)
    bench.sharing.grant(part(UUID))
    bench.host.crash_server(UUID)
    bench.host.slow_server(3600.0)
    with impatient(START):
        with pytest.raises(SharingError, match="does not accept clients yet"):
            bench.sharing.open(UUID)
        with pytest.raises(SharingError):
            bench.sharing.grant(part(UUID, "late"))


def test_a_server_that_is_created_and_dies_is_not_believed(bench: Bench) -> None:
    unknown = "GPU-ffffffff-0000-0000-0000-000000000000"
    found = bench.agent(sm_counts={unknown: 10}, client_slots={unknown: 48})
    with impatient(START):
        wait_until(lambda: "starting" not in refusal(lambda: found.open(unknown)), "the daemon")
        with pytest.raises(SharingError, match="no server"):
            found.open(unknown)
        with pytest.raises(SharingError):
            found.grant(part(unknown))
    found.shut(unknown)
    assert bench.host.processes() == ()


def test_a_hung_daemon_is_told_and_no_reason_to_stop_what_was_proved(bench: Bench) -> None:
    bench.sharing.open(UUID)
    order, new = part(UUID), part(UUID, "new")
    worker, unproved = (bench.worker(bench.sharing.grant(each)) for each in (order, new))
    assert bench.sharing.check(order, (worker.pid,)).problem == ""
    bench.host.hang("get" if bench.protocol == "2" else "client")
    bench.clock.pass_s(proofs.PROOF_S)
    with impatient(ANSWER, LEAVE):
        check = bench.sharing.check(order, (worker.pid,))
        assert (check.problem, check.pending, check.sm_count) == ("", False, 46)
        check = bench.sharing.check(new, (unproved.pid,))
        assert (check.problem, check.pending) == ("", True)
        with pytest.raises(DeviceTimeoutError):
            bench.sharing.end_client(order, worker.pid)
        bench.host.hang("get" if bench.protocol == "2" else "server")
        bench.clock.pass_s(daemon.LOOK_S)
        assert "does not answer" in bench.sharing.problem(UUID)
        assert not bench.sharing.running(UUID)
    bench.host.heal()
    assert "does not answer" in bench.sharing.problem(UUID)
    bench.clock.pass_s(max(daemon.TROUBLE_LOOK_S, proofs.SILENCE_S))
    assert bench.sharing.problem(UUID) == ""
    assert bench.sharing.check(new, (unproved.pid,)).problem == ""


def test_a_daemon_that_does_not_take_its_limits_lets_no_worker_start(bench: Bench) -> None:
    bench.sharing.open(UUID)
    bench.sharing.grant(part(UUID, "first", 10, 100))
    two = "set_default_active_thread_percentage"
    bench.host.say(two if bench.protocol == "2" else "namespace set", "error: cannot do that now")
    with pytest.raises(SharingError, match="cannot do that now"):
        bench.sharing.grant(part(UUID, "second"))
    bench.host.say(two if bench.protocol == "2" else "namespace set", "")
    with pytest.raises(SharingError, match="does not hold"):
        bench.sharing.grant(part(UUID, "second"))
    bench.host.heal()
    bench.restart_agent()
    bench.sharing.open(UUID)
    assert bench.worker(bench.sharing.grant(part(UUID, "second"))).ask("sm") == "46"


def test_a_limit_changed_behind_the_agents_back_is_seen(bench: Bench) -> None:
    bench.sharing.open(UUID)
    order = part(UUID)
    worker = bench.worker(bench.sharing.grant(order))
    if bench.protocol == "2":
        server = bench.host.ask(UUID, stdin="get_server_list\n").strip()
        bench.host.ask(UUID, stdin=f"set_active_thread_percentage {server} 5\n")
    else:
        bench.host.ask(UUID, "namespace", "set", namespace_of("w1"), "--server=gpu", "--active-thread-percentage=90")
    assert "of the SMs" in bench.sharing.check(order, (worker.pid,)).problem


def test_a_client_that_does_not_leave_is_not_called_gone(bench: Bench) -> None:
    bench.sharing.open(UUID)
    order = part(UUID)
    worker = bench.worker(bench.sharing.grant(order))
    bench.host.say("terminate_client" if bench.protocol == "2" else "client terminate", "")
    with impatient(LEAVE), pytest.raises(DeviceTimeoutError, match="still a client"):
        bench.sharing.end_client(order, worker.pid)
    bench.host.say("terminate_client" if bench.protocol == "2" else "client terminate", "error: not now")
    with pytest.raises(SharingError, match="not now"):
        bench.sharing.end_client(order, worker.pid)
    bench.host.heal()
    bench.sharing.end_client(order, worker.pid)
    assert bench.host.clients(UUID) == ()


def test_a_daemon_that_does_not_quit_is_ended(bench: Bench) -> None:
    bench.sharing.open(UUID)
    bench.host.say("quit" if bench.protocol == "2" else "-q", "")
    with impatient(END):
        refused = refusal(lambda: bench.sharing.shut(UUID))
    if refused:  # beside other work its processes may take longer to end than we waited
        bench.sharing.shut(UUID)
    assert bench.host.processes() == ()
    assert list(bench.host.pipe_base.iterdir()) == []


def test_a_stopped_daemon_that_crashed_is_shut_all_the_same(bench: Bench) -> None:
    bench.sharing.open(UUID)
    bench.host.crash_daemon(UUID)
    bench.sharing.shut(UUID)
    assert list(bench.host.pipe_base.iterdir()) == []
    assert bench.sharing.problem(UUID) == ""


def test_a_share_that_comes_out_wrong_is_a_bypass(bench: Bench) -> None:
    bench.sharing.open(UUID)
    found = bench.agent(sm_counts={UUID: 20})
    order = part(UUID)
    worker = bench.worker(found.grant(order))
    assert "came out as 46" in found.check(order, (worker.pid,)).problem
    told = len(bench.host.commands())
    assert "came out as 46" in found.check(order, (worker.pid,)).problem
    assert len(bench.host.commands()) > told


def test_a_worker_nobody_can_probe_has_to_go_after_some_tries(bench: Bench) -> None:
    bench.sharing.open(UUID)
    found = bench.agent(probe_command=("/nowhere/probe",))
    order = part(UUID)
    worker = bench.worker(found.grant(order))
    for _ in range(proofs.PROBES_MAX - 1):
        for _ in range(2):
            check = found.check(order, (worker.pid,))
            assert (check.pending, check.problem) == (True, "")
        bench.clock.pass_s(proofs.PROBE_RETRY_S)
    check = found.check(order, (worker.pid,))
    assert (check.pending, "nobody knows how many SMs" in check.problem) == (False, True)


def test_a_process_that_ended_meanwhile_is_no_bypass(bench: Bench) -> None:
    bench.sharing.open(UUID)
    order = part(UUID)
    worker = bench.worker(bench.sharing.grant(order))
    worker.end()
    check = bench.sharing.check(order, (worker.pid,))
    assert (check.pending, check.problem) == (True, "")


def test_a_host_without_mps_says_so(bench: Bench) -> None:
    found = bench.agent(control_binary="/nowhere/nvidia-cuda-mps-control")
    with pytest.raises(NotSupportedError):
        found.open(UUID)
    assert not found.running(UUID)


def test_with_the_device_reserved_for_mps_a_stray_cannot_open_it(bench: Bench) -> None:
    bench.host.exclusive(UUID, True)
    bench.sharing.open(UUID)
    worker = bench.worker(bench.sharing.grant(part(UUID)))
    assert worker.greeting == "open"
    stray = bench.worker({"CUDA_VISIBLE_DEVICES": UUID, "CUDA_MPS_PIPE_DIRECTORY": "/nowhere"})
    assert stray.greeting == "error 46"


def test_a_log_that_has_grown_large_is_put_aside_while_the_daemon_lives(bench: Bench) -> None:
    bench.sharing.open(UUID)
    (logs,) = (bench.state / "mps-logs").iterdir()
    log = logs / "control.log"
    with log.open("ab") as file:
        # A daemon that was cut before goes on behind a hole.
        file.truncate(4 * daemon.LOG_BYTES_MAX)
        file.seek(0, os.SEEK_END)
        file.write(b"x" * daemon.LOG_BYTES_MAX + b"last words")
    bench.clock.pass_s(daemon.LOOK_S)
    assert bench.sharing.running(UUID)
    assert log.stat().st_size < 1000
    kept = (logs / "control.log.old").read_bytes()
    assert (len(kept), kept[-10:]) == (daemon.LOG_BYTES_MAX, b"last words")


def test_a_log_of_nothing_but_a_hole_is_left_alone(bench: Bench) -> None:
    bench.sharing.open(UUID)
    (logs,) = (bench.state / "mps-logs").iterdir()
    with (logs / "server.log").open("ab") as file:
        file.truncate(4 * daemon.LOG_BYTES_MAX)
    bench.clock.pass_s(daemon.LOOK_S)
    assert bench.sharing.running(UUID)
    assert not (logs / "server.log.old").exists()


def test_a_stopped_daemon_answers_again_after_it_goes_on(bench: Bench) -> None:
    bench.sharing.open(UUID)
    pid = bench.host.daemon_of(UUID)
    os.kill(pid, signal.SIGSTOP)
    try:
        bench.clock.pass_s(daemon.LOOK_S)
        with impatient(ANSWER, START):
            assert not bench.sharing.running(UUID)
            with pytest.raises(DeviceError):
                bench.sharing.open(UUID)
    finally:
        os.kill(pid, signal.SIGCONT)
    bench.sharing.open(UUID)
    assert bench.host.daemons() == (pid,)


def test_shares_are_rounded_to_what_the_hardware_divides(tmp_path: Path) -> None:
    gpu = StandInGpu(uuid=UUID, sms=132, granularity=8)
    bench = Bench(tmp_path, "2")
    try:
        bench.host.add(gpu)
        found = bench.agent()
        found.open(UUID)
        expected = {10: 8, 33: 40, 50: 64, 99: 128, 100: 132}
        for share, sm_count in expected.items():
            order = part(UUID, f"w{share}", share)
            worker = bench.worker(found.grant(order))
            assert found.check(order, (worker.pid,)).sm_count == sm_count
    finally:
        bench.close()
