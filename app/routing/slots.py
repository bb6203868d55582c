"""Which runtime commands make a backend's slots hold the servers of a service: pure, from what HAProxy shows.

Owns the order. A server that is new gets a free slot: address and weight while the slot is in maintenance, then ready.
One that left is drained: it gets no new requests and finishes what it has; when its last connection is gone its slot is
free. Nothing is commanded that is so already, so that the same routes twice change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.routing.routes import Server

FORCED_MAINTENANCE, FORCED_DRAIN = 0x01, 0x08
IN_MAINTENANCE = 0x01 | 0x02 | 0x20
DRAINING = 0x08 | 0x10


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A server of a backend as HAProxy has it. `used` counts connections that carry a request."""

    name: str
    host: str
    port: int
    weight: int
    admin_state: int
    used: int = 0

    @property
    def in_maintenance(self) -> bool:
        """Whether it takes nothing at all."""
        return bool(self.admin_state & IN_MAINTENANCE)

    @property
    def draining(self) -> bool:
        """Whether it only finishes what it has."""
        return not self.in_maintenance and bool(self.admin_state & DRAINING)

    @property
    def ready(self) -> bool:
        """Whether it takes requests, as far as anybody commanded."""
        return not self.admin_state & (IN_MAINTENANCE | DRAINING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command, what it is called in the log, and the server it is about."""

    event: str
    slot: str
    server: str
    words: str
    weight: int | None = None
    must_say: str = ""
    """What the answer contains when it worked; empty: the answer is empty, too."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Commands in order, and servers for which no slot was free."""

    commands: tuple[Command, ...]
    homeless: tuple[Server, ...]


def changes(wanted: Iterable[Server], slots: Sequence[Slot]) -> Changes:
    """What to command. Hosts of servers are addresses, as HAProxy writes them."""
    by_place = {(server.host, server.port): server for server in wanted}
    held: dict[tuple[str, int], Slot] = {}
    spare: list[Slot] = []
    for slot in sorted(slots, key=lambda each: not each.ready):
        place = (slot.host, slot.port)
        if place in by_place and place not in held:
            held[place] = slot
        else:
            spare.append(slot)
    commands: list[Command] = []
    homeless = []
    free = sorted(spare, key=_reluctance)
    taken = set()
    for place, server in by_place.items():
        if place in held:
            commands += _keep(held[place], server)
        elif free:
            slot = free.pop(0)
            taken.add(slot.name)
            commands += _fill(slot, server)
        else:
            homeless.append(server)
    # New ones first: the old go on until the new take requests.
    for slot in spare:
        if slot.name not in taken:
            commands += _empty(slot)
    return Changes(tuple(commands), tuple(homeless))


def _reluctance(slot: Slot) -> tuple[bool, bool, int]:
    """Which slots are filled last. Even a used one may be: requests that it carries keep their connections."""
    return not slot.in_maintenance, slot.ready, slot.used


def _keep(slot: Slot, server: Server) -> Iterator[Command]:
    if slot.weight != server.weight:
        yield _weight(slot, server)
    if not slot.ready:
        yield _state("route.server_ready", slot, server.address, "ready")


def _fill(slot: Slot, server: Server) -> Iterator[Command]:
    if not slot.in_maintenance:
        yield _state("route.slot_freed", slot, _address(slot), "maint")
    yield Command(
        event="route.server_placed",
        slot=slot.name,
        server=server.address,
        words=f"addr {server.host} port {server.port}",
        weight=server.weight,
        must_say="chang",
    )
    if slot.weight != server.weight:
        yield _weight(slot, server)
    yield _state("route.server_ready", slot, server.address, "ready")


def _empty(slot: Slot) -> Iterator[Command]:
    if slot.ready:
        yield _state("route.server_drained", slot, _address(slot), "drain")
    elif slot.draining and slot.used == 0:
        yield _state("route.slot_freed", slot, _address(slot), "maint")


def _weight(slot: Slot, server: Server) -> Command:
    return Command(
        event="route.weight_set",
        slot=slot.name,
        server=server.address,
        words=f"weight {server.weight}",
        weight=server.weight,
    )


def _state(event: str, slot: Slot, server: str, state: str) -> Command:
    return Command(event=event, slot=slot.name, server=server, words=f"state {state}")


def _address(slot: Slot) -> str:
    return f"[{slot.host}]:{slot.port}" if ":" in slot.host else f"{slot.host}:{slot.port}"


def read_slots(states: str, connections: str) -> Mapping[str, tuple[Slot, ...]]:
    """Slots by backend from `show servers state` and `show servers conn`. Raises ValueError for any other text."""
    used = {}
    for row in _rows(connections, "bkname/svname"):
        used[row["bkname/svname"]] = int(row["used_cur"])
    found: dict[str, list[Slot]] = {}
    for row in _rows(states, "be_id"):
        backend = row["be_name"]
        found.setdefault(backend, []).append(
            Slot(
                name=row["srv_name"],
                host=row["srv_addr"],
                port=int(row["srv_port"]),
                weight=int(row["srv_uweight"]),
                admin_state=int(row["srv_admin_state"]),
                used=used.get(f"{backend}/{row['srv_name']}", 0),
            )
        )
    return {backend: tuple(slots) for backend, slots in found.items()}


def _rows(text: str, first: str) -> Iterator[dict[str, str]]:
    lines = [line for line in text.splitlines() if line.strip()]
    heads = [position for position, line in enumerate(lines) if line.startswith(f"# {first} ")]
    if not heads:
        raise ValueError(f"no table of {first}: {text.strip()[:200]!r}")
    names = lines[heads[0]].removeprefix("# ").split()
    for line in lines[heads[0] + 1 :]:
        yield dict(zip(names, line.split(), strict=False))
