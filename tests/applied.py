"""What is held after the changes of a transition: the inverse that differences are tested against."""

from __future__ import annotations

from dataclasses import replace

from solvers.domain.change import ChangeKind, Target, Transition
from solvers.domain.device import DeviceMode
from solvers.domain.plan import Assignment, DeviceSetting


def apply(target: Target, transition: Transition) -> tuple[tuple[Assignment, ...], tuple[DeviceSetting, ...]]:
    """What is held after all changes, one knob at a time: assignments by replica, and the settings that are not the
    default.
    """
    held = {item.replica: item for item in target.assignments}
    settings = {item.device: item for item in target.settings}
    for change in transition.changes:
        if change.setting_after is not None:
            device = change.setting_after.device
            current = settings.get(device, DeviceSetting(device=device))
            settings[device] = _with_setting(current, change.kind, change.setting_after)
        elif change.after is None:
            if change.before is not None:
                del held[change.before.replica]
        elif change.kind in (ChangeKind.START, ChangeKind.MOVE, ChangeKind.SWAP_MODEL):
            held[change.after.replica] = change.after
        else:
            held[change.after.replica] = _with_knob(held[change.after.replica], change.kind, change.after)
    kept = (settings[device] for device in sorted(settings) if settings[device] != DeviceSetting(device=device))
    return tuple(held[replica] for replica in sorted(held)), tuple(kept)


def _with_setting(current: DeviceSetting, kind: ChangeKind, wanted: DeviceSetting) -> DeviceSetting:
    if kind is ChangeKind.SET_MODE:
        return replace(current, mode=DeviceMode(wanted.mode))
    if kind in (ChangeKind.LOWER_CLOCK, ChangeKind.RAISE_CLOCK):
        return replace(current, clock_mhz_sm=wanted.clock_mhz_sm)
    return replace(current, power_limit_w=wanted.power_limit_w)


def _with_knob(current: Assignment, kind: ChangeKind, wanted: Assignment) -> Assignment:
    if kind in (ChangeKind.SHRINK_SHARE, ChangeKind.GROW_SHARE):
        return replace(current, share_pct_sm=wanted.share_pct_sm)
    if kind in (ChangeKind.SHRINK_MEMORY, ChangeKind.GROW_MEMORY):
        return replace(current, memory_mib_limit=wanted.memory_mib_limit)
    if kind is ChangeKind.SET_BATCH:
        return replace(current, batch=wanted.batch)
    return replace(current, envelope=wanted.envelope)
