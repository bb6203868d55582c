"""Ports, logs, memory groups and /proc: the small parts that touch this host."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.crew.launching import Invocation
from agents.crew.member import safe_name
from agents.crew.resources import (
    GONE_KEPT_MAX,
    TASKS_MAX,
    TOLD_BYTES,
    CgroupLimits,
    Logs,
    PortBook,
    bindable,
    connections,
    is_delegated,
    listeners,
    own_group,
)
from agents.errors import BusyError, WorkerError
from agents.processes import HostProcesses, ProcessId
from tests.unit.agents.crew.doubles import control_groups
from tests.waiting import wait_until


def test_ports_have_one_owner_and_come_back_late() -> None:
    book = PortBook(range(10, 16), free=lambda port: port != 12)
    assert book.take("a", 2) == 10
    assert book.take("b", 3) == 13
    with pytest.raises(BusyError):
        book.take("c", 1)
    book.free("a")
    assert book.take("c", 1) == 10
    book.free("c")
    assert book.take("d", 1) == 11, "not the one that was just given back"
    with pytest.raises(BusyError):
        book.hold("x", [13])
    assert book.owned() == {13: "b", 14: "b", 15: "b", 11: "d"}


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=40))
def test_no_port_ever_has_two_owners(steps: list[tuple[int, int]]) -> None:
    book = PortBook(range(100, 108), free=lambda port: True)
    held: dict[str, range] = {}
    for owner, count in steps:
        name = str(owner)
        if name in held:
            book.free(name)
            del held[name]
        elif count:
            try:
                start = book.take(name, count)
            except BusyError:
                continue
            block = range(start, start + count)
            assert block[0] >= 100
            assert block[-1] < 108
            assert not any(port in other for port in block for other in held.values())
            held[name] = block
    assert set(book.owned()) == {port for block in held.values() for port in block}


def test_who_listens_on_the_very_address_gets_its_connections(tmp_path: Path) -> None:
    four, six = tmp_path / "tcp", tmp_path / "tcp6"
    tables = (str(four), str(six))
    mapped = "0000000000000000FFFF0000"

    def write(path: Path, *rows: tuple[str, str, int]) -> None:
        lines = [f" 0: {local} 0:0 {state} 0:0 00:0 0 {uid} 0 12" for local, state, uid in rows]
        path.write_text("\n".join(["  sl  local_address", *lines]) + "\n", encoding="ascii")

    write(six, (f"{mapped}0100007F:4E20", "0A", 8), ("0" * 32 + ":4E20", "0A", 9))
    write(four, ("00000000:4E20", "0A", 7), ("0100007F:4E21", "0A", 6), ("0100007F:4E20", "01", 5))
    assert listeners("127.0.0.1", 20000, tables) == {8}
    assert listeners("localhost", 20001, tables) == {6}
    assert listeners("10.0.0.7", 20000, tables) == {7}
    write(four)
    assert listeners("10.0.0.7", 20000, tables) == {9}
    six.unlink()
    assert listeners("10.0.0.7", 20000, tables) == frozenset()
    assert listeners("no such host", 20000, tables) == frozenset()


def test_a_port_somebody_listens_on_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not bindable(port)
        assert connections(port) == 0
        with socket.create_connection(("127.0.0.1", port)):
            assert connections(port) == 1
    assert bindable(port)


@given(st.lists(st.text(max_size=20), unique=True, max_size=5))
def test_names_of_files_stay_apart(names: list[str]) -> None:
    safe = [safe_name(name) for name in names]
    assert len(set(safe)) == len(names)
    assert all("/" not in name and "\0" not in name for name in safe)


def test_a_full_log_is_cut_in_place_and_its_writer_goes_on(tmp_path: Path) -> None:
    logs = Logs(tmp_path, 16384)
    descriptor = logs.open("w")
    try:
        for round_number in range(20):
            for line in range(100):
                os.write(descriptor, f"{round_number:03d}-{line:03d} {'x' * 60}\n".encode())
            logs.bound("w")
    finally:
        os.close(descriptor)
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert sum(sizes) <= 2 * 8192
    assert logs.tail("w").endswith("019-099 " + "x" * 60)


def test_logs_on_a_disk_that_takes_nothing_any_more_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs(tmp_path, 16384)
    for number in range(GONE_KEPT_MAX + 2):
        logs.path(f"w{number}").write_bytes(b"x" * 10_000)

    def refuse(path: Path, *_: object, **__: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setattr(os, "truncate", refuse)
    logs.bound("w1")
    logs.prune(frozenset({"w1"}))
    assert len(list(tmp_path.glob("*.log"))) == GONE_KEPT_MAX + 2


def test_last_words_are_safe_to_show(tmp_path: Path) -> None:
    logs = Logs(tmp_path, 65536)
    logs.path("w").write_bytes(b"old\n" * 2000 + b"\x1b[1mbad\x1b[0m \x00\xff\r\n\n" + b"y" * 9000 + b"\nlast\n")
    tail = logs.tail("w")
    assert tail.endswith("last")
    assert len(tail) <= 8 * 303
    assert tail.isprintable()
    assert logs.tail("nobody") == ""
    logs.path("z").write_bytes(b"a\x1b[31mred\x1b[0m\x07\n")
    assert logs.tail("z") == "ared"


def write(logs: Logs, name: str, *lines: str, end: str = "\n") -> None:
    """Append as a worker does."""
    with logs.path(name).open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + end)


def test_who_reads_a_log_is_told_its_end_and_then_what_comes(tmp_path: Path) -> None:
    logs = Logs(tmp_path, 65536)
    write(logs, "r@00000001", *(f"old {number}" for number in range(50)))
    write(logs, "r@00000002", "\x1b[31mnew\x1b[0m\x00 \x9b1m", "a\tb", "unended", end="")
    write(logs, "r2@00000003", "another replica's")
    first = logs.told("r", 4, None)
    assert first.lines == ("old 49", "new 1m", "a       b", "unended")
    assert logs.told("r", 4, first.places).lines == ()
    write(logs, "r@00000002", " is ended now", "half a", end="")
    then = logs.told("r", 4, first.places)
    assert then.lines == (" is ended now",)
    write(logs, "r@00000002", " line")
    write(logs, "r@00000004", "its next process")
    assert logs.told("r", 9, then.places).lines == ("half a line", "its next process")
    assert logs.told("nobody", 9, None).lines == ()


def test_a_reader_misses_nothing_of_a_log_that_is_cut_and_is_told_what_it_missed(tmp_path: Path) -> None:
    logs = Logs(tmp_path, 4 * TOLD_BYTES)
    places, said = logs.told("r", 1000, None).places, []
    for number in range(400):
        write(logs, "r@1", *(f"{number:03d}-{line} {'x' * 90}" for line in range(10)))
        logs.bound("r@1")
        if number % 20 == 0:
            found = logs.told("r", 1000, places)
            places, said = found.places, [*said, *found.lines]
    assert [line.split()[0] for line in said] == [f"{n:03d}-{line}" for n in range(381) for line in range(10)]
    write(logs, "r@1", *("y" * 99 for _ in range(1000)))
    lines = logs.told("r", 2000, places).lines
    assert lines[0].startswith("... ")
    assert lines[0].endswith(" bytes were left out ...")
    assert sum(map(len, lines)) <= TOLD_BYTES + 100


def test_logs_of_the_gone_are_kept_for_a_while(tmp_path: Path) -> None:
    logs = Logs(tmp_path, 65536)
    for number in range(GONE_KEPT_MAX + 10):
        path = logs.path(f"w{number}")
        path.write_bytes(b"x")
        os.utime(path, (number, number))
    logs.prune(frozenset({"w0"}))
    left = {path.stem for path in tmp_path.iterdir()}
    assert len(left) == GONE_KEPT_MAX + 1
    assert {"w0", f"w{GONE_KEPT_MAX + 9}"} <= left
    assert "w1" not in left


def test_memory_is_bounded_in_a_group_beside_the_agents(tmp_path: Path) -> None:
    own = control_groups(tmp_path, enabled="memory")
    proc = tmp_path / "self"
    proc.write_text("12:cpu:/x\n0::/unit/agent\n")
    assert own_group(tmp_path, proc) == own
    limits = CgroupLimits(own, delegated=lambda group: group == own.parent)
    assert limits.prepare("w", 512) == ""
    group = own.parent / "headroom-worker-w"
    assert (group / "memory.max").read_text() == str(512 * 2**20)
    assert limits.enter("w", 4711) == ""
    assert limits.members("w") == (4711,)
    for path in group.iterdir():
        path.unlink()
    limits.remove("w")
    assert not group.exists()


@pytest.mark.parametrize(("enabled", "bounds"), [("memory pids", {"pids.max": str(TASKS_MAX)}), ("memory", {})])
def test_processes_are_bounded_in_every_group_where_they_can_be(
    tmp_path: Path, enabled: str, bounds: dict[str, str]
) -> None:
    own = control_groups(tmp_path, enabled=enabled)
    limits = CgroupLimits(own, delegated=lambda group: group == own.parent)
    for name, memory_mib_max in (("asks", 512), ("asks-for-nothing", None)):
        assert limits.prepare(name, memory_mib_max) == ""
        held = {path.name: path.read_text() for path in (own.parent / f"headroom-worker-{name}").iterdir()}
        assert held == bounds | ({} if memory_mib_max is None else {"memory.max": str(512 * 2**20)})


def test_groups_that_nobody_has_are_removed_where_they_are_empty(tmp_path: Path) -> None:
    own = control_groups(tmp_path, enabled="memory")
    limits = CgroupLimits(own, delegated=lambda group: group == own.parent)
    held, busy, left = (own.parent / f"headroom-worker-{name}" for name in ("held", "busy", "left"))
    for group in (held, busy, left):
        group.mkdir()
    # The kernel keeps a group with processes, as a file system does a directory with files.
    (busy / "cgroup.procs").write_text("4711\n")
    limits.sweep(frozenset({"held"}))
    assert (held.exists(), busy.exists(), left.exists(), own.exists()) == (True, True, False, True)
    CgroupLimits(None).sweep(frozenset())


def test_without_a_delegated_group_nothing_is_bounded_and_that_is_said(tmp_path: Path) -> None:
    own = control_groups(tmp_path, controllers="cpu")
    for limits in (
        CgroupLimits(None),
        CgroupLimits(own, delegated=lambda group: True),
        CgroupLimits(own, delegated=lambda group: False),
    ):
        assert "not limited to 512 MiB" in limits.prepare("w", 512)
        assert limits.prepare("w", None) == ""
        assert limits.enter("w", 1) == ""
        assert limits.members("w") == ()
        limits.remove("w")
    assert not is_delegated(tmp_path / "nothing")
    assert own_group(tmp_path, tmp_path / "nothing") is None
    legacy = tmp_path / "legacy"
    legacy.write_text("4:memory:/x\n")
    assert own_group(tmp_path, legacy) is None


SLEEPER = "import os, signal; os.fork(); print('up', flush=True); signal.pause()"
SETSID = "import os, signal\nif os.fork() == 0:\n    os.setsid()\nprint('up', flush=True)\nsignal.pause()"


def started(processes: HostProcesses, tmp_path: Path, code: str, mark: str = "m/1") -> tuple[ProcessId, Path]:
    log = tmp_path / "log"
    with log.open("ab") as file:
        made = Invocation(
            arguments=(sys.executable, "-I", "-S", "-c", code),
            environment={"HEADROOM_WORKER": mark},
            working_directory=str(tmp_path),
        )
        return processes.start(made, file.fileno()), log


def test_a_session_is_found_bounded_and_ended(tmp_path: Path) -> None:
    processes = HostProcesses()
    leader, log = started(processes, tmp_path, SLEEPER)
    try:
        wait_until(lambda: log.read_bytes().count(b"up") == 2)
        found = processes.sessions((leader,))[leader]
        assert found[0] == leader
        assert len(found) == 2
        assert os.getsid(leader.pid) == leader.pid
        assert str(Path(f"/proc/{leader.pid}/fd/0").readlink()) == "/dev/null"
        assert Path(f"/proc/{leader.pid}/cwd").resolve() == tmp_path.resolve()
        limits = Path(f"/proc/{leader.pid}/limits").read_text(encoding="ascii")
        (core,) = [line.split() for line in limits.splitlines() if line.startswith("Max core file size")]
        assert core[4:6] == ["0", "0"]
        assert processes.marked("m/1") == tuple(sorted(found, key=lambda each: each.pid))
        assert processes.identify([leader.pid, 2**22 + 1]) == (leader,)
        stranger = ProcessId(pid=leader.pid, started_ticks=leader.started_ticks - 1)
        assert not processes.alive(stranger)
        assert processes.sessions((stranger,))[stranger] == ()
        processes.send(stranger, signal.SIGKILL)
        assert processes.alive(leader)
    finally:
        for each in processes.sessions((leader,))[leader]:
            processes.send(each, signal.SIGKILL)
    wait_until(lambda: not processes.alive(leader))
    wait_until(lambda: processes.sessions((leader,))[leader] == ())
    assert processes.exit_status(leader) == -signal.SIGKILL
    assert processes.exit_status(leader) is None
    processes.send(leader, signal.SIGKILL)


def test_who_left_the_session_keeps_the_mark(tmp_path: Path) -> None:
    processes = HostProcesses()
    leader, log = started(processes, tmp_path, SETSID, mark="m/2")
    wait_until(lambda: log.exists() and log.read_bytes().count(b"up") == 2)
    marked = processes.marked("m/2")
    for each in marked:
        processes.send(each, signal.SIGKILL)
    assert len(marked) == 2
    assert processes.sessions((leader,)).keys() == {leader}
    wait_until(lambda: processes.marked("m/2") == ())
    processes.exit_status(leader)


def test_a_zombie_is_not_alive_and_its_status_is_told_once(tmp_path: Path) -> None:
    processes = HostProcesses()
    leader, _ = started(processes, tmp_path, "raise SystemExit(5)")
    wait_until(lambda: not processes.alive(leader))
    assert processes.exit_status(leader) == 5
    assert processes.exit_status(leader) is None


def test_what_cannot_be_started_is_said(tmp_path: Path) -> None:
    made = Invocation(arguments=("/no/such",), environment={}, working_directory=None)
    with pytest.raises(WorkerError, match="/no/such"):
        HostProcesses().start(made, 1)
    lost = Invocation(arguments=("/bin/true",), environment={}, working_directory=str(tmp_path / "none"))
    with pytest.raises(WorkerError):
        HostProcesses().start(lost, 1)


def test_nothing_warns_of_workers_that_go_on(tmp_path: Path) -> None:
    code = (
        "import os, sys, warnings; warnings.simplefilter('error')\n"
        "from agents.processes import HostProcesses\n"
        "from agents.crew.launching import Invocation\n"
        "made = Invocation(arguments=('/bin/sleep', '60'), environment={}, working_directory=None)\n"
        "processes = HostProcesses()\n"
        "print(processes.start(made, os.open('/dev/null', os.O_WRONLY)).pid)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    os.kill(int(ran.stdout), signal.SIGKILL)
    assert ran.stderr == ""
