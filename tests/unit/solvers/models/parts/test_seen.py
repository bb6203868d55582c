"""Measurements survive the way through JSON, and add up."""

from __future__ import annotations

import json

import numpy as np
import pytest

from solvers.domain.codec import Plain
from solvers.errors import InputError
from solvers.models.base import Queries, Samples
from solvers.models.parts.seen import NO_SAMPLES, part, samples_from_plain, samples_to_plain
from tests import laws


def test_samples_come_back() -> None:
    samples = Samples.of(Queries.of(["a", "b"], "g", [1, 2], 50, [np.nan, 1200.0]), [1.5, 2.0], power_w=[np.nan, 30.0])
    back = samples_from_plain(json.loads(json.dumps(samples_to_plain(samples), allow_nan=False)))
    assert back.queries.models == ("a", "b")
    np.testing.assert_array_equal(back.queries.clock_mhz, [np.nan, 1200.0])
    np.testing.assert_array_equal(back.latency_ms, [1.5, 2.0])
    np.testing.assert_array_equal(back.power_w, [np.nan, 30.0])
    np.testing.assert_array_equal(back.memory_mib, [np.nan, np.nan])


def test_joining_renames_indices() -> None:
    one = Samples.of(Queries.of(["a", "b"], "g", 1, 50), [1.0, 2.0])
    two = Samples.of(Queries.of(["b", "c"], "h", 1, 50), [3.0, 4.0])
    both = one.joined(two)
    assert both.queries.models == ("a", "b", "c")
    assert [both.queries.models[index] for index in both.queries.model] == ["a", "b", "b", "c"]
    assert [both.queries.gpu_types[index] for index in both.queries.gpu_type] == ["g", "g", "h", "h"]
    assert both.latency_ms.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_nothing_joins_to_what_is_added() -> None:
    samples = laws.solo(["res"])
    np.testing.assert_array_equal(NO_SAMPLES.joined(samples).latency_ms, samples.latency_ms)


@pytest.mark.parametrize("broken", [None, [], {}, {"queries": 3}])
def test_what_is_no_sample_is_refused(broken: Plain) -> None:
    with pytest.raises(InputError):
        samples_from_plain(broken)


def test_lists_of_the_wrong_kind_are_refused() -> None:
    plain = samples_to_plain(laws.solo(["res"], batches=(1,), shares=(50,)))
    plain["latency_ms"] = ["fast"]
    with pytest.raises(InputError, match="latency_ms"):
        samples_from_plain(plain)
    with pytest.raises(InputError, match="lacks"):
        part({}, "x")
