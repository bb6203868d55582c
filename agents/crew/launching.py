"""Starting a worker's process, and finding it again.

A start is written down first and done then, so that whichever instant an agent dies in, the next one finds what runs by
the mark in its environment. Command and environment are filled in from what the plan gave the worker; the placeholders
are those of `solvers.domain.worker` (a test compares), and what nobody can fill is refused, because a brace left in a
command line is found much later. No text ever goes through a shell.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from string import Formatter

from agents.config import WorkerRules
from agents.crew.member import CrewBench, CrewMember, Phase, member_from_plain, safe_name
from agents.crew.secrets import of_command, of_file, of_variable
from agents.crew.users import WorkerUser, refusal_of
from agents.devices.parts import CrewOrder
from agents.errors import AgentError, DeviceError, NotSupportedError, OutOfRangeError, StateFileError, WorkerError
from agents.processes import MARK, Invocation, ProcessId
from agents.wire import steers

PORTS_BEHIND = {"port_1": 1, "port_2": 2, "port_3": 3, "port_4": 4}
PLACEHOLDERS = frozenset(
    {"batch", "gpu_uuid", "host", "memory_fraction", "memory_mib_limit", "model", "port", "replica", "share_pct_sm"}
).union(PORTS_BEHIND)
RESERVED = ("CUDA_MPS_", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD", "LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES")
"""What share and memory hang on is the agent's alone."""
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER", "LOGNAME", "LD_LIBRARY_PATH", "XDG_CACHE_HOME")
"""Everything else of the agent's environment, its token among it, stays with the agent."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PATH_DEFAULT = "/usr/local/bin:/usr/bin:/bin"
_ENTER = 'cd -- "$1" && shift && exec "$@"'
_FIRST_LINE_BYTES = 256
"""So much of a script the system reads to find its interpreter."""


def placed(order: CrewOrder, host: str, port: int) -> dict[str, str]:
    """What each placeholder stands for. The fraction is rounded down: a server that sizes itself by it must stay
    within its limit.
    """
    spec = order.spec
    fraction = math.floor(1e4 * spec.memory_mib_limit / max(order.device_memory_mib, spec.memory_mib_limit)) / 1e4
    return {
        "batch": str(spec.batch),
        "gpu_uuid": order.uuid,
        "host": host,
        "memory_fraction": f"{fraction:.4f}",
        "memory_mib_limit": str(spec.memory_mib_limit),
        "model": spec.model,
        "port": str(port),
        "replica": spec.replica,
        "share_pct_sm": str(spec.share_pct_sm),
        **{name: str(port + offset) for name, offset in PORTS_BEHIND.items()},
    }


def fill(text: str, values: Mapping[str, str]) -> str:
    """A text with its placeholders replaced. Raises OutOfRangeError for one that nobody fills."""
    parts = []
    try:
        for literal, name, form, conversion in Formatter().parse(text):
            if name is not None and (name not in values or form or conversion):
                raise OutOfRangeError(f"unknown placeholder {{{name}}} in {text[:80]!r}")
            parts.append(literal + ("" if name is None else values[name]))
    except ValueError as error:
        raise OutOfRangeError(f"{text[:80]!r}: {error}") from None
    filled = "".join(parts)
    if "\0" in filled:
        raise OutOfRangeError(f"{text[:80]!r} holds a NUL")
    return filled


def invocation(
    order: CrewOrder, values: Mapping[str, str], mark: str, rules: WorkerRules, user: WorkerUser | None = None
) -> Invocation:
    """All a process is started with. Raises OutOfRangeError, NotSupportedError for what the host's owner forbids, and
    WorkerError where the program or a secret is not to be found.
    """
    target = order.spec.worker
    if target is None or not target.command:
        raise OutOfRangeError("a worker without a command")
    refused = refusal_of(rules, has_user=user is not None)
    if refused:
        raise NotSupportedError(f"{target.command[0][:80]!r} is not started: {refused}")
    files, variables, commands = target.from_files or (), target.from_environment or (), target.from_commands or ()
    for name, _ in (*target.environment, *files, *variables, *commands):
        if not _VARIABLE.fullmatch(name) or name.startswith(RESERVED):
            raise OutOfRangeError(f"{name[:128]!r} cannot be set by a workload")
        if steers(name) and name not in rules.environment:
            raise NotSupportedError(f"{name} steers programs, and this host lets no workload set it (--environment)")
    own = {name: fill(text, values) for name, text in target.environment}
    own |= {name: of_file(name, path, order.spec.project, rules) for name, path in files}
    own |= {name: of_variable(name, variable, order.spec.project, rules) for name, variable in variables}
    own |= {name: of_command(name, asked, order.spec.project, rules) for name, asked in commands}
    base = {"PATH": _PATH_DEFAULT} | {name: os.environ[name] for name in INHERITED if name in os.environ}
    if user is not None:
        base = {name: text for name, text in base.items() if name != "XDG_CACHE_HOME"} | user.environment
    # From wherever a worker is started, it and the interpreter of a script are looked for in the same places.
    base["PATH"] = os.pathsep.join(filter(os.path.isabs, base["PATH"].split(os.pathsep)))
    environment = {**base, **own, **order.environment, MARK: mark}
    arguments = tuple(fill(part, values) for part in target.command)
    program = shutil.which(arguments[0], path=environment["PATH"])
    if program is None:
        there = "/" in arguments[0] and Path(arguments[0]).exists()
        raise WorkerError(f"{arguments[0]}: {'not a file that may be executed' if there else 'no such program'}")
    arguments = (as_allowed(str(Path(program).absolute()), rules.executables), *arguments[1:])
    place = target.working_directory
    if user is None:
        return Invocation(arguments=arguments, environment=environment, working_directory=place)
    if place is not None:
        # Entered by the worker's user: this process may enter anything.
        arguments = ("/bin/sh", "-c", _ENTER, "sh", place, *arguments)
    return Invocation(arguments=arguments, environment=environment, working_directory=str(user.home), uid=user.uid)


def as_allowed(program: str, executables: tuple[str, ...] | None) -> str:
    """The program under the path that the host's owner listed (None: any): one file may do another thing under another
    name. Links are followed on both sides, so that none leads out of the list. A script brings the interpreter that its
    first line names; one that is looked for where the worker happens to start would be anybody's.
    """
    if executables is None:
        return program
    real = os.path.realpath(program)
    listed = [each for each in executables if os.path.realpath(each) == real]
    if not listed:
        raise NotSupportedError(f"{program} is not among the programs this host allows")
    # What cannot be read is no script that could be run.
    with contextlib.suppress(OSError), Path(real).open("rb") as file:
        before, mark, interpreter = file.readline(_FIRST_LINE_BYTES).partition(b"#!")
        if mark and not before and not interpreter.lstrip(b" \t").startswith(b"/"):
            raise NotSupportedError(f"{program}: its interpreter is not named from the root on")
    return program if program in listed else listed[0]


class Launcher:
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
        values = placed(order, bench.options.host, member.port)
        user = None if bench.host.users is None else bench.host.users.of(order.spec.project)
        ready = invocation(order, values, member.mark, bench.options, user)
        memory_mib_max = member.target.host_memory_mib_max
        if self._grouped(member):
            member.note = bench.host.limits.prepare(safe_name(member.name), memory_mib_max)
        member.since_s = bench.now_s()
        # What cannot be written down is not started: nobody would ever find it.
        try:
            bench.write(member)
        except StateFileError as error:
            raise WorkerError(str(error)) from error
        log = bench.logs.open(safe_name(member.name))
        try:
            if user is not None:
                # Programs open it again by the names of their output. Its owner could lock it against this agent.
                os.fchmod(log, 0o666)
            member.process = bench.host.processes.start(ready, log, bench.ending(member))
        finally:
            os.close(log)
        if self._grouped(member):
            entered = bench.host.limits.enter(safe_name(member.name), member.process.pid)
            member.note = member.note or entered
        member.order, member.pids, member.problem = None, (member.process.pid,), ""
        member.tally.told_s = bench.now_s()
        member.enter(Phase.STARTING, bench.now_s())
        bench.save(member)

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
                with contextlib.suppress(StateFileError):
                    self._bench.state.remove(path.name)
            else:
                self._take_in(member)
        # An agent may have died between making a group and starting its worker.
        self._bench.host.limits.sweep(frozenset(map(safe_name, self._bench.members)))
        self._bench.sweep_endings()

    def _unwritten(self, member: CrewMember) -> ProcessId | None:
        """The process of a start that its agent did not live to write down: the first with its mark."""
        marked = self._bench.host.processes.marked(member.mark) if member.mark else ()
        member.phase = Phase.STARTING
        # Nor, perhaps, to bound it; what it started meanwhile is bounded as well.
        for each in marked if self._grouped(member) else ():
            entered = self._bench.host.limits.enter(safe_name(member.name), each.pid)
            member.note = member.note or entered
        return min(marked, key=lambda each: (each.started_ticks, each.pid), default=None)

    def _grouped(self, member: CrewMember) -> bool:
        """Whether it gets a control group. A user's own limit on processes would be one for all of its project."""
        return member.target.host_memory_mib_max is not None or self._bench.host.users is not None

    def _take_in(self, member: CrewMember) -> None:
        bench = self._bench
        try:
            bench.ports.hold(member.name, range(member.port, member.port + member.port_count))
        except DeviceError as error:
            member.note = str(error)
        member.finish_by_s = member.since_s + bench.options.route_grace_s + member.target.drain_s
        bench.members[member.name] = member
        bench.save(member)
