"""Closed-loop clients of one service over a stretch of time in which nothing is reconfigured.

A client waits for its answer, thinks for an exponential time and asks again, so load gives way when a service is slow.
One whose request is dropped or that finds no server asks again after its thought, at the earliest after
`RETRY_S`. Compiled where numba is installed, and the same bytes where it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np

from lab.world.queues import (
    DROPPED,
    LOOP_HELPERS,
    NOBODY,
    ROUTERS,
    LoopWork,
    RequestsOutcome,
    Rows,
    Stretch,
    drop_hopeless,
    enqueue,
    exec_table_s,
    lanes_of,
    launch,
    machine_code,
    outcome_of,
    request_rows,
    route,
    states_of,
)
from lab.world.scenario import Closed
from solvers.domain.arrays import Floats, Whole
from solvers.errors import FieldError

# --- The hot loop of closed-loop clients: they ask, wait for their answer, think, and ask again
#
# The next event is the earliest of a change in the number of clients, a client's question and the beginning of a
# batch; of one instant they happen in this order, so that questions of one instant may share a batch. Clients are
# alike, so a heap of the times at which they ask next is all that is known of them. One that is surplus when it would
# ask leaves instead.

RETRY_S = 0.1
"""A client whose request was dropped, or that found nobody to ask, asks again after its thought, and after this."""
ASKING, ALIVE, STEP, JOINED, ROW = 0, 1, 2, 3, 4
COUNTERS = 5


class Crowd(NamedTuple):
    asks_s: Floats
    """A binary heap, the earliest first; room for all clients there can be."""
    think_s: Floats
    """By request: how long its client thinks after it."""
    joiner_think_s: Floats
    """How long new clients think before they first ask, in order of coming."""
    steps_s: Floats
    clients: Whole
    """How many clients there shall be from each step on."""
    counters: Whole
    """How many think, how many there are, next step, joiners so far, next request."""


def serve_crowd(work: LoopWork, crowd: Crowd, router: int, until_s: float) -> bool:
    """Serve until then, or until there is no room for another request: False, and more room lets it go on."""
    lanes, _, requests = work
    counters = crowd.counters
    weight = 0.0
    for index in range(len(lanes)):
        weight += lanes[index]["weight"]
    while True:
        ask_s = crowd.asks_s[0] if counters[ASKING] > 0 else np.inf
        step_s = crowd.steps_s[counters[STEP]] if counters[STEP] < len(crowd.steps_s) else np.inf
        first, start_s = first_start(lanes, requests)
        if min(ask_s, step_s, start_s) >= until_s:
            return True
        if step_s <= ask_s and step_s <= start_s:
            change(crowd, step_s)
        elif start_s < ask_s:
            begin(work, crowd, first, start_s)
        elif counters[ROW] >= len(requests):
            return False
        else:
            pop(crowd.asks_s, counters)
            if counters[ALIVE] > crowd.clients[counters[STEP] - 1]:
                counters[ALIVE] -= 1
            else:
                ask(work, crowd, router if weight > 0.0 else NOBODY, ask_s)


def first_start(lanes: Rows, requests: Rows) -> tuple[int, float]:
    """The replica whose next batch begins first, and when; infinity where nothing waits."""
    first, first_s = 0, np.inf
    for index in range(len(lanes)):
        lane = lanes[index]
        if lane["length"] > 0:
            start_s = max(lane["free_s"], requests[lane["head"]]["arrival_s"])
            if start_s < first_s:
                first, first_s = index, start_s
    return first, first_s


def change(crowd: Crowd, now_s: float) -> None:
    """Let new clients come, each after a thought; surplus ones leave by themselves."""
    counters = crowd.counters
    missing = crowd.clients[counters[STEP]] - counters[ALIVE]
    counters[STEP] += 1
    for _ in range(missing):
        push(crowd.asks_s, counters, now_s + crowd.joiner_think_s[counters[JOINED]])
        counters[JOINED] += 1
        counters[ALIVE] += 1


def ask(work: LoopWork, crowd: Crowd, router: int, now_s: float) -> None:
    """A new request; one that finds nobody to ask comes again."""
    lanes, _, requests = work
    row = crowd.counters[ROW]
    crowd.counters[ROW] += 1
    request = requests[row]
    request["arrival_s"] = now_s
    if router == NOBODY:
        request["state"] = DROPPED
        push(crowd.asks_s, crowd.counters, now_s + max(RETRY_S, crowd.think_s[row]))
        return
    lane = route(lanes, request["pick"], router, now_s)
    request["replica"] = lane
    enqueue(lanes[lane], requests, row)


def begin(work: LoopWork, crowd: Crowd, index: int, start_s: float) -> None:
    """Begin a replica's next batch; its clients know now when they will ask again."""
    lanes, exec_s, requests = work
    lane = lanes[index]
    took_s = exec_s[index, min(lane["length"], lane["batch_max"]) - 1]
    row, before = lane["head"], lane["length"]
    drop_hopeless(lane, requests, start_s + took_s, took_s)
    for _ in range(before - lane["length"]):
        push(crowd.asks_s, crowd.counters, start_s + max(RETRY_S, crowd.think_s[row]))
        row = requests[row]["next"]
    size = min(lane["length"], lane["batch_max"])
    if size == 0:
        return
    launch(lane, requests, start_s, exec_s[index, size - 1])
    for _ in range(size):
        push(crowd.asks_s, crowd.counters, requests[row]["finish_s"] + crowd.think_s[row])
        row = requests[row]["next"]


def push(heap: Floats, counters: Whole, at_s: float) -> None:
    place = counters[ASKING]
    counters[ASKING] += 1
    while place > 0 and heap[(place - 1) // 2] > at_s:
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = at_s


def pop(heap: Floats, counters: Whole) -> None:
    counters[ASKING] -= 1
    count = counters[ASKING]
    last = heap[count]
    place, child = 0, 1
    while child < count:
        if child + 1 < count and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= last:
            break
        heap[place] = heap[child]
        place, child = child, 2 * child + 1
    heap[place] = last


CROWD_HELPERS = (push, pop, first_start, change, ask, begin)
"""What `serve_crowd` calls beside the helpers of the request loop, each before those that call it."""


# --- Around the loop

CrowdLoop: TypeAlias = Callable[[LoopWork, Crowd, int, float], bool]
ROWS_FIRST = 1024
"""Room for requests to begin with; doubled whenever it is filled."""


@dataclass(frozen=True, slots=True)
class Clients:
    """Clients between stretches: what they do, and when each asks next who is not waiting for a server. Those that wait
    are in the servers' queues; those in a running batch are in here, for their answer's time is known.
    """

    closed: Closed
    asks_s: tuple[float, ...] = ()


@lru_cache(maxsize=1)
def compiled_crowd_loop() -> CrowdLoop | None:
    """The hot loop as machine code, or None where numba is not installed."""
    return machine_code(serve_crowd, (*LOOP_HELPERS, *CROWD_HELPERS))


def serve_clients(
    stretch: Stretch, clients: Clients, draw: np.random.Generator, loop: CrowdLoop | None = None
) -> tuple[RequestsOutcome, Clients]:
    """Run the stretch, which has no arrivals of its own. `loop` overrides the choice of compiled or plain, which
    changes nothing but the speed. Requests that found no server have replica -1 and are dropped.
    """
    if len(stretch.arrivals_s):
        raise FieldError("arrivals_s", "clients ask by themselves; a stretch with clients has no other arrivals")
    lanes = lanes_of(stretch)
    before, exec_s = lanes.copy(), exec_table_s(stretch.servers)
    rows, think_s = _queued(stretch, lanes, clients, draw)
    queued = len(rows)
    crowd = _crowd(stretch, clients, queued, think_s, draw)
    run = loop or compiled_crowd_loop() or serve_crowd
    while not run(LoopWork(lanes, exec_s, rows), crowd, ROUTERS[stretch.router], stretch.until_s):
        more, more_think_s = _room(max(ROWS_FIRST, len(rows)), stretch, clients, draw)
        rows = np.concatenate((rows, more))
        crowd = crowd._replace(think_s=np.concatenate((crowd.think_s, more_think_s)))
    ended = outcome_of(stretch, before, lanes, rows[: crowd.counters[ROW]])
    asks_s = np.sort(crowd.asks_s[: crowd.counters[ASKING]])
    return ended, replace(clients, asks_s=tuple(asks_s.tolist()))


def _room(count: int, stretch: Stretch, clients: Clients, draw: np.random.Generator) -> tuple[Rows, Floats]:
    """Rows for requests to come, and the thoughts after them."""
    rows = request_rows(count, stretch.noise_sigma, draw)
    return rows, clients.closed.think_s_mean * draw.standard_exponential(count)


def _queued(stretch: Stretch, lanes: Rows, clients: Clients, draw: np.random.Generator) -> tuple[Rows, Floats]:
    """Rows of the requests that wait from before, already in their queues."""
    waiting = [(at_s, lane) for lane, state in enumerate(states_of(stretch)) for at_s in state.waiting_s]
    rows, think_s = _room(len(waiting), stretch, clients, draw)
    for row, (at_s, lane) in enumerate(waiting):
        rows[row]["arrival_s"], rows[row]["replica"] = at_s, lane
        enqueue(lanes[lane], rows, row)
    return rows, think_s


def _crowd(stretch: Stretch, clients: Clients, queued: int, think_s: Floats, draw: np.random.Generator) -> Crowd:
    steps = clients.closed.steps
    begun = [step for step in steps if step.from_s <= stretch.from_s]
    coming = [step for step in steps if stretch.from_s < step.from_s < stretch.until_s]
    # What holds already is a step at the beginning: it brings those that are missing, at first all of them.
    targets = [begun[-1].clients if begun else 0, *(step.clients for step in coming)]
    alive = len(clients.asks_s) + queued
    room = max(alive, *targets) + queued
    asks_s = np.full(room, np.inf)
    asks_s[: len(clients.asks_s)] = np.sort(np.maximum(clients.asks_s, stretch.from_s))
    counters = np.zeros(COUNTERS, dtype=np.int64)
    counters[ASKING], counters[ALIVE], counters[STEP], counters[ROW] = len(clients.asks_s), alive, 0, queued
    return Crowd(
        asks_s=asks_s,
        think_s=think_s,
        joiner_think_s=clients.closed.think_s_mean * draw.standard_exponential(sum(targets)),
        steps_s=np.array([stretch.from_s, *(step.from_s for step in coming)]),
        clients=np.array(targets, dtype=np.int64),
        counters=counters,
    )
