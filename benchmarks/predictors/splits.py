"""Which rows are learned and which are asked for: the same for every predictor, fixed by a seed.

Owns the folds of solo samples and of groups. No test row is ever in its fold's training rows, and whatever a predictor
tunes it tunes on the training rows. It refuses to look at measured values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.domain.arrays import Floats
from solvers.models.base import Groups, Queries

Rows = NDArray[np.intp]
TEST_SHARE = 0.2
FOLDS = 5
MANY_VALUES = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Rows (of groups: group numbers) to learn from and to be asked for. `subject` says what is unseen; `points` how
    many rows of it are learned after all.
    """

    split: str
    subject: str
    train: Rows
    test: Rows
    points: int = 0


def _of_mask(split: str, subject: str, test: NDArray[np.bool_]) -> Fold:
    return Fold(split=split, subject=subject, train=np.flatnonzero(~test), test=np.flatnonzero(test))


def cells(length: int, seed: int, repeats: int = 1) -> Iterator[Fold]:
    """A random fifth of all rows is unseen."""
    for repeat in range(repeats):
        test = np.zeros(length, dtype=np.bool_)
        order = np.random.default_rng([seed, repeat]).permutation(length)
        test[order[: max(1, round(TEST_SHARE * length))]] = True
        yield _of_mask("cells", f"fifth {repeat}", test)


def value_out(split: str, column: Floats, values_max: int, seed: int) -> Iterator[Fold]:
    """All rows of one value of a column are unseen: inner values and the highest, evenly spread. Where there are many
    values, a random fifth of them at once.
    """
    values = np.unique(column[np.isfinite(column)])
    if len(values) < 3:
        return
    if len(values) > MANY_VALUES:
        unseen = np.random.default_rng([seed, 5]).permutation(values)[: round(TEST_SHARE * len(values))]
        yield _of_mask(split, f"{len(unseen)} of {len(values)}", np.isin(column, unseen))
        return
    candidates = values[1:]
    chosen = np.unique(np.linspace(0, len(candidates) - 1, min(values_max + 1, len(candidates))).round().astype(int))
    for value in candidates[chosen[-values_max:]]:
        yield _of_mask(split, f"{value:g}", column == value)


@dataclass(frozen=True, slots=True, kw_only=True)
class FewShot:
    """How many models are held out, how many others are learned, with how many points of the one held out."""

    models: int
    others: int
    points: tuple[int, ...] = (4, 8, 16, 32, 64)
    test_rows_min: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomer:
    """A model on one GPU type that is held out: its rows, the rows of the others, and sizes of its point sets."""

    model: str
    gpu_type: str
    rows: Rows
    known: Rows
    counts: tuple[int, ...]

    def folds(self, split: str, order: Rows) -> Iterator[Fold]:
        """The first few of `order` are learned, all other rows of the newcomer are asked for."""
        for count in self.counts:
            yield Fold(
                split=split,
                subject=f"{self.model} on {self.gpu_type}",
                train=np.sort(np.concatenate([self.known, order[:count]])),
                test=np.setdiff1d(self.rows, order[:count]),
                points=count,
            )


def newcomers(queries: Queries, seed: int, plan: FewShot) -> Iterator[Newcomer]:
    """One model at a time is new; some of the others are known, on all GPU types."""
    rng = np.random.default_rng([seed, 1])
    keys = {key: rows for key, rows in queries.keys().items() if len(rows) >= plan.points[0] + plan.test_rows_min}
    held = [list(keys)[index] for index in rng.permutation(len(keys))[: plan.models]]
    for model, gpu_type in sorted(held):
        rows = keys[(model, gpu_type)]
        others = [name for name in queries.models if name != model]
        kept = {others[index] for index in rng.permutation(len(others))[: plan.others]}
        yield Newcomer(
            model=model,
            gpu_type=gpu_type,
            rows=rows,
            known=np.flatnonzero(np.array([queries.models[index] in kept for index in queries.model])),
            counts=tuple(count for count in plan.points if len(rows) - count >= plan.test_rows_min),
        )


def few_shot(queries: Queries, seed: int, plan: FewShot) -> Iterator[Fold]:
    """All rows of other models and a few random ones of the new model are learned; few points are part of many."""
    for number, newcomer in enumerate(newcomers(queries, seed, plan)):
        yield from newcomer.folds("few-shot", np.random.default_rng([seed, 10, number]).permutation(newcomer.rows))


def gpu_out(queries: Queries) -> Iterator[Fold]:
    """A whole GPU type is unseen; asked for are the models that were learned on other types."""
    for index, gpu_type in enumerate(queries.gpu_types):
        here = queries.gpu_type == index
        elsewhere = np.unique(queries.model[~here])
        test = here & np.isin(queries.model, elsewhere)
        if test.any() and not here.all():
            yield Fold(split="gpu", subject=gpu_type, train=np.flatnonzero(~here), test=np.flatnonzero(test))


def model_on_gpu_out(queries: Queries, seed: int) -> Iterator[Fold]:
    """A fifth of the models is unseen on one GPU type where the other models were measured; all are known elsewhere."""
    rng = np.random.default_rng([seed, 2])
    for index, gpu_type in enumerate(queries.gpu_types):
        here = queries.gpu_type == index
        both = np.intersect1d(queries.model[here], queries.model[~here])
        if len(both) < 2:
            continue
        unseen = rng.permutation(both)[: max(1, round(TEST_SHARE * len(both)))]
        yield _of_mask("model on gpu", gpu_type, here & np.isin(queries.model, unseen))


def group_count(groups: Groups) -> int:
    """How many groups there are."""
    return int(groups.group[-1]) + 1 if len(groups) else 0


def identities(groups: Groups) -> list[tuple[str, ...]]:
    """The models of every group, sorted."""
    members: list[list[str]] = [[] for _ in range(group_count(groups))]
    for number, model in zip(groups.group, groups.members.model, strict=True):
        members[number].append(groups.members.models[model])
    return [tuple(sorted(names)) for names in members]


def pairs_out(groups: Groups, seed: int) -> Iterator[Fold]:
    """Groups of the same models are unseen together: each alone where there are few, else a fifth of them at a time."""
    names = identities(groups)
    distinct = sorted(set(names))
    if len(distinct) < 3:
        return
    parts = [[name] for name in distinct]
    if len(distinct) > 2 * FOLDS:
        order = np.random.default_rng([seed, 3]).permutation(len(distinct))
        parts = [[distinct[index] for index in order[fold::FOLDS]] for fold in range(FOLDS)]
    for part in parts:
        unseen = set(part)
        subject = "+".join(part[0]) if len(part) == 1 else f"{len(part)} pairs"
        yield _of_mask("pair", subject, np.array([name in unseen for name in names]))


def member_out(groups: Groups, members_max: int, seed: int) -> Iterator[Fold]:
    """All groups with one model are unseen: its neighbours are known, and it is known alone."""
    names = identities(groups)
    models = sorted({name for group in names for name in group})
    if len(models) < 3 or all(len(set(group)) == 1 for group in names):
        return
    order = np.random.default_rng([seed, 4]).permutation(len(models))[:members_max]
    for model in sorted(models[index] for index in order):
        yield _of_mask("member", model, np.array([model in group for group in names]))
