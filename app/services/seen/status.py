"""The whole at a glance: the fleet's summary, line by line, and the gauges.

Live state, documents and the standing target are put side by side, and cut to what one project may see of it.
Everything is read in one moment of the database. What documents and the target say is kept until one of them changes;
what nodes and gateways reported is read each time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from sqlalchemy.orm import Session

from app import kinds
from app.kinds import Kind
from app.records import record, record_of
from app.services.declared.documents import beyond_bounds
from app.services.declared.fleet import VANISHED
from app.services.declared.ownership import PolicyLine, policy_lines, read_owners, standing_of
from app.services.explaining.explaining import gaps
from app.services.explaining.sentences import given_words, owner_words, problem_sentences
from app.services.explaining.short import ShortLine, short_lines
from app.services.explaining.standing import (
    PlanLine,
    PlanningLine,
    beliefs_words,
    plan_line,
    planning_line,
    unled_words,
)
from app.services.planning.reviewing import cheaper_words
from app.services.planning.snapshots import read_policy
from app.store import cycles, documents, nodes, plans, targets, telemetry
from app.store.documents import Stored
from app.store.engine import Database
from app.store.plans import PlanSummary
from app.store.targets import Hold, Standing
from app.store.telemetry import DemandRow, ServedRow
from solvers.cycle.owners import StandingOwners, knob_owners
from solvers.domain.change import Target
from solvers.domain.codec import from_plain, to_plain
from solvers.domain.device import Device, GpuType, Node
from solvers.domain.ids import DeviceId, PlanId, PolicyName, WorkloadId
from solvers.domain.ownership import Owners
from solvers.domain.plan import Unplaced
from solvers.domain.workload import Slo, WorkloadKind


@record
class CostLineNow:
    """Dollars per hour now, with energy: of what is planned and of the whole fleet. A project sees its own shares."""

    planned_usd_per_h: float
    fleet_usd_per_h: float | None


@record
class NodeLine:
    """A node; `age_s` is the seconds since its last report, null before the first."""

    id: str
    rack: str
    failure_domain: str
    schedulable: bool
    up: bool
    age_s: float | None
    generation_applied: int
    endpoint: str | None
    agent_version: str | None
    devices: int


@record
class ReplicaLine:
    """A replica as its node last reported it."""

    replica: str
    kind: str
    workload: str
    model: str
    state: str
    share_pct_sm: int
    memory_mib_limit: int
    batch: int
    latency_ms_p99: float | None


@record
class DeviceLine:
    """A device with what it holds; readings are null while its node is silent."""

    id: str
    node: str
    index: int
    gpu_type: str
    mode: str
    memory_mib: int
    schedulable: bool
    up: bool
    healthy: bool | None
    slow_factor: float | None
    """How many times as long as others of its type it takes, as executions show; 1: as long."""
    power_w: float | None
    utilisation_pct: float | None
    memory_mib_used: float | None
    clock_mhz_sm: int | None
    temperature_c: float | None
    price_usd_per_h: float
    policy: str
    """The policy that decides on everything here."""
    owners: Mapping[str, str]
    """Who of it owns each knob: `POLICY: planner NAME` or `governor NAME`."""
    share_pct_sm_planned: int
    share_pct_sm_held: int
    replicas: tuple[ReplicaLine, ...]


@record
class ServiceLine:
    """A service: replicas, offered load, and how much of it was served within its SLO over the last five minutes."""

    id: str
    project: str
    name: str
    model: str
    mode: str
    policy: str
    slo: Slo
    replicas_planned: int
    replicas_ready: int
    rate_rps: float | None
    rate_rps_declared: float
    latency_ms_p99: float | None
    slo_attainment: float | None
    """0 to 1; null when nothing was asked."""


@record
class WorkLine:
    """A training job or offline task with its progress."""

    id: str
    kind: str
    project: str
    name: str
    model: str
    mode: str
    policy: str
    replicas_planned: int
    replicas_ready: int
    done: float
    total: int
    evictions: int


@record
class FleetSummary:
    """The whole at a glance; with a project's token, what that project holds of it."""

    cluster: str
    generation: int
    plan: PlanLine | None
    promoted_at_s: float
    planning: PlanningLine | None
    """None before the first cycle, and for a project's token."""
    unled: str | None
    """Why nothing is planned: no planner runs; None where one does, and for a project's token."""
    held: Hold | None
    """Who holds automatic planning since a rollback; None where nobody does, and for a project's token."""
    beliefs: str | None
    """What plans do not know yet of what was measured; None where they know all, and for a project's token."""
    cost: CostLineNow
    cheaper: str | None
    """What waits for approval and would cost less than what stands; None where nothing does, and for a project's token.
    """
    slo_attainment: float | None
    policies: tuple[PolicyLine, ...]
    """Empty for a project's token."""
    nodes: tuple[NodeLine, ...]
    devices: tuple[DeviceLine, ...]
    services: tuple[ServiceLine, ...]
    jobs: tuple[WorkLine, ...]
    short: tuple[ShortLine, ...]
    """Who has no place in the standing plan, or too little of it: services first, the worst of them before."""
    beyond: tuple[str, ...]
    """What asks for more than its project's bounds, which were lowered since it was declared."""
    problems: tuple[str, ...]
    """What stands in the way of the generation, as nodes say, and devices that are slower than their type; of its own
    processes for a project's token.
    """


ATTAINMENT_WINDOW_S = 300.0
READY = "ready"
_OF_DOCUMENT = ("id", "node", "index", "gpu_type", "mode", "memory_mib", "schedulable")
_READINGS = ("healthy", "slow_factor", "power_w", "utilisation_pct", "memory_mib_used", "clock_mhz_sm", "temperature_c")
Plain = dict[str, Any]
_UNREAD: Plain = dict.fromkeys(_READINGS)
_VANISHED = to_plain(VANISHED)
_read = attrgetter(*_READINGS)


class StatusReader:
    def __init__(self, database: Database, cluster: str) -> None:
        self._database = database
        self._cluster = cluster
        self._declared: _KeptDeclared | None = None

    def _known(self, session: Session) -> _KeptDeclared:
        stands, short = targets.standing(session, self._cluster), targets.short(session, self._cluster)
        mark = _WhenDeclared(intent=telemetry.intent_mark(session), standing=stands, short=short)
        kept = self._declared
        if kept is None or kept.mark != mark:
            kept = self._declared = _declared(session, self._cluster, mark)
        proven = targets.proven(session, self._cluster)
        return replace(kept, plan=plan_line(kept.summary, kept.given, proven, kept.there))

    def rates(self) -> Mapping[str, float]:
        """Requests per second of every service that gateways spoke of, as a fleet's services tell them."""
        return {row.service: row.rate_rps_mean for row in self._database.read(_demand, ATTAINMENT_WINDOW_S)}

    def stands_s(self) -> float | None:
        """For how long the standing plan does, by the database's clock; None before the first."""
        return self._database.read(targets.stands_s, self._cluster)

    def short(self, session: Session) -> tuple[ShortLine, ...]:
        """Who has no place in the standing plan, or too little of it."""
        return self._known(session).short

    def fleet(self, project: str | None) -> FleetSummary:
        with self._database.reading() as session:
            known = self._known(session)
            mine = _Sight(session, known, project)
            workloads = known.workloads
            devices, beyond = mine.devices(), beyond_bounds(session, project)
            progress = {(row.kind, f"{row.project}/{row.name}"): row for row in telemetry.progress(session)}
            counts = telemetry.counts(session, self._cluster, mine.silent_s)
            held = targets.held_back(session, self._cluster)
            unled = unled_words(targets.read_lease(session, targets.PLANNER))
            problems = nodes.problems(session, mine.target.generation)
            cheaper = cheaper_words(plans.waiting(session)) if project is None else None
        return FleetSummary(
            cluster=self._cluster,
            generation=mine.target.generation,
            plan=known.plan if known.plan is None or project is None else known.plan.of_a_project(),
            promoted_at_s=mine.target.promoted_at_s,
            planning=mine.planning,
            unled=unled if project is None else None,
            held=held if project is None else None,
            beliefs=beliefs_words(counts) if project is None else None,
            cost=mine.cost(),
            cheaper=cheaper,
            slo_attainment=mine.attainment(),
            policies=known.policies if project is None else (),
            nodes=mine.nodes() if project is None else (),
            devices=devices,
            services=tuple(mine.service(stored.spec) for stored in workloads[kinds.SERVICE] if mine.sees(stored.key)),
            jobs=tuple(
                mine.work(kind, stored.spec, progress.get((kind.value, "/".join(stored.key))))
                for kind, source in ((WorkloadKind.JOB, kinds.JOB), (WorkloadKind.TASK, kinds.TASK))
                for stored in workloads[source]
                if mine.sees(stored.key)
            ),
            short=tuple(item for item in known.short if mine.sees(tuple(item.id.split("/")))),
            beyond=beyond,
            problems=(
                *problem_sentences(problems, "" if project is None else f"{project}/", project),
                *(slow_words(device) for device in devices if project is None and (device.slow_factor or 1.0) > 1.0),
            ),
        )


def _demand(session: Session, window_s: float) -> tuple[DemandRow, ...]:
    return telemetry.demand(session, window_s=window_s, lookback_s=window_s, bin_s=window_s)


def slow_words(device: DeviceLine) -> str:
    """Of a device that is slower than its type."""
    times = f"takes {device.slow_factor:.2f} times as long as others of its type"
    return f"{device.id} on {device.node} ({device.gpu_type}) {times}: plans use others first"


def price_of(plain: Plain, node: Plain | None, gpu_type: GpuType | None, owners: Owners) -> float:
    """Dollars per hour of a device; 0 while what it depends on is not there."""
    if node is None or gpu_type is None:
        return 0.0
    device = from_plain(Device, plain)
    return owners.policy_at(device.id).usd_per_h(device, gpu_type, from_plain(Node, node))


def _attainment(rows: Sequence[ServedRow]) -> float | None:
    """Part of the requests that ended within their SLO; None when there were none."""
    total = sum(row.completed + row.unserved for row in rows)
    good = sum(row.completed - row.violated for row in rows)
    return max(0.0, min(1.0, good / total)) if total > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _WhenDeclared:
    """What is another one whenever a document or the target is."""

    intent: str
    standing: Standing
    short: tuple[Unplaced, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeptDeclared:
    """What documents and the target say, until one of them changes: its mark does, then."""

    mark: _WhenDeclared
    silent_s: float
    target: Target
    summary: PlanSummary | None
    given: str
    """What the plan's bound takes as given."""
    there: tuple[Unplaced, ...]
    """Who is short and still declared."""
    short: tuple[ShortLine, ...]
    owners: Owners
    standing: StandingOwners
    nodes: dict[str, Plain]
    devices: dict[str, Plain]
    prices: dict[str, float]
    fixed: dict[str, Plain]
    """Of each device what no report changes, as its line has it."""
    workloads: dict[Kind, list[Stored]]
    slos: dict[str, Slo]
    policies: tuple[PolicyLine, ...]
    plan: PlanLine | None = None


def _declared(session: Session, cluster: str, mark: _WhenDeclared) -> _KeptDeclared:
    target, owners = targets.current(session, cluster), read_owners(session)
    standing = standing_of(session, target)
    nodes_ = {stored.key[0]: stored.spec for stored in documents.all_specs(session, kinds.NODE)}
    devices = {stored.key[0]: stored.spec for stored in documents.all_specs(session, kinds.DEVICE)}
    types = {item.name: item for item in documents.values(session, kinds.GPU_TYPE, GpuType)}
    prices = {
        uuid: price_of(spec, nodes_.get(spec["node"]), types.get(spec["gpu_type"]), owners)
        for uuid, spec in devices.items()
    }
    planned_pct: Counter[str] = Counter()
    for item in target.assignments:
        planned_pct[item.device] += item.share_pct_sm
    fixed = {
        uuid: {
            **{name: spec[name] for name in _OF_DOCUMENT},
            "price_usd_per_h": prices[uuid],
            "policy": owners.policy_at(DeviceId(uuid)).name,
            "owners": owner_words(knob_owners(owners, DeviceId(uuid), standing)),
            "share_pct_sm_planned": planned_pct[uuid],
        }
        for uuid, spec in sorted(devices.items(), key=lambda item: (item[1]["node"], item[1]["index"]))
    }
    workloads = {kind: documents.all_specs(session, kind) for kind in kinds.workloads()}
    summary = None if target.plan is None else plans.get(session, PlanId(target.plan))
    named = _named_owners(owners, workloads)
    ids = ["/".join(stored.key) for found in workloads.values() for stored in found]
    pools = {name: str(named.policy_for(WorkloadId(name)).name) for name in ids}
    there = tuple(item for item in mark.short if item.workload in pools)
    return _KeptDeclared(
        mark=mark,
        silent_s=read_policy(session).device_silent_after_s,
        target=target,
        summary=summary,
        given=given_words(target.assignments, mark.short, pooled=bool(standing.parts)),
        there=there,
        short=short_lines(target.assignments, gaps(there, None, pools if owners.bound else None)),
        owners=owners,
        standing=standing,
        nodes=nodes_,
        devices=devices,
        prices=prices,
        fixed=fixed,
        workloads=workloads,
        slos={"/".join(item.key): from_plain(Slo, item.spec["slo"]) for item in workloads[kinds.SERVICE]},
        policies=policy_lines(named, standing, devices, ids),
    )


def _named_owners(owners: Owners, workloads: Mapping[Kind, Sequence[Stored]]) -> Owners:
    """With the policy that each workload names."""
    specs = {"/".join(stored.key): stored.spec for found in workloads.values() for stored in found}
    named = {WorkloadId(name): PolicyName(str(spec["policy"])) for name, spec in specs.items() if spec.get("policy")}
    return replace(owners, of_workload=named)


class _Sight:
    """What a project (None: everybody) sees of the world."""

    def __init__(self, session: Session, known: _KeptDeclared, project: str | None) -> None:
        self._prefix = "" if project is None else f"{project}/"
        self._whole = project is None
        self._known = known
        self.silent_s, self.target, self.plan = known.silent_s, known.target, known.plan
        self.planning = planning_line(cycles.last_closed(session)) if self._whole else None
        self._owners, self._nodes, self._devices, self._prices = known.owners, known.nodes, known.devices, known.prices
        self._states = {state.node_id: state for state in nodes.all_states(session)}
        self._readings = {row.uuid: row for row in telemetry.devices(session, self.silent_s)}
        served = telemetry.served(session, ATTAINMENT_WINDOW_S)
        self._served = {row.service: row for row in served if row.service in known.slos}
        replicas = telemetry.replicas(session, self.silent_s)
        self._replicas = [row for row in replicas if row.workload.startswith(self._prefix)]
        self._assignments = [item for item in self.target.assignments if item.workload.startswith(self._prefix)]
        self._planned: Counter[str] = Counter(item.workload for item in self._assignments)
        self._planned_pct: Counter[str] = Counter()
        for item in () if self._whole else self._assignments:
            self._planned_pct[item.device] += item.share_pct_sm
        self._ready = Counter(row.workload for row in self._replicas if row.state == READY)

    def sees(self, key: tuple[str, ...]) -> bool:
        return f"{key[0]}/".startswith(self._prefix)

    def cost(self) -> CostLineNow:
        planned = 0.0 if self.plan is None else self.plan.cost_usd_per_h or 0.0
        if not self._whole:
            planned = sum(self._prices.get(item.device, 0.0) * item.share_pct_sm / 100 for item in self._assignments)
        there = {uuid for uuid, spec in self._devices.items() if _VANISHED not in spec["taints"]}
        unused = there - {item.device for item in self._assignments}
        paid = max(sum(self._prices[uuid] for uuid in there), planned + sum(self._prices[uuid] for uuid in unused))
        return CostLineNow(planned_usd_per_h=planned, fleet_usd_per_h=paid if self._whole else None)

    def attainment(self) -> float | None:
        return _attainment([row for service, row in self._served.items() if service.startswith(self._prefix)])

    def nodes(self) -> tuple[NodeLine, ...]:
        shown = []
        counts = Counter(str(spec["node"]) for spec in self._devices.values())
        for node, spec in sorted(self._nodes.items()):
            state = self._states.get(node)
            seen = {name: getattr(state, name, None) for name in ("age_s", "endpoint", "agent_version")}
            up = state is not None and state.age_s is not None and state.age_s <= self.silent_s
            generation = state.generation_applied if state is not None else 0
            shown.append(record_of(NodeLine, spec, **seen, up=up, generation_applied=generation, devices=counts[node]))
        return tuple(shown)

    def devices(self) -> tuple[DeviceLine, ...]:
        held: dict[str, list[ReplicaLine]] = defaultdict(list)
        for row in self._replicas:
            held[row.uuid].append(record_of(ReplicaLine, row))
        return tuple(
            self._device(uuid, fixed, held[uuid])
            for uuid, fixed in self._known.fixed.items()
            if self._whole or held[uuid]
        )

    def _device(self, uuid: str, fixed: Plain, replicas: list[ReplicaLine]) -> DeviceLine:
        reading = self._readings.get(uuid)
        # A project's token sees what was planned for it alone.
        own: Plain = {} if self._whole else {"share_pct_sm_planned": self._planned_pct[uuid]}
        seen = _UNREAD if reading is None else dict(zip(_READINGS, _read(reading), strict=True))
        return DeviceLine(
            **{**fixed, **seen, **own},
            up=reading is not None,
            share_pct_sm_held=sum(replica.share_pct_sm for replica in replicas),
            replicas=tuple(sorted(replicas, key=lambda replica: replica.replica)),
        )

    def service(self, spec: Plain) -> ServiceLine:
        workload = f"{spec['project']}/{spec['name']}"
        row = self._served.get(workload)
        return record_of(
            ServiceLine,
            spec,
            id=workload,
            policy=self._policy(spec),
            slo=self._known.slos[workload],
            replicas_planned=self._planned[workload],
            replicas_ready=self._ready[workload],
            rate_rps=row.rate_rps if row is not None else None,
            latency_ms_p99=row.latency_ms_p99 if row is not None else None,
            slo_attainment=_attainment((row,) if row is not None else ()),
        )

    def _policy(self, spec: Plain) -> str:
        owners, named = self._owners, spec.get("policy")
        return str(named) if named in owners.bound else owners.default.name

    def work(self, kind: WorkloadKind, spec: Plain, progress: telemetry.ProgressRow | None) -> WorkLine:
        workload = f"{spec['project']}/{spec['name']}"
        total = spec["iterations_total"] if kind is WorkloadKind.JOB else spec["inputs_total"]
        return record_of(
            WorkLine,
            spec,
            id=workload,
            kind=kind.value,
            policy=self._policy(spec),
            replicas_planned=self._planned[workload],
            replicas_ready=self._ready[workload],
            # Of what was done, less may have been asked since.
            done=min(progress.done, total) if progress is not None else 0.0,
            total=total,
            evictions=progress.evictions if progress is not None else 0,
        )
