"""Token latencies against a step-by-step simulation of continuous batching, and fits that find known costs again."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.token_fit import ServedSamples, StepSamples, fit_served, fit_steps
from solvers.errors import InputError
from solvers.models.serving.tokens import (
    LengthBucket,
    StepCosts,
    TokenMix,
    rate_rps_max,
    token_latency,
)

COSTS = StepCosts(
    decode_fixed_ms=11.0,
    decode_per_sequence_ms=0.06,
    decode_per_token_ms=0.0003,
    prefill_fixed_ms=7.0,
    prefill_per_token_ms=0.076,
)
PLAIN = TokenMix(buckets=(LengthBucket(in_tokens=500, out_tokens=200, weight=1, out_tokens_cv=0),))
MIXED = TokenMix(
    buckets=(
        LengthBucket(in_tokens=200, out_tokens=300, weight=7, out_tokens_cv=0),
        LengthBucket(in_tokens=3000, out_tokens=100, weight=3, out_tokens_cv=0),
    )
)


def simulated(mix: TokenMix, rate_rps: float, places: int, requests: int = 2_500) -> tuple[float, float, float]:
    """Mean and p95 of the time to the first token and the mean between tokens, step by step."""
    rng = np.random.default_rng(1)
    arrived = np.cumsum(rng.exponential(1000 / rate_rps, requests))
    which = rng.choice(len(mix.buckets), requests, p=[part for _, part in mix.shares()])
    now, head = 0.0, 0
    running: list[list[int]] = []
    first, between = np.zeros(requests), []
    while head < requests or running:
        if not running and arrived[head] > now:
            now = float(arrived[head])
        step = 0.0
        while head < requests and arrived[head] <= now and len(running) < places:
            step += COSTS.prefill_ms(mix.buckets[which[head]].in_tokens)
            running.append([head, mix.buckets[which[head]].in_tokens, 0])
            head += 1
        step += COSTS.decode_ms(len(running), sum(prompt + made for _, prompt, made in running))
        now += step
        for sequence in running:
            sequence[2] += 1
            if sequence[2] == 1:
                first[sequence[0]] = now - arrived[sequence[0]]
            else:
                between.append(step)
        running = [sequence for sequence in running if sequence[2] < mix.buckets[which[sequence[0]]].out_tokens]
    steady = first[requests // 5 :]
    return float(steady.mean()), float(np.quantile(steady, 0.95)), float(np.mean(between))


@pytest.mark.parametrize(
    ("mix", "places", "load"), [(PLAIN, 32, 0.5), (PLAIN, 128, 0.8), (MIXED, 32, 0.2), (MIXED, 128, 0.5)]
)
def test_token_latencies_are_what_single_steps_give(mix: TokenMix, places: int, load: float) -> None:
    rate = load * rate_rps_max(COSTS, mix, places)
    mean, tail, between = simulated(mix, rate, places)
    told = token_latency(COSTS, mix, rate, places, 95)
    assert told.inter_token_ms_mean == pytest.approx(between, rel=0.1)
    assert told.first_token_ms_mean == pytest.approx(mean, rel=0.15)
    assert told.first_token_ms_tail == pytest.approx(tail, rel=0.3)
    assert told.load == pytest.approx(load)


costs = st.builds(
    StepCosts,
    decode_fixed_ms=st.floats(1, 50),
    decode_per_sequence_ms=st.floats(0, 1),
    decode_per_token_ms=st.floats(0, 0.01),
    prefill_fixed_ms=st.floats(0, 30),
    prefill_per_token_ms=st.floats(0.001, 0.5),
    decode_knee_pct=st.floats(20, 100),
    prefill_knee_pct=st.floats(20, 100),
)


@settings(max_examples=80, deadline=None)
@given(costs=costs, places=st.integers(1, 256), load=st.floats(0.01, 0.9), share=st.floats(5, 100))
def test_more_load_or_less_share_is_never_faster(costs: StepCosts, places: int, load: float, share: float) -> None:
    rate = load * rate_rps_max(costs, MIXED, places)
    calm, busy = (token_latency(costs, MIXED, part * rate, places) for part in (0.5, 1.0))
    assert calm.inter_token_ms_mean <= busy.inter_token_ms_mean
    assert calm.first_token_ms_mean <= busy.first_token_ms_mean
    assert calm.first_token_ms_tail <= busy.first_token_ms_tail * (1 + 1e-9)
    less = costs.at_share(share)
    assert rate_rps_max(less, MIXED, places) <= rate_rps_max(costs, MIXED, places) * (1 + 1e-9)
    assert less.prefill_ms(1000) >= costs.prefill_ms(1000) * (1 - 1e-9)


def test_beyond_capacity_latency_is_infinite() -> None:
    top = rate_rps_max(COSTS, PLAIN, 16)
    assert math.isinf(token_latency(COSTS, PLAIN, top, 16).first_token_ms_mean)
    assert math.isinf(token_latency(COSTS, PLAIN, 1.0, 0).inter_token_ms_mean)
    assert math.isfinite(token_latency(COSTS, PLAIN, 0.9 * top, 16).first_token_ms_tail)


def grid(shares: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    cells = [(batch, tokens, share) for batch in (1, 4, 16, 64) for tokens in (64, 256, 1024) for share in shares]
    batch, tokens, share = (np.array(column, dtype=float) for column in zip(*cells, strict=True))
    return batch, tokens, share


def test_single_steps_tell_the_costs_again_in_spite_of_a_broken_run() -> None:
    truth = replace(COSTS, decode_fixed_sm_ms=3.0, decode_knee_pct=60.0, prefill_knee_pct=80.0)
    batch, tokens, share = grid((30.0, 60.0, 80.0, 100.0))
    at = [truth.at_share(part) for part in share]
    decode = np.array([cost.decode_ms(b, b * t) for cost, b, t in zip(at, batch, tokens, strict=True)])
    prefill = np.array(
        [
            cost.prefill_fixed_ms + cost.prefill_per_token_ms * b * t
            for cost, b, t in zip(at, batch, tokens, strict=True)
        ]
    )
    decode[5] *= 4.0
    fit = fit_steps(
        StepSamples(sequences=batch, tokens_each=tokens, share_pct=share, step_ms=decode),
        StepSamples(sequences=batch, tokens_each=tokens, share_pct=share, step_ms=prefill),
    )
    assert fit.costs.prefill_per_token_ms == pytest.approx(0.076, rel=0.01)
    assert fit.costs.decode_per_sequence_ms == pytest.approx(0.06, rel=0.1)
    assert fit.costs.decode_fixed_ms + fit.costs.decode_fixed_sm_ms == pytest.approx(14.0, rel=0.05)
    assert (fit.costs.decode_knee_pct, fit.costs.prefill_knee_pct) == (60.0, 80.0)
    assert fit.prefill_error_pct < 0.1
    assert fit.samples == 96


def test_what_clients_saw_tells_the_time_between_tokens() -> None:
    cells = [(b, i, o) for b in (4, 16, 64) for i in (128, 1024, 4096) for o in (128, 1024)]
    batch, prompt, answer = (np.array(column, dtype=float) for column in zip(*cells, strict=True))
    first = np.array([COSTS.prefill_ms(i) + 12 for i in prompt])
    between = np.array(
        [COSTS.decode_ms(b, b * (i + o / 2)) + b / o * COSTS.prefill_ms(i) for b, i, o in cells], dtype=float
    )
    fit = fit_served(
        ServedSamples(
            sequences=batch, in_tokens=prompt, out_tokens=answer, first_token_ms=first, inter_token_ms=between
        )
    )
    assert fit.decode_error_pct < 3
    assert fit.costs.prefill_per_token_ms == pytest.approx(0.076, rel=0.02)
    assert fit.costs.decode_fixed_ms == pytest.approx(11, rel=0.1)


def test_two_measurements_are_too_few() -> None:
    two = StepSamples(
        sequences=np.array([1.0, 2.0]),
        tokens_each=np.array([10.0, 10.0]),
        share_pct=np.array([100.0, 100.0]),
        step_ms=np.array([5.0, 6.0]),
    )
    with pytest.raises(InputError):
        fit_steps(two, two)
