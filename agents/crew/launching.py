"""Starting a worker's process, and finding it again.

Owns the order in which a start is written down and done: first the record, then the process, so that whichever instant
an agent dies in, the next one finds what runs by the mark in its environment.
"""

from __future__ import annotations

import os
import uuid

from agents.crew.bench import CrewBench, file_name, safe_name
from agents.crew.member import CrewMember, Phase, member_from_plain, member_to_plain
from agents.crew.processes import ProcessId
from agents.crew.templates import check_allowed, invocation, placed
from agents.errors import AgentError, DeviceError, StateFileError, WorkerError


class Launcher:
    """Starts members and adopts those of an earlier agent."""

    def __init__(self, bench: CrewBench) -> None:
        self._bench = bench
        self.lost: list[str] = []
        """State files that nobody can read."""

    def start(self, member: CrewMember) -> None:
        """Start the process. Raises DeviceError; then nothing runs."""
        bench, order = self._bench, member.order
        if order is None:
            raise WorkerError(f"{member.name} has been started before")
        member.mark = f"{member.name}/{uuid.uuid4().hex[:12]}"
        ready = invocation(order, member.target, placed(order, bench.options.host, member.port), member.mark)
        check_allowed(ready.arguments[0], bench.options.executables)
        memory_mib_max = member.target.host_memory_mib_max
        if memory_mib_max is not None:
            member.note = bench.host.limits.prepare(safe_name(member.name), memory_mib_max)
        member.since_s = bench.now_s()
        self._write_before(member)
        log = bench.logs.open(safe_name(member.name))
        try:
            member.process = bench.host.processes.start(ready, log)
        finally:
            os.close(log)
        if memory_mib_max is not None:
            entered = bench.host.limits.enter(safe_name(member.name), member.process.pid)
            member.note = member.note or entered
        member.order, member.pids, member.problem = None, (member.process.pid,), ""
        member.tally.told_s = bench.now_s()
        member.enter(Phase.STARTING, bench.now_s())
        bench.save(member)

    def _write_before(self, member: CrewMember) -> None:
        """What cannot be written down is not started: nobody would ever find it."""
        bench = self._bench
        try:
            bench.state.write_json(file_name(member.name), member_to_plain(member, bench.host.boot_id))
        except StateFileError as error:
            raise WorkerError(str(error)) from error

    def adopt(self) -> None:
        """Find the workers of an earlier agent. Those of an earlier boot are no more, those never started are not
        wanted any more.
        """
        for path in sorted(self._bench.state.path.glob("*.json")):
            try:
                plain = self._bench.state.read_json(path.name)
                if not isinstance(plain, dict):
                    raise ValueError("no object")
                if plain["boot_id"] != self._bench.host.boot_id:
                    path.unlink()
                    continue
                member = member_from_plain(plain, self._bench.now_s())
            except (AgentError, KeyError, TypeError, ValueError, OSError) as error:
                self.lost.append(f"{path.name}: {type(error).__name__}: {error}")
                continue
            member.process = member.process or self._unwritten(member)
            if member.process is None:
                path.unlink(missing_ok=True)
            else:
                self._take_in(member)

    def _unwritten(self, member: CrewMember) -> ProcessId | None:
        """The process of a start that its agent did not live to write down: the first with its mark."""
        marked = self._bench.host.processes.marked(member.mark) if member.mark else ()
        member.phase = Phase.STARTING
        return min(marked, key=lambda each: (each.started_ticks, each.pid), default=None)

    def _take_in(self, member: CrewMember) -> None:
        bench = self._bench
        try:
            bench.ports.hold(member.name, range(member.port, member.port + member.port_count))
        except DeviceError as error:
            member.note = str(error)
        member.finish_by_s = member.since_s + bench.options.route_grace_s + member.target.drain_s
        bench.members[member.name] = member
        bench.save(member)
