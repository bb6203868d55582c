"""How HetSev's instances share GPUs: which devices are put in time slices, and how many instances meet on one.

Owns the choice: devices of GPU types on which every model that may come was measured beside others without limits,
without training jobs and without replicas that must stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from solvers.domain.device import DeviceMode
from solvers.domain.ids import DeviceId
from solvers.domain.plan import DeviceSetting
from solvers.domain.workload import AntiAffinity, WorkloadKind
from solvers.planners.base import PlanRequest
from solvers.planners.case import Case
from solvers.policies.hetsev.parameters import UNLIMITED, HetsevParameters


def opened(request: PlanRequest, parameters: HetsevParameters) -> Case:
    """The request, prepared for instances with limits on their shares or without."""
    limited = Case.of(request)
    own = dict(_time_sliced(limited)) if parameters.sharing == UNLIMITED else {}
    return Case.of(request, own, tenants_of(limited, parameters) - 1) if own else limited


def tenants_of(case: Case, parameters: HetsevParameters) -> int:
    """How many instances can meet on a GPU."""
    if parameters.anti_affinity is not AntiAffinity.HARD:
        return parameters.tenants_max
    models = {need.model for need in case.needs if need.kind is not WorkloadKind.JOB}
    return max(1, min(parameters.tenants_max, len(models | {item.model for item in case.pinned})))


def _time_sliced(case: Case) -> Iterator[tuple[DeviceId, DeviceSetting]]:
    taken = {item.device for item in case.pinned}
    taken |= {item.device for item in case.snapshot.target.assignments if item.kind is WorkloadKind.JOB}
    models = {need.model for need in case.needs if need.kind is not WorkloadKind.JOB}
    profiles = case.beliefs.profiles
    for device in case.snapshot.devices:
        known = (profiles.get((model, device.gpu_type)) for model in models)
        measured = all(profile is None or profile.unlimited is not None for profile in known)
        if measured and device.id not in taken and device.mode is not DeviceMode.DEDICATED:
            held = case.held.get(device.id, DeviceSetting(device=device.id))
            yield device.id, replace(held, mode=DeviceMode.TIME_SLICED)
