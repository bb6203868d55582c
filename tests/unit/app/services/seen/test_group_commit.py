"""Whoever waits together commits together, and nobody is answered before the commit."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.services.seen.telemetry import GroupCommit
from solvers.errors import InvariantError, TransientError


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


def _queue_length(group: GroupCommit[int, int]) -> int:
    return len(group._waiting)


def test_those_who_wait_go_together() -> None:
    writer = _Slow()
    group: GroupCommit[int, int] = GroupCommit(writer)
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(group.submit, 0)
        assert writer.entered.wait(10)
        others = [pool.submit(group.submit, number) for number in range(1, 9)]
        queued = threading.Event()
        while _queue_length(group) < 8:
            queued.wait(0.001)
        assert not first.done()
        writer.released.set()
        assert first.result(10) == 0
        assert sorted(other.result(10) for other in others) == [10 * number for number in range(1, 9)]
    assert writer.batches[0] == [0]
    assert sorted(writer.batches[1]) == list(range(1, 9))
    assert len(writer.batches) == 2


def test_a_batch_is_bounded() -> None:
    sizes: list[int] = []
    gate = threading.Event()

    def write(items: Sequence[int]) -> Sequence[int]:
        gate.wait(10)
        sizes.append(len(items))
        return items

    group: GroupCommit[int, int] = GroupCommit(write, batch_max=3)
    with ThreadPoolExecutor(10) as pool:
        futures = [pool.submit(group.submit, number + 1) for number in range(10)]
        gate.set()
        assert sorted(future.result(10) for future in futures) == list(range(1, 11))
    assert max(sizes) <= 3
    assert sum(sizes) == 10


def test_a_failed_batch_fails_everybody_in_it_and_nobody_after() -> None:
    answers = iter([TransientError("away"), None])

    def write(items: Sequence[int]) -> Sequence[int]:
        error = next(answers)
        if error is not None:
            raise error
        return items

    group: GroupCommit[int, int] = GroupCommit(write)
    with pytest.raises(TransientError):
        group.submit(1)
    assert group.submit(2) == 2


def test_a_writer_that_loses_an_item_is_a_bug_of_ours() -> None:
    group: GroupCommit[int, int] = GroupCommit(lambda _: [])
    with pytest.raises((ValueError, InvariantError)):
        group.submit(1)
