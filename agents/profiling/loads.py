"""Where a run's load comes from: real requests to a real process, or arrivals told to a simulated one."""

from __future__ import annotations

import threading
from typing import Protocol

from agents.devices.base import WorkerReading
from agents.errors import NotSupportedError
from agents.profiling.load import ClientLoad, LoadRequest, LoadSeen
from agents.profiling.session import Generator
from agents.wire import WorkerTarget

OFFER_S = 0.25
OFFER_RPS = 20_000.0
"""More than any simulated worker completes."""


class LoadMaker(Protocol):
    """Makes load for the workers of a run."""

    origin: str
    """Of what is measured under it: `measured` or `simulated`."""

    def refusal(self, worker: WorkerTarget | None) -> str:
        """Why a workload cannot be loaded; empty when it can."""
        ...

    def begin(self, worker: WorkerReading, concurrency: int) -> Generator:
        """Start a closed loop on a worker."""
        ...


class HttpLoads:
    """Sends a worker its own warm-up request over and over."""

    origin = "measured"

    def refusal(self, worker: WorkerTarget | None) -> str:
        """It needs a process and a request."""
        if worker is None:
            return "the service has no `worker`: it does not say how its process is started"
        return (
            "" if worker.warm_up is not None else "its `worker` has no `warm_up`: there is no request to load it with"
        )

    def begin(self, worker: WorkerReading, concurrency: int) -> Generator:
        """Start a closed loop on a worker."""
        described = worker.spec.worker
        if worker.endpoint is None or described is None or described.warm_up is None:
            raise NotSupportedError(f"{worker.worker} has no address or no request to load it with")
        warm_up = described.warm_up
        request = LoadRequest(path=warm_up.path, body=warm_up.body.encode(), content_type=warm_up.content_type)
        load = ClientLoad(worker.endpoint, request)
        load.closed(concurrency)
        return load


class Offering(Protocol):
    """Takes load by replica; see `FakeDevices.offer`."""

    def offer(self, loads: dict[str, float], over_s: float) -> object:
        """Requests that arrive over the coming seconds."""
        ...


class OfferedLoads:
    """Tells simulated workers of more requests than they can take."""

    origin = "simulated"

    def __init__(self, offering: Offering) -> None:
        self._offering = offering

    def refusal(self, worker: WorkerTarget | None) -> str:  # noqa: ARG002 - simulated workers need no process
        """It needs nothing."""
        return ""

    def begin(self, worker: WorkerReading, concurrency: int) -> Generator:  # noqa: ARG002 - it always saturates
        """Keep a worker busy."""
        return _Offered(self._offering, worker.spec.replica)


class _Offered:
    """Arrivals at one replica until closed."""

    def __init__(self, offering: Offering, replica: str) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(offering, replica), name="load", daemon=True)
        self._thread.start()

    def take(self) -> LoadSeen:
        """Nothing comes back from simulated workers but their own reports."""
        return LoadSeen()

    def close(self) -> None:
        """Stop."""
        self._stop.set()
        self._thread.join(10.0)

    def _run(self, offering: Offering, replica: str) -> None:
        while not self._stop.is_set():
            offering.offer({replica: OFFER_RPS * OFFER_S}, OFFER_S)
            self._stop.wait(OFFER_S)
