"""What devices had before the helper first wrote to them, on disk before the write, so that a crash forgets nothing.

Owns one file in the helper's state directory. A reboot resets devices, so originals of another boot are void. It
refuses to guess: a file that cannot be read is an error, because nobody would know any more what to restore.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from agents.errors import StateFileError
from agents.helper.protocol import ProtocolError, Value, Verb, check_value
from agents.state import StateDirectory

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
        """Everything that was written to and has not its original again."""
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
