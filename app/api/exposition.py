"""The fleet's meters as text for Prometheus: one line for each series, written as it is.

Thousands of devices make a hundred thousand lines; the client library's objects for each sample would cost ten times as
much. The text is kept for a scrape interval and shared by everybody who asks within it.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from app.services.seen.meters import DeclaredDevice, Meters
from app.store.tasks import TaskState
from solvers.domain.workload import WorkloadKind
from solvers.errors import HeadroomError

MIB = 2**20
LABELS_MAX = 8
"""Of a service's own labels, in `headroom_service_info`."""
Samples = Iterable[tuple[str, float | None]]
"""Labels as they stand in the line, and values; None: there is no sample."""

_WHOLE = (
    ("generation", "headroom_target_generation", "Current generation of the target."),
    ("nodes_up", "headroom_nodes_up", "Nodes that reported lately."),
    ("nodes_known", "headroom_nodes", "Registered nodes."),
    ("devices", "headroom_devices", "Registered devices."),
    ("replicas_ready", "headroom_replicas_ready", "Replicas that reported ready lately."),
    ("replicas_planned", "headroom_replicas_planned", "Replicas of the current target."),
    ("plan_cost_usd_per_h", "headroom_plan_cost_usd_per_hour", "Cost of the current plan, US dollars per hour."),
    (
        "plan_bound_usd_per_h",
        "headroom_plan_bound_usd_per_hour",
        "What serving as much costs at least, with what may not move left as it is.",
    ),
    ("plan_age_s", "headroom_plan_age_seconds", "Age of the newest plan, promoted or not."),
    ("cycles_last_hour", "headroom_cycles_last_hour", "Planning cycles begun in the last hour."),
    (
        "cycles_stood_in_last_hour",
        "headroom_cycles_stood_in_last_hour",
        "Of these, with a planner that failed or was stopped, or another than the first one's plan.",
    ),
    ("measurements_unlearned", "headroom_measurements_unlearned", "Measurements that plans do not know yet."),
    ("raw_bytes", "headroom_raw_telemetry_bytes", "What raw telemetry takes on disk."),
    ("minute_bytes", "headroom_minute_bytes", "What the minutes of ledger and bills take on disk."),
    ("ledger_age_s", "headroom_ledger_age_seconds", "Age of the newest minute in the ledger."),
    ("plans_awaiting", "headroom_plans_awaiting_approval", "Plans that wait for somebody's approval."),
    ("plans_awaiting_s", "headroom_plans_awaiting_approval_seconds", "How long the oldest of them has waited."),
    ("report_age_s", "headroom_newest_report_age_seconds", "Age of the newest report of any node or gateway."),
    ("partitions_ahead_s", "headroom_partitions_ahead_seconds", "How long telemetry has partitions to go into."),
)
_COUNTS = (
    ("outcomes_admitted", "headroom_outcomes_admitted", "Measured executions that beliefs learned from."),
    ("outcomes_rejected", "headroom_outcomes_rejected", "Measured executions that the gate turned away."),
    ("beliefs_rebuilt", "headroom_beliefs_rebuilt", "Beliefs built anew because of errors or drift."),
)
_STATES = {
    WorkloadKind.JOB: (TaskState.WAITING, TaskState.RUNNING, TaskState.DONE),
    WorkloadKind.TASK: tuple(TaskState),
}


def labels(**values: object) -> str:
    """Labels as they stand in a line."""
    return ",".join(f'{name}="{_escaped(str(value))}"' for name, value in values.items())


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class Exposition:
    """A page that grows by one family after the other."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def gauge(self, name: str, told: str, samples: Samples) -> None:
        self._family(name, told, "gauge", samples)

    def counter(self, name: str, told: str, samples: Samples) -> None:
        self._family(f"{name}_total", told, "counter", samples)

    def _family(self, name: str, told: str, kind: str, samples: Samples) -> None:
        lines = [
            f"{name}{{{where}}} {value:.12g}" if where else f"{name} {float(value)!r}"
            for where, value in samples
            if value is not None
        ]
        if lines:
            self._lines += (f"# HELP {name} {told}", f"# TYPE {name} {kind}", *lines)

    def text(self) -> bytes:
        return "\n".join((*self._lines, "")).encode()


class FleetPage:
    """The fleet's part of `/metrics`. Scrapers that come within `fresh_s` of a look share it."""

    def __init__(self, look: Callable[[], Meters], elapsed_ms: Callable[[], float], fresh_s: float) -> None:
        self._look = look
        self._elapsed_ms = elapsed_ms
        self._fresh_ms = 1000.0 * fresh_s
        self._turn = threading.Lock()
        self._text = b""
        self._looked_ms: float | None = None

    def text(self) -> bytes:
        """Without the database, only that it is away."""
        with self._turn:
            now_ms = self._elapsed_ms()
            if self._looked_ms is None or now_ms - self._looked_ms >= self._fresh_ms:
                self._text = self._written()
                self._looked_ms = now_ms
            return self._text

    def _written(self) -> bytes:
        page = Exposition()
        try:
            found = self._look()
        except HeadroomError:
            found = None
        page.gauge("headroom_database_up", "Whether PostgreSQL answered.", [("", float(found is not None))])
        if found is not None:
            _write_whole(page, found)
            _write_planning(page, found)
            _write_services(page, found)
            _write_work(page, found)
            _write_nodes(page, found)
            _write_devices(page, found)
        return page.text()


def _write_whole(page: Exposition, found: Meters) -> None:
    values = {**asdict(found.whole), **asdict(found.counts)}
    for name, metric, told in _WHOLE:
        page.gauge(metric, told, [("", values[name])])
    for name, metric, told in _COUNTS:
        page.counter(metric, told, [("", values[name])])
    bound, cost = found.counts.plan_bound_usd_per_h, found.counts.plan_cost_usd_per_h
    gap = max(0.0, cost / bound - 1.0) if bound else None
    page.gauge("headroom_plan_gap_ratio", "How much dearer than its bound the plan may be.", [("", gap)])
    unplaced = Counter((row.kind, "approval" if row.approval_places else "place") for row in found.unplaced)
    page.gauge(
        "headroom_unplaced_workloads",
        "Workloads for which the current plan found no place, or not enough.",
        [
            (labels(kind=kind, waits_for=what), unplaced[kind, what])
            for kind in ("service", "job", "task")
            for what in ("place", "approval")
        ],
    )
    page.gauge(
        "headroom_queue_age_seconds",
        "How far behind the oldest entry of a queue is.",
        [
            (labels(queue="outcomes"), found.whole.outcomes_age_s),
            (labels(queue="webhooks"), found.whole.webhooks_age_s),
        ],
    )
    page.counter(
        "headroom_events",
        "Audit events by name.",
        [(labels(name=name), count) for name, count in sorted(found.totals.events.items())],
    )


def _write_planning(page: Exposition, found: Meters) -> None:
    totals = found.totals
    page.counter(
        "headroom_planner_attempts",
        "Planners asked, by how they came to their end.",
        [
            (labels(planner=planner, outcome=outcome), count)
            for planner, outcomes in sorted(totals.attempts.items())
            for outcome, count in outcomes.items()
        ],
    )
    page.counter(
        "headroom_cycles",
        "Planning cycles by lane and outcome.",
        [
            (labels(lane=lane, outcome=outcome), count)
            for lane, outcomes in totals.cycles.items()
            for outcome, count in outcomes.items()
        ],
    )
    page.counter(
        "headroom_cycle_seconds",
        "Time that planning cycles took.",
        [(labels(lane=lane), totals.cycle_ms[lane] / 1000.0) for lane in totals.cycles],
    )


def _info(service: str, spec: Mapping[str, Any]) -> str:
    own = {
        "label_" + re.sub(r"[^a-zA-Z0-9_]", "_", str(each["key"])): each["value"]
        for each in tuple(spec.get("labels") or ())[:LABELS_MAX]
    }
    said = {"model": spec["model"], "mode": spec["mode"], "policy": spec.get("policy") or "default"}
    return f"{_of_service(service)},{labels(**said, **own)}"


def _of_service(service: str) -> str:
    project, _, name = service.partition("/")
    return labels(project=project, service=name)


def _write_services(page: Exposition, found: Meters) -> None:
    known = found.known.services
    where = {service: _of_service(service) for service in known}
    short = {row.workload: row.rate_rps_short for row in found.unplaced}

    def gauge(name: str, told: str, value: Callable[[str], float | None]) -> None:
        page.gauge(f"headroom_service_{name}", told, ((where[service], value(service)) for service in known))

    def counter(name: str, told: str, of: str) -> None:
        totals = found.totals.services
        page.counter(f"headroom_service_{name}", told, ((where[service], totals[service][of]) for service in known))

    def seen(field: str, scale: float = 1.0) -> Callable[[str], float | None]:
        def value(service: str) -> float | None:
            row = found.served.get(service)
            got = None if row is None else getattr(row, field)
            return None if got is None else got * scale

        return value

    page.gauge("headroom_service_info", "What a service is.", ((_info(*item), 1.0) for item in known.items()))
    counter("requests", "Requests that arrived at the edge.", "arrived")
    counter("completed", "Requests that were answered.", "completed")
    counter("violations", "Requests answered later than the SLO says.", "violated")
    counter("unserved", "Requests that were dropped or found no replica.", "unserved")
    counter("energy_joules", "Energy that its replicas used.", "energy_j")
    gauge("requests_per_second", "Offered load of the last minute.", seen("rate_rps"))
    gauge("latency_p50_seconds", "Median latency of the last minute.", seen("latency_ms_p50", 1e-3))
    gauge("latency_p99_seconds", "99th percentile of its worst interval.", seen("latency_ms_p99", 1e-3))
    gauge("attainment_ratio", "Part of the last minute's requests that kept the SLO.", lambda s: _attainment(found, s))
    gauge("objective_ratio", "Part that has to keep it.", lambda s: known[s]["slo"].get("percentile", 99.0) / 100)
    gauge("objective_seconds", "The latency that the SLO allows whole requests.", lambda s: _limit_s(known[s]["slo"]))
    gauge("replicas_planned", "Replicas of the current target.", lambda s: found.planned[s])
    gauge("replicas_ready", "Replicas that reported ready lately.", lambda s: found.ready.get(s, 0.0))
    gauge("gpu_share", "Whole GPUs that the plan gives to it.", lambda s: found.share_pct_of[s] / 100)
    gauge("cost_usd_per_hour", "Its shares of its devices' prices.", lambda s: found.usd_per_h_of[s])
    gauge(
        "budget_usd_per_hour", "What it may cost, where that is declared.", lambda s: known[s].get("budget_usd_per_h")
    )
    gauge("unplaced_requests_per_second", "Load that found no place.", lambda s: short.get(s, 0.0))


def _write_work(page: Exposition, found: Meters) -> None:
    """Of projects that have any; what a state has none of is 0."""
    for kind, states in _STATES.items():
        mine = [row for row in found.work if row.kind == kind]
        works = {(row.project, row.state): float(row.works) for row in mine}
        left = {row.project: 0.0 for row in mine}
        for row in mine:
            left[row.project] += (row.works - row.done) * (row.state != TaskState.DONE)
        counts = [
            (labels(project=project, state=state), works.get((project, state), 0.0))
            for project in sorted(left)
            for state in states
        ]
        page.gauge(f"headroom_{kind}s", f"{kind.capitalize()}s by how far they are.", counts)
        told = f"What is left to do of those that are not done, in whole {kind}s."
        page.gauge(f"headroom_{kind}s_left", told, [(labels(project=name), left[name]) for name in sorted(left)])


def _attainment(found: Meters, service: str) -> float | None:
    row = found.served.get(service)
    total = 0.0 if row is None else row.completed + row.unserved
    return None if row is None or not total else max(0.0, min(1.0, (row.completed - row.violated) / total))


def _limit_s(slo: Mapping[str, Any]) -> float | None:
    """Only what whole requests are held to: no other latency is told beside it."""
    limit_ms = slo.get("latency_ms") if slo.get("scope") == "end_to_end" else None
    return None if limit_ms is None else limit_ms / 1000.0


def _write_nodes(page: Exposition, found: Meters) -> None:
    where = [(labels(node=row.node), row) for row in found.nodes]
    silent_s = found.silent_s
    page.gauge(
        "headroom_node_up",
        "Whether a node reported lately.",
        ((at, float(row.age_s is not None and row.age_s <= silent_s)) for at, row in where),
    )
    page.gauge("headroom_node_report_age_seconds", "Since its last report.", ((at, row.age_s) for at, row in where))
    page.gauge("headroom_node_schedulable", "0: cordoned.", ((at, float(row.schedulable)) for at, row in where))
    page.gauge(
        "headroom_node_certificate_ends_timestamp_seconds",
        "When the newest certificate of a node ends.",
        ((at, row.certificate_ends_s) for at, row in where),
    )


def _write_devices(page: Exposition, found: Meters) -> None:
    known, readings = found.known.devices, found.readings
    where = {uuid: labels(node=device.node, device=uuid) for uuid, device in known.items()}

    def gauge(name: str, told: str, value: Callable[[str, DeclaredDevice], float | None]) -> None:
        page.gauge(f"headroom_device_{name}", told, ((where[uuid], value(uuid, known[uuid])) for uuid in known))

    def read(name: str, told: str, field: str, scale: float = 1.0) -> None:
        page.gauge(
            f"headroom_device_{name}",
            told,
            (
                (where[uuid], value * scale)
                for uuid, row in readings.items()
                if uuid in where and (value := getattr(row, field)) is not None
            ),
        )

    page.gauge(
        "headroom_device_info",
        "What a device is.",
        (
            (f"{where[uuid]},{labels(index=device.index, gpu_type=device.gpu_type, rack=device.rack)}", 1.0)
            for uuid, device in known.items()
        ),
    )
    gauge("up", "Whether its node reported lately.", lambda uuid, _: float(uuid in readings))
    read("healthy", "Whether its node calls it healthy.", "healthy")
    read("slow_factor", "Its execution times over those of others of its type; 1: the same.", "slow_factor")
    read("power_watts", "Power of the newest report.", "power_w")
    gauge(
        "power_cap_watts",
        "The plan's limit, else the highest of its type.",
        lambda uuid, device: found.limits_w.get(uuid, device.power_limit_w),
    )
    gauge("planned_share_ratio", "SM share that the plan uses.", lambda uuid, _: found.share_pct_on[uuid] / 100)
    read("busy_ratio", "Utilisation of the newest report.", "utilisation_pct", 0.01)
    read("memory_used_bytes", "Memory of the newest report.", "memory_mib_used", MIB)
    gauge("memory_bytes", "Its memory.", lambda _, device: device.memory_mib * MIB)
    read("sm_clock_hertz", "SM clock of the newest report.", "clock_mhz_sm", 1e6)
    read("temperature_celsius", "Temperature of the newest report.", "temperature_c")
    gauge("cost_usd_per_hour", "Its price.", lambda _, device: device.usd_per_h)
    energy_j = found.totals.device_energy_j
    page.counter("headroom_device_energy_joules", "Energy used.", ((where[uuid], energy_j[uuid]) for uuid in known))
    domains = [(labels(scope=each.scope, subject=each.subject), each) for each in found.known.domains]
    page.gauge("headroom_power_cap_watts", "A declared power cap.", ((at, each.limit_w) for at, each in domains))
    page.gauge(
        "headroom_power_watts",
        "Power of the devices that a declared cap covers.",
        ((at, sum(readings[uuid].power_w for uuid in each.devices if uuid in readings)) for at, each in domains),
    )
