"""Whoever waits together commits together, and nobody is answered before the commit."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pytest

from app.store.grouped import ENOUGH, GroupCommit
from solvers.errors import InvariantError, TransientError
from tests.waiting import wait_until

T = TypeVar("T")


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    async def within() -> T:
        return await asyncio.wait_for(work(), 10)

    return asyncio.run(within())


class _Slow:
    """A writer whose first call waits until it is let go."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.entered = threading.Event()
        self.released = threading.Event()

    def __call__(self, items: Sequence[int]) -> Sequence[int]:
        self.batches.append(list(items))
        self.entered.set()
        assert self.released.wait(10)
        return [item * 10 for item in items]


def test_those_who_wait_go_together() -> None:
    writer = _Slow()
    group: GroupCommit[int, int] = GroupCommit(writer)

    async def work() -> None:
        first = asyncio.create_task(group.submit(0))
        assert await asyncio.to_thread(writer.entered.wait, 10)
        others = [asyncio.create_task(group.submit(number)) for number in range(1, 9)]
        await asyncio.to_thread(wait_until, lambda: len(group._waiting) == 8)
        assert not first.done()
        writer.released.set()
        assert await first == 0
        assert await asyncio.gather(*others) == [10 * number for number in range(1, 9)]

    run(work)
    assert writer.batches == [[0], list(range(1, 9))]


def test_a_batch_is_bounded_by_what_its_items_bring() -> None:
    """Hundreds who were cut off for long would wait for one commit of all, and give up."""
    writer = _Slow()
    group: GroupCommit[int, int] = GroupCommit(writer, batch_max=10, size_of=lambda item: item)

    async def work() -> None:
        sent = [asyncio.create_task(group.submit(1))]
        assert await asyncio.to_thread(writer.entered.wait, 10)
        sent += [asyncio.create_task(group.submit(size)) for size in (4, 6, 1, 50, 3, 7, 1)]
        await asyncio.to_thread(wait_until, lambda: len(group._waiting) == 7)
        writer.released.set()
        await asyncio.gather(*sent)

    run(work)
    assert writer.batches == [[1], [4, 6], [1], [50], [3, 7], [1]]


def test_loops_of_their_own_share_a_commit() -> None:
    """As many threads as there are senders, each with its own event loop."""
    writer = _Slow()
    group: GroupCommit[int, int] = GroupCommit(writer)
    answers: dict[int, int] = {}

    def send(number: int) -> None:
        answers[number] = asyncio.run(group.submit(number))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(9)]
    threads[0].start()
    assert writer.entered.wait(10)
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: len(group._waiting) == 8)
    writer.released.set()
    for thread in threads:
        thread.join(10)
    assert answers == {number: 10 * number for number in range(9)}
    assert [len(batch) for batch in writer.batches] == [1, 8]


def test_a_batch_is_bounded() -> None:
    sizes: list[int] = []

    def write(items: Sequence[int]) -> Sequence[int]:
        sizes.append(len(items))
        return items

    group: GroupCommit[int, int] = GroupCommit(write, batch_max=3)

    async def work() -> list[int]:
        return await asyncio.gather(*(group.submit(number + 1) for number in range(10)))

    assert run(work) == list(range(1, 11))
    assert sizes == [3, 3, 3, 1]


def test_who_stores_lingers_for_others() -> None:
    sizes: list[int] = []

    def write(items: Sequence[int]) -> Sequence[int]:
        sizes.append(len(items))
        return items

    group: GroupCommit[int, int] = GroupCommit(write, linger_s=lambda: 0.5)

    async def work() -> None:
        first = asyncio.create_task(group.submit(1))
        await asyncio.to_thread(wait_until, lambda: group._waiting)
        await asyncio.gather(first, group.submit(2))

    run(work)
    assert sizes == [2]


def test_nobody_lingers_while_enough_wait() -> None:
    sizes: list[int] = []

    def write(items: Sequence[int]) -> Sequence[int]:
        sizes.append(len(items))
        return items

    group: GroupCommit[int, int] = GroupCommit(write, linger_s=lambda: 1e6)

    async def work() -> None:
        await asyncio.gather(*(group.submit(number + 1) for number in range(ENOUGH)))

    run(work)
    assert sizes == [ENOUGH]


def test_who_hangs_up_leaves_the_turn_to_others() -> None:
    writer = _Slow()
    group: GroupCommit[int, int] = GroupCommit(writer)

    async def work() -> None:
        first = asyncio.create_task(group.submit(0))
        assert await asyncio.to_thread(writer.entered.wait, 10)
        gone, stays = (asyncio.create_task(group.submit(number)) for number in (1, 2))
        await asyncio.to_thread(wait_until, lambda: len(group._waiting) == 2)
        gone.cancel()
        await asyncio.wait([gone])
        writer.released.set()
        assert (await first, await stays) == (0, 20)

    run(work)


@pytest.mark.parametrize("moment", ["lingers", "stores", "becomes"])
def test_who_leads_and_is_ended_stalls_nobody(moment: str) -> None:
    """Else all reports of a process would wait for good."""
    writer = _Slow()
    group: GroupCommit[int, int] = GroupCommit(writer, linger_s=lambda: 0.1)

    async def work() -> None:
        leads = asyncio.create_task(group.submit(0))
        await asyncio.sleep(0)
        if moment == "becomes":
            assert await asyncio.to_thread(writer.entered.wait, 10)
        beside = [asyncio.create_task(group.submit(number)) for number in (1, 2)]
        await asyncio.sleep(0)
        if moment == "stores":
            assert await asyncio.to_thread(writer.entered.wait, 10)
        if moment == "becomes":
            leads, stays = beside[0], [leads, beside[1]]
            group._waiting[0].leads.add_done_callback(lambda _: leads.cancel())
        else:
            stays = beside
            leads.cancel()
        writer.released.set()
        answers = [await each for each in stays]
        assert answers == ([0, 20] if moment == "becomes" else [10, 20])
        assert leads.cancelled()
        assert await group.submit(3) == 30

    run(work)


def test_a_failed_batch_fails_everybody_in_it_and_nobody_after() -> None:
    answers = iter([TransientError("away"), None])

    def write(items: Sequence[int]) -> Sequence[int]:
        error = next(answers)
        if error is not None:
            raise error
        return items

    group: GroupCommit[int, int] = GroupCommit(write)

    async def work() -> None:
        failed = await asyncio.gather(group.submit(1), group.submit(1), return_exceptions=True)
        assert [type(error) for error in failed] == [TransientError] * 2
        assert await group.submit(2) == 2

    run(work)


def test_a_writer_that_loses_an_item_is_a_bug_of_ours() -> None:
    group: GroupCommit[int, int] = GroupCommit(lambda _: [])
    with pytest.raises((ValueError, InvariantError)):
        run(lambda: group.submit(1))


def test_few_who_bring_much_are_enough() -> None:
    """Senders who were cut off bring dozens each: a batch is full long before so many senders wait."""
    batches: list[list[int]] = []

    def write(items: Sequence[int]) -> Sequence[int]:
        batches.append(list(items))
        return items

    group: GroupCommit[int, int] = GroupCommit(write, linger_s=lambda: 1e6, size_of=lambda item: item)

    async def work() -> None:
        async with asyncio.timeout(10):
            for _ in range(2):  # what was stored is not counted again
                await asyncio.gather(*(group.submit(ENOUGH // 2) for _ in range(2)))
            alone = asyncio.create_task(group.submit(ENOUGH // 2))
            done, _ = await asyncio.wait({alone}, timeout=0.2)
            assert not done
            await group.submit(ENOUGH // 2)
            await alone

    run(work)
    assert batches == 3 * [[ENOUGH // 2] * 2]
