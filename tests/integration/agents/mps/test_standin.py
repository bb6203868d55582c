"""The stand-in says what the real thing says, and has its traps: what a setting reaches, what voids a limit, who may
come.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.standins.mps import GPUS, MpsStandIn, StandInGpu, StandInWorker
from tests.unit.agents.mps.test_recorded import recorded
from tests.waiting import wait_until

pytestmark = pytest.mark.integration
GPU = GPUS[0]
UUID = GPU.uuid


H100 = StandInGpu(uuid="GPU-00000000-0000-0000-0000-000000000001", sms=132, memory_mib=81079)


class Daemon:
    """A daemon started by hand."""

    def __init__(self, host: MpsStandIn, protocol: int, visible: str = UUID) -> None:
        self.host, self.uuid = host, visible
        self.pipe = host.pipe_base / "d"
        self.pipe.mkdir()
        environment = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_VISIBLE_DEVICES": visible,
            "CUDA_MPS_LOG_DIRECTORY": str(host.root),
        }
        command = [host.control_binary, "-d", *(["-p", "3"] if protocol == 3 else [])]
        subprocess.run(command, env=environment, check=True)
        wait_until((self.pipe / "control").exists, "the daemon")

    def say(self, *lines: str) -> str:
        """Commands of protocol 2."""
        return self.host.ask(self.uuid, stdin="\n".join(lines) + "\n").strip()

    def run(self, command: str) -> str:
        """A command of protocol 3."""
        return self.host.ask(UUID, *command.split()).strip()

    def worker(self, at: str = "", **environment: str) -> StandInWorker:
        """A client, by default without limits of its own."""
        known = {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe / at), "CUDA_VISIBLE_DEVICES": self.uuid}
        return StandInWorker(self.host, {**known, **environment})

    def sm_count(self, at: str = "", **environment: str) -> int:
        """What such a client gets."""
        worker = self.worker(at, **environment)
        found = int(worker.ask("sm"))
        worker.end()
        return found

    def fits(self, mib: int, at: str = "", **environment: str) -> bool:
        """Whether such a client can have so much memory."""
        worker = self.worker(at, **environment)
        found = worker.ask(f"mib {mib}")
        worker.end()
        return found == "ok"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[MpsStandIn]:
    """A host."""
    with MpsStandIn(tmp_path) as found:
        yield found


def share(percent: int) -> dict[str, str]:
    """A client's own cap."""
    return {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent)}


def memory(text: str) -> dict[str, str]:
    """A client's own limit."""
    return {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": text}


@pytest.fixture
def h100(tmp_path: Path) -> Iterator[MpsStandIn]:
    """A host with the GPU that was recorded."""
    with MpsStandIn(tmp_path, (H100,)) as found:
        yield found


@pytest.mark.parametrize("name", ["started", "limits"])
def test_it_says_word_for_word_what_an_h100_said(h100: MpsStandIn, name: str) -> None:
    daemon = Daemon(h100, 2, H100.uuid)
    workers: dict[str, StandInWorker] = {}
    names = {"1000": str(os.getuid())}
    for asked, said in recorded(name):
        if asked == "get_client_list 701" and said:
            workers = {pid: daemon.worker() for pid in said.split()}
            names |= {pid: str(worker.pid) for pid, worker in workers.items()}
        if "701" in asked + said and "701" not in names:
            names["701"] = daemon.say("get_server_list")
        told = " ".join(names.get(word, word) for word in asked.split())
        assert columns(daemon.say(told)) == columns(said, names), asked
    for worker in workers.values():
        worker.end()


def columns(text: str, names: Mapping[str, str] | None = None) -> list[list[str]]:
    """What stands in the lines, whoever runs: numbers of processes are known, and their commands' names are all one."""
    lines = [re.split(r"(\W)", line) for line in re.sub(r"python\S*", "python3", text).splitlines()]
    parts = [[(names or {}).get(part, part) for part in line] for line in lines]
    return [re.split(r"  +", "".join(line).strip()) for line in parts]


@pytest.mark.parametrize(
    ("percent", "sms"), [(10, 12), (15, 18), (20, 26), (25, 32), (30, 38), (50, 66), (75, 98), (100, 132)]
)
def test_shares_are_rounded_as_on_an_h100(h100: MpsStandIn, percent: int, sms: int) -> None:
    assert Daemon(h100, 2, H100.uuid).sm_count(**share(percent)) == sms


def test_it_leaves_the_files_that_a_real_one_leaves(h100: MpsStandIn) -> None:
    daemon = Daemon(h100, 2, H100.uuid)
    kinds = {path.name: stat.filemode(path.lstat().st_mode)[0] for path in daemon.pipe.iterdir()}
    files = {"control": "s", "control_lock": "-", "control_privileged": "s", "log": "p"}
    assert kinds == {**files, "nvidia-cuda-mps-control.pid": "-"}
    assert (daemon.pipe / "nvidia-cuda-mps-control.pid").read_text() == str(h100.daemons()[0])


def test_it_quits_when_its_last_client_has_left(h100: MpsStandIn) -> None:
    daemon = Daemon(h100, 2, H100.uuid)
    worker = daemon.worker()
    daemon.say("quit")
    assert worker.ask("sync") == "ok"
    assert h100.daemons()
    worker.end()
    wait_until(lambda: not h100.processes(), "the end")


def test_defaults_reach_the_next_server_and_a_servers_settings_its_next_clients(host: MpsStandIn) -> None:
    daemon = Daemon(host, 2)
    early = daemon.worker()
    daemon.say("set_default_active_thread_percentage 50")
    assert daemon.sm_count() == 108
    server = daemon.say("get_server_list")
    daemon.say(f"set_active_thread_percentage {server} 30")
    assert daemon.sm_count() == 32
    assert early.ask("sm") == "108"
    early.end()
    host.crash_server(UUID)
    assert daemon.sm_count() == 54


def test_a_client_can_only_lower_what_it_gets_in_protocol_2(host: MpsStandIn) -> None:
    daemon = Daemon(host, 2)
    daemon.say("set_default_active_thread_percentage 50", "set_default_device_pinned_mem_limit 0 2G")
    assert (daemon.sm_count(**share(25)), daemon.sm_count(**share(90))) == (26, 54)
    assert not daemon.fits(2500, **memory(f"{UUID}=4G"))
    assert not daemon.fits(1500, **memory("0=1G"))
    assert daemon.fits(1500)


def test_device_names_are_not_checked_and_a_strange_one_voids_a_clients_limits(host: MpsStandIn) -> None:
    daemon = Daemon(host, 2)
    assert (
        daemon.say("set_default_device_pinned_mem_limit GPU-typo 1G", "get_default_device_pinned_mem_limit GPU-typo")
        == "1G"
    )
    assert daemon.fits(2000)
    daemon.say("set_device_pinned_mem_limit " + daemon.say("get_server_list") + " 0 1G")
    assert not daemon.fits(2000)
    assert daemon.fits(2000, **memory(f"{UUID}=1G,{GPUS[1].uuid}=1G"))


def test_a_client_that_finds_no_daemon_runs_unlimited(host: MpsStandIn) -> None:
    worker = StandInWorker(host, {"CUDA_MPS_PIPE_DIRECTORY": "/nowhere", "CUDA_VISIBLE_DEVICES": UUID, **share(25)})
    assert (worker.greeting, worker.ask("sm"), worker.ask("mib 40000")) == ("open", "108", "ok")
    worker.end()


def test_a_namespace_replaces_the_environments_share_and_an_empty_one_is_the_whole_device(host: MpsStandIn) -> None:
    daemon = Daemon(host, 3)
    daemon.run(f"server create gpu --allowed-devices={UUID}")
    daemon.run("server set gpu --active-thread-percentage=20")
    for name in ("empty", "half"):
        daemon.run(f"namespace create {name} --server=gpu")
    daemon.run("namespace set half --server=gpu --active-thread-percentage=50 --pinned-memory-limit=1G")
    assert daemon.sm_count("gpu/empty") == 108
    assert daemon.sm_count("gpu/half", **share(10)) == 54
    assert daemon.sm_count("gpu") == 20
    assert not daemon.fits(1500, "gpu/half")
    assert daemon.fits(1500, "gpu/half", **memory(f"{GPUS[1].uuid}=1G"))
    assert "error" in daemon.run("namespace create Big --server=gpu")


def test_a_server_for_a_device_that_is_not_there_is_created_and_dies(host: MpsStandIn) -> None:
    daemon = Daemon(host, 3)
    assert "created" in daemon.run("server create gpu --allowed-devices=GPU-typo")
    assert daemon.run("server list --format=csv,noheader") == ""
    assert daemon.sm_count("gpu") == 108


def test_another_user_waits_in_protocol_2_and_is_refused_in_protocol_3(host: MpsStandIn) -> None:
    daemon = Daemon(host, 2)
    first = daemon.worker()
    server = daemon.say("get_server_list")
    found: list[StandInWorker] = []
    other = threading.Thread(target=lambda: found.append(daemon.worker(STANDIN_CUDA_UID="12345")))
    other.start()
    assert first.ask("sync") == "ok"
    assert found == []
    first.end()
    other.join()
    assert found[0].greeting == "open"
    assert daemon.say("get_server_list") != server
    found[0].end()
    daemon.say("quit")
    wait_until(lambda: not host.daemons(), "the end")
    daemon.pipe.rmdir()
    daemon = Daemon(host, 3)
    daemon.run(f"server create gpu --uid={os.getuid()}")
    assert daemon.worker("gpu", STANDIN_CUDA_UID="12345").greeting == "error 800"


def test_quitting_forgets_everything_and_errors_come_with_exit_status_0(host: MpsStandIn) -> None:
    daemon = Daemon(host, 2)
    daemon.say("set_default_active_thread_percentage 50")
    assert daemon.say("make_coffee") == 'Unknown command "make_coffee"'
    assert daemon.say("get_client_list 1") == "Server not found"
    daemon.say("quit")
    wait_until(lambda: not host.processes(), "the end")
    daemon.pipe.rmdir()
    assert Daemon(host, 2).say("get_default_active_thread_percentage") == "100.0"


def test_a_client_too_many_is_refused(host: MpsStandIn) -> None:
    host.slots(2)
    daemon = Daemon(host, 2)
    workers = [daemon.worker() for _ in range(3)]
    assert [worker.greeting for worker in workers] == ["open", "open", "error 808"]
    for worker in workers:
        worker.end()


def test_a_second_daemon_in_the_same_directory_is_refused(host: MpsStandIn) -> None:
    daemon = Daemon(host, 2)
    done = subprocess.run(
        [host.control_binary, "-d"],
        env={"CUDA_MPS_PIPE_DIRECTORY": str(daemon.pipe)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "already running" in done.stdout) == (1, True)
