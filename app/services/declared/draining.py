"""Taking a node out of use and back: the flag on its document, and how far the node has come since.

A node is empty when the target has nothing for it and it has said itself, since it applied that, that nothing runs on
it. What keeps it from being so is told with its reason; nothing here waits, and nothing is ended before its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from app import kinds
from app.records import record
from app.services.declared.documents import Documents
from app.services.declared.tokens import Deed
from app.services.explaining.short import ShortLine
from app.services.planning.snapshots import read_policy
from app.store import documents, nodes, plans, targets, telemetry
from app.store.documents import Precondition
from app.store.engine import Database
from app.store.nodes import NodeState
from app.store.targets import NodeDocument
from solvers.domain.codec import Plain, from_plain
from solvers.domain.device import Device, Node
from solvers.domain.plan import Assignment
from solvers.domain.workload import ServiceMode

_HELD_BY = {
    ServiceMode.OFF: "it is in mode off, so nothing moves it",
    ServiceMode.SHADOW: "it is in mode shadow, so nothing moves it",
    ServiceMode.APPROVE: "somebody has to approve a plan that moves it",
    ServiceMode.AUTO: "it leaves with the next plan",
}


@record
class NodeDrain:
    """How far a node is from being empty."""

    node: str
    schedulable: bool
    empty: bool
    """Nothing is planned for it, and it said itself that nothing runs on it: it is safe to reboot."""
    planned: tuple[str, ...]
    """Replicas that the target has on it."""
    running: tuple[str, ...]
    """Replicas of which it said last that it holds them."""
    blocks: tuple[str, ...]
    """What it waits for, with the reason."""
    age_s: float | None
    """Since it reported last; null before the first time."""
    short: tuple[ShortLine, ...]
    """Who has no place in the standing plan, or too little of it, whatever for; as the fleet's summary has it."""


class Draining:
    def __init__(
        self,
        database: Database,
        cluster: str,
        declared: Documents,
        short: Callable[[Session], tuple[ShortLine, ...]],
    ) -> None:
        self._database, self._cluster, self._declared, self._short = database, cluster, declared, short

    def drain(self, node: str, comment: str | None, deed: Deed) -> NodeDrain:
        """Plan nothing on a node any more. Raises NotFoundError."""
        return self._set(node, schedulable=False, comment=comment, deed=deed)

    def uncordon(self, node: str, comment: str | None, deed: Deed) -> NodeDrain:
        """Let plans use a node again. Raises NotFoundError."""
        return self._set(node, schedulable=True, comment=comment, deed=deed)

    def _set(self, node: str, *, schedulable: bool, comment: str | None, deed: Deed) -> NodeDrain:
        wish, verb = {"schedulable": schedulable}, "uncordoned" if schedulable else "drained"
        before = self._declared.get(kinds.NODE, (node,)).spec["schedulable"]
        self._declared.patch(kinds.NODE, (node,), wish, _node, Precondition(), deed)
        with self._database.transaction() as session:
            # Promotions that looked at the node before end first, so that what they plan for it is told.
            targets.lock(session, self._cluster)
            if before is not schedulable:
                changed: Plain = {"/schedulable": {"from": before, "to": schedulable}}
                deed.note(session, f"node.{verb}", f"nodes/{node}", {"changed": changed, "comment": comment or ""})
        with self._database.transaction() as session:  # which sees what a request that is not over has written
            return self._progress(session, node)

    def progress(self, node: str) -> NodeDrain:
        """How far it is. Raises NotFoundError."""
        return self._database.read(self._progress, node)

    def _progress(self, session: Session, node: str) -> NodeDrain:
        return _progress(session, self._cluster, node, self._short(session))


def _node(plain: Mapping[str, Any]) -> Node:
    return from_plain(Node, dict(plain))


def _progress(session: Session, cluster: str, node: str, short: tuple[ShortLine, ...]) -> NodeDrain:
    spec = documents.get(session, kinds.NODE, (node,)).spec
    silent_s = read_policy(session).device_silent_after_s
    state, told = nodes.find(session, node), targets.node_document(session, node)
    own = {device.id for device in documents.values(session, kinds.DEVICE, Device) if device.node == node}
    planned = [item for item in targets.current(session, cluster).assignments if item.device in own]
    running = sorted({row.replica for row in telemetry.replicas(session, silent_s) if row.uuid in own})
    blocks = [*_blocks(session, cluster, planned), *_of_node(state, told, silent_s)]
    left = sorted(set(running) - {item.replica for item in planned})
    blocks += [f"{replica} is not planned here any more, but still runs" for replica in left]
    return NodeDrain(
        node=node,
        schedulable=bool(spec["schedulable"]),
        empty=not blocks and not spec["schedulable"],
        planned=tuple(sorted(item.replica for item in planned)),
        running=tuple(running),
        blocks=tuple(blocks),
        age_s=None if state is None else state.age_s,
        short=short,
    )


def _blocks(session: Session, cluster: str, planned: list[Assignment]) -> Iterator[str]:
    """Why what is planned there still is."""
    held = targets.held_back(session, cluster)
    waits = next((item.id for item in plans.waiting(session)), None)
    for item in sorted(planned, key=lambda each: each.replica):
        stored = documents.find(session, kinds.named(item.kind.value), tuple(item.workload.split("/")))
        mode = ServiceMode(str(stored.spec["mode"])) if stored is not None else ServiceMode.AUTO
        why = _HELD_BY[mode]
        if mode is ServiceMode.APPROVE and waits is not None:
            why += f": {waits.removeprefix('sha256:')[:12]} waits"
        elif mode is ServiceMode.AUTO and held is not None:
            why = f"planning is held until {_clock(held.until)} by {held.by_name or held.by}"
        yield f"{item.replica} is planned here: {why}"


def _of_node(state: NodeState | None, told: NodeDocument | None, silent_s: float) -> Iterator[str]:
    """Why what the node says cannot be relied on yet."""
    if state is None or state.age_s is None:
        yield "it has never reported: what runs on it is not known"
    elif state.age_s > silent_s:
        yield f"it has been silent for {state.age_s:.0f} s: what runs on it is not known"
    elif told is not None and state.generation_applied < told.generation:
        yield f"it applied generation {state.generation_applied}, and {told.generation} stands"


def _clock(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
