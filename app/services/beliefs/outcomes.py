"""Minutes of telemetry to outcomes: what executed, beside whom, at which clock, and whether it was in good order.

Owns the join of replicas, their device and their neighbours. A replica is cold unless it and everything on its device
stood still for the whole minute and it did so the minute before. It refuses to turn anything away: flags tell, the gate
decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from app.store.executions import DeviceMinute, ReplicaMinute
from solvers.domain.device import Device, GpuType
from solvers.domain.workload import WorkloadKind
from solvers.models.online.outcomes import Neighbour, Outcome

HELD_PART_MIN = 0.9
"""Who held its share for a smaller part of the minute came or went in it."""
CLOCK_STEADY = 0.02
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedFleet:
    """What is known beyond the reports. `clocks_mhz_asked` lacks devices left to their driver."""

    devices: Mapping[str, Device]
    gpu_types: Mapping[str, GpuType]
    clocks_mhz_asked: Mapping[str, int]
    token_services: frozenset[str] = frozenset()
    """Ids of services that answer token by token: they execute steps of many lengths, which say nothing of batches."""


@dataclass(frozen=True, slots=True)
class _MinuteOfDevice:
    """A device in a minute."""

    minute: datetime
    uuid: str

    def before(self) -> _MinuteOfDevice:
        return _MinuteOfDevice(self.minute - MINUTE, self.uuid)


def outcomes_of(
    replicas: Sequence[ReplicaMinute], devices: Sequence[DeviceMinute], fleet: ReportedFleet, start: datetime
) -> tuple[Outcome, ...]:
    """Outcomes of the minutes from `start` on, by time; minutes before it only tell what stood there."""
    boards = {_MinuteOfDevice(device.minute, device.uuid): device for device in devices}
    together: dict[_MinuteOfDevice, list[ReplicaMinute]] = defaultdict(list)
    for replica in replicas:
        together[_MinuteOfDevice(replica.minute, replica.uuid)].append(replica)
    steady = {
        place: {_process(each) for each in found if _stood_still(each, boards[place])}
        for place, found in together.items()
        if place in boards
    }
    made: list[Outcome] = []
    for place, found in together.items():
        if place.minute < start or place not in boards or place.uuid not in fleet.devices:
            continue
        all_steady = len(steady[place]) == len(found)
        warm = steady[place] & steady.get(place.before(), set()) if all_steady else set()
        made.extend(_outcomes(found, boards[place], fleet, warm))
    return tuple(sorted(made, key=lambda each: (each.at_s, each.model, each.gpu_type)))


def _process(row: ReplicaMinute) -> tuple[str, int, int, str]:
    return (row.replica, row.share_pct_sm, row.batch, row.model)


def _stood_still(row: ReplicaMinute, board: DeviceMinute) -> bool:
    return row.ready and row.held_s >= HELD_PART_MIN * board.seconds


def _outcomes(
    found: Sequence[ReplicaMinute], board: DeviceMinute, fleet: ReportedFleet, warm: set[tuple[str, int, int, str]]
) -> Iterable[Outcome]:
    device = fleet.devices[board.uuid]
    gpu_type = fleet.gpu_types.get(device.gpu_type)
    if gpu_type is None:
        return
    asked = fleet.clocks_mhz_asked.get(board.uuid)
    clock_mhz = 0.5 * (board.clock_mhz_sm_min + board.clock_mhz_sm_max)
    unsteady = board.clock_mhz_sm_max - board.clock_mhz_sm_min > CLOCK_STEADY * board.clock_mhz_sm_max
    slice_of_type = replace(gpu_type, sm_count=device.sm_count)
    for position, row in enumerate(found):
        if row.replica.partition("#")[0] in fleet.token_services:
            continue
        if row.kind == WorkloadKind.JOB or row.executions <= 0.0 or row.executed_ms <= 0.0 or clock_mhz <= 0.0:
            continue
        others = [*found[:position], *found[position + 1 :]]
        yield Outcome(
            model=row.model,
            gpu_type=device.gpu_type,
            batch=max(1.0, row.batch_mean),
            share_pct_sm=_share_of_type(row, device, gpu_type),
            clock_mhz_sm=clock_mhz if asked is not None else float(_nearest(gpu_type.clocks_mhz_sm, clock_mhz)),
            latency_ms=row.executed_ms / row.executions,
            executions=row.executions,
            seconds=max(row.held_s, 1e-3),
            at_s=(row.minute + MINUTE).timestamp(),
            neighbours=tuple(
                _neighbour(each, _share_of_type(each, device, gpu_type))
                for each in others
                if each.kind != WorkloadKind.JOB
            ),
            clock_mhz_asked=asked,
            sm_count=row.sm_count,
            sm_count_asked=slice_of_type.sm_count_of_share(row.share_pct_sm),
            dropped_fraction=row.dropped / max(row.completed + row.dropped, 1e-9),
            throttled=board.throttled or unsteady,
            cold=_process(row) not in warm,
            failing=row.failed,
            device_healthy=board.healthy,
            beside_training=any(each.kind == WorkloadKind.JOB for each in others),
        )


def _share_of_type(row: ReplicaMinute, device: Device, gpu_type: GpuType) -> int:
    """Its share in percent of a whole GPU of the type; shares on a slice are reported in percent of the slice."""
    return min(100, max(1, round(row.share_pct_sm * device.sm_count / gpu_type.sm_count)))


def _neighbour(row: ReplicaMinute, share_pct_sm: int) -> Neighbour:
    return Neighbour(
        model=row.model,
        batch=max(1.0, row.batch_mean if row.executions > 0.0 else float(row.batch)),
        share_pct_sm=share_pct_sm,
        busy=min(1.0, row.executed_ms / (1000.0 * max(row.held_s, 1e-3))),
    )


def _nearest(clocks_mhz: Sequence[int], clock_mhz: float) -> int:
    return min(clocks_mhz, key=lambda each: abs(each - clock_mhz))
