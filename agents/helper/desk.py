"""Carries out what the helper is asked: one request at a time for each GPU, GPUs side by side; what devices had is on
disk before the first write, and every request is written down.

Whatever is in range is decided by the setters, which know the device's own bounds. A crash forgets no original; a
reboot resets devices, so originals of another boot are void. A file that cannot be read is an error, because nobody
would know any more what to restore.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from agents.devices.parts import Boards, ComputeMode, Setters
from agents.errors import AgentError, DeviceError, NotFoundError, StateFileError
from agents.helper.protocol import HelperAnswer, HelperRequest, ProtocolError, Value, Verb, check_value
from agents.state import StateDirectory

# --- Who asked for what, and what came of it: one JSON line each, in a log that cannot grow without end
#
# The file is bounded (one older file is kept), and so are lines about strangers, which anybody on the host could
# otherwise fill it with. Texts from outside are shortened and escaped.


BYTES_MAX = 4 * 1024 * 1024
STRANGERS_PER_S = 5
TEXT_MAX = 200


@dataclass(frozen=True, slots=True)
class Peer:
    """The process on the other side of a connection, as the kernel says."""

    pid: int
    uid: int
    gid: int


class Audit:
    """Writes lines; thread-safe. To a stream (whose reader bounds it, as the journal does), or to a file."""

    def __init__(
        self, target: TextIO | Path, wall_s: Callable[[], float] = time.time, bytes_max: int = BYTES_MAX
    ) -> None:
        self._target = target
        self._wall_s = wall_s
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._strangers_second = 0
        self._strangers = 0
        self._suppressed = 0

    def request(self, peer: Peer | None, outcome: str, *, verb: str, device: str, value: object) -> None:
        """A request that was read. Without a peer it is the helper's own doing."""
        with self._lock:
            self._write(peer, {"verb": verb, "device": device, "value": value, "outcome": outcome})

    def stranger(self, peer: Peer | None, outcome: str) -> None:
        """A connection or line that was turned away; only the first few of a second are told, the rest counted."""
        with self._lock:
            second = int(self._wall_s())
            if second != self._strangers_second:
                self._strangers_second, self._strangers = second, 0
            self._strangers += 1
            if self._strangers > STRANGERS_PER_S:
                self._suppressed += 1
                return
            suppressed, self._suppressed = self._suppressed, 0
            more = {"suppressed": suppressed} if suppressed else {}
            self._write(peer, {"verb": None, "outcome": outcome, **more})

    def _write(self, peer: Peer | None, facts: dict[str, object]) -> None:
        now_s = self._wall_s()
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_s)) + f".{int(now_s % 1 * 1000):03d}Z"
        who = {"by": "helper"} if peer is None else {"uid": peer.uid, "gid": peer.gid, "pid": peer.pid}
        short = {name: fact[:TEXT_MAX] if isinstance(fact, str) else fact for name, fact in facts.items()}
        line = json.dumps({"time": moment, "event": "helper.asked", **who, **short}) + "\n"
        try:
            self._append(line)
        except OSError:
            # A full disk must not keep a device from being brought back to its original settings.
            return

    def _append(self, line: str) -> None:
        if not isinstance(self._target, Path):
            self._target.write(line)
            self._target.flush()
            return
        if self._target.exists() and self._target.stat().st_size + len(line) > self._bytes_max:
            self._target.replace(self._target.with_name(self._target.name + ".1"))
        with self._target.open("a", encoding="ascii") as file:
            file.write(line)


JOURNAL_FILE = "originals.json"
FORM = 1


class HelperOriginals:
    """Original values by device and verb. Thread-safe. Raises StateFileError when the disk refuses."""

    def __init__(self, state: StateDirectory, boot_id: str) -> None:
        self._state = state
        self._boot_id = boot_id
        self._lock = threading.Lock()
        self._values: dict[tuple[str, Verb], Value] = {}
        content = state.read_json(JOURNAL_FILE)
        if content is not None:
            self._values = _decoded(content, boot_id)

    def all(self) -> Mapping[tuple[str, Verb], Value]:
        with self._lock:
            return dict(self._values)

    def take(self, device: str, verb: Verb, read: Callable[[], Value]) -> bool:
        """Before a write: keep the original, once; whether this was the first write."""
        with self._lock:
            if (device, verb) in self._values:
                return False
        original = read()
        self._change({(device, verb): original}, set())
        return True

    def original(self, device: str, verb: Verb) -> Value:
        """What was kept. Raises KeyError."""
        with self._lock:
            return self._values[device, verb]

    def drop(self, device: str, verb: Verb) -> None:
        """The original is there again, or the write never happened."""
        self._change({}, {(device, verb)})

    def _change(self, new: Mapping[tuple[str, Verb], Value], gone: set[tuple[str, Verb]]) -> None:
        with self._lock:
            values = {key: value for key, value in (self._values | dict(new)).items() if key not in gone}
            rows = [{"device": device, "verb": verb.value, "value": value} for (device, verb), value in values.items()]
            self._state.write_json(JOURNAL_FILE, {"form": FORM, "boot_id": self._boot_id, "originals": rows})
            self._values = values


def _decoded(content: object, boot_id: str) -> dict[tuple[str, Verb], Value]:
    try:
        if not isinstance(content, dict) or content["form"] != FORM:
            raise ValueError("of another form")
        if content["boot_id"] != boot_id:
            return {}
        values = {}
        for row in content["originals"]:
            verb = Verb(row["verb"])
            values[str(row["device"]), verb] = check_value(verb, row["value"])
    except (KeyError, TypeError, ValueError, ProtocolError) as error:
        raise StateFileError(f"{JOURNAL_FILE} cannot be read: {type(error).__name__}: {error}") from None
    return values


class Desk:
    def __init__(self, boards: Boards, setters: Setters, originals: HelperOriginals, audit: Audit) -> None:
        self._boards = boards
        self._setters = setters
        self._originals = originals
        self._audit = audit
        inventory = boards.inventory()
        # MIG devices are written through their GPU, so they wait for each other.
        by_gpu = {device.parent_uuid or device.uuid: threading.Lock() for device in inventory}
        self._locks = {device.uuid: by_gpu[device.parent_uuid or device.uuid] for device in inventory}

    def handle(self, peer: Peer, request: HelperRequest) -> HelperAnswer:
        """Do what is asked and say how it went; whatever the driver does, an answer comes of it."""
        try:
            answer = self._carry_out(request)
        except AgentError as error:
            answer = HelperAnswer(number=request.number, code=error.code, message=str(error))
        outcome = f"{answer.code}: {answer.message}" if answer.code else "ok"
        self._audit.request(peer, outcome, verb=request.verb.value, device=request.device, value=request.value)
        return answer

    def restore(self, alone: Callable[[], bool]) -> int:
        """Bring devices back to their originals, as long as nobody has come; how many settings could not be."""
        failed = 0
        for (device, verb), original in self._originals.all().items():
            if not alone():
                break
            outcome = self._restored(alone, device, verb, original)
            failed += outcome not in ("restored", "left")
            self._audit.request(None, outcome, verb=verb.value, device=device, value=original)
        return failed

    def owes(self) -> bool:
        return bool(self._originals.all())

    def _carry_out(self, request: HelperRequest) -> HelperAnswer:
        if request.verb is Verb.REFUSALS:
            return HelperAnswer(number=request.number, refusals=dict(self._setters.refusals()))
        with self._lock_of(request.device):
            self._write(request)
        return HelperAnswer(number=request.number)

    def _write(self, request: HelperRequest) -> None:
        device, verb = request.device, request.verb
        first = self._originals.take(device, verb, lambda: self._read(device, verb))
        try:
            self._set(device, verb, request.value)
        except DeviceError as error:
            if first and not error.retryable:
                self._originals.drop(device, verb)
            raise
        if request.value == self._originals.original(device, verb):
            self._originals.drop(device, verb)

    def _restored(self, alone: Callable[[], bool], device: str, verb: Verb, original: Value) -> str:
        """Bring one setting back, unless somebody came while the device was waited for; what came of it."""
        try:
            with self._lock_of(device):
                if not alone():
                    return "left"
                self._set(device, verb, original)
                self._originals.drop(device, verb)
        except AgentError as error:
            return f"{error.code}: {error}"
        return "restored"

    def _lock_of(self, device: str) -> threading.Lock:
        lock = self._locks.get(device)
        if lock is None:
            raise NotFoundError("this helper serves no such device")
        return lock

    def _read(self, device: str, verb: Verb) -> Value:
        """A setting before the first write. Drivers do not tell locks: nobody else's is kept."""
        if verb is Verb.LOCK_CLOCK:
            return None
        settings = self._boards.settings(device)
        if verb is Verb.LIMIT_POWER:
            return settings.power_limit_w
        return settings.compute_mode.value if verb is Verb.SET_COMPUTE_MODE else bool(settings.persistence)

    def _set(self, device: str, verb: Verb, value: Value) -> None:
        calls: dict[Verb, Callable[[], None]] = {
            Verb.LOCK_CLOCK: lambda: self._setters.lock_clock(device, None if value is None else int(value)),
            Verb.LIMIT_POWER: lambda: self._setters.limit_power(device, None if value is None else float(value)),
            Verb.SET_COMPUTE_MODE: lambda: self._setters.set_compute_mode(device, ComputeMode(str(value))),
            Verb.SET_PERSISTENCE: lambda: self._setters.set_persistence(device, bool(value)),
        }
        calls[verb]()
