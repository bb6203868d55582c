"""Commands of tenants against the host they run on. Every attack first succeeds against an agent that runs workers as
its own user, or without the one thing that stops it; then it meets users of projects. Needs root, as agents do.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agents.crew import CrewOptions, HostCrew, open_crew
from agents.crew.users import ProjectUsers
from agents.devices.base import WorkerState
from agents.devices.parts import CrewReading
from agents.errors import NotSupportedError, WorkerError
from agents.helper.server import listen
from agents.processes import HostProcesses, environment_of
from agents.wire import WorkerTarget
from tests.integration.agents.crew.test_crew import order
from tests.ports import own_ports
from tests.waiting import wait_until

pytestmark = pytest.mark.integration
SECRET = "hrn_the-nodes-own-token"
UIDS = range(1_900_100_000, 1_900_100_010)
LEASE = """
import fcntl
try:
    fcntl.fcntl(1, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    print("whoever opens it waits", flush=True)
except OSError as error:
    print(error, flush=True)
"""
SQUAT = """
import http.server, sys
http.server.BaseHTTPRequestHandler.do_GET = lambda self: (self.send_response(200), self.end_headers())
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.BaseHTTPRequestHandler).serve_forever()
"""
LATE = """
import socket, sys, time
while socket.socket().connect_ex(("127.0.0.1", int(sys.argv[2]))):
    time.sleep(0.05)
"""
CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1]); print(sys.argv[2])"


class Site:
    """A host: its agent's state, homes, and whatever crews are opened on them."""

    def __init__(self) -> None:
        assert os.geteuid() == 0, "users of projects are given by root: run these tests as root"
        # A folder of pytest may only be entered by its owner, which would prove too much.
        self.folder = Path(tempfile.mkdtemp(prefix="hr-users-"))
        self.folder.chmod(0o755)
        self.state, self.homes = self.folder / "state", self.folder / "homes"
        self.state.mkdir(0o700)
        (self.state / "token").write_text(SECRET + "\n", encoding="utf-8")
        self.crews: list[HostCrew] = []
        self.uids = UIDS
        self.names = iter(f"w{number}" for number in range(1000))

    def crew(self, *, apart: bool = True) -> HostCrew:
        self.crews.append(open_crew(self.options(apart=apart), time.monotonic))
        return self.crews[-1]

    def options(self, *, apart: bool = True) -> CrewOptions:
        return CrewOptions(
            state_dir=self.state,
            ports=own_ports(),
            route_grace_s=0.1,
            workers_as_agent=not apart,
            worker_uids=self.uids,
            worker_homes=self.homes,
        )

    def begin(self, crew: HostCrew, project: str, *command: str, starts_in: str | None = None) -> str:
        """Start a job of a project; its worker's name."""
        target = WorkerTarget(command=command, working_directory=starts_in, stop_s=0.2)
        name = next(self.names)
        made = order(name, uuid=f"GPU-{name}")
        crew.launch(replace(made, spec=replace(made.spec, project=project, kind="job", worker=target)))
        return name

    def said(self, crew: HostCrew, project: str, *command: str, starts_in: str | None = None) -> str:
        """What a job has printed when it has ended."""
        name = self.begin(crew, project, *command, starts_in=starts_in)
        wait_until(lambda: not self.pids(crew, name) and self.state_of(crew, name) in ENDED, "it has ended")
        return (self.state / "logs" / f"{name}.log").read_text(encoding="utf-8")

    def pids(self, crew: HostCrew, name: str) -> tuple[int, ...]:
        return next(each.pids for each in crew.found() if each.reading.worker == name)

    def state_of(self, crew: HostCrew, name: str) -> WorkerState:
        return next(each.reading.state for each in crew.found() if each.reading.worker == name)

    def sleeper(self, crew: HostCrew, project: str) -> tuple[str, int]:
        """A worker with a secret in its environment, and its process."""
        name = self.begin(crew, project, "/bin/sh", "-c", f"TOKEN={SECRET} exec sleep 600")
        wait_until(lambda: "TOKEN" in (environment_of(self.pids(crew, name)[0]) or {}), "it sleeps")
        return name, self.pids(crew, name)[0]

    def close(self) -> None:
        processes = HostProcesses()
        for crew in self.crews:
            for each in crew.found():
                for process in processes.identify(each.pids):
                    processes.send(process, signal.SIGKILL)
            crew.close()
        shutil.rmtree(self.folder)


ENDED = (WorkerState.READY, WorkerState.FAILED)


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


def cat(path: object) -> tuple[str, ...]:
    return ("/bin/sh", "-c", f"cat {path}")


def test_the_nodes_token_is_not_the_tenants_to_read(site: Site) -> None:
    attack = cat(site.state / "*token")
    assert SECRET in site.said(site.crew(apart=False), "mallory", *attack)
    told = site.said(site.crew(), "mallory", *cat(site.state / "token"))
    assert SECRET not in told
    assert "Permission denied" in told


def test_another_projects_files_and_processes_are_its_own(site: Site) -> None:
    ours, apart = site.crew(apart=False), site.crew()
    _, victim = site.sleeper(ours, "alice")
    assert SECRET in site.said(ours, "mallory", *cat(f"/proc/{victim}/environ"))
    site.said(ours, "mallory", "/bin/sh", "-c", f"kill -9 {victim}")
    wait_until(lambda: not HostProcesses().identify([victim]), "it was killed, so that the attack is one")

    site.said(apart, "alice", "/bin/sh", "-c", f"echo {SECRET} > private; chmod 666 private")
    _, victim = site.sleeper(apart, "alice")
    private = site.homes / "alice" / "private"
    assert SECRET in site.said(ours, "mallory", *cat(private))
    for attack in (cat(private), cat(f"/proc/{victim}/environ"), ("/bin/sh", "-c", f"kill -9 {victim}")):
        told = site.said(apart, "mallory", *attack)
        assert SECRET not in told
        assert "ermi" in told, told  # Permission denied, or Operation not permitted.
    assert HostProcesses().identify([victim])
    assert SECRET in site.said(apart, "alice", *cat(f"{private} /proc/{victim}/environ"))


def test_the_helpers_socket_is_not_the_tenants(site: Site) -> None:
    path = site.folder / "helper.sock"
    with listen(path):
        attack = ("/usr/bin/python3", "-c", CONNECT, str(path), SECRET)
        assert SECRET in site.said(site.crew(apart=False), "mallory", *attack)
        told = site.said(site.crew(), "mallory", *attack)
    assert SECRET not in told
    assert "PermissionError" in told


def test_no_program_of_root_gives_privileges_back(site: Site) -> None:
    strong = site.folder / "cat-of-root"
    shutil.copy("/bin/cat", strong)
    strong.chmod(0o4755)
    attack = (str(strong), str(site.state / "token"))
    weak = subprocess.run(attack, user=UIDS[0], group=UIDS[0], extra_groups=(), capture_output=True, check=True)
    assert SECRET in weak.stdout.decode(), "the attack works where programs may give privileges"
    assert SECRET not in site.said(site.crew(), "mallory", *attack)


def test_where_a_worker_starts_is_entered_by_its_user(site: Site) -> None:
    hidden = site.state / "hidden"
    hidden.mkdir(0o755)
    (hidden / "file").write_text(SECRET, encoding="utf-8")
    (hidden / "file").chmod(0o644)
    attack = ("/bin/cat", "file")
    entered = subprocess.run(attack, cwd=hidden, user=UIDS[0], group=UIDS[0], capture_output=True, check=True)
    assert SECRET in entered.stdout.decode(), "the attack works where root enters for others"
    told = site.said(site.crew(), "mallory", *attack, starts_in=str(hidden))
    assert SECRET not in told
    assert str(hidden) in told
    odd = site.folder / "it's a $(place)"
    odd.mkdir()
    assert site.said(site.crew(), "mallory", "/bin/pwd", starts_in=str(odd)).strip() == str(odd)


def test_a_worker_has_a_user_a_home_and_nothing_more(site: Site) -> None:
    crew = site.crew()
    script = "id -u; id -g; id -G; umask; pwd; echo $HOME $TMPDIR $USER"
    script += "; grep -E 'NoNewPrivs|CapEff|CapAmb' /proc/self/status"
    before = os.getgroups()
    os.setgroups([*before, 4242])
    try:
        told = site.said(crew, "alice", "/bin/sh", "-c", script)
    finally:
        os.setgroups(before)
    uid, gid, groups, umask, place, variables, *bounds = told.splitlines()
    home = site.homes / "alice"
    assert int(uid) in UIDS
    assert (gid, groups, umask, place) == (uid, uid, "0077", str(home))
    assert variables == f"{home} {home} headroom-alice"
    assert sorted(line.split()[1] for line in bounds) == ["0" * 16, "0" * 16, "1"]
    assert (home.stat().st_uid, home.stat().st_mode & 0o777) == (int(uid), 0o700)
    # The log is the agent's folder's, and the worker may open it again by name, as many scripts do.
    assert site.said(crew, "alice", "/bin/sh", "-c", "echo told > /dev/stderr").strip() == "told"
    assert "Permission denied" in site.said(crew, "alice", "/bin/ls", str(site.state / "logs"))


def test_no_worker_has_whoever_opens_its_log_wait(site: Site) -> None:
    # Holding a lease on a file, which its owner may, keeps others from opening it for most of a minute.
    taken = site.folder / "taken"
    command = ("/usr/bin/python3", "-c", LEASE)
    with taken.open("a") as file:
        os.fchown(file.fileno(), UIDS[0], UIDS[0])
        attack = subprocess.Popen(command, stdout=file, user=UIDS[0], group=UIDS[0], extra_groups=(), cwd="/")
    assert attack.wait() == 0
    assert "waits" in taken.read_text(), "the attack works on a file of one's own"
    assert "Permission denied" in site.said(site.crew(), "mallory", *command)


@pytest.mark.parametrize("offset", [0, 2])
def test_nobody_elses_answers_make_a_worker_ready(site: Site, offset: int) -> None:
    crew = site.crew()
    own = ("/usr/bin/python3", "-c", LATE + SQUAT, "{port}", "{port_2}") if offset else ("/bin/sleep", "600")
    target = WorkerTarget(command=own, stop_s=0.2, metrics_port_offset=offset)
    made = order("slow", uuid="GPU-slow")
    crew.launch(replace(made, spec=replace(made.spec, project="alice", kind="service", worker=target)))
    (victim,) = crew.found()
    port = str(int(str(victim.reading.endpoint).rpartition(":")[2]) + offset)
    thief = site.begin(crew, "mallory", "/usr/bin/python3", "-c", SQUAT, port)
    wait_until(lambda: crew_reading(crew, "slow").reading.problem.endswith("another user"), "it is found out")
    assert crew_reading(crew, "slow").reading.state is WorkerState.STARTING
    # Who listens for its own project is believed.
    crew.end(thief, lambda _: None)
    wait_until(lambda: len(crew.found()) == 1, "the port is free")
    site.begin(crew, "alice", "/usr/bin/python3", "-c", SQUAT, port)
    wait_until(lambda: crew_reading(crew, "slow").answering, "its own user answers")


def crew_reading(crew: HostCrew, name: str) -> CrewReading:
    return next(each for each in crew.found() if each.reading.worker == name)


def test_the_next_agent_finds_and_ends_workers_of_other_users(site: Site) -> None:
    first = site.crew()
    name, pid = site.sleeper(first, "alice")
    first.close()
    # As after a death between start and writing it down: found by its mark alone.
    path = site.state / "workers" / f"{name}.json"
    written = path.read_text(encoding="utf-8")
    unwritten = written.replace(f'"process":[{pid},', '"process":null,"_":[0,')
    assert unwritten != written
    path.write_text(unwritten, encoding="utf-8")
    second = site.crew()
    assert site.pids(second, name) == (pid,)
    second.end(name, lambda _: None)
    wait_until(lambda: not HostProcesses().identify([pid]), "it has ended")


def test_a_projects_user_stays_its_own(site: Site) -> None:
    users = ProjectUsers(site.homes, UIDS)
    given = {name: users.of(name).uid for name in ("a", "b", "c", "d.e-f_g")}
    assert len(set(given.values())) == 4
    assert {name: ProjectUsers(site.homes, UIDS).of(name).uid for name in given} == given
    for name in "ghijkl":
        users.of(name)
    with pytest.raises(WorkerError, match="taken"):
        users.of("one-too-many")
    # A project that is gone leaves its user as long as it leaves its home.
    (site.homes / "a").rmdir()
    assert users.of("one-too-many").uid == given["a"]
    for name in ("../state", "", "A", ".mps", "a/b", "a\0b"):
        with pytest.raises(NotSupportedError, match="name of a project"):
            users.of(name)


def test_whoever_made_a_home_and_died_is_followed(site: Site) -> None:
    users = ProjectUsers(site.homes, UIDS)
    users.of("a")
    (site.homes / "b").mkdir(0o700)
    assert users.of("b").uid in UIDS
    os.chown(site.homes / "b", 1000, 1000)
    with pytest.raises(WorkerError, match="belongs to user 1000"):
        users.of("b")
    site.homes.chmod(0o777)
    with pytest.raises(WorkerError, match="writable by nobody else"):
        users.of("a")


def test_without_users_commands_of_workloads_are_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agents.crew.users.os.geteuid", lambda: 1000)
    with pytest.raises(NotSupportedError, match="--workers-as-agent") as told:
        site.begin(site.crew(), "mallory", *cat(site.state / "token"))
    assert "cat" in str(told.value) or "sh" in str(told.value)
    assert site.crews[-1].found() == ()
    site.crews.append(open_crew(replace(site.options(), executables=("/bin/true",)), time.monotonic))
    site.said(site.crews[-1], "alice", "/bin/true")
