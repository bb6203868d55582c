"""The supervisor's order: what starts before what, what a failure half-way leaves behind, what a crash brings back."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from app.demo.home import Home, SupervisorState
from app.demo.process import MARK, ChildSpec, alive
from app.demo.rooms import Order, address_of
from app.demo.supervisor import AlreadyRunningError, StartError, StoppedError, Supervisor, check_port
from app.settings import Settings
from solvers.errors import HeadroomError, StateError
from tests.ports import free_port
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[4]
FOREVER = "import signal; signal.pause()"


class FakeRooms:
    """Rooms whose processes only wait, and which remember what was asked of them."""

    def __init__(self, api_code: str = FOREVER) -> None:
        self.asked: list[str] = []
        self.serves = True
        self._api_code = api_code

    def _spec(self, name: str, code: str = FOREVER) -> ChildSpec:
        self.asked.append(name)
        return ChildSpec(name=name, command=(sys.executable, "-S", "-c", code))

    def database(self) -> str:
        self.asked.append("database")
        return "postgresql://nowhere/x"

    def migrate(self, url: str) -> None:
        self.asked.append("migrate")

    def admit(self, url: str, address: str) -> None:
        self.asked.append("admit")

    def api(self) -> ChildSpec:
        return self._spec("api", self._api_code)

    def planner(self) -> ChildSpec:
        return self._spec("planner")

    def api_ready(self) -> bool:
        return self.serves

    def agents(self) -> tuple[ChildSpec, ...]:
        return (self._spec("agent-1"), self._spec("agent-2"))

    def traffic(self) -> ChildSpec:
        return self._spec("traffic")

    def seed(self) -> None:
        self.asked.append("seed")

    def first_plan_applied(self) -> bool:
        self.asked.append("applied")
        return True

    def stop_database(self) -> None:
        self.asked.append("stop database")


class Running:
    """A supervisor in a thread of its own."""

    def __init__(self, home: Home, rooms: FakeRooms, *, demo: bool = True) -> None:
        self.phases: list[str] = []
        self.error: BaseException | None = None
        self.ready = threading.Event()
        settings = Settings(home=home.path, port=free_port())
        self.supervisor = Supervisor(
            Order(settings=settings, demo=demo), home, rooms, lambda name, _: self.phases.append(name)
        )
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.supervisor.run(lambda _: self.ready.set())
        except HeadroomError as error:
            self.error = error

    def end(self) -> None:
        self.supervisor.end()
        self.thread.join(30)
        assert not self.thread.is_alive()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def pids(home: Home) -> dict[str, int]:
    state = home.read_state()
    return {process.name: process.pid for process in state.processes} if state else {}


def test_everything_starts_in_order_and_ends_in_reverse(home: Home) -> None:
    rooms = FakeRooms()
    running = Running(home, rooms)
    assert running.ready.wait(20)
    state = home.read_state()
    assert state is not None
    assert state.ready
    assert all(alive(process) for process in state.processes)
    assert sorted(pids(home)) == ["agent-1", "agent-2", "api", "planner", "traffic"]
    running.end()
    assert running.error is None
    assert not any(alive(process) for process in state.processes)
    assert home.read_state() is None
    lock = home.lock()
    assert lock is not None
    lock.close()
    order = ["api", "database", "migrate", "admit", "seed", "agent-1", "agent-2", "planner", "applied", "traffic"]
    assert [name for name in rooms.asked if name in order][: len(order)] == order
    assert rooms.asked[-1] == "stop database"
    assert running.phases == ["database", "schema", "access", "api", "documents", "agents", "first plan"]


def test_without_the_demo_there_is_only_the_control_plane(home: Home) -> None:
    rooms = FakeRooms()
    running = Running(home, rooms, demo=False)
    assert running.ready.wait(20)
    assert sorted(pids(home)) == ["api", "planner"]
    running.end()
    assert "seed" not in rooms.asked


def test_a_killed_child_comes_back(home: Home) -> None:
    running = Running(home, FakeRooms())
    assert running.ready.wait(20)
    before = pids(home)["planner"]
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: pids(home).get("planner", before) != before)
    running.end()


def test_a_home_without_room_ends_nobody(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(home, FakeRooms())
    try:
        assert running.ready.wait(20)
        before, refused, write = pids(home), threading.Event(), home.write_state

        def full(state: SupervisorState) -> None:
            refused.set()
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(home, "write_state", full)
        os.kill(before["agent-1"], signal.SIGKILL)
        assert refused.wait(10)
        monkeypatch.setattr(home, "write_state", write)
        wait_until(lambda: pids(home).get("agent-1", before["agent-1"]) != before["agent-1"])
        assert {**pids(home), "agent-1": 0} == {**before, "agent-1": 0}
    finally:
        running.end()
    assert running.error is None


@pytest.mark.parametrize("damaged", ["{", "{}", None])
def test_a_state_that_was_damaged_or_lost_is_told_again(home: Home, damaged: str | None) -> None:
    """Without it nobody finds a supervisor that lives."""
    running = Running(home, FakeRooms())
    try:
        assert running.ready.wait(20)
        before, file = home.read_state(), home.path / "state.json"
        if damaged is None:
            file.unlink()
        else:
            file.write_text(damaged)
        wait_until(lambda: home.read_state() == before)
    finally:
        running.end()


KILLED = """
import os, signal, sys
from pathlib import Path
from app.demo.home import Home
from tests.unit.app.demo.test_supervisor import FakeRooms, Running

def killed(self, state):
    if len(state.processes) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    written(self, state)

written, Home.write_state = Home.write_state, killed
Running(Home(Path(sys.argv[1])), FakeRooms())
"""


def living(home: Home) -> list[int]:
    """Children of this home, whoever told of them."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f" {home.logs}\0".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return sorted(found)


@pytest.mark.parametrize(("children", "told"), [(1, []), (3, ["api"])])
def test_what_was_started_and_not_told_of_is_ended_after_its_supervisor_was_killed(
    home: Home, children: int, told: list[str]
) -> None:
    killed = [sys.executable, "-c", KILLED, str(home.path), str(children)]
    assert subprocess.run(killed, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    assert (len(living(home)), list(pids(home))) == (children, told)
    elsewhere = {**os.environ, MARK: f"api {home.path}-2/logs"}
    with subprocess.Popen([sys.executable, "-S", "-c", FOREVER], env=elsewhere, start_new_session=True) as other:
        running = Running(home, FakeRooms())
        running.ready.wait(20)
        known = sorted(pids(home).values())
        # What a process was started with can be read a moment after it was started.
        with contextlib.suppress(AssertionError):
            wait_until(lambda: living(home) == known)
        stood = living(home)
        running.end()
        left, is_other_left_alone = living(home), other.poll() is None
        for pid in (*left, other.pid):
            os.kill(pid, signal.SIGKILL)
    assert (len(known), stood, left, is_other_left_alone) == (5, known, [], True)


def test_a_second_supervisor_of_the_same_home_is_refused(home: Home) -> None:
    running = Running(home, FakeRooms())
    assert running.ready.wait(20)
    second = Running(home, FakeRooms())
    second.thread.join(20)
    assert isinstance(second.error, AlreadyRunningError)
    assert pids(home)
    running.end()


def test_an_api_that_cannot_start_ends_everything_with_its_last_words(home: Home) -> None:
    rooms = FakeRooms(api_code="print('no such table', flush=True); raise SystemExit(1)")
    rooms.serves = False
    running = Running(home, rooms)
    running.thread.join(30)
    assert isinstance(running.error, StartError)
    assert "the API did not start: no such table" in str(running.error)
    assert rooms.asked[-1] == "stop database"
    assert home.read_state() is None


def test_a_database_that_does_not_stop_hides_nothing(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """What went wrong first is told, and what stays behind is found by `headroom down`."""

    def full(*_: str) -> None:
        raise StateError("no space left on device")

    def stuck() -> None:
        raise StateError("the embedded database did not stop")

    rooms = FakeRooms()
    monkeypatch.setattr(rooms, "migrate", full)
    monkeypatch.setattr(rooms, "stop_database", stuck)
    running = Running(home, rooms)
    running.thread.join(30)
    assert str(running.error) == "no space left on device"
    assert home.read_state() is None


def test_asking_to_stop_while_starting_stops(home: Home) -> None:
    rooms = FakeRooms()
    rooms.serves = False
    running = Running(home, rooms)
    wait_until(lambda: "admit" in rooms.asked)
    running.end()
    assert isinstance(running.error, StoppedError)
    assert rooms.asked[-1] == "stop database"


def test_a_port_in_use_is_said_before_anything_starts(home: Home) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        rooms = FakeRooms()
        order = Order(settings=Settings(home=home.path, port=port))
        with pytest.raises(StateError, match=f"cannot listen on 127.0.0.1:{port}: .* in use; choose another"):
            Supervisor(order, home, rooms, lambda *_: None).run(lambda _: None)
    assert rooms.asked == []


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.0.1", "http://127.0.0.1:9"), ("0.0.0.0", "http://127.0.0.1:9"), ("::1", "http://[::1]:9")],
)
def test_the_address_is_one_that_this_machine_can_open(host: str, address: str) -> None:
    assert address_of(Settings(host=host, port=9)) == address


def test_a_free_port_passes() -> None:
    check_port("127.0.0.1", free_port())
