"""Constants that the five papers print, or that their tables were measured with: whoever changes one says so here."""

from __future__ import annotations

import pytest

from solvers.control.records import GovernorSettings
from solvers.domain.workload import AntiAffinity
from solvers.policies.hetsev.deciding import HetsevParameters
from solvers.policies.inss.models import CACHE, PRIOR_ROWS
from solvers.policies.inss.placing import InssParameters, LeftoverShare, Placing
from solvers.policies.morak.cutting import GAIN_PART_MIN, SHARE_PCT_STEP, MorakParameters
from solvers.policies.mudi.curves import MudiParameters, Rounding
from solvers.policies.oltunes.parameters import OltunesParameters
from solvers.policies.oltunes.scores import GPU_TYPES_KEPT, IDLE_W, LATENCY_CRITICAL_ABOVE, PER_GPU_TYPE_KEPT

PRINTED = {
    "hetsev": (
        HetsevParameters(),
        {
            "saturation": 0.8,
            "target_saturation": 0.8,
            "rate_window_s": 120.0,
            "sustained_s": 30.0,
            "cooldown_s": 300.0,
            "risk_per_s": 0.05,
            "rates_remembered": 10,
            "queues": 4,
            "anti_affinity": AntiAffinity.HARD,
            "allow_substitution": False,
        },
    ),
    "inss": (
        InssParameters(),
        {"batch_max": 32, "placing": Placing.KNAPSACK, "leftover": LeftoverShare.DISTRIBUTE},
    ),
    "morak": (
        MorakParameters(),
        {"knee_gain_part": 0.1, "clock_mhz_start": 600, "copies_per_device": 4},
    ),
    "morak's controller": (
        GovernorSettings(),
        {
            "power_low_part": 0.95,
            "latency_low_part": 0.9,
            "clock_mhz_start": 600,
            "clock_step_mhz": 90,
            "batch_step_part": 0.1,
            "bad_periods_max": 3,
            "share_pct_sm_step": 5,
        },
    ),
    "mudi": (
        MudiParameters(),
        {
            "jobs_per_device": 3,
            "iterations": 25,
            "gain_least": 0.01,
            "delta": 0.1,
            "window_part": 1.0,
            "rounding": Rounding.CEIL,
        },
    ),
    "oltunes": (
        OltunesParameters(),
        {
            "theta": 0.25,
            "rho_lc": 0.7,
            "window_ms_first": 100.0,
            "window_ms_min": 50.0,
            "window_ms_max": 1000.0,
            "window_ms_step": 10.0,
            "group_max": 4,
            "threshold_affinity": 70.0,
            "idle_w": 60.0,
        },
    ),
}


@pytest.mark.parametrize("system", PRINTED)
def test_parameters_begin_as_printed(system: str) -> None:
    parameters, printed = PRINTED[system]
    assert {name: getattr(parameters, name) for name in printed} == printed


def test_constants_are_as_printed() -> None:
    assert (SHARE_PCT_STEP, GAIN_PART_MIN) == (10, 0.1)
    assert (CACHE, PRIOR_ROWS) == (0.3, 5.0)
    assert (GPU_TYPES_KEPT, PER_GPU_TYPE_KEPT, IDLE_W, LATENCY_CRITICAL_ABOVE) == (2, 3, 60.0, 0.5)
