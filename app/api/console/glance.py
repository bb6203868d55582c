"""The fleet at a glance for pages: read once a moment for each scope, however many look, and drawn as bars."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.api.console.door import Visit
from app.api.deps import context_of
from app.records import plain

COLOURS = 12
TEXTURES = 3
FRESH_MS = 900.0
HOMES = (("services", "services"), ("work", "jobs"))
Plain = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _KeptFleet:
    fleet: Plain
    until_ms: float


class Glances:
    """What was read last, by project; None is the whole."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str | None, _KeptFleet] = {}

    def fleet(self, visit: Visit) -> Plain:
        """The fleet as JSON data, as old as a moment. Raises TransientError when the database is away."""
        project, clock = visit.actor.project, context_of(visit.request).clock
        with self._lock:
            kept = self._seen
            seen = kept.get(project)
            if seen is None or seen.until_ms <= clock.elapsed_ms():
                fleet = plain(visit.services.status.fleet(project))
                seen = kept[project] = _KeptFleet(fleet, clock.elapsed_ms() + FRESH_MS)
            return seen.fleet

    def forget(self) -> None:
        """Read again next time. What a read under way finds is put with what is forgotten here."""
        self._seen = {}


def glances_of(visit: Visit) -> Glances:
    """The application's, made at first use."""
    state = visit.request.app.state
    if not hasattr(state, "glances"):
        state.glances = Glances()
    made: Glances = state.glances
    return made


def fleet_of(visit: Visit) -> Plain:
    """What this person sees of the fleet."""
    return glances_of(visit).fleet(visit)


def paints_of(fleet: Plain) -> dict[str, str]:
    """A colour and texture for every workload."""
    return {name: paint(index) for index, name in enumerate(homes_of(fleet))}


def homes_of(fleet: Plain) -> dict[str, str]:
    """The page of every workload that is declared; what was taken away has none."""
    return {item["id"]: f"/{of}/{item['id']}" for of, key in HOMES for item in fleet[key]}


def paint(index: int) -> str:
    """Classes that tell this workload from as many others as there are colours and textures together."""
    return f"c{index % COLOURS} t{index // COLOURS % TEXTURES}"


def tile(device: Plain, paints: Mapping[str, str]) -> Plain:
    """A device with its bar: one segment per replica, as wide as its share."""
    return {**device, "segments": segments(device["replicas"], paints)}


def segments(replicas: Iterable[Plain], paints: Mapping[str, str]) -> list[Plain]:
    """Replicas, or assignments, side by side on one device."""
    found, left = [], 0.0
    held = list(replicas)
    # Shares may overlap while processes change over: the bar is all of them then.
    scale = 100 / max(100, sum(item["share_pct_sm"] for item in held))
    for item in held:
        state, share = item.get("state", "planned"), item["share_pct_sm"]
        title = f"{item['replica']}: {share} % of the SMs, batch {item['batch']}, {state}"
        found.append({
            "x": left, "width": scale * share, "share": share, "paint": paints.get(item["workload"], paint(0)),
            "ready": state in ("ready", "planned"), "title": title,
        })  # fmt: skip
        left += scale * share
    return found
