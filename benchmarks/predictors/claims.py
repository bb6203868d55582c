"""The acceptance claims about predictors that need public measurements: what was stated, what is measured here.

Owns the protocol of AC-INS-05; that of AC-MUD-05 is `app.arena.claims.mudi_models`, those of AC-OLT-05 to 07 are
`app.arena.claims.oltunes_predictors`. Each gives rows of text: the claim, the measured numbers and whether it is met.
It refuses to decide anything by hand.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from app.arena.claims import mudi_models, oltunes_predictors
from app.arena.measured.known import facts_for
from benchmarks.predictors.alone import SEED
from benchmarks.predictors.datasets import DATASETS, Groupings, groupings
from benchmarks.predictors.splits import group_count
from solvers.models.base import Floats, Samples
from solvers.models.suite import Suite

Claim = dict[str, str]
SOLO_POINTS, PAIR_POINTS = 16, 5
_BY_NAME = {dataset.name: dataset for dataset in DATASETS}


def _yes(met: bool) -> str:
    return "met" if met else "not met"


def oltunes(data: Path) -> dict[str, Claim]:
    """FM-FTRL against matrix factorisation and random forest on the V100 table of 60 models."""
    taught = oltunes_predictors.learning(data)
    found = {}
    for scale in oltunes_predictors.SCALES:
        best = oltunes_predictors.best_of_three(taught, scale)
        found[f"AC-OLT-05 ({scale})"] = {
            "stated": f"{oltunes_predictors.LEARNED} samples, standardised: RMSE and R² better than MF and RF; "
            "stretch: RMSE ≤ 0.43 × MF, ≤ 0.59 × RF, R² ≥ 0.877",
            "measured": best.measured,
            "verdict": f"{_yes(best.met)}; stretch {_yes(best.stretch)}",
        }
        fewest = oltunes_predictors.fewest_of_three(taught, scale)
        found[f"AC-OLT-06 ({scale})"] = {
            "stated": f"R² ≥ 0.5 on standardised {scale} with ≤ 500 samples, and with fewer than MF and RF",
            "measured": fewest.measured,
            "verdict": _yes(fewest.met),
        }
    quick = oltunes_predictors.prediction_time(taught)
    return found | {
        "AC-OLT-07": {
            "stated": "one prediction ≤ 1.2 ms, all candidate configurations of a task ≤ 20 ms",
            "measured": quick.measured,
            "verdict": _yes(quick.met),
        }
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
    found = {
        f"AC-MUD-05 fit ({name})": {
            "stated": "piecewise fit on public latency over share: mean error ≤ 5 %",
            "measured": f"{error_pct:.2f} % over {count} points",
            "verdict": _yes(error_pct <= mudi_models.FIT_PCT),
        }
        for name, (error_pct, count) in mudi_models.fit_errors_pct(data).items()
    }
    kept = mudi_models.orders_kept_pct(data)
    text = ", ".join(f"{name} {value:.1f} %" for name, value in kept.items())
    order = {
        "stated": f"ranks devices correctly in ≥ {mudi_models.ORDER_PCT} % of placements",
        "measured": f"{text} of choices between two neighbours of equal batch and share, five-fold",
        "verdict": _yes(kept["mudi"] >= mudi_models.ORDER_PCT),
    }
    return found | {"AC-MUD-05 order": order}


def all_claims(data: Path) -> dict[str, Claim]:
    """Every claim; one that fails says why."""
    found: dict[str, Claim] = {}
    for title, protocol in (("AC-OLT-05 to 07", oltunes), ("AC-INS-05", inss), ("AC-MUD-05", mudi)):
        try:
            found |= protocol(data)
        except Exception as error:  # noqa: BLE001 - a predictor that is not there fails its claim
            found[title] = {"stated": "", "measured": f"failed: {type(error).__name__}: {error}", "verdict": "not met"}
    return found
