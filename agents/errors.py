"""Everything that can go wrong on a GPU host, as one tree.

Back ends translate their vendor's codes into it: those of NVML are named beside each class, so that a table can be
checked for completeness.
"""

from __future__ import annotations

from typing import ClassVar


class AgentError(Exception):
    """Base of all errors of an agent: a stable code and whether trying again can help."""

    code: ClassVar[str] = "agent-error"
    retryable: ClassVar[bool] = False


class ConfigError(AgentError):
    """The agent was started with something it cannot work with."""

    code = "config-invalid"


class StateFileError(AgentError):
    code = "state-unusable"


class TargetRefusedError(AgentError):
    """What the control plane asks for is not for this node, is older than what it holds, or breaks a hard limit."""

    code = "target-refused"


class ForeignTargetError(TargetRefusedError):
    """The target is of another cluster, or of an epoch that is over; so are all others that come whence it came."""


class DeviceError(AgentError):
    """A device, its driver or its sharing daemon did not do what was asked."""

    code = "device-error"
    retryable = True


class NotSupportedError(DeviceError):
    """The device cannot do this at all (NVML 3, 13, 22, 25, 26, 30)."""

    code = "not-supported"
    retryable = False


class NoPermissionError(DeviceError):
    """The agent may not do this (NVML 4, 17)."""

    code = "no-permission"
    retryable = False


class OutOfRangeError(DeviceError):
    """A value outside what the device accepts (NVML 2, 24)."""

    code = "out-of-range"
    retryable = False


class BusyError(DeviceError):
    """Not now: share, client slots or the mode are taken, or there is nothing to tell yet (NVML 19, 21, 23, 27, 29)."""

    code = "busy"


class OutOfMemoryError(DeviceError):
    """The memory limits of the processes on a device would exceed its memory, or a process its own limit (NVML 20)."""

    code = "out-of-memory"


class DeviceTimeoutError(DeviceError):
    """The driver or daemon did not answer in time (NVML 10)."""

    code = "timeout"


class NotFoundError(DeviceError):
    """No such device or worker (NVML 6)."""

    code = "not-found"
    retryable = False


class LostError(DeviceError):
    """The device has fallen off the bus or needs a reset (NVML 15, 16, 28)."""

    code = "lost"


class SharingError(DeviceError):
    """The sharing daemon of a device is down, in fault, or does not hold what it was told."""

    code = "sharing"


class BypassError(SharingError):
    """A process runs on a device without the share or memory limit it shall have."""

    code = "bypass"


class WorkerError(DeviceError):
    """A worker's process could not be started, does not answer, or ended by itself."""

    code = "worker"


class DriverError(DeviceError):
    """The driver is missing, mismatched or answered something unknown (NVML 1, 5, 7, 8, 9, 11, 12, 14, 18, 999)."""

    code = "driver"
