"""What the two protocols say to a daemon, and how they read its answers, on a daemon that answers from a table."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agents.devices.parts import ShareOrder
from agents.errors import DeviceTimeoutError, NotSupportedError, SharingError
from agents.mps import protocols
from agents.mps.daemon import speaks_3
from agents.mps.protocols import (
    MpsClient,
    MpsControl,
    MpsServer,
    ProtocolThree,
    ProtocolTwo,
    ServerState,
    may_be,
    memory_mib_in,
    namespace_of,
    number_in,
    pids_in,
    plain_environment,
    refused,
)

# --- Reading texts whose form nobody promises, and running a program that may do anything.


@pytest.mark.parametrize(
    "text",
    [
        "Server not found",
        "Failed to start server",
        "error: unknown command 'x y'",
        "Unrecognized command: foo",
        "An instance of this daemon is already running",
        "Cannot find MPS control daemon process",
        "Permission denied",
        "Couldn't open the device",
        "no such namespace",
    ],
)
def test_error_texts_are_seen_whatever_the_exit_status(text: str) -> None:
    assert refused(text)


@pytest.mark.parametrize("text", ["", "50.0", "ACTIVE", "27475\n27476", "Server 'gpu' created", "10G"])
def test_plain_answers_are_no_errors(text: str) -> None:
    assert not refused(text)


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("10G", (10240, 11264)),
        ("900M", (900, 901)),
        ("512 MB", (512, 513)),
        ("Limit: 1.5GiB", (1536, 2560)),
        ("1048576K", (1024, 1025)),
        ("none", None),
        ("7", None),
    ],
)
def test_memory_values_are_binary_and_need_a_unit(text: str, mib: tuple[float, float] | None) -> None:
    assert memory_mib_in(text) == mib


@pytest.mark.parametrize(
    ("shown", "mib", "yes"),
    [("7G", 7297, True), ("7G", 7168, True), ("7G", 8192, False), ("7G", 7000, False), ("900M", 900, True)],
)
def test_real_daemons_show_whole_gibibytes_rounded_down(shown: str, mib: float, yes: bool) -> None:
    assert may_be(memory_mib_in(shown), mib) is yes


def test_2_sets_a_memory_limit_anew_where_what_is_shown_could_be_another() -> None:
    told = Told({"get_default_active": "100.0", "get_default_device": "7G"})
    ProtocolTwo().hold(told, [order(share=100, memory=7297)])
    assert "set_default_device_pinned_mem_limit 0 7297M" in told.said


def test_numbers_and_pids_are_searched_for() -> None:
    assert number_in("Active thread percentage: 25.0 %") == 25.0
    assert number_in("-") is None
    assert pids_in("PID\n 12 \n34\n5 6\nabc") == (12, 34)


def script(path: Path, *lines: str) -> MpsControl:
    """A control program that is a Python script."""
    program = path / "control"
    program.write_text("\n".join((f"#!{sys.executable} -S", *lines)) + "\n")
    program.chmod(0o755)
    return MpsControl(str(program), path / "pipe")


def test_the_program_gets_the_pipe_and_no_limits_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    found = script(tmp_path, "import os", "print([k + '=' + os.environ[k] for k in os.environ if k[:4] == 'CUDA'])")
    assert found.ask("x") == f"['CUDA_MPS_PIPE_DIRECTORY={tmp_path / 'pipe'}']"
    assert "CUDA_VISIBLE_DEVICES" not in plain_environment({})


def test_exit_status_0_with_an_error_text_is_an_error(tmp_path: Path) -> None:
    found = script(tmp_path, "print('error: no such server')")
    with pytest.raises(SharingError, match="server list: error: no such server"):
        found.ask("server", "list")
    assert found.ask_freely("server", "list") == "error: no such server"


def test_another_exit_status_is_an_error_whatever_the_text(tmp_path: Path) -> None:
    with pytest.raises(SharingError, match="get_server_list: fine"):
        script(tmp_path, "import sys", "print('fine')", "sys.exit(3)").ask_freely(stdin="get_server_list\n")


def test_a_program_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "COMMAND_TIMEOUT_S", 0.2)
    with pytest.raises(DeviceTimeoutError):
        script(tmp_path, "import signal", "signal.pause()").ask(stdin="ps\n")


def test_a_host_without_the_program_does_not_support_it(tmp_path: Path) -> None:
    with pytest.raises(NotSupportedError):
        MpsControl(str(tmp_path / "absent"), tmp_path).ask("-v")
    (tmp_path / "plain").write_text("no program")
    with pytest.raises(SharingError):
        MpsControl(str(tmp_path / "plain"), tmp_path).ask("-v")


UUID = "GPU-11111111-2222-3333-4444-555555555555"


@dataclass
class Told:
    """Instead of a control program: answers by how commands begin, a list of answers one after the other."""

    answers: dict[str, str | list[str]]
    said: list[str] = field(default_factory=list)

    def ask_freely(self, *arguments: str, stdin: str = "") -> str:
        """An answer."""
        command = " ".join(arguments) or stdin.strip()
        self.said.append(command)
        for start, answer in self.answers.items():
            if command.startswith(start):
                return answer if isinstance(answer, str) else answer.pop(0) if len(answer) > 1 else answer[0]
        return ""

    def ask(self, *arguments: str, stdin: str = "") -> str:
        """An answer that is no refusal."""
        text = self.ask_freely(*arguments, stdin=stdin)
        if refused(text):
            raise SharingError(text)
        return text


def order(worker: str = "w", share: int = 25, memory: int = 1000) -> ShareOrder:
    """A part of the device."""
    return ShareOrder(worker=worker, uuid=UUID, share_pct_sm=share, memory_mib_limit=memory)


def test_2_binds_a_worker_by_its_environment_and_names_only_the_device_it_sees() -> None:
    assert ProtocolTwo().environment(Path("/p/ab"), order()) == {
        "CUDA_MPS_PIPE_DIRECTORY": "/p/ab",
        "CUDA_VISIBLE_DEVICES": UUID,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{UUID}=1000M",
    }


def test_3_binds_a_worker_by_the_path_of_its_namespace_alone() -> None:
    name = namespace_of("team/Svc-1.r0")
    found = ProtocolThree().environment(Path("/p/ab"), order("team/Svc-1.r0"))
    assert found == {"CUDA_MPS_PIPE_DIRECTORY": f"/p/ab/gpu/{name}", "CUDA_VISIBLE_DEVICES": UUID}
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_")
    assert len(name) <= 64
    assert name != namespace_of("team/svc-1.r0")


def test_2_sets_the_largest_part_for_the_next_server_and_for_the_one_that_runs() -> None:
    told = Told(
        {
            "get_server_list": "77",
            "get_server_status 77": "ACTIVE",
            "get_default_active": ["100.0", "40.0"],
            "get_active_thread_percentage 77": ["100.0", "40.0"],
            "get_default_device": ["No limit is set", "2000M"],
            "get_device_pinned_mem_limit 77 0": ["", "2000M"],
        }
    )
    ProtocolTwo().hold(told, [order("a", 40, 500), order("b", 10, 2000)])
    assert [said for said in told.said if said.startswith("set")] == [
        "set_default_active_thread_percentage 40",
        "set_default_device_pinned_mem_limit 0 2000M",
        "set_active_thread_percentage 77 40",
        "set_device_pinned_mem_limit 77 0 2000M",
    ]


def test_2_sets_nothing_that_is_right_already_and_nothing_without_workers() -> None:
    right = Told({"get_default_active": "40.0", "get_default_device": "900M"})
    ProtocolTwo().hold(right, [order("a", 40, 900)])
    ProtocolTwo().hold(right, [])
    assert not [said for said in right.said if said.startswith("set")]


@pytest.mark.parametrize(
    "answers",
    [
        {"get_default_active": "100.0"},
        {"get_default_active": "25.0", "get_default_device": "No limit is set"},
        {"get_default_active": "25.0", "get_default_device": "3000M"},
        {"get_default_active": "100.0", "set_default_active": "Invalid arguments"},
    ],
)
def test_2_does_not_believe_a_daemon_that_does_not_hold_what_it_was_told(answers: dict[str, str]) -> None:
    with pytest.raises(SharingError):
        ProtocolTwo().hold(Told(dict(answers)), [order()])


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("ACTIVE", ServerState.ACTIVE),
        ("INITIALIZING", ServerState.STARTING),
        ("FAULT", ServerState.FAULT),
        ("Server not found", ServerState.STARTING),
        ("Unrecognized command: get_server_status", ServerState.ACTIVE),
    ],
)
def test_2_reads_the_state_of_a_server(text: str, state: ServerState) -> None:
    told = Told({"get_server_list": "77\n", "get_server_status": text})
    assert ProtocolTwo().servers(told) == (MpsServer(77, state),)


def test_2_lists_clients_and_terminates_one_on_its_server() -> None:
    told = Told({"get_server_list": "77", "get_client_list 77": "501\n502"})
    assert ProtocolTwo().clients(told) == (MpsClient(501, "77"), MpsClient(502, "77"))
    ProtocolTwo().terminate(told, MpsClient(502, "77"))
    assert told.said[-1] == "terminate_client 77 502"


@pytest.mark.parametrize(
    ("share", "memory", "problem"),
    [
        ("100.0", "", ""),
        ("25.0", "1000M", ""),
        ("not shown", "not shown", ""),
        ("10.0", "", "its server gives at most 10 % of the SMs"),
        ("25.0", "900M", "its server gives at most 900 MiB"),
    ],
)
def test_2_sees_a_ceiling_below_a_workers_part(share: str, memory: str, problem: str) -> None:
    told = Told({"get_active": share, "get_device": memory})
    assert ProtocolTwo().misfit(told, order(), MpsClient(5, "77")) == problem


def test_3_starts_a_server_for_the_one_device_as_this_user() -> None:
    told = Told({})
    ProtocolThree().start_server(told, UUID)
    assert told.said == [f"server create gpu --uid={os.getuid()} --allowed-devices={UUID}"]


def test_3_reads_its_own_server_and_no_other() -> None:
    rows = f"other,0,5,Ready,/p/other,-,-\ngpu,0,77,Ready,/p/gpu,{UUID},-\n"
    assert ProtocolThree().servers(Told({"server list": rows})) == (MpsServer(77, ServerState.ACTIVE),)
    assert ProtocolThree().servers(Told({"server list": "gpu,0,77,Fault,/p/gpu,-,-"}))[0].state is ServerState.FAULT
    assert (
        ProtocolThree().servers(Told({"server list": "gpu,0,77,Initializing,/p,-,-"}))[0].state is ServerState.STARTING
    )
    assert ProtocolThree().servers(Told({"server list": "gpu,0,-,Stopped,/p/gpu,-,-"})) == ()
    with pytest.raises(SharingError):
        ProtocolThree().servers(Told({"server list": "error: cannot reach, the daemon, it, seems"}))


def test_3_gives_each_worker_a_namespace_with_limits_and_drops_those_of_others() -> None:
    mine = namespace_of("w")
    told = Told(
        {
            "namespace list": "w_old,gpu,Ready,1G,10,0,/p\nsomebodys,gpu,Ready,-,-,0,/p",
            f"namespace get {mine} gpu active": ["-", "25"],
            f"namespace get {mine} gpu pinned": ["-", "1000M"],
        }
    )
    ProtocolThree().hold(told, [order()])
    assert [said for said in told.said if " get " not in said][1:] == [
        f"namespace create {mine} --server=gpu",
        f"namespace set {mine} --server=gpu --active-thread-percentage=25 --pinned-memory-limit=1000M",
        "namespace delete w_old --server=gpu",
    ]


def test_3_does_not_believe_a_namespace_without_limits() -> None:
    told = Told({"namespace get": "-"})
    with pytest.raises(SharingError, match="all of the SMs"):
        ProtocolThree().hold(told, [order()])


@pytest.mark.parametrize(
    ("namespace", "share", "memory", "problem"),
    [
        ("mine", "25", "1000M", ""),
        ("default", "25", "1000M", "it is in namespace gpu/default"),
        ("mine", "-", "1000M", "its namespace gives all of the SMs"),
        ("mine", "50", "1000M", "its namespace gives 50 % of the SMs"),
        ("mine", "25", "-", "its namespace gives any memory"),
        ("mine", "25", "2000M", "its namespace gives 2000 MiB of memory"),
    ],
)
def test_3_sees_a_client_outside_its_namespace_or_one_with_other_limits(
    namespace: str, share: str, memory: str, problem: str
) -> None:
    name = namespace_of("w") if namespace == "mine" else namespace
    told = Told({f"namespace get {namespace_of('w')} gpu act": share, "namespace get": memory})
    assert ProtocolThree().misfit(told, order(), MpsClient(5, "gpu", name)).startswith(problem)
    assert bool(problem) == bool(ProtocolThree().misfit(told, order(), MpsClient(5, "gpu", name)))


def test_3_lists_clients_whose_commands_hold_error_words() -> None:
    told = Told({"client list": "501,gpu,0,w_1,python cannot_fail.py --error=no\n502,gpu,0,default,x\n"})
    assert ProtocolThree().clients(told) == (MpsClient(501, "gpu", "w_1"), MpsClient(502, "gpu", "default"))


@pytest.mark.parametrize(
    ("text", "yes"),
    [
        ("CUDA MPS Control for Linux/Unix/QNX. Binary version: 13000\nCopyright (C) 2003 - 2025 NVIDIA", False),
        ("CUDA MPS Control for Linux/Unix/QNX. Binary version: 13040\nCopyright (C) 2003 - 2026 NVIDIA", True),
        ("CUDA MPS Control Version: 13.4", True),
        ("14.0", True),
        ("13.3", False),
        ("12.8", False),
        ("driver 615.71", True),
        ("610.30.01", False),
        ("", False),
        ("unknown option", False),
    ],
)
def test_protocol_3_is_taken_only_from_a_driver_that_is_known_to_have_it(text: str, yes: bool) -> None:
    assert speaks_3(text) is yes
