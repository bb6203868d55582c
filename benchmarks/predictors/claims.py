"""The acceptance claims about predictors that need public measurements: what was stated, what is measured here.

Owns the rows of text: the claim, the measured numbers and whether it is met. The protocols are those of the claims:
`lab.claims`. It refuses to decide anything by hand.
"""

from __future__ import annotations

from pathlib import Path

from lab.claims import predictors

Claim = dict[str, str]


def _yes(met: bool) -> str:
    return "met" if met else "not met"


def oltunes(data: Path) -> dict[str, Claim]:
    """FM-FTRL against matrix factorisation and random forest on the V100 table of 60 models."""
    taught = predictors.learning(data)
    found = {}
    for scale in predictors.SCALES:
        best = predictors.best_of_three(taught, scale)
        found[f"AC-OLT-05 ({scale})"] = {
            "stated": f"{predictors.LEARNED} samples, standardised: RMSE and R² better than MF and RF; "
            "stretch: RMSE ≤ 0.43 × MF, ≤ 0.59 × RF, R² ≥ 0.877",
            "measured": best.measured,
            "verdict": f"{_yes(best.met)}; stretch {_yes(best.stretch)}",
        }
        fewest = predictors.fewest_of_three(taught, scale)
        found[f"AC-OLT-06 ({scale})"] = {
            "stated": f"R² ≥ 0.5 on standardised {scale} with ≤ 500 samples, and with fewer than MF and RF",
            "measured": fewest.measured,
            "verdict": _yes(fewest.met),
        }
    quick = predictors.prediction_time(taught)
    return found | {
        "AC-OLT-07": {
            "stated": "one prediction ≤ 1.2 ms, all candidate configurations of a task ≤ 20 ms",
            "measured": quick.measured,
            "verdict": _yes(quick.met),
        }
    }


def inss(data: Path) -> dict[str, Claim]:
    """16 samples of each model alone and 5 of each beside another, everything else of iGniter's table held out."""
    seen = predictors.pair_errors(data)
    return {
        "AC-INS-05": {
            "stated": "16 solo and 5 co-location samples a model: error < 4 % on held-out pairs, or half of InSS-ni's",
            "measured": seen.told,
            "verdict": _yes(seen.met),
        }
    }


def mudi(data: Path) -> dict[str, Claim]:
    """Piecewise fits of latency over share, and whether the less harmful of two neighbours is recognised."""
    found = {
        f"AC-MUD-05 fit ({name})": {
            "stated": "piecewise fit on public latency over share: mean error ≤ 5 %",
            "measured": f"{error_pct:.2f} % over {count} points",
            "verdict": _yes(error_pct <= predictors.FIT_PCT),
        }
        for name, (error_pct, count) in predictors.fit_errors_pct(data).items()
    }
    kept = predictors.orders_kept_pct(data)
    text = ", ".join(f"{name} {value:.1f} %" for name, value in kept.items())
    order = {
        "stated": f"ranks devices correctly in ≥ {predictors.ORDER_PCT} % of placements",
        "measured": f"{text} of choices between two neighbours of equal batch and share, five-fold",
        "verdict": _yes(kept["mudi"] >= predictors.ORDER_PCT),
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
