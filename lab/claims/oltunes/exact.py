"""OLTunes' printed numbers, recomputed: estimated power, tables of speed-ups and predictors, affinities.

Owns the fixtures of AC-OLT-01 to 03 and what the paper printed of them. It refuses a tolerance beyond the digits that
were printed, and calls what the paper got wrong by its name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from lab.claims.base import Claim, ClaimClass, ClaimEvidence, Effort, found
from solvers.domain.workload import QualityClass
from solvers.policies.oltunes.scores import AFFINITY_MIN, Character, PowerTerms, affinity, epc_score

EXACT = 1e-9
IDLE_W = 60.0
POWERS: Mapping[str, tuple[float, float, float, float, float]] = {
    "task 1 on A": (300.0, 0.7, 8 / 16, 12.0, 1068.0),
    "task 1 on B": (200.0, 0.7, 6 / 12, 19.0, 991.0),
    "task 2 on A": (300.0, 0.2, 8 / 16, 2.0, 108.0),
    "task 2 on B": (200.0, 0.2, 6 / 12, 3.8, 113.2),
    "task 2 on B, 3.5 s": (200.0, 0.2, 6 / 12, 3.5, 109.0),
}
"""TDP in W, SM utilisation, part of the memory, latency in s, and the printed EPC."""

KERNELS_MS = {"conv beside conv": (2.3, 2.35, 0.98), "token beside token": (1.6, 1.45, 1.10)} | {
    "conv beside token": (1.9, 1.3, 1.46)
}
"""One after the other, side by side, and the printed speed-up."""
OURS = {"rmse": 0.5681, "r2": 0.8772, "latency_s": 0.0012, "training_s": 0.0634}
MF = {"rmse": 1.3358, "r2": -0.1873, "latency_s": 0.0046, "training_s": 0.0628}
RFR = {"rmse": 0.9655, "r2": 0.7275, "latency_s": 0.0017, "training_s": 0.0952}
"""The paper's table of predictors."""
POWER_RATIO, POWER_SAVED_PCT = 6.5, 84.6

HIGH, LOW = QualityClass.HIGH, QualityClass.LOW
LEAST_APART = math.log(9.0)
"""Two low variants meet the threshold of 70 from this difference of ratios on."""


def judge_01(_effort: Effort) -> ClaimEvidence:
    """Every EPC of the worked example, and the GPU it chooses."""
    seen = {name: _epc(case[:4]) for name, case in POWERS.items()}
    wrong = [f"{name}: {seen[name]:.6g}" for name, case in POWERS.items() if abs(seen[name] - case[4]) > EXACT]
    for task, wanted in (("task 1", "B"), ("task 2", "A")):
        on = {device: seen[f"{task} on {device}"] for device in "AB"}
        if min(on, key=lambda device: on[device]) != wanted:
            wrong.append(f"{task} goes elsewhere than to {wanted}")
    if seen["task 2 on B, 3.5 s"] <= seen["task 2 on A"]:
        wrong.append("3.5 s turn the choice of task 2 around")
    return found(", ".join(f"{name} {value:.6g}" for name, value in seen.items()), wrong)


def _epc(terms: tuple[float, ...]) -> float:
    tdp_w, sm_utilisation, memory_used, latency_s = terms
    return float(
        epc_score(
            PowerTerms(
                idle_w=IDLE_W,
                tdp_w=tdp_w,
                sm_utilisation=sm_utilisation,
                memory_used=memory_used,
                latency_s=latency_s,
            )
        )
    )


def judge_02(_effort: Effort) -> ClaimEvidence:
    """Speed-ups of kernels side by side; the ratios that the paper draws from its table of predictors."""
    drawn = {name: (alone / beside, printed, 2) for name, (alone, beside, printed) in KERNELS_MS.items()}
    drawn |= {
        "prediction, MF": (MF["latency_s"] / OURS["latency_s"], 3.8, 1),
        "prediction, RFR": (RFR["latency_s"] / OURS["latency_s"], 1.4, 1),
        "training, MF": (MF["training_s"] / OURS["training_s"], 0.99, 2),
        "training, RFR": (RFR["training_s"] / OURS["training_s"], 1.5, 1),
        "R² over MF": (1.0 + (OURS["r2"] - MF["r2"]) / abs(MF["r2"]), 6.68, 2),
        "R² over RFR": (OURS["r2"] / RFR["r2"], 1.21, 2),
        "power saved, %": (100.0 * (1.0 - 1.0 / POWER_RATIO), POWER_SAVED_PCT, 1),
    }
    wrong = [
        f"{name}: {value:.4f}, printed {printed}"
        for name, (value, printed, digits) in drawn.items()
        if round(value, digits) != printed
    ]
    return found(", ".join(f"{name} {value:.{digits}f}" for name, (value, _, digits) in drawn.items()), wrong)


def judge_03(effort: Effort) -> ClaimEvidence:
    """Fixtures of affinity, and who may join a group of one at any difference of ratios."""
    alike, apart = (_affinity(LOW, LOW, delta) for delta in (0.0, 1.6))
    wrong = [] if abs(alike[0] - 50.0) <= EXACT else [f"no difference gives {alike[0]:.4f}"]
    wrong += [] if round(apart[0], 1) == 83.2 else [f"1.6 apart gives {apart[0]:.4f}"]
    rng = np.random.default_rng(3)
    border = (LEAST_APART - 1e-9, LEAST_APART + 1e-9, 0.0, 10.0)
    differences = [*border, *rng.uniform(0.0, 30.0, 5 * effort.examples).tolist()]
    for delta in differences:
        total = {pair: _affinity(*pair, delta)[1] for pair in ((LOW, LOW), (HIGH, LOW), (HIGH, HIGH))}
        if (total[(LOW, LOW)] >= AFFINITY_MIN) is not (delta >= LEAST_APART):
            wrong.append(f"two low ones {delta:.4f} apart: {total[(LOW, LOW)]:.4f}")
        if total[(HIGH, LOW)] < AFFINITY_MIN or total[(HIGH, HIGH)] >= AFFINITY_MIN:
            wrong.append(f"{delta:.4f} apart: high and low {total[(HIGH, LOW)]:.2f}, high {total[(HIGH, HIGH)]:.2f}")
    group = [Character(ratio=0.5, quality=HIGH), Character(ratio=0.6, quality=LOW)]
    three = affinity(Character(ratio=3.0, quality=LOW), group).total
    wrong += [] if round(three, 2) == 83.52 else [f"the group of three: {three:.4f}"]
    told = f"difference 0 gives {alike[0]:.2f}, 1.6 gives {apart[0]:.2f}; a third task's total {three:.2f}"
    return found(f"{told}; {len(differences)} differences tried, two low ones from {LEAST_APART:.3f} on", wrong)


def _affinity(one: QualityClass, other: QualityClass, delta: float) -> tuple[float, float]:
    """Of the workloads alone, and in all."""
    got = affinity(Character(ratio=1.0 + delta, quality=one), [Character(ratio=1.0, quality=other)])
    return got.workload, got.total


CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="AC-OLT-01",
        kind=ClaimClass.EXACT,
        stated="EPC 1068, 991, 108, 113.2 (109.0 at 3.5 s); task 1 goes to B and task 2 to A",
        judge=judge_01,
    ),
    Claim(
        id="AC-OLT-02",
        kind=ClaimClass.EXACT,
        stated="speed-ups 0.98, 1.10, 1.46; ratios of predictors 3.8, 1.4, 0.99, 1.5, 6.68, 1.21; 84.6 % power saved",
        judge=judge_02,
    ),
    Claim(
        id="AC-OLT-03",
        kind=ClaimClass.EXACT,
        stated="affinity 50 at no difference, 83.2 at 1.6; two low ones from 2.197 on, high and low always, high never",
        judge=judge_03,
    ),
)
