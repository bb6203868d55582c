"""What is asked at the front door: groups of cases, each a picture, a deadline and what others reach on it."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from pathlib import Path

from app.services.whatif.changes import Changes, RateChange, apply_changes
from app.services.whatif.made import standing_on
from benchmarks.instances.family_snapshot import family_snapshot
from benchmarks.instances.igniter import igniter_snapshot
from benchmarks.instances.inferno import inferno
from benchmarks.instances.melange import melange_slices
from benchmarks.instances.openb import FOLDER as OPENB
from benchmarks.instances.openb import asked_share_pct, openb_snapshot
from benchmarks.instances.parvagpu import parvagpu_snapshot
from benchmarks.instances.rented import inferno_snapshot, melange_snapshot
from benchmarks.sources.rows import data_folder, table
from lab.benches.rolling.problems import InfernoCase
from lab.world.targets import next_target
from solvers.domain.change import Target
from solvers.domain.codec import from_json
from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Plan
from solvers.domain.policy import Policy
from solvers.domain.snapshot import Snapshot
from solvers.domain.telemetry import Demand, DemandOrigin
from solvers.models.worth import Step, worth_of

MIDDLE, MIDDLE_SEED, MIDDLE_UNITS = ((24, 10), (32, 12), (40, 6), (48, 16), (64, 20), (96, 32)), 30, 1000
FAMILY = ((8, 5, 1.0), (64, 20, 2.0), (256, 60, 5.0), (1000, 200, 10.0))
LARGE = ((5000, 1000, 60.0, 60_000), (20000, 3000, 180.0, 180_000))
DEADLINES = (1.0, 5.0, 10.0)
BUSY = 4
COUNTED_S, COUNTED_LARGE_S = 600.0, 3600.0
"""So long that the work ends a plan and not the deadline, however busy the machine is."""
UNITS_PER_S = 1000
"""Counted work of a second of deadline: about a millisecond of processor time each."""
INFERNO = (
    (InfernoCase(), "21,161 (MILP, one type per service); 20,653.5 mixed"),
    (InfernoCase(capacity=0.3), "15,834.5 with 2 unserved (MILP, 60 s, mixed)"),
    (InfernoCase(copies=10, capacity=0.15), "other draw: MILP 60 s, gap 0.21 %"),
    (InfernoCase(copies=40, capacity=0.3, load=1.35), "other draw: MILP 60 s, gap 1.15 %"),
)
INFERNO_S = 60.0
"""As the other system's programme was given."""
MELANGE = ((36, 6, 8), (25, 4, 8), (36, 6, 4))
PARVAGPU_GPUS = {1: 2, 2: 3, 3: 5, 4: 7}
FGD_PCT = "95.2 % given out when 100 % has arrived (FGD)"
CHANGED, CHANGED_TIMES = 10, 1.3
CYCLES_LARGE = 16
HASTY_S, STOOD_S, PAUSE_S = 3.0, 10_000.0, 300.0
"""Of what a fleet's first plan was made by, on a machine with other work; for how long it has stood; between plans."""
CHANGES_MAX: int = Policy.__dataclass_fields__["changes_max"].default


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One picture and how it is planned. `units`: counted work, the same on any machine; None: the deadline ends it."""

    group: str
    name: str
    picture: Callable[[], Snapshot]
    deadline_s: float
    seed: int = 1
    units: int | None = None
    busy: int = 0
    planner: str | None = "joint"
    peer: str = ""
    """What another system reached on the same inputs, where it is known."""
    note: Callable[[Snapshot, Plan], str] = field(default=lambda _snapshot, _plan: "")
    changed: bool = False
    """The plan is made the target, some rates change, and it is the second plan that counts."""
    hasty_s: float | None = None
    """The same of a first plan by such a deadline beside others, hours later, and nothing changed."""
    cycles: int = 0
    """What greed planned, or was planned in haste, is the target, then what each of so many plans makes of it, where a
    gate would promote it.
    """
    memory: bool = False
    """What planners kept of the first plan is handed to the second one, in a file."""
    remembered: bool = False
    """Not through the command, but in process with the planner's own memory, as the service has it: `remembered`."""


def family(seeds: tuple[int, ...]) -> Iterator[Case]:
    """The synthetic family: until the deadline, and with counted work."""
    for gpus, services, deadline_s in FAMILY:
        for seed in seeds:
            case = _family(gpus, services, seed, deadline_s)
            yield case
            units = int(UNITS_PER_S * deadline_s)
            yield replace(case, name=f"{case.name}, counted", units=units, deadline_s=COUNTED_S)


def middle(seeds: tuple[int, ...]) -> Iterator[Case]:
    """The family between its sizes, where one device is much of the cost and nodes are few: with counted work. Seeds
    that nothing was looked for on.
    """
    for gpus, services in MIDDLE:
        for seed in seeds:
            case = replace(_family(gpus, services, seed + MIDDLE_SEED, COUNTED_S), group="middle", units=MIDDLE_UNITS)
            yield replace(case, name=f"{case.name}, counted")


def changed(seeds: tuple[int, ...]) -> Iterator[Case]:
    """Ten of 200 services at 1.3 times their rate, after the first plan is the target."""
    for seed in seeds[:2]:
        case = _family(1000, 200, seed, 10.0)
        case = replace(case, group="changed", name=f"{case.name}, 5 % changed", changed=True)
        yield case
        counted = replace(case, units=int(UNITS_PER_S * case.deadline_s), deadline_s=COUNTED_S)
        yield replace(counted, name=f"{case.name}, with --memory", memory=True)
        yield replace(counted, name=f"{case.name}, remembered", remembered=True)


def hasty(seeds: tuple[int, ...]) -> Iterator[Case]:
    """What stands was planned in haste, and dear devices are idle."""
    for seed in seeds[:2]:
        for deadline_s in (10.0, 20.0, 30.0):
            case = _family(1000, 200, seed, deadline_s)
            name = f"{case.name}, planned in haste, {deadline_s:g} s"
            yield replace(case, group="hasty", name=name, hasty_s=HASTY_S, picture=partial(_counted, 1000, 200, seed))


def dear(seeds: tuple[int, ...]) -> Iterator[Case]:
    """What stands is dear, and no promotion may change more than the default policy allows."""
    for seed in seeds[:2]:
        case = replace(_family(100, 40, seed, 5.0), group="dear", picture=partial(_counted, 100, 40, seed, CHANGES_MAX))
        for cycles in (1, 8):
            yield replace(case, name=f"{case.name}, what greed planned, {cycles} cycles", cycles=cycles, memory=True)
        case = replace(
            _family(1000, 200, seed, 5.0), group="dear", picture=partial(_counted, 1000, 200, seed, CHANGES_MAX)
        )
        name = f"{case.name}, planned in haste, {CYCLES_LARGE} cycles"
        yield replace(case, name=name, hasty_s=HASTY_S, cycles=CYCLES_LARGE, memory=True)


def large(seeds: tuple[int, ...]) -> Iterator[Case]:
    """Fleets that take a minute and more: until the deadline, and with counted work."""
    for gpus, services, deadline_s, units in LARGE:
        case = replace(_family(gpus, services, seeds[0], deadline_s), group="large")
        yield case
        yield replace(case, name=f"{case.name}, counted", units=units, deadline_s=COUNTED_LARGE_S)


def busy(seeds: tuple[int, ...]) -> Iterator[Case]:
    """Short deadlines, alone and beside four processes that only count."""
    for gpus, services in ((64, 20), (1000, 200)):
        for deadline_s in DEADLINES:
            for beside in (0, BUSY):
                case = _family(gpus, services, seeds[0], deadline_s)
                where = f"{case.name}, {deadline_s:g} s, {beside} busy beside it"
                yield replace(case, group="busy", name=where, busy=beside)


def peers(_seeds: tuple[int, ...]) -> Iterator[Case]:
    """Other systems' problems, as they published them or of the same form; what does not count devices by a clock of
    its own is asked for with counted work, too.
    """
    data = data_folder()
    for asked, peer in INFERNO:
        name = f"Inferno x {asked.copies}, capacity {asked.capacity:g}, load {asked.load:g}"
        picture = partial(_inferno, data, asked)
        yield Case(group="peers", name=name, picture=picture, deadline_s=INFERNO_S, peer=peer)
    for case in _peers(data):
        yield case
        units = int(UNITS_PER_S * case.deadline_s)
        yield replace(case, name=f"{case.name}, counted", units=units, deadline_s=COUNTED_S)


def _peers(data: Path) -> Iterator[Case]:
    for buckets, types, slices in MELANGE:
        name = f"Melange {buckets} x {types} x {slices}"
        picture = partial(_melange, buckets, types, slices)
        yield Case(group="peers", name=name, picture=picture, deadline_s=5.0, peer="form only: no draw is on record")
    for number, gpus in PARVAGPU_GPUS.items():
        made = partial(parvagpu_snapshot, data, number, 20, None)
        yield Case(group="peers", name=f"ParvaGPU S{number}", picture=made, deadline_s=2.0, peer=f"{gpus} GPUs (MIG)")
    igniter = partial(igniter_snapshot, data, 3)
    yield Case(group="peers", name="iGniter's example", picture=igniter, deadline_s=1.0, peer="1 GPU")
    openb = partial(openb_snapshot, data, "default")
    yield Case(
        group="peers", name="openb, all pods", picture=openb, deadline_s=20.0, peer=FGD_PCT, note=partial(_given, data)
    )


def demo(folder: Path, seeds: tuple[int, ...]) -> Iterator[Case]:
    """Exported pictures (`headroom snapshot export`) as the fleet's own policies plan them, as the joint planner does,
    the same with nothing standing, and with twenty times the work.
    """
    for path in sorted((*folder.glob("*.json"), *folder.glob("*.json.gz"))):
        for name, standing, planner, units in (
            ("as it stands, its own policies", True, None, None),
            ("as it stands", True, "joint", 1500),
            ("nothing standing", False, "joint", 1500),
            ("nothing standing, long", False, "joint", 30_000),
        ):
            yield Case(
                group="demo",
                name=f"{path.name.partition('.')[0]}: {name}",
                picture=partial(_exported, path, standing=standing),
                deadline_s=COUNTED_S if units else 10.0,
                planner=planner,
                units=units,
                seed=seeds[0],
            )


def _family(gpus: int, services: int, seed: int, deadline_s: float) -> Case:
    return Case(
        group="family",
        name=f"{gpus:,} x {services:,}, seed {seed}",
        picture=partial(family_snapshot, gpus, services, seed),
        deadline_s=deadline_s,
    )


def _counted(gpus: int, services: int, seed: int, changes_max: int | None = None) -> Snapshot:
    """The same, and what was declared is what gateways count: nobody can use more."""
    snapshot = family_snapshot(gpus, services, seed)
    if changes_max is not None:
        snapshot = replace(snapshot, policy=replace(snapshot.policy, changes_max=changes_max))
    counted = (
        replace(Demand.declared(item.id, item.rate_rps_declared), origin=DemandOrigin.OBSERVED)
        for item in snapshot.services
    )
    return replace(snapshot, demands=tuple(sorted(counted, key=attrgetter("service"))))


def _inferno(data: Path, case: InfernoCase) -> Snapshot:
    return inferno_snapshot(inferno(data, case), f"inferno-{case.copies}")


def _melange(buckets: int, types: int, slices: int) -> Snapshot:
    return melange_snapshot(melange_slices(buckets, types, slices, 100.0, 1), f"melange-{buckets}x{types}")


def _given(data: Path, snapshot: Snapshot, plan: Plan) -> str:
    """What was asked for counts, not what a replica may be given beyond it."""
    given_pct = sum(asked_share_pct(item.model) for item in plan.assignments)
    asked = Counter(int(row["num_gpu"]) > 0 for row in table(data, OPENB, "openb_pod_list_default.csv"))[True]
    return f"{given_pct / len(snapshot.devices):.1f} % of all GPUs given out to {asked:,} pods at once"


def _exported(path: Path, *, standing: bool) -> Snapshot:
    raw = path.read_bytes()
    snapshot = from_json(Snapshot, gzip.decompress(raw) if path.suffix == ".gz" else raw)
    return snapshot if standing else replace(snapshot, target=Target(), replicas=())


def after_change(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """The plan stands, and every so many-th service has another rate."""
    standing = standing_on(snapshot, plan)
    step = max(1, len(standing.services) // CHANGED)
    named = [item.id for item in standing.services[::step][:CHANGED]]
    rates = tuple(RateChange(service=name, factor=CHANGED_TIMES) for name in named)
    return apply_changes(standing, Changes(rates=rates))


def after_cycle(snapshot: Snapshot, plan: Plan | None) -> tuple[Snapshot, bool]:
    """Five minutes later, and whether the plan is the target, which it is if a gate would not hold it."""
    later = replace(snapshot, taken_at_s=snapshot.taken_at_s + PAUSE_S)
    if plan is None:
        return later, False
    target, movable = snapshot.target, tuple(WorkloadId(item.id) for item in snapshot.services)
    now = worth_of(snapshot, movable, target.assignments, target.settings).objective
    step = Step.of(snapshot, now, plan)
    if not (step.transition.changes and step.worthwhile):
        return later, False
    return replace(later, target=next_target(target, plan, snapshot.taken_at_s)), True


def after_haste(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """The plan has stood for hours."""
    standing = standing_on(snapshot, plan)
    return replace(standing, taken_at_s=standing.target.promoted_at_s + STOOD_S)
