"""Every API process behind HAProxy is restarted in turn, twice, under steady load: no client sees a failed request,
nothing that was acknowledged is lost or done twice, and streams come back.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.clock import new_id
from app.store.engine import Database
from tests.integration.availability.proxy import Proxy, balancing
from tests.integration.faults.bells import Listener
from tests.integration.faults.fleet import seed
from tests.integration.faults.house import Background, House, Process
from tests.integration.faults.invariants import DOUBLED, HOLES
from tests.integration.faults.reporters import Reporter, report
from tests.integration.store.samples import tell
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

DRAIN_S = 3.0
ENDS_S_MAX = 30.0
ROUNDS = 2


class Writer:
    """Somebody who tries nothing twice: what is not answered as it should be fails the test."""

    def __init__(self, house: House, name: str) -> None:
        self.name = name
        self.written = self.made = 0
        self._tag = ""
        self._http = httpx.Client(base_url=house.address, headers={"Authorization": f"Bearer {house.admin}"})

    def __call__(self) -> None:
        """A guarded PUT, a read of it, and a POST that is sent twice."""
        wanted = {"name": self.name, "priority_max": self.written + 1}
        guard = {"If-Match": self._tag} if self._tag else {"If-None-Match": "*"}
        path = f"/v1/projects/{self.name}"
        put = self._send("PUT", path, wanted, guard)
        self.written, self._tag = self.written + 1, put.headers["etag"]
        assert self._send("GET", path).json()["priority_max"] == self.written
        key = {"Idempotency-Key": new_id()}
        token = {"name": f"{self.name}-{self.made + 1}", "role": "viewer"}
        first, again = (self._send("POST", "/v1/tokens", token, key) for _ in range(2))
        assert first.json()["id"] == again.json()["id"]
        self.made += 1

    def _send(self, method: str, path: str, plain: Any = None, headers: dict[str, str] | None = None) -> httpx.Response:
        answer = self._http.request(method, path, json=plain, headers=headers)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer

    def close(self) -> None:
        self._http.close()


class Watcher:
    """Whoever follows routes: dials again when the stream ends, and counts how often."""

    def __init__(self, house: House) -> None:
        self.dialled = self.lines = 0
        self._house = house

    def __call__(self) -> None:
        headers = {"Authorization": f"Bearer {self._house.admin}"}
        address = f"{self._house.address}/v1/routes?watch=true"
        with httpx.stream("GET", address, headers=headers, timeout=5.0) as answer:
            assert answer.status_code == 200, answer.read()
            self.dialled += 1
            begun_s = time.monotonic()
            for _ in answer.iter_lines():
                self.lines += 1
                if time.monotonic() - begun_s > 2.0:
                    return


@pytest.fixture
def replicas(house: House, tmp_path: Path) -> Iterator[Replicas]:
    with ExitStack() as stack:
        yield Replicas(house, tmp_path, stack)


class Replicas:
    def __init__(self, house: House, folder: Path, stack: ExitStack) -> None:
        self.house = house
        self.ports = [free_port() for _ in range(2)]
        self.processes = [self._start(port) for port in self.ports]
        self.proxy: Proxy = stack.enter_context(balancing(folder, house.port, self.ports))

    def restart(self, number: int) -> float:
        """End one, and start it again once it is gone; seconds that the end took."""
        begun_s = time.monotonic()
        # The server tells its parent which signal ended it.
        assert self.processes[number].terminate() == -signal.SIGTERM, self.house.story()
        took_s = time.monotonic() - begun_s
        self.processes[number] = self._start(self.ports[number])
        wait_until(lambda: self.proxy.serving() == {"api-1", "api-2"}, "HAProxy finds it ready again")
        return took_s

    def _start(self, port: int) -> Process:
        return self.house.start_api(port=port, drain_s=str(DRAIN_S))


def test_no_client_notices_that_every_replica_restarts_twice(replicas: Replicas) -> None:
    house = replicas.house
    with house.client() as client:
        seed(client)
    writers = [Writer(house, f"writer-{number}") for number in range(2)]
    reporters = [Reporter(house.address, f"node-{number}", house.join, random.Random(number)) for number in range(1)]
    database = Database(house.url, pool_size=1)
    with database.transaction() as session:
        for each in reporters:
            tell(session, each.node, *report(each.node, each.boot_id, 1, 0.0).replicas)
    database.dispose()
    house.start_agent("direct", "t4", ",".join(f"http://127.0.0.1:{port}" for port in replicas.ports))
    ending = threading.Event()
    watcher = Watcher(house)
    took_s = []
    with ExitStack() as load:
        bell = load.enter_context(Listener(house))
        going = [load.enter_context(Background(step, 0.1)) for step in (*writers, watcher)]
        threads = [threading.Thread(target=each.run, args=(ending,), daemon=True) for each in reporters]
        for thread in threads:
            thread.start()
        load.callback(lambda: [thread.join(60.0) for thread in threads])
        load.callback(ending.set)
        for number in [0, 1] * ROUNDS:
            took_s.append(replicas.restart(number))
            dialled = bell.dialled
            _await_progress(going, writers)
        house.await_true("the doorbell is heard", lambda: bell.dialled >= dialled > 0 and bell.heard)
    for reporter in reporters:
        reporter.close()
    assert all(DRAIN_S <= each <= ENDS_S_MAX for each in took_s), took_s
    assert bell.dialled > 1, "its stream was ended, and came back"
    assert watcher.lines > watcher.dialled > 0
    _check_written(house, writers)
    _check_reported(house, reporters)


def _await_progress(going: list[Background], writers: list[Writer]) -> None:
    """Everybody gets on, now that all serve again. Raises what went wrong for any of them."""
    before = [writer.made for writer in writers]

    def further() -> bool:
        for each in going:
            each.check()
        return all(writer.made > made for writer, made in zip(writers, before, strict=True))

    wait_until(further, "writers go on")


def _check_written(house: House, writers: list[Writer]) -> None:
    for writer in writers:
        writer.close()
        assert writer.written == writer.made > 0
        kept = house.one("SELECT spec ->> 'priority_max' FROM projects WHERE name = %s", writer.name)
        assert int(kept) == writer.written
        subject = f"projects/{writer.name}"
        assert house.one("SELECT count(*) FROM events WHERE subject = %s", subject) == writer.written
        names = house.rows("SELECT name FROM tokens WHERE name LIKE %s", f"{writer.name}-%")
        assert sorted(names) == sorted((f"{writer.name}-{number}",) for number in range(1, writer.made + 1))


def _check_reported(house: House, reporters: list[Reporter]) -> None:
    sent = {
        (f"node/{reporter.node}", boot_id, sequence)
        for reporter in reporters
        for boot_id, sequence in reporter.acknowledged
    }
    assert [(each.refused, each.resent) for each in reporters] == [([], 0)] * len(reporters)
    logged = house.rows("SELECT source, boot_id, sequence FROM report_log WHERE source <> 'node/direct'")
    assert {tuple(row) for row in logged} == sent
    assert house.rows(DOUBLED) == house.rows(HOLES) == []
