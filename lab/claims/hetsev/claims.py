"""HetSev's claims, AC-HET-01 to 09, with what the paper states.

Owns the table. How a claim is judged is its judge's: programmes and bills are recomputed, rules tried on random cases,
figures of the evaluation sought in the simulated world.
"""

from __future__ import annotations

from lab.claims.base import Claim, ClaimClass
from lab.claims.hetsev.exact import judge_01, judge_02
from lab.claims.hetsev.rules import judge_03, judge_04
from lab.claims.hetsev.runs import judge_05, judge_06, judge_07, judge_08, judge_09

CLAIMS = (
    Claim(
        id="AC-HET-01",
        kind=ClaimClass.EXACT,
        stated="worked programmes and plain answers to the digit; never dearer than the plain rule on 1000 random "
        "ones, equal to trying everything on small ones",
        judge=judge_01,
    ),
    Claim(
        id="AC-HET-02",
        kind=ClaimClass.EXACT,
        stated="3 GB for 600 s: V100 343.8, T4 43.2; whole GPU: V100 3667.2, T4 230.4; worked queue weight 18",
        judge=judge_02,
    ),
    Claim(
        id="AC-HET-03",
        kind=ClaimClass.PROPERTY,
        stated="no plan breaks a rule, no GPU holds a model twice, none shrinks within the cool-down, at most one "
        "action in an hour of constant load",
        judge=judge_03,
    ),
    Claim(
        id="AC-HET-04",
        kind=ClaimClass.PROPERTY,
        stated="placement ends with everybody placed or pending; every queue is served in a bounded number of rounds",
        judge=judge_04,
    ),
    Claim(
        id="AC-HET-05",
        kind=ClaimClass.STATISTICAL,
        stated="90 % of 160 pairs slow down by less than 18 %, identical pairs more on average; three replicas on a "
        "GPU give 1.85x ± 10 % the throughput of one",
        judge=judge_05,
    ),
    Claim(
        id="AC-HET-06",
        kind=ClaimClass.STATISTICAL,
        stated="production load against the Kubernetes autoscaler: peak throughput ≥ 2.21x, cluster utilisation "
        "≥ 2.56x, response time in the spike ≤ 1/2.3",
        judge=judge_06,
    ),
    Claim(
        id="AC-HET-07",
        kind=ClaimClass.STATISTICAL,
        stated="before the spike: throughput within 5 % of the Kubernetes autoscaler's",
        judge=judge_07,
    ),
    Claim(
        id="AC-HET-08",
        kind=ClaimClass.STATISTICAL,
        stated="fluctuating load, at most 18 instances: violating requests ≤ 1.12 %, mean of windows of 5 s < 4 %",
        judge=judge_08,
    ),
    Claim(
        id="AC-HET-09",
        kind=ClaimClass.STATISTICAL,
        stated="four models, SLO kept by both: cost ≥ 1.79x lower on average, ≥ 2.15x for the best model, by the "
        "paper's accounting",
        judge=judge_09,
    ),
)
