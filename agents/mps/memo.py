"""What must outlive the agent about its daemons: which it started, what they shall hold, and SM counts once proved.

A file that cannot be understood is reported and begun anew: daemons are found again by their pipe directories, and
workers' parts by the checks of the workers. For the same reason a full disk keeps nothing from ending: what could not
be written goes with the next write, and is tried again by whoever tells the same once more.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import asdict, dataclass
from typing import Any

from agents.devices.parts import ShareOrder
from agents.errors import SharingError, StateFileError
from agents.processes import ProcessId
from agents.state import StateDirectory

FILE = "mps.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonRecord:
    """A daemon that was opened and not shut since, with the servers it had when last looked at."""

    process: ProcessId
    protocol: int
    servers: tuple[ProcessId, ...] = ()


class Memo:
    """The file, and what is in it. Safe to use from several threads."""

    def __init__(self, state: StateDirectory) -> None:
        self._state = state
        self._lock = threading.Lock()
        self._daemons: dict[str, DaemonRecord] = {}
        self._orders: dict[str, ShareOrder] = {}
        self._sm_counts: dict[str, int] = {}
        self._owed = False
        """What is known here is not all on disk."""
        self.lost = ""
        """Why what was there could not be read; empty when it could."""
        try:
            self._load(state.read_json(FILE))
        except (StateFileError, ValueError, TypeError, KeyError, AttributeError) as error:
            self._daemons, self._orders, self._sm_counts = {}, {}, {}
            self.lost = f"{FILE}: {error}"

    def daemon(self, uuid: str) -> DaemonRecord | None:
        with self._lock:
            return self._daemons.get(uuid)

    def put_daemon(self, uuid: str, record: DaemonRecord | None) -> None:
        """Remember a device's daemon, or that there is none."""
        with self._lock:
            if self._daemons.get(uuid) == record and not self._owed:
                return
            if record is None:
                self._daemons.pop(uuid, None)
            else:
                self._daemons[uuid] = record
            self._try_to_save()

    def orders(self, uuid: str) -> tuple[ShareOrder, ...]:
        with self._lock:
            return tuple(order for order in self._orders.values() if order.uuid == uuid)

    def order(self, worker: str) -> ShareOrder | None:
        with self._lock:
            return self._orders.get(worker)

    def put_order(self, order: ShareOrder) -> None:
        """Raises SharingError when it cannot be kept."""
        with self._lock:
            before = self._orders
            if before.get(order.worker) == order:
                return
            self._orders = {**before, order.worker: order}
            try:
                self._save()
            except StateFileError as error:
                self._orders = before
                raise SharingError(f"a part that is not on record is not given: {error}") from error

    def forget_order(self, worker: str) -> None:
        with self._lock:
            if self._orders.pop(worker, None) is not None or self._owed:
                self._try_to_save()

    def sm_count(self, uuid: str, share_pct_sm: int) -> int | None:
        """SMs that a share of a device was proved to be."""
        with self._lock:
            return self._sm_counts.get(f"{uuid}/{share_pct_sm}")

    def put_sm_count(self, uuid: str, share_pct_sm: int, sm_count: int) -> None:
        with self._lock:
            self._sm_counts[f"{uuid}/{share_pct_sm}"] = sm_count
            self._try_to_save()

    def _try_to_save(self) -> None:
        self._owed = True
        with contextlib.suppress(StateFileError):
            self._save()

    def _save(self) -> None:
        daemons = {
            uuid: {
                "process": [record.process.pid, record.process.started_ticks],
                "protocol": record.protocol,
                "servers": [[server.pid, server.started_ticks] for server in record.servers],
            }
            for uuid, record in self._daemons.items()
        }
        orders = [asdict(order) for order in self._orders.values()]
        self._state.write_json(FILE, {"daemons": daemons, "orders": orders, "sm_counts": self._sm_counts})
        self._owed = False

    def _load(self, plain: Any) -> None:
        if plain is None:
            return
        for uuid, item in plain["daemons"].items():
            self._daemons[uuid] = DaemonRecord(
                process=_process(item["process"]),
                protocol=int(item["protocol"]),
                servers=tuple(map(_process, item["servers"])),
            )
        orders = [ShareOrder(**item) for item in plain["orders"]]
        self._orders = {order.worker: order for order in orders}
        self._sm_counts = {str(key): int(count) for key, count in plain["sm_counts"].items()}


def _process(pair: list[int]) -> ProcessId:
    pid, started_ticks = pair
    return ProcessId(int(pid), int(started_ticks))
