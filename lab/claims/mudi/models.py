"""What Mudi's paper claims of its curves and of interference: fits and ranking on public tables, caps in the truth.

Owns the protocols of AC-MUD-05 (the benchmark of predictors prints the same numbers) and AC-MUD-11. Predictors are as
they are everywhere else: nothing is tuned here. Without the folder of public data AC-MUD-05 cannot be judged and says
so.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from itertools import combinations_with_replacement, product
from pathlib import Path

import numpy as np

from lab.claims.base import Claim, ClaimClass, ClaimEvidence, ClaimStatus, Effort
from lab.measured import igniter_v100, rapp_v100
from lab.measured.known import facts_for
from lab.measured.metrics import order_kept_pct
from lab.measured.pairs import known_alone
from solvers.models.base import GroupSamples
from solvers.models.suite import Suite, make_solo
from solvers.sim.truth.truth import Resident, execution_ms, gpu_truth

SEED = 7
TABLES = {"igniter-v100": igniter_v100.read, "rapp-v100": rapp_v100.read}
FIT_PCT, ORDER_PCT = 5.0, 92.67
FOLDS = 5
PREDICTORS = ("mudi", "headroom")

SERVICES = ("resnet50", "inception_v3", "gpt2", "bert-base", "roberta-base", "yolos")
JOBS = ("vgg16", "squeezenet1_1", "resnet50", "ncf", "lstm-wikitext", "ad-gcl", "bert-base", "yolov5s", "resnet18")
GPU, BATCHES = "a100", (1, 4, 16)
BESIDE_INFERENCE, BESIDE_TRAINING = 3.19, 1.67


# -- AC-MUD-05 --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def fit_errors_pct(data: Path) -> dict[str, tuple[float, int]]:
    """Mean relative error of the fitted curves on the very points of each table, and how many those are."""
    found = {}
    for name, read in TABLES.items():
        samples = read(data)
        fitted = make_solo("mudi", facts_for(samples.queries), SEED).fit(samples)
        off = np.abs(fitted.predict(samples.queries).mean / samples.latency_ms - 1.0)
        found[name] = 100.0 * float(np.nanmean(off)), len(samples)
    return found


@lru_cache(maxsize=4)
def orders_kept_pct(data: Path) -> dict[str, float]:
    """Of choices between two neighbours, in how many the one that slows less was predicted to; five-fold, by predictor.
    Choices are of a replica at one configuration beside two neighbours of equal batch.
    """
    solo, pairs = igniter_v100.read(data), igniter_v100.read_pairs(data)
    pairs, alone_ms = known_alone(solo, pairs)
    slowdown = np.asarray(pairs.latency_ms / alone_ms)
    facts, count = facts_for(solo.queries), int(pairs.groups.group[-1]) + 1
    folds = np.array_split(np.random.default_rng([SEED, 9]).permutation(count), FOLDS)
    kept = {}
    for name in PREDICTORS:
        mean = np.full(len(pairs.groups), np.nan)
        for fold in folds:
            learned = pairs.take_groups(np.setdiff1d(np.arange(count), fold))
            suite = Suite.fresh(name, facts, SEED).fit(solo, learned)
            groups, rows = pairs.groups.take_groups(fold)
            mean[rows] = suite.interference.predict(groups, suite.solo).mean
        kept[name] = order_kept_pct(slowdown, mean, _choices(pairs))
    return kept


def _choices(pairs: GroupSamples) -> list[tuple[int, int]]:
    """Rows of the same replica at the same configuration beside two different neighbours."""
    members = pairs.groups.members
    alike: dict[tuple[float, ...], list[int]] = defaultdict(list)
    for row in range(len(members)):
        other = row ^ 1
        key = (members.model[row], members.batch[row], members.share_pct[row], members.batch[other])
        alike[tuple(float(part) for part in key)].append(row)
    return [(rows[i], rows[j]) for rows in alike.values() for i in range(len(rows)) for j in range(i)]


def _curves(effort: Effort) -> ClaimEvidence:
    data = effort.data or Path("../shared/data")
    if not (data / igniter_v100.FOLDER).is_dir():
        return ClaimEvidence(
            measured="nothing",
            status=ClaimStatus.NOT_REPRODUCED,
            note=f"there is no public data in {data}: set HEADROOM_DATA",
        )
    errors, orders = fit_errors_pct(data), orders_kept_pct(data)
    told = ", ".join(f"{error:.2f} % over {count} points of {name}" for name, (error, count) in errors.items())
    measured = f"mean error {told}; neighbours ranked right in {orders['mudi']:.1f} % of choices"
    fits, ranks = max(error for error, _ in errors.values()) <= FIT_PCT, orders["mudi"] >= ORDER_PCT
    note = (
        "ablation: on the same folds our own belief, which learns how each network presses and suffers, ranks "
        f"{orders['headroom']:.1f} % right, so what was measured does tell; four networks are too few rows for a "
        "regression on layers. Over the shares of the other table, from the smallest on, two lines are not enough"
    )
    return ClaimEvidence(
        measured=measured,
        status=ClaimStatus.PASS if fits and ranks else ClaimStatus.NOT_REPRODUCED,
        note="" if fits and ranks else note,
    )


# -- AC-MUD-11 --------------------------------------------------------------------------------------------------------


def slowdowns(*, training: bool, overlapping: bool) -> dict[tuple[str, ...], float]:
    """The worst factor of each service, over batches, beside one busy service or beside one to three training jobs:
    with shares that fit beside each other, or with the whole GPU each.
    """
    gpu = gpu_truth(GPU)
    assert gpu is not None
    found: dict[tuple[str, ...], float] = {}
    beside = (
        [some for count in (1, 2, 3) for some in combinations_with_replacement(JOBS, count)]
        if training
        else [(name,) for name in SERVICES]
    )
    for name, others, batch in product(SERVICES, beside, BATCHES):
        share = 100 if overlapping else 40
        each = 100 if overlapping else 60 // len(others)
        mine = Resident(model=name, share_pct_sm=share, batch=batch)
        neighbours = [Resident(model=other, share_pct_sm=each, batch=16, training=training) for other in others]
        clock = gpu.clock_mhz_sm_max
        factor = execution_ms(gpu, mine, clock, neighbours) / execution_ms(gpu, mine, clock)
        key = (name, *others)
        found[key] = max(found.get(key, 0.0), factor)
    return found


def _caps(_effort: Effort) -> ClaimEvidence:
    inference, training = (max(slowdowns(training=each, overlapping=False).values()) for each in (False, True))
    free = [max(slowdowns(training=each, overlapping=True).values()) for each in (False, True)]
    measured = (
        f"with shares beside each other: inference by inference {inference:.2f}×, by up to three training jobs "
        f"{training:.2f}×; with the whole GPU each {free[0]:.2f}× and {free[1]:.2f}×"
    )
    kept = inference <= BESIDE_INFERENCE and training < BESIDE_TRAINING
    note = (
        "plans divide a GPU, so the caps are judged for shares that fit; without limits the law fitted to measured "
        "processes without limits exceeds them, as three training jobs then hold most of the GPU"
    )
    return ClaimEvidence(measured=measured, status=ClaimStatus.PASS if kept else ClaimStatus.NOT_REPRODUCED, note=note)


CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="AC-MUD-05",
        kind=ClaimClass.STATISTICAL,
        stated="piecewise fit of public curves: mean error ≤ 5 %; the better of two neighbours known in ≥ 92.67 %",
        judge=_curves,
    ),
    Claim(
        id="AC-MUD-11",
        kind=ClaimClass.STATISTICAL,
        stated="in the truth inference slows inference by at most 3.19×, and training slows it by less than 1.67×",
        judge=_caps,
    ),
)
