"""What a replica of an LLM may be given: both promises hold at that rate, and hardly above it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solvers.domain.profile import TokenLengths
from solvers.models.serving.token_plans import SEQUENCES, TokenPromise, choices, costs_of, memory_mib, mix_of, serving
from solvers.models.serving.tokens import rate_rps_max
from tests import chats

PROMISE = TokenPromise(
    lengths=chats.LENGTHS, first_token_ms=1500.0, inter_token_ms=250.0, percentile=95.0, utilisation_max=0.7
)
A100 = chats.profile("a100")


@pytest.mark.parametrize("sequences", [8, 32, 128])
@pytest.mark.parametrize("tight", [{}, {"first_token_ms": 250.0}, {"inter_token_ms": 60.0}, {"percentile": 99.0}])
def test_the_promise_holds_at_the_rate_and_no_higher_one_is_left(sequences: int, tight: dict[str, float]) -> None:
    promise = replace(PROMISE, **tight)
    found = serving(A100, promise, sequences)
    assert found.rate_rps > 0
    assert promise.kept_by(promise.told(A100, sequences, found.rate_rps))
    # A quarter above breaks a promise, or the part of the time that a replica may be busy.
    more = promise.told(A100, sequences, 1.25 * found.rate_rps)
    assert not promise.kept_by(more) or more.load > promise.utilisation_max


def test_where_only_load_limits_the_rate_is_that_part_of_what_is_sustained() -> None:
    easy = replace(PROMISE, first_token_ms=1e6, inter_token_ms=1e6)
    sustained = rate_rps_max(costs_of(A100), mix_of(chats.LENGTHS), 64)
    assert serving(A100, easy, 64).rate_rps == pytest.approx(0.7 * sustained)


def test_more_sequences_are_never_worse_and_take_more_memory() -> None:
    found = choices(A100, PROMISE)
    assert [item.sequences for item in found] == list(SEQUENCES)
    rates, memory = [item.rate_rps for item in found], [item.memory_mib for item in found]
    assert rates == sorted(rates)
    assert memory == sorted(memory)
    assert rates[-1] > 3 * rates[5]


def test_memory_is_weights_reserve_and_full_caches() -> None:
    # 13400 + 1024 + 8 x 550 x 0.5 = 16624, in steps of 64.
    assert memory_mib(A100, chats.LENGTHS, 8) == 16640


def test_memory_holds_the_longest_prompt_that_is_declared() -> None:
    # 13400 + 1024 + (1600 + 150) x 0.5 = 15299, though three of 550 take less.
    assert memory_mib(A100, chats.LENGTHS, 3) == 15360


def test_what_no_rate_keeps_is_given_none() -> None:
    hopeless = serving(A100, replace(PROMISE, inter_token_ms=5.0), 32)
    assert hopeless.rate_rps == 0.0
    assert hopeless.inter_token_ms > 5.0


def test_a_server_with_a_bound_of_its_own_runs_no_more() -> None:
    found = choices(chats.profile("a100", sequences_max=50), PROMISE)
    assert found[-1].sequences == 48


def test_long_prompts_are_a_part_of_their_own_with_the_same_mean() -> None:
    short, long = mix_of(chats.LENGTHS).buckets
    assert (long.in_tokens, long.weight) == (1600, 0.02)
    assert 0.98 * short.in_tokens + 0.02 * long.in_tokens == pytest.approx(400.0, abs=1.0)
    alike = mix_of(TokenLengths(input_tokens_mean=99.2, output_tokens_mean=10.0))
    assert [(item.in_tokens, item.out_tokens) for item in alike.buckets] == [(100, 10)]
