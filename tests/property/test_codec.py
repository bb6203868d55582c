"""Snapshots and proposals come back from their canonical JSON as they were, and their digests are stable."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.domain.codec import canonical_json, digest, from_json, from_plain, to_plain
from solvers.domain.plan import Proposal
from solvers.domain.snapshot import Snapshot
from solvers.domain.telemetry import Demand
from solvers.errors import FieldError
from solvers.planners.registry import propose
from tests import builders
from tests.property.worlds import worlds_with_target

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")
"""Worlds are large, and Hypothesis now and then prints one for itself."""


@given(worlds_with_target())
@settings(max_examples=25)
def test_worlds_and_their_plans_round_trip(world: Snapshot) -> None:
    proposal = propose("greedy", builders.request(world))
    for kind, item in ((Snapshot, world), (Proposal, proposal)):
        text = canonical_json(item)
        back = from_json(kind, text)
        assert back == item
        assert canonical_json(back) == text
        assert digest(back) == digest(item)


@given(st.floats(0, 1e12), st.floats(0, 1e-3))
def test_numbers_keep_their_value_and_one_text(rate_rps: float, age_s: float) -> None:
    demand = builders.demand("demo/vision", rate_rps, age_s=age_s)
    assert from_json(Demand, canonical_json(demand)) == demand
    assert digest(replace(demand, window_s=60)) == digest(replace(demand, window_s=60.0))


def test_an_unknown_field_is_refused_with_its_pointer() -> None:
    plain = to_plain(builders.lab())
    assert isinstance(plain, dict)
    policy = plain["policy"]
    assert isinstance(policy, dict)
    policy["surprise"] = 1
    with pytest.raises(FieldError) as caught:
        from_plain(Snapshot, plain)
    assert caught.value.field == "/policy/surprise"


def test_text_is_canonical() -> None:
    text = canonical_json(builders.lab([builders.service()]))
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def test_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        canonical_json(float("nan"))
