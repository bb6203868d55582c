"""Which of a host's devices this agent may use: only those it was told, by UUID.

Owns the text of the choice and what it fits. An agent never takes a GPU that was not named, but for `nvml:all`, which
names them all.
"""

from __future__ import annotations

from dataclasses import replace

from agents.devices.nvml.inventory import Found
from agents.errors import ConfigError

PREFIX = "nvml:"
ALL = "all"


def parse_selection(selection: str) -> tuple[str, ...]:
    """UUID prefixes of `nvml:GPU-…,MIG-…`; none of `nvml:all`. Raises ConfigError."""
    names = tuple(name.strip() for name in selection.removeprefix(PREFIX).split(","))
    if selection == PREFIX + ALL:
        return ()
    if not selection.startswith(PREFIX) or not all(name.startswith(("GPU-", "MIG-")) for name in names):
        raise ConfigError(
            f"--devices {selection!r}: expected nvml:all or nvml:GPU-UUID,GPU-UUID,… (unique prefixes do)"
        )
    return names


def select(found: Found, prefixes: tuple[str, ...]) -> Found:
    """The chosen devices. The UUID of a GPU in MIG mode chooses all its MIG devices. Raises ConfigError for a prefix
    that is ambiguous or fits nothing.
    """
    if not prefixes:
        return found
    chosen: set[str] = set()
    for prefix in prefixes:
        owners = {device.parent_uuid for device in found.devices if (device.parent_uuid or "").startswith(prefix)}
        exact = {device.uuid for device in found.devices if device.uuid.startswith(prefix)}
        if len(owners | exact) > 1:
            raise ConfigError(f"--devices: {prefix} fits several GPUs: {', '.join(sorted(map(str, owners | exact)))}")
        if not owners | exact:
            notes = f" ({'; '.join(found.notes)})" if found.notes else ""
            raise ConfigError(f"--devices: no usable GPU's UUID begins with {prefix}{notes}")
        chosen |= exact | {device.uuid for device in found.devices if device.parent_uuid in owners}
    return replace(found, devices=tuple(device for device in found.devices if device.uuid in chosen))
