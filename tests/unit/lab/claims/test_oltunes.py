"""OLTunes' printed numbers hold; its predictors are judged by a table of measurements, where there is one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lab.claims.base import Claim, ClaimStatus, Effort
from lab.claims.oltunes import exact, predictors
from lab.claims.registry import Judged, judged

PREDICTORS = {claim.id: claim for claim in predictors.CLAIMS}


@pytest.mark.parametrize("claim", exact.CLAIMS, ids=lambda claim: claim.id)
def test_printed_numbers_hold(claim: Claim) -> None:
    found = claim.judge(Effort(examples=20))
    assert found.status is ClaimStatus.PASS, found.note


def test_a_misprint_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "POWERS", {**exact.POWERS, "task 2 on A": (300.0, 0.2, 0.5, 3.0, 108.0)})
    found = exact.judge_01(Effort())
    assert found.status is ClaimStatus.FAIL
    assert "task 2 on A: 132" in found.note
    assert "task 2 goes elsewhere than to A" in found.note


def test_another_threshold_of_affinity_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "AFFINITY_MIN", 76.0)
    found = exact.judge_03(Effort(examples=1))
    assert found.status is ClaimStatus.FAIL
    assert "high and low 75.00" in found.note


def test_without_the_table_it_says_which_folder_is_missing(tmp_path: Path) -> None:
    told: list[Judged] = []
    judged([PREDICTORS["AC-OLT-05"]], Effort(data=tmp_path), told.append)
    assert told[0]["status"] == "fail"
    assert "set HEADROOM_DATA to the folder that holds rapp-v100/" in told[0]["note"]


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
    found = PREDICTORS["AC-OLT-05"].judge(Effort(data=little))
    assert found.measured.count("fm-ftrl RMSE") == 2
    taught = predictors.learning(little)
    ours, forest = (taught.scores(name, 120, logarithmic=True) for name in ("fm-ftrl", "rf"))
    assert 0.8 < ours[1] <= 1.0
    assert ours[0] != forest[0]
    monkeypatch.setattr(predictors, "OURS", "rf")
    monkeypatch.setattr(predictors, "RIVALS", ("fm-ftrl", "mf"))
    turned = PREDICTORS["AC-OLT-05"].judge(Effort(data=little))
    assert turned.status is ClaimStatus.NOT_REPRODUCED
    assert "not on" in turned.note


def test_samples_are_counted_until_half_is_explained(little: Path) -> None:
    taught = predictors.learning(little)
    for scale, logarithmic in predictors.SCALES.items():
        reached = taught.reached("fm-ftrl", logarithmic=logarithmic)
        assert reached is not None
        assert taught.scores("fm-ftrl", reached, logarithmic=logarithmic)[1] >= 0.5
        assert f"fm-ftrl: {reached}" in predictors.fewest_of_three(taught, scale).measured
    assert "seen once" in PREDICTORS["AC-OLT-06"].judge(Effort(data=little)).note


def test_times_are_told(little: Path) -> None:
    found = PREDICTORS["AC-OLT-07"].judge(Effort(data=little))
    assert "480 configurations" in found.measured
