"""Who presses on whom, as the joint problem has it: known numbers, and a margin beside those nobody knows of.

Owns the split of devices by company. Beside a network whose pressure nobody knows, a training job too, everybody bears
the policy's margin; beside others only what is known. A problem's table is one or the other, so where a GPU type has
both sorts of networks it has two tables: one for those who are known, without the margin, and one for everybody, with
it. Whoever joins those who stay on a device is slowed by them. It refuses to guess a pressure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import Profile
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import WorkloadKind
from solvers.planners.joint.reading.pools import Kin
from solvers.planners.joint.reading.tables import Arrays, Table, pressures
from solvers.problems.joint import Variant
from solvers.problems.needs import Need

DUST = 1e-9


@dataclass(frozen=True, kw_only=True)
class Company:
    """What is known of every variant as a neighbour."""

    margin: float
    profiles: dict[tuple[ModelName, GpuTypeName], Profile]
    variants: tuple[Variant, ...]
    is_job: Flags
    lonely: Flags
    """Has every device to itself, so it neither presses nor is pressed."""

    @staticmethod
    def of(picture: Snapshot, needs: tuple[Need, ...], variants: tuple[Variant, ...]) -> Company:
        """Of all variants of these needs."""
        own = [needs[item.workload] for item in variants]
        return Company(
            margin=picture.policy.interference_margin,
            profiles=picture.profiles_by_key(),
            variants=variants,
            is_job=np.array([need.kind is WorkloadKind.JOB for need in own], dtype=bool),
            lonely=np.array([need.tokens is not None for need in own], dtype=bool),
        )

    def strangers(self, gpu_type: GpuTypeName) -> Flags:
        """Variants that run on a type and press nobody knows how."""
        return np.asarray((self._known(gpu_type) == 0) | self.is_job) & ~self.lonely

    def mixed(self, gpu_type: GpuTypeName) -> bool:
        """Whether some are strangers and some are not, and that makes a difference."""
        known = (self._known(gpu_type) == 1) & ~self.is_job & ~self.lonely
        return self.margin > 1 and bool(known.any()) and bool(self.strangers(gpu_type).any())

    def _known(self, gpu_type: GpuTypeName) -> Whole:
        """1 where it is known how a variant presses, 0 where not, -1 where nothing of it was measured."""
        found = (self.profiles.get((item.model, gpu_type)) for item in self.variants)
        told = [-1 if item is None else int(item.interference is not None) for item in found]
        return np.array(told, dtype=np.int64)

    def part(self, arrays: Arrays, tables: tuple[Table, ...]) -> None:
        """Keep strangers out of the tables for those who are known; in place."""
        for row, table in enumerate(tables):
            if table.known:
                strangers = self.strangers(table.gpu_type)
                for cells in (arrays.mean_ms, arrays.tail_ms):
                    cells[row, strangers] = np.inf

    def join(self, arrays: Arrays, tables: tuple[Table, ...], kin: tuple[Kin, ...]) -> None:
        """What stays on a device slows whoever joins it, and bears him or not; in place."""
        shares = arrays.shares_pct
        for row, table in enumerate(tables):
            rest = kin[table.rest_of].rest if table.rest_of >= 0 else None
            if rest is None:
                continue
            strangers = self.strangers(table.gpu_type)
            own = self._own(table.gpu_type)
            part = (shares * table.sm_part / 100)[None, :]
            presses = own[0][:, None] * part ** own[1][:, None]
            bears = np.where(strangers[:, None], rest.bears_strangers, presses <= rest.borne + DUST)
            fits = bears & (shares <= rest.share_pct)[None, :]
            margin = np.where(strangers | rest.strangers, self.margin, 1.0)
            slow = np.where(strangers, self.margin, margin * (1 + own[2] * rest.pressure))
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
        is_job, lonely = self.is_job[columns], self.lonely[columns]
        pressure[:, is_job], sensitivity[:, is_job], crowd[:, is_job] = 0.0, 0.0, self.margin
        # Whoever has the whole device has no neighbours, known or not.
        pressure[:, lonely], sensitivity[:, lonely], crowd[:, lonely] = 0.0, 0.0, 1.0
        runs = np.isfinite(arrays.mean_ms[:, columns]).any(axis=(2, 3))
        crowd[((crowd > 1) & runs).any(axis=1)] = self.margin
        return pressure, exponent, sensitivity, crowd
