"""What a set of assignments is worth today: the objective, what it leaves short, and whether it is worth its changes.

The objective is defined here, so that a planner's answer, the standing target and any other plan are judged alike and
by today's beliefs, not by what was believed when they were made.

    unserved   sum over movable workloads of priority x (rate short, requests/s + replicas missing below the floor);
               a job that must run and waits counts as its one replica
    slo_risk   sum of priority x replicas that stand but cannot be shown to keep their promise
    cost       by the policy's basis: device price x share of its replicas, or x the part of its memory that they
               use, once at most; or the price of every device in use and the energy of its idle and planned power
               (prices carry expected interruptions; unknown devices cost nothing). With it counts what jobs that
               may wait do not earn (`problems.jobs`)
    churn      launch seconds of replicas that must start anew compared with the standing target
    imbalance  highest minus lowest summed share of the devices in use, as a fraction
    capacity   requests/s that full batches would carry of the movable services' replicas that are shown to keep their
               promise, beside their neighbours (of an LLM's: the rate that it may be given)
    training   seconds of the reference GPU's work that movable jobs do in a second: in proportion to peak, SMs, share
               and clock, less what neighbours take

The last two are told where the policy names them. Replicas on devices that may not be used now (silent, sick,
unschedulable, gone) serve nothing.

Where not whole devices are paid, replicas are billed by share: what they have of the device's SMs. Or by memory: what
they use of it with the batch that is planned, as far as that was measured, else what they may use; and all of it where
one replica has all SMs, because no other can be there then. In time slices no replica has SMs of its own, so one with
the whole share pays for its memory.

There is one rule of hysteresis: the gate promotes by it, the chain of planners chooses among sound plans by it, and the
joint planner among its own, so that none of them picks what another would hold. The standing target and the plan are
judged by the same snapshot and the same objective, its terms in the policy's order. A plan that serves more, risks less
or moves what stands on lost devices is urgent. Any other only saves: it must save as much as an amount, as a part of
what it touches costs now (the bill of the workloads, or by the device basis the cost of the devices) and as what its
launches are worth; or, where a term of which more is better decides, grow by the policy's part. The churn budget counts
starts and stops of replicas, but for those on lost devices, of workloads that are deleted or done, and for new replicas
that serve more. A plan that only makes
room for another one is judged by that one, and by what it costs more meanwhile, spread over as long as what stands has
stood.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter

from solvers.domain.change import Change, ChangeKind, Transition, diff
from solvers.domain.device import Device, DeviceMode
from solvers.domain.grouping import grouped, summed
from solvers.domain.ids import DeviceId, GpuTypeName, ModelName, ReplicaId, WorkloadId
from solvers.domain.plan import Assignment, DeviceSetting, Plan
from solvers.domain.policy import DUST, RISING, CostBasis, Objective, Term
from solvers.domain.profile import Profile
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import TrainingJob, WorkloadKind
from solvers.models.appraisal import Appraisal
from solvers.models.table import Tables
from solvers.problems.fleet import Fleet, open_fleet, silent_nodes
from solvers.problems.jobs import job_worth, must_run
from solvers.problems.needs import Need, going_on, iterations_per_s, needs_of, pinned_assignments

WHOLE_PCT = 100
Profiles = Mapping[tuple[ModelName, GpuTypeName], Profile]


def billed_part(
    device: Device, setting: DeviceSetting | None, items: Sequence[Assignment], basis: CostBasis, profiles: Profiles
) -> float:
    """Between 0 and 1. `setting`: how the plan runs the device; None: as it is."""
    if basis is CostBasis.DEVICE:
        return 1.0
    mode = device.mode if setting is None else setting.mode
    alone = mode is not DeviceMode.TIME_SLICED and any(item.share_pct_sm >= WHOLE_PCT for item in items)
    if basis is CostBasis.MEMORY and not alone:
        used_mib = sum(_used_mib(item, profiles.get((item.model, device.gpu_type))) for item in items)
        return min(1.0, used_mib / device.memory_mib)
    return min(WHOLE_PCT, sum(item.share_pct_sm for item in items)) / WHOLE_PCT


def _used_mib(item: Assignment, profile: Profile | None) -> float:
    """The most that was measured with no larger a batch than planned, within the replica's limit."""
    if profile is None or item.kind is WorkloadKind.JOB:
        return float(item.memory_mib_limit)
    if profile.grid is not None:
        pairs = [*zip(profile.grid.batches, profile.grid.memory_mib, strict=True)]
    else:
        pairs = [(point.batch, point.memory_mib) for point in profile.points if point.memory_mib]
    found = max((memory for batch, memory in pairs if batch <= item.batch), default=0.0)
    return min(found, float(item.memory_mib_limit)) if found > 0 else float(item.memory_mib_limit)


LAUNCH_S_DEFAULT = 10.0
"""For models that are not in the catalogue (training jobs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    need: Need
    rate_rps_short: float
    """Of what its replicas claim, as far as that can be shown: a plan that keeps them promises no more."""
    replicas_missing: int
    failure_domains_missing: int = 0
    """Where it stands at all."""
    replicas_at_risk: int = 0
    """That cannot be shown to keep its promise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """The objective with the shortages behind it."""

    objective: Objective
    shortages: tuple[Shortage, ...]


def pinned_settings(snapshot: Snapshot, movable: tuple[WorkloadId, ...]) -> dict[DeviceId, DeviceSetting]:
    """Standing settings of devices that hold a pinned replica: they must stay."""
    devices = {item.device for item in pinned_assignments(snapshot, movable)}
    return {setting.device: setting for setting in snapshot.target.settings if setting.device in devices}


def worth_of(
    snapshot: Snapshot,
    movable: tuple[WorkloadId, ...],
    assignments: tuple[Assignment, ...],
    settings: tuple[DeviceSetting, ...] = (),
) -> Worth:
    """Judge these assignments by the present snapshot, offered GPUs included; a device that is not among the settings
    runs at its defaults, or as it stands where something pinned is on it.
    """
    whole = snapshot.with_offers()
    held = pinned_settings(whole, movable) | {item.device: item for item in settings}
    fleet = open_fleet(whole, held)
    appraisal = Appraisal.of(fleet, Tables.of(whole.profiles), whole.policy, assignments, held)
    by_workload = grouped(assignments, lambda item: item.workload)
    unserved = risk = full_rps = waiting_usd = 0.0
    shortages: list[Shortage] = []
    for need in needs_of(whole, movable):
        standing = [item for item in by_workload[need.workload] if _on_usable(fleet, item)]
        # By replica the rate that keeps its promise and that of full batches; None where it cannot be shown to keep it.
        shown = [] if need.kind is WorkloadKind.JOB else appraisal.shown_rps(need, standing)
        capacity_rps, at_risk = sum(item[0] for item in shown if item is not None), shown.count(None)
        full_rps += sum(item[1] for item in shown if item is not None and need.kind is WorkloadKind.SERVICE)
        short = _short_rps(need, capacity_rps)
        # A job claims no rate.
        claims = zip(shown, standing, strict=False)
        unclaimed = _short_rps(need, sum(min(rate[0], item.capacity_rps) for rate, item in claims if rate is not None))
        missing = max(0, need.replicas_min - len(standing))
        if need.kind is WorkloadKind.JOB and not must_run(whole.policy):
            waiting_usd += _waiting_usd(whole, need, standing, appraisal)
        else:
            unserved += need.weight * (short + missing)
        risk += need.weight * at_risk
        narrow = _failure_domains_missing(fleet, need, standing)
        if unclaimed or missing or narrow or at_risk:
            lacks = Shortage(
                need=need,
                rate_rps_short=unclaimed,
                replicas_missing=missing,
                failure_domains_missing=narrow,
                replicas_at_risk=at_risk,
            )
            shortages.append(lacks)
    objective = Objective(
        unserved=unserved,
        slo_risk=risk,
        cost_usd_per_h=sum(cost_by_device(whole, fleet, assignments, held).values()),
        churn=_churn_s(whole, assignments),
        imbalance=_imbalance(assignments),
        capacity_rps=full_rps if Term.CAPACITY in whole.policy.terms else 0.0,
        training_rate=_training(whole, movable, assignments, appraisal),
        waiting_usd_per_h=waiting_usd,
    )
    return Worth(objective=objective, shortages=tuple(shortages))


def cost_by_device(
    snapshot: Snapshot, fleet: Fleet, assignments: tuple[Assignment, ...], settings: Mapping[DeviceId, DeviceSetting]
) -> dict[DeviceId, float]:
    """$/h of every known device in use, by the policy's basis; devices in rising order."""
    there = (item for item in sorted(assignments, key=lambda item: item.replica) if item.device in fleet.index)
    on_device = grouped(there, lambda item: item.device)
    profiles = snapshot.profiles_by_key() if snapshot.policy.cost_basis is CostBasis.MEMORY else {}
    basis, usd_per_wh = snapshot.policy.cost_basis, snapshot.policy.usd_per_wh(snapshot.taken_at_s)
    found: dict[DeviceId, float] = {}
    for device in sorted(on_device):
        number, setting, items = fleet.index[device], settings.get(device), on_device[device]
        kind = fleet.class_at(number)
        price = kind.expected_usd_per_h
        if basis is not CostBasis.DEVICE:
            found[device] = price * billed_part(fleet.devices[number], setting, items, basis, profiles)
            continue
        limit_w = kind.limit_w if setting is None or setting.power_limit_w is None else setting.power_limit_w
        dynamic_w = sum(item.power_w_planned for item in items)
        found[device] = price + usd_per_wh * min(kind.limit_w, limit_w, kind.idle_w + dynamic_w)
    return found


def _on_usable(fleet: Fleet, assignment: Assignment) -> bool:
    device = fleet.index.get(assignment.device)
    return device is not None and bool(fleet.usable[device])


def _short_rps(need: Need, capacity_rps: float) -> float:
    short = max(0.0, need.rate_rps_least - capacity_rps)
    return short if short > 1e-6 * max(1.0, need.rate_rps_least) else 0.0


def _failure_domains_missing(fleet: Fleet, need: Need, standing: Sequence[Assignment]) -> int:
    lies_in = {int(fleet.failure_domain[fleet.index[item.device]]) for item in standing}
    return max(0, need.affinity.failure_domains_min - len(lies_in)) if lies_in else 0


def _training(
    snapshot: Snapshot, movable: tuple[WorkloadId, ...], assignments: tuple[Assignment, ...], appraisal: Appraisal
) -> float:
    """How fast all movable jobs run together; 0 where the policy does not ask."""
    if Term.TRAINING not in snapshot.policy.terms:
        return 0.0
    wanted: set[str] = set(movable)
    jobs = {WorkloadId(job.id): job for job in snapshot.jobs if job.id in wanted}
    standing = (item for item in assignments if item.workload in jobs and _on_usable(appraisal.fleet, item))
    return sum(training_rate(snapshot, jobs[item.workload], item, appraisal) for item in standing)


def _waiting_usd(snapshot: Snapshot, need: Need, standing: Sequence[Assignment], appraisal: Appraisal) -> float:
    """What a job does not earn of what it is worth."""
    fleet = appraisal.fleet
    job = next(item for item in snapshot.jobs if WorkloadId(item.id) == need.workload)
    worth, types = job_worth(snapshot, fleet, need, job), snapshot.gpu_types_by_name()
    earned_usd = 0.0
    for item in standing:
        number = int(fleet.class_of[fleet.index[item.device]])
        clock = appraisal.running(item.device) / types[fleet.classes[number].gpu_type].clock_mhz_sm_max
        earned_usd += worth.earned_usd(number, item.share_pct_sm * clock / appraisal.slowdown(item))
    return max(0.0, worth.usd_per_h - earned_usd)


def training_rate(snapshot: Snapshot, job: TrainingJob, item: Assignment, appraisal: Appraisal) -> float:
    """Seconds of the reference GPU's work that one job does in a second where it stands."""
    types = snapshot.gpu_types_by_name()
    kind = appraisal.fleet.class_at(appraisal.fleet.index[item.device])
    whole = iterations_per_s(job, types, kind.gpu_type) * job.iteration_ms_reference / 1000
    clock = appraisal.running(item.device) / types[kind.gpu_type].clock_mhz_sm_max
    return whole * kind.sm_part * item.share_pct_sm / 100 * clock / appraisal.slowdown(item)


_running = attrgetter("device", "model", "share_pct_sm", "memory_mib_limit")
"""What a process keeps while it runs."""


def _churn_s(snapshot: Snapshot, assignments: tuple[Assignment, ...]) -> float:
    launch_s: dict[ModelName, float] = {model.name: model.launch_s for model in snapshot.models}
    standing = {item.replica: item for item in snapshot.target.assignments}

    def as_standing(item: Assignment) -> bool:
        before = standing.get(item.replica)
        return before is not None and _running(before) == _running(item)

    return sum(launch_s.get(item.model, LAUNCH_S_DEFAULT) for item in assignments if not as_standing(item))


def _imbalance(assignments: tuple[Assignment, ...]) -> float:
    shares = summed(assignments, lambda item: item.device, lambda item: item.share_pct_sm)
    return (max(shares.values()) - min(shares.values())) / 100 if shares else 0.0


# --- Whether a plan is worth its changes

STOPOVER_S, SAVING_S = 60.0, (1800.0, 14400.0)
"""How long a plan that makes room stands beside the policy's cooldown, and over how long what follows has to pay it, at
least and at most: as long as what stands has stood, for so long may the next.
"""


def aim_of(snapshot: Snapshot, plan: Plan) -> Objective:
    """What a plan is judged by: where it leads to, with what it costs more on the way; as short as either is."""
    now = plan.objective
    if plan.toward is None:
        return now
    then, (least_s, most_s) = plan.toward.objective, SAVING_S
    saving_s = min(max(least_s, snapshot.taken_at_s - snapshot.target.promoted_at_s), most_s)
    more_usd = max(0.0, now.net_usd_per_h - then.net_usd_per_h) * (snapshot.policy.cooldown_s + STOPOVER_S) / saving_s
    return replace(
        then,
        unserved=max(now.unserved, then.unserved),
        slo_risk=max(now.slo_risk, then.slo_risk),
        cost_usd_per_h=then.cost_usd_per_h + more_usd,
    )


@dataclass(frozen=True, kw_only=True)
class Step:
    """From the standing target to a plan. `standing` is the target's worth under the same snapshot."""

    snapshot: Snapshot
    standing: Objective
    plan: Plan
    transition: Transition

    @staticmethod
    def of(snapshot: Snapshot, standing: Objective, plan: Plan) -> Step:
        """With the changes that it takes."""
        launch_s = {model.name: model.launch_s for model in snapshot.models}
        transition = diff(snapshot.target, plan, launch_s)
        return Step(snapshot=snapshot, standing=standing, plan=plan, transition=transition)

    @cached_property
    def aim(self) -> Objective:
        """What the plan is judged by."""
        return aim_of(self.snapshot, self.plan)

    @cached_property
    def ahead(self) -> tuple[Change, ...]:
        """Its changes, and where it only makes room those that follow."""
        if self.plan.toward is None:
            return self.transition.changes
        launch_s = {model.name: model.launch_s for model in self.snapshot.models}
        return (*self.transition.changes, *diff(self.snapshot.target, self.plan.arrived, launch_s).changes)

    @property
    def first(self) -> bool:
        """Whether nothing was ever promoted, so that there is nothing to weigh it against."""
        return self.snapshot.target.generation == 0

    @cached_property
    def lost(self) -> frozenset[ReplicaId]:
        return lost_replicas(self.snapshot)

    @property
    def better(self) -> bool:
        """Whether the plan is better in the first term, in the policy's order, by which it differs from the target."""
        term = self.aim.decisive(self.standing, self.snapshot.policy.terms)
        return term is not None and self.aim.key((term,)) < self.standing.key((term,))

    @property
    def serves_more(self) -> bool:
        """Whether it is better and leaves less unserved, or lets jobs start."""
        less_unserved = self.aim.unserved < self.standing.unserved - DUST
        return self.better and (less_unserved or self.starts_jobs)

    @cached_property
    def starts_jobs(self) -> bool:
        ran = {item.workload for item in self.snapshot.target.assignments}
        started = (item for item in self.plan.assignments if item.kind is WorkloadKind.JOB)
        return any(item.workload not in ran for item in started)

    @property
    def urgent(self) -> bool:
        """Whether small gain does not count, as far as the snapshot tells."""
        now, then = self.standing, self.aim
        less_risk = self.better and then.slo_risk < now.slo_risk - DUST and then.unserved <= now.unserved + DUST
        moved = any(change.subject in self.lost for change in self.transition.changes)
        return self.first or self.serves_more or less_risk or moved

    @property
    def saved_usd_per_h(self) -> float:
        """What it costs less, jobs that wait counted in."""
        return self.standing.net_usd_per_h - self.aim.net_usd_per_h

    @cached_property
    def asked_usd_per_h(self) -> float:
        """What it must save if saving is all that it does."""
        policy = self.snapshot.policy
        launches_usd = policy.launch_usd_per_s * sum(change.cost_s for change in self.ahead)
        return max(policy.gain_usd_per_h_min, policy.gain_pct_min / 100 * self._touched_usd_per_h(), launches_usd)

    @property
    def gains_enough(self) -> bool:
        policy = self.snapshot.policy
        if self.aim.rises(self.standing, policy.terms, policy.gain_pct_min / 100):
            return True
        return self.better and self.saved_usd_per_h >= self.asked_usd_per_h

    @cached_property
    def counted_changes(self) -> int:
        """Starts and stops that the churn budget counts."""
        more, wanted = self.serves_more, going_on(self.snapshot)
        ended = (item.replica for item in self.snapshot.target.assignments if item.workload not in wanted)
        free = self.lost.union(ended)
        counted = (
            change
            for change in self.transition.changes
            if change.subject not in free and not (more and change.kind is ChangeKind.START)
        )
        voluntary = Transition(changes=tuple(counted))
        return voluntary.process_starts + voluntary.process_stops

    @cached_property
    def changes_after(self) -> int:
        """Starts and stops that follow where the plan only makes room."""
        if self.plan.toward is None:
            return 0
        room = replace(self.snapshot.target, assignments=self.plan.assignments, settings=self.plan.settings)
        launch_s = {model.name: model.launch_s for model in self.snapshot.models}
        then = diff(room, self.plan.arrived, launch_s)
        return then.process_starts + then.process_stops

    @property
    def within_churn(self) -> bool:
        """Whether one promotion may cause that many, and another what follows, or else room was made for nothing; the
        first plan may cause any number.
        """
        return self.first or max(self.counted_changes, self.changes_after) <= self.snapshot.policy.changes_max

    @property
    def waits_for_churn(self) -> bool:
        """Whether to act on it, but for its many changes."""
        return not self.within_churn and (self.urgent or self.gains_enough)

    @property
    def worthwhile(self) -> bool:
        """Whether to act on it at once, as far as the snapshot tells. What changes nothing can always be kept."""
        return not self.transition.changes or (self.within_churn and (self.urgent or self.gains_enough))

    def outweighs(self, other: Objective, term: Term) -> bool:
        """Whether it is so much better than another plan in one term that its own changes are worth it."""
        gain = other.key((term,))[0] - self.aim.key((term,))[0]
        if not self.snapshot.target.assignments:
            return gain > DUST
        if term is Term.COST:
            return gain > DUST and gain >= self.asked_usd_per_h
        part = self.snapshot.policy.gain_pct_min / 100 if term in RISING else 0.0
        return gain > DUST and gain >= part * abs(other.key((term,))[0])

    def _touched_usd_per_h(self) -> float:
        """What stands of the workloads with changed replicas; by the device basis, all of the devices with changes."""
        snapshot, changes = self.snapshot, self.ahead
        ends = [end for change in changes for end in (change.before, change.after) if end is not None]
        held = {setting.device: setting for setting in snapshot.target.settings}
        if snapshot.policy.cost_basis is not CostBasis.DEVICE:
            workloads = {end.workload for end in ends}
            touched = tuple(item for item in snapshot.target.assignments if item.workload in workloads)
        else:
            devices = {end.device for end in ends} | {change.subject for change in changes if change.setting_after}
            touched = tuple(item for item in snapshot.target.assignments if item.device in devices)
        return sum(cost_by_device(snapshot, open_fleet(snapshot, {}), touched, held).values())


def worth_acting(steps: Iterable[Step]) -> list[int]:
    """Numbers of the steps that can be acted on at once; of all, where none can."""
    listed = list(steps)
    return [number for number, step in enumerate(listed) if step.worthwhile] or list(range(len(listed)))


def lost_replicas(snapshot: Snapshot) -> frozenset[ReplicaId]:
    """Replicas of the target whose device is gone, sick or silent."""
    silent = silent_nodes(snapshot)
    sick = {reading.device for reading in snapshot.device_telemetry if not reading.healthy}
    fine = {device.id for device in snapshot.devices if device.node not in silent and device.id not in sick}
    return frozenset(item.replica for item in snapshot.target.assignments if item.device not in fine)
