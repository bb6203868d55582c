"""Step costs of LLM replicas from measurements: of single steps, or of what clients saw.

Owns the two fits behind `solvers.models.llm`: every cost is a coefficient that cannot be negative, found by
non-negative least squares on relative errors, with large errors (a run out of memory, a cold start) weighted down; the
share's knees are tried one after the other. It refuses fewer than three different measurements of a phase.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from solvers.errors import InputError
from solvers.models.base import Floats
from solvers.models.llm import StepCosts

KNEES_PCT = (30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0)
ROUNDS = 12
SAMPLES_MIN = 3
_ERROR_FLOOR = 0.02
"""Below this relative error nothing counts as large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSamples:
    """Measured steps of one phase: `sequences` in the step, tokens of each (its prompt, or what it has cached)."""

    sequences: Floats
    tokens_each: Floats
    share_pct: Floats
    step_ms: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSamples:
    """What clients saw with `sequences` running all the time: mean time to first token and between tokens."""

    sequences: Floats
    in_tokens: Floats
    out_tokens: Floats
    first_token_ms: Floats
    inter_token_ms: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFit:
    """Costs, the mean absolute relative error of each phase in the samples, in percent, and their number."""

    costs: StepCosts
    decode_error_pct: float
    prefill_error_pct: float
    samples: int


@dataclass(frozen=True, slots=True)
class _Line:
    """Coefficients of one regression and how well they do."""

    weights: Floats
    knee_pct: float
    error_pct: float


def fit_steps(decode: StepSamples, prefill: StepSamples) -> StepFit:
    """Costs from single steps."""

    def decode_terms(need: Floats) -> Floats:
        cached = decode.sequences * decode.tokens_each
        return np.stack([np.ones_like(need), need, decode.sequences * need, cached], axis=1)

    def prefill_terms(need: Floats) -> Floats:
        tokens = prefill.sequences * prefill.tokens_each
        return np.stack([np.ones_like(need), tokens * need, tokens * prefill.tokens_each * need], axis=1)

    one = _best_knee(decode_terms, decode.share_pct, decode.step_ms)
    other = _best_knee(prefill_terms, prefill.share_pct, prefill.step_ms)
    fixed, fixed_sm = float(one.weights[0]), float(one.weights[1])
    if len(np.unique(decode.share_pct)) == 1:
        # One share cannot tell the two apart; decoding is bound by memory.
        fixed, fixed_sm = fixed + fixed_sm, 0.0
    costs = StepCosts(
        decode_fixed_ms=fixed,
        decode_fixed_sm_ms=fixed_sm,
        decode_per_sequence_ms=float(one.weights[2]),
        decode_per_token_ms=float(one.weights[3]),
        prefill_fixed_ms=float(other.weights[0]),
        prefill_per_token_ms=float(other.weights[1]),
        prefill_per_token_squared_ms=float(other.weights[2]),
        decode_knee_pct=one.knee_pct,
        prefill_knee_pct=other.knee_pct,
    )
    return StepFit(
        costs=costs,
        decode_error_pct=one.error_pct,
        prefill_error_pct=other.error_pct,
        samples=len(decode.step_ms) + len(prefill.step_ms),
    )


def fit_served(seen: ServedSamples) -> StepFit:
    """Costs from what clients saw: between two tokens lie one decode step and the prefills of the requests that came
    meanwhile, `sequences / out_tokens` of them.
    """
    batch, prompt, answer = seen.sequences, seen.in_tokens, seen.out_tokens
    first = _solve(np.stack([np.ones_like(batch), prompt, prompt**2, batch * prompt], axis=1), seen.first_token_ms)
    # The last term is waiting for other prompts, which `token_latency` adds by itself.
    gamma, delta, square = (float(weight) for weight in first.weights[:3])
    prefills = batch / answer * (gamma + (delta + square * prompt) * prompt)
    terms = np.stack([np.ones_like(batch), batch, batch * (prompt + answer / 2)], axis=1)
    rest = np.maximum(seen.inter_token_ms - prefills, 0.2 * seen.inter_token_ms)
    steps = _solve(terms, rest)
    told = terms @ steps.weights + prefills
    costs = StepCosts(
        decode_fixed_ms=float(steps.weights[0]),
        decode_per_sequence_ms=float(steps.weights[1]),
        decode_per_token_ms=float(steps.weights[2]),
        prefill_fixed_ms=gamma,
        prefill_per_token_ms=delta,
        prefill_per_token_squared_ms=square,
    )
    return StepFit(
        costs=costs,
        decode_error_pct=_error_pct(told, seen.inter_token_ms),
        prefill_error_pct=first.error_pct,
        samples=len(batch),
    )


def _best_knee(terms: Callable[[Floats], Floats], share_pct: Floats, measured_ms: Floats) -> _Line:
    """The knee with the smallest error; the highest one where the share was never varied."""
    varied = len(np.unique(share_pct)) > 1
    found: list[_Line] = []
    for knee in KNEES_PCT if varied else (100.0,):
        need = np.maximum(1.0, knee / share_pct) if varied else np.ones_like(share_pct)
        line = _solve(terms(need), measured_ms)
        found.append(_Line(line.weights, knee, line.error_pct))
    return min(found, key=lambda line: line.error_pct)


def _solve(terms: Floats, measured: Floats) -> _Line:
    """Non-negative weights that keep relative errors small; refused where too little was measured."""
    if len(np.unique(terms, axis=0)) < SAMPLES_MIN:
        raise InputError(f"a phase needs at least {SAMPLES_MIN} different measurements")
    trust = np.ones(len(measured))
    weights = np.zeros(terms.shape[1])
    for _ in range(ROUNDS):
        scaled = terms / measured[:, None] * trust[:, None]
        norms = np.linalg.norm(scaled, axis=0)
        norms[norms == 0] = 1.0
        weights = nnls(scaled / norms, trust)[0] / norms
        errors = np.abs(terms @ weights / measured - 1.0)
        trust = np.sqrt(1.0 / np.maximum(1.0, errors / max(2.0 * float(np.median(errors)), _ERROR_FLOOR)))
    return _Line(weights, 100.0, _error_pct(terms @ weights, measured))


def _error_pct(told: Floats, measured: Floats) -> float:
    return float(np.mean(np.abs(told / measured - 1.0)) * 100.0)
