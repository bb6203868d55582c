"""The hot loop of closed-loop clients: they ask, wait for their answer, think, and ask again.

Owns the order of events and nothing else, on arrays, for a compiler of numerical Python as
`solvers.sim.serving.request_loop` is; queues, routing and batches are that module's. The next event is the earliest of
a change in the number of clients, a client's question and the beginning of a batch; of one instant they happen in this
order, so that questions of one instant may share a batch. Clients are alike, so a heap of the times at which they ask
next is all that is known of them. One that is surplus when it would ask leaves instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from solvers.sim.serving.request_loop import DROPPED, NOBODY, LoopWork, drop_hopeless, enqueue, launch, route

if TYPE_CHECKING:
    from numpy.typing import NDArray

RETRY_S = 0.1
"""A client that was turned away, or found nobody to ask, asks again after its thought and no sooner than this."""
ASKING, ALIVE, STEP, JOINED, ROW = 0, 1, 2, 3, 4
COUNTERS = 5


class Crowd(NamedTuple):
    """Clients as the loop changes them."""

    asks_s: NDArray[np.float64]
    """A binary heap, the earliest first; room for all clients there can be."""
    think_s: NDArray[np.float64]
    """By request: how long its client thinks after it."""
    joiner_think_s: NDArray[np.float64]
    """How long new clients think before they first ask, in order of coming."""
    steps_s: NDArray[np.float64]
    clients: NDArray[np.int64]
    """How many clients there shall be from each step on."""
    counters: NDArray[np.int64]
    """How many think, how many there are, next step, joiners so far, next request."""


def run(work: LoopWork, crowd: Crowd, router: int, until_s: float) -> bool:
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


def first_start(lanes: NDArray[np.void], requests: NDArray[np.void]) -> tuple[int, float]:
    """The replica whose next batch begins first, and when; infinity where nothing waits."""
    first, first_s = 0, np.inf
    for index in range(len(lanes)):
        lane = lanes[index]
        if lane["length"] == 0:
            continue
        ready_s = requests[lane["head"]]["arrival_s"] + lane["wait_s"]
        if lane["length"] >= lane["batch_max"]:
            ready_s = min(ready_s, lane["full_s"])
        start_s = max(lane["free_s"], ready_s)
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
    """A new request, into a queue or turned away."""
    lanes, _, requests = work
    row = crowd.counters[ROW]
    crowd.counters[ROW] += 1
    request = requests[row]
    request["arrival_s"] = now_s
    if router == NOBODY:
        request["state"] = DROPPED
    else:
        lane = route(lanes, request["pick"], router, now_s)
        request["replica"] = lane
        enqueue(lanes[lane], requests, row)
    if request["state"] == DROPPED:
        push(crowd.asks_s, crowd.counters, now_s + max(RETRY_S, crowd.think_s[row]))


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


def push(heap: NDArray[np.float64], counters: NDArray[np.int64], at_s: float) -> None:
    """Another client that will ask."""
    place = counters[ASKING]
    counters[ASKING] += 1
    while place > 0 and heap[(place - 1) // 2] > at_s:
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = at_s


def pop(heap: NDArray[np.float64], counters: NDArray[np.int64]) -> None:
    """Forget the earliest."""
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


HELPERS = (push, pop, first_start, change, ask, begin)
"""What `run` calls beside the helpers of the request loop, each before those that call it."""
