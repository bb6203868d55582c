"""InSS' running term at the fixtures of the catalogue (A2), and its tables' errors (AC-INS-01)."""

from __future__ import annotations

import numpy as np
import pytest

from solvers.policies.inss.models import run_ms

# Observed ms, predicted ms, printed error in percent; Table 2 (by batch 1, 4, 8, 16), then Table 3 (by share 6, 24,
# 42, 60 %).
TABLES = (
    (8.690, 8.905, 2.474), (23.285, 23.888, 2.588), (43.422, 43.405, 0.041), (71.456, 71.396, 0.084),
    (2.848, 2.894, 1.620), (5.674, 5.750, 1.327), (8.898, 8.975, 0.868), (10.191, 10.487, 2.909),
    (18.196, 18.207, 0.060), (62.009, 59.984, 3.265), (120.382, 117.064, 2.756), (176.308, 170.879, 3.080),
    (13.686, 13.185, 3.659), (4.241, 4.101, 3.316), (3.468, 3.461, 0.214), (3.409, 3.395, 0.413),
    (43.016, 41.909, 2.574), (11.446, 11.586, 1.228), (7.422, 7.136, 3.861), (5.483, 5.433, 0.910),
    (358.270, 355.554, 0.758), (91.690, 90.465, 1.336), (53.947, 53.071, 1.624), (39.411, 38.279, 2.870),
    (15.515, 16.108, 3.818), (16.170, 16.416, 1.522), (16.958, 16.725, 1.372), (17.516, 17.114, 2.294),
)  # fmt: skip


def test_errors_of_the_tables_recompute() -> None:
    observed, predicted, printed = (np.array(column) for column in zip(*TABLES, strict=True))
    errors = 100.0 * np.abs(predicted - observed) / observed
    assert len(errors) == 28
    assert np.abs(errors - printed).max() <= 0.02
    assert round(float(errors.max()), 3) == 3.853
    assert round(float(errors.mean()), 3) == 1.886


def test_the_running_term_of_the_fixtures() -> None:
    assert run_ms(np.array([20.0]), np.array([0.6]), np.array([0.12 + 0.10])) == pytest.approx([22.64])
