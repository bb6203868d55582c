"""Where a run's load comes from: real requests to a real process over plain HTTP, or arrivals told to a simulated one.

The loop is closed: each client sends when it has its answer, so that a worker is as busy as it can be and no queue
grows without end. What fails is counted, not tried again.
"""

from __future__ import annotations

import http.client
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from agents.devices.base import WorkerReading
from agents.errors import DeviceError, NotSupportedError
from agents.wire import WarmUpTarget, WorkerTarget

if TYPE_CHECKING:
    from agents.devices.fake.host import FakeDevices

TIMEOUT_S = 60.0
CLIENTS_MAX = 512
_PIECE_BYTES = 65536


@dataclass(slots=True)
class LoadSeen:
    """What came back in a stretch of time."""

    latencies_ms: list[float] = field(default_factory=list)
    failed: int = 0
    first_failure: str = ""


def _begun(thread: threading.Thread) -> threading.Thread:
    """Raises DeviceError where the host has no thread left: no WorkerError, since no point is to blame for that."""
    try:
        thread.start()
    except RuntimeError as error:
        raise DeviceError(f"this host has no thread left for the load: {error}") from None
    return thread


class ClientLoad:
    """So many clients, in threads until stopped, sending one request over and over: POST with a body, GET without."""

    def __init__(self, base_url: str, request: WarmUpTarget, clients: int) -> None:
        parts = urlsplit(base_url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._request = request
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._seen = LoadSeen()
        self._threads: list[threading.Thread] = []
        try:
            for _ in range(min(clients, CLIENTS_MAX)):
                self._threads.append(_begun(threading.Thread(target=self._client, name="load", daemon=True)))
        except DeviceError:
            self.close()
            raise

    def take(self) -> LoadSeen:
        with self._lock:
            seen, self._seen = self._seen, LoadSeen()
        return seen

    def close(self) -> None:
        """Stop; requests under way are waited for, all together no longer than one may take. Who is left then ends with
        the worker's process.
        """
        self._stop.set()
        until_s = time.monotonic() + TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _client(self) -> None:
        connection = self._connection()
        while not self._stop.is_set():
            connection = self._one(connection, time.monotonic())
        connection.close()

    def _one(self, connection: http.client.HTTPConnection, since_s: float) -> http.client.HTTPConnection:
        """Send one request; the connection to use for the next one."""
        problem = ""
        try:
            if self._request.body:
                headers = {"Content-Type": self._request.content_type}
                connection.request("POST", self._request.path, self._request.body.encode(), headers)
            else:
                connection.request("GET", self._request.path)
            response = connection.getresponse()
            # What is answered is the tenant's to say, and may have no end: nothing of it is kept.
            while response.read1(_PIECE_BYTES):
                pass
            response.close()
            if response.status >= 400:
                problem = f"status {response.status}"
        except (OSError, http.client.HTTPException) as error:
            problem = f"{type(error).__name__}: {error}"
            connection.close()
            connection = self._connection()
            # A worker that refuses connections must not be asked thousands of times a second.
            self._stop.wait(0.05)
        took_ms = 1000.0 * (time.monotonic() - since_s)
        with self._lock:
            if problem:
                self._seen.failed += 1
                self._seen.first_failure = self._seen.first_failure or problem
            else:
                self._seen.latencies_ms.append(took_ms)
        return connection

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)


OFFER_S = 0.25
OFFER_RPS = 20_000.0
"""More than any simulated worker completes."""


class HttpLoads:
    """Sends a worker its own warm-up request over and over."""

    origin = "measured"
    """Of what is measured under this load."""

    def refusal(self, worker: WorkerTarget | None) -> str:
        """Why a workload cannot be loaded; empty when it can."""
        if worker is None:
            return "the service has no `worker`: it does not say how its process is started"
        return (
            "" if worker.warm_up is not None else "its `worker` has no `warm_up`: there is no request to load it with"
        )

    def begin(self, worker: WorkerReading, concurrency: int) -> ClientLoad:
        described = worker.spec.worker
        if worker.endpoint is None or described is None or described.warm_up is None:
            raise NotSupportedError(f"{worker.worker} has no address or no request to load it with")
        return ClientLoad(worker.endpoint, described.warm_up, concurrency)


class _Offered:
    def __init__(self, offering: FakeDevices, replica: str) -> None:
        self._stop = threading.Event()
        self._thread = _begun(threading.Thread(target=self._run, args=(offering, replica), name="load", daemon=True))

    def take(self) -> LoadSeen:
        """Nothing comes back from simulated workers but their own reports."""
        return LoadSeen()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(10.0)

    def _run(self, offering: FakeDevices, replica: str) -> None:
        while not self._stop.is_set():
            offering.offer({replica: OFFER_RPS * OFFER_S}, OFFER_S)
            self._stop.wait(OFFER_S)


class OfferedLoads:
    """Tells simulated workers of more requests than they can take."""

    origin = "simulated"

    def __init__(self, offering: FakeDevices) -> None:
        self._offering = offering

    def refusal(self, worker: WorkerTarget | None) -> str:  # noqa: ARG002 - simulated workers need no process
        return ""

    def begin(self, worker: WorkerReading, concurrency: int) -> _Offered:  # noqa: ARG002 - it always saturates
        return _Offered(self._offering, worker.spec.replica)


LoadMaker = HttpLoads | OfferedLoads
"""Makes load for the workers of a run."""
Generator = ClientLoad | _Offered
"""Load that is running."""
