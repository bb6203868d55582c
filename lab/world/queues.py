"""Request level: one service's replicas over a stretch of time in which nothing is reconfigured.

The hot loop, and the records around it: who serves, what is carried in and out of a stretch, and what became of every
request. Times are seconds of the world's own time; execution tables are milliseconds
by batch size, as the truth gives them. Randomness is handed in. The loop is compiled where numba is installed, and runs
uncompiled, byte for byte alike, where it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from lab.world.scenario import Routing
from solvers.domain.arrays import Flags, Floats, Whole
from solvers.domain.value import check_not_negative, check_positive
from solvers.errors import FieldError

# --- The hot loop of the request level: arrivals in order of time, a queue and a batching server per replica
#
# Nothing but arithmetic on arrays, so that a compiler for numerical Python takes it as it stands. A server begins a
# batch as soon as it is free and anything waits. What the router sees when a request arrives is what has happened
# strictly before; requests of one instant may share a batch.

Rows = NDArray[np.void]
WAITING, DONE, DROPPED = 0, 1, 2
WEIGHTED_RANDOM, ROUND_ROBIN, LEAST_OUTSTANDING = 0, 1, 2
NOBODY = -1


LANE = np.dtype(
    [
        ("batch_max", np.int64),
        ("weight", np.float64),
        ("limit_s", np.float64),
        ("free_s", np.float64),
        ("busy_s", np.float64),
        ("credit", np.float64),
        ("head", np.int64),
        ("tail", np.int64),
        ("length", np.int64),
        ("executing", np.int64),
        ("batches", np.int64),
    ]
)
"""A replica: what it is, then what the loop changes. `limit_s`: work that would end later than this after its arrival
is dropped (infinity: never). `busy_s` counts whole batches.
"""
REQUEST = np.dtype(
    [
        ("arrival_s", np.float64),
        ("pick", np.float64),
        ("noise", np.float64),
        ("finish_s", np.float64),
        ("replica", np.int64),
        ("next", np.int64),
        ("batch", np.int64),
        ("state", np.int64),
    ]
)
"""A request. `pick`: a uniform number for the weighted random router. `noise`: the factor on a batch's time if this is
its oldest request. `next`: the one behind it in its queue.
"""


class LoopWork(NamedTuple):
    """What the loop works on. Requests are in order of arrival; those carried in come first and have a replica."""

    lanes: Rows
    exec_s: Floats
    """[replica, batch - 1]; a row is filled up with its last value."""
    requests: Rows


def serve_arrivals(work: LoopWork, router: int, until_s: float) -> None:
    """Serve until then; answers are in the arrays. What has not begun by then stays in the queues."""
    lanes, exec_s, requests = work
    # What the router that counts sees of each replica, and until when it holds if nobody is sent there.
    scores, due_s = np.full(len(lanes), -np.inf), np.full(len(lanes), -np.inf)
    first_due_s = -np.inf
    for request in range(len(requests)):
        now_s = requests[request]["arrival_s"]
        lane = requests[request]["replica"]
        if lane == NOBODY and router == LEAST_OUTSTANDING:
            if first_due_s <= now_s:
                first_due_s = look(work, scores, due_s, now_s)
            lane = np.argmax(scores)
        elif lane == NOBODY:
            lane = route(lanes, requests[request]["pick"], router, now_s)
        requests[request]["replica"] = lane
        catch_up(lanes, exec_s, requests, lane, now_s)
        enqueue(lanes[lane], requests, request)
        if router == LEAST_OUTSTANDING:
            scores[lane], due_s[lane] = seen(lanes[lane], now_s)
            first_due_s = min(first_due_s, due_s[lane])
    for index in range(len(lanes)):
        catch_up(lanes, exec_s, requests, index, until_s)


def look(work: LoopWork, scores: Floats, due_s: Floats, now_s: float) -> float:
    """Catch up with the replicas that change by themselves until now; when the next one does."""
    lanes, exec_s, requests = work
    for index in range(len(lanes)):
        if due_s[index] <= now_s:
            catch_up(lanes, exec_s, requests, index, now_s)
            scores[index], due_s[index] = seen(lanes[index], now_s)
    return float(due_s.min())


def seen(lane: np.void, now_s: float) -> tuple[float, float]:
    """How a replica stands with the router that counts, caught up to now: the best has least outstanding for its
    weight. And when that changes by itself.
    """
    executing = lane["executing"] if lane["free_s"] > now_s else 0
    score = -(lane["length"] + executing + 1) / lane["weight"] if lane["weight"] > 0.0 else -np.inf
    if lane["free_s"] > now_s:
        return score, lane["free_s"]
    return score, now_s if lane["length"] > 0 else np.inf


def route(lanes: Rows, pick: float, router: int, now_s: float) -> int:
    """The replica of a new request. One without weight gets none; at least one must have weight."""
    total = 0.0
    for lane in range(len(lanes)):
        total += lanes[lane]["weight"]
    best, best_score, reached = 0, -np.inf, 0.0
    for lane in range(len(lanes)):
        each = lanes[lane]
        weight = each["weight"]
        if weight <= 0.0:
            continue
        if router == ROUND_ROBIN:
            each["credit"] += weight
            score = each["credit"]
        elif router == LEAST_OUTSTANDING:
            score, _ = seen(each, now_s)
        else:
            # The last lane that begins at or below the pick.
            score = float(lane) if pick * total >= reached else -1.0
            reached += weight
        if score > best_score:
            best, best_score = lane, score
    if router == ROUND_ROBIN:
        lanes[best]["credit"] -= total
    return best


def enqueue(lane: np.void, requests: Rows, request: int) -> None:
    if lane["length"] == 0:
        lane["head"] = request
    else:
        requests[lane["tail"]]["next"] = request
    lane["tail"] = request
    lane["length"] += 1


def catch_up(lanes: Rows, exec_s: Floats, requests: Rows, index: int, until_s: float) -> None:
    """Begin every batch of one replica that begins before `until_s`."""
    lane = lanes[index]
    while lane["length"] > 0:
        start_s = max(lane["free_s"], requests[lane["head"]]["arrival_s"])
        if start_s >= until_s:
            return
        took_s = exec_s[index, min(lane["length"], lane["batch_max"]) - 1]
        drop_hopeless(lane, requests, start_s + took_s, took_s)
        size = min(lane["length"], lane["batch_max"])
        if size > 0:
            launch(lane, requests, start_s, exec_s[index, size - 1])


def drop_hopeless(lane: np.void, requests: Rows, finish_s: float, took_s: float) -> None:
    """Oldest requests that would finish too late, unless their batch alone takes longer than the limit."""
    if took_s > lane["limit_s"]:
        return
    while lane["length"] > 0:
        head = lane["head"]
        if finish_s - requests[head]["arrival_s"] <= lane["limit_s"]:
            return
        requests[head]["state"] = DROPPED
        lane["head"] = requests[head]["next"]
        lane["length"] -= 1


def launch(lane: np.void, requests: Rows, start_s: float, mean_s: float) -> None:
    size = min(lane["length"], lane["batch_max"])
    request = lane["head"]
    took_s = mean_s * requests[request]["noise"]
    for _ in range(size):
        each = requests[request]
        each["finish_s"] = start_s + took_s
        each["batch"] = size
        each["state"] = DONE
        request = each["next"]
    lane["head"] = request
    lane["length"] -= size
    lane["executing"] = size
    lane["free_s"] = start_s + took_s
    lane["busy_s"] += took_s
    lane["batches"] += 1


LOOP_HELPERS = (seen, route, enqueue, drop_hopeless, launch, catch_up, look)
"""What `serve_arrivals` calls, each before those that call it."""


# --- Around the loop

Loop: TypeAlias = Callable[[LoopWork, int, float], None]
T = TypeVar("T")
ROUTERS = {
    Routing.WEIGHTED_RANDOM: WEIGHTED_RANDOM,
    Routing.ROUND_ROBIN: ROUND_ROBIN,
    Routing.LEAST_OUTSTANDING: LEAST_OUTSTANDING,
}
"""How the loop knows them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaServer:
    """One replica. `exec_ms[b - 1]` is the mean time of a batch of b; its length is the batch limit. Weight
    0: it only works off its queue.
    """

    exec_ms: tuple[float, ...]
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.exec_ms:
            raise FieldError("exec_ms", "a server needs the time of a batch of one")
        for each in self.exec_ms:
            check_positive("exec_ms", each)
        check_not_negative("weight", self.weight)


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
    arrivals_s: Floats
    servers: tuple[ReplicaServer, ...]
    carried: tuple[Carried, ...] = ()
    router: Routing = Routing.LEAST_OUTSTANDING
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

    arrival_s: Floats
    finish_s: Floats
    """nan for what was dropped or still waits."""
    replica: Whole
    batch: Whole
    """Size of the batch it was part of; 0 for what was dropped or still waits."""
    dropped: Flags
    busy_s: Floats
    batches: Whole
    carried: tuple[Carried, ...]


@lru_cache(maxsize=1)
def compiled_loop() -> Loop | None:
    """The hot loop as machine code, or None where numba is not installed."""
    return machine_code(serve_arrivals, LOOP_HELPERS)


def machine_code(loop: Callable[..., T], helpers: Iterable[Callable[..., object]]) -> Callable[..., T] | None:
    """A loop compiled with what it calls; None where numba is not installed."""
    try:
        import numba
        from numba.extending import register_jitable
    except ImportError:
        return None
    for helper in helpers:
        register_jitable(helper)
    compiled: Callable[..., T] = numba.njit()(loop)
    return compiled


def serve_requests(stretch: Stretch, draw: np.random.Generator, loop: Loop | None = None) -> RequestsOutcome:
    """Run the stretch. `loop` overrides the choice of compiled or plain, which changes nothing but the speed."""
    lanes, requests = lanes_of(stretch), _requests(stretch, draw)
    before = lanes.copy()
    (loop or compiled_loop() or serve_arrivals)(
        LoopWork(lanes, exec_table_s(stretch.servers), requests), ROUTERS[stretch.router], stretch.until_s
    )
    return outcome_of(stretch, before, lanes, requests)


def outcome_of(stretch: Stretch, before: Rows, lanes: Rows, requests: Rows) -> RequestsOutcome:
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
    return stretch.carried or tuple(Carried() for _ in stretch.servers)


def exec_table_s(servers: tuple[ReplicaServer, ...]) -> Floats:
    """Seconds by replica and batch size less one, rows filled up with their last value."""
    exec_s = np.empty((len(servers), max((len(server.exec_ms) for server in servers), default=1)))
    for row, server in enumerate(servers):
        exec_s[row] = server.exec_ms[-1] / 1000.0
        exec_s[row, : len(server.exec_ms)] = np.array(server.exec_ms) / 1000.0
    return exec_s


def lanes_of(stretch: Stretch) -> Rows:
    lanes = np.zeros(len(stretch.servers), dtype=LANE)
    for lane, server, state in zip(lanes, stretch.servers, states_of(stretch), strict=True):
        lane["batch_max"], lane["weight"] = len(server.exec_ms), server.weight
        lane["free_s"] = max(stretch.from_s, state.free_s)
        lane["executing"], lane["credit"] = state.executing, state.credit
    lanes["limit_s"] = np.inf if stretch.limit_ms is None else stretch.limit_ms / 1000.0
    return lanes


def _requests(stretch: Stretch, draw: np.random.Generator) -> Rows:
    waiting = [(at_s, lane) for lane, state in enumerate(states_of(stretch)) for at_s in state.waiting_s]
    old, sigma = len(waiting), stretch.noise_sigma
    requests = request_rows(old + len(stretch.arrivals_s), sigma, draw)
    requests["arrival_s"][:old] = [at_s for at_s, _ in waiting]
    requests["arrival_s"][old:] = stretch.arrivals_s
    requests["replica"][:old] = [lane for _, lane in waiting]
    return requests


def request_rows(count: int, sigma: float, draw: np.random.Generator) -> Rows:
    rows = np.zeros(count, dtype=REQUEST)
    rows["replica"] = NOBODY
    rows["pick"] = draw.random(count)
    rows["noise"] = np.exp(sigma * draw.standard_normal(count) - 0.5 * sigma * sigma)
    rows["finish_s"], rows["state"] = np.nan, WAITING
    return rows


def _carried(stretch: Stretch, lanes: Rows, requests: Rows) -> tuple[Carried, ...]:
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
