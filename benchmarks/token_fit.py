"""Step costs of LLM replicas from measurements: of single steps, or of what clients saw.

Owns the two fits behind the costs of steps: every cost is a coefficient that cannot be negative, found by robust least
squares on logarithms, so that large errors (a run out of memory, a cold start) count little; the share's knees are
tried one after the other. It refuses fewer than three different measurements of a phase.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from solvers.domain.arrays import Floats
from solvers.errors import InputError
from solvers.models.serving.tokens import StepCosts

KNEES_PCT = (30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0)
COMPANY = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
"""Parts of the other running requests whose prompts may stand before one's own."""
LOSS_SCALE = 0.05
"""Relative errors beyond this count by their size, no longer by its square."""
NOTHING = 15.0
"""A weight so many powers of e below its start counts as zero."""
SAMPLES_MIN = 3


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
    # Two lengths of prompts tell nothing about waiting unless the number of running requests varies as well.
    able = [company for company in COMPANY if _different(_first_terms(seen, company)) >= SAMPLES_MIN]
    lines = [_solve(_first_terms(seen, company), seen.first_token_ms) for company in able or COMPANY[:1]]
    first = min(lines, key=lambda line: line.error_pct)
    gamma, delta, square = (float(weight) for weight in first.weights)
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


def _different(terms: Floats) -> int:
    return len(np.unique(terms, axis=0))


def _first_terms(seen: ServedSamples, company: float) -> Floats:
    """Prompts that each wait for this part of the others that run; `token_latency` adds such waiting by itself."""
    waiting = 1.0 + company * (seen.sequences - 1.0)
    return np.stack([np.ones_like(waiting), seen.in_tokens * waiting, seen.in_tokens**2 * waiting], axis=1)


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
    if _different(terms) < SAMPLES_MIN:
        raise InputError(f"a phase needs at least {SAMPLES_MIN} different measurements")
    # Logarithms of ratios treat twice and half alike, and the loss keeps a broken run from mattering more than it may.
    told = np.flatnonzero((terms > 0).any(axis=0))
    terms_told = terms[:, told]
    scale = np.array([np.median(measured[column > 0] / column[column > 0]) for column in terms_told.T])

    def off(logs: Floats) -> Floats:
        return np.asarray(np.log(terms_told @ np.exp(logs)) - np.log(measured))

    def slope(logs: Floats) -> Floats:
        parts = terms_told * np.exp(logs)
        return np.asarray(parts / parts.sum(axis=1, keepdims=True))

    start = np.log(scale / len(told))
    found = least_squares(
        off, start, jac=slope, loss="soft_l1", f_scale=LOSS_SCALE, bounds=(start - 30.0, start + 10.0)
    )
    weights = np.zeros(terms.shape[1])
    weights[told] = np.where(found.x < start - NOTHING, 0.0, np.exp(found.x))
    return _Line(weights, 100.0, _error_pct(terms @ weights, measured))


def _error_pct(told: Floats, measured: Floats) -> float:
    return float(np.mean(np.abs(told / measured - 1.0)) * 100.0)
