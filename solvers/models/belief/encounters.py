"""Where neighbours were measured together, and how far a question is from there.

The configurations of every ordered pair that was measured are rounded to quarter steps, so that repeated outcomes do
not pile up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from solvers.domain.arrays import Flags, Floats
from solvers.domain.codec import Plain
from solvers.errors import InputError
from solvers.models.parts.company import STRANGER_STEPS, STRANGERS_STEPS

Kind = tuple[str, str, str]
"""GPU type, the model that suffers, the model beside it."""
_SHARE_STEP = 0.1
_BATCH_STEP = 0.2
"""A doubling, on the scale of `Loads.batch`."""
_ROUND = 4.0


def places(own_batch: Floats, other_batch: Floats, own_share: Floats, other_share: Floats) -> Floats:
    """Rows of coordinates in usual grid steps: doublings of batch, 10 points of share."""
    return np.stack(
        [own_batch / _BATCH_STEP, other_batch / _BATCH_STEP, own_share / _SHARE_STEP, other_share / _SHARE_STEP], axis=1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Encounters:
    """A value; `met` holds (GPU type, model) of models that were measured beside another."""

    measured: Mapping[Kind, Floats] = field(default_factory=dict)
    met: frozenset[tuple[str, str]] = frozenset()

    def joined(self, found: Iterable[tuple[Kind, Floats]]) -> Encounters:
        """With more measured places."""
        measured, met = dict(self.measured), set(self.met)
        for kind, rows in found:
            before = measured.get(kind)
            # Quarter steps hold the common grids exactly enough: what is asked is rounded nowhere.
            rounded = np.round(rows * _ROUND) / _ROUND
            if before is None:
                measured[kind] = np.unique(rounded, axis=0)
            else:
                # A few outcomes at a time: sorting everything again would take longer than learning from them.
                new = ~(rounded[:, None] == before).all(axis=2).any(axis=1)
                measured[kind] = np.concatenate([before, np.unique(rounded[new], axis=0)]) if new.any() else before
            met.update([(kind[0], kind[1]), (kind[0], kind[2])])
        return Encounters(measured=measured, met=frozenset(met))

    def knows(self, kind: Kind) -> bool:
        """Whether both models were measured on this GPU type beside another."""
        return (kind[0], kind[1]) in self.met and (kind[0], kind[2]) in self.met

    def nearness(self, kind: Kind, rows: Floats) -> tuple[Floats, Flags]:
        """Steps to the nearest measured place of this pair, and whether rows lie within what was measured of it."""
        if kind not in self.measured:
            known = sum((kind[0], model) in self.met for model in kind[1:])
            far = (np.inf, STRANGER_STEPS, STRANGERS_STEPS)[known]
            return np.full(len(rows), far), np.zeros(len(rows), dtype=np.bool_)
        from scipy.spatial import cKDTree

        measured = self.measured[kind]
        steps = np.asarray(cKDTree(measured).query(rows)[0], dtype=np.float64)
        slack = 0.5 / _ROUND
        inside = np.all((rows >= measured.min(axis=0) - slack) & (rows <= measured.max(axis=0) + slack), axis=1)
        # What rounding of measured places can make is no distance.
        return np.where(steps <= 2.0 * slack, 0.0, steps), inside

    def to_plain(self) -> Plain:
        """As JSON data."""
        return [[*kind, np.asarray(rows).tolist()] for kind, rows in sorted(self.measured.items())]

    @staticmethod
    def from_plain(plain: Plain) -> Encounters:
        """What `to_plain` wrote. Raises InputError for anything else."""
        if not isinstance(plain, list):
            raise InputError("the encounters of this fitted model are no list")
        found: list[tuple[Kind, Floats]] = []
        for item in plain:
            if not isinstance(item, list) or len(item) != 4:
                raise InputError("an encounter of this fitted model cannot be read")
            rows = np.asarray(item[3], dtype=np.float64).reshape(-1, 4)
            found.append(((str(item[0]), str(item[1]), str(item[2])), rows))
        return Encounters().joined(found)
