"""The look-up of many tables: exact where measured, ordered everywhere, honest about what it does not hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.models.base import Facts, Queries
from solvers.models.parts.lattice import FREE, Lattice, filled, highest_clocks, ordered
from tests import builders, laws


def lattice_of(queries: Queries, values: object, signs: tuple[int, int, int] = FREE) -> Lattice:
    made = Lattice.of(
        queries, {"value": (np.asarray(values, dtype=np.float64), signs)}, highest_clocks(queries, Facts())
    )
    assert made is not None
    return made


def value(lattice: Lattice, queries: Queries) -> np.ndarray:
    return lattice.column(lattice.places(queries), "value")


def test_cells_of_every_key_come_back_as_they_are() -> None:
    samples = laws.solo()
    lattice = lattice_of(samples.queries, samples.latency_ms)
    places = lattice.places(samples.queries)
    np.testing.assert_allclose(lattice.column(places, "value"), samples.latency_ms, rtol=1e-12)
    assert not places.distance.any()
    assert places.inside.all()
    assert len(lattice.keys) == len(laws.WORK_MS)


def test_cells_measured_twice_hold_the_mean() -> None:
    queries = Queries.of("a", "g", [1, 1, 2], 50)
    assert value(lattice_of(queries, [1.0, 3.0, 9.0]), Queries.of("a", "g", 1, 50)) == pytest.approx(2.0)


def test_between_cells_the_way_is_straight_in_batch_in_clock_and_in_one_over_share() -> None:
    grid = [(batch, share, clock) for batch in (2, 4) for share in (20, 40) for clock in (1000, 1500)]
    columns = [np.array(column, dtype=np.float64) for column in zip(*grid, strict=True)]
    values = columns[0] * 3.0 + 100.0 / columns[1] + columns[2] / 100.0
    lattice = lattice_of(Queries.of("a", "g", *columns), values)
    assert value(lattice, Queries.of("a", "g", 3, 30, 1200)) == pytest.approx(9.0 + 100.0 / 30.0 + 12.0)


@pytest.mark.parametrize("asked", [(1, 50, 900), (1, 50, 1500), (64, 50, 1000), (1, 5, 1000), (64, 99, 1500)])
def test_beyond_the_only_measured_value_the_table_holds_it(asked: tuple[int, int, int]) -> None:
    alone = lattice_of(Queries.of("a", "g", 1, 50, 1000), [7.0])
    beside_more = lattice_of(
        Queries.of(["a", "b", "b"], "g", [1, 1, 8], [50, 20, 80], [1000, 1000, 1200]), [7.0, 1.0, 2.0]
    )
    for lattice in (alone, beside_more):
        assert value(lattice, Queries.of("a", "g", *asked)) == pytest.approx(7.0)


def test_unknown_keys_get_nan_and_infinite_distance() -> None:
    lattice = lattice_of(Queries.of("a", "g", [1, 2], 50), [1.0, 2.0])
    asked = Queries.of(["a", "b", "a"], ["g", "g", "h"], 1, 50)
    places = lattice.places(asked)
    assert np.isnan(lattice.column(places, "value")).tolist() == [False, True, True]
    assert np.isinf(places.distance).tolist() == [False, True, True]
    assert places.inside.tolist() == [True, False, False]


def test_distance_counts_doublings_of_batch_and_twenties_of_share() -> None:
    lattice = lattice_of(Queries.of("a", "g", [4, 8, 4, 8], [20, 20, 40, 40]), [1.0, 2.0, 1.0, 2.0])
    places = lattice.places(Queries.of("a", "g", [16, 2, 8, 4], [40, 20, 60, 30]))
    assert places.distance == pytest.approx([1.0, 1.0, 1.0, 0.5])
    assert places.inside.tolist() == [False, False, False, True]


def test_a_hole_is_no_measured_cell() -> None:
    lattice = lattice_of(Queries.of("a", "g", [1, 2, 1], [20, 20, 40]), [4.0, 8.0, 2.0])
    places = lattice.places(Queries.of("a", "g", 2, 40))
    assert places.distance == pytest.approx([1.0])
    assert not places.inside[0]
    assert value(lattice, Queries.of("a", "g", 2, 40)) == pytest.approx([4.0])  # half of 8, as 2 is half of 4


def test_no_clock_means_the_highest() -> None:
    queries = Queries.of("a", "v100", [1, 1], 50, [1000, 1530])
    facts = Facts(gpu_types={"v100": builders.gpu_type("v100")})
    lattice = Lattice.of(queries, {"value": (np.array([3.0, 2.0]), FREE)}, highest_clocks(queries, facts))
    assert lattice is not None
    assert value(lattice, Queries.of("a", "v100", 1, 50)) == pytest.approx([2.0])
    assert highest_clocks(Queries.of("a", "x", 1, 50), facts) == {"x": 1.0}


def test_a_column_never_measured_is_nan_beside_one_that_was() -> None:
    queries = Queries.of(["a", "b"], "g", 1, 50)
    lattice = lattice_of(queries, [np.nan, 5.0])
    found = value(lattice, queries)
    assert np.isnan(found[0])
    assert found[1] == pytest.approx(5.0)


def test_nothing_measured_is_no_lattice() -> None:
    assert Lattice.of(Queries.of("a", "g", 1, 50).take(np.array([False])), {}, {}) is None


@given(st.lists(st.floats(0.1, 100.0), min_size=12, max_size=12))
def test_order_holds_and_an_ordered_table_is_left_alone(values: list[float]) -> None:
    cells = np.array(values).reshape(1, 3, 4)
    tidy = ordered(cells, (0, -1, 1))
    assert (np.diff(tidy, axis=1) <= 1e-12).all()
    assert (np.diff(tidy, axis=2) >= -1e-12).all()
    np.testing.assert_array_equal(ordered(tidy, (0, -1, 1)), tidy)
    assert cells.min() <= tidy.min()
    assert tidy.max() <= cells.max()


def test_holes_between_known_cells_are_filled_along_the_batch() -> None:
    cells = np.array([[[1.0, np.nan, 3.0], [2.0, np.nan, 6.0]]])
    axes = (np.array([1.0]), np.array([50.0, 100.0]), np.array([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(filled(cells, axes), [[[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]])
