"""Request level: one service's replicas over a stretch of time in which nothing is reconfigured.

Owns the records around the hot loop (`solvers.sim.serving.request_loop`): who serves, what is carried in and out of a
stretch, and what became of every request. Times are seconds of the world's own time; execution tables are milliseconds
by batch size, as the truth gives them. Randomness is handed in. The loop is compiled where numba is installed (extra
`sim`), and runs uncompiled, byte for byte alike, where it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from solvers.domain.value import check_not_negative, check_positive
from solvers.errors import FieldError
from solvers.sim.serving import request_loop
from solvers.sim.serving.request_loop import DROPPED, LANE, NOBODY, REQUEST, WAITING, LoopWork

if TYPE_CHECKING:
    from numpy.typing import NDArray

Loop: TypeAlias = Callable[[LoopWork, int, float], None]


class Router(Enum):
    """How a service's requests are spread over its replicas, by their weights."""

    WEIGHTED_RANDOM = request_loop.WEIGHTED_RANDOM
    ROUND_ROBIN = request_loop.ROUND_ROBIN
    LEAST_OUTSTANDING = request_loop.LEAST_OUTSTANDING


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaServer:
    """One replica. `exec_ms[b - 1]` is the mean time of a batch of b; its length is the batch limit. A batch that is
    not full waits until its oldest request is `wait_ms` old. Weight 0: it only works off its queue.
    """

    exec_ms: tuple[float, ...]
    weight: float = 1.0
    wait_ms: float = 0.0
    queue_max: int = 2**40

    def __post_init__(self) -> None:
        if not self.exec_ms:
            raise FieldError("exec_ms", "a server needs the time of a batch of one")
        for each in self.exec_ms:
            check_positive("exec_ms", each)
        check_not_negative("weight", self.weight)
        check_not_negative("wait_ms", self.wait_ms)
        check_positive("queue_max", self.queue_max)


@dataclass(frozen=True, slots=True)
class Carried:
    """State of one replica between stretches: arrival times of what waits, when the running batch ends (0: none runs),
    how many requests are in that, and the router's credit.
    """

    waiting_s: tuple[float, ...] = ()
    free_s: float = 0.0
    executing: int = 0
    credit: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """What is asked: serve `arrivals_s` (sorted, within the stretch). `limit_ms`: hopeless work beyond it is dropped;
    None never drops. `noise_sigma` is the spread of the logarithm of a batch's time; its mean stays.
    """

    from_s: float
    until_s: float
    arrivals_s: NDArray[np.float64]
    servers: tuple[ReplicaServer, ...]
    carried: tuple[Carried, ...] = ()
    router: Router = Router.LEAST_OUTSTANDING
    limit_ms: float | None = None
    noise_sigma: float = 0.0

    def __post_init__(self) -> None:
        if self.until_s <= self.from_s:
            raise FieldError("until_s", "a stretch ends after it begins")
        if self.carried and len(self.carried) != len(self.servers):
            raise FieldError("carried", "as many states as servers")
        if len(self.arrivals_s) and not any(server.weight > 0.0 for server in self.servers):
            raise FieldError("servers", "arrivals need a server with weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsOutcome:
    """What became of every request, those carried in first, and of every server. A batch that runs over the end of the
    stretch is in here with its finish; its busy time after the end is not.
    """

    arrival_s: NDArray[np.float64]
    finish_s: NDArray[np.float64]
    """nan for what was dropped or still waits."""
    replica: NDArray[np.int64]
    batch: NDArray[np.int64]
    """Size of the batch it was part of; 0 for what was dropped or still waits."""
    dropped: NDArray[np.bool_]
    busy_s: NDArray[np.float64]
    batches: NDArray[np.int64]
    carried: tuple[Carried, ...]

    @property
    def latency_ms(self) -> NDArray[np.float64]:
        """Of each request; nan for what was dropped or still waits."""
        latency: NDArray[np.float64] = 1000.0 * (self.finish_s - self.arrival_s)
        return latency

    @property
    def completed(self) -> int:
        """Requests with an answer."""
        return int(np.count_nonzero(self.batch))

    def late(self, limit_ms: float) -> int:
        """Answers later than this; dropped requests are not in here."""
        return int(np.count_nonzero(self.latency_ms > limit_ms * (1.0 + 1e-9)))


@lru_cache(maxsize=1)
def compiled_loop() -> Loop | None:
    """The hot loop as machine code, or None where numba is not installed."""
    try:
        import numba
        from numba.extending import register_jitable
    except ImportError:
        return None
    for helper in request_loop.HELPERS:
        register_jitable(helper)
    loop: Loop = numba.njit()(request_loop.run)
    return loop


def serve_requests(stretch: Stretch, draw: np.random.Generator, loop: Loop | None = None) -> RequestsOutcome:
    """Run the stretch. `loop` overrides the choice of compiled or plain, which changes nothing but the speed."""
    lanes, requests = lanes_of(stretch), _requests(stretch, draw)
    before = lanes.copy()
    (loop or compiled_loop() or request_loop.run)(
        LoopWork(lanes, exec_table_s(stretch.servers), requests), stretch.router.value, stretch.until_s
    )
    return outcome_of(stretch, before, lanes, requests)


def outcome_of(
    stretch: Stretch, before: NDArray[np.void], lanes: NDArray[np.void], requests: NDArray[np.void]
) -> RequestsOutcome:
    """What a loop left behind, as an outcome. `before`: the replicas as the loop found them."""
    carried_in_s = np.minimum(before["free_s"], stretch.until_s) - stretch.from_s
    ran_over_s = np.where(lanes["batches"] > 0, np.maximum(0.0, lanes["free_s"] - stretch.until_s), 0.0)
    return RequestsOutcome(
        arrival_s=requests["arrival_s"],
        finish_s=requests["finish_s"],
        replica=requests["replica"],
        batch=requests["batch"],
        dropped=requests["state"] == DROPPED,
        busy_s=carried_in_s + lanes["busy_s"] - ran_over_s,
        batches=lanes["batches"],
        carried=_carried(stretch, lanes, requests),
    )


def states_of(stretch: Stretch) -> tuple[Carried, ...]:
    """The state of every server at the beginning."""
    return stretch.carried or tuple(Carried() for _ in stretch.servers)


def exec_table_s(servers: tuple[ReplicaServer, ...]) -> NDArray[np.float64]:
    """Seconds by replica and batch size less one, rows filled up with their last value."""
    exec_s = np.empty((len(servers), max((len(server.exec_ms) for server in servers), default=1)))
    for row, server in enumerate(servers):
        exec_s[row] = server.exec_ms[-1] / 1000.0
        exec_s[row, : len(server.exec_ms)] = np.array(server.exec_ms) / 1000.0
    return exec_s


def lanes_of(stretch: Stretch) -> NDArray[np.void]:
    """Every server as the loop takes it."""
    lanes = np.zeros(len(stretch.servers), dtype=LANE)
    for lane, server, state in zip(lanes, stretch.servers, states_of(stretch), strict=True):
        lane["batch_max"], lane["wait_s"] = len(server.exec_ms), server.wait_ms / 1000.0
        lane["queue_max"], lane["weight"] = server.queue_max, server.weight
        lane["free_s"], lane["full_s"] = max(stretch.from_s, state.free_s), -np.inf
        lane["executing"], lane["credit"] = state.executing, state.credit
    lanes["limit_s"] = np.inf if stretch.limit_ms is None else stretch.limit_ms / 1000.0
    return lanes


def _requests(stretch: Stretch, draw: np.random.Generator) -> NDArray[np.void]:
    waiting = [(at_s, lane) for lane, state in enumerate(states_of(stretch)) for at_s in state.waiting_s]
    old, sigma = len(waiting), stretch.noise_sigma
    requests = np.zeros(old + len(stretch.arrivals_s), dtype=REQUEST)
    requests["arrival_s"][:old] = [at_s for at_s, _ in waiting]
    requests["arrival_s"][old:] = stretch.arrivals_s
    requests["replica"][:old] = [lane for _, lane in waiting]
    requests["replica"][old:] = NOBODY
    requests["pick"] = draw.random(len(requests))
    requests["noise"] = np.exp(sigma * draw.standard_normal(len(requests)) - 0.5 * sigma * sigma)
    requests["finish_s"], requests["state"] = np.nan, WAITING
    return requests


def _carried(stretch: Stretch, lanes: NDArray[np.void], requests: NDArray[np.void]) -> tuple[Carried, ...]:
    waits = np.flatnonzero(requests["state"] == WAITING)
    runs_on = lanes["free_s"] > stretch.until_s
    queues: list[list[float]] = [[] for _ in stretch.servers]
    for request in waits:
        queues[int(requests["replica"][request])].append(float(requests["arrival_s"][request]))
    return tuple(
        Carried(
            waiting_s=tuple(queue),
            free_s=float(lanes["free_s"][lane]) if runs_on[lane] else 0.0,
            executing=int(lanes["executing"][lane]) if runs_on[lane] else 0,
            credit=float(lanes["credit"][lane]),
        )
        for lane, queue in enumerate(queues)
    )
