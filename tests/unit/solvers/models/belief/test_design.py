"""Which measurements to take next: new ones, spread where it matters, better than chance, the same every time."""

from __future__ import annotations

import numpy as np
import pytest

from app.library import facts as shipped
from solvers.domain.arrays import Floats
from solvers.errors import FieldError
from solvers.models.base import Facts, Queries, Samples
from solvers.models.belief import forms
from solvers.models.belief.design import Configuration, candidates_of, next_points
from solvers.models.belief.solo import HeadroomSolo, make
from tests.unit.solvers.models.belief.alone import learned

FACTS = shipped()
NOTHING = Facts()
KEY = ("net", "v100")
GRID = tuple(
    Configuration(batch=batch, share_pct_sm=share) for batch in (1, 2, 4, 8, 16, 32) for share in range(10, 101, 10)
)
NATURAL = np.array([3.0, 0.6, 0.05, 0.5, 0.3, 0.15, 0.5, 4.0, 8.0, 0.8])


def truth(configurations: tuple[Configuration, ...]) -> Floats:
    batch = np.array([item.batch for item in configurations])
    share = np.array([item.share_pct_sm for item in configurations]) / 100
    return np.exp(forms.log_latency(learned(NATURAL), batch, share))


def measured(configurations: tuple[Configuration, ...]) -> Samples:
    batches = [item.batch for item in configurations]
    shares = [item.share_pct_sm for item in configurations]
    return Samples.of(Queries.of(*KEY, batches, shares), truth(configurations))


def error_pct(configurations: tuple[Configuration, ...]) -> float:
    model = make(NOTHING, 0).fit(measured(configurations))
    queries = measured(GRID).queries
    return float(100 * np.mean(np.abs(model.predict(queries).mean / truth(GRID) - 1)))


def fresh(facts: Facts = NOTHING) -> HeadroomSolo:
    return make(facts, 0)


def test_from_nothing_the_choice_spreads_over_everything() -> None:
    chosen = next_points(fresh(), KEY, NOTHING, 8, GRID)
    assert len(set(chosen)) == 8
    assert {item.batch for item in chosen} >= {1, 32}
    shares = [item.share_pct_sm for item in chosen]
    assert min(shares) <= 20
    assert max(shares) >= 80
    assert all(item.std_pct > 10 for item in chosen)


def test_the_same_every_time_and_a_longer_list_goes_on_where_a_shorter_ends() -> None:
    once = next_points(fresh(), KEY, NOTHING, 10, GRID)
    assert next_points(fresh(), KEY, NOTHING, 10, GRID) == once
    assert next_points(fresh(), KEY, NOTHING, 4, GRID) == once[:4]


def test_what_was_measured_is_never_proposed_again() -> None:
    first = next_points(fresh(), KEY, NOTHING, 12, GRID)
    model = fresh().fit(measured(first))
    then = next_points(model, KEY, NOTHING, len(GRID), GRID)
    places = {(item.batch, item.share_pct_sm) for item in first}
    assert len(then) == len(GRID) - len(first)
    assert not places & {(item.batch, item.share_pct_sm) for item in then}
    assert next_points(model, KEY, NOTHING, 5, first) == ()


def test_it_is_surer_after_measuring_what_it_asked_for() -> None:
    before = next_points(fresh(), KEY, NOTHING, 6, GRID)
    after = next_points(fresh().fit(measured(before)), KEY, NOTHING, 6, GRID)
    assert max(item.std_pct for item in after) < 0.5 * min(item.std_pct for item in before)


def test_six_chosen_points_tell_more_than_six_in_a_corner() -> None:
    corner = tuple(item for item in GRID if item.batch <= 2 and item.share_pct_sm >= 80)
    assert len(corner) == 6
    assert error_pct(next_points(fresh(), KEY, NOTHING, 6, GRID)) < 0.5 * error_pct(corner)


def test_candidates_fit_the_memory_and_name_lower_clocks() -> None:
    listed = candidates_of("yolov5x", "rtx-2060", FACTS)
    clocks = {item.clock_mhz_sm for item in listed}
    assert max(item.batch for item in listed) == 8
    assert None in clocks
    assert len(clocks) == 3
    assert clocks - {None} <= set(FACTS.gpu_types["rtx-2060"].clocks_mhz_sm)
    assert {item.batch for item in candidates_of("net", "nobody-knows", NOTHING)} == {1, 2, 4, 8, 16, 32, 64}


def test_most_proposals_are_at_the_highest_clock() -> None:
    chosen = next_points(fresh(FACTS), ("resnet50", "a100"), FACTS, 9)
    assert sum(item.clock_mhz_sm is None for item in chosen) >= 5


def test_no_budget_and_no_candidates_give_nothing() -> None:
    assert next_points(fresh(), KEY, NOTHING, 0, GRID) == ()
    assert next_points(fresh(), KEY, NOTHING, 5, ()) == ()


def test_impossible_configurations_are_refused() -> None:
    with pytest.raises(FieldError, match="share_pct_sm"):
        Configuration(batch=1, share_pct_sm=0)
