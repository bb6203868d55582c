"""The end of a worker: asked first, then taken off its device's server, then killed, with all its children.

Owns that order and how it is known that nothing is left. Killing waits until `stop_s` is over and until somebody has
said how a client is taken off its server, because a client killed with work in flight can wedge that server for its
neighbours.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from agents.crew.bench import CrewBench, safe_name
from agents.crew.member import CrewMember, Phase
from agents.crew.processes import ProcessId
from agents.errors import AgentError

LOOK_S = 0.1
LOOK_FAR_S = 1.0
"""Between looks at every process's environment, which cost."""
KILL_AGAIN_S = 1.0


class Undertaker:
    """Ends members. All but `_kill` under the bench's lock."""

    def __init__(self, bench: CrewBench) -> None:
        self._bench = bench

    def begin(self, member: CrewMember, before_kill: Callable[[int], None]) -> None:
        """Ask it to end. Asking again changes nothing but who takes clients off."""
        now_s = self._bench.now_s()
        member.before_kill = before_kill
        if member.phase is Phase.ENDING and member.kill_at_s > 0.0:
            return
        member.enter(Phase.ENDING, now_s)
        member.kill_at_s = now_s + member.target.stop_s
        member.next_ask_s = 0.0
        if member.process is None:
            self._bench.forget(member)
            return
        self._bench.save(member)
        if self._bench.host.processes.alive(member.process):
            self._bench.host.processes.send(member.process, signal.SIGTERM)
        self.visit(member)

    def visit(self, member: CrewMember) -> float:
        """Look whether it is gone, kill when it is time; when to look again."""
        processes, now_s = self._bench.host.processes, self._bench.now_s()
        assert member.process is not None
        processes.exit_status(member.process)
        left = processes.sessions((member.process,))[member.process]
        if not left:
            if now_s < member.next_ask_s:
                return member.next_ask_s
            left = self._strays(member)
            member.next_ask_s = now_s + LOOK_FAR_S
        member.pids = tuple(each.pid for each in left)
        if not left:
            self._bench.forget(member)
            return now_s
        if member.process not in left and not member.children_told:
            member.children_told = True
            for each in left:
                processes.send(each, signal.SIGTERM)
        if 0.0 < member.kill_at_s <= now_s and member.before_kill is not None and not member.killing:
            member.killing = True
            before_kill = member.before_kill
            self._bench.host.aside(lambda: self._kill(member, left, before_kill))
        return now_s + LOOK_S

    def _strays(self, member: CrewMember) -> tuple[ProcessId, ...]:
        """Children that left the session, as far as they can be told."""
        processes = self._bench.host.processes
        marked = processes.marked(member.mark) if member.mark else ()
        grouped = frozenset(self._bench.host.limits.members(safe_name(member.name)))
        return (*marked, *processes.identify(grouped - {each.pid for each in marked}))

    def _kill(self, member: CrewMember, left: tuple[ProcessId, ...], before_kill: Callable[[int], None]) -> None:
        """May wait for a daemon: in a thread of its own, without the lock."""
        problem = ""
        for each in left:
            try:
                before_kill(each.pid)
            except AgentError as error:
                # A daemon that does not answer has no client to be wedged by; waiting for it would keep the share.
                problem = str(error)
        for each in left:
            self._bench.host.processes.send(each, signal.SIGKILL)
        with self._bench.lock:
            member.note = problem or member.note
            member.killing = False
            member.kill_at_s = self._bench.now_s() + KILL_AGAIN_S
