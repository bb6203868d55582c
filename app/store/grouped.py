"""Calls that go together: who waits beside each other shares one transaction."""

from __future__ import annotations

import asyncio
import threading
from asyncio import wrap_future
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import islice
from typing import Generic, TypeVar

from solvers.errors import InvariantError

Item = TypeVar("Item")
Result = TypeVar("Result")

BATCH_MAX = 256
ENOUGH = 64
"""Nobody lingers for more than so much: what comes next goes together while this is stored."""


class _Ticket(Generic[Item, Result]):
    __slots__ = ("error", "item", "leads", "result")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.leads: Future[bool] = Future()
        """Whether it is its sender's turn to store what waits; False: somebody stored it."""
        self.result: Result | None = None
        self.error: BaseException | None = None


class _Bell:
    """Rung from any thread, for a loop that waits for it."""

    def __init__(self) -> None:
        self._loop, self._rung = asyncio.get_running_loop(), asyncio.Event()

    def ring(self) -> None:
        with suppress(RuntimeError):  # that loop is closed
            self._loop.call_soon_threadsafe(self._rung.set)

    async def wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._rung.wait()


class GroupCommit(Generic[Item, Result]):
    """Batches calls of `write`, which stores a sequence of items in one transaction and answers one result for each.
    Whoever stores lingers for a while, unless enough has come along. A batch has at most `batch_max` of what `size_of`
    counts, or one item.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Item]], Sequence[Result]],
        batch_max: int = BATCH_MAX,
        linger_s: Callable[[], float] = lambda: 0.0,
        size_of: Callable[[Item], int] = lambda _: 1,
    ) -> None:
        self._write = write
        self._batch_max = batch_max
        self._linger_s = linger_s
        self._size_of = size_of
        self._lock = threading.Lock()
        self._waiting: deque[_Ticket[Item, Result]] = deque()
        self._size = 0
        """Of all that wait."""
        self._busy = False
        self._enough: _Bell | None = None
        """Rung for who lingers."""

    @property
    def is_busy(self) -> bool:
        """Whether somebody stores, or is about to."""
        return self._busy

    async def submit(self, item: Item) -> Result:
        """Store one item with whatever waits beside it; returns after the commit. Raises what `write` raised."""
        ticket: _Ticket[Item, Result] = _Ticket(item)
        with self._lock:
            self._waiting.append(ticket)
            self._size += self._size_of(item)
            leads, self._busy = not self._busy, True
            if self._enough is not None and self._size >= ENOUGH:
                self._enough.ring()
        try:
            leads = leads or await wrap_future(ticket.leads)
        except asyncio.CancelledError:
            if not ticket.leads.cancel() and ticket.leads.result():
                # It had become this one's turn meanwhile.
                self._pass_on([])
            raise
        if leads:
            # To its end, also where its sender has been told to go: others wait for it.
            await asyncio.shield(self._lead())
        if ticket.error is not None:
            raise ticket.error
        if ticket.result is None:
            raise InvariantError("a group commit gave no result for an item")
        return ticket.result

    async def _lead(self) -> None:
        """Store the oldest that wait, the leader's own among them, and hand the rest on."""
        batch: list[_Ticket[Item, Result]] = []
        try:
            await self._linger(self._linger_s())
            with self._lock:
                left = self._batch_max
                while self._waiting and (not batch or self._size_of(self._waiting[0].item) <= left):
                    batch.append(self._next())
                    left -= self._size_of(batch[-1].item)
            await asyncio.to_thread(self._store, batch)
        finally:
            self._pass_on(batch)

    def _next(self) -> _Ticket[Item, Result]:
        ticket = self._waiting.popleft()
        self._size -= self._size_of(ticket.item)
        return ticket

    async def _linger(self, left_s: float) -> None:
        await asyncio.sleep(0)
        if left_s <= 0.0:
            return
        with self._lock:
            self._enough = bell = _Bell()
            if self._size >= ENOUGH:
                bell.ring()
        try:
            await bell.wait(left_s)
        finally:
            self._enough = None

    def _pass_on(self, batch: list[_Ticket[Item, Result]]) -> None:
        with self._lock:
            # Who hung up does not lead.
            while self._waiting and self._waiting[0].leads.done():
                self._next()
            self._busy = bool(self._waiting)
            following = list(islice(self._waiting, 1))
        for ticket in (*batch, *following):
            if not ticket.leads.done():
                ticket.leads.set_result(ticket in following)

    def _store(self, batch: list[_Ticket[Item, Result]]) -> None:
        try:
            results = self._write([ticket.item for ticket in batch])
            for ticket, result in zip(batch, results, strict=True):
                ticket.result = result
        except BaseException as error:  # noqa: BLE001 - raised by everybody who waits for it
            for ticket in batch:
                ticket.error = error
