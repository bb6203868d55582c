"""FM-FTRL as OLTunes uses it: the factorisation machine over the features of Table 3, taught by FTRL-Proximal.

Owns the hyper-parameters, how often rows are gone over when fitting, and growth with the vocabulary. Online learning is
one FTRL step per row. It refuses raw targets: they come standardised.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.codec import Plain
from solvers.models.base import Facts, Groups
from solvers.models.parts.seen import floats_of, part, read
from solvers.policies.oltunes.factorisation import FactorisationMachine, FtrlMode, FtrlSettings
from solvers.policies.oltunes.features import Vocabulary, feature_rows
from solvers.policies.oltunes.history import HistoryWindow

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
    """A machine with its vocabulary."""

    settings: MachineSettings
    seed: int
    vocabulary: Vocabulary
    machine: FactorisationMachine

    @staticmethod
    def fresh(*, targets: int, roles: int, settings: MachineSettings, seed: int) -> MachineRegressor:
        """Before anything was seen."""
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
        """Held-out rows tell it."""
        return False

    def fitted(self, groups: Groups, targets: Floats, facts: Facts) -> MachineRegressor:
        """Several seeded passes from the beginning."""
        fresh = MachineRegressor.fresh(
            targets=targets.shape[1], roles=self.vocabulary.roles, settings=self.settings, seed=self.seed
        )
        return fresh._passed(groups, targets, facts)

    def after(self, new: HistoryWindow, window: HistoryWindow, facts: Facts) -> MachineRegressor:  # noqa: ARG002
        """One FTRL step per new row."""
        vocabulary, machine = self._grown(new.groups)
        rows = feature_rows(new.groups, vocabulary, facts)
        return replace(self, vocabulary=vocabulary, machine=machine.taught(rows, new.targets))

    def retrained(self, window: HistoryWindow, facts: Facts) -> MachineRegressor:
        """Several passes over the window with learning rates as at the beginning, held near what is known by now."""
        return replace(self, machine=self.machine.recentred())._passed(window.groups, window.targets, facts)

    def predict(self, groups: Groups, facts: Facts) -> tuple[Floats, Floats | None]:
        """Standardised targets."""
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
        """As JSON data."""
        ftrl = self.settings.ftrl
        return {
            "ftrl": [ftrl.eta, ftrl.zeta, ftrl.lambda_1, ftrl.lambda_2],
            "mode": ftrl.mode.value,
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
        mode = FtrlMode(cast("str", part(plain, "mode")))
        ftrl = FtrlSettings(eta=eta, zeta=zeta, lambda_1=lambda_1, lambda_2=lambda_2, mode=mode)
        seed = cast("int", part(plain, "seed"))
        centre, z, n = (read(plain, name, floats_of) for name in ("centre", "z", "n"))
        return MachineRegressor(
            settings=replace(settings, ftrl=ftrl, rank=centre.shape[2] - 1),
            seed=seed,
            vocabulary=Vocabulary.load(part(plain, "vocabulary")),
            machine=FactorisationMachine(settings=ftrl, seed=seed, centre=centre, z=z, n=n),
        )
