"""Matrix factorisation: models by configurations with biases, the first baseline of OLTunes' predictor.

Owns the two tables and their training by stochastic gradient descent. A column is one configuration: GPU type, batch,
share, clock and what runs beside it; a question about a configuration that is no column is answered by the nearest
column of the same GPU type and neighbours, since the method itself has no answer there. Names that were never met have
neither bias nor factors. It refuses features: that is what it is compared for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self, cast

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.domain.codec import Plain
from solvers.models.base import Facts, Groups, ModelSpec
from solvers.models.parts.seen import floats_of, names_of, part, read
from solvers.policies.oltunes.history import HistoryWindow, combinations, places_by_key, places_of
from solvers.policies.oltunes.learned import TARGETS, USUAL_SLOWDOWN, LearnedInterference, LearnedKind, LearnedSolo

RANK, RATE, SHRINKAGE = 4, 0.05, 0.01
"""Found on other models than those it is compared on; the rank is that of the factorisation machine beside it."""
PASSES, ROWS_PER_STEP, ROWS_TAUGHT_MAX = 60, 8, 200_000
_START_STD = 0.1


class Refitted(ABC):
    """A regressor that learns on by fitting its window again."""

    __slots__ = ()
    window_rows: ClassVar[int] = 20_000
    knows_variance: ClassVar[bool] = False
    """Held-out rows tell it."""

    @abstractmethod
    def fitted(self, groups: Groups, targets: Floats, facts: Facts) -> Self:
        """Learn from these rows alone."""

    def retrained(self, window: HistoryWindow, facts: Facts) -> Self:
        return self.fitted(window.groups, window.targets, facts)

    def after(self, new: HistoryWindow, window: HistoryWindow, facts: Facts) -> Self:  # noqa: ARG002
        return self.retrained(window, facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixColumns:
    """Places of the columns by what they share (GPU type and neighbours' models), and the first one's number."""

    places: Mapping[tuple[str, ...], Floats]
    first: Mapping[tuple[str, ...], int]
    count: int

    @staticmethod
    def of(groups: Groups, facts: Facts) -> MatrixColumns:
        """Every configuration that occurs."""
        found: dict[tuple[str, ...], list[Floats]] = {}
        places = places_of(groups, facts)
        for (gpu_type, _, *beside), rows in combinations(groups).items():
            found.setdefault((gpu_type, *beside), []).append(places[rows])
        return MatrixColumns.numbered(
            {key: np.unique(np.concatenate(found[key]).round(6), axis=0) for key in sorted(found)}
        )

    @staticmethod
    def numbered(places: Mapping[tuple[str, ...], Floats]) -> MatrixColumns:
        """Columns in the order of the table."""
        first, count = {}, 0
        for key, found in places.items():
            first[key] = count
            count += len(found)
        return MatrixColumns(places=places, first=first, count=count)

    def nearest(self, groups: Groups, facts: Facts) -> Whole:
        """The column of every row; `count` where there is none."""
        column = np.full(len(groups), self.count, dtype=np.int64)
        places = places_of(groups, facts)
        for (gpu_type, _, *beside), rows in combinations(groups).items():
            key = (gpu_type, *beside)
            if key in self.places:
                known = self.places[key]
                apart = np.square(places[rows][:, None, :] - known[None, :, :]).sum(axis=2)
                column[rows] = self.first[key] + apart.argmin(axis=1)
        return column


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRegressor(Refitted):
    """Both tables: line x target x (1 + rank), biases first. The last line of each stands for the unknown."""

    seed: int
    models: tuple[str, ...]
    columns: MatrixColumns
    by_model: Floats
    by_column: Floats

    @staticmethod
    def fresh(*, targets: int, seed: int) -> MatrixRegressor:
        unknown = np.zeros((1, targets, 1 + RANK))
        return MatrixRegressor(
            seed=seed,
            models=(),
            columns=MatrixColumns.numbered({}),
            by_model=unknown,
            by_column=unknown,
        )

    def fitted(self, groups: Groups, targets: Floats, facts: Facts) -> MatrixRegressor:
        """Seeded passes of gradient descent from the beginning. Targets are standardised, so there is no mean."""
        columns = MatrixColumns.of(groups, facts)
        models = tuple(sorted({groups.members.models[int(index)] for index in np.unique(groups.members.model)}))
        rng = np.random.default_rng((self.seed, len(groups)))
        empty = replace(
            self,
            models=models,
            columns=columns,
            by_model=_start(len(models), targets.shape[1], rng),
            by_column=_start(columns.count, targets.shape[1], rng),
        )
        lines, places = empty._lines(groups), columns.nearest(groups, facts)
        passes = max(1, min(PASSES, ROWS_TAUGHT_MAX // len(groups)))
        for _ in range(passes):
            order = rng.permutation(len(groups))
            empty._descend(lines[order], places[order], targets[order])
        return empty

    def predict(self, groups: Groups, facts: Facts) -> tuple[Floats, Floats | None]:
        return _product(self.by_model[self._lines(groups)], self.by_column[self.columns.nearest(groups, facts)]), None

    def _lines(self, groups: Groups) -> Whole:
        table = {name: line for line, name in enumerate(self.models)}
        lines = np.array([table.get(name, len(table)) for name in groups.members.models], dtype=np.int64)
        return np.asarray(lines[groups.members.model])

    def _descend(self, lines: Whole, places: Whole, targets: Floats) -> None:
        """One pass, in place: only `fitted` calls it, on tables that nobody else has yet."""
        for start in range(0, len(lines), ROWS_PER_STEP):
            line, place = lines[start : start + ROWS_PER_STEP], places[start : start + ROWS_PER_STEP]
            one, two = self.by_model[line], self.by_column[place]
            error = (targets[start : start + ROWS_PER_STEP] - _product(one, two))[..., None]
            # The bias of each table moves with the error alone, its factors with the error times the other's factors.
            turned = [np.concatenate([np.ones_like(error), factors[..., 1:]], axis=-1) for factors in (two, one)]
            np.add.at(self.by_model, line, RATE * (error * turned[0] - SHRINKAGE * one))
            np.add.at(self.by_column, place, RATE * (error * turned[1] - SHRINKAGE * two))

    def dump(self) -> Plain:
        places = self.columns.places
        return {
            "seed": self.seed,
            "models": list(self.models),
            "columns": {"of": [list(key) for key in places], "places": [found.tolist() for found in places.values()]},
            "by_model": self.by_model.tolist(),
            "by_column": self.by_column.tolist(),
        }

    @staticmethod
    def load(plain: Plain) -> MatrixRegressor:
        by_model, by_column = (read(plain, name, floats_of) for name in ("by_model", "by_column"))
        return MatrixRegressor(
            seed=cast("int", part(plain, "seed")),
            models=read(plain, "models", names_of),
            columns=MatrixColumns.numbered(places_by_key(part(plain, "columns"))),
            by_model=by_model,
            by_column=by_column,
        )


def _start(lines: int, targets: int, rng: np.random.Generator) -> Floats:
    """Biases of 0, small factors, and a last line of zeros for the unknown."""
    table = np.zeros((lines + 1, targets, 1 + RANK))
    table[:-1, :, 1:] = rng.normal(0.0, _START_STD, (lines, targets, RANK))
    return table


def _product(one: Floats, two: Floats) -> Floats:
    """Both biases and the product of the factors."""
    return np.asarray(one[..., 0] + two[..., 0] + (one[..., 1:] * two[..., 1:]).sum(axis=-1))


ALONE = LearnedKind(
    model=LearnedSolo,
    spec=ModelSpec(name="mf", version="1", formula="matrix factorisation with biases", quantities=TARGETS),
    fresh=lambda seed: MatrixRegressor.fresh(targets=len(TARGETS), seed=seed),
    read=MatrixRegressor.load,
)
"""`mf` for replicas alone: latency and throughput."""
BESIDE = LearnedKind(
    model=LearnedInterference,
    usual=USUAL_SLOWDOWN,
    spec=ModelSpec(name="mf", version="1", formula="matrix factorisation with biases"),
    fresh=lambda seed: MatrixRegressor.fresh(targets=1, seed=seed),
    read=MatrixRegressor.load,
)
"""`mf` for slowdowns of members of groups."""
