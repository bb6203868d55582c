"""Closed-loop clients of one service over a stretch of time in which nothing is reconfigured.

Owns the records around the hot loop (`solvers.sim.serving.client_loop`): who thinks, until when, and how many there
shall be. A client waits for its answer, thinks for an exponential time and asks again, so load gives way when a
service is slow. One that is turned away or finds no server asks again after its thought, at the earliest after
`RETRY_S`. Compiled where numba is installed, and the same bytes where it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from solvers.errors import FieldError
from solvers.sim.scenario import Closed
from solvers.sim.serving import client_loop, request_loop
from solvers.sim.serving.client_loop import ALIVE, ASKING, COUNTERS, RETRY_S, ROW, STEP, Crowd
from solvers.sim.serving.request_loop import NOBODY, REQUEST, WAITING, LoopWork
from solvers.sim.serving.requests import RequestsOutcome, Stretch, exec_table_s, lanes_of, outcome_of, states_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["RETRY_S", "Clients", "compiled_loop", "serve_clients"]

Loop: TypeAlias = Callable[[LoopWork, Crowd, int, float], bool]
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
def compiled_loop() -> Loop | None:
    """The hot loop as machine code, or None where numba is not installed."""
    try:
        import numba
        from numba.extending import register_jitable
    except ImportError:
        return None
    for helper in (*request_loop.HELPERS, *client_loop.HELPERS):
        register_jitable(helper)
    loop: Loop = numba.njit()(client_loop.run)
    return loop


def serve_clients(
    stretch: Stretch, clients: Clients, draw: np.random.Generator, loop: Loop | None = None
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
    run = loop or compiled_loop() or client_loop.run
    while not run(LoopWork(lanes, exec_s, rows), crowd, stretch.router.value, stretch.until_s):
        more, more_think_s = _room(max(ROWS_FIRST, len(rows)), stretch, clients, draw)
        rows = np.concatenate((rows, more))
        crowd = crowd._replace(think_s=np.concatenate((crowd.think_s, more_think_s)))
    ended = outcome_of(stretch, before, lanes, rows[: crowd.counters[ROW]])
    asks_s = np.sort(crowd.asks_s[: crowd.counters[ASKING]])
    return ended, replace(clients, asks_s=tuple(asks_s.tolist()))


def _room(
    count: int, stretch: Stretch, clients: Clients, draw: np.random.Generator
) -> tuple[NDArray[np.void], NDArray[np.float64]]:
    """Rows for requests to come, and the thoughts after them."""
    sigma = stretch.noise_sigma
    rows = np.zeros(count, dtype=REQUEST)
    rows["replica"] = NOBODY
    rows["pick"] = draw.random(count)
    rows["noise"] = np.exp(sigma * draw.standard_normal(count) - 0.5 * sigma * sigma)
    rows["finish_s"], rows["state"] = np.nan, WAITING
    return rows, clients.closed.think_s_mean * draw.standard_exponential(count)


def _queued(
    stretch: Stretch, lanes: NDArray[np.void], clients: Clients, draw: np.random.Generator
) -> tuple[NDArray[np.void], NDArray[np.float64]]:
    """Rows of the requests that wait from before, already in their queues."""
    waiting = [(at_s, lane) for lane, state in enumerate(states_of(stretch)) for at_s in state.waiting_s]
    rows, think_s = _room(len(waiting), stretch, clients, draw)
    for row, (at_s, lane) in enumerate(waiting):
        rows[row]["arrival_s"], rows[row]["replica"] = at_s, lane
        request_loop.enqueue(lanes[lane], rows, row)
    return rows, think_s


def _crowd(
    stretch: Stretch, clients: Clients, queued: int, think_s: NDArray[np.float64], draw: np.random.Generator
) -> Crowd:
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
