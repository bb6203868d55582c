"""Who owns which knob, in words.

Owns the wording; it knows no store, so that plans made from files are told of alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import groupby

from solvers.cycle.owners import KNOBS, KnobOwner, StandingOwners, knob_owners
from solvers.domain.ownership import Owners


def owner_words(owners: Iterable[KnobOwner]) -> dict[str, str]:
    """Owner of each knob, short: who by name, and which policy's."""
    return {item.knob.value: f"{item.policy}: {item.by} {item.name}" for item in owners}


def owner_sentences(owners: Owners, standing: StandingOwners, workload: str, places: Mapping[str, str]) -> list[str]:
    """Who owns what on the devices that host a workload, alike devices together. `places` are names of devices."""
    hosts = sorted(
        device for device, items in standing.on_device.items() if any(item.workload == workload for item in items)
    )
    by_owner: dict[tuple[KnobOwner, ...], list[str]] = defaultdict(list)
    for device in hosts:
        by_owner[knob_owners(owners, device, standing)].append(places.get(device, str(device)))
    sentences = []
    for knobs, devices in by_owner.items():
        ordered = sorted(knobs, key=lambda item: (item.by, item.name))
        for (by, name), group in groupby(ordered, key=lambda item: (item.by, item.name)):
            same = sorted(group, key=lambda item: KNOBS.index(item.knob))
            verb = "are" if len(same) > 1 else "is"
            what = _listed([item.knob.value for item in same])
            sentences.append(
                f"{what} on {_listed(sorted(devices))} {verb} owned by policy {same[0].policy}: {by} {name}"
            )
    return sentences


def places_of(devices: Iterable[tuple[str, str, int]]) -> dict[str, str]:
    """Names for people by device id: `node/gpu-index`."""
    return {device: f"{node}/gpu-{index}" for device, node, index in devices}


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
