"""What goes wrong in a simulated world, and what ends it.

Owns the meaning of every kind of fault. A fault begins and ends as an event; several may hold at once. A node or device
that comes back holds nothing and sets about what it is told now. It refuses to be random: faults are inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from solvers.domain.ids import DeviceId, NodeId
from solvers.errors import InputError
from solvers.sim.kernel import Priority
from solvers.sim.scenario import Fault, FaultKind
from solvers.sim.world.nodes import Nodes
from solvers.sim.world.state import Cell, Host, State


@dataclass(slots=True)
class Faults:
    """Lets faults happen. `tell` hears of each, `freeze` of every node that falls silent."""

    state: State
    nodes: Nodes
    tell: Callable[[str, str], None]
    freeze: Callable[[Host], None]

    def plan(self, faults: tuple[Fault, ...], until_s: float) -> None:
        """Plan all of them. Raises InputError for one whose subject cannot have it."""
        for fault in faults:
            self._check(fault)
            if fault.at_s < until_s:
                self.state.kernel.at(fault.at_s, Priority.FAULT, partial(self._begin, fault))

    def _check(self, fault: Fault) -> None:
        if fault.kind in (FaultKind.NODE_LOST, FaultKind.NODE_SILENT) and NodeId(fault.subject) not in self.state.hosts:
            raise InputError(f"{fault.kind.value}: {fault.subject} is no node")

    def _begin(self, fault: Fault) -> None:
        self.tell("fault", f"{fault.kind.value} {fault.subject} for {fault.lasts_s:g} s")
        self._turn(fault, 1)
        self.state.kernel.at(self.state.now_s + fault.lasts_s, Priority.FAULT, lambda: self._turn(fault, -1))

    def _turn(self, fault: Fault, sign: int) -> None:
        """Begin (+1) or end (-1) it."""
        match fault.kind:
            case FaultKind.PLANNER_DOWN:
                self.state.planner_down += sign
            case FaultKind.NODE_LOST | FaultKind.NODE_SILENT:
                self._node(self.state.hosts[NodeId(fault.subject)], fault.kind, sign)
            case FaultKind.REPLICA_CRASH:
                if sign > 0:
                    self._crash(self._cells(fault))
            case _:
                for cell in self._cells(fault):
                    self._device(cell, fault, sign)

    def _node(self, host: Host, kind: FaultKind, sign: int) -> None:
        if sign > 0:
            self.freeze(host)
        if kind is FaultKind.NODE_SILENT:
            host.silent += sign
        else:
            host.lost += sign
        for cell in host.cells:
            if host.lost:
                self._empty(cell)
            self.state.touch(cell)
        if host.reachable:
            self.nodes.hear(host, self.state.wish)

    def _device(self, cell: Cell, fault: Fault, sign: int) -> None:
        match fault.kind:
            case FaultKind.DEVICE_LOST:
                cell.lost += sign
                if cell.gone:
                    self._empty(cell)
                else:
                    self.nodes.reconcile(cell)
            case FaultKind.SLOW_DEVICE:
                cell.slow = round(cell.slow * fault.factor**sign, 9)
            case _:
                cell.limit_factor = round(cell.limit_factor * fault.factor**sign, 9)
        self.state.touch(cell)

    def _crash(self, cells: list[Cell]) -> None:
        working = [each for cell in cells for each in cell.processes if each.working]
        if working:
            victim = min(working, key=lambda each: (each.item.replica, each.serial))
            self.nodes.end(victim)
            self.nodes.reconcile(victim.cell)

    def _empty(self, cell: Cell) -> None:
        for process in tuple(cell.processes):
            self.nodes.end(process)

    def _cells(self, fault: Fault) -> list[Cell]:
        """The devices that a fault is about."""
        host = self.state.hosts.get(NodeId(fault.subject))
        return host.cells if host is not None else [self.state.cells[DeviceId(fault.subject)]]
