"""The hot loop of the request level: arrivals in order of time, a queue and a batching server per replica.

Owns nothing but arithmetic on arrays, written so that a compiler for numerical Python takes it as it stands:
`solvers.sim.serving.requests` compiles it where numba is installed and runs this very source where it is not. A server
begins a batch when it is free and either its batch is full or its oldest request has waited as long as it may. What
the router sees when a request arrives is what has happened strictly before; requests of one instant may share a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

WAITING, DONE, DROPPED = 0, 1, 2
WEIGHTED_RANDOM, ROUND_ROBIN, LEAST_OUTSTANDING = 0, 1, 2
NOBODY = -1


LANE = np.dtype(
    [
        ("batch_max", np.int64),
        ("wait_s", np.float64),
        ("queue_max", np.int64),
        ("weight", np.float64),
        ("limit_s", np.float64),
        ("free_s", np.float64),
        ("full_s", np.float64),
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
is dropped (infinity: never). `full_s`: when the queue last reached a full batch. `busy_s` counts whole batches.
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

    lanes: NDArray[np.void]
    exec_s: NDArray[np.float64]
    """[replica, batch - 1]; a row is filled up with its last value."""
    requests: NDArray[np.void]


def run(work: LoopWork, router: int, until_s: float) -> None:
    """Serve until then; answers are in the arrays. What has not begun by then stays in the queues."""
    lanes, exec_s, requests = work
    for request in range(len(requests)):
        now_s = requests[request]["arrival_s"]
        lane = requests[request]["replica"]
        if lane == NOBODY:
            if router == LEAST_OUTSTANDING:
                catch_up_all(lanes, exec_s, requests, now_s)
            lane = route(lanes, requests[request]["pick"], router, now_s)
            requests[request]["replica"] = lane
        catch_up(lanes, exec_s, requests, lane, now_s)
        enqueue(lanes[lane], requests, request)
    catch_up_all(lanes, exec_s, requests, until_s)


def route(lanes: NDArray[np.void], pick: float, router: int, now_s: float) -> int:
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
            executing = each["executing"] if each["free_s"] > now_s else 0
            score = -(each["length"] + executing + 1) / weight
        else:
            # The last lane that begins at or below the pick.
            score = float(lane) if pick * total >= reached else -1.0
            reached += weight
        if score > best_score:
            best, best_score = lane, score
    if router == ROUND_ROBIN:
        lanes[best]["credit"] -= total
    return best


def enqueue(lane: np.void, requests: NDArray[np.void], request: int) -> None:
    """Into the queue, or dropped when that is full."""
    if lane["length"] >= lane["queue_max"]:
        requests[request]["state"] = DROPPED
        return
    if lane["length"] == 0:
        lane["head"] = request
    else:
        requests[lane["tail"]]["next"] = request
    lane["tail"] = request
    lane["length"] += 1
    if lane["length"] == lane["batch_max"]:
        lane["full_s"] = requests[request]["arrival_s"]


def catch_up(
    lanes: NDArray[np.void], exec_s: NDArray[np.float64], requests: NDArray[np.void], index: int, until_s: float
) -> None:
    """Begin every batch of one replica that begins before `until_s`."""
    lane = lanes[index]
    while lane["length"] > 0:
        ready_s = requests[lane["head"]]["arrival_s"] + lane["wait_s"]
        if lane["length"] >= lane["batch_max"]:
            ready_s = min(ready_s, lane["full_s"])
        start_s = max(lane["free_s"], ready_s)
        if start_s >= until_s:
            return
        took_s = exec_s[index, min(lane["length"], lane["batch_max"]) - 1]
        drop_hopeless(lane, requests, start_s + took_s, took_s)
        size = min(lane["length"], lane["batch_max"])
        if size > 0:
            launch(lane, requests, start_s, exec_s[index, size - 1])


def catch_up_all(
    lanes: NDArray[np.void], exec_s: NDArray[np.float64], requests: NDArray[np.void], until_s: float
) -> None:
    """Begin every batch of every replica that begins before `until_s`."""
    for index in range(len(lanes)):
        catch_up(lanes, exec_s, requests, index, until_s)


def drop_hopeless(lane: np.void, requests: NDArray[np.void], finish_s: float, took_s: float) -> None:
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


def launch(lane: np.void, requests: NDArray[np.void], start_s: float, mean_s: float) -> None:
    """Execute the oldest requests as one batch."""
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


HELPERS = (route, enqueue, drop_hopeless, launch, catch_up, catch_up_all)
"""What `run` calls, each before those that call it."""
