"""What models measured on a GPU type say of one more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers.domain.arrays import Floats
from solvers.domain.workload import ModelVariant, QualityClass
from solvers.models.base import Origin
from solvers.models.belief import forms
from solvers.models.belief.forms import ShapePrior
from solvers.models.belief.transfer import Sibling, Told, entry_prior, joined, moved_entry, size_law, voices
from solvers.models.library import LibraryEntry
from tests.unit.solvers.models.belief.alone import parameters

SIZES = (0.5, 0.8, 1.2, 2.0, 3.0, 4.5, 7.0, 9.0, 12.0)


def variant(size: float) -> ModelVariant:
    return ModelVariant(
        name=f"net{size:g}",
        family="nets" if size > 1 else "others",
        parameters_million=10 * size,
        memory_mib_weights=40 * size,
        memory_mib_per_input=10.0,
        gflop_per_input=size,
        quality_class=QualityClass.LOW,
    )


def entry(size: float) -> LibraryEntry:
    return LibraryEntry(
        model=f"net{size:g}",
        gpu_type="v100",
        parameters=tuple(parameters(size).tolist()),
        spread=(0.1,) * forms.COUNT,
        error_pct_mean=3.0,
        points=40,
        source="a test",
        licence="MIT",
    )


def told(size: float, step: float = 0.0) -> Told:
    times = np.zeros(forms.COUNT)
    times[forms.TIMES] = step
    belief = ShapePrior(
        mean=parameters(size) + times, covariance=0.01 * np.eye(forms.COUNT), origin=Origin.MEASURED, source="here"
    )
    return Told(sibling=Sibling(variant=variant(size), entry=entry(size)), belief=belief)


def everybody(step: float = 0.0) -> dict[str, Told]:
    return {f"net{size:g}": told(size, step) for size in SIZES}


def spread(prior: ShapePrior) -> Floats:
    return np.asarray(np.sqrt(np.diag(prior.covariance)))


def test_a_models_size_says_how_much_it_works() -> None:
    law = size_law(Sibling(variant=variant(5.0)), everybody())
    assert law is not None
    assert law.mean[forms.WORK] == pytest.approx(parameters(5.0)[forms.WORK], abs=0.15)
    assert law.mean[0] == pytest.approx(parameters(5.0)[0], abs=0.05)
    assert "9 models measured here" in law.source


def test_too_few_or_unknown_models_say_nothing() -> None:
    few = dict(list(everybody().items())[:7])
    assert size_law(Sibling(variant=variant(5.0)), few) is None
    assert voices(Sibling(), everybody()) == ()
    assert voices(Sibling(variant=variant(5.0)), {}) == ()


def test_an_entry_is_moved_as_the_others_differ_from_theirs_and_surer_where_they_agree() -> None:
    asked = Sibling(entry=entry(5.0))
    alone, moved = moved_entry(asked, {}), moved_entry(asked, everybody(0.7))
    assert alone is not None
    assert moved is not None
    assert moved.origin is Origin.LIBRARY
    assert (moved.mean - alone.mean)[0] == pytest.approx(0.63, abs=0.02)
    assert (moved.mean - alone.mean)[forms.FILL] == pytest.approx(0.0)
    assert (spread(moved) < spread(alone)).all()


def test_an_entry_stays_doubtful_where_the_others_differ_each_in_its_own_way() -> None:
    others = {
        name: replace(one, belief=replace(told(size, (-1) ** index * 1.0).belief))
        for index, (size, (name, one)) in enumerate(zip(SIZES, everybody().items(), strict=True))
    }
    found = moved_entry(Sibling(entry=entry(5.0)), others)
    assert found is not None
    assert spread(found)[0] > 0.9


def test_joined_beliefs_lie_between_and_are_surer() -> None:
    one, two = entry_prior(entry(1.0)), entry_prior(entry(4.0))
    both = joined(one, two)
    assert one.mean[forms.WORK] < both.mean[forms.WORK] < two.mean[forms.WORK]
    assert (spread(both) < spread(one)).all()


def test_the_surest_voice_comes_first() -> None:
    found = voices(Sibling(variant=variant(5.0), entry=entry(5.0)), everybody())
    assert [prior.origin for prior in found] == [Origin.LIBRARY, Origin.SCALED]
    assert (spread(found[0]) < spread(found[1])).all()
