"""Proof that a worker's processes have the part of a device that was ordered, because MPS fails open.

Owns what is looked at (client list, environment, the daemon's own limits, the SM count a probe reads in the worker's
environment) and what was proved lately. Neither server nor limits of a running client can change, so a proof holds as
long as the same processes are on the same daemon and servers; it is renewed now and then all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agents.devices.parts import ShareOrder
from agents.errors import BypassError, DeviceError, DeviceTimeoutError, SharingError
from agents.mps.device import DaemonSeat
from agents.mps.memo import Memo
from agents.mps.probing import judge, probe
from agents.mps.processes import MpsProcessId, environment_of
from agents.mps.protocol import MpsClient

PROOF_S = 300.0
"""How old a proof may get before the daemon is asked again."""
PROBE_RETRY_S = 5.0
SILENCE_S = 5.0
"""How long a daemon that did not answer in time is not asked again, for any worker."""
PROBES_MAX = 3
"""Probes that may fail before a worker whose SM count nobody knows has to go."""
_UNRELATED = ("CUDA_MPS_LOG_DIRECTORY", "CUDA_MPS_CLIENT_PRIORITY")


@dataclass(frozen=True, slots=True)
class SharingProof:
    """What was proved, and when."""

    of: tuple[object, ...]
    at_s: float


@dataclass(slots=True)
class Failure:
    """Why the last probe of a share was no good."""

    count: int
    at_s: float
    error: SharingError


class Proofs:
    """Proofs of all workers."""

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

    def prove(self, order: ShareOrder, processes: tuple[MpsProcessId, ...], seat: DaemonSeat) -> int:
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
        """Prove it anew."""
        self._proofs.pop(worker, None)

    def _prove_clients(self, order: ShareOrder, processes: tuple[MpsProcessId, ...], seat: DaemonSeat) -> None:
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

    def _prove_each(self, order: ShareOrder, processes: tuple[MpsProcessId, ...], seat: DaemonSeat) -> None:
        wanted = seat.protocol.environment(seat.pipe, order)
        clients = {client.pid: client for client in seat.protocol.clients(seat.control)}
        for process in processes:
            client = clients.get(process.pid)
            problem = (
                _outside(process) if client is None else _unlike(process, wanted) or self._misfit(order, client, seat)
            )
            if problem and process.lives:
                raise BypassError(problem)

    def _misfit(self, order: ShareOrder, client: MpsClient, seat: DaemonSeat) -> str:
        found = seat.protocol.misfit(seat.control, order, client)
        return f"process {client.pid}: {found}" if found else ""

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


def _outside(process: MpsProcessId) -> str:
    return f"process {process.pid} runs outside MPS: it is no client of its device's daemon"


def _unlike(process: MpsProcessId, wanted: Mapping[str, str]) -> str:
    """Where a process' environment differs from the one granted; what it was started with is what MPS read."""
    found = environment_of(process.pid)
    if found is None:
        return f"process {process.pid}: its environment cannot be read"
    names = {name for name in found if name.startswith("CUDA_MPS_") and name not in _UNRELATED} | set(wanted)
    for name in sorted(names):
        if found.get(name) != wanted.get(name):
            return f"process {process.pid} was started with {name}={found.get(name)}, not {wanted.get(name)}"
    return ""
