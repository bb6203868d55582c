"""Tables of a snapshot's profiles, made when first asked for.

Grids are read all at once through `stacked`, profiles listed point by point one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import Profile
from solvers.models.stacked import Key, Stack, stacks
from solvers.models.table import Grid, ProfileTable, grid_of


@dataclass(slots=True)
class Tables:
    """See the module."""

    profiles: Mapping[Key, Profile]
    _listed: dict[Key, ProfileTable | None] = field(default_factory=dict)
    _stacked: dict[Key, tuple[Stack, int]] | None = None
    _grids: dict[tuple[Key, int], Grid | None] = field(default_factory=dict)

    def grid_at(self, model: ModelName, gpu_type: GpuTypeName, clock_mhz: int) -> Grid | None:
        """What is known of a model on a GPU type at the highest measured clock that is not above this one."""
        key = model, gpu_type
        asked = (key, clock_mhz)
        if asked not in self._grids:
            profile = self.profiles.get(key)
            if profile is not None and profile.grid is not None:
                self._grids[asked] = self._from_stack(profile, clock_mhz)
            else:
                table = None if profile is None else self._table(profile)
                self._grids[asked] = None if table is None else table.grid_at(clock_mhz)
        return self._grids[asked]

    def _table(self, profile: Profile) -> ProfileTable | None:
        key = profile.model, profile.gpu_type
        if key not in self._listed:
            self._listed[key] = ProfileTable.of(profile)
        return self._listed[key]

    def _from_stack(self, profile: Profile, clock_mhz: int) -> Grid | None:
        if self._stacked is None:
            found = stacks(self.profiles.values())
            self._stacked = {name: (stack, row) for stack in found for row, name in enumerate(stack.keys)}
        stack, row = self._stacked[profile.model, profile.gpu_type]
        layers = np.flatnonzero((stack.clocks_mhz <= clock_mhz) & stack.measured[row].any(axis=(1, 2)))
        return grid_of(stack, row, int(layers[-1])) if len(layers) else None
