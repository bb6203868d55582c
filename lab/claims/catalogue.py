"""Every claim of the five papers: its number, its class, who judges it, what is stated, and what came of it last.

`headroom arena claims` and the tests run the same judges. No run here can speak for hardware: a claim that only a GPU
can settle (class G) is judged by recordings of one, or told as not reproduced, with what to run on a GPU host
(docs/reference/hardware.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from lab.claims import hardware, predictors
from lab.claims.claim import Claim, ClaimClass, ClaimEvidence, ClaimStatus, Effort, Judge, figure
from lab.claims.hetsev import rules as hetsev
from lab.claims.hetsev import worlds as hetsev_worlds
from lab.claims.inss import rules as inss
from lab.claims.inss import worlds as inss_worlds
from lab.claims.morak import rules as morak
from lab.claims.mudi import rules as mudi
from lab.claims.mudi import worlds as mudi_worlds
from lab.claims.oltunes import rules as oltunes
from lab.claims.oltunes import worlds as oltunes_worlds
from solvers.errors import InputError

PASS, NOT_REPRODUCED = ClaimStatus.PASS, ClaimStatus.NOT_REPRODUCED


def _exact(name: str, judge: Judge, stated: str) -> Claim:
    """A figure that is recomputed."""
    return Claim(id=name, kind=ClaimClass.EXACT, stated=stated, judge=judge, quick=True)


def _property(name: str, judge: Judge, stated: str) -> Claim:
    """A rule that is tried on random cases."""
    return Claim(id=name, kind=ClaimClass.PROPERTY, stated=stated, judge=judge, quick=True)


def _figure(name: str, judge: Judge, outcome: ClaimStatus, stated: str, *, quick: bool = False) -> Claim:
    """A figure of an evaluation."""
    return Claim(id=name, kind=ClaimClass.STATISTICAL, stated=stated, judge=judge, outcome=outcome, quick=quick)


def _recorded(
    name: str, judge: Callable[[Path], ClaimEvidence], outcome: ClaimStatus, steps: str, stated: str
) -> Claim:
    """What a GPU told."""
    made = hardware.recorded(judge, steps)
    return Claim(id=name, kind=ClaimClass.HARDWARE, stated=stated, judge=made, outcome=outcome, quick=True)


def _hardware(name: str, steps: str, stated: str) -> Claim:
    """What only a GPU can tell and none has, with the steps of `make test-gpu` that bear on it."""

    def judge(_effort: Effort) -> ClaimEvidence:
        told = f"needs a GPU; what bears on it there: `make test-gpu`, steps {steps}"
        return figure("not run", reached=False, note=told)

    return Claim(id=name, kind=ClaimClass.HARDWARE, stated=stated, judge=judge, outcome=NOT_REPRODUCED, quick=True)


# fmt: off
CLAIMS: tuple[Claim, ...] = (
    _exact("AC-HET-01", hetsev.programmes,
        "worked programmes and plain answers to the digit; never dearer than the plain rule on 1000 random ones, "
        "equal to trying everything on small ones"),
    _exact("AC-HET-02", hetsev.bills,
        "3 GB for 600 s: V100 343.8, T4 43.2; whole GPU: V100 3667.2, T4 230.4; worked queue weight 18"),
    _property("AC-HET-03", hetsev.plans_keep_rules,
        "no plan breaks a rule, no GPU holds a model twice, none shrinks within the cool-down, at most one action in "
        "an hour of constant load"),
    _property("AC-HET-04", hetsev.queues_are_served,
        "placement ends with everybody placed or pending; every queue is served in a bounded number of rounds"),
    _figure("AC-HET-05", hetsev_worlds.tenants, PASS,
        "90 % of 160 pairs slow down by less than 18 %, identical pairs more on average; three replicas "
        "on a GPU give 1.85x ± 10 % the throughput of one", quick=True),
    _figure("AC-HET-06", hetsev_worlds.in_spike, NOT_REPRODUCED,
        "production load against the Kubernetes autoscaler: peak throughput ≥ 2.21x, cluster utilisation ≥ 2.56x, "
        "response time in the spike ≤ 1/2.3"),
    _figure("AC-HET-07", hetsev_worlds.before_spike, PASS,
        "before the spike: throughput within 5 % of the Kubernetes autoscaler's"),
    _figure("AC-HET-08", hetsev_worlds.fluctuating, PASS,
        "fluctuating load, at most 18 instances: violating requests ≤ 1.12 %, mean of windows of 5 s < 4 %"),
    _figure("AC-HET-09", hetsev_worlds.costs, PASS,
        "four models, SLO kept by both: cost ≥ 1.79x lower on average, ≥ 2.15x for the best model, by the paper's "
        "accounting"),
    _recorded("AC-HET-10", hardware.identical_slower, NOT_REPRODUCED, "beside",
        "identical models slow each other down more than different ones, on a real GPU"),
    _exact("AC-INS-01", inss.printed_errors,
        "28 printed errors recomputed within 0.02 points, the highest 3.853 %"),
    _exact("AC-INS-02", inss.worked_examples,
        "Eq. 2, traces of the search for batches in at most 6 probes, the knapsack toy at 1150"),
    _property("AC-INS-03", inss.batches_and_shares,
        "batches keep memory, limit and rate, and are the scan's where latency rises; shares fit, one unit each"),
    _property("AC-INS-04", inss.hand_overs,
        "new share: no task lost, both processes only where memory holds both, the old goes once the new is up"),
    _figure("AC-INS-05", predictors.pairs_predicted, PASS,
        "16 runs alone and 5 in company a network: error < 4 % on the rest, or at most half of InSS-ni's"),
    _figure("AC-INS-06", inss_worlds.capacity_gained, NOT_REPRODUCED,
        "six networks, four GPUs: capacity 28.1 / 47.7 / 189.7 % above Gpulet / GSLICE / iGniter"),
    _figure("AC-INS-07", inss_worlds.violations, PASS,
        "in the same runs violations below 1 %, every baseline's higher"),
    _figure("AC-INS-08", inss_worlds.gpulet_with_our_batches, NOT_REPRODUCED,
        "Gpulet with InSS' batches: capacity 11 % above Gpulet, violations within a point"),
    _figure("AC-INS-09", inss_worlds.blind_to_neighbours, NOT_REPRODUCED,
        "InSS-ni: capacity within 5 % of InSS, violations higher"),
    _figure("AC-INS-10", inss_worlds.heavy_load, NOT_REPRODUCED,
        "eight networks: on four GPUs what Gpulet and GSLICE carry on five and six, on five more than all; below 1 %"),
    _figure("AC-INS-11", inss_worlds.trainings, NOT_REPRODUCED,
        "training reaches 95 % of its final reward by 800 of 1,500 episodes; the actor earns 95 % of the bound"),
    _figure("AC-INS-12", inss_worlds.decision_times, PASS,
        "decisions on CPU: batches of 8 models in 10 ms, the actor in 20 ms, the programme in 1 s (4 GPUs)"),
    _recorded("AC-INS-13", hardware.at_most_a_fifth, NOT_REPRODUCED, "beside",
        "sharing a real GPU by disjoint shares costs at most 20 % of latency, predicted within 4 %"),
    _exact("AC-MOR-01", morak.triples,
        "GoogLeNet four times on quarters: +16.25 % throughput, -8.33 % latency, +2.6 % power; within 1 %"),
    _exact("AC-MOR-02", morak.knees,
        "knees at 20, 30, 30 % for MobileNet, GoogLeNet, ResNet-101"),
    _property("AC-MOR-03", morak.controller_keeps_rules,
        "total table; one clock change a period at most; re-partition at the third bad period; supported clocks"),
    _property("AC-MOR-04", morak.settles,
        "from batch 1 and 600 MHz steady inside both limits; within 20 periods again after a step"),
    _figure("AC-MOR-05", morak.throughput, NOT_REPRODUCED,
        "150 W, 100 ms, 4 models: throughput +130.9, +110.3, +67.7, +70.5 % over the four baselines"),
    _figure("AC-MOR-06", morak.limits_kept, PASS,
        "110-200 W, 50-300 ms: both limits in at least 99 % of periods; baselines break one somewhere"),
    _figure("AC-MOR-07", morak.energy, NOT_REPRODUCED,
        "150 W, 300 ms: energy per request at least 22.2 % below the best baseline, 50.2 % for one model"),
    _hardware("AC-MOR-08", "clocks, power, grid",
        "clock lock accepted and visible; peak power falls with the clock; latency falls with share to a knee"),
    _exact("AC-MUD-01", mudi.shares,
        "least shares of the fixture; the convex programme equals the closed form within 1e-4 on 1,000 curves"),
    _exact("AC-MUD-02", mudi.bound,
        "bound 1.10 for a worst case of 2.364 and 1.08 for 2.091 at 92.67 %; fractions add to 102 %"),
    _property("AC-MUD-03", mudi.plans_keep_rules,
        "at most 3 jobs a device; shares within 100 %; one percent less share breaks a binding limit"),
    _property("AC-MUD-04", mudi.memory_suffices,
        "no device is ever out of memory while the host has room"),
    _figure("AC-MUD-05", predictors.curves_fit, NOT_REPRODUCED,
        "piecewise fit of public curves: mean error ≤ 5 %; the better of two neighbours known in ≥ 92.67 %"),
    _figure("AC-MUD-06", mudi_worlds.violations, PASS,
        "12 GPUs: at most 0.5 % late, six times fewer than the worst baseline; 1,000 GPUs: at most 1.2 %"),
    _figure("AC-MUD-07", mudi_worlds.completion, NOT_REPRODUCED,
        "training completes up to 2.27 times sooner, and on average no later than under any baseline"),
    _figure("AC-MUD-08", mudi_worlds.optimality, PASS,
        "on at most six GPUs violations within 5.86 % and training within 5 % of the optimum"),
    _figure("AC-MUD-09", mudi_worlds.utilisation, NOT_REPRODUCED,
        "SM utilisation 37 % and memory 19 % over the baselines' mean; up to 103 % more load is borne"),
    _figure("AC-MUD-10", mudi_worlds.overhead, PASS,
        "at most 25 batches tried; a job is placed within 18 ms on 12 and within 30 ms on 1,000 GPUs"),
    _figure("AC-MUD-11", mudi.interference_is_capped, PASS,
        "in the truth inference slows inference by at most 3.19×, and training slows it by less than "
        "1.67×", quick=True),
    _recorded("AC-MUD-12", hardware.hand_over_loses_none, PASS, "surface, and tests.gpu.whole",
        "a shadow hand-over loses no request; a changed share shows in latency"),
    _exact("AC-OLT-01", oltunes.estimated_power,
        "EPC 1068, 991, 108, 113.2 (109.0 at 3.5 s); task 1 goes to B and task 2 to A"),
    _exact("AC-OLT-02", oltunes.printed_ratios,
        "speed-ups 0.98, 1.10, 1.46; ratios of predictors 3.8, 1.4, 0.99, 1.5, 6.68, 1.21; 84.6 % power saved"),
    _exact("AC-OLT-03", oltunes.affinities,
        "affinity 50 at no difference, 83.2 at 1.6; two low ones from 2.197 on, high and low always, high never"),
    _property("AC-OLT-04", oltunes.scheduler_keeps_rules,
        "window in 50 to 1000 ms, 10 ms per tick, smaller iff LC share > 0.7 or a group failed; groups of 4 at most "
        "within free memory; no task lost or twice"),
    _figure("AC-OLT-05", predictors.errors_learned, PASS,
        "after 1400 samples RMSE and R² of FM-FTRL better than of MF and RFR"),
    _figure("AC-OLT-06", predictors.samples_needed, PASS,
        "FM-FTRL reaches R² 0.5 with at most 500 samples, and with fewer than MF and RFR"),
    _figure("AC-OLT-07", predictors.prediction_times, PASS,
        "one prediction in 1.2 ms, all configurations of a task in 20 ms, on a CPU"),
    _figure("AC-OLT-08", oltunes_worlds.latency_and_throughput, NOT_REPRODUCED,
        "mean of three patterns: latency 29.5 % lower, throughput 29 % higher than Orion and MLaaS"),
    _figure("AC-OLT-09", oltunes_worlds.best_scenario, NOT_REPRODUCED,
        "best scenario: p99 49 % lower, violations 92 % fewer, throughput 61 % higher than the worse"),
    _figure("AC-OLT-10", oltunes_worlds.utilisation, NOT_REPRODUCED,
        "utilisation 58 % above the lower baseline; spread over GPUs below 10 points in bursts"),
    _figure("AC-OLT-11", oltunes_worlds.power, NOT_REPRODUCED,
        "estimated power of MLaaS 6.5x and of Orion 3x ours"),
    _figure("AC-OLT-12", oltunes_worlds.accuracy, PASS,
        "accuracy loss at most 4 points with mixed variants"),
    _figure("AC-OLT-13", oltunes_worlds.uniform_pattern, NOT_REPRODUCED,
        "uniform pattern: p99 within 1.12x, throughput within 0.04 %"),
    _hardware("AC-OLT-14", "beside",
        "kernels of unlike classes (compute beside memory) gain more side by side than compute beside compute"),
)
# fmt: on


def claims(only: Sequence[str] = ()) -> tuple[Claim, ...]:
    """Claims by id, only those whose id begins so where beginnings are given. Raises InputError where none is left."""
    chosen = tuple(claim for claim in CLAIMS if not only or claim.id.startswith(tuple(only)))
    if not chosen:
        known = ", ".join(claim.id for claim in CLAIMS)
        raise InputError(f"no claim begins with {', '.join(only)}; known are {known}")
    return chosen
