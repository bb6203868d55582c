"""Lengths of requests and token profiles: what is refused, and that older documents are still read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solvers.domain.codec import from_json, from_plain, to_plain
from solvers.domain.profile import TokenLengths, TokenProfile
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Service
from solvers.errors import FieldError
from tests import builders, chats


@pytest.mark.parametrize(
    ("field", "number"),
    [
        ("input_tokens_mean", 0.0),
        ("input_tokens_mean", float("nan")),
        ("output_tokens_mean", 1e9),
        ("input_tokens_p99", 399.0),
    ],
)
def test_impossible_lengths_are_refused(field: str, number: float) -> None:
    with pytest.raises(FieldError) as caught:
        replace(chats.LENGTHS, **{field: number})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "number"),
    [
        ("decode_fixed_ms", 0.0),
        ("decode_per_sequence_ms", -1.0),
        ("prefill_per_token_ms", float("inf")),
        ("kv_cache_mib_per_token", 0.0),
        ("memory_mib_weights", 0.0),
        ("sequences_max", 0),
    ],
)
def test_impossible_steps_are_refused(field: str, number: float) -> None:
    with pytest.raises(FieldError) as caught:
        chats.profile("a100", **{field: number})
    assert caught.value.field == field


def test_only_services_that_promise_tokens_have_lengths() -> None:
    with pytest.raises(FieldError) as caught:
        builders.service(tokens=chats.LENGTHS)
    assert caught.value.field == "tokens"


def test_documents_written_before_there_were_tokens_are_read() -> None:
    service = to_plain(chats.service(tokens=None))
    assert isinstance(service, dict)
    service.pop("tokens")
    assert from_plain(Service, service) == chats.service(tokens=None)
    picture = to_plain(builders.lab([builders.service()]))
    assert isinstance(picture, dict)
    picture.pop("token_profiles")
    assert from_plain(Snapshot, picture) == builders.lab([builders.service()])


def test_they_come_back_as_they_went() -> None:
    profile, lengths = chats.profile("t4", sequences_max=64), TokenLengths(input_tokens_mean=1.5, output_tokens_mean=2)
    assert from_plain(TokenProfile, to_plain(profile)) == profile
    assert from_json(TokenLengths, '{"input_tokens_mean": 1.5, "output_tokens_mean": 2}') == lengths
