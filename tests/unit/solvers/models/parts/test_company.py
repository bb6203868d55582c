"""Company: slowdowns over what was measured alone, who is near whom, and use that is assumed where never measured."""

from __future__ import annotations

import json

import numpy as np
import pytest

from solvers.models.base import Groups, Queries, Samples
from solvers.models.parts import static
from solvers.models.parts.disturbed import Company, composition, latency_alone_ms, table_of
from tests import laws


def company(groups: Groups) -> Company:
    solo = static.make(laws.facts(), 0).fit(laws.solo())
    return Company.of(laws.facts(), laws.measured(groups), solo, laws.solo())


def test_slowdowns_are_over_what_was_measured_alone() -> None:
    groups = laws.pairs()
    assert company(groups).slowdown == pytest.approx(laws.slowdown(groups))


def test_exactly_measured_cells_beat_belief() -> None:
    queries = Queries.of("res", laws.GPU, [4, 5], 40)
    believer = static.make(laws.facts(), 0).fit(laws.solo())
    table = table_of(Samples.of(queries.take(np.array([True, False])), [99.0]), laws.facts())
    found = latency_alone_ms(queries, believer, table)
    assert found == pytest.approx([99.0, float(believer.predict(queries).mean[1])])


def test_composition_ignores_order_and_counts_copies() -> None:
    def code(*names: str) -> int:
        members = Queries.of(list(names), laws.GPU, 1, 20)
        return int(composition(Groups(members=members, group=np.zeros(len(names), dtype=np.int64)))[0])

    assert code("res", "vgg", "ssd") == code("ssd", "res", "vgg")
    assert len({code("res"), code("res", "res"), code("res", "vgg"), code("res", "vgg", "ssd")}) == 4


def test_nearness_counts_batches_of_both() -> None:
    known = company(Groups.pairs(Queries.of("res", laws.GPU, 4, 40), Queries.of("vgg", laws.GPU, 8, 60)))
    asked = Groups.pairs(Queries.of("res", laws.GPU, [4, 8, 4], 40), Queries.of("vgg", laws.GPU, [8, 8, 16], 60))
    distance, support, _ = known.nearness(asked)
    assert distance == pytest.approx([0.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    assert support.tolist() == [True, True, False, False, False, False]


def test_more_groups_are_numbered_after_those_there() -> None:
    one, two = laws.pairs([("res", "vgg")]), laws.pairs([("alex", "ssd")])
    solo = static.make(laws.facts(), 0).fit(laws.solo())
    both = company(one).joined(laws.measured(two), solo)
    assert len(both.groups) == len(one) + len(two)
    assert len(np.unique(both.groups.group)) == (len(one) + len(two)) // 2
    assert both.slowdown == pytest.approx(np.concatenate([laws.slowdown(one), laws.slowdown(two)]))
    back = Company.from_plain(json.loads(json.dumps(both.to_plain(), allow_nan=False)), laws.facts())
    np.testing.assert_array_equal(back.slowdown, both.slowdown)
    np.testing.assert_array_equal(composition(back.groups), composition(both.groups))
