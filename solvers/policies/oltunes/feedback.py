"""What follows from groups that failed and groups that worked.

Owns how a failed group's tasks go back (all of them to the urgent queue, ahead of everybody, their own class kept) and
when a group is done. It refuses to decide whether something failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from solvers.domain.ids import DeviceId, GpuTypeName
from solvers.domain.value import value
from solvers.policies.oltunes.queues import Queues, WaitingTask
from solvers.policies.oltunes.tasking import Config


@value
class Flying:
    """A launched task. `group` numbers launches."""

    waiting: WaitingTask
    config: Config
    seat: DeviceId
    gpu_type: GpuTypeName
    group: int


def ahead(boost_max: int) -> int:
    """Before everybody who was put ahead so far."""
    return boost_max + 1


def put_back(failed: Sequence[Flying], queues: Queues[WaitingTask]) -> None:
    """Ahead of everybody who waits."""
    boost = ahead(queues.boost_max)
    for each in sorted(failed, key=lambda item: item.waiting.order):
        queues.push(replace(each.waiting, boost=boost, failures=each.waiting.failures + 1))


def group_is_done(group: int, flying: Iterable[int]) -> bool:
    """Whether none of it runs any more; `flying` are the groups of all that run."""
    return group not in flying
