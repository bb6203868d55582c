"""What the verifier proves of LLM replicas by a formula of its own, and that no corrupted plan passes."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from solvers.domain.evidence import Finding, FindingCode, Severity
from solvers.domain.ids import DeviceId, ReplicaId
from solvers.domain.plan import Assignment, Envelope, Plan
from solvers.domain.profile import TokenLengths, TokenProfile
from solvers.domain.snapshot import Snapshot
from solvers.models.serving.token_plans import SEQUENCES, TokenPromise, serving
from solvers.planners.registry import propose
from solvers.verify.checks import is_fatal, verify
from solvers.verify.tokens import Steps, TokenLimits, memory_mib
from tests import builders, chats

WORLD = chats.lab([chats.service()])


def made() -> tuple[Plan, Assignment]:
    plan = propose("greedy", builders.request(WORLD)).plan
    assert plan is not None
    return plan, plan.assignments[0]


def findings(changed: Assignment, picture: Snapshot = WORLD) -> tuple[Finding, ...]:
    plan, _ = made()
    return verify(picture, replace(plan, assignments=(changed, *plan.assignments[1:])))


def fatal(found: tuple[Finding, ...]) -> set[FindingCode]:
    return {item.code for item in found if item.severity is Severity.FATAL}


def test_the_plan_itself_passes() -> None:
    plan, first = made()
    assert verify(WORLD, plan) == ()
    assert findings(first) == ()


def test_two_readings_of_the_documented_model_agree() -> None:
    """The planner's and the verifier's, over random models, requests and promises."""
    rng, kept = random.Random(7), 0
    for _ in range(60):
        profile = chats.profile(
            rng.choice(["t4", "l4", "v100", "a100"]),
            decode_per_token_ms=rng.choice([0.0, 1e-4, 1e-3]),
            prefill_per_token_squared_ms=rng.choice([0.0, 2e-5]),
        )
        mean = rng.uniform(1, 2000)
        lengths = TokenLengths(
            input_tokens_mean=mean,
            output_tokens_mean=rng.uniform(1, 600),
            input_tokens_p99=rng.choice([None, mean, mean * rng.uniform(1, 80)]),
        )
        promise = TokenPromise(
            lengths=lengths,
            first_token_ms=rng.uniform(100, 20_000),
            inter_token_ms=rng.uniform(20, 3000),
            percentile=rng.choice([40.0, 90.0, 95.0, 99.0, 99.9]),
            utilisation_max=rng.choice([0.4, 0.7, 0.99]),
        )
        sequences = rng.choice(SEQUENCES)
        found = serving(profile, promise, sequences)
        steps, limits = Steps(profile, lengths), limits_of(promise)
        needed = memory_mib(profile, lengths, sequences)
        assert needed <= found.memory_mib < needed + 64
        assert needed >= memory_mib(profile, longest_alone(lengths), 1)
        shown = limits.rate_rps(steps, sequences, found.rate_rps)
        assert shown == pytest.approx(found.rate_rps, rel=1e-4)
        assert shown >= found.rate_rps * (1 - 1e-9)
        if found.rate_rps > 0:
            kept += 1
            first, between = steps.tails_ms(found.rate_rps, sequences, promise.percentile)
            assert first == pytest.approx(found.first_token_ms, rel=1e-9)
            assert between == pytest.approx(found.inter_token_ms, rel=1e-9)
    assert 20 < kept < 60


def longest_alone(lengths: TokenLengths) -> TokenLengths:
    longest = lengths.input_tokens_p99 or lengths.input_tokens_mean
    return TokenLengths(input_tokens_mean=longest, output_tokens_mean=lengths.output_tokens_mean)


def limits_of(promise: TokenPromise) -> TokenLimits:
    return TokenLimits(
        first_ms=promise.first_token_ms,
        between_ms=promise.inter_token_ms,
        percentile=promise.percentile,
        utilisation_max=promise.utilisation_max,
        utilisation_min=0.05,
    )


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"capacity_rps": 1.3}, FindingCode.CAPACITY_SHORT),
        ({"capacity_rps": float("nan")}, FindingCode.CAPACITY_SHORT),
        ({"latency_ms_planned": 1501.0}, FindingCode.LATENCY_EXCEEDED),
        ({"latency_ms_planned": float("nan")}, FindingCode.LATENCY_EXCEEDED),
        ({"share_pct_sm": 95}, FindingCode.LATENCY_EXCEEDED),
        ({"batch": 0}, FindingCode.LATENCY_EXCEEDED),
        ({"memory_mib_limit": 64}, FindingCode.MEMORY_TOO_SMALL),
        ({"power_w_planned": 1.0}, FindingCode.POWER_UNDERSTATED),
    ],
)
def test_a_corrupted_replica_is_found(changes: dict[str, float], code: FindingCode) -> None:
    _, first = made()
    if code is FindingCode.CAPACITY_SHORT:
        changes = {"capacity_rps": changes["capacity_rps"] * first.capacity_rps}
    assert code in fatal(findings(replace(first, **changes)))


def test_more_sequences_than_memory_holds_are_found() -> None:
    _, first = made()
    grown = replace(first, envelope=replace(first.envelope, batch_max=first.batch * 4))
    assert FindingCode.MEMORY_TOO_SMALL in fatal(findings(grown))


def test_nothing_is_proven_beside_anybody_or_at_another_clock() -> None:
    plan, first = made()
    double = replace(first, replica=ReplicaId("demo/chat#77"))
    assert FindingCode.LATENCY_EXCEEDED in fatal(verify(WORLD, replace(plan, assignments=(*plan.assignments, double))))
    at = next(index for index, item in enumerate(plan.settings) if item.device == first.device)
    slow = replace(plan.settings[at], clock_mhz_sm=_lower_clock(first.device))
    settings = (*plan.settings[:at], slow, *plan.settings[at + 1 :])
    clocks = Envelope(
        batch_min=first.envelope.batch_min,
        batch_max=first.envelope.batch_max,
        clock_mhz_sm_min=_lower_clock(first.device),
        clock_mhz_sm_max=_lower_clock(first.device),
    )
    lowered = replace(plan, assignments=(replace(first, envelope=clocks), *plan.assignments[1:]), settings=settings)
    assert FindingCode.LATENCY_EXCEEDED in fatal(verify(WORLD, lowered))


def _lower_clock(device: DeviceId) -> int:
    return builders.gpu_type(WORLD.devices_by_id()[device].gpu_type).clocks_mhz_sm[0]


def slower(profile: TokenProfile) -> TokenProfile:
    """Everything takes half as long again."""
    return replace(
        profile,
        decode_fixed_ms=1.5 * profile.decode_fixed_ms,
        decode_per_sequence_ms=1.5 * profile.decode_per_sequence_ms,
        decode_per_token_ms=1.5 * profile.decode_per_token_ms,
        prefill_per_token_ms=1.5 * profile.prefill_per_token_ms,
    )


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"token_profiles": ()}, FindingCode.LATENCY_EXCEEDED),
        ({"token_profiles": tuple(slower(item) for item in WORLD.token_profiles)}, FindingCode.CAPACITY_SHORT),
        ({"services": (chats.service(tokens=None),)}, FindingCode.LATENCY_EXCEEDED),
        ({"services": (chats.service(slo=chats.slo(inter_token_ms=10.0)),)}, FindingCode.LATENCY_EXCEEDED),
        ({"services": (chats.service(slo=chats.slo(first_token_ms=60.0)),)}, FindingCode.LATENCY_EXCEEDED),
        (
            {"token_profiles": tuple(replace(item, sequences_max=1) for item in WORLD.token_profiles)},
            FindingCode.LATENCY_EXCEEDED,
        ),
        (
            {"token_profiles": tuple(replace(item, kv_cache_mib_per_token=2.0) for item in WORLD.token_profiles)},
            FindingCode.MEMORY_TOO_SMALL,
        ),
    ],
)
def test_a_plan_of_another_world_does_not_pass(changes: dict[str, Any], code: FindingCode) -> None:
    plan, _ = made()
    found = verify(replace(WORLD, **changes), plan)
    assert is_fatal(found)
    assert code in fatal(found)
