"""OLTunes' formulas against its own tables and worked examples (AC-OLT-01 to 03)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from solvers.domain.workload import QualityClass
from solvers.errors import FieldError, InputError
from solvers.policies.oltunes.parameters import OltunesParameters
from solvers.policies.oltunes.scores import (
    Character,
    PowerTerms,
    Record,
    TaskAffinity,
    affinity,
    better,
    epc_score,
    is_latency_critical,
    patient_first,
    run_ms,
    urgency,
    variant_affinity,
    welcome,
    workload_affinity,
    worth_a_slice,
)

HIGH, LOW = QualityClass.HIGH, QualityClass.LOW
AFFINITY_MIN = OltunesParameters().threshold_affinity
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
    assert not pair(LOW, LOW, edge - 1e-6).total >= AFFINITY_MIN
    assert pair(LOW, LOW, edge + 1e-6).total >= AFFINITY_MIN
    assert pair(HIGH, LOW, 0.0).total == 75.0
    for difference in np.linspace(0.0, 12.0, 50):
        assert pair(HIGH, LOW, difference).total >= AFFINITY_MIN
        assert not pair(HIGH, HIGH, difference).total >= AFFINITY_MIN
    assert pair(HIGH, HIGH, 10.0).total == pytest.approx(50.0, abs=0.01)


def test_a_group_averages() -> None:
    group = [Character(ratio=0.5, quality=HIGH), Character(ratio=0.6, quality=LOW)]
    assert affinity(group[1], group[:1]).total == pytest.approx(76.25, abs=0.005)
    joining = affinity(Character(ratio=3.0, quality=LOW), group)
    assert joining.workload == pytest.approx(92.05, abs=0.005)
    assert joining.variant == 75.0
    assert joining.total == pytest.approx(83.52, abs=0.005)
    assert joining.total >= AFFINITY_MIN
    assert not joining.total >= 84.0
    with pytest.raises(InputError):
        affinity(group[0], [])


def test_variants() -> None:
    assert [variant_affinity(*both) for both in ((HIGH, LOW), (LOW, HIGH), (LOW, LOW), (HIGH, HIGH))] == [
        100.0, 100.0, 50.0, 0.0,
    ]  # fmt: skip


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


def test_a_task_takes_all_its_batches_one_after_the_other() -> None:
    assert run_ms(100.0, np.array([32, 128]), np.array([10.0, 30.0])).tolist() == [40.0, 30.0]


def test_who_is_alike_or_large_beside_large_is_not_welcome() -> None:
    low, other, high = (
        Character(ratio=1.0, quality=LOW),
        Character(ratio=4.0, quality=LOW),
        Character(ratio=1.0, quality=HIGH),
    )
    assert welcome(high, [], AFFINITY_MIN)
    assert welcome(high, [low], AFFINITY_MIN)
    assert welcome(low, [other], AFFINITY_MIN)
    assert not welcome(low, [low], AFFINITY_MIN)
    assert not welcome(high, [high], AFFINITY_MIN)


def test_urgent_tasks_are_tuned_for_time_and_patient_ones_for_throughput_with_larger_batches() -> None:
    now = Record(batch=8, run=10.0, throughput_rps=100.0)
    records = [
        Record(batch=4, run=7.0, throughput_rps=150.0),
        Record(batch=16, run=12.0, throughput_rps=130.0),
        Record(batch=32, run=8.0, throughput_rps=160.0),
        Record(batch=64, run=30.0, throughput_rps=90.0),
    ]
    assert better(now, records, urgent=True) == [0, 2]
    assert better(now, records, urgent=False) == [2, 1]
    assert better(now, records[:1], urgent=True) == []
    assert patient_first([True, False, True, False]) == [1, 3, 0, 2]


def test_a_slice_is_worth_asking_for_where_much_memory_and_half_the_sms_are_left() -> None:
    assert worth_a_slice(50.0, 5000.0, 4000.0)
    assert not worth_a_slice(50.0, 3000.0, 4000.0)
    assert not worth_a_slice(60.0, 5000.0, 4000.0)
    assert not worth_a_slice(50.0, 5000.0, 0.0)
