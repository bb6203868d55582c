"""What is declared: the card's measurements as the product takes them, and three services that fill most of the card.

Promises and rates are reckoned from the measurements: each service's promise is what its share just keeps. How the
planner divides the card is its own business.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PROJECT = "vision"
MARGIN, HEADROOM, UTILISATION = 1.25, 1.2, 0.7
"""Of the policy: interference_margin, demand_headroom, utilisation_max."""
LOOSE = 1.04
"""How much longer a promise is than what just can be kept."""
RATES_PART = 0.6
"""Of what the share carries, where the rate is not bounded before."""
RATE_TIMES = (1.0, 1.5, 2.0)
FACTOR, BEYOND = 1.5, 1.05
MEMORY_ROOM_MIB = 6144
"""Beside what was measured: a server has graphs of many sizes, and the card has plenty."""
SLO_MS_MIN = 6.0
"""Shorter promises would be about Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service and its promise."""

    network: str
    share_pct: int
    """What it shall need."""
    rate_rps: float
    """Twice that at most."""
    slo_ms: float = 200.0

    @property
    def name(self) -> str:
        """As the product calls it: its network's."""
        return self.network.replace("_", "-")

    @property
    def key(self) -> str:
        """With its project."""
        return f"{PROJECT}/{self.name}"


SERVICES = (
    Service(network="resnet50", share_pct=30, rate_rps=300.0),
    Service(network="mobilenet_v3_large", share_pct=20, rate_rps=300.0),
    Service(network="transformer", share_pct=30, rate_rps=200.0),
)
POLICY = {
    "kind": "policy",
    "name": "default",
    "planners": ["joint", "greedy"],
    "cost_basis": "share",
    "deadline_s": 2,
    "cooldown_s": 0,
}
TRANSFORMER = {
    "kind": "model",
    "name": "transformer",
    "family": "transformer",
    "parameters_million": 85,
    "memory_mib_weights": 170,
    "memory_mib_per_input": 8,
    "launch_s": 10,
}


def read_points(file: Path, gpu_type: str, clock_mhz: int) -> list[dict[str, Any]]:
    """Rows of a file of measurements as profile points of what is served, measured as it is served: by graphs."""
    networks = {service.network for service in SERVICES}
    with file.open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["network"] in networks and row.get("captured") != "0"]
    return [_point(row, gpu_type, clock_mhz) for row in rows]


def _point(row: Mapping[str, str], gpu_type: str, clock_mhz: int) -> dict[str, Any]:
    optional = {"memory_mib": float(row.get("memory_mib") or 0.0) + MEMORY_ROOM_MIB}
    if row.get("latency_ms_p99"):
        optional["latency_ms_p99"] = float(row["latency_ms_p99"])
    if row.get("power_w"):
        optional["power_w"] = max(0.0, float(row["power_w"]) - float(row.get("idle_power_w") or 0.0))
    return {
        "model": row["network"],
        "gpu_type": gpu_type,
        "batch": int(row["batch"]),
        "share_pct_sm": round(float(row["share_pct"])),
        "clock_mhz_sm": clock_mhz,
        "latency_ms_mean": float(row["latency_ms_mean"]),
        "source": "measured on this card",
        **optional,
    }


def fitted(service: Service, points: Sequence[Mapping[str, Any]], rate_factor: float) -> Service:
    """With a rate that its share carries, the lowest that no smaller share does, and the promise that it keeps so."""
    own = [point for point in points if point["model"] == service.network]
    nearest = min({point["share_pct_sm"] for point in own}, key=lambda share: abs(share - service.share_pct))
    there = [point for point in own if point["share_pct_sm"] == nearest]
    less = [point for point in own if point["share_pct_sm"] < nearest]
    carried_rps = max(UTILISATION * 1000.0 * each["batch"] / (MARGIN * each["latency_ms_mean"]) for each in there)
    most_rps = service.rate_rps
    for times in RATE_TIMES:
        rate_rps = rate_factor * min(times * most_rps, RATES_PART * carried_rps / HEADROOM)
        slo_ms = LOOSE * min(_latency_ms(each, rate_rps) for each in there)
        service = replace(service, rate_rps=round(rate_rps, 1), slo_ms=max(SLO_MS_MIN, math.ceil(10.0 * slo_ms) / 10.0))
        if all(_latency_ms(each, rate_rps) > service.slo_ms for each in less):
            break
    return service


def _latency_ms(point: Mapping[str, Any], rate_rps: float) -> float:
    """The planned p99 (docs/reference/planning.md); infinite beyond what may be used."""
    batch = point["batch"]
    busy = HEADROOM * rate_rps * MARGIN * point["latency_ms_mean"] / (1000.0 * batch)
    if busy > UTILISATION:
        return math.inf
    tail_ms = MARGIN * (point.get("latency_ms_p99") or point["latency_ms_mean"])
    return float(tail_ms * (2.0 + math.log(100.0) * busy / (2.0 * (1.0 - busy) * batch)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """How processes are started there."""

    python: str
    """The interpreter that has PyTorch."""
    kept: Mapping[str, str]
    """Variables that they get."""


def document(service: Service, host: Host, mode: str = "auto") -> dict[str, Any]:
    """The service as it is applied."""
    worker = {
        "command": [
            *(host.python, "-m", "tests.gpu.server", "--host", "{host}", "--port", "{port}"),
            *("--batch", "{batch}", "--network", service.network),
        ],
        "working_directory": str(ROOT),
        "environment": [{"name": name, "value": text} for name, text in sorted(host.kept.items())],
        "warm_up": {"path": "/infer", "requests": 5},
        "drain_s": 5.0,
        "stop_s": 5.0,
    }
    return {
        "kind": "service",
        "project": PROJECT,
        "name": service.name,
        "model": service.network,
        "slo": {"kind": "latency", "latency_ms": service.slo_ms, "percentile": 99},
        "rate_rps_declared": service.rate_rps,
        "replicas_max": 1,
        "mode": mode,
        "worker": worker,
    }


def foundations(host: Host) -> list[dict[str, Any]]:
    """What services refer to."""
    return [POLICY, {"kind": "project", "name": PROJECT, "environment_allowed": sorted(host.kept)}, TRANSFORMER]


def raised_rate(service: Service, capacity_rps: float) -> Service:
    """At half as much again, or what its replica cannot carry any more if that is more: what stands is enough as long
    as it carries the rate.
    """
    return replace(service, rate_rps=round(max(FACTOR * service.rate_rps, BEYOND * capacity_rps), 1))
