"""What papers state of their predictors, on public measurements: OLTunes' FM-FTRL, InSS' latency model, Mudi's curves.

Predictors have the settings that they have everywhere else: nothing is tuned here. The benchmark of predictors prints
the same numbers. Without the folder of public data nothing can be judged.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from lab.claims.claim import ClaimEvidence, Effort, figure, timed
from lab.measured import IGNITER, RAPP, facts_for, known_alone, read_igniter, read_igniter_pairs, read_rapp
from solvers.domain.arrays import Floats, Whole
from solvers.models.base import Facts, GroupSamples, Queries, Samples
from solvers.models.suite import Suite, make_solo
from solvers.policies.inss.models import profiling_plan

SEED = 7

# -- OLTunes, AC-OLT-05 to 07: samples of the table of 60 models on a V100. Predictions are made once and read on both
# scales, latency and its logarithm: the paper does not say on which it was judged, and a claim is kept only where both
# keep it.

LEARNED = 1400
SHUFFLES = 5
STEPS = (50, 100, 200, 300, 400, 500, 700, 1000, 1400)
ENOUGH = 500
FM_FTRL, RIVALS = "fm-ftrl", ("mf", "rf")
ALL = (FM_FTRL, *RIVALS)
ONE_BY_ONE = "one by one"
"""FM-FTRL that is taught sample after sample, one step each and nothing twice."""
SCALES = {"latency": False, "log latency": True}
R2_LEAST, R2_STRETCH = 0.5, 0.877
BY_MF, BY_RF = 0.43, 0.59
ONE_MS, ALL_MS, REPEATS = 1.2, 20.0, 50
TASK_BATCHES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
MEMORIES = 3
"""Sizes of memory that every batch and share of a task is asked for with."""

Score = tuple[float, float]
"""RMSE and R² on the standardised scale."""


class LearningCurves:
    """The three predictors on a shuffled table, by number of samples learned. Medians over several shuffles, because a
    single row of a huge model at a tiny share can decide either measure on the plain scale.
    """

    def __init__(self, samples: Samples, facts: Facts) -> None:
        self.facts = facts
        orders = [np.random.default_rng([SEED, 6, shuffle]).permutation(len(samples)) for shuffle in range(SHUFFLES)]
        self.parts = [(samples.take(order[:LEARNED]), samples.take(order[LEARNED:])) for order in orders]
        self._answered: dict[tuple[str, int, int], Floats] = {}

    def scores(self, name: str, count: int, *, logarithmic: bool) -> Score:
        each = [self._score(name, count, part, logarithmic=logarithmic) for part in range(SHUFFLES)]
        return float(np.median([rmse for rmse, _ in each])), float(np.median([r2 for _, r2 in each]))

    def reached(self, name: str, *, logarithmic: bool) -> int | None:
        """The fewest samples of `STEPS` after which R² is 0.5; None if none of them suffices."""
        good = (count for count in STEPS if self.scores(name, count, logarithmic=logarithmic)[1] >= R2_LEAST)
        return next(good, None)

    def _score(self, name: str, count: int, part: int, *, logarithmic: bool) -> Score:
        learned, test = self.parts[part]
        columns = [learned.latency_ms, test.latency_ms, self._answer(name, count, part)]
        if logarithmic:
            columns = [np.log(column) for column in columns]
        truth, guess = ((column - columns[0].mean()) / columns[0].std() for column in columns[1:])
        return float(np.sqrt(np.mean((truth - guess) ** 2))), r_squared(truth, guess)

    def _answer(self, name: str, count: int, part: int) -> Floats:
        key = (name, count, part)
        if key not in self._answered:
            learned, test = self.parts[part]
            first = learned.take(np.arange(count))
            if name == ONE_BY_ONE:
                model = make_solo(FM_FTRL, self.facts, SEED).update(first)
            else:
                model = make_solo(name, self.facts, SEED).fit(first)
            mean = model.predict(test.queries).mean
            known = np.where(np.isfinite(mean), mean, float(np.median(learned.latency_ms)))
            self._answered[key] = np.maximum(known, 1e-6)
        return self._answered[key]


@lru_cache(maxsize=1)
def learning(data: Path) -> LearningCurves:
    """The table in this folder. Raises InputError that names the folder where it is missing."""
    samples = read_rapp(data)
    return LearningCurves(samples, facts_for(samples.queries))


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorVerdict:
    """What was seen on one scale, and whether it was enough."""

    measured: str
    met: bool
    stretch: bool = False


def best_of_three(taught: LearningCurves, scale: str) -> PredictorVerdict:
    """AC-OLT-05: errors after 1,400 samples."""
    score = {name: taught.scores(name, LEARNED, logarithmic=SCALES[scale]) for name in ALL}
    (rmse, r2), mf, rf = score[FM_FTRL], score["mf"], score["rf"]
    return PredictorVerdict(
        measured=", ".join(f"{name} RMSE {score[name][0]:.3f} R² {score[name][1]:.3f}" for name in ALL),
        met=rmse < min(mf[0], rf[0]) and r2 > max(mf[1], rf[1]),
        stretch=rmse <= BY_MF * mf[0] and rmse <= BY_RF * rf[0] and r2 >= R2_STRETCH,
    )


def fewest_of_three(taught: LearningCurves, scale: str) -> PredictorVerdict:
    """AC-OLT-06: how many samples each needs."""
    reached = {name: taught.reached(name, logarithmic=SCALES[scale]) for name in ALL}
    needed, others = reached[FM_FTRL], [reached[name] or np.inf for name in RIVALS]
    return PredictorVerdict(
        measured=", ".join(f"{name}: {count or f'not with {LEARNED}'}" for name, count in reached.items()),
        met=needed is not None and needed <= ENOUGH and min(others) > needed,
    )


def prediction_time(taught: LearningCurves) -> PredictorVerdict:
    """AC-OLT-07: one configuration, and all of a task at once; medians of processor time."""
    learned, test = taught.parts[0]
    model = make_solo(FM_FTRL, taught.facts, SEED).fit(learned)
    one = test.queries.take(np.arange(1))
    name, gpu_type = one.models[one.model[0]], one.gpu_types[0]
    batches, shares = np.meshgrid(np.array(TASK_BATCHES), np.arange(5.0, 101.0, 5.0))
    whole = Queries.of(name, gpu_type, np.tile(batches.ravel(), MEMORIES), np.tile(shares.ravel(), MEMORIES))
    one_ms, all_ms = (
        statistics.median(timed(partial(model.predict, asked))[0] for _ in range(REPEATS)) for asked in (one, whole)
    )
    return PredictorVerdict(
        measured=f"one {one_ms:.3f} ms, {len(whole)} configurations {all_ms:.2f} ms",
        met=one_ms <= ONE_MS and all_ms <= ALL_MS,
    )


def errors_learned(effort: Effort) -> ClaimEvidence:
    """On both scales; the paper's margin is told beside."""
    verdicts = {scale: best_of_three(learning(effort.data), scale) for scale in SCALES}
    stretch = ", ".join(f"{scale} {'reached' if verdicts[scale].stretch else 'missed'}" for scale in SCALES)
    return _evidence(verdicts, f"the paper's margin (0.43 x MF, 0.59 x RFR, R² 0.877): {stretch}")


def samples_needed(effort: Effort) -> ClaimEvidence:
    """On both scales, by fits to the first samples; what a single pass of steps reaches is told beside."""
    taught = learning(effort.data)
    online = ", ".join(
        f"{scale} {taught.scores(ONE_BY_ONE, ENOUGH, logarithmic=log)[1]:.3f}" for scale, log in SCALES.items()
    )
    told = f"R² of single steps, each of {ENOUGH} samples seen once: {online}"
    return _evidence({scale: fewest_of_three(taught, scale) for scale in SCALES}, told)


def prediction_times(effort: Effort) -> ClaimEvidence:
    """On this machine."""
    return _evidence({"this machine": prediction_time(learning(effort.data))}, "")


def _evidence(verdicts: dict[str, PredictorVerdict], note: str) -> ClaimEvidence:
    missed = [where for where, verdict in verdicts.items() if not verdict.met]
    told = [f"not on {', '.join(missed)}"] if missed else []
    return figure(
        "; ".join(f"{where}: {verdict.measured}" for where, verdict in verdicts.items()),
        reached=not missed,
        note="; ".join([*told, *([note] if note else [])]),
    )


def r_squared(truth: Floats, mean: Floats) -> float:
    """1 less the squared errors over those of always predicting the mean of `truth`; NaN where truth never differs."""
    spread = float(np.sum((truth - truth.mean()) ** 2)) if len(truth) else 0.0
    return 1.0 - float(np.sum((truth - mean) ** 2)) / spread if spread > 0 else float("nan")


def order_kept_pct(truth: Floats, mean: Floats, pairs: list[tuple[int, int]]) -> float:
    """How many of the given pairs of rows are predicted in the order they were measured in."""
    kept = [(truth[one] < truth[two]) == (mean[one] < mean[two]) for one, two in pairs]
    return 100.0 * float(np.mean(kept)) if kept else float("nan")


# -- InSS, AC-INS-05: sixteen runs of a network alone, five beside others, the rest of iGniter's table held out.

PAIRS = 5
"""Of each network."""
ERROR_PCT, PART_OF_NI = 4.0, 0.5
INSS, BLIND, BELIEF = "inss", "inss-ni", "headroom"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairErrors:
    """Mean relative errors on held-out members of pairs, in percent, by predictor."""

    by_name: dict[str, float]
    members: int

    @property
    def met(self) -> bool:
        """Below the paper's figure, or where the table is noisier, well below what blindness to neighbours costs."""
        ours = self.by_name[INSS]
        return ours < ERROR_PCT or ours <= PART_OF_NI * self.by_name[BLIND]

    @property
    def told(self) -> str:
        each = ", ".join(f"{name} {error:.2f} %" for name, error in self.by_name.items())
        return f"{each} on {self.members} held-out members"


@lru_cache(maxsize=4)
def pair_errors(data: Path, *, sixteen: bool = True) -> PairErrors:
    """Of all predictors. Without `sixteen`, everything that was measured alone is known to them."""
    solo = read_igniter(data)
    pairs, _ = known_alone(solo, read_igniter_pairs(data))
    facts, count = facts_for(solo.queries), int(pairs.groups.group[-1]) + 1
    numbers = _profiled(pairs)
    train = pairs.take_groups(numbers)
    test = pairs.take_groups(np.setdiff1d(np.arange(count), numbers))
    known = solo.take(_planned(solo)) if sixteen else solo
    found = {}
    for name in (INSS, BLIND, BELIEF):
        mean = Suite.fresh(name, facts, SEED).fit(known, train).predict_groups(test.groups).mean
        found[name] = 100.0 * float(np.nanmean(np.abs(mean / test.latency_ms - 1.0)))
    return PairErrors(by_name=found, members=len(test.latency_ms))


def _planned(solo: Samples) -> Whole:
    """Rows that InSS' planner measures of each network alone."""
    asked, found = solo.queries, list[Whole]()
    for index in range(len(asked.models)):
        rows = np.flatnonzero(asked.model == index)
        shares, row = np.unique(asked.share_pct[rows], return_inverse=True)
        batches, column = np.unique(asked.batch[rows], return_inverse=True)
        measured = np.zeros((len(shares), len(batches)), dtype=np.bool_)
        measured[row, column] = True
        found.append(rows[profiling_plan(measured, shares, batches)[row, column]])
    return np.concatenate(found)


def _profiled(pairs: GroupSamples) -> Whole:
    """Numbers of the pairs that are measured: so many of each network, by chance."""
    rng = np.random.default_rng([SEED, 8])
    chosen: set[int] = set()
    groups = pairs.groups
    for index in range(len(groups.members.models)):
        numbers = np.unique(groups.group[groups.members.model == index])
        chosen |= set(rng.permutation(numbers)[:PAIRS].tolist())
    return np.array(sorted(chosen), dtype=np.int64)


def pairs_predicted(effort: Effort) -> ClaimEvidence:
    """On iGniter's table; where it is missed, with everything measured alone known."""
    if not (effort.data / IGNITER).is_dir():
        return _without(effort.data)
    seen = pair_errors(effort.data)

    def why() -> str:
        known = pair_errors(effort.data, sixteen=False).by_name
        return (
            f"ablation: with all {len(read_igniter(effort.data))} points alone instead of sixteen a network: "
            f"{', '.join(f'{name} {error:.2f} %' for name, error in known.items())}; sixteen points are too few for a "
            "regression between them here, five pairs suffice"
        )

    return figure(seen.told, reached=seen.met, why=why)


def _without(data: Path) -> ClaimEvidence:
    return figure("nothing", reached=False, note=f"there is no public data in {data}: set HEADROOM_DATA")


# -- Mudi, AC-MUD-05

TABLES = {IGNITER: read_igniter, RAPP: read_rapp}
FIT_PCT, ORDER_PCT = 5.0, 92.67
FOLDS = 5
ORDERING = ("mudi", "headroom")


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
    solo, pairs = read_igniter(data), read_igniter_pairs(data)
    pairs, alone_ms = known_alone(solo, pairs)
    slowdown = np.asarray(pairs.latency_ms / alone_ms)
    facts, count = facts_for(solo.queries), int(pairs.groups.group[-1]) + 1
    folds = np.array_split(np.random.default_rng([SEED, 9]).permutation(count), FOLDS)
    kept = {}
    for name in ORDERING:
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


def curves_fit(effort: Effort) -> ClaimEvidence:
    """Fits and ranking."""
    if not (effort.data / IGNITER).is_dir():
        return _without(effort.data)
    errors, orders = fit_errors_pct(effort.data), orders_kept_pct(effort.data)
    told = ", ".join(f"{error:.2f} % over {count} points of {name}" for name, (error, count) in errors.items())
    return figure(
        f"mean error {told}; neighbours ranked right in {orders['mudi']:.1f} % of choices",
        reached=max(error for error, _ in errors.values()) <= FIT_PCT and orders["mudi"] >= ORDER_PCT,
        why=lambda: (
            "ablation: on the same folds our own belief, which learns how each network presses and suffers, ranks "
            f"{orders['headroom']:.1f} % right, so what was measured does tell; four networks are too few rows for a "
            "regression on layers. Over the shares of the other table, from the smallest on, two lines are not enough"
        ),
    )
