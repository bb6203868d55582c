"""What an agent tells Prometheus: what it holds anyway, as text, without asking any device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agents.wire import DeviceReport, Report


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTold:
    """An agent at one moment. `report` is its newest; None before the first."""

    node: str
    version: str
    health: Mapping[str, object]
    waiting: int
    lost: int
    refused: int
    report: Report | None


def page(told: AgentTold) -> str:
    return "".join(f"{line}\n" for line in _lines(told))


def _lines(told: AgentTold) -> Iterator[str]:
    yield from _family("info", "gauge", {_labels(node=told.node, version=told.version): 1.0})
    for key, name in (
        ("alone_s", "silence_seconds"),
        ("frozen", "frozen"),
        ("generation", "generation"),
        ("generation_applied", "generation_applied"),
    ):
        value = told.health[key]
        if isinstance(value, int | float):
            yield from _family(name, "gauge", {"": value})
    yield from _family("reports_waiting", "gauge", {"": told.waiting})
    yield from _family("reports_lost_total", "counter", {"": told.lost})
    yield from _family("reports_refused_total", "counter", {"": told.refused})
    if told.report is not None:
        yield from _of_report(told.report)


def _of_report(report: Report) -> Iterator[str]:
    def devices(name: str, field: str, scale: float = 1.0) -> Iterator[str]:
        readings = {_of(device): getattr(device, field) for device in report.devices}
        known = {where: value * scale for where, value in readings.items() if value is not None}
        return _family(f"device_{name}", "gauge", known)

    yield from devices("power_watts", "power_w")
    yield from devices("busy_ratio", "utilisation_pct", 0.01)
    yield from devices("memory_used_bytes", "memory_mib_used", 2**20)
    yield from devices("temperature_celsius", "temperature_c")
    yield from devices("healthy", "healthy")
    states = Counter(replica.state for replica in report.replicas)
    yield from _family("replicas", "gauge", {_labels(state=state): count for state, count in states.items()})


def _of(device: DeviceReport) -> str:
    return _labels(device=device.uuid)


def _labels(**values: str) -> str:
    escaped = (
        (name, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for name, value in values.items()
    )
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"


def _family(name: str, kind: str, samples: Mapping[str, float]) -> Iterator[str]:
    if samples:
        yield f"# TYPE headroom_agent_{name} {kind}"
    for labels, value in samples.items():
        yield f"headroom_agent_{name}{labels} {float(value)!r}"
