"""What inference leaves is split evenly, and memory goes to those who touch theirs most often."""

from __future__ import annotations

from solvers.policies.mudi.scoring import even, warmest_first


def test_shares_are_as_even_as_their_bounds_let_them() -> None:
    assert even(70, [10, 10, 10], [100, 100, 100]) == [24, 23, 23]
    assert even(70, [10, 10, 10], [15, 100, 100]) == [15, 28, 27]
    assert even(100, [10], [40]) == [40]


def test_the_coldest_memory_stands_on_the_host() -> None:
    bounds = [(2000, 8000), (1000, 4000), (3000, 3000)]
    assert warmest_first(20_000, bounds, [100.0, 900.0, 50.0]) == [8000, 4000, 3000]
    assert warmest_first(11_000, bounds, [100.0, 900.0, 50.0]) == [7000, 1000, 3000]
    assert warmest_first(11_000, bounds, [900.0, 100.0, 50.0]) == [4000, 4000, 3000]
    assert warmest_first(6000, bounds, [100.0, 900.0, 50.0]) == [2000, 1000, 3000]
