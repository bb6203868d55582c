"""Runs that measure a workload's process on a device: what a node is told to do, and what it tells of it.

Owns the order's records and their strict decoding. Results travel as profile points, like everybody else's.
"""

from __future__ import annotations

from dataclasses import dataclass

from agents.wire.fields import flag_of, items_of, number_of, object_of, text_of, whole_of
from agents.wire.targets import WorkerTarget, decode_worker


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSubject:
    """A service whose process is measured."""

    service: str
    project: str
    model: str
    launch_s: float
    worker: WorkerTarget | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOrder:
    """A run: measure `subject` on a device for at most `budget_s`, alone or `beside` another service. With `drain` the
    node waits for the device's live replicas to leave; without, it refuses a device that has some.
    """

    run: int
    uuid: str
    subject: ProfileSubject
    beside: ProfileSubject | None
    budget_s: float
    drain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePointAsked:
    """A configuration to measure; `clock_mhz_sm` None is the device's highest."""

    batch: int
    share_pct_sm: int
    clock_mhz_sm: int | None


def decode_profile_orders(plain: object) -> tuple[ProfileOrder, ...]:
    """Strictly decode what a node has to measure."""
    if not isinstance(plain, dict):
        return ()
    return tuple(_decode_order(item) for item in items_of(plain, "items"))


def decode_points_asked(plain: object) -> tuple[ProfilePointAsked, ...]:
    """Strictly decode configurations to measure."""
    if not isinstance(plain, dict):
        return ()
    found = []
    for part in items_of(plain, "items"):
        item = object_of(part, ProfilePointAsked)
        clock = None if item.get("clock_mhz_sm") is None else whole_of(item, "clock_mhz_sm")
        batch, share = whole_of(item, "batch"), whole_of(item, "share_pct_sm")
        found.append(ProfilePointAsked(batch=batch, share_pct_sm=share, clock_mhz_sm=clock))
    return tuple(found)


def _decode_order(plain: object) -> ProfileOrder:
    item = object_of(plain, ProfileOrder)
    return ProfileOrder(
        run=whole_of(item, "run"),
        uuid=text_of(item, "uuid"),
        subject=_decode_subject(item.get("subject")),
        beside=None if item.get("beside") is None else _decode_subject(item["beside"]),
        budget_s=number_of(item, "budget_s"),
        drain=flag_of(item, "drain"),
    )


def _decode_subject(plain: object) -> ProfileSubject:
    item = object_of(plain, ProfileSubject)
    return ProfileSubject(
        service=text_of(item, "service"),
        project=text_of(item, "project"),
        model=text_of(item, "model"),
        launch_s=number_of(item, "launch_s"),
        worker=None if item.get("worker") is None else decode_worker(item["worker"]),
    )
