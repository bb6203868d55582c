"""What a worker's spec holds of its device, and specs as JSON for state files that outlive an agent.

Owns that sum, that form and its reading back. What an older agent wrote without today's fields takes their defaults;
what cannot be read raises ValueError (TypeError and WireError included), and the caller says what that means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from agents.devices.base import WorkerSpec
from agents.wire import ReplicaTarget, decode_worker


def spec_to_plain(spec: WorkerSpec) -> dict[str, object]:
    """A spec as plain JSON data."""
    return asdict(spec)


def spec_from_plain(plain: Mapping[str, Any]) -> WorkerSpec:
    """The spec that was written."""
    fields = dict(plain)
    worker = fields.pop("worker", None)
    try:
        return WorkerSpec(**fields, worker=None if worker is None else decode_worker(worker))
    except TypeError as error:
        raise ValueError(f"no worker's spec: {error}") from error


def held_pct_sm(spec: WorkerSpec | ReplicaTarget) -> int:
    """Share of the device that a worker takes: each of its processes has the share to itself."""
    return spec.share_pct_sm * _processes(spec)


def held_mib(spec: WorkerSpec | ReplicaTarget) -> int:
    """Memory of the device that a worker may take: each of its processes has the limit to itself."""
    return spec.memory_mib_limit * _processes(spec)


def _processes(spec: WorkerSpec | ReplicaTarget) -> int:
    return 1 if spec.worker is None else spec.worker.processes_max
