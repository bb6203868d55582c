"""HAProxy's servers as a small model that takes the commands of its runtime API."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from app.routing.haproxy import FORCED_DRAIN, FORCED_MAINTENANCE, Command, Slot

CONFIGURED_OFF = 0x05
"""What a slot written `disabled` shows."""


def empty(name: str) -> Slot:
    """A slot never used."""
    return Slot(name=name, host="127.0.0.1", port=1, weight=1, admin_state=CONFIGURED_OFF)


class Backend:
    """Slots by name."""

    def __init__(self, slots: Iterable[Slot]) -> None:
        self.slots = {slot.name: slot for slot in slots}

    def shown(self) -> tuple[Slot, ...]:
        return tuple(self.slots.values())

    def ready(self) -> dict[tuple[str, int], int]:
        """Weights of what takes requests."""
        return {(slot.host, slot.port): slot.weight for slot in self.slots.values() if slot.ready}

    def take(self, command: Command) -> None:
        slot = self.slots[command.slot]
        verb, *words = command.words.split()
        if verb == "weight":
            slot = replace(slot, weight=int(words[0]))
        elif verb == "addr":
            assert slot.in_maintenance, "a server that takes requests must not change its address"
            slot = replace(slot, host=words[0], port=int(words[2]))
        else:
            slot = replace(slot, admin_state=self._state(slot.admin_state, words[0]))
        self.slots[command.slot] = slot

    def finish_requests(self) -> None:
        """What drains comes to its end."""
        self.slots = {name: slot if slot.ready else replace(slot, used=0) for name, slot in self.slots.items()}

    @staticmethod
    def _state(before: int, word: str) -> int:
        forced = FORCED_MAINTENANCE | FORCED_DRAIN
        if word == "ready":
            return before & ~forced
        if word == "maint":
            return before | FORCED_MAINTENANCE
        return before | FORCED_DRAIN
