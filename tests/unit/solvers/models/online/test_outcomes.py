"""Who may teach: every reason to turn an outcome away, and values that are far off."""

from __future__ import annotations

import math

import pytest

from solvers.models.online.outcomes import Reference, Verdict, admit, usual_lately
from tests.unit.solvers.models.told import outcome

USUAL = Reference(log_ms=math.log(20.0), spread=0.05)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, Verdict.ADMITTED),
        ({"executions": 7.9}, Verdict.TOO_FEW_EXECUTIONS),
        ({"throttled": True}, Verdict.THROTTLED),
        ({"cold": True}, Verdict.COLD_START),
        ({"failing": True}, Verdict.FAILING),
        ({"dropped_fraction": 0.11}, Verdict.FAILING),
        ({"dropped_fraction": 0.1}, Verdict.ADMITTED),
        ({"device_healthy": False}, Verdict.DEVICE_UNHEALTHY),
        ({"clock_mhz_sm": 1500.0}, Verdict.CLOCK_MISMATCH),
        ({"clock_mhz_sm": 1700.0}, Verdict.CLOCK_MISMATCH),
        ({"clock_mhz_sm": 1575.0}, Verdict.ADMITTED),
        ({"clock_mhz_sm": 1500.0, "clock_mhz_asked": None}, Verdict.ADMITTED),
        ({"sm_count": 10}, Verdict.SHARE_MISMATCH),
        ({"sm_count": 10, "sm_count_asked": 0}, Verdict.ADMITTED),
        ({"beside_training": True}, Verdict.BESIDE_TRAINING),
        ({"executions": 3400.0}, Verdict.IMPLAUSIBLE),
        ({"latency_ms": 24.0}, Verdict.ADMITTED),
        ({"latency_ms": 25.0}, Verdict.OUTLIER),
        ({"latency_ms": 15.0}, Verdict.OUTLIER),
        ({"throttled": True, "cold": True, "device_healthy": False}, Verdict.DEVICE_UNHEALTHY),
    ],
)
def test_every_reason(changes: dict[str, object], verdict: Verdict) -> None:
    assert admit(outcome(**changes), USUAL) is verdict


def test_nothing_surprises_where_nothing_is_known() -> None:
    assert admit(outcome(latency_ms=100.0), None) is Verdict.ADMITTED


def test_what_everything_shows_lately_is_no_outlier() -> None:
    far = outcome(latency_ms=30.0)
    shifted = [math.log(1.5) + 0.01 * (index % 5) for index in range(30)]
    assert admit(far, USUAL, shifted) is Verdict.ADMITTED
    assert admit(far, USUAL, [0.0] * 30) is Verdict.OUTLIER
    assert not usual_lately(far, USUAL, shifted[:8])
