"""The demo's users: every second they send requests to the replicas that are ready, and a gateway's report of what they
wanted.

Load has a daily wave with one spike per service, Poisson arrivals and their split over replicas: functions of their
arguments and a seeded stream. Outages of nodes and of the API are outlived: requests that find no replica count as
unrouted, reports wait until they are acknowledged.
"""

from __future__ import annotations

import math
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import httpx
import yaml

from app.client.held import HeldRoutes
from app.client.offered import ReportLedger
from app.logs import EventLog
from app.signals import asked_to_end
from headroom_client import ApiError, Client, UnreachableError
from solvers.errors import InputError

GAUSS_ABOVE = 50.0
"""Above this mean a Poisson count is drawn as a rounded normal number, whose error is then below a percent."""
SPIKE_RAMP_FRACTION = 0.15
"""How much of a spike's length its rise and its fall take each; no crowd arrives in one second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateShape:
    """One service's day. Times are fractions of a day: 0.5 is noon. A spike multiplies the wave by `spike_factor`."""

    service: str
    """`project/name`."""
    rate_rps_mean: float
    swing: float = 0.4
    """How far the wave rises above and falls below the mean, as a part of it."""
    peak_at: float = 0.6
    spike_at: float | None = None
    spike_length: float = 0.08
    spike_factor: float = 4.0

    def __post_init__(self) -> None:
        if not 0 <= self.rate_rps_mean < 1e6:
            raise InputError(f"{self.service}: rate_rps_mean must lie between 0 and 1000000")
        if not 0 <= self.swing <= 1:
            raise InputError(f"{self.service}: swing must lie between 0 and 1")
        if not 0 < self.spike_length < 1 or self.spike_factor < 1:
            raise InputError(f"{self.service}: a spike needs a length between 0 and 1 and a factor of at least 1")

    def rate_rps(self, day_fraction: float) -> float:
        """Requests per second at a time of day; any real number is taken modulo one day."""
        time = day_fraction % 1.0
        wave = 1.0 + self.swing * math.cos(2.0 * math.pi * (time - self.peak_at))
        return self.rate_rps_mean * wave * self._spike(time)

    def _spike(self, time: float) -> float:
        if self.spike_at is None:
            return 1.0
        into = ((time - self.spike_at) % 1.0) / self.spike_length
        if into >= 1.0:
            return 1.0
        height = min(1.0, into / SPIKE_RAMP_FRACTION, (1.0 - into) / SPIKE_RAMP_FRACTION)
        return 1.0 + (self.spike_factor - 1.0) * height


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficPlan:
    """All shapes, how many seconds a day takes, the time of day it starts at, and the seed of the arrivals."""

    shapes: tuple[RateShape, ...]
    day_s: float = 1200.0
    starts_at: float = 0.25
    seed: int = 1

    def __post_init__(self) -> None:
        if self.day_s <= 0:
            raise InputError("day_s must be greater than 0")

    def day_fraction(self, elapsed_s: float) -> float:
        return (self.starts_at + elapsed_s / self.day_s) % 1.0


def read_traffic_plan(file: Path) -> TrafficPlan:
    """Read a YAML file with the fields of TrafficPlan. Raises InputError naming the file and field."""
    try:
        stored = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{file}: no such file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: {' '.join(str(error).split())}") from None
    if not isinstance(stored, dict) or not isinstance(stored.get("shapes"), list):
        raise InputError(f"{file}: expected an object with a list `shapes`")
    try:
        shapes = tuple(RateShape(**_known(RateShape, shape)) for shape in stored["shapes"])
        return TrafficPlan(**{**_known(TrafficPlan, stored), "shapes": shapes})
    except (TypeError, InputError) as error:
        raise InputError(f"{file}: {error}") from None


def _known(kind: type, plain: Any) -> Mapping[str, Any]:
    if not isinstance(plain, dict):
        raise InputError(f"expected an object, got {type(plain).__name__}")
    unknown = set(plain) - {item.name for item in fields(kind)}
    if unknown:
        raise InputError(f"unknown fields: {', '.join(sorted(map(str, unknown)))}")
    return plain


def poisson(stream: random.Random, mean: float) -> int:
    if mean <= 0:
        return 0
    if mean > GAUSS_ABOVE:
        return max(0, round(stream.gauss(mean, math.sqrt(mean))))
    threshold, product, count = math.exp(-mean), stream.random(), 0
    while product > threshold:
        product *= stream.random()
        count += 1
    return count


def split(stream: random.Random, count: int, replicas: Sequence[tuple[str, float]]) -> Counter[str]:
    """Send each of `count` requests to a replica at random by weight; weights that sum to nothing count as equal."""
    if count <= 0 or not replicas:
        return Counter()
    weights = [max(0.0, weight) for _, weight in replicas]
    if sum(weights) <= 0:
        weights = [1.0] * len(replicas)
    return Counter(stream.choices([name for name, _ in replicas], weights, k=count))


TICK_S = 1.0
ROUTES_EVERY_S = 2.0
NODE_TIMEOUT_S = 0.5
NODE_PAUSE_S = 3.0
"""How long a node that did not answer is left alone."""
_log = EventLog("headroom.traffic")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficOrder:
    """What to play. `anchor_s` is when (epoch seconds) the day of the plan began; None: now."""

    plan: TrafficPlan
    gateway: str
    anchor_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyRoute:
    """A ready replica: where it answers and how much of its service's load it shall get."""

    replica: str
    endpoint: str
    weight: float


class ReadyRoutes:
    """Ready replicas by service, as last told by the API; kept while the API is away, as a gateway would."""

    def __init__(self) -> None:
        self._etag: str | None = None
        self._told: dict[str, tuple[ReadyRoute, ...]] = {}
        self._held = HeldRoutes[tuple[ReadyRoute, ...]]()
        self._by_service: Mapping[str, tuple[ReadyRoute, ...]] = {}

    def refresh(self, client: Client, now_s: float) -> None:
        try:
            answer = client.routes(self._etag)
        except (ApiError, UnreachableError) as error:
            _log.warning("routes.unavailable", error)
            return
        if answer.status != 304:
            self._etag = answer.etag
            self._told = read_routes(answer.body)
        self._by_service = self._held.believe(self._told, now_s)

    def of(self, service: str) -> tuple[ReadyRoute, ...]:
        return self._by_service.get(service, ())


def read_routes(body: Mapping[str, Any]) -> dict[str, tuple[ReadyRoute, ...]]:
    """Routes by service, from the API's answer; replicas without an endpoint cannot be reached and are left out."""
    found: dict[str, list[ReadyRoute]] = {}
    for item in body["items"]:
        routes = found.setdefault(item["service"], [])
        for replica in item["replicas"]:
            if replica["endpoint"]:
                route = ReadyRoute(replica=replica["replica"], endpoint=replica["endpoint"], weight=replica["weight"])
                routes.append(route)
    return {service: tuple(routes) for service, routes in found.items()}


class NodeEndpoints:
    def __init__(self, transport: httpx.BaseTransport | None = None) -> None:
        self._http = httpx.Client(timeout=NODE_TIMEOUT_S, transport=transport, trust_env=False)
        self._silent_until_s: dict[str, float] = {}

    def send(self, endpoint: str, loads: Mapping[str, int], interval_s: float) -> Mapping[str, int]:
        """Tell one node what arrived at its replicas; returns by replica the requests that found nobody there."""
        now_s = time.monotonic()
        if now_s < self._silent_until_s.get(endpoint, 0.0):
            return loads
        try:
            answer = self._http.post(f"{endpoint}/load", json={"replicas": dict(loads), "interval_s": interval_s})
            answer.raise_for_status()
            lost = lost_replicas(answer.json())
        except (httpx.HTTPError, ValueError):
            self._silent_until_s[endpoint] = now_s + NODE_PAUSE_S
            return loads
        return {replica: count for replica, count in loads.items() if replica in lost}

    def close(self) -> None:
        self._http.close()


def lost_replicas(answer: Mapping[str, Any]) -> frozenset[str]:
    """Replicas that took nothing: the node does not know them, or they are not ready."""
    return frozenset([*answer.get("unknown", ()), *answer.get("not_ready", ())])


class TrafficLoop:
    def __init__(self, client: Client, order: TrafficOrder, nodes: NodeEndpoints | None = None) -> None:
        self._client = client
        self._plan = order.plan
        self._anchor_s = time.time() if order.anchor_s is None else order.anchor_s
        self._stream = random.Random(order.plan.seed)
        self._nodes = nodes or NodeEndpoints()
        self._routes = ReadyRoutes()
        self._ledger = ReportLedger(order.gateway, str(uuid.uuid4()))
        self._ending = threading.Event()

    def run(self) -> None:
        """Send until SIGTERM or SIGINT."""
        with asked_to_end(self._ending.set):
            self._send()

    def _send(self) -> None:
        _log.info("traffic.started", services=len(self._plan.shapes), day_s=self._plan.day_s)
        last_s = time.monotonic()
        next_tick_s, next_routes_s = last_s, last_s
        while not self._ending.is_set():
            now_s = time.monotonic()
            if now_s >= next_routes_s:
                self.refresh_routes(now_s)
                next_routes_s = now_s + ROUTES_EVERY_S
            self.tick(time.time(), min(now_s - last_s, 5 * TICK_S))
            last_s = now_s
            self.report(now_s, time.time())
            next_tick_s = max(next_tick_s + TICK_S, time.monotonic())
            self._ending.wait(next_tick_s - time.monotonic())
        self._nodes.close()
        _log.info("traffic.ended")

    def refresh_routes(self, now_s: float) -> None:
        """Ask where ready replicas are."""
        self._routes.refresh(self._client, now_s)

    def report(self, now_s: float, wall_s: float) -> None:
        """What arrived until now is counted; send what is due."""
        self._ledger.end_second(now_s, wall_s)
        if self._ledger.news.is_set():
            self._ledger.news.clear()
            self._ledger.send(self._client)

    def tick(self, wall_s: float, interval_s: float) -> None:
        """One second of users: draw arrivals, route them, tell the nodes, count."""
        if interval_s <= 0:
            return
        day_fraction = self._plan.day_fraction(wall_s - self._anchor_s)
        loads: dict[str, dict[str, int]] = {}
        service_of: dict[str, str] = {}
        arrived: Counter[str] = Counter()
        unrouted: Counter[str] = Counter()
        for shape in self._plan.shapes:
            count = poisson(self._stream, shape.rate_rps(day_fraction) * interval_s)
            arrived[shape.service] = count
            routes = {route.replica: route for route in self._routes.of(shape.service)}
            if not routes:
                unrouted[shape.service] = count
                continue
            places = [(route.replica, route.weight) for route in routes.values()]
            for replica, part in split(self._stream, count, places).items():
                loads.setdefault(routes[replica].endpoint, {})[replica] = part
                service_of[replica] = shape.service
        for endpoint, parts in loads.items():
            for replica, lost in self._nodes.send(endpoint, parts, interval_s).items():
                unrouted[service_of[replica]] += lost
        for service, count in arrived.items():
            self._ledger.count(service, count, unrouted[service], interval_s)
