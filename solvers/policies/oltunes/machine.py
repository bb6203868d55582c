"""FM-FTRL as OLTunes uses it: the factorisation machine over the features of Table 3, taught by FTRL-Proximal.

Online learning is one FTRL step per row; fitting goes over rows several times. Targets come standardised.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.domain.codec import Plain
from solvers.domain.value import check_not_negative, check_positive
from solvers.models.base import Facts, Groups
from solvers.models.parts.seen import floats_of, part, read
from solvers.policies.oltunes.features import BIAS, FeatureRows, Vocabulary, feature_rows
from solvers.policies.oltunes.history import HistoryWindow

# --- The machine (Eq. 2)
#
# Evaluation is linear in the active features times the rank, gradients are of the squared error (Eq. 3), and the state
# is what learning goes on from. A row names its active features and their values, padded with feature 0, the bias,
# which takes part in no interaction.
#
# Symbols: w linear weights and V (rank m_f) interaction factors lie side by side in one array of coordinates, feature
# x target x (1 + m_f). Starting V at 0 would keep it there, so each factor starts at a small random centre and FTRL
# learns the distance from it.


@dataclass(frozen=True, slots=True, kw_only=True)
class FtrlSettings:
    """Hyper-parameters, the same for all coordinates."""

    eta: float
    zeta: float
    lambda_1: float
    lambda_2: float

    def __post_init__(self) -> None:
        check_positive("eta", self.eta)
        check_positive("zeta", self.zeta)
        check_not_negative("lambda_1", self.lambda_1)
        check_not_negative("lambda_2", self.lambda_2)


def weights(z: Floats, n: Floats, settings: FtrlSettings) -> Floats:
    """The weight of every coordinate; 0 where its gradients have not added up to more than lambda_1."""
    rate = (settings.zeta + np.sqrt(n)) / settings.eta + settings.lambda_2
    # Shrinking |z| by lambda_1 down to 0 at most is both branches of the printed rule at once.
    return np.asarray(-np.sign(z) * np.maximum(np.abs(z) - settings.lambda_1, 0.0) / rate)


def accumulated(z: Floats, n: Floats, gradient: Floats, settings: FtrlSettings) -> tuple[Floats, Floats]:
    """Both accumulators after one gradient per coordinate; coordinates with gradient 0 stay as they are. As the
    literature has it: what the paper prints leaves out the correction by sigma.
    """
    n_after = n + gradient**2
    sigma = (np.sqrt(n_after) - np.sqrt(n)) / settings.eta
    return z + gradient - sigma * weights(z, n, settings), n_after


_CENTRE_STD = 0.01


@dataclass(frozen=True, kw_only=True)
class FactorisationMachine:
    """A machine as a value: learning gives a new one. `z` and `n` are FTRL's accumulators of every coordinate."""

    settings: FtrlSettings
    seed: int
    centre: Floats
    z: Floats
    n: Floats

    @staticmethod
    def fresh(*, targets: int, rank: int, settings: FtrlSettings, seed: int) -> FactorisationMachine:
        empty = np.zeros((1, targets, 1 + rank))
        return FactorisationMachine(settings=settings, seed=seed, centre=empty, z=empty, n=empty)

    @property
    def width(self) -> int:
        return len(self.centre)

    @cached_property
    def coordinates(self) -> Floats:
        return self.centre + weights(self.z, self.n, self.settings)

    def widened(self, width: int) -> FactorisationMachine:
        """The same machine with more features, all of them untaught."""
        if width <= self.width:
            return self
        shape = self.centre.shape[1:]
        added = np.zeros((width - self.width, *shape))
        # A stream of its own for every feature: its centre does not depend on how many came along with it.
        for row, feature in enumerate(range(self.width, width)):
            rng = np.random.default_rng((self.seed, feature))
            added[row, :, 1:] = rng.normal(0.0, _CENTRE_STD, (shape[0], shape[1] - 1))
        zeros = np.zeros_like(added)
        return replace(
            self,
            centre=np.concatenate([self.centre, added]),
            z=np.concatenate([self.z, zeros]),
            n=np.concatenate([self.n, zeros]),
        )

    def recentred(self) -> FactorisationMachine:
        """What is known now as the new centre, with learning rates as at the beginning."""
        zeros = np.zeros_like(self.z)
        return replace(self, centre=self.coordinates, z=zeros, n=zeros)

    def predict(self, rows: FeatureRows) -> Floats:
        """Every target of every row. Features must be below `width`."""
        return _evaluated(self.coordinates, rows)[0]

    def taught(self, rows: FeatureRows, targets: Floats, rows_per_step: int = 1) -> FactorisationMachine:
        """One pass over the rows in their order, one FTRL step for each `rows_per_step` of them."""
        z, n, coordinates = self.z.copy(), self.n.copy(), self.coordinates.copy()
        for start in range(0, len(rows), rows_per_step):
            part = slice(start, start + rows_per_step)
            active = FeatureRows(index=rows.index[part], value=rows.value[part])
            touched, gradient = _gradient(coordinates, active, targets[part])
            z[touched], n[touched] = accumulated(z[touched], n[touched], gradient, self.settings)
            coordinates[touched] = self.centre[touched] + weights(z[touched], n[touched], self.settings)
        return replace(self, z=z, n=n)


def _evaluated(coordinates: Floats, rows: FeatureRows) -> tuple[Floats, Floats, Floats]:
    """Targets per row, and what gradients need again: the factors times the values, and their sums per row."""
    active = coordinates[rows.index] * rows.value[:, :, None, None]
    factors = active[..., 1:]
    sums = factors.sum(axis=1)
    pairs = 0.5 * (np.square(sums) - np.square(factors).sum(axis=1)).sum(axis=-1)
    return active[..., 0].sum(axis=1) + pairs, factors, sums


def _gradient(coordinates: Floats, rows: FeatureRows, targets: Floats) -> tuple[Whole, Floats]:
    """The features that are active in some row, and the gradient of the squared error by their coordinates."""
    predicted, factors, sums = _evaluated(coordinates, rows)
    slope = 2.0 * (predicted - targets)[:, None, :, None] * rows.value[:, :, None, None]
    each = np.concatenate([slope, slope * (sums[:, None] - factors)], axis=-1)
    gradient, index = np.zeros_like(coordinates), rows.index.ravel()
    np.add.at(gradient, index, each.reshape(-1, *each.shape[2:]))
    gradient[BIAS, :, 1:] = 0.0
    touched = np.flatnonzero(np.bincount(index))
    return touched, gradient[touched]


# --- As a learner takes it, with its vocabulary

WINDOW_ROWS = 2048
"""How many of the latest rows are kept for training again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSettings:
    """Hyper-parameters; the paper states none. `rank` is m_f."""

    ftrl: FtrlSettings = field(default_factory=lambda: FtrlSettings(eta=0.2, zeta=1.0, lambda_1=0.1, lambda_2=0.1))
    rank: int = 4
    passes: int = 30
    rows_per_step: int = 8
    rows_taught_max: int = 100_000
    """Bounds the time of a fit: many rows need fewer passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRegressor:
    settings: MachineSettings
    seed: int
    vocabulary: Vocabulary
    machine: FactorisationMachine

    @staticmethod
    def fresh(*, targets: int, roles: int, settings: MachineSettings, seed: int) -> MachineRegressor:
        machine = FactorisationMachine.fresh(targets=targets, rank=settings.rank, settings=settings.ftrl, seed=seed)
        vocabulary = Vocabulary(roles=roles)
        return MachineRegressor(
            settings=settings, seed=seed, vocabulary=vocabulary, machine=machine.widened(vocabulary.width)
        )

    @property
    def window_rows(self) -> int:
        """For training again; single steps need no window."""
        return WINDOW_ROWS

    @property
    def knows_variance(self) -> bool:
        return False

    def fitted(self, groups: Groups, targets: Floats, facts: Facts) -> MachineRegressor:
        fresh = MachineRegressor.fresh(
            targets=targets.shape[1], roles=self.vocabulary.roles, settings=self.settings, seed=self.seed
        )
        return fresh._passed(groups, targets, facts)

    def after(self, new: HistoryWindow, window: HistoryWindow, facts: Facts) -> MachineRegressor:  # noqa: ARG002
        vocabulary, machine = self._grown(new.groups)
        rows = feature_rows(new.groups, vocabulary, facts)
        return replace(self, vocabulary=vocabulary, machine=machine.taught(rows, new.targets))

    def retrained(self, window: HistoryWindow, facts: Facts) -> MachineRegressor:
        """Several passes over the window with learning rates as at the beginning, held near what is known by now."""
        return replace(self, machine=self.machine.recentred())._passed(window.groups, window.targets, facts)

    def predict(self, groups: Groups, facts: Facts) -> tuple[Floats, Floats | None]:
        return self.machine.predict(feature_rows(groups, self.vocabulary, facts)), None

    def _grown(self, groups: Groups) -> tuple[Vocabulary, FactorisationMachine]:
        vocabulary = self.vocabulary.grown(groups.members)
        return vocabulary, self.machine.widened(vocabulary.width)

    def _passed(self, groups: Groups, targets: Floats, facts: Facts) -> MachineRegressor:
        vocabulary, machine = self._grown(groups)
        rows = feature_rows(groups, vocabulary, facts)
        rng = np.random.default_rng((self.seed, len(rows)))
        for _ in range(max(1, min(self.settings.passes, self.settings.rows_taught_max // max(1, len(rows))))):
            order = rng.permutation(len(rows))
            machine = machine.taught(rows.take(order), targets[order], self.settings.rows_per_step)
        return replace(self, vocabulary=vocabulary, machine=machine)

    def dump(self) -> Plain:
        ftrl = self.settings.ftrl
        return {
            "ftrl": [ftrl.eta, ftrl.zeta, ftrl.lambda_1, ftrl.lambda_2],
            "seed": self.seed,
            "vocabulary": self.vocabulary.dump(),
            "centre": self.machine.centre.tolist(),
            "z": self.machine.z.tolist(),
            "n": self.machine.n.tolist(),
        }

    @staticmethod
    def load(plain: Plain, settings: MachineSettings) -> MachineRegressor:
        """From what `dump` wrote; `settings` says how to learn on."""
        eta, zeta, lambda_1, lambda_2 = read(plain, "ftrl", floats_of).tolist()
        ftrl = FtrlSettings(eta=eta, zeta=zeta, lambda_1=lambda_1, lambda_2=lambda_2)
        seed = cast("int", part(plain, "seed"))
        centre, z, n = (read(plain, name, floats_of) for name in ("centre", "z", "n"))
        return MachineRegressor(
            settings=replace(settings, ftrl=ftrl, rank=centre.shape[2] - 1),
            seed=seed,
            vocabulary=Vocabulary.load(part(plain, "vocabulary")),
            machine=FactorisationMachine(settings=ftrl, seed=seed, centre=centre, z=z, n=n),
        )
