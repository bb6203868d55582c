"""OLTunes' formulas against its own tables and worked examples (AC-OLT-01 to 03)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from solvers.domain.workload import QualityClass
from solvers.errors import FieldError, InputError
from solvers.policies.oltunes.scores import (
    Character,
    PowerTerms,
    TaskAffinity,
    WorkloadClass,
    affinity,
    compute_memory_ratio,
    efficiency_tflops_per_w,
    energy_j,
    epc_score,
    is_latency_critical,
    quality_class,
    urgency,
    variant_affinity,
    workload_affinity,
    workload_class,
)

HIGH, LOW = QualityClass.HIGH, QualityClass.LOW
TASK_1 = PowerTerms(
    idle_w=60.0, tdp_w=np.array([300.0, 200.0]), sm_utilisation=0.7, memory_used=0.5, latency_s=np.array([12.0, 19.0])
)
TASK_2 = PowerTerms(
    idle_w=60.0,
    tdp_w=np.array([300.0, 200.0, 200.0]),
    sm_utilisation=0.2,
    memory_used=np.array([8 / 16, 6 / 12, 6 / 12]),
    latency_s=np.array([2.0, 3.8, 3.5]),
)


def test_estimated_power_as_printed() -> None:
    np.testing.assert_allclose(epc_score(TASK_1), [1068.0, 991.0])
    np.testing.assert_allclose(epc_score(TASK_2), [108.0, 113.2, 109.0])
    assert epc_score(TASK_1).argmin() == 1
    assert epc_score(TASK_2).argmin() == 0


def test_energy_would_turn_the_first_choice_around() -> None:
    np.testing.assert_allclose(energy_j(TASK_1), [1728.0, 2071.0])
    np.testing.assert_allclose(energy_j(TASK_2), [168.0, 281.2, 259.0])
    assert energy_j(TASK_1).argmin() != epc_score(TASK_1).argmin()


def test_printed_ratios_recompute() -> None:
    speed_ups = [round(alone / beside, 2) for alone, beside in ((2.3, 2.35), (1.6, 1.45), (1.9, 1.3))]
    assert speed_ups == [0.98, 1.10, 1.46]
    machine, matrix, forest = (0.5681, 0.8772, 0.0012, 0.0634), (1.3358, -0.1873, 0.0046, 0.0628), (
        0.9655, 0.7275, 0.0017, 0.0952,
    )  # fmt: skip
    assert [round(other[2] / machine[2], 1) for other in (matrix, forest)] == [3.8, 1.4]
    assert [round(matrix[3] / machine[3], 2), round(forest[3] / machine[3], 1)] == [0.99, 1.5]
    gains = [round(1 + (machine[1] - other[1]) / abs(other[1]), 2) for other in (matrix, forest)]
    assert gains == [6.68, 1.21]
    assert [round(1 + (other[0] - machine[0]) / other[0], 2) for other in (matrix, forest)] == [1.57, 1.41]
    assert round(100 * (1 - 1 / 6.5), 1) == 84.6


@pytest.mark.parametrize(
    ("tflops", "tdp_w", "expected"), [(19.5, 250.0, 0.0780), (10.3, 165.0, 0.0624), (82.6, 450.0, 0.1836)]
)
def test_efficiency_is_computed_from_the_power_limit(tflops: float, tdp_w: float, expected: float) -> None:
    assert efficiency_tflops_per_w(tflops, tdp_w) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(
    ("compute", "memory", "ratio", "expected"),
    [
        (12, 10, 1.2, WorkloadClass.COMPUTE_INTENSIVE),
        (11, 10, 1.1, WorkloadClass.MEMORY_INTENSIVE),
        (5, 0, 5.0, WorkloadClass.COMPUTE_INTENSIVE),
        (0, 4, 0.25, WorkloadClass.MEMORY_INTENSIVE),
        (0, 0, 1.0, WorkloadClass.MEMORY_INTENSIVE),
    ],
)
def test_workload_class(compute: int, memory: int, ratio: float, expected: WorkloadClass) -> None:
    assert compute_memory_ratio(compute, memory) == pytest.approx(ratio)
    assert workload_class(compute_memory_ratio(compute, memory)) is expected


def test_counts_of_kernels_are_not_negative() -> None:
    with pytest.raises(FieldError):
        compute_memory_ratio(-1, 3)


@pytest.mark.parametrize(("difference", "expected"), [(0.0, 50.0), (0.3, 57.44), (1.6, 83.20), (10.0, 100.0)])
def test_workload_affinity(difference: float, expected: float) -> None:
    assert workload_affinity(0.5, 0.5 + difference) == pytest.approx(expected, abs=0.01)
    assert workload_affinity(0.5 + difference, 0.5) == workload_affinity(0.5, 0.5 + difference)
    assert 50.0 <= workload_affinity(0.5, 0.5 + difference) < 100.0


def pair(quality: QualityClass, other: QualityClass, difference: float) -> TaskAffinity:
    return affinity(Character(ratio=1.0, quality=quality), [Character(ratio=1.0 + difference, quality=other)])


def test_who_is_admitted() -> None:
    assert pair(LOW, LOW, 1.6).total == pytest.approx(66.60, abs=0.005)
    assert pair(LOW, LOW, 2.5).total == pytest.approx(71.21, abs=0.005)
    edge = math.log(9.0)
    assert edge == pytest.approx(2.197, abs=5e-4)
    assert not pair(LOW, LOW, edge - 1e-6).admits()
    assert pair(LOW, LOW, edge + 1e-6).admits()
    assert pair(HIGH, LOW, 0.0).total == 75.0
    for difference in np.linspace(0.0, 12.0, 50):
        assert pair(HIGH, LOW, difference).admits()
        assert not pair(HIGH, HIGH, difference).admits()
    assert pair(HIGH, HIGH, 10.0).total == pytest.approx(50.0, abs=0.01)


def test_a_group_averages() -> None:
    group = [Character(ratio=0.5, quality=HIGH), Character(ratio=0.6, quality=LOW)]
    assert affinity(group[1], group[:1]).total == pytest.approx(76.25, abs=0.005)
    joining = affinity(Character(ratio=3.0, quality=LOW), group)
    assert joining.workload == pytest.approx(92.05, abs=0.005)
    assert joining.variant == 75.0
    assert joining.total == pytest.approx(83.52, abs=0.005)
    assert joining.admits()
    assert not joining.admits(threshold=84.0)
    with pytest.raises(InputError):
        affinity(group[0], [])


def test_variants() -> None:
    assert [variant_affinity(*both) for both in ((HIGH, LOW), (LOW, HIGH), (LOW, LOW), (HIGH, HIGH))] == [
        100.0, 100.0, 50.0, 0.0,
    ]  # fmt: skip


def test_quality_class_of_the_papers_families() -> None:
    resnet, yolo, bert = (20.0, 25.0, 60.2), (2.6, 97.0), (41.0, 110.0)
    assert [quality_class(size, resnet) for size in resnet] == [LOW, LOW, HIGH]
    assert [quality_class(size, yolo) for size in yolo] == [LOW, HIGH]
    assert [quality_class(size, bert) for size in bert] == [LOW, HIGH]
    assert quality_class(1500.0, ()) is HIGH
    assert quality_class(50.0, (100.0,)) is HIGH


def test_weights_of_latency() -> None:
    assert is_latency_critical(0.51)
    assert not is_latency_critical(0.5)
    assert not is_latency_critical(0.0)
    with pytest.raises(InputError):
        is_latency_critical(1.0)
    with pytest.raises(FieldError):
        is_latency_critical(-0.1)


def test_urgency_is_less_where_there_is_more_time() -> None:
    assert urgency(0.2, 0.1) == pytest.approx(2.0)
    assert urgency(0.2, 0.1) < urgency(0.4, 0.1)
