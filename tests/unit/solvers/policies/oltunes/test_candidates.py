"""The candidate score of OLTunes: what each weight does, and who is kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers.errors import InputError
from solvers.models.base import Queries
from solvers.policies.oltunes.scores import Candidates, TaskWish, scored

LATENCY_MS = [10.0, 20.0, 40.0, 80.0, 12.0, 24.0, 48.0, 96.0, 5.0, 500.0]


def candidates() -> Candidates:
    """Four configurations on A, four on B, two on C; larger batches take longer and yield more."""
    batch = [1, 4, 16, 64, 1, 4, 16, 64, 1, 64]
    latency = np.array(LATENCY_MS)
    return Candidates(
        configurations=Queries.of("resnet50", ["a"] * 4 + ["b"] * 4 + ["c"] * 2, batch, 100),
        latency_ms=latency,
        throughput_rps=1000.0 * np.array(batch) / latency,
        epc=np.array([100.0] * 4 + [150.0] * 4 + [400.0] * 2),
    )


def wish(weight: float, **others: float) -> TaskWish:
    terms = {"deadline_ms": 100.0, "cluster_utilisation": 0.0, "slack_weight": 0.0} | others
    return TaskWish(latency_weight=weight, **terms)


def test_terms_are_brought_to_the_same_size_and_added() -> None:
    found, asked = scored(candidates(), wish(0.7, cluster_utilisation=0.4, slack_weight=0.5)), candidates()
    latency = (1 / np.array(LATENCY_MS) - 1 / 500) / (1 / 5 - 1 / 500)
    slack = np.maximum(0.0, 100.0 - np.array(LATENCY_MS)) / 95.0
    throughput, power = ((term - term.min()) / (term.max() - term.min()) for term in (asked.throughput_rps, asked.epc))
    np.testing.assert_allclose(found.score, 0.7 * latency + 0.3 * throughput + 0.5 * slack - 0.4 * power, atol=1e-12)


def test_latency_weight_turns_from_throughput_to_latency() -> None:
    assert scored(candidates(), wish(0.99)).kept[0] == 8
    assert scored(candidates(), wish(0.0)).kept[0] == 3


def test_load_makes_power_count() -> None:
    hungry = scored(candidates(), wish(0.99, cluster_utilisation=1.0))
    assert hungry.kept[0] == 0
    overloaded = scored(candidates(), wish(0.99, cluster_utilisation=7.0))
    np.testing.assert_array_equal(overloaded.score, hungry.score)


def test_slack_ends_at_the_deadline() -> None:
    with_slack, without = (
        scored(candidates(), wish(0.5, deadline_ms=40.0, slack_weight=weight)).score for weight in (1.0, 0.0)
    )
    slack = with_slack - without
    assert slack[8] == pytest.approx(1.0)
    assert slack[np.array(LATENCY_MS) >= 40.0] == pytest.approx(0.0, abs=1e-12)


def test_three_configurations_on_each_of_the_two_best_types_are_kept() -> None:
    kept = scored(candidates(), wish(0.0)).kept
    assert list(kept) == [3, 2, 1, 7, 6, 5]


def test_what_cannot_be_predicted_is_not_kept() -> None:
    holes = np.array(LATENCY_MS)
    holes[[3, 8]] = np.nan
    found = scored(replace(candidates(), latency_ms=holes), wish(0.5))
    assert np.isneginf(found.score[[3, 8]]).all()
    assert not {3, 8} & set(found.kept.tolist())
    assert len(found.kept) == 6
    nothing = scored(replace(candidates(), latency_ms=np.full(10, np.nan)), wish(0.5))
    assert len(nothing.kept) == 0


def test_equal_rows_keep_their_order() -> None:
    same = Candidates(
        configurations=Queries.of("m", "a", [1, 1, 1, 1], 50),
        latency_ms=np.full(4, 7.0),
        throughput_rps=np.full(4, 9.0),
        epc=np.full(4, 60.0),
    )
    found = scored(same, wish(0.3))
    assert (found.score == 0.0).all()
    assert list(found.kept) == [0, 1, 2]


def test_wishes_and_columns_are_checked() -> None:
    with pytest.raises(InputError):
        wish(1.0)
    with pytest.raises(InputError):
        replace(candidates(), epc=np.zeros(3))
