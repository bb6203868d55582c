"""Predictors are judged by tables of measurements, where there are any."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lab.claims import predictors
from lab.claims.catalogue import claims
from lab.claims.claim import ClaimStatus, Effort, Judge, judged
from lab.claims.predictors import PairErrors
from solvers.models.base import Queries, Samples


def test_without_the_table_it_says_which_folder_is_missing(tmp_path: Path) -> None:
    (told,) = judged(claims(["AC-OLT-05"]), Effort(data=tmp_path), lambda _: None)
    assert told["status"] == "fail"
    assert "set HEADROOM_DATA to the folder that holds rapp-v100/" in told["note"]


@pytest.mark.parametrize("judge", [predictors.pairs_predicted, predictors.curves_fit])
def test_without_pairs_it_says_so(judge: Judge, tmp_path: Path) -> None:
    told = judge(Effort(data=tmp_path))
    assert (told.measured, told.status) == ("nothing", ClaimStatus.NOT_REPRODUCED)
    assert f"there is no public data in {tmp_path}: set HEADROOM_DATA" in told.note


@pytest.mark.parametrize(
    ("ours", "blind", "met"), [(3.9, 4.0, True), (4.1, 8.3, True), (4.1, 8.1, False), (9.0, 10.0, False)]
)
def test_below_four_percent_or_half_of_blindness(ours: float, blind: float, *, met: bool) -> None:
    assert PairErrors(by_name={"inss": ours, "inss-ni": blind}, members=7).met is met


def test_inss_is_judged_by_the_runs_that_its_planner_makes() -> None:
    """Of each network its own: the second was tried with fewer batches, and both with one at the widest share alone."""
    tried = [("a", 1.0, 100.0), ("b", 1.0, 100.0)]
    tried += [("a", float(batch), share) for batch in range(1, 33) for share in (20.0, 40.0, 50.0, 60.0, 80.0)]
    tried += [("b", float(batch), share) for batch in (1, 2, 4, 8, 16) for share in (20.0, 40.0, 60.0, 80.0)]
    names, batches, shares = zip(*tried, strict=True)
    queries = Queries.of(list(names), "v100", np.array(batches), np.array(shares))
    rows = predictors._planned(Samples.of(queries, np.ones(len(queries))))
    planned = {name: [tried[row][1:] for row in rows if tried[row][0] == name] for name in "ab"}
    assert {batch for batch, _ in planned["a"]} == {1.0, 3.0, 10.0, 32.0}
    assert {batch for batch, _ in planned["b"]} == {1.0, 2.0, 8.0, 16.0}
    assert all({share for _, share in some} == {20.0, 40.0, 60.0, 80.0} for some in planned.values())
    assert [len(some) for some in planned.values()] == [16, 16]


@pytest.fixture
def little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of six networks that obey a law, and protocols of its size."""
    rng = np.random.default_rng(5)
    lines = ["model,batch,sm_pct,quota_pct,latency_ms"]
    for model in range(6):
        for batch in (1, 2, 4, 8):
            for share in range(10, 101, 15):
                latency_ms = (2.0 + model) * (1.0 + 0.6 * batch) * (0.3 + 70.0 / share) * rng.uniform(0.98, 1.02)
                lines.append(f"resnet{model},{batch},{share},100,{latency_ms:.4f}")
    (tmp_path / "rapp-v100").mkdir()
    (tmp_path / "rapp-v100" / "latency.csv").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.setattr(predictors, "LEARNED", 120)
    monkeypatch.setattr(predictors, "SHUFFLES", 2)
    monkeypatch.setattr(predictors, "STEPS", (20, 120))
    monkeypatch.setattr(predictors, "ENOUGH", 120)
    return tmp_path


def test_predictors_are_judged_by_what_they_answer(little: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = predictors.errors_learned(Effort(data=little))
    assert found.measured.count("fm-ftrl RMSE") == 2
    taught = predictors.learning(little)
    ours, forest = (taught.scores(name, 120, logarithmic=True) for name in ("fm-ftrl", "rf"))
    assert 0.8 < ours[1] <= 1.0
    assert ours[0] != forest[0]
    monkeypatch.setattr(predictors, "FM_FTRL", "rf")
    monkeypatch.setattr(predictors, "RIVALS", ("fm-ftrl", "mf"))
    turned = predictors.errors_learned(Effort(data=little))
    assert turned.status is ClaimStatus.NOT_REPRODUCED
    assert "not on" in turned.note


def test_samples_are_counted_until_half_is_explained(little: Path) -> None:
    taught = predictors.learning(little)
    for scale, logarithmic in predictors.SCALES.items():
        reached = taught.reached("fm-ftrl", logarithmic=logarithmic)
        assert reached is not None
        assert taught.scores("fm-ftrl", reached, logarithmic=logarithmic)[1] >= 0.5
        assert f"fm-ftrl: {reached}" in predictors.fewest_of_three(taught, scale).measured
    assert "seen once" in predictors.samples_needed(Effort(data=little)).note


def test_times_are_told(little: Path) -> None:
    found = predictors.prediction_times(Effort(data=little))
    assert "480 configurations" in found.measured
