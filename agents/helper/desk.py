"""Carries out what the helper is asked: one request at a time for each GPU, GPUs side by side, originals kept first.

Owns the list of devices that may be touched, the order of journal and write, and bringing devices back to what they
were. What is in range is decided by the setters, which know the device's own bounds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from agents.devices.parts import Boards, ComputeMode, Setters
from agents.errors import AgentError, DeviceError, NotFoundError
from agents.helper.audit import Audit, Peer
from agents.helper.journal import HelperOriginals
from agents.helper.protocol import HelperAnswer, HelperRequest, Value, Verb


class Desk:
    """All requests end here. Thread-safe."""

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
        """Whether something is not as it was."""
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
        if verb in (Verb.LOCK_CLOCK, Verb.LOCK_MEMORY_CLOCK):
            return None
        settings = self._boards.settings(device)
        if verb is Verb.LIMIT_POWER:
            return settings.power_limit_w
        return settings.compute_mode.value if verb is Verb.SET_COMPUTE_MODE else bool(settings.persistence)

    def _set(self, device: str, verb: Verb, value: Value) -> None:
        calls: dict[Verb, Callable[[], None]] = {
            Verb.LOCK_CLOCK: lambda: self._setters.lock_clock(device, _clock(value)),
            Verb.LOCK_MEMORY_CLOCK: lambda: self._setters.lock_memory_clock(device, _clock(value)),
            Verb.LIMIT_POWER: lambda: self._setters.limit_power(device, _power(value)),
            Verb.SET_COMPUTE_MODE: lambda: self._setters.set_compute_mode(device, ComputeMode(str(value))),
            Verb.SET_PERSISTENCE: lambda: self._setters.set_persistence(device, bool(value)),
        }
        calls[verb]()


def _clock(value: Value) -> int | None:
    return None if value is None else int(value)


def _power(value: Value) -> float | None:
    return None if value is None else float(value)
