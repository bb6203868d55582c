"""What changes, told as it changes: the fleet's state by topic, thing and field, read once for everybody who watches,
and what differs from the reading before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from app.records import plain
from app.services.seen.history import History
from app.services.seen.status import DeviceLine, FleetSummary, StatusReader
from app.store.pages import PageOrder
from solvers.errors import FieldError

Fields = dict[str, Any]
Things = Mapping[str, Fields]


class Topic(StrEnum):
    """What one can follow. A project's token follows its own services and work."""

    FLEET = "fleet"
    NODES = "nodes"
    DEVICES = "devices"
    SERVICES = "services"
    WORK = "work"
    CYCLES = "cycles"
    EVENTS = "events"


OF_PROJECTS = (Topic.SERVICES, Topic.WORK)
NEWEST = 50
"""Of cycles and audit events so many are looked at."""
Picture = Mapping[Topic, Things]
_OF_DEVICE = (
    "node", "index", "gpu_type", "mode", "schedulable", "up", "healthy", "slow_factor", "utilisation_pct",
    "share_pct_sm_planned", "share_pct_sm_held", "price_usd_per_h",
)  # fmt: skip


def topics_of(wanted: str | None, project: str | None) -> tuple[Topic, ...]:
    """The topics in a list with commas, or all that one may follow. Raises FieldError."""
    allowed = tuple(Topic) if project is None else OF_PROJECTS
    if not wanted:
        return allowed
    names = wanted.split(",")
    wrong = [name for name in names if name not in allowed]
    if wrong:
        raise FieldError("query:topics", f"{wrong[0]!r} is none of {', '.join(allowed)}")
    return tuple(Topic(name) for name in dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class FollowedFleet:
    """Reads what can be followed. Both raise TransientError."""

    status: StatusReader
    history: History

    def picture(self) -> Picture:
        """The state of everything."""
        return _picture(self.status.fleet(None), self.history)

    def freshened(self, before: Picture) -> Picture:
        """The picture with what people wait for and is cheap to read: rates, cycles and events."""
        rates = self.status.rates()
        told = {
            name: {**fields, **_rounded({"rate_rps": rates[name]})} if name in rates else fields
            for name, fields in before[Topic.SERVICES].items()
        }
        return {**before, Topic.SERVICES: told, **_recent(self.history)}


def _picture(fleet: FleetSummary, history: History) -> Picture:
    return {
        Topic.FLEET: {"fleet": summary(fleet)},
        Topic.NODES: {item.id: plain(item) | {"age_s": None} for item in fleet.nodes},
        Topic.DEVICES: {item.id: _device(item) for item in fleet.devices},
        Topic.SERVICES: {item.id: _rounded(plain(item)) for item in fleet.services},
        Topic.WORK: {item.id: _rounded(plain(item)) for item in fleet.jobs},
        **_recent(history),
    }


def _recent(history: History) -> Picture:
    newest = PageOrder(limit=NEWEST)
    return {
        Topic.CYCLES: {
            item.id: {name: plain(getattr(item, name)) for name in ("lane", "state", "planner", "generation")}
            for item in history.cycles(newest, None, None).items
        },
        Topic.EVENTS: {str(item.id): plain(item) for item in history.events(newest, None, None).items},
    }


def summary(fleet: FleetSummary) -> Fields:
    """The whole in some numbers."""
    return _rounded(
        {
            "generation": fleet.generation,
            "plan": None if fleet.plan is None else fleet.plan.id,
            "unplaced": None if fleet.plan is None else fleet.plan.unplaced_count,
            "planned_usd_per_h": fleet.cost.planned_usd_per_h,
            "fleet_usd_per_h": fleet.cost.fleet_usd_per_h,
            "slo_attainment": fleet.slo_attainment,
            "power_w": sum(device.power_w or 0.0 for device in fleet.devices),
            "nodes_up": sum(node.up for node in fleet.nodes),
            "devices_up": sum(device.up for device in fleet.devices),
            "answered": None if fleet.planning is None else fleet.planning.answered,
            "led": fleet.unled is None,
            "stood_in": None if fleet.planning is None else fleet.planning.stood_in,
        }
    )


def difference(before: Picture, after: Picture) -> dict[Topic, Fields]:
    """By topic what changed: fields under `set`, and what is not there any more under `gone`."""
    found: dict[Topic, Fields] = {}
    for topic, things in after.items():
        held = before.get(topic, {})
        if held is things:
            continue
        changed = {name: _changed(held.get(name), fields) for name, fields in things.items()}
        changed = {name: fields for name, fields in changed.items() if fields}
        gone = [name for name in held if name not in things]
        if changed or gone:
            found[topic] = {"set": changed, "gone": gone}
    return found


def _changed(before: Fields | None, after: Fields) -> Fields:
    if before is None:
        return after
    return {name: value for name, value in after.items() if before.get(name) != value}


def _device(item: DeviceLine) -> Fields:
    told = {name: getattr(item, name) for name in _OF_DEVICE}
    whole = {name: getattr(item, name) for name in ("power_w", "memory_mib_used", "memory_mib", "temperature_c")}
    return {**_rounded(told), **{name: None if value is None else round(value) for name, value in whole.items()}}


def _rounded(fields: Fields) -> Fields:
    """As finely as anybody looks, so that what hardly differs is not told again."""
    return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in fields.items()}
