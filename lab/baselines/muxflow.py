"""MuxFlow: inference first on GPUs of its own, and beside each service at most one training job in what it left unused.

Owns the sizing of inference (as few replicas as whole GPUs serve the rate, with the share that was busy at the busiest
moment, and at least the smallest that keeps the promise) and what is remembered of evictions. Whom training is paired
with is `muxflow_jobs`. It has no model of how training slows inference: it looks at what was late and how busy a GPU
is, evicts, and stays away for a while, twice as long each time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from lab.baselines.muxflow_jobs import JobPairing
from solvers.domain.arrays import Floats
from solvers.domain.evidence import Reporter
from solvers.domain.ids import DeviceId, WorkloadId
from solvers.domain.snapshot import Snapshot
from solvers.domain.value import value
from solvers.planners.base import Knob, PlannerSpec, PlanRequest, Recalling, Thought
from solvers.planners.case import Case, put_pinned, with_last_resort
from solvers.planners.draft import Draft
from solvers.planners.memory import kept, recalled
from solvers.planners.seating import Placed
from solvers.planners.tuning import Tune, check_tuned
from solvers.problems.choice import Option
from solvers.problems.fleet import Places, open_fleet
from solvers.problems.needs import Need

SPEC = PlannerSpec(
    name="muxflow",
    about="inference on GPUs of its own, beside each at most one training job by a matching of the greatest weight",
    version="1",
    knobs=(Knob.REPLICAS, Knob.PLACEMENT, Knob.SHARE, Knob.MEMORY, Knob.BATCH),
)
FORM = "muxflow-1"


@value
class MuxflowParameters:
    """Ours: the published description names the rules and no numbers."""

    late_most: Annotated[float, Tune("part of a replica's requests that may be late before its job goes", 0, 1)] = 0.01
    busy_most: Annotated[float, Tune("part of a replica's capacity in use at which its job goes", 0, 1)] = 0.95
    backoff_s: Annotated[float, Tune("how long no job comes after the first eviction", 0, 86400)] = 60.0
    backoff_s_most: Annotated[float, Tune("how long at most, doubling with each eviction", 0, 86400)] = 960.0
    memory_part: Annotated[float, Tune("part of a device's memory that training may have", 0.01, 1)] = 0.6
    keep_pct: Annotated[float, Tune("a standing share that is larger by less than this stays", 0, 100)] = 10.0

    def __post_init__(self) -> None:
        check_tuned(self)


@value
class Backoff:
    """A device that training keeps away from."""

    device: DeviceId
    until_s: float
    evictions: int


@value
class MuxflowMemory:
    """What is kept between cycles."""

    form: str = FORM
    backoffs: tuple[Backoff, ...] = ()

    @staticmethod
    def of(state: bytes) -> MuxflowMemory:
        """What was kept; nothing where these bytes are of another kind."""
        found = recalled(MuxflowMemory, state)
        return found if found is not None and found.form == FORM else MuxflowMemory()


@dataclass(frozen=True, slots=True, kw_only=True)
class MuxFlow(Recalling):
    """See the module."""

    parameters: MuxflowParameters = field(default_factory=MuxflowParameters)

    @property
    def spec(self) -> PlannerSpec:
        """Name, version, knobs."""
        return SPEC

    def first_state(self) -> bytes:
        """Nobody was evicted yet."""
        return kept(MuxflowMemory())

    def think(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Thought:
        """The plan, and where training must not go for now."""
        case = Case.of(request)
        fleet = open_fleet(case.snapshot, case.held)
        put_pinned(case, fleet)
        draft = Draft(request=request, case=case, fleet=fleet)
        Inference(draft=draft, parameters=self.parameters).settle()
        backoffs = self._backoffs(case, MuxflowMemory.of(state))
        shut = {item.device for item in backoffs if item.until_s > case.snapshot.taken_at_s}
        pairing = JobPairing(draft=draft, shut=frozenset(shut), memory_part=self.parameters.memory_part)
        reasons = pairing.settle()
        reporter.event("muxflow.paired", jobs=float(len(reasons)), shut=float(len(shut)))
        return Thought(proposal=draft.proposal(SPEC, reasons), state=kept(MuxflowMemory(backoffs=backoffs)))

    def _backoffs(self, case: Case, memory: MuxflowMemory) -> tuple[Backoff, ...]:
        """Those that still count, and those of devices whose inference suffers beside training now."""
        snapshot, parameters = case.snapshot, self.parameters
        now_s = snapshot.taken_at_s
        # Who was left alone for as long as the longest back-off begins anew.
        known = {item.device: item for item in memory.backoffs if item.until_s + parameters.backoff_s_most > now_s}
        for device in _suffering(snapshot, parameters):
            before = known.get(device)
            if before is not None and before.until_s > now_s:
                continue
            count = 1 if before is None else before.evictions + 1
            wait_s = min(parameters.backoff_s_most, parameters.backoff_s * 2.0 ** (count - 1))
            known[device] = Backoff(device=device, until_s=now_s + wait_s, evictions=count)
        return tuple(known[device] for device in sorted(known))


def _suffering(snapshot: Snapshot, parameters: MuxflowParameters) -> list[DeviceId]:
    """Devices with a training job where inference is late or nearly full."""
    jobs = {WorkloadId(item.id) for item in snapshot.jobs}
    training = {item.device for item in snapshot.target.assignments if item.workload in jobs}
    standing = {item.replica: item for item in snapshot.target.assignments if item.workload not in jobs}
    found = set()
    for seen in snapshot.replica_telemetry:
        item = standing.get(seen.replica)
        if item is None or item.device not in training:
            continue
        full = item.capacity_rps > 0 and seen.rate_rps > parameters.busy_most * item.capacity_rps
        if full or seen.violation_fraction > parameters.late_most:
            found.add(item.device)
    return sorted(found)


@dataclass(slots=True, kw_only=True)
class Inference:
    """Services and tasks of one draft."""

    draft: Draft
    parameters: MuxflowParameters
    hosting: Floats = field(init=False)
    """Replicas by device."""

    def __post_init__(self) -> None:
        self.hosting = np.zeros(len(self.draft.fleet.devices))

    def settle(self) -> None:
        """Everybody, each on GPUs without other inference while there are any."""
        draft = self.draft
        standing = draft.stand()
        for items in standing.values():
            for item in items:
                self.hosting[item.seat.device] += 1
        for need in draft.needs:
            self._serve(need, standing[need.workload])
        for need in draft.needs:
            with_last_resort(draft.case, draft.open(need), draft.let_go)

    def _serve(self, need: Need, running: list[Placed]) -> None:
        draft = self.draft
        for item in running:
            self.hosting[item.seat.device] -= 1
        options = draft.options(need)
        if not len(options):
            draft.keep(need, running, [])
            draft.refuse(need)
            return
        wanted = need.rate_rps > 0 or need.replicas_floor > 0
        sizes = self._sizes(need) if wanted else []
        stays = bool(running) and bool(sizes) and self._stays(need, running, sizes[0][0] * sizes[0][1].share_pct)
        settled = draft.keep(need, running, running if stays else [])
        if not stays and wanted:
            score = draft.at_home(need, self._busy)
            for count, option in sizes:
                while len(settled.placed) < count and draft.put(settled, option, score) is None:
                    self.hosting[settled.placed[-1].seat.device] += 1
                if not settled.rate_rps_wanting:
                    break
            if settled.rate_rps_wanting or len(settled.placed) < need.replicas_floor:
                draft.fill(settled, np.ones(len(options), dtype=np.bool_), self._busy)
        self.hosting = np.zeros(len(self.hosting))
        for other in draft.settled.values():
            for item in other.placed:
                self.hosting[item.seat.device] += 1

    def _sizes(self, need: Need) -> list[tuple[int, Option]]:
        """Count and option on each class of devices, the fewest replicas first."""
        options, found = self.draft.options(need), []
        for number in np.unique(options.device_class):
            mine = np.flatnonzero(options.device_class == number)
            whole = mine[options.share_pct[mine] == options.share_pct[mine].max()]
            reach = float(options.capacity_rps[whole].max())
            count = max(1, need.replicas_floor, math.ceil(need.rate_rps / reach - 1e-9))
            if count > need.replicas_max:
                continue
            each = need.rate_rps / count
            busy_pct = 100.0 * each / reach
            able = mine[
                (options.capacity_rps[mine] >= each * (1 - 1e-9)) & (options.share_pct[mine] >= busy_pct - 1e-9)
            ]
            if len(able):
                # The least share that was busy; of its batches the one that serves most.
                keys = (-options.capacity_rps[able], options.share_pct[able])
                found.append((count, self.draft.option(need, int(able[np.lexsort(keys)[0]]))))
        return sorted(found, key=lambda item: (item[0] * item[1].usd_per_h, item[0], item[1].device_class))

    def _stays(self, need: Need, running: list[Placed], share_pct_busy: int) -> bool:
        """Whether what runs serves with shares near those that are busy."""
        if len(running) < need.replicas_floor or sum(item.capacity_rps for item in running) < need.rate_rps_least:
            return False
        share_pct = sum(item.seat.share_pct for item in running)
        return share_pct <= share_pct_busy + self.parameters.keep_pct * len(running)

    def _busy(self, places: Places) -> Floats:
        """Least inference first; nothing is rented while something stands idle."""
        return np.asarray(1e3 * self.hosting[places] + self.draft.fleet.unrented[places])
