"""Proof that a worker's processes have the part of a device that was ordered, because MPS fails open.

What is looked at: the client list, the environment, the daemon's own limits, and the SM count that a short-lived
process (the probe, a client itself while it lasts, so that it takes a slot) reads in the worker's environment. Neither
server nor limits of a running client can change, so a proof holds as long as the same processes are on the same daemon
and servers; it is renewed now and then all the same.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.devices.parts import ShareOrder
from agents.errors import BypassError, DeviceError, DeviceTimeoutError, SharingError
from agents.mps.daemon import DaemonSeat, await_until
from agents.mps.memo import Memo
from agents.mps.protocols import MpsClient, plain_environment, shortened
from agents.processes import ProcessId, environment_of

PROBE_TIMEOUT_S = 8.0
MEMORY_SLACK_MIB = 2.0
"""Limits are rounded to pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswer:
    """What a process with some environment sees of its device."""

    uuid: str
    sm_count: int
    memory_mib_free: float | None


def probe(command: tuple[str, ...], environment: Mapping[str, str]) -> ProbeAnswer:
    """Run the probe. Raises SharingError when it cannot tell."""
    try:
        done = subprocess.run(
            list(command),
            env=plain_environment(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SharingError(f"the probe did not answer in {PROBE_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise SharingError(f"cannot run the probe {command[0]}: {error.strerror}") from error
    lines = done.stdout.splitlines()
    try:
        found: Any = json.loads(lines[-1]) if lines else {}
        if not found.get("ok"):
            raise SharingError(f"the probe failed: {shortened(str(found.get('error') or done.stderr))}")
        free = found.get("memory_mib_free")
        return ProbeAnswer(
            uuid=str(found["uuid"]),
            sm_count=int(found["sm_count"]),
            memory_mib_free=None if free is None else float(free),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SharingError(f"the probe said {shortened(done.stdout)!r}: {error}") from None


def judge(answer: ProbeAnswer, order: ShareOrder, sm_count_whole: int) -> None:
    """Refuse what is not the ordered part. Shares are rounded down to what the hardware can divide, which only the
    device knows; so any count up to the share will do, but for a part of it never the whole. Raises BypassError.
    """
    if _bare(answer.uuid) != _bare(order.uuid):
        raise BypassError(f"a process of this worker sees device {answer.uuid}")
    ceiling = math.ceil(order.share_pct_sm * sm_count_whole / 100.0)
    if not 0 < answer.sm_count <= ceiling or (order.share_pct_sm < 100 and answer.sm_count >= sm_count_whole):
        raise BypassError(f"{order.share_pct_sm} % of {sm_count_whole} SMs came out as {answer.sm_count}")
    if answer.memory_mib_free is not None and answer.memory_mib_free > order.memory_mib_limit + MEMORY_SLACK_MIB:
        raise BypassError(f"{answer.memory_mib_free:.0f} MiB can be had under a limit of {order.memory_mib_limit} MiB")


def _bare(uuid: str) -> str:
    """The digits alone: MIG devices and whole ones have different prefixes, which the driver's call does not tell."""
    return uuid.partition("-")[2].replace("-", "").lower()


PROOF_S = 300.0
"""How old a proof may get before the daemon is asked again."""
PROBE_RETRY_S = 5.0
LOOK_AGAIN_S = 1.0
"""How long who uses the device may be missing among the clients: one that comes or goes just now is on one list and not
on the other.
"""
SILENCE_S = 5.0
"""How long a daemon that did not answer in time is not asked again, for any worker."""
PROBES_MAX = 3
"""Probes that may fail before a worker whose SM count nobody knows has to go."""
_UNRELATED = ("CUDA_MPS_LOG_DIRECTORY", "CUDA_MPS_CLIENT_PRIORITY")


@dataclass(frozen=True, slots=True)
class SharingProof:
    of: tuple[object, ...]
    at_s: float


@dataclass(slots=True)
class Failure:
    """Why the last probe of a share was no good."""

    count: int
    at_s: float
    error: SharingError


class Proofs:
    def __init__(
        self, memo: Memo, sm_counts: Mapping[str, int], probe_command: tuple[str, ...], now_s: Callable[[], float]
    ) -> None:
        self._memo = memo
        self._sm_counts = sm_counts
        self._probe_command = probe_command
        self._now_s = now_s
        self._proofs: dict[str, SharingProof] = {}
        self._failures: dict[tuple[str, int], Failure] = {}
        self._silent: dict[Path, tuple[float, DeviceTimeoutError]] = {}

    def prove(self, order: ShareOrder, processes: tuple[ProcessId, ...], seat: DaemonSeat) -> int:
        """The SMs it has. Raises BypassError when it has not what was ordered, another DeviceError when nobody can
        tell now.
        """
        of = (order, frozenset(processes), seat.daemon, seat.servers)
        known = self._memo.sm_count(order.uuid, order.share_pct_sm)
        proof = self._proofs.get(order.worker)
        same = proof is not None and proof.of == of and known is not None
        if proof is not None and known is not None and same and self._now_s() - proof.at_s < PROOF_S:
            return known
        try:
            self._prove_clients(order, processes, seat)
            sm_count = known if known is not None else self._probe(order, seat)
        except BypassError:
            self.forget(order.worker)
            raise
        except DeviceError:
            if same and known is not None:
                return known
            raise
        if seat.servers:
            # Without a server to watch, nothing would tell when this ceases to be true.
            self._proofs[order.worker] = SharingProof(of, self._now_s())
        return sm_count

    def forget(self, worker: str) -> None:
        self._proofs.pop(worker, None)

    def _prove_clients(self, order: ShareOrder, processes: tuple[ProcessId, ...], seat: DaemonSeat) -> None:
        if len(processes) > order.processes_max:
            counted = f"{len(processes)} processes use the device, {order.processes_max} were planned"
            raise BypassError(f"{counted}: each has the whole part for itself")
        silent = self._silent.get(seat.pipe)
        if silent is not None and self._now_s() - silent[0] < SILENCE_S:
            raise silent[1]
        try:
            self._prove_each(order, processes, seat)
        except DeviceTimeoutError as error:
            self._silent[seat.pipe] = (self._now_s(), error)
            raise

    def _prove_each(self, order: ShareOrder, processes: tuple[ProcessId, ...], seat: DaemonSeat) -> None:
        wanted = seat.protocol.environment(seat.pipe, order)
        clients: dict[int, MpsClient] = {}

        def all_are_found() -> bool:
            nonlocal clients
            clients = {client.pid: client for client in seat.protocol.clients(seat.control)}
            return all(process.pid in clients or not process.lives for process in processes)

        if not all_are_found():
            await_until(all_are_found, LOOK_AGAIN_S)
        for process in processes:
            client = clients.get(process.pid)
            if client is None:
                problem = f"process {process.pid} runs outside MPS: it is no client of its device's daemon"
            else:
                misfit = _unlike(process, wanted) or seat.protocol.misfit(seat.control, order, client)
                problem = f"process {process.pid}: {misfit}" if misfit else ""
            if problem and process.lives:
                raise BypassError(problem)

    def _probe(self, order: ShareOrder, seat: DaemonSeat) -> int:
        """Read the SM count of a share once, and never again."""
        key = (order.uuid, order.share_pct_sm)
        failure = self._failures.get(key)
        now_s = self._now_s()
        if failure is not None and now_s - failure.at_s < PROBE_RETRY_S:
            raise failure.error
        try:
            answer = probe(self._probe_command, seat.protocol.environment(seat.pipe, order))
            judge(answer, order, self._sm_counts[order.uuid])
        except SharingError as error:
            count = 1 if failure is None else failure.count + 1
            if count >= PROBES_MAX and not isinstance(error, BypassError):
                error = BypassError(f"nobody knows how many SMs it has: {error}")
            self._failures[key] = Failure(count, now_s, error)
            raise error from None
        self._failures.pop(key, None)
        self._memo.put_sm_count(*key, answer.sm_count)
        return answer.sm_count


def _unlike(process: ProcessId, wanted: Mapping[str, str]) -> str:
    """Where a process' environment differs from the one granted; what it was started with is what MPS read."""
    found = environment_of(process.pid)
    if found is None:
        return "its environment cannot be read"
    names = {name for name in found if name.startswith("CUDA_MPS_") and name not in _UNRELATED} | set(wanted)
    for name in sorted(names):
        if found.get(name) != wanted.get(name):
            return f"it was started with {name}={found.get(name)}, not {wanted.get(name)}"
    return ""
