"""Devices that are not divided: one process has the whole of it, or several take turns.

Owns the little there is to say then, and one check: a process that became the client of some MPS daemon all the same
has limits nobody ordered.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agents.devices.parts import ShareCheck, ShareOrder
from agents.errors import NotFoundError
from agents.mps.processes import environment_of, identify

DEFAULT_PIPE = "/tmp/nvidia-mps"
"""Where processes look for a daemon that are told nothing."""


class NoSharing:
    """`Sharing` for dedicated and time-sliced devices, MIG devices among them. There is no daemon."""

    def __init__(self, sm_counts: Mapping[str, int], default_pipe: Path = Path(DEFAULT_PIPE)) -> None:
        self._sm_counts = sm_counts
        self._default_pipe = default_pipe

    def open(self, uuid: str) -> None:
        """Nothing to open."""

    def shut(self, uuid: str) -> None:
        """Nothing to shut."""

    def running(self, uuid: str) -> bool:
        """There is no daemon on any device."""
        self._sm_count(uuid)
        return False

    def grant(self, order: ShareOrder) -> Mapping[str, str]:
        """The worker sees its device."""
        self._sm_count(order.uuid)
        return {"CUDA_VISIBLE_DEVICES": order.uuid}

    def check(self, order: ShareOrder, pids: tuple[int, ...]) -> ShareCheck:
        """Every process has all SMs, unless it is on a daemon."""
        sm_count = self._sm_count(order.uuid)
        living = [pid for pid in pids if identify(pid) is not None]
        problem = next(filter(None, map(self._stray, living)), "")
        return ShareCheck(sm_count=sm_count, problem=problem, pending=not living)

    def end_client(self, order: ShareOrder, pid: int) -> None:
        """Nobody is a client."""

    def revoke(self, order: ShareOrder) -> None:
        """Nothing is remembered."""

    def problem(self, uuid: str) -> str:
        """What is not there does not fail."""
        self._sm_count(uuid)
        return ""

    def close(self) -> None:
        """Nothing to let go."""

    def _sm_count(self, uuid: str) -> int:
        if uuid not in self._sm_counts:
            raise NotFoundError(f"there is no device {uuid}")
        return self._sm_counts[uuid]

    def _stray(self, pid: int) -> str:
        told = (environment_of(pid) or {}).get("CUDA_MPS_PIPE_DIRECTORY")
        pipe = Path(told) if told else self._default_pipe
        if (pipe / "control").is_socket():
            return f"process {pid} is a client of the MPS daemon in {pipe}, on a device that is not shared"
        return ""
