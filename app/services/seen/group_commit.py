"""Group commit: many request threads, one transaction at a time.

Owns only the waiting. A thread that arrives while nobody writes becomes the writer of everything queued; those that
arrive meanwhile wait and go together into the next transaction, so that the busier it gets, the larger the batches.
There is no thread of its own to start or to stop, and nothing is answered before its transaction has committed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from solvers.errors import InvariantError

Item = TypeVar("Item")
Result = TypeVar("Result")

BATCH_MAX = 256


class _Ticket(Generic[Item, Result]):
    __slots__ = ("done", "error", "item", "result")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.done = False
        self.result: Result | None = None
        self.error: BaseException | None = None


class GroupCommit(Generic[Item, Result]):
    """Batches calls of `write`, which stores a sequence of items in one transaction and answers one result for each."""

    def __init__(self, write: Callable[[Sequence[Item]], Sequence[Result]], batch_max: int = BATCH_MAX) -> None:
        self._write = write
        self._batch_max = batch_max
        self._turn = threading.Condition()
        self._waiting: deque[_Ticket[Item, Result]] = deque()
        self._busy = False

    def submit(self, item: Item) -> Result:
        """Store one item with whatever waits beside it; returns after the commit. Raises what `write` raised."""
        ticket: _Ticket[Item, Result] = _Ticket(item)
        with self._turn:
            self._waiting.append(ticket)
        while not ticket.done:
            batch = self._take_turn(ticket)
            if batch:
                self._store(batch)
        if ticket.error is not None:
            raise ticket.error
        if ticket.result is None:
            raise InvariantError("a group commit gave no result for an item")
        return ticket.result

    def _take_turn(self, ticket: _Ticket[Item, Result]) -> list[_Ticket[Item, Result]]:
        with self._turn:
            while self._busy and not ticket.done:
                self._turn.wait()
            if ticket.done:
                return []
            self._busy = True
            return [self._waiting.popleft() for _ in range(min(self._batch_max, len(self._waiting)))]

    def _store(self, batch: list[_Ticket[Item, Result]]) -> None:
        try:
            results = self._write([ticket.item for ticket in batch])
            for ticket, result in zip(batch, results, strict=True):
                ticket.result = result
        except BaseException as error:
            for ticket in batch:
                ticket.error = error
            if not isinstance(error, Exception):
                raise
        finally:
            with self._turn:
                for ticket in batch:
                    ticket.done = True
                self._busy = False
                self._turn.notify_all()
