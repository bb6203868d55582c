"""One machine, one control plane: starts every process in order, keeps each alive, stops all in reverse, also after a
failure half-way. What is started is told by `rooms`, what is seeded by `fleet`.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.demo.home import Home, SupervisorState
from app.demo.process import Child, ChildSpec, end_processes, identify, leftovers
from app.demo.rooms import LocalRooms, Order, address_of
from app.logs import EventLog
from app.signals import asked_to_end
from solvers.errors import HeadroomError, StateError

WATCH_INTERVAL_S = 0.2
POLL_INTERVAL_S = 0.1
CARE_INTERVAL_S = 5.0
"""How often logs are bounded and the database is looked at."""
READY_DEADLINE_S = 180.0
_log = EventLog("headroom.supervisor")


class AlreadyRunningError(StateError):
    code = "already-running"


class StartError(HeadroomError):
    """Something that had to come up did not."""

    code = "start-failed"


class StoppedError(HeadroomError):
    """Asked to stop while starting."""

    code = "stopped"


class Supervisor:
    """Brings one order up, holds it, takes it down."""

    def __init__(self, order: Order, home: Home, rooms: LocalRooms, told: Callable[[str, float], None]) -> None:
        self._order = order
        self._home = home
        self._rooms = rooms
        self._told = told
        self._ending = threading.Event()
        self._children: list[list[Child]] = []
        self._started_s = time.monotonic()
        self._url = ""
        self._ready = False

    def run(self, on_ready: Callable[[float], None]) -> None:
        """Bring everything up, tell `on_ready` the seconds it took, stay until a signal. Raises HeadroomError when
        something stays down.
        """
        self._home.prepare()
        lock = self._home.lock()
        if lock is None:
            raise AlreadyRunningError("already running")
        with lock, asked_to_end(self.end):
            clear_leftovers(self._home)
            check_port(self._order.settings.host, self._order.settings.port)
            try:
                self._start()
                self._ready = True
                self._write_state()
                on_ready(time.monotonic() - self._started_s)
                self._watch()
            finally:
                self._stop()

    def end(self) -> None:
        """Ask for the end; `run` returns soon after."""
        self._ending.set()

    @property
    def address(self) -> str:
        return address_of(self._order.settings)

    # -- up -----------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        rooms = self._rooms
        # The API takes its time to import, and then waits for the schema by itself.
        api = self._add([rooms.api()])
        with self._phase("database"):
            self._url = rooms.database()
        with self._phase("schema"):
            rooms.migrate(self._url)
        with self._phase("access"):
            rooms.admit(self._url, self.address)
        with self._phase("api"):
            self._await(rooms.api_ready, READY_DEADLINE_S, "the API", api)
        if not self._order.demo:
            with self._phase("planner"):
                self._add([rooms.planner()])
            return
        with self._phase("documents"):
            rooms.seed()
        with self._phase("agents"):
            self._add(list(rooms.agents()))
        with self._phase("first plan"):
            self._add([rooms.planner()])
            self._await(rooms.first_plan_applied, READY_DEADLINE_S, "the first plan", [])
        # Users come to an open shop: before, all their requests would count as unserved.
        self._add([rooms.traffic()])

    def _add(self, specs: list[ChildSpec]) -> list[Child]:
        children = [Child(spec, self._home.logs) for spec in specs]
        self._children.append(children)
        for child in children:
            child.start()
            _log.info("process.started", process=child.spec.name, pid=child.pid)
        self._write_state()
        return children

    def _await(self, true: Callable[[], bool], deadline_s: float, what: str, children: list[Child]) -> None:
        """Wait for a condition, restarting what dies meanwhile; a child that dies twice before it served is lost."""
        end_s = time.monotonic() + deadline_s
        while not true():
            self._look_after_children()
            failed = next((child for child in children if child.failures > 1), None)
            if failed is not None:
                raise StartError(f"{what} did not start: {_last_line(failed)} (see {failed.log})")
            if time.monotonic() > end_s:
                raise StartError(f"{what} did not come up within {deadline_s:g} s (see {self._home.logs})")
            self._pause(POLL_INTERVAL_S)

    def _pause(self, wait_s: float) -> None:
        if self._ending.wait(wait_s):
            raise StoppedError("stopped while starting")

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        if self._ending.is_set():
            raise StoppedError("stopped while starting")
        begun_s = time.monotonic()
        yield
        elapsed_s = time.monotonic() - begun_s
        _log.info("phase.ended", phase=name, elapsed_s=round(elapsed_s, 3))
        self._told(name, elapsed_s)

    # -- stay ---------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        next_care_s = time.monotonic() + CARE_INTERVAL_S
        while not self._ending.wait(WATCH_INTERVAL_S):
            try:
                self._look_after_children()
                now_s = time.monotonic()
                if now_s >= next_care_s:
                    next_care_s = now_s + CARE_INTERVAL_S
                    self._care()
            except OSError as error:
                # On a full disk nothing can be told: whoever lives goes on, and the rest is tried again.
                _log.warning("home.unwritable", error)
                self._ending.wait(CARE_INTERVAL_S)

    def _care(self) -> None:
        for child in self._all_children():
            child.bound_log()
        try:
            # Finds the running server, or starts it again when it was killed.
            self._rooms.database()
        except HeadroomError as error:
            _log.warning("database.unavailable", error)

    def _look_after_children(self) -> None:
        for child in self._all_children():
            line = child.watch()
            if line is not None:
                _log.warning("process.ended", process=child.spec.name, what=line)
        # Without what is told there nobody finds us: also where it was damaged or lost, it is told again.
        if self._home.read_state() != self._state():
            self._write_state()

    def _all_children(self) -> Iterator[Child]:
        for group in self._children:
            yield from group

    # -- down ---------------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        for group in reversed(self._children):
            for child in group:
                child.ask_to_stop()
            for child in group:
                if not child.await_stop():
                    _log.warning("process.killed", process=child.spec.name)
        try:
            self._rooms.stop_database()
        except HeadroomError as error:
            # What went wrong before is what has to be told.
            _log.error("database.left", error)
        self._home.forget_state()
        _log.info("supervisor.ended")

    def _state(self) -> SupervisorState:
        own = identify("supervisor", os.getpid())
        if own is None:
            raise StartError("cannot read the process table")
        living = [identify(child.spec.name, child.pid) for child in self._all_children() if child.pid is not None]
        return SupervisorState(
            supervisor=own,
            address=self.address,
            ready=self._ready,
            owns_database=not self._order.settings.database_url,
            processes=tuple(process for process in living if process is not None),
        )

    def _write_state(self) -> None:
        self._home.write_state(self._state())


def check_port(host: str, port: int) -> None:
    """Raise StateError when something else listens where the API shall."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise StateError(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another port with --port or HEADROOM_PORT"
            ) from error


def clear_leftovers(home: Home) -> list[str]:
    """End what a killed supervisor left running; only under the home's lock. Returns the names of what lived."""
    ended = end_processes(leftovers(home), deadline_s=10.0)
    home.forget_state()
    return ended


def _last_line(child: Child) -> str:
    try:
        lines = child.log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "it wrote nothing"
    return next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")
