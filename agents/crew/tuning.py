"""Handing a running worker another batch size or latency limit.

Owns the waiting: a request takes milliseconds, loading a model anew takes minutes. Whoever tunes waits a moment; what
takes longer goes on in a thread of its own and is found done, or failed, by the next one who tunes alike.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from agents.crew.adapters import Talk, adapter_of
from agents.crew.bench import CrewBench
from agents.crew.member import CrewMember
from agents.devices.base import WorkerSpec
from agents.errors import AgentError, BusyError, DeviceError, NotSupportedError, WorkerError

WAIT_S = 3.0


@dataclass(slots=True, eq=False)
class _Change:
    spec: WorkerSpec
    over: threading.Event = field(default_factory=threading.Event)
    error: DeviceError | None = None


class MemberTuning:
    """Changes under way, one at a time for each worker."""

    def __init__(self, bench: CrewBench) -> None:
        self._bench = bench
        self._changes: dict[str, _Change] = {}

    def tune(self, member: CrewMember, spec: WorkerSpec) -> None:
        """Hand it over. Raises BusyError while a change is under way, WorkerError when it failed."""
        with self._bench.lock:
            change = self._changes.get(member.name)
            if change is None:
                change = self._changes[member.name] = _Change(spec)
                begun = change
                self._bench.host.aside(lambda: self._carry_out(member, begun))
        if not change.over.wait(WAIT_S):
            raise BusyError(f"{member.name} still takes its new batch size")
        with self._bench.lock:
            if self._changes.get(member.name) is change:
                del self._changes[member.name]
        if change.error is not None:
            raise change.error
        if change.spec != spec:
            raise BusyError(f"{member.name} has just taken another batch size")

    def _carry_out(self, member: CrewMember, change: _Change) -> None:
        try:
            _tell(self._bench, member, change.spec)
            with self._bench.lock:
                member.spec = member.spec.tuned_as(change.spec)
                if self._bench.members.get(member.name) is member:
                    self._bench.save(member)
        except DeviceError as error:
            change.error = error
        except (AgentError, TypeError, ValueError, KeyError) as error:
            # What a server answers may be anything.
            change.error = WorkerError(f"{member.name}: {type(error).__name__}: {error}")
        finally:
            change.over.set()


def hand_over(bench: CrewBench, member: CrewMember, spec: WorkerSpec) -> None:
    """Have a server take the batch size of `spec`, and its limit where it has a use for one. Raises AgentError."""
    retune, target = adapter_of(member.target).retune, member.target
    if retune is None:
        return
    offset = 1 if target.metrics_port_offset else 0
    host, port = bench.options.host, member.port
    retune(Talk(ask=bench.host.fetch, host=host, port=port, management_port=port + offset), spec)


def _tell(bench: CrewBench, member: CrewMember, spec: WorkerSpec) -> None:
    """A limit that the server has no use for is the agent's alone."""
    same_batch = spec.batch == member.spec.batch
    if same_batch and adapter_of(member.target).name != "http":
        return
    try:
        hand_over(bench, member, spec)
    except NotSupportedError:
        if not same_batch:
            raise
