"""Looking after every worker in turn: is it there, is it ready, has it finished what it had, is it gone.

One thread makes the rounds; it holds the lock of the members while it looks and never while it waits, so nobody who
reads workers waits for one of them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from agents.crew.adapters import Talk, adapter_of, batch_untold
from agents.crew.launching import Launcher
from agents.crew.member import CrewBench, CrewMember, Phase, safe_name
from agents.crew.metrics import read_page
from agents.crew.web import Question, WebAnswer
from agents.devices.base import WorkerSpec
from agents.errors import AgentError, DeviceError, WorkerError
from agents.processes import ProcessId
from agents.wire import WarmUpTarget

# --- The end of a worker: asked first, then taken off its device's server, then killed, with all its children
#
# Killing waits until `stop_s` is over and until somebody has said how a client is taken off its server, because a
# client killed with work in flight can wedge that server for its neighbours.


ENDING_LOOK_S = 0.1
LOOK_FAR_S = 1.0
"""Between looks at every process's environment, which cost."""
KILL_AGAIN_S = 1.0
TAKE_OFF_S = 10.0
"""So long processes are taken off their server, all together; the rest is killed as it is. There may be thousands, or a
daemon that answers none of its questions."""


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
            try:
                self._bench.host.aside(lambda: self._kill(member, left, before_kill))
            except WorkerError:
                # Whoever used up the host's threads may be this one, and nothing could be asked of a daemon now.
                self._kill(member, left, lambda _: None)
        return now_s + ENDING_LOOK_S

    def _strays(self, member: CrewMember) -> tuple[ProcessId, ...]:
        """Children that left the session, as far as they can be told."""
        processes = self._bench.host.processes
        marked = processes.marked(member.mark) if member.mark else ()
        grouped = frozenset(self._bench.host.limits.members(safe_name(member.name)))
        return (*marked, *processes.identify(grouped - {each.pid for each in marked}))

    def _kill(self, member: CrewMember, left: tuple[ProcessId, ...], before_kill: Callable[[int], None]) -> None:
        """May wait for a daemon: in a thread of its own, without the lock."""
        problem, until_s = "", self._bench.now_s() + TAKE_OFF_S
        for each in left:
            if self._bench.now_s() > until_s:
                break
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


# --- The questions a worker is asked, as its description and its adapter want them
#
# Asked from the thread that makes the rounds, under the bench's lock; answers take the lock themselves.


READY_TIMEOUT_S, METRICS_TIMEOUT_S = 2.0, 2.0

Heard = Callable[[WebAnswer], None]


class Questions:
    def __init__(self, bench: CrewBench) -> None:
        self._bench = bench

    def ready(self, member: CrewMember, heard: Heard) -> None:
        path = member.target.ready_path or adapter_of(member.target).ready_path.replace("{model}", member.spec.model)
        self._ask(member, "ready", heard, port=member.port, path=path, timeout_s=READY_TIMEOUT_S)

    def warm_up(self, member: CrewMember, warm_up: WarmUpTarget, heard: Heard) -> None:
        self._ask(
            member,
            "warm",
            heard,
            port=member.port,
            path=warm_up.path,
            method="POST" if warm_up.body else "GET",
            body=warm_up.body.encode(),
            content_type=warm_up.content_type,
            timeout_s=warm_up.timeout_s,
        )

    def finish(self, member: CrewMember) -> None:
        """Tell it to finish; servers that cannot be told just stop being asked."""
        path = adapter_of(member.target).drain_path
        if path is not None:
            self._ask(member, "finish", lambda _: None, port=member.port, path=path, method="POST")

    def metrics(self, member: CrewMember, then: Callable[[], None] = lambda: None) -> None:
        """Read its metrics into its tally; `then` in any case, also where there are none."""
        if not member.counts or member.process is None:
            member.scrape_wanted = False
            then()
            return
        adapter = adapter_of(member.target)

        def heard(answer: WebAnswer) -> None:
            member.scrape_wanted, member.scraped_s = False, self._bench.now_s()
            member.silent = answer.status == 0
            if answer.good and member.phase is not Phase.DONE:
                page = read_page(answer.body, adapter.names)
                page = page.of_model(member.spec.model, adapter.model_label) if adapter.model_label else page
                member.tally.read(adapter.totals(page), member.scraped_s)
            then()

        port = member.port + member.target.metrics_port_offset
        path = member.target.metrics_path or adapter.metrics_path
        self._ask(member, "metrics", heard, port=port, path=path, timeout_s=METRICS_TIMEOUT_S)

    def _ask(self, member: CrewMember, what: str, heard: Heard, **asked: Any) -> None:
        """Ask it, unless it is being asked that."""
        if what in member.asking:
            return
        member.asking.add(what)

        def answered(answer: WebAnswer) -> None:
            with self._bench.lock:
                member.asking.discard(what)
                if self._bench.members.get(member.name) is member:
                    heard(answer)

        self._bench.host.web.ask(Question(host=self._bench.options.host, **asked), answered)


LOOK_S = 1.0
ASK_QUICK_S, ASK_PATIENCE = 0.1, 50.0
"""Readiness is asked ten times a second at first, and less often the longer a start takes."""
FINISHING_LOOK_S = 0.2
LAUNCH_S_MIN, LAUNCH_FACTOR = 60.0, 10.0
"""Not ready after this many times its expected launch: failed."""
UNANSWERED_TIMES = 2
UNANSWERED_S_MAX = 60.0
QUIET_TIMES = 2


def hand_over(bench: CrewBench, member: CrewMember, spec: WorkerSpec) -> None:
    """Have a server take the batch size of `spec`, and its limit where it has a use for one. Raises AgentError."""
    retune, target = adapter_of(member.target).retune, member.target
    if retune is None:
        return
    offset = 1 if target.metrics_port_offset else 0
    host, port = bench.options.host, member.port
    retune(Talk(ask=bench.host.fetch, host=host, port=port, management_port=port + offset), spec)


class Rounds:
    """Visits members. `visit` under the bench's lock; answers take it themselves."""

    def __init__(self, bench: CrewBench, launcher: Launcher, undertaker: Undertaker) -> None:
        self._bench = bench
        self._launcher = launcher
        self._undertaker = undertaker
        self._questions = Questions(bench)

    def visit(self, member: CrewMember) -> float:
        """Do what is due; when to come again."""
        now_s = self._bench.now_s()
        if member.phase is Phase.ENDING:
            return self._undertaker.visit(member)
        if self.gone_by_itself(member):
            return now_s
        if member.scrape_wanted:
            self._questions.metrics(member)
        match member.phase:
            case Phase.WAITING:
                return self._take_turn(member)
            case Phase.STARTING | Phase.WARMING:
                return self._watch_start(member)
            case Phase.ANSWERING:
                return self._watch(member)
            case Phase.LEAVING | Phase.FINISHING if not member.drained:
                return self._watch_drain(member)
        return now_s + LOOK_S

    def gone_by_itself(self, member: CrewMember) -> bool:
        """Whether its process has ended without being asked; then it has failed, or done all it was started for."""
        if member.process is None or member.phase in (Phase.FAILED, Phase.DONE, Phase.ENDING):
            return False
        processes, ending = self._bench.host.processes, self._bench.ending(member)
        if processes.alive(member.process) or (ending is not None and processes.keeper_waits(ending)):
            return False
        member.scrape_wanted = False
        status = processes.exit_status(member.process, ending)
        done = status == 0 and not member.serves
        if done:
            member.finish()
        if member.drained:
            # Nothing is expected of it any more; a job that was done when its drain began has ended long ago.
            return False
        if done:
            member.enter(Phase.DONE, self._bench.now_s())
            member.pids = ()
            self._bench.save(member)
        else:
            self.fail(member, _ended(status))
        return True

    def fail(self, member: CrewMember, why: str) -> None:
        """It failed; its last words go with the reason."""
        # What it printed is told to every viewer, and may be what it was told in confidence.
        held = member.target
        silent = held.from_files or held.from_environment or held.from_commands
        tail = "" if silent else self._bench.logs.tail(safe_name(member.name))
        member.problem = f"{why}; last lines: {tail}" if tail else why
        member.enter(Phase.FAILED, self._bench.now_s())
        self._bench.save(member)

    def may_start(self, member: CrewMember) -> bool:
        """Whether it is its turn: who waits longer goes first. Servers that start together misread how much memory is
        free, unless each sees its own limit alone; then there may be as many as the host has cores for.
        """
        others = [each for each in self._bench.members.values() if each.uuid == member.uuid]
        if next(each for each in others if each is member or each.phase is Phase.WAITING) is not member:
            return False
        rising = [other.apart for other in others if other is not member and other.coming_up]
        together = member.apart and all(rising)
        return len(rising) < (self._bench.options.starts_at_once if together else 1)

    def _take_turn(self, member: CrewMember) -> float:
        if not self.may_start(member):
            return self._bench.now_s() + LOOK_S
        try:
            self._launcher.start(member)
        except DeviceError as error:
            self.fail(member, f"{error.code}: {error}")
        return self._bench.now_s()

    def _watch_start(self, member: CrewMember) -> float:
        now_s = self._bench.now_s()
        age_s, limit_s = now_s - member.since_s, max(LAUNCH_S_MIN, LAUNCH_FACTOR * member.spec.launch_s)
        if age_s > limit_s:
            self.fail(member, f"not ready within {limit_s:g} s: {member.problem or 'no answer yet'}")
            return now_s
        if not member.speaks:
            self._answers(member)
            return now_s + LOOK_S
        if member.phase is Phase.STARTING and now_s >= member.next_ask_s:
            member.next_ask_s = now_s + min(LOOK_S, max(ASK_QUICK_S, age_s / ASK_PATIENCE))
            self._questions.ready(member, lambda answer: self._heard_start(member, answer))
        return max(member.next_ask_s, now_s + ASK_QUICK_S)

    def _heard_start(self, member: CrewMember, answer: WebAnswer) -> None:
        if member.phase is not Phase.STARTING:
            return
        problem = self._not_ready(member, answer)
        if problem:
            member.problem = f"readiness: {problem}"
            return
        warm_up = member.target.warm_up
        member.phase, member.warm_ups = Phase.WARMING, 0 if warm_up is None else warm_up.requests
        if batch_untold(member.target) and not member.batch_told:
            try:
                self._bench.host.aside(lambda: self._tell_batch(member))
            except WorkerError as error:
                self._start_again(member, str(error))
        else:
            self._warm(member, warm_up)

    def _not_ready(self, member: CrewMember, answer: WebAnswer) -> str:
        """Why a worker is not ready by its answer, empty when it is. Until it answers, its port is anybody's who is
        faster, and whoever answers there would get the requests of its users.
        """
        if not adapter_of(member.target).is_ready(answer):
            return answer.told()
        host = self._bench.host
        if member.answering or host.users is None:
            return ""
        try:
            trusted = {host.users.of(member.spec.project).uid, os.geteuid()}
        except DeviceError as error:
            return str(error)
        # Those behind its port tell what it did, and take another batch size.
        block, address = range(member.port, member.port + member.port_count), self._bench.options.host
        strange = [port for port in block if host.listeners(address, port) - trusted]
        return f"port {strange[0]} belongs to another user" if strange else ""

    def _tell_batch(self, member: CrewMember) -> None:
        """Tell a server its batch size before its first request; it may load its model anew for that."""
        problem = ""
        try:
            hand_over(self._bench, member, member.spec)
        except (AgentError, TypeError, ValueError, KeyError) as error:
            # What a server answers may be anything.
            problem = f"batch size: {error}"
        with self._bench.lock:
            if member.phase is not Phase.WARMING:
                return
            member.batch_told = not problem
            if problem:
                self._start_again(member, problem)
            else:
                self._warm(member, member.target.warm_up)

    def _warm(self, member: CrewMember, warm_up: WarmUpTarget | None) -> None:
        """One warm-up request after the other, then one look at the metrics, so that none of it counts as work."""
        if warm_up is None or member.warm_ups <= 0:
            self._questions.metrics(member, lambda: self._begin(member))
            return
        self._questions.warm_up(member, warm_up, lambda answer: self._heard_warm(member, answer))

    def _heard_warm(self, member: CrewMember, answer: WebAnswer) -> None:
        if member.phase is not Phase.WARMING:
            return
        if answer.good:
            member.warm_ups -= 1
            self._warm(member, member.target.warm_up)
        else:
            self._start_again(member, f"warm-up: {answer.told()}")

    def _start_again(self, member: CrewMember, problem: str) -> None:
        member.problem = problem
        member.phase, member.next_ask_s = Phase.STARTING, self._bench.now_s() + LOOK_S

    def _begin(self, member: CrewMember) -> None:
        if member.phase is Phase.WARMING:
            # What is known by now came from starting and warming up; the next reading differs from this one.
            newest = member.tally.newest
            member.tally.begin()
            if newest is not None:
                member.tally.read(newest, self._bench.now_s())
            self._answers(member)

    def _answers(self, member: CrewMember) -> None:
        member.problem, member.unanswered_s = "", None
        member.enter(Phase.ANSWERING, self._bench.now_s())
        self._bench.save(member)

    def _watch(self, member: CrewMember) -> float:
        now_s = self._bench.now_s()
        if member.unanswered_s is not None and now_s - member.unanswered_s > UNANSWERED_S_MAX:
            self.fail(member, f"no good answer for {UNANSWERED_S_MAX:g} s: {member.problem}")
            return now_s
        if member.speaks and now_s >= member.next_ask_s:
            member.next_ask_s = now_s + LOOK_S
            self._questions.ready(member, lambda answer: self._heard_ready(member, answer))
        return now_s + LOOK_S

    def _heard_ready(self, member: CrewMember, answer: WebAnswer) -> None:
        if member.phase is not Phase.ANSWERING:
            return
        problem = self._not_ready(member, answer)
        if not problem:
            member.problem, member.quiet, member.unanswered_s = "", 0, None
            member.answer(True, self._bench.now_s())
            return
        member.quiet += 1
        member.unanswered_s = member.unanswered_s or self._bench.now_s()
        if member.quiet >= UNANSWERED_TIMES:
            member.problem = f"readiness: {problem}"
            member.answer(False, self._bench.now_s())

    def drain(self, member: CrewMember) -> None:
        """Begin to drain. Jobs and tasks have nothing that routers would send them."""
        now_s = self._bench.now_s()
        member.enter(Phase.LEAVING, now_s)
        member.next_ask_s, member.quiet = now_s + self._bench.options.route_grace_s, 0
        member.finish_by_s = member.next_ask_s + member.target.drain_s
        member.drained = not member.serves
        self._bench.save(member)

    def _watch_drain(self, member: CrewMember) -> float:
        now_s = self._bench.now_s()
        if member.phase is Phase.LEAVING:
            if now_s < member.next_ask_s:
                return member.next_ask_s
            member.phase, member.next_ask_s = Phase.FINISHING, now_s
            self._questions.finish(member)
        if now_s >= member.finish_by_s:
            member.note = f"had not finished within {member.target.drain_s:g} s"
            self._finished(member)
        elif now_s >= member.next_ask_s:
            member.next_ask_s = now_s + FINISHING_LOOK_S
            self._questions.metrics(member, lambda: self._look_for_work(member))
        return min(member.next_ask_s, member.finish_by_s)

    def _look_for_work(self, member: CrewMember) -> None:
        """Twice in a row nothing in flight is nothing. A server that does not tell has nothing when nobody is
        connected.
        """
        if member.phase is not Phase.FINISHING or member.drained:
            return
        totals = member.tally.newest
        told = totals is not None and totals.queue is not None and member.tally.newest_s == member.scraped_s
        idle = totals.queue == 0.0 if told and totals is not None else self._bench.host.connections(member.port) == 0
        member.quiet = member.quiet + 1 if idle else 0
        if member.quiet >= QUIET_TIMES:
            self._finished(member)

    def _finished(self, member: CrewMember) -> None:
        member.drained = True
        self._bench.save(member)


def _ended(status: int | None) -> str:
    if status is None:
        return "ended by itself; its status went to nobody who could tell"
    if status >= 0:
        return f"ended by itself with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"ended by {name}" + (", perhaps out of host memory" if status == -signal.SIGKILL else "")
