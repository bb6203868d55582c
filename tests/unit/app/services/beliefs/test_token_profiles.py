"""What the shipped library is believed to say of declared LLM services, and how carefully."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app import library
from app.services.beliefs.completion import with_token_profiles
from solvers.domain.device import GpuType, Offer
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import ProfileOrigin
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import ServiceMode
from solvers.planners.registry import propose
from solvers.verify.checks import verify
from tests import builders, chats

LLAMA = ModelName("llama-3.1-8b")
CATALOGUE = {item.name: item for item in library.load_models()}


def shipped(name: str) -> GpuType:
    """A GPU type of the library."""
    return next(item for item in library.load_gpu_types() if item.name == name)


def fleet(*types: str, **changes: Any) -> Snapshot:
    """GPUs of the library's types, and a service that chats with one of its networks."""
    devices = [
        replace(builders.device("a", index, "a100"), gpu_type=GpuTypeName(name), memory_mib=shipped(name).memory_mib)
        for index, name in enumerate(types)
    ]
    service = chats.service(model=LLAMA)
    base = builders.lab([service], profiles=(), models=(CATALOGUE[LLAMA],))
    made = replace(base, devices=tuple(devices), gpu_types=tuple(shipped(name) for name in sorted(set(types))))
    return replace(made, **changes)


def test_every_type_of_the_fleet_is_told_with_where_it_is_from() -> None:
    picture = with_token_profiles(fleet("a100", "h100", "a100"))
    assert [(item.model, item.gpu_type) for item in picture.token_profiles] == [(LLAMA, "a100"), (LLAMA, "h100")]
    a100, h100 = picture.token_profiles
    assert a100.origin is ProfileOrigin.SCALED
    assert "8030 M parameters" in a100.source
    assert h100.decode_fixed_ms < a100.decode_fixed_ms
    assert h100.prefill_per_token_ms < a100.prefill_per_token_ms
    assert a100.memory_mib_weights == CATALOGUE[LLAMA].memory_mib_weights


def test_what_the_library_measured_is_told_as_such() -> None:
    """In eight bits; as it is published the network has sixteen."""
    large = CATALOGUE[ModelName("llama-3.1-70b")]
    services = (chats.service(model=large.name),)
    half = replace(large, memory_mib_weights=large.memory_mib_weights / 2)
    told, scaled = (
        with_token_profiles(fleet("h200", services=services, models=(model,))).token_profiles[0]
        for model in (half, large)
    )
    assert told.origin is ProfileOrigin.PUBLIC
    assert told.source.startswith("library: ")
    assert scaled.origin is ProfileOrigin.SCALED
    assert scaled.source == "scaled: llama-3.1-70b with weights of 8 bits on 1 x h200"


def test_caution_makes_everything_slower() -> None:
    bold, careful = (
        with_token_profiles(fleet("a100", policy=builders.policy(caution_std=caution))).token_profiles[0]
        for caution in (0.0, 1.0)
    )
    # Nothing of the kind was measured on it: the usual error is a half.
    for field in ("decode_fixed_ms", "decode_per_sequence_ms", "decode_per_token_ms", "prefill_per_token_ms"):
        assert getattr(careful, field) == pytest.approx(1.5 * getattr(bold, field), rel=1e-4)


def test_what_was_measured_stays_and_what_was_believed_is_believed_anew() -> None:
    measured = chats.profile("a100", LLAMA)
    stale = chats.profile("a100", LLAMA, origin=ProfileOrigin.SCALED)
    picture = fleet("a100")
    assert with_token_profiles(replace(picture, token_profiles=(measured,))).token_profiles == (measured,)
    believed = with_token_profiles(picture)
    assert with_token_profiles(replace(picture, token_profiles=(stale,))) == believed
    assert with_token_profiles(believed) == believed


def test_nothing_is_told_of_what_nobody_asked_for() -> None:
    quiet = fleet("a100", services=(builders.service(),))
    assert with_token_profiles(quiet) is quiet
    off = fleet("a100", services=(chats.service(model=LLAMA, mode=ServiceMode.OFF),))
    assert with_token_profiles(off).token_profiles == ()
    unknown = fleet("a100", models=(replace(CATALOGUE[LLAMA], kv_cache_mib_per_token=None),))
    assert with_token_profiles(unknown).token_profiles == ()
    elsewhere = fleet("a100", services=(chats.service(model=LLAMA, gpu_types_allowed=(GpuTypeName("h100"),)),))
    assert with_token_profiles(elsewhere).token_profiles == ()


@pytest.mark.parametrize("weights", [16e9, 1e308])
def test_a_model_beyond_all_bounds_is_told_of_by_nobody_and_stops_no_other(weights: float) -> None:
    """Its weights in bytes, where MiB are meant, and worse."""
    slip = replace(CATALOGUE[LLAMA], name=ModelName("slip"), memory_mib_weights=weights)
    services = (chats.service(model=LLAMA), chats.service("other", model=slip.name))
    picture = with_token_profiles(fleet("a100", services=services, models=(CATALOGUE[LLAMA], slip)))
    assert [item.model for item in picture.token_profiles] == [LLAMA]


def test_offered_types_are_told_too() -> None:
    picture = fleet("a100", offers=(Offer(name="more", gpu_type=GpuTypeName("h100"), count_max=2),))
    known = replace(picture, gpu_types=(*picture.gpu_types, shipped("h100")))
    assert [item.gpu_type for item in with_token_profiles(known).token_profiles] == ["a100", "h100"]


def test_a_plan_can_be_made_from_it() -> None:
    picture = with_token_profiles(fleet("a100", "a100"))
    plan = propose("greedy", builders.request(picture)).plan
    assert plan is not None
    assert plan.unplaced == ()
    assert verify(picture, plan) == ()
    told = {fact.name: fact.value for fact in plan.assignments[0].reasons[0].facts}
    assert told["profile_origin"] == "scaled"
