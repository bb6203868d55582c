"""The synthetic family: fleets and services drawn from a seed, so that results can be compared.

Owns the draws, the formulas that turn them into latency, power, memory and pressure, and the joint problem built from
them at once, as arrays. The order of the draws is part of the family: changing it makes other instances. It refuses to
know how a problem is solved, and snapshots (see `family_snapshot`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.domain.arrays import Floats
from solvers.domain.ids import GpuTypeName, ModelName, ProjectName, WorkloadId
from solvers.problems.joint import Cap, JointProblem, Pool, Variant, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One GPU type of the family."""

    name: str
    fp16_tflops: float
    bandwidth_gb_per_s: float
    memory_gb: int
    usd_per_h: float
    idle_w: float
    tdp_w: float
    sm_count: int
    gpus_per_node: int
    fleet_part: float
    clock_mhz_max: int


CARDS = tuple(
    Card(
        name=name, fp16_tflops=tflops, bandwidth_gb_per_s=bandwidth, memory_gb=memory, usd_per_h=price, idle_w=idle,
        tdp_w=tdp, sm_count=sms, gpus_per_node=per_node, fleet_part=part, clock_mhz_max=clock,
    )
    for name, tflops, bandwidth, memory, price, idle, tdp, sms, per_node, part, clock in (
        ("t4", 65, 320, 16, 0.35, 10, 70, 40, 4, 0.20, 1590),
        ("l4", 121, 300, 24, 0.70, 13, 72, 58, 8, 0.20, 2040),
        ("a10", 125, 600, 24, 0.90, 20, 150, 72, 4, 0.20, 1695),
        ("v100", 112, 900, 32, 1.15, 25, 300, 80, 8, 0.18, 1530),
        ("a100", 312, 2039, 80, 2.90, 50, 400, 108, 8, 0.17, 1410),
        ("h100", 989, 3350, 80, 5.50, 70, 700, 132, 8, 0.05, 1980),
    )
)  # fmt: skip
CLOCK_PARTS = (1.0, 0.8, 0.6)
BATCHES = np.array([1, 2, 4, 8, 16, 32], dtype=np.int64)
SHARES_PCT = np.arange(10, 101, 10, dtype=np.int64)
CLIENTS = 7
USD_PER_WH = 0.12 * 1.3 / 1000
CAP_PART = 0.76
BUSY_MAX = 0.9
PRESSURE_EXPONENT = 0.5
LOAD_PART = 0.85
LIMIT_MS_MIN = 15.0
MIB_PER_GB = 1024.0
REFERENCE = next(index for index, card in enumerate(CARDS) if card.name == "a10")
BEARABLE_TIMES = 25.0
"""Leaving a service unserved counts as so many times what serving it alone on its best type would cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The draws of one instance: one value per service, and devices by type."""

    gpus: int
    seed: int
    devices: tuple[int, ...]
    gflop: Floats
    weights_gb: Floats
    traffic_gb: Floats
    efficiency: Floats
    sms_needed: Floats
    fixed_ms: Floats
    activation_gb: Floats
    intensity: Floats
    pressure: Floats
    sensitivity: Floats
    slo_multiple: Floats
    launch_s: Floats
    slo_ms: Floats
    rate_rps: Floats

    @property
    def services(self) -> int:
        """How many."""
        return len(self.gflop)

    @property
    def memory_gb(self) -> Floats:
        """Service x batch."""
        return np.asarray(0.5 + 1.15 * self.weights_gb[:, None] + self.activation_gb[:, None] * BATCHES)


def family(gpus: int, services: int, seed: int) -> Family:
    """Draw an instance."""
    rng = np.random.default_rng(seed)

    def log_uniform(low: float, high: float) -> Floats:
        return np.exp(rng.uniform(np.log(low), np.log(high), services))

    draws = {
        "gflop": log_uniform(2, 300),
        "weights_gb": np.minimum(8.0, log_uniform(0.05, 6)),
        "traffic_gb": log_uniform(0.005, 0.08),
        "efficiency": rng.uniform(0.25, 0.55, services),
        "sms_needed": log_uniform(5, 40),
        "fixed_ms": rng.uniform(0.8, 4, services),
        "activation_gb": log_uniform(0.02, 0.25),
        "intensity": rng.uniform(0.5, 1, services),
        "pressure": rng.uniform(0.08, 0.45, services),
        "sensitivity": rng.uniform(0.15, 0.7, services),
        "slo_multiple": rng.uniform(2.5, 9, services),
    }
    launch_s = 3 + 2 * draws["weights_gb"] + rng.uniform(0, 4, services)
    weight = rng.lognormal(0.0, 1.2, services)
    unset = np.zeros(services)
    drawn = Family(
        gpus=gpus, seed=seed, devices=fleet(gpus), launch_s=launch_s, slo_ms=unset, rate_rps=unset, **draws
    )  # fmt: skip
    at_reference = latency_ms(drawn, CARDS[REFERENCE], 1.0)
    half, four = int(np.searchsorted(SHARES_PCT, 50)), int(np.searchsorted(BATCHES, 4))
    slo_ms = np.maximum(LIMIT_MS_MIN, 2 * drawn.slo_multiple * at_reference[:, half, four])
    best_rps = np.zeros(services)
    for card, devices in zip(CARDS, drawn.devices, strict=True):
        best_rps += devices * whole_device_rps(drawn, card, slo_ms).max(axis=-1)
    rate_rps = weight / weight.sum() * LOAD_PART * best_rps
    return Family(
        gpus=gpus, seed=seed, devices=drawn.devices, launch_s=launch_s, slo_ms=slo_ms, rate_rps=rate_rps, **draws
    )  # fmt: skip


def fleet(gpus: int) -> tuple[int, ...]:
    """Devices of each type: the parts of the fleet, the largest remainders rounded up."""
    exact = np.array([card.fleet_part for card in CARDS]) * gpus
    devices = np.floor(exact + 1e-9).astype(np.int64)
    missing = gpus - int(devices.sum())
    devices[np.argsort(-(exact - devices), kind="stable")[:missing]] += 1
    return tuple(int(count) for count in devices)


def latency_ms(drawn: Family, card: Card, clock: float) -> Floats:
    """Solo latency: service x share x batch."""
    share = (SHARES_PCT / 100)[None, :, None]
    batch = BATCHES.astype(np.float64)[None, None, :]
    bandwidth = card.bandwidth_gb_per_s * np.minimum(1, share / 0.45) * (0.5 + 0.5 * clock)
    work_tflop = batch * _column(drawn.gflop) / 1000
    compute_s = work_tflop / (_column(drawn.efficiency) * card.fp16_tflops * clock * use(drawn, card))
    memory_s = (_column(drawn.weights_gb) + batch * _column(drawn.traffic_gb)) / bandwidth
    return np.asarray(_column(drawn.fixed_ms) + 1000 * (compute_s + memory_s))


def use(drawn: Family, card: Card) -> Floats:
    """Part of the SMs that really work: service x share x batch."""
    share = (SHARES_PCT / 100)[None, :, None]
    needed = _column(drawn.sms_needed) * BATCHES.astype(np.float64)[None, None, :] ** 0.85
    return np.asarray(np.minimum(share * card.sm_count, needed) / card.sm_count)


def power_w(drawn: Family, card: Card, clock: float) -> Floats:
    """Added to idle power at the load that is planned for: service x share x batch."""
    watts = (card.tdp_w - card.idle_w) * use(drawn, card) * BUSY_MAX * clock**2.2
    return np.asarray(watts * _column(drawn.intensity))


def whole_device_rps(drawn: Family, card: Card, slo_ms: Floats) -> Floats:
    """Capacity of a service alone on a device at full clock, by batch; 0 where the promise cannot be kept."""
    alone_ms = latency_ms(drawn, card, 1.0)[:, -1, :]
    keeps = alone_ms <= slo_ms[:, None] / 2
    return np.asarray(np.where(keeps, BUSY_MAX * 1000 * BATCHES / alone_ms, 0.0))


def family_problem(gpus: int, services: int, seed: int) -> JointProblem:
    """The joint problem of an instance."""
    return problem_of(family(gpus, services, seed))


def problem_of(drawn: Family) -> JointProblem:
    """Every type at every clock is a table and a kind; every service has one network."""
    tables = [(card, clock) for card in CARDS for clock in CLOCK_PARTS]
    shape = (len(tables), drawn.services, len(SHARES_PCT), len(BATCHES))
    latency, power = np.empty(shape), np.empty(shape)
    for table, (card, clock) in enumerate(tables):
        latency[table] = latency_ms(drawn, card, clock)
        power[table] = power_w(drawn, card, clock)
    numbers = np.arange(len(tables), dtype=np.int64)
    by_service = (len(tables), drawn.services)
    return JointProblem(
        pools=tuple(_pool(card, devices) for card, devices in zip(CARDS, drawn.devices, strict=True)),
        kind_pool=numbers // len(CLOCK_PARTS),
        kind_clock_mhz=np.array([clock_mhz(card, clock) for card, clock in tables], dtype=np.int64),
        kind_table=numbers,
        workloads=_workloads(drawn),
        variants=tuple(
            Variant(workload=index, model=ModelName(f"net-{index:05d}"), launch_s=float(drawn.launch_s[index]))
            for index in range(drawn.services)
        ),
        shares_pct=SHARES_PCT,
        batches=BATCHES,
        mean_ms=latency,
        tail_ms=latency,
        power_w=power,
        memory_mib=np.broadcast_to(drawn.memory_gb * MIB_PER_GB, (*by_service, len(BATCHES))),
        pressure=np.broadcast_to(drawn.pressure, by_service),
        exponent=np.full(by_service, PRESSURE_EXPONENT),
        sensitivity=np.broadcast_to(drawn.sensitivity, by_service),
        crowd=np.ones(by_service),
        allowed=np.ones((len(CARDS), drawn.services), dtype=np.bool_),
        caps=_caps(drawn.devices),
        usd_per_wh=USD_PER_WH,
    )


def clock_mhz(card: Card, clock: float) -> int:
    """A part of the highest clock in MHz."""
    return round(card.clock_mhz_max * clock)


def _pool(card: Card, devices: int) -> Pool:
    return Pool(
        name=card.name, gpu_type=GpuTypeName(card.name), devices=devices, usd_per_h=card.usd_per_h,
        memory_mib=card.memory_gb * MIB_PER_GB, idle_w=card.idle_w, limit_w=card.tdp_w, clients=CLIENTS,
    )  # fmt: skip


def _caps(devices: tuple[int, ...]) -> tuple[Cap, ...]:
    """Nodes of one type are alike, so one cap stands for all of them."""
    return tuple(
        Cap(
            name=f"nodes of {card.name}",
            limit_w=CAP_PART * card.tdp_w * count,
            devices=tuple(count if other == index else 0 for other in range(len(CARDS))),
        )
        for index, (card, count) in enumerate(zip(CARDS, devices, strict=True))
        if count
    )


def _workloads(drawn: Family) -> tuple[Workload, ...]:
    alone = np.full(drawn.services, np.inf)
    for card in CARDS:
        rps = whole_device_rps(drawn, card, drawn.slo_ms).max(axis=-1)
        with np.errstate(divide="ignore"):
            alone = np.minimum(alone, card.usd_per_h * drawn.rate_rps / rps)
    return tuple(
        Workload(
            id=WorkloadId(f"family/s{index:05d}"),
            project=ProjectName("family"),
            rate_rps=float(drawn.rate_rps[index]),
            rate_least_rps=float(drawn.rate_rps[index]),
            unserved_usd=float(BEARABLE_TIMES * (1 + alone[index])),
            limit_ms=float(drawn.slo_ms[index] / 2),
            utilisation_max=BUSY_MAX,
        )
        for index in range(drawn.services)
    )


def _column(values: NDArray[np.float64]) -> Floats:
    return np.asarray(values[:, None, None])
