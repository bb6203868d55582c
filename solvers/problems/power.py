"""Power domains: what is left under every cap.

Owns the books of watts by device, node, rack and cluster. A device counts its idle power in its domains whether or not
it is used, but for one that nobody rented yet, which draws nothing until then. It refuses to know what draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.domain.arrays import Flags, Floats
from solvers.domain.device import Device, Node, PowerScope
from solvers.domain.ids import NodeId
from solvers.domain.snapshot import Snapshot

EPSILON = 1e-9


@dataclass(slots=True)
class PowerDomains:
    """One kind of power domain: index of each device's domain (-1: no cap) and what is left in each."""

    of_device: NDArray[np.intp]
    headroom_w: Floats

    def book(self, device: int, change_w: float) -> None:
        """A device draws so much more."""
        domain = self.of_device[device]
        if domain >= 0:
            self.headroom_w[domain] -= change_w

    def within(self, change_w: Floats, places: NDArray[np.intp]) -> Flags:
        """Which of these devices may each, alone, draw so much more."""
        domain = self.of_device[places]
        left = np.where(domain >= 0, self.headroom_w[domain], np.inf)
        return np.asarray(change_w <= left + EPSILON)


def power_domains(
    snapshot: Snapshot, devices: Sequence[Device], nodes: Mapping[NodeId, Node], drawn_w: Floats
) -> list[PowerDomains]:
    """Every kind of domain that has a cap, with each device drawing this much already."""
    kinds: list[PowerDomains] = []
    for scope in PowerScope:
        caps = {cap.subject: cap.limit_w for cap in snapshot.power_caps if cap.scope is scope}
        if not caps:
            continue
        place = {subject: index for index, subject in enumerate(sorted(caps))}
        subjects = _subjects(snapshot, devices, nodes, scope)
        of_device = np.array([place.get(subject, -1) for subject in subjects], dtype=np.intp)
        headroom_w = np.array([caps[subject] for subject in place], dtype=np.float64)
        capped = of_device >= 0
        np.subtract.at(headroom_w, of_device[capped], drawn_w[capped])
        kinds.append(PowerDomains(of_device=of_device, headroom_w=headroom_w))
    return kinds


def _subjects(
    snapshot: Snapshot, devices: Sequence[Device], nodes: Mapping[NodeId, Node], scope: PowerScope
) -> list[str]:
    if scope is PowerScope.DEVICE:
        return [device.id for device in devices]
    if scope is PowerScope.NODE:
        return [device.node for device in devices]
    if scope is PowerScope.RACK:
        return [nodes[device.node].rack for device in devices]
    return [snapshot.cluster] * len(devices)
