"""From profiles to options: every measured configuration that keeps a workload's promise on a class of devices, and why
the others do not.

Only measured points become options, so that a check of a plan can find the very measurement behind each choice; a share
is rounded up to the policy's step but judged by the measured share below it. Latency carries the interference margin,
or what a bearable pressure of neighbours would make of it where that is known and more, but not where the device is
whole and nobody can be beside. The memory limit is the measured memory plus a tenth, rounded up to 64 MiB. What an
LLM's replicas could do is read by `token_options`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import EllipsisType

import numpy as np
from numpy.typing import NDArray

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.ids import ModelName
from solvers.domain.plan import Assignment
from solvers.domain.policy import Policy
from solvers.domain.profile import Interference, Profile
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import WorkloadKind
from solvers.models.serving.token_plans import standing_serving, token_miss, token_row
from solvers.models.table import Grid, JudgedGrid, Key, Tables
from solvers.problems.choice import UNKNOWN, Option, Options, Press
from solvers.problems.fleet import DeviceClass
from solvers.problems.needs import Need
from solvers.problems.promise import Promise, PromiseOutcome, settle

_Cells = tuple[NDArray[np.intp], NDArray[np.intp]] | EllipsisType
"""Which cells of a grid: rows with columns, or all."""

MEMORY_FACTOR = 1.1
MEMORY_STEP_MIB = 64
NEIGHBOURS_BORNE = 1
PRESSURE_BORNE = 0.5
"""Of all neighbours together: what a replica of known interference is planned to bear."""


def memory_limit_mib(memory_mib: float) -> int:
    """The limit to set for a replica that was measured to use this much."""
    return math.ceil(memory_mib * MEMORY_FACTOR / MEMORY_STEP_MIB) * MEMORY_STEP_MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """What a standing replica can be shown to do, and how many times its latency alone that reckons with."""

    latency_ms: float
    capacity_rps: float
    power_w: float
    slowdown: float


@dataclass(slots=True)
class Beliefs:
    """Tables of a snapshot, built when first asked for."""

    policy: Policy
    tables: Tables
    classes: list[DeviceClass]
    neighbours: int = NEIGHBOURS_BORNE
    """Of any model: as many a replica is planned to bear where shares are not limited."""

    @staticmethod
    def of(snapshot: Snapshot, classes: list[DeviceClass], neighbours: int = NEIGHBOURS_BORNE) -> Beliefs:
        return Beliefs(
            policy=snapshot.policy,
            tables=Tables.of(snapshot.profiles),
            classes=classes,
            neighbours=neighbours,
        )

    @property
    def profiles(self) -> Mapping[Key, Profile]:
        return self.tables.profiles

    def grid(self, model: ModelName, device_class: DeviceClass) -> Grid | None:
        return self.tables.grid_at(model, device_class.gpu_type, device_class.clock_mhz_sm)

    def drawn_w(self, grid: Grid, device_class: DeviceClass, share_pct: int, batch: int) -> float:
        """Power above idle on so much of a device, by the highest measured share that is not above it."""
        row = int(np.searchsorted(grid.shares_pct, share_pct * device_class.sm_part + 1e-9, side="right")) - 1
        return float(_dynamic_power_w(grid, device_class)[row, int(np.searchsorted(grid.batches, batch))])

    def factor(self, need: Need, device_class: DeviceClass, share_pct: int) -> float:
        """How many times its latency alone a replica of the need is planned with: who has all of a device has no
        neighbour.
        """
        if self._alone(need, device_class) or (share_pct >= 100 and not device_class.unlimited):
            return 1.0
        return self._borne(self._interference(need, device_class), device_class)

    def _borne(self, known: Interference | None, device_class: DeviceClass) -> float:
        margin = self.policy.interference_margin
        if not device_class.unlimited:
            return margin if known is None else max(margin, 1 + known.sensitivity * PRESSURE_BORNE)
        if known is None:
            return margin * (1 + self.neighbours) if self.neighbours else 1.0
        kin = (item.unlimited for key, item in self.tables.profiles.items() if key[1] == device_class.gpu_type)
        worst = max((item.pressure_at(100 * device_class.sm_part) for item in kin if item is not None), default=0.0)
        return 1 + known.sensitivity * worst * self.neighbours

    def press(self, need: Need, device_class: DeviceClass, share_pct: int, factor: float) -> Press:
        """How a replica planned with such a factor presses, and what it bears."""
        known = None if self._alone(need, device_class) else self._interference(need, device_class)
        if known is None:
            return UNKNOWN
        return Press.of(known, share_pct * device_class.sm_part, factor, self.policy.interference_margin)

    def press_of(self, standing: Assignment, device_class: DeviceClass) -> Press:
        """How a replica that is not moved presses; it should bear what replicas are planned to."""
        known = self._known(standing.model, standing.kind, device_class)
        if known is None:
            return UNKNOWN
        factor = self._borne(known, device_class)
        return Press.of(known, standing.share_pct_sm * device_class.sm_part, factor, self.policy.interference_margin)

    def _interference(self, need: Need, device_class: DeviceClass) -> Interference | None:
        return self._known(need.model, need.kind, device_class)

    def _known(self, model: ModelName, kind: WorkloadKind, device_class: DeviceClass) -> Interference | None:
        profile = self.profiles.get((model, device_class.gpu_type))
        return None if profile is None or kind is WorkloadKind.JOB else profile.pressing(device_class.unlimited)

    def options(self, need: Need) -> tuple[Options, dict[int, Reason]]:
        """All options of a need over all classes, and for each class without one the reason."""
        parts: list[Options] = []
        refusals: dict[int, Reason] = {}
        for index, device_class in enumerate(self.classes):
            if need.gpu_types_allowed and device_class.gpu_type not in need.gpu_types_allowed:
                refusals[index] = Reason(code=ReasonCode.TYPE_NOT_ALLOWED, subject=device_class.gpu_type)
                continue
            judged = None if need.refusal is not None else self.judged(need, device_class)
            if judged is None:
                refusals[index] = need.refusal or Reason(code=ReasonCode.NO_PROFILE, subject=device_class.gpu_type)
                continue
            found = self._options_of_class(need, index, judged)
            if len(found):
                parts.append(found)
            else:
                refusals[index] = _refusal(need, device_class, judged, self.policy)
        return _joined(parts), refusals

    def assess(self, need: Need, class_index: int, standing: Assignment) -> Option | None:
        """A standing replica seen with today's beliefs; None when it no longer keeps its promise or its memory limit is
        too small.
        """
        device_class = self.classes[class_index]
        if need.tokens is not None:
            return self._assess_tokens(need, class_index, standing)
        grid = None if need.refusal is not None else self.grid(need.model, device_class)
        alone = self._alone(need, device_class)
        low_mhz, high_mhz = standing.envelope.clock_mhz_sm_min, standing.envelope.clock_mhz_sm_max
        open_to = low_mhz <= device_class.clock_mhz_sm <= high_mhz
        if grid is None or standing.model != need.model or not open_to or (alone and standing.share_pct_sm < 100):
            return None
        if low_mhz < device_class.clock_mhz_sm:
            slower = self.tables.grid_at(need.model, device_class.gpu_type, low_mhz)
            widest = replace(standing, batch=standing.envelope.batch_max)
            if slower is None or self._assess_in(need, class_index, widest, slower) is None:
                return None
        return self._assess_in(need, class_index, standing, grid)

    def _assess_in(self, need: Need, class_index: int, standing: Assignment, grid: Grid) -> Option | None:
        """By the points of one clock: those of the highest measured share not above its own that shows it."""
        part = standing.share_pct_sm * self.classes[class_index].sm_part
        highest = int(np.searchsorted(grid.shares_pct, part + 1e-9, "right")) - 1
        rows = range(highest, -1, -1)
        found = (self._assess_at(need, class_index, standing, grid, row, highest) for row in rows)
        return next((option for option in found if option is not None), None)

    def _assess_at(
        self, need: Need, class_index: int, standing: Assignment, grid: Grid, row: int, drawn: int
    ) -> Option | None:
        """The standing replica judged by the points of one measured share, its power by the highest below its own."""
        device_class, widest = self.classes[class_index], standing.envelope.batch_max
        column, last = (_column(grid, row, batch) for batch in (standing.batch, widest))
        if column is None or last is None or standing.memory_mib_limit < grid.memory_mib[last]:
            return None
        batches = np.array([standing.batch, widest], dtype=np.float64)
        factor = self.factor(need, device_class, standing.share_pct_sm)
        cells = np.array([row, row]), np.array([column, last])
        outcome = self._settle(need, grid, batches, cells, factor)
        if not outcome.feasible.all():
            return None
        shown = _Shown(
            latency_ms=float(outcome.latency_ms[0]),
            capacity_rps=float(outcome.capacity_rps[0]),
            power_w=float(_dynamic_power_w(grid, device_class)[drawn, column]),
            slowdown=factor,
        )
        return self._standing(need, class_index, standing, shown)

    def _assess_tokens(self, need: Need, class_index: int, standing: Assignment) -> Option | None:
        found = standing_serving(need, standing, self.classes[class_index], self.policy)
        if found is None or standing.model != need.model:
            return None
        shown = _Shown(
            latency_ms=found.first_token_ms,
            capacity_rps=found.rate_rps,
            power_w=standing.power_w_planned,
            slowdown=1.0,
        )
        return self._standing(need, class_index, standing, shown)

    def as_it_stands(
        self, need: Need, class_index: int, standing: Assignment, *, capacity_rps: float, slowdown: float
    ) -> Option:
        """A standing replica that was shown elsewhere to serve so much beside its present neighbours, slowed so many
        times by them; it bears no more than they are.
        """
        shown = _Shown(
            latency_ms=need.kept_ms(standing.latency_ms_planned or 0.0),
            capacity_rps=capacity_rps,
            power_w=standing.power_w_planned,
            slowdown=slowdown,
        )
        return self._standing(need, class_index, standing, shown)

    def _standing(self, need: Need, class_index: int, standing: Assignment, shown: _Shown) -> Option:
        device_class = self.classes[class_index]
        part = max(standing.share_pct_sm / 100, standing.memory_mib_limit / device_class.memory_mib)
        return Option(
            device_class=class_index,
            gpu_type=device_class.gpu_type,
            batch=standing.batch,
            share_pct=standing.share_pct_sm,
            memory_mib=standing.memory_mib_limit,
            latency_ms=shown.latency_ms,
            capacity_rps=shown.capacity_rps,
            power_w=shown.power_w,
            usd_per_h=device_class.usd_per_h * standing.share_pct_sm / 100,
            weight_usd_per_h=device_class.usd_per_h * part,
            batch_min=standing.envelope.batch_min,
            batch_max=standing.envelope.batch_max,
            clock_mhz_sm=device_class.clock_mhz_sm,
            press=self.press(need, device_class, standing.share_pct_sm, shown.slowdown),
        )

    @staticmethod
    def _alone(need: Need, device_class: DeviceClass) -> bool:
        return need.affinity.dedicated or device_class.exclusive or need.tokens is not None

    def _settle(self, need: Need, grid: Grid, batches: Floats, cells: _Cells, factor: Floats | float) -> PromiseOutcome:
        busy = 1.0 if need.kind is WorkloadKind.TASK else self.policy.utilisation_max
        promise = Promise(
            limit_ms=need.limit_ms, percentile=need.percentile, end_to_end=need.end_to_end, utilisation_max=busy
        )
        return settle(promise, batches, grid.latency_ms_mean[cells] * factor, grid.latency_ms_tail[cells] * factor)

    def judged(self, need: Need, device_class: DeviceClass) -> JudgedGrid | None:
        """All that is known of the need's own network on a class, kept or not; None where that is nothing."""
        if need.tokens is not None:
            return token_row(need, device_class, self.policy)
        grid = self.grid(need.model, device_class)
        if grid is None:
            return None
        batches = np.broadcast_to(grid.batches.astype(np.float64), grid.measured.shape)
        limits = np.array([memory_limit_mib(memory) for memory in grid.memory_mib], dtype=np.int64)
        shares = self._shares(need, device_class, grid)
        beside, whole = (self.factor(need, device_class, share_pct) for share_pct in (0, 100))
        factors = np.where(shares >= 100, whole, beside)[:, None]
        return JudgedGrid(grid=grid, outcome=self._settle(need, grid, batches, ..., factors), limits_mib=limits)

    def _shares(self, need: Need, device_class: DeviceClass, grid: Grid) -> Whole:
        whole = self._alone(need, device_class) or device_class.unlimited
        return _shares_given(grid, device_class, self.policy.share_step_pct, whole=whole)

    def _options_of_class(self, need: Need, index: int, judged: JudgedGrid) -> Options:
        device_class, grid, outcome = self.classes[index], judged.grid, judged.outcome
        shares = self._shares(need, device_class, grid)
        limits = judged.limits_mib
        usable = self._fitting(judged, device_class, shares) & outcome.feasible
        rows, columns = np.nonzero(usable)
        held = np.searchsorted(grid.memory_mib, limits, side="right") - 1
        reach = np.maximum.accumulate(np.where(usable, np.arange(len(grid.batches))[None, :], -1), axis=1)
        share, limit = shares[rows], limits[columns]
        # The share handed out may reach a higher measured share than the one that latency is judged by.
        drawn = np.searchsorted(grid.shares_pct, share * device_class.sm_part + 1e-9, side="right") - 1
        part = np.maximum(share / 100, limit / device_class.memory_mib)
        return Options(
            device_class=np.full(len(rows), index, dtype=np.int64),
            batch=grid.batches[columns],
            share_pct=share,
            memory_mib=limit,
            latency_ms=outcome.latency_ms[rows, columns],
            capacity_rps=outcome.capacity_rps[rows, columns],
            power_w=_dynamic_power_w(grid, device_class)[drawn, columns],
            usd_per_h=device_class.usd_per_h * share / 100,
            weight_usd_per_h=device_class.usd_per_h * part,
            gpus=device_class.gpu_part * share / 100,
            room_gpus=device_class.gpu_part * part,
            batch_min=grid.batches[np.argmax(usable, axis=1)][rows],
            batch_max=grid.batches[reach[rows, held[columns]]],
        )

    def near(self, need: Need, device_class: DeviceClass) -> tuple[float, Reason | None]:
        """The most that a device of the class serves to itself while it keeps the promise, requests/s; where that is
        nothing, what a replica there comes to at best. Neither where nothing is known that fits.
        """
        alone = replace(need, affinity=replace(need.affinity, dedicated=True))
        judged = None if need.refusal is not None else self.judged(alone, device_class)
        if judged is None:
            return 0.0, None
        shares = _shares_given(judged.grid, device_class, self.policy.share_step_pct, whole=False)
        fitting = self._fitting(judged, device_class, shares)
        kept = fitting & judged.outcome.feasible
        if kept.any():
            return float((judged.outcome.capacity_rps * (100 / shares)[:, None])[kept].max()), None
        return 0.0, _miss(need, device_class, judged, fitting, self.policy) if fitting.any() else None

    def _fitting(self, judged: JudgedGrid, device_class: DeviceClass, shares: Whole) -> Flags:
        fits_in = judged.limits_mib <= _room_mib(device_class, self.policy)
        fits = judged.grid.measured & (shares <= 100)[:, None] & fits_in[None, :]
        return np.asarray(fits)

    def option(self, need: Need, options: Options, index: int) -> Option:
        numbers = {name: getattr(options, name)[index].item() for name in (*_WHOLE, *_CHOSEN_BY)}
        device_class, share_pct = self.classes[numbers["device_class"]], numbers["share_pct"]
        return Option(
            gpu_type=device_class.gpu_type,
            clock_mhz_sm=device_class.clock_mhz_sm,
            press=self.press(need, device_class, share_pct, self.factor(need, device_class, share_pct)),
            **numbers,
        )


def _column(grid: Grid, row: int, batch: int) -> int | None:
    """The first batch measured at this share that is not below `batch`."""
    fitting = np.flatnonzero(grid.measured[row] & (grid.batches >= batch))
    return int(fitting[0]) if len(fitting) else None


def _shares_given(grid: Grid, device_class: DeviceClass, step_pct: int, *, whole: bool) -> Whole:
    """Share of the device to hand out for each measured share of a whole GPU; above 100 where the device is small."""
    exact = np.ceil(grid.shares_pct / device_class.sm_part - 1e-9)
    stepped = np.where(exact <= 100, np.minimum(100, np.ceil(exact / step_pct) * step_pct), exact).astype(np.int64)
    if whole:
        # The whole device is taken whatever the replica uses, so it may as well use the most that was measured.
        fitting = np.flatnonzero(stepped <= 100)
        only = np.full_like(stepped, 101)
        only[fitting[-1:]] = 100
        return only
    return stepped


def _dynamic_power_w(grid: Grid, device_class: DeviceClass) -> Floats:
    """Power above idle at full load; where none was measured, the share's part of the way from idle to the highest
    limit.
    """
    whole_idle_w = device_class.idle_w / device_class.gpu_part
    whole_limit_w = device_class.limit_w / device_class.gpu_part
    guess = (whole_limit_w - whole_idle_w) * np.minimum(100, grid.shares_pct)[:, None] / 100
    return np.where(np.isnan(grid.power_w), guess, grid.power_w)


def _room_mib(device_class: DeviceClass, policy: Policy) -> int:
    """What one device has for replicas."""
    return device_class.memory_mib - policy.memory_margin_mib


def _refusal(need: Need, device_class: DeviceClass, judged: JudgedGrid, policy: Policy) -> Reason:
    """The nearest miss: the fastest measured point breaks the promise, or what keeps it does not fit."""
    keeps = judged.grid.measured & judged.outcome.feasible
    if not keeps.any():
        return _miss(need, device_class, judged, judged.grid.measured, policy)
    needed = int(judged.limits_mib[keeps.any(axis=0)].min())
    facts = (
        Fact(name="memory_mib_needed", value=float(needed)),
        Fact(name="memory_mib_device", value=float(_room_mib(device_class, policy))),
    )
    return Reason(code=ReasonCode.NO_MEMORY_LEFT, subject=device_class.gpu_type, facts=facts)


def _miss(need: Need, device_class: DeviceClass, judged: JudgedGrid, cells: Flags, policy: Policy) -> Reason:
    if need.tokens is not None:
        return token_miss(need, (need.model,), device_class.gpu_type, policy)
    facts = (
        Fact(name="latency_ms_best", value=round(float(judged.outcome.latency_ms[cells].min()), 3)),
        Fact(name="latency_ms_limit", value=need.limit_ms or 0.0),
    )
    return Reason(code=ReasonCode.SLO_UNREACHABLE, subject=device_class.gpu_type, facts=facts)


def _joined(parts: list[Options]) -> Options:
    whole, floats = np.zeros(0, dtype=np.int64), np.zeros(0)
    empty = {name: whole if name in _WHOLE else floats for name in _COLUMNS}
    vectors = {name: np.concatenate([empty[name], *(getattr(part, name) for part in parts)]) for name in _COLUMNS}
    return Options(**vectors)


_WHOLE = ("device_class", "batch", "share_pct", "memory_mib", "batch_min", "batch_max")
_CHOSEN_BY = ("latency_ms", "capacity_rps", "power_w", "usd_per_h", "weight_usd_per_h")
_COLUMNS = (*_WHOLE, *_CHOSEN_BY, "gpus", "room_gpus")
