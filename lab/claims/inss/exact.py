"""InSS' printed errors and worked examples, recomputed.

Owns the tables of observed and predicted latencies, the traces of the search for batches and the knapsack toy. It
refuses a tolerance beyond that of rounded inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from lab.claims.base import ClaimEvidence, Effort, found
from solvers.control.bisect import BatchQuestion, bisect_batch, task_latency_ms
from solvers.engines.base import Limits
from solvers.engines.registry import create
from solvers.policies.inss.placing import exact
from solvers.problems.knapsack import Knapsack

POINTS = 0.02
Row = tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]
"""Observed and predicted ms, printed error in percent."""
ROWS: Mapping[str, Row] = {
    "R": ((8.690, 23.285, 43.422, 71.456), (8.905, 23.888, 43.405, 71.396), (2.474, 2.588, 0.041, 0.084)),
    "A & R": ((2.848, 5.674, 8.898, 10.191), (2.894, 5.750, 8.975, 10.487), (1.620, 1.327, 0.868, 2.909)),
    "V & A & R": (
        (18.196, 62.009, 120.382, 176.308),
        (18.207, 59.984, 117.064, 170.879),
        (0.060, 3.265, 2.756, 3.080),
    ),
    "M": ((13.686, 4.241, 3.468, 3.409), (13.185, 4.101, 3.461, 3.395), (3.659, 3.316, 0.214, 0.413)),
    "R1 & M": ((43.016, 11.446, 7.422, 5.483), (41.909, 11.586, 7.136, 5.433), (2.574, 1.228, 3.861, 0.910)),
    "V1 & R1 & M": (
        (358.270, 91.690, 53.947, 39.411),
        (355.554, 90.465, 53.071, 38.279),
        (0.758, 1.336, 1.624, 2.870),
    ),
    "E & M1": ((15.515, 16.170, 16.958, 17.516), (16.108, 16.416, 16.725, 17.114), (3.818, 1.522, 1.372, 2.294)),
}
QUEUES = ((4, 6.0, 400.0, 30.0), (4, 15.0, 400.0, 35.0), (1, 6.0, 100.0, 90.0), (8, 6.0, 400.0, 26.0))
"""W, what runs still needs, rate, latency; batches of 8 that take 20 ms."""
TOY_BEST_RPS = 1150.0


def judge_01(_effort: Effort) -> ClaimEvidence:
    """All 28 errors."""
    errors = {
        f"{name} {at}": (100 * abs(believed - seen) / seen, printed)
        for name, row in ROWS.items()
        for at, (seen, believed, printed) in enumerate(zip(*row, strict=True))
    }
    wrong = [f"{name}: {told:.3f} for {printed}" for name, (told, printed) in errors.items() if _off(told, printed)]
    highest = max(told for told, _ in errors.values())
    wrong += [] if abs(highest - 3.853) < 0.001 else [f"maximum {highest:.3f}"]
    return found(f"{len(errors)} errors, highest {highest:.3f} %", wrong)


def _off(told: float, printed: float) -> bool:
    return abs(told - printed) > POINTS


def judge_02(_effort: Effort) -> ClaimEvidence:
    """Eq. 2, traces, and the knapsack toy by every integer engine."""
    wrong = [
        f"W {queue}: {told:g} instead of {wanted:g} ms"
        for queue, running, rate, wanted in (*QUEUES, (20, 6.0, 400.0, 66.0))
        if abs((told := task_latency_ms(8, queue, running, rate, 20.0)) - wanted) > 1e-9
    ]
    traces = {
        "always": (question(lambda _batch: 10.0), 32),
        "never": (question(lambda _batch: 1000.0), None),
        "to 28, from 20": (question(lambda batch: 10.0 if batch <= 28 else 1000.0, rate_rps=2000.0), 28),
        "to 10, from 20": (question(lambda batch: 10.0 if batch <= 10 else 1000.0, rate_rps=2000.0), None),
    }
    answers = {name: bisect_batch(asked) for name, (asked, _) in traces.items()}
    wrong += [f"{name}: {answers[name].batch}" for name, (_, batch) in traces.items() if answers[name].batch != batch]
    probes = max(len(answer.probes) for answer in answers.values())
    wrong += [f"{probes} probes"] if probes > 6 else []
    problem = toy()
    for engine in ("cbc", "cp-sat", "highs"):
        chosen = exact(problem, np.ones(len(problem), dtype=np.bool_), create(engine), Limits())
        capacity = None if chosen is None else problem.capacity_rps(chosen)
        wrong += [] if capacity == TOY_BEST_RPS else [f"knapsack by {engine}: {capacity}"]
    return found(f"5 latencies, {len(traces)} traces of at most {probes} probes, the knapsack toy by 3 engines", wrong)


def question(latency_ms: Callable[[int], float], rate_rps: float = 0.0) -> BatchQuestion:
    """A replica whose batches take 10 ms, with a limit of 100."""
    return BatchQuestion(
        replica="one",
        execution_ms=lambda _batch: 10.0,
        latency_ms=latency_ms,
        fits=lambda _batch: True,
        latency_ms_limit=100.0,
        rate_rps=rate_rps,
    )


def toy() -> Knapsack:
    """Three models with two shares each, GPUs of 8 and 6 GB."""
    columns = ((0, 30, 1.0, 500), (0, 60, 1.0, 800), (1, 30, 1.9, 180), (1, 60, 1.9, 260), (2, 40, 1.5, 90))
    table = np.repeat(np.array([*columns, (2, 60, 1.5, 140)], dtype=np.float64), 2, axis=0)
    return Knapsack(
        model=table[:, 0].astype(np.int64),
        gpu=np.tile(np.arange(2, dtype=np.int64), len(table) // 2),
        share_pct=table[:, 1],
        memory_mib=1024 * table[:, 2],
        throughput_rps=table[:, 3],
        served=np.ones(len(table)),
        wanted=np.ones(3, dtype=np.int64),
        share_room_pct=np.full(2, 100.0),
        memory_room_mib=1024 * np.array([8.0, 6.0]),
    )
