"""How to plan: by what plans are judged, which planner and controller, with what margins, how eager to change, and on
which devices. Versioned data, never code; the digest of a policy is in every record.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

from solvers.domain.device import LABELS_MAX, USD_PER_H_MAX, Device, GpuType, Label, Node, PriceKind, PriceRow
from solvers.domain.ids import DeviceId, GpuTypeName, NodeId, PolicyName
from solvers.domain.telemetry import DEMAND_BIN_S
from solvers.domain.value import (
    DISTINCT,
    NAME,
    NOT_NEGATIVE,
    POSITIVE,
    check_distinct,
    check_finite,
    check_text,
    declarable,
    declarable_within,
    distinct,
    each,
    late,
    text,
    value,
    within,
)
from solvers.errors import FieldError

# --- What controllers promise, as data: whoever judges a plan asks this, never which controller it is
#
# The controllers themselves are in `solvers.control`, which knows nothing of the domain; a test holds both together, by
# what each controller does.


@value
class GovernorSpec:
    """A controller that moves batches and clocks inside their envelopes between plans."""

    name: str
    keeps_latency: bool
    """Whether it makes batches smaller for as long as a replica is late, and so comes back to what was planned."""
    clock_alone: bool = False
    """Whether it keeps a limit by the clock and by nothing else."""


GOVERNORS = (
    GovernorSpec(name="morak", keeps_latency=True),
    GovernorSpec(name="clipper_l", keeps_latency=True),
    GovernorSpec(name="clipper_p", keeps_latency=False),
    GovernorSpec(name="dfs", keeps_latency=False, clock_alone=True),
    GovernorSpec(name="batchdvfs", keeps_latency=False),
)


def governor_of(name: str) -> GovernorSpec:
    """By name; of a controller that nobody knows nothing is expected."""
    return next((item for item in GOVERNORS if item.name == name), GovernorSpec(name=name, keeps_latency=False))


# --- What a plan is judged by: numbers compared in an order that the policy names

DIGITS = 6
"""Float dust decides nothing."""
DUST = 1e-6


class Term(StrEnum):
    """One term of the objective; a plan is better when it is better in the first term that differs."""

    UNSERVED = "unserved"
    SLO_RISK = "slo_risk"
    COST = "cost"
    CHURN = "churn"
    BALANCE = "balance"
    CAPACITY = "capacity"
    """More is better, and it counts only where a policy names it: what services could be sent."""
    TRAINING = "training"
    """More is better, and it counts only where a policy names it: how fast jobs run."""


ALWAYS = (Term.UNSERVED, Term.SLO_RISK, Term.COST, Term.CHURN, Term.BALANCE)
"""Terms that every plan is judged by."""
RISING = (Term.CAPACITY, Term.TRAINING)
"""Terms of which more is better."""


@value
class Objective:
    """Unserved demand weighted by priority, SLO risk, cost per hour, churn (launch seconds), imbalance; where the
    policy names them, what full batches of services would carry, and seconds of the reference GPU's work that jobs do
    in a second; and what jobs would be worth for all that they could do and do not, which counts with the cost.
    """

    unserved: float = 0.0
    slo_risk: float = 0.0
    cost_usd_per_h: float = 0.0
    churn: float = 0.0
    imbalance: float = 0.0
    capacity_rps: float = late(0.0)
    training_rate: float = late(0.0)
    waiting_usd_per_h: float = late(0.0)

    @property
    def net_usd_per_h(self) -> float:
        """Cost, and what jobs do not earn."""
        return self.cost_usd_per_h + self.waiting_usd_per_h

    def key(self, terms: tuple[Term, ...] = ALWAYS) -> tuple[float, ...]:
        """For comparison; lower is better."""
        numbers = {
            Term.UNSERVED: self.unserved,
            Term.SLO_RISK: self.slo_risk,
            Term.COST: self.net_usd_per_h,
            Term.CHURN: self.churn,
            Term.BALANCE: self.imbalance,
            Term.CAPACITY: -self.capacity_rps,
            Term.TRAINING: -self.training_rate,
        }
        return tuple(round(numbers[term], DIGITS) for term in terms)

    def decisive(self, other: Objective, terms: tuple[Term, ...]) -> Term | None:
        """The first of the terms in which the two differ."""
        keys = zip(terms, self.key(terms), other.key(terms), strict=True)
        return next((term for term, mine, its in keys if abs(mine - its) > DUST), None)

    def rises(self, standing: Objective, terms: tuple[Term, ...], part_min: float) -> bool:
        """Whether the first term that differs is one of which more is better, and grows by such a part of what stands
        at least.
        """
        term = self.decisive(standing, terms)
        if term not in RISING:
            return False
        (mine,), (its,) = self.key((term,)), standing.key((term,))
        return its - mine >= max(DUST, part_min * abs(its))


# --- A pool: which devices a policy has for itself
#
# Selectors of different kinds all have to match; of devices, nodes and GPU types any one named is enough, of labels
# every one has to be on the node.


POOLED_MAX = 50_000
"""Devices, or nodes, that a pool may name one by one."""


@value
class Pool:
    """Devices by id, by node, by GPU type and by labels of their nodes. A slice of a GPU is named by its own id."""

    devices: Annotated[tuple[DeviceId, ...], declarable(POOLED_MAX), each(text(96)), DISTINCT] = ()
    nodes: Annotated[tuple[NodeId, ...], declarable(POOLED_MAX), each(NAME), DISTINCT] = ()
    gpu_types: Annotated[tuple[GpuTypeName, ...], declarable(256), each(NAME), DISTINCT] = ()
    labels: Annotated[tuple[Label, ...], declarable(LABELS_MAX), distinct("key")] = ()

    def __post_init__(self) -> None:
        if not (self.devices or self.nodes or self.gpu_types or self.labels):
            raise FieldError("devices", "a pool names devices, nodes, gpu_types or labels")

    def holds(self, device: Device, node: Node | None) -> bool:
        """Whether a device is meant, on its node where that is known."""
        if self.devices and device.id not in self.devices:
            return False
        if self.nodes and device.node not in self.nodes:
            return False
        if self.gpu_types and device.gpu_type not in self.gpu_types:
            return False
        return not self.labels or (node is not None and set(self.labels) <= set(node.labels))


HOURS_PER_DAY = 24
SECONDS_PER_HOUR = 3600
GRAMS_PER_TONNE = 1e6
MONEY = within(0, USD_PER_H_MAX)
SECONDS_MAX = 1e9
MEMORY_MARGIN_MIB_MAX = 2**20
"""More than any GPU has; what is larger was meant as bytes."""
APPROVAL_S_MIN, APPROVAL_S_MAX = 900.0, 30 * 86_400.0
LOOKBACK_S_MAX = 86_400.0
"""Gateways' reports are kept longer than this, but reading more of them than a day's takes too long."""


class CostBasis(StrEnum):
    """What a plan is said to cost."""

    SHARE = "share"
    """Price x SM share of every replica: the bill that tenants get. Energy is not in it."""
    DEVICE = "device"
    """The whole price of every device in use, and the energy it draws, idle power included: what the operator pays."""
    MEMORY = "memory"
    """Price x part of the device's memory that every replica uses with its planned batch, at most what it may use: the
    bill where GPUs are let by the GB used and the hour. Who has the whole share of a device that is not in time slices
    takes all of it. Energy is not in it.
    """


class Choice(StrEnum):
    """Which plan of a chain of planners is taken."""

    FIRST = "first"
    """The first one that verifies."""
    BEST = "best"
    """All planners are asked, and the best plan that verifies is taken, by the policy's objective."""


@value
class PlannerSetting:
    """One tuning parameter of one planner; which there are, planners say themselves."""

    planner: Annotated[str, NAME]
    name: Annotated[str, text(64)]
    value: bool | float | str

    def __post_init__(self) -> None:
        if isinstance(self.value, str):
            check_text("value", self.value)
        else:
            check_finite("value", self.value)


DEFAULT_POLICY = PolicyName("default")
"""Decides on whatever is in no pool."""


@value
class Policy:
    """A named planning policy. `planners` is the chain, tried in order; its implicit end is keeping the target."""

    name: Annotated[PolicyName, NAME]
    planners: Annotated[tuple[str, ...], declarable(32), DISTINCT, each(NAME)] = ("joint", "greedy")
    choice: Choice = Choice.FIRST
    """With `best`, every planner of the chain is asked, each for an equal part of the deadline."""
    deadline_s: Annotated[float, within(0.05, 600)] = 5.0
    work_units: Annotated[int | None, within(1, 10_000_000)] = None
    """What a planner may do, counted in units of about a millisecond of a usual core: as long as the deadline does not
    come first, the same snapshot then gives the same plan on every machine. None: the deadline alone ends planning."""
    utilisation_max: Annotated[float, within(0.05, 0.99)] = 0.7
    """Highest share of a replica's batch throughput that may be planned as used (the queueing margin)."""
    demand_headroom: Annotated[float, within(1, 10)] = 1.2
    """New capacity is sized for the demand times this. What stands is left alone until the demand itself is short of
    capacity, so this is also how far demand may rise before anything has to change."""
    demand_noise_sigmas: Annotated[float, within(0, 10)] = 3.0
    """New capacity is sized for the demand plus so many standard deviations of a Poisson count where that is more than
    the headroom: at low rates."""
    demand_lookback_s: Annotated[float, within(DEMAND_BIN_S, LOOKBACK_S_MAX)] = 600.0
    """The demand that counts is that of the busiest moment of so long: who was busy lately will be again, and letting
    capacity go and fetching it back costs promises. Shorter saves more where loads fall and stay low."""
    share_step_pct: Annotated[int, within(1, 100)] = 5
    replicas_per_device_max: Annotated[int, within(1, 48)] = 7
    memory_margin_mib: Annotated[int, NOT_NEGATIVE, declarable_within(0, MEMORY_MARGIN_MIB_MAX)] = 512
    """Memory kept free on every device."""
    interference_margin: Annotated[float, within(1, 10)] = 1.25
    """Solo latencies are multiplied by this when a replica is to share its device."""
    caution_std: Annotated[float, within(0, 10)] = 1.0
    """Where nothing was measured, latency is planned as the expected one plus so many standard deviations."""
    price_kind: PriceKind | None = None
    """How its GPUs are paid for, whatever their nodes say, in planning and in bills; None: as each node says."""
    cost_basis: CostBasis = CostBasis.DEVICE
    objective: Annotated[tuple[Term, ...], DISTINCT] = ALWAYS
    """Terms by falling weight; of those left out, the ones that every plan is judged by come last, in the order of
    `Term`, and the others count for nothing.
    """
    energy_usd_per_kwh: Annotated[float, NOT_NEGATIVE, MONEY] = 0.12
    energy_usd_per_kwh_by_hour: Annotated[tuple[float, ...], each(NOT_NEGATIVE), each(MONEY)] = ()
    """Prices of the 24 hours of a day (UTC); empty: `energy_usd_per_kwh` all day."""
    power_usage_effectiveness: Annotated[float, within(1, 5)] = 1.3
    carbon_g_per_kwh: Annotated[float, NOT_NEGATIVE, MONEY] = 0.0
    carbon_usd_per_t: Annotated[float, NOT_NEGATIVE, MONEY] = 0.0
    interruption_usd: Annotated[float, NOT_NEGATIVE, MONEY] = 0.0
    """What one interruption of a spot GPU costs; its price carries this times its interruptions per hour."""
    launch_usd_per_s: Annotated[float, NOT_NEGATIVE, MONEY] = 0.0002
    """$/h that a solver may spend to avoid one second of launching a replica; only settles what costs nearly alike."""
    gap_pct_target: Annotated[float, within(0, 100)] = 0.3
    """A solver stops improving when its plan is this near to the proven bound."""
    stale_after_s: Annotated[float, POSITIVE, declarable_within(0, SECONDS_MAX)] = 30.0
    cooldown_s: Annotated[float, NOT_NEGATIVE, declarable_within(0, SECONDS_MAX)] = 120.0
    """A plan that only saves waits this long after the last promotion; a plan that serves more never waits."""
    gain_usd_per_h_min: Annotated[float, NOT_NEGATIVE, declarable_within(0, USD_PER_H_MAX)] = 0.01
    gain_pct_min: Annotated[float, within(0, 100)] = 5.0
    """A plan that only saves must save this part of what the workloads that it changes cost now."""
    changes_max: Annotated[int, within(1, 100_000)] = 64
    """Most replica starts and stops one promotion may cause."""
    device_silent_after_s: Annotated[float, POSITIVE, within(0, SECONDS_MAX)] = 30.0
    """A device whose node is silent for longer is not planned on."""
    seed: int = 1
    planner_settings: Annotated[tuple[PlannerSetting, ...], declarable(512)] = ()
    """How planners are tuned where it is not by their defaults."""
    governor: Annotated[str, NAME] = "morak"
    """The controller that moves batches and clocks inside their envelopes between plans."""
    pool: Pool | None = late(None)
    """The devices that this policy has for itself, with the workloads that name it; None: none. The policy `default`
    has all that is left.
    """
    interruption_over_s: Annotated[float, within(1.0, SECONDS_MAX)] = late(60.0)
    """Demand that a plan interrupts for so long, because what replaces a replica must launch first, counts as if it
    were never served. The longer this is, the sooner a replica that serves may end for a cheaper or fuller plan.
    """
    approval_expires_s: Annotated[float, within(APPROVAL_S_MIN, APPROVAL_S_MAX)] = late(3600.0)
    """How long a plan waits for approval; of the policy `default`, for all."""
    demand_lookback_learned: bool = late(True)
    """Whether a service is looked back at for a half, a fifth or a tenth of `demand_lookback_s`, where its own last
    hour shows that hardly a request would have been late for it.
    """

    def _rules(self) -> Iterator[FieldError]:
        if len(self.energy_usd_per_kwh_by_hour) not in (0, HOURS_PER_DAY):
            yield FieldError("energy_usd_per_kwh_by_hour", "energy_usd_per_kwh_by_hour lists 24 prices or none")
        check_distinct("planner_settings", (f"{item.planner}.{item.name}" for item in self.planner_settings))

    @property
    def terms(self) -> tuple[Term, ...]:
        """All terms that count, in order."""
        return (*self.objective, *(term for term in ALWAYS if term not in self.objective))

    def before_cost(self, term: Term) -> bool:
        """Whether a term counts before what devices cost."""
        return term in self.terms and self.terms.index(term) < self.terms.index(Term.COST)

    @property
    def planner_deadline_s(self) -> float:
        """What one planner of the chain may take: where all are asked, an equal part."""
        return self.deadline_s / len(self.planners) if self._asks_all else self.deadline_s

    @property
    def _asks_all(self) -> bool:
        return self.choice is Choice.BEST and len(self.planners) > 1

    def price_row(self, gpu_type: GpuType, node: Node) -> PriceRow | None:
        """The price at which a whole GPU of this type on that node is planned and billed; None where there is none."""
        return gpu_type.price_row(self.price_kind or node.price_kind, node.region)

    def usd_per_h(self, device: Device, gpu_type: GpuType, node: Node) -> float:
        """What an hour of a device is billed at, without its energy; 0 without a price."""
        row = self.price_row(gpu_type, node)
        return 0.0 if row is None else row.usd_per_h * gpu_type.part_of(device)

    def usd_per_wh(self, at_s: float) -> float:
        """What one watt-hour drawn by a GPU costs at a moment (seconds since the epoch): price of the hour and of its
        carbon, cooling included.
        """
        price = self.energy_usd_per_kwh
        if self.energy_usd_per_kwh_by_hour:
            price = self.energy_usd_per_kwh_by_hour[int(at_s // SECONDS_PER_HOUR) % HOURS_PER_DAY]
        carbon = self.carbon_g_per_kwh * self.carbon_usd_per_t / GRAMS_PER_TONNE
        return (price + carbon) * self.power_usage_effectiveness / 1000
