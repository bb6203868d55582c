"""The acceptance claims about predictors that need public measurements: what was stated, what is measured here.

Owns the protocols of AC-OLT-05, -06, -07, AC-INS-05 and AC-MUD-05. Each gives rows of text: the claim, the measured
numbers and whether it is met. It refuses to decide anything by hand.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from app.arena.measured.known import facts_for
from app.arena.measured.metrics import order_kept_pct, r_squared
from benchmarks.predictors.alone import SEED
from benchmarks.predictors.datasets import DATASETS, Groupings, groupings
from benchmarks.predictors.speed import seconds_of
from benchmarks.predictors.splits import group_count
from solvers.models.base import Facts, Floats, Queries, Samples
from solvers.models.suite import Suite, make_solo

Claim = dict[str, str]
LEARNED = 1400
SHUFFLES = 5
STEPS = (50, 100, 200, 300, 400, 500, 700, 1000, 1400)
RIVALS = ("fm-ftrl", "mf", "rf")
SOLO_POINTS, PAIR_POINTS = 16, 5
_BY_NAME = {dataset.name: dataset for dataset in DATASETS}


def _standardised(train: Floats, *columns: Floats) -> list[Floats]:
    return [(column - train.mean()) / train.std() for column in columns]


def _yes(met: bool) -> str:
    return "met" if met else "not met"


class _Learning:
    """RMSE and R² of the three predictors of the paper on a shuffled table, by number of samples learned. Medians over
    several shuffles, because a single row of a huge model at a tiny share can decide either on the plain scale.
    """

    def __init__(self, samples: Samples, facts: Facts) -> None:
        self.facts = facts
        orders = [np.random.default_rng([SEED, 6, shuffle]).permutation(len(samples)) for shuffle in range(SHUFFLES)]
        self.parts = [(samples.take(order[:LEARNED]), samples.take(order[LEARNED:])) for order in orders]

    def scores(self, name: str, count: int, *, logarithmic: bool) -> tuple[float, float]:
        """RMSE and R² on standardised latency (or its logarithm) after `count` samples."""
        found = [self._of_shuffle(name, count, part, logarithmic=logarithmic) for part in range(SHUFFLES)]
        return float(np.median([rmse for rmse, _ in found])), float(np.median([r2 for _, r2 in found]))

    def _of_shuffle(self, name: str, count: int, part: int, *, logarithmic: bool) -> tuple[float, float]:
        learned, test = self.parts[part]
        mean = make_solo(name, self.facts, SEED).fit(learned.take(np.arange(count))).predict(test.queries).mean
        mean = np.where(np.isfinite(mean), mean, float(np.median(learned.latency_ms)))
        columns = [learned.latency_ms, test.latency_ms, np.maximum(mean, 1e-6)]
        if logarithmic:
            columns = [np.log(column) for column in columns]
        truth, guess = _standardised(*columns)
        return float(np.sqrt(np.mean((truth - guess) ** 2))), r_squared(truth, guess)


def oltunes(data: Path) -> dict[str, Claim]:
    """FM-FTRL against matrix factorisation and random forest on the V100 table of 60 models."""
    dataset = _BY_NAME["rapp-v100"]
    samples = dataset.read(data)
    learning = _Learning(samples, facts_for(samples.queries))
    found = {}
    for scale, logarithmic in (("latency", False), ("log latency", True)):
        score = {name: learning.scores(name, LEARNED, logarithmic=logarithmic) for name in RIVALS}
        text = ", ".join(f"{name} RMSE {score[name][0]:.3f} R² {score[name][1]:.3f}" for name in RIVALS)
        best = all(score["fm-ftrl"][0] < score[name][0] and score["fm-ftrl"][1] > score[name][1] for name in RIVALS[1:])
        stretch = (
            score["fm-ftrl"][0] <= 0.43 * score["mf"][0]
            and score["fm-ftrl"][0] <= 0.59 * score["rf"][0]
            and score["fm-ftrl"][1] >= 0.877
        )
        found[f"AC-OLT-05 ({scale})"] = {
            "stated": f"{LEARNED} samples, standardised: RMSE and R² better than MF and RF; stretch: RMSE ≤ 0.43 × MF, "
            "≤ 0.59 × RF, R² ≥ 0.877",
            "measured": text,
            "verdict": f"{_yes(best)}; stretch {_yes(stretch)}",
        }
        found[f"AC-OLT-06 ({scale})"] = _fewest(learning, scale, logarithmic=logarithmic)
    return found | {"AC-OLT-07": _prediction_time(learning)}


def _fewest(learning: _Learning, scale: str, *, logarithmic: bool) -> Claim:
    reached = {name: _reached(learning, name, logarithmic=logarithmic) for name in RIVALS}
    needed, others = reached["fm-ftrl"], [reached[name] or np.inf for name in RIVALS[1:]]
    return {
        "stated": f"R² ≥ 0.5 on standardised {scale} with ≤ 500 samples, and with fewer than MF and RF",
        "measured": ", ".join(f"{name}: {count or f'not with {LEARNED}'}" for name, count in reached.items()),
        "verdict": _yes(needed is not None and needed <= 500 and min(others) > needed),
    }


def _reached(learning: _Learning, name: str, *, logarithmic: bool) -> int | None:
    for count in STEPS:
        if learning.scores(name, count, logarithmic=logarithmic)[1] >= 0.5:
            return count
    return None


def _prediction_time(learning: _Learning) -> Claim:
    learned, test = learning.parts[0]
    model = make_solo("fm-ftrl", learning.facts, SEED).fit(learned)
    one = test.queries.take(np.arange(1))
    name, gpu_type = one.models[one.model[0]], one.gpu_types[0]
    batches, shares = np.meshgrid([1.0, 2, 4, 8, 16, 32, 64, 128], np.arange(5.0, 101.0, 5.0))
    all_of_one = Queries.of(name, gpu_type, np.tile(batches.ravel(), 3), np.tile(shares.ravel(), 3))
    single_ms = 1000.0 * seconds_of(lambda: model.predict(one), 200)
    all_ms = 1000.0 * seconds_of(lambda: model.predict(all_of_one), 50)
    return {
        "stated": "one prediction ≤ 1.2 ms, all candidate configurations of a task ≤ 20 ms",
        "measured": f"one {single_ms:.3f} ms, {len(all_of_one)} configurations {all_ms:.2f} ms",
        "verdict": _yes(single_ms <= 1.2 and all_ms <= 20.0),
    }


def inss(data: Path) -> dict[str, Claim]:
    """16 samples of each model alone and 5 of each beside another, everything else of iGniter's table held out."""
    whole = groupings(_BY_NAME["igniter-v100"], data, 10_000)
    assert whole is not None
    facts = facts_for(whole.solo.queries)
    solo, numbers = _profiled(whole)
    rest = np.setdiff1d(np.arange(group_count(whole.samples.groups)), numbers)
    train, test = whole.samples.take_groups(numbers), whole.samples.take_groups(rest)
    error = {}
    for name in ("inss", "inss-ni", "headroom"):
        mean = Suite.fresh(name, facts, SEED).fit(solo, train).predict_groups(test.groups).mean
        error[name] = 100.0 * float(np.nanmean(np.abs(mean / test.latency_ms - 1.0)))
    met = error["inss"] < 4.0 or error["inss"] <= 0.5 * error["inss-ni"]
    return {
        "AC-INS-05": {
            "stated": "16 solo and 5 co-location samples a model: error < 4 % on held-out pairs, or half of InSS-ni's",
            "measured": ", ".join(f"{name} {value:.2f} %" for name, value in error.items())
            + f" on {len(test.latency_ms)} held-out members",
            "verdict": _yes(met),
        }
    }


def _profiled(whole: Groupings) -> tuple[Samples, Floats]:
    queries = whole.solo.queries
    grid = np.isin(queries.batch, [1, 4, 8, 16]) & np.isin(queries.share_pct, [20, 40, 60, 80])
    rng = np.random.default_rng([SEED, 8])
    chosen: set[int] = set()
    groups = whole.samples.groups
    for index in range(len(groups.members.models)):
        numbers = np.unique(groups.group[groups.members.model == index])
        chosen |= set(rng.permutation(numbers)[:PAIR_POINTS].tolist())
    return whole.solo.take(grid), np.array(sorted(chosen))


def mudi(data: Path) -> dict[str, Claim]:
    """Piecewise fits of latency over share, and whether the less harmful of two neighbours is recognised."""
    found = {}
    for name in ("igniter-v100", "rapp-v100"):
        samples = _BY_NAME[name].read(data)
        fitted = make_solo("mudi", facts_for(samples.queries), SEED).fit(samples)
        off = np.abs(fitted.predict(samples.queries).mean / samples.latency_ms - 1.0)
        error_pct = 100.0 * float(np.nanmean(off))
        found[f"AC-MUD-05 fit ({name})"] = {
            "stated": "piecewise fit on public latency over share: mean error ≤ 5 %",
            "measured": f"{error_pct:.2f} % over {len(samples)} points",
            "verdict": _yes(error_pct <= 5.0),
        }
    return found | {"AC-MUD-05 order": _order(data)}


def _order(data: Path) -> Claim:
    whole = groupings(_BY_NAME["igniter-v100"], data, 10_000)
    assert whole is not None
    facts, count = facts_for(whole.solo.queries), group_count(whole.samples.groups)
    folds = np.array_split(np.random.default_rng([SEED, 9]).permutation(count), 5)
    kept = {}
    for name in ("mudi", "headroom"):
        mean = np.full(len(whole.samples.groups), np.nan)
        for fold in folds:
            suite = Suite.fresh(name, facts, SEED).fit(
                whole.solo, whole.samples.take_groups(np.setdiff1d(np.arange(count), fold))
            )
            groups, rows = whole.samples.groups.take_groups(fold)
            mean[rows] = suite.interference.predict(groups, suite.solo).mean
        kept[name] = order_kept_pct(whole.slowdown, mean, _choices(whole))
    text = ", ".join(f"{name} {value:.1f} %" for name, value in kept.items())
    return {
        "stated": "ranks devices correctly in ≥ 92.67 % of placements",
        "measured": f"{text} of choices between two neighbours of equal batch and share, five-fold",
        "verdict": _yes(kept["mudi"] >= 92.67),
    }


def _choices(whole: Groupings) -> list[tuple[int, int]]:
    """Rows of the same replica at the same configuration beside two different neighbours."""
    members = whole.samples.groups.members
    alike: dict[tuple[float, ...], list[int]] = defaultdict(list)
    for row in range(len(members)):
        other = row ^ 1
        key = (members.model[row], members.batch[row], members.share_pct[row], members.batch[other])
        alike[tuple(float(part) for part in key)].append(row)
    return [(rows[i], rows[j]) for rows in alike.values() for i in range(len(rows)) for j in range(i)]


def all_claims(data: Path) -> dict[str, Claim]:
    """Every claim; one that fails says why."""
    found: dict[str, Claim] = {}
    for title, protocol in (("AC-OLT-05 to 07", oltunes), ("AC-INS-05", inss), ("AC-MUD-05", mudi)):
        try:
            found |= protocol(data)
        except Exception as error:  # noqa: BLE001 - a predictor that is not there fails its claim
            found[title] = {"stated": "", "measured": f"failed: {type(error).__name__}: {error}", "verdict": "not met"}
    return found
