"""Who presses on whom, as the joint problem has it: known numbers, and a margin beside those nobody knows of.

Beside a network whose pressure nobody knows, a training job too, everything bears the policy's margin; beside others
only what is known. A problem's table is one or the other, so where a GPU type has both sorts of networks it has two
tables: one for those who are known, without the margin, and one for all, with it. What joins those who stay on a device
is slowed by them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import Interference, Profile
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import WorkloadKind
from solvers.planners.joint.reading.pools import PoolTraits
from solvers.planners.joint.reading.tables import Arrays, Table
from solvers.problems.joint import Variant
from solvers.problems.needs import Need

DUST = 1e-9


@dataclass(frozen=True, kw_only=True)
class Colocation:
    """What is known of every variant as a neighbour."""

    margin: float
    profiles: dict[tuple[ModelName, GpuTypeName], Profile]
    variants: tuple[Variant, ...]
    is_job: Flags
    alone: Flags
    """Has every device to itself, so it neither presses nor is pressed."""

    @staticmethod
    def of(picture: Snapshot, needs: tuple[Need, ...], variants: tuple[Variant, ...]) -> Colocation:
        """Of all variants of these needs."""
        own = [needs[item.workload] for item in variants]
        return Colocation(
            margin=picture.policy.interference_margin,
            profiles=picture.profiles_by_key(),
            variants=variants,
            is_job=np.array([need.kind is WorkloadKind.JOB for need in own], dtype=bool),
            alone=np.array([need.tokens is not None for need in own], dtype=bool),
        )

    def unknown(self, gpu_type: GpuTypeName) -> Flags:
        """Variants that run on a type and whose pressure nobody measured."""
        return np.asarray((self._known(gpu_type) == 0) | self.is_job) & ~self.alone

    def mixed(self, gpu_type: GpuTypeName) -> bool:
        """Whether it is known of some and of others not, and that makes a difference."""
        known = (self._known(gpu_type) == 1) & ~self.is_job & ~self.alone
        return self.margin > 1 and bool(known.any()) and bool(self.unknown(gpu_type).any())

    def _known(self, gpu_type: GpuTypeName) -> Whole:
        """1 where it is known how a variant presses, 0 where not, -1 where nothing of it was measured."""
        found = (self.profiles.get((item.model, gpu_type)) for item in self.variants)
        told = [-1 if item is None else int(item.interference is not None) for item in found]
        return np.array(told, dtype=np.int64)

    def separate_unknown(self, arrays: Arrays, tables: tuple[Table, ...]) -> None:
        """Keep those whose pressure is unknown out of the tables for the others; in place."""
        for row, table in enumerate(tables):
            if table.known:
                unknown = self.unknown(table.gpu_type)
                for cells in (arrays.mean_ms, arrays.tail_ms):
                    cells[row, unknown] = np.inf

    def slow_beside_rests(self, arrays: Arrays, tables: tuple[Table, ...], traits: tuple[PoolTraits, ...]) -> None:
        """What stays on a device slows what joins it, and bears it or not; in place."""
        shares = arrays.shares_pct
        for row, table in enumerate(tables):
            rest = traits[table.rest_of].rest if table.rest_of >= 0 else None
            if rest is None:
                continue
            unknown = self.unknown(table.gpu_type)
            own = self._own(table.gpu_type)
            part = (shares * table.sm_part / 100)[None, :]
            presses = own[0][:, None] * part ** own[1][:, None]
            bears = np.where(unknown[:, None], rest.bears_unknown, presses <= rest.pressure_max + DUST)
            fits = bears & (shares <= rest.share_pct)[None, :]
            margin = np.where(unknown | rest.unknown, self.margin, 1.0)
            slow = np.where(unknown, self.margin, margin * (1 + own[2] * rest.pressure))
            for cells in (arrays.mean_ms, arrays.tail_ms):
                cells[row] = np.where(fits[:, :, None], cells[row] * slow[:, None, None], np.inf)

    def _own(self, gpu_type: GpuTypeName) -> tuple[Floats, Floats, Floats]:
        """Pressure, exponent and sensitivity of every variant; nothing where nobody knows."""
        found = [self.profiles.get((item.model, gpu_type)) for item in self.variants]
        known = [None if item is None else item.interference for item in found]
        pressure, exponent, sensitivity = (
            np.array([0.0 if item is None else float(getattr(item, name)) for item in known])
            for name in ("pressure", "exponent", "sensitivity")
        )
        return pressure, exponent, sensitivity

    def pressures(
        self, tables: tuple[Table, ...], columns: Whole, arrays: Arrays
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Pressure, exponent, sensitivity and crowd by table and chosen variant."""
        chosen = [self.variants[column] for column in columns]
        place = {model: row for row, model in enumerate(dict.fromkeys(item.model for item in chosen))}
        rows = np.array([place[item.model] for item in chosen], dtype=np.int64)
        by_model = pressures(tables, tuple(place), self.profiles, self.margin)
        pressure, exponent, sensitivity, crowd = (values[:, rows] for values in by_model)
        is_job, alone = self.is_job[columns], self.alone[columns]
        pressure[:, is_job], sensitivity[:, is_job], crowd[:, is_job] = 0.0, 0.0, self.margin
        # Whoever has the whole device has no neighbours, known or not.
        pressure[:, alone], sensitivity[:, alone], crowd[:, alone] = 0.0, 0.0, 1.0
        runs = np.isfinite(arrays.mean_ms[:, columns]).any(axis=(2, 3))
        crowd[((crowd > 1) & runs).any(axis=1)] = self.margin
        return pressure, exponent, sensitivity, crowd


def pressures(
    tables: tuple[Table, ...],
    models: tuple[ModelName, ...],
    profiles: dict[tuple[ModelName, GpuTypeName], Profile],
    margin: float,
) -> tuple[Floats, Floats, Floats, Floats]:
    """Pressure, exponent, sensitivity and crowd: table x model. Pressure is that of the whole device, which may be a
    slice; where neighbours are not known of, the margin stands for them.
    """
    shape = (len(tables), len(models))
    pressure, exponent, sensitivity = np.zeros(shape), np.ones(shape), np.zeros(shape)
    crowd = np.full(shape, margin)
    for column, model in enumerate(models):
        for row, table in enumerate(tables):
            profile = profiles.get((model, table.gpu_type))
            known: Interference | None = None if profile is None else profile.interference
            if known is None:
                continue
            exponent[row, column], sensitivity[row, column] = known.exponent, known.sensitivity
            pressure[row, column] = known.pressure * math.pow(table.sm_part, known.exponent)
            crowd[row, column] = 1.0
    return pressure, exponent, sensitivity, crowd
