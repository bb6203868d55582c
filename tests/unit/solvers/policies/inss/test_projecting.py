"""Shares fit the GPU, and everybody has a unit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.policies.inss.actor import project


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12), st.integers(12, 100), st.booleans())
def test_everybody_has_a_unit_and_none_is_made_up(wanted: list[float], units: int, spread: bool) -> None:
    given_away = project(wanted, units, spread=spread)
    assert min(given_away) >= 1
    assert sum(given_away) <= units
    assert not spread or sum(given_away) == units


def test_what_fits_stays_unless_all_is_given_away() -> None:
    assert project([30.0, 20.0], 100, spread=False) == [30, 20]
    assert project([30.0, 30.0], 100, spread=True) == [50, 50]


def test_too_few_units_are_refused() -> None:
    with pytest.raises(ValueError, match="do not suffice"):
        project([1.0, 1.0], 1, spread=True)
