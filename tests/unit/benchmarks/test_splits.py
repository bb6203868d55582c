"""The benchmark's splits: no test row is learned, everybody gets the same, and what is unseen really is."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from benchmarks.predictors.limits import TooSlowError, at_most
from benchmarks.predictors.measured import MeasuredSolo
from benchmarks.predictors.splits import (
    FewShot,
    Fold,
    cells,
    few_shot,
    gpu_out,
    group_count,
    identities,
    member_out,
    model_on_gpu_out,
    pairs_out,
    value_out,
)
from solvers.models.base import Groups, Queries, Samples

MODELS = ("a", "b", "c", "d", "e", "f")


def grid(gpu_types: Sequence[str] = ("v100",)) -> Queries:
    rows = list(product(MODELS, gpu_types, (1, 2, 4, 8), (20, 40, 60, 80, 100)))
    columns = list(zip(*rows, strict=True))
    return Queries.of(list(columns[0]), list(columns[1]), columns[2], columns[3])


def pairs() -> Groups:
    rows = [(one, two) for index, one in enumerate(MODELS[:4]) for two in MODELS[index + 1 : 4] for _ in range(6)]
    return Groups.pairs(
        Queries.of([one for one, _ in rows], "v100", 4, 50), Queries.of([two for _, two in rows], "v100", 8, 50)
    )


def every_fold() -> list[Fold]:
    two = grid(("v100", "t4"))
    groups = pairs()
    return [
        *cells(len(two), 1, 3),
        *value_out("batch", two.batch, 2, 1),
        *few_shot(two, 1, FewShot(models=3, others=4, points=(2, 4), test_rows_min=5)),
        *gpu_out(two),
        *model_on_gpu_out(two, 1),
        *cells(group_count(groups), 1),
        *pairs_out(groups, 1),
        *member_out(groups, 4, 1),
    ]


def test_no_test_row_is_learned() -> None:
    folds = every_fold()
    assert {fold.split for fold in folds} == {"cells", "batch", "few-shot", "gpu", "model on gpu", "pair", "member"}
    for fold in folds:
        assert len(fold.test) > 0
        assert len(fold.train) > 0
        assert not set(fold.train) & set(fold.test)


def test_the_same_seed_gives_the_same_folds() -> None:
    for one, other in zip(every_fold(), every_fold(), strict=True):
        assert one.subject == other.subject
        np.testing.assert_array_equal(one.train, other.train)
        np.testing.assert_array_equal(one.test, other.test)


def test_a_whole_value_is_out_and_the_highest_is_among_them() -> None:
    queries = grid()
    folds = list(value_out("batch", queries.batch, 2, 1))
    assert [fold.subject for fold in folds] == ["4", "8"]
    for fold in folds:
        assert set(queries.batch[fold.test]) == {float(fold.subject)}
        assert float(fold.subject) not in queries.batch[fold.train]


def test_many_values_are_left_out_a_fifth_at_a_time() -> None:
    column = np.repeat(np.arange(50.0), 2)
    (fold,) = value_out("batch", column, 3, 1)
    assert len(np.unique(column[fold.test])) == 10
    assert not set(column[fold.test]) & set(column[fold.train])


def test_few_shot_learns_the_others_and_growing_sets_of_the_new_model() -> None:
    queries = grid(("v100", "t4"))
    folds = list(few_shot(queries, 1, FewShot(models=2, others=3, points=(2, 4, 8), test_rows_min=5)))
    assert [fold.points for fold in folds] == [2, 4, 8] * 2
    for start in (0, 3):
        own = []
        for fold in folds[start : start + 3]:
            model, gpu_type = fold.subject.split(" on ")
            learned = fold.train[queries.model[fold.train] == queries.models.index(model)]
            assert len(learned) == fold.points
            assert {queries.gpu_types[index] for index in queries.gpu_type[learned]} == {gpu_type}
            assert len(np.unique(queries.model[fold.train])) == 4
            assert len(fold.test) == 20 - fold.points
            own.append(set(learned.tolist()))
        assert own[0] < own[1] < own[2]


def test_an_unseen_gpu_type_is_in_no_training_row() -> None:
    queries = grid(("v100", "t4"))
    folds = list(gpu_out(queries))
    assert {fold.subject for fold in folds} == {"v100", "t4"}
    for fold in folds:
        assert {queries.gpu_types[index] for index in queries.gpu_type[fold.test]} == {fold.subject}
        assert fold.subject not in {queries.gpu_types[index] for index in queries.gpu_type[fold.train]}
    assert list(gpu_out(grid())) == []


def test_pairs_are_left_out_whole() -> None:
    groups = pairs()
    names = identities(groups)
    folds = list(pairs_out(groups, 1))
    assert len(folds) == 6
    for fold in folds:
        assert len({names[group] for group in fold.test}) == 1
        assert not {names[group] for group in fold.test} & {names[group] for group in fold.train}
    for fold in member_out(groups, 4, 1):
        assert all(fold.subject in names[group] for group in fold.test)
        assert not any(fold.subject in names[group] for group in fold.train)


def test_the_denominator_is_the_measured_cell_and_nothing_else() -> None:
    measured = MeasuredSolo(Samples.of(Queries.of("a", "v100", [1, 2], 50), [3.0, 5.0]))
    answer = measured.predict(Queries.of("a", "v100", [2, 1, 4], [50, 50, 50]))
    assert answer.mean[:2].tolist() == [5.0, 3.0]
    assert np.isnan(answer.mean[2])
    assert answer.support.tolist() == [True, True, False]


@pytest.mark.parametrize("column", [np.array([1.0, 1.0, 2.0]), np.array([np.nan, np.nan])])
def test_a_column_with_too_few_values_has_no_split(column: np.ndarray) -> None:
    assert list(value_out("clock", column, 2, 1)) == []


def test_a_predictor_is_cut_by_its_own_work_and_not_by_waiting() -> None:
    def work() -> None:
        while True:
            pass

    with at_most(60.0):
        assert signal.getitimer(signal.ITIMER_PROF)[0] > 0.0
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
    with pytest.raises(TooSlowError), at_most(0.05):
        work()
