"""The books of pressure: nobody is slowed more than planned."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.domain.profile import Interference
from solvers.problems.choice import UNKNOWN, Press
from solvers.problems.fleet import CompanyBooks

MARGIN = 1.25


def press(pressure: float, sensitivity: float, factor: float) -> Press:
    known = Interference(pressure=pressure, exponent=0.0, sensitivity=sensitivity)
    return Press.of(known, 50.0, factor, MARGIN)


def test_what_a_replica_bears_follows_from_its_factor() -> None:
    made = press(0.3, 0.5, 1.5)
    assert (made.pressure, made.bears) == (0.3, pytest.approx(1.0))
    assert made.bears_beside_unknown == pytest.approx((1.5 / MARGIN - 1) / 0.5)
    assert press(0.3, 0.0, 1.0).bears == math.inf
    assert press(0.3, 0.5, 1.0).bears_beside_unknown == -math.inf


def test_an_empty_device_takes_anybody_and_the_unknown_bear_everybody() -> None:
    company = CompanyBooks.of(2)
    assert bear(company, press(5.0, 0.7, 1.0)) == [True, True]
    company.book(0, UNKNOWN, 1)
    assert bear(company, UNKNOWN) == [True, True]
    assert bear(company, press(0.3, 0.5, 1.2)) == [False, True]
    assert bear(company, press(0.3, 0.5, MARGIN)) == [True, True]


def test_the_most_sensitive_member_decides() -> None:
    company = CompanyBooks.of(1)
    company.book(0, press(0.4, 1.0, 1.5), 1)
    assert all(bear(company, press(0.5, 0.1, 1.5)))
    assert not any(bear(company, press(0.51, 0.1, 1.5)))
    # The newcomer itself would suffer too much.
    assert not any(bear(company, press(0.1, 1.0, 1.3)))


def test_the_margin_takes_its_part_where_somebody_is_unknown() -> None:
    company = CompanyBooks.of(1)
    company.book(0, press(0.2, 1.0, 1.5), 1)
    # 1.25 x (1 + pressure) must stay within 1.5.
    assert all(bear(company, UNKNOWN))
    company.book(0, UNKNOWN, 1)
    assert all(bear(company, press(0.2, 0.0, 1.5)))
    assert not any(bear(company, press(0.21, 0.0, 1.5)))


def bear(company: CompanyBooks, item: Press) -> list[bool]:
    return [bool(fine) for fine in company.bear(item, np.arange(len(company.pressure)))]


members = st.lists(
    st.one_of(
        st.just(UNKNOWN),
        st.builds(press, st.floats(0, 0.6), st.floats(0, 1), st.floats(1, 1.8)),
    ),
    min_size=1,
    max_size=5,
)


@given(members)
@settings(max_examples=40, deadline=None)
def test_whoever_is_let_in_keeps_everybody_within_their_factor_and_books_balance(wanted: list[Press]) -> None:
    company = CompanyBooks.of(1)
    present: list[Press] = []
    for item in wanted:
        if bear(company, item)[0]:
            company.book(0, item, 1)
            present.append(item)
    total = sum(item.pressure or 0.0 for item in present)
    unknown = any(item.pressure is None for item in present)
    for item in present:
        if item.pressure is not None and len(present) > 1:
            others = total - item.pressure
            assert others <= (item.bears_beside_unknown if unknown else item.bears) + 1e-6
    for item in present:
        company.book(0, item, -1)
    fresh = CompanyBooks.of(1)
    assert (company.pressure[0], company.unknown[0]) == (fresh.pressure[0], fresh.unknown[0])
    assert company.most.tolist() == fresh.most.tolist()
