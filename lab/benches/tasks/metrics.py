"""The numbers of a run of tasks, from its log.

Owns their definitions. Latency is from arrival to end, its first part (queueing) until the launch that worked, the rest
job completion time; tasks that never ended count as late, and as long as the run. Utilisation, power and idleness are
means over all GPUs from the first moment to the last. `epc_score` is Eq. 7 with the latency of every task and the
utilisation and memory of its GPU while it ran, in time's mean per GPU: a rank, no unit. It refuses to compare.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lab.benches.tasks.run import Entry, TaskLog
from lab.benches.tasks.work import TaskKind, accuracy_lost_pct
from solvers.domain.arrays import Floats
from solvers.domain.ids import ServiceId
from solvers.policies.oltunes.scores import IDLE_W
from solvers.sim.outcome import Better, Metric, ServiceOutcome, metric

MS_PER_S = 1000.0
PERCENT = 100.0


def latencies_s(entries: Sequence[Entry], until_s: float) -> Floats:
    """From arrival to end, or to the end of the run."""
    return np.array(
        [(until_s if each.ended_s is None else each.ended_s) - each.coming.at_s for each in entries], dtype=np.float64
    )


def metrics(log: TaskLog, kinds: Sequence[TaskKind]) -> tuple[Metric, ...]:
    """All of them."""
    entries = list(log.entries.values())
    return (*_service(log, entries, kinds), *_cluster(log, entries))


def _service(log: TaskLog, entries: Sequence[Entry], kinds: Sequence[TaskKind]) -> tuple[Metric, ...]:
    latency_s = latencies_s(entries, log.until_s)
    deadline_s = np.array([each.coming.task.deadline_s for each in entries])
    done = np.array([each.ended_s is not None for each in entries], dtype=np.bool_)
    urgent = np.array([each.coming.task.latency_critical for each in entries], dtype=np.bool_)
    late = (latency_s > deadline_s) | ~done
    waited_s = np.array([_waited_s(each, log.until_s) for each in entries])
    inputs = float(sum(each.coming.task.inputs for each in entries if each.ended_s is not None))
    lost = accuracy_lost_pct(kinds)
    p50, p99 = (float(np.quantile(latency_s, part)) * MS_PER_S for part in (0.5, 0.99))
    lower, neither = Better.LOWER, Better.NEITHER
    return (
        metric("latency_ms_mean", float(latency_s.mean()) * MS_PER_S, lower),
        metric("latency_ms_p50", p50, lower),
        metric("latency_ms_p99", p99, lower),
        metric("queueing_ms_mean", float(waited_s.mean()) * MS_PER_S, lower),
        metric("jct_ms_mean", float((latency_s - waited_s).mean()) * MS_PER_S, lower),
        metric("latency_ms_mean_urgent", _mean(latency_s[urgent]) * MS_PER_S, lower),
        metric("latency_ms_mean_patient", _mean(latency_s[~urgent]) * MS_PER_S, lower),
        metric("throughput_inputs_per_s", inputs / log.until_s if log.until_s > 0.0 else 0.0, Better.HIGHER),
        metric("violation_pct", PERCENT * float(late.mean()), lower),
        metric("violation_pct_urgent", PERCENT * _mean(late[urgent].astype(np.float64)), lower),
        metric("accuracy_lost_pct", float(np.mean([lost[kinds[each.coming.kind].name] for each in entries])), lower),
        metric("tasks_unfinished", float((~done).sum()), lower),
        metric("groups_failed", float(log.failed), neither),
        metric("tasks_per_group", _per_group(entries, log), neither),
        metric("slices_cut", float(log.sliced), neither),
    )


def _per_group(entries: Sequence[Entry], log: TaskLog) -> float:
    return sum(each.attempts for each in entries) / log.groups if log.groups else 0.0


def _cluster(log: TaskLog, entries: Sequence[Entry]) -> tuple[Metric, ...]:
    span_s = max(log.until_s, 1e-9)
    used = PERCENT * np.array([board.utilised_s for board in log.boards]) / span_s
    held = PERCENT * np.array([board.held_s for board in log.boards]) / span_s
    energy_j = float(sum(board.energy_j for board in log.boards))
    counted = sum((each.tdp_w - IDLE_W) * each.epc_js for each in entries if each.ended_s is not None)
    epc = IDLE_W + counted / (span_s * len(log.boards))
    lower, neither = Better.LOWER, Better.NEITHER
    return (
        metric("utilisation_pct_mean", float(used.mean()), Better.HIGHER),
        metric("utilisation_pct_spread", float(used.max() - used.min()), lower),
        metric("gpus_idle_pct", PERCENT - float(held.mean()), neither),
        metric("gpus_never_used_pct", PERCENT * float((held <= 0.0).mean()), lower),
        metric("epc_score", float(epc), lower),
        metric("energy_j", energy_j, lower),
        metric("power_w_mean", energy_j / span_s, neither),
        metric("makespan_s", log.until_s, lower),
    )


def _waited_s(each: Entry, until_s: float) -> float:
    return (until_s if each.launched_s is None else each.launched_s) - each.coming.at_s


def _mean(numbers: Floats) -> float:
    return float(numbers.mean()) if len(numbers) else 0.0


def by_kind(log: TaskLog, kinds: Sequence[TaskKind]) -> tuple[ServiceOutcome, ...]:
    """Tasks of every kind, as requests of a service are told; dropped are those that never ended."""
    found = []
    for number, kind in enumerate(kinds):
        entries = [each for each in log.entries.values() if each.coming.kind == number]
        if not entries:
            continue
        ended = [each for each in entries if each.ended_s is not None]
        ms = latencies_s(ended, log.until_s) * MS_PER_S
        due_ms = np.array([each.coming.task.deadline_s for each in ended]) * MS_PER_S
        late = int((ms > due_ms).sum())
        p50, p95, p99 = (float(np.quantile(ms, part)) if len(ms) else None for part in (0.5, 0.95, 0.99))
        found.append(
            ServiceOutcome(
                service=ServiceId(f"tasks/{kind.name}"),
                asked=float(len(entries)),
                completed=float(len(ended)),
                late=float(late),
                dropped=float(len(entries) - len(ended)),
                latency_ms_p50=p50,
                latency_ms_p95=p95,
                latency_ms_p99=p99,
                attained=late == 0 and len(ended) == len(entries),
            )
        )
    return tuple(found)
