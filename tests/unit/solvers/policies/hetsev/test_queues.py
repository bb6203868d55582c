"""AC-HET-04: placement ends, everybody is placed or waits, and no queue starves."""

from __future__ import annotations

import numpy as np
import pytest

from solvers.domain.ids import ModelName, WorkloadId
from solvers.policies.hetsev.planner import Pending, grouped, seat_all, weight


def pending(model: str, memory_mib: int, waited_s: float = 0.0) -> Pending:
    return Pending(
        workload=WorkloadId(f"demo/{model}"), model=ModelName(model), memory_mib=memory_mib, waited_s=waited_s
    )


def queues(items: list[Pending], groups: int = 4, seed: int = 1) -> list[list[int]]:
    return grouped(items, groups, np.random.default_rng(seed))


def test_the_worked_weight() -> None:
    assert weight([2, 3, 10, 2, 3, 10]) == pytest.approx(18)
    assert weight([]) == 0


def test_like_instances_share_a_queue() -> None:
    items = [pending("a", 1000, 1), pending("b", 1000), pending("a", 1000, 5), pending("b", 8000)]
    assert sorted(queues(items)) == [[1], [2, 0], [3]]
    assert queues([]) == []


@pytest.mark.parametrize("groups", [1, 2, 4, 9])
def test_everybody_is_in_one_queue(groups: int) -> None:
    rng = np.random.default_rng(groups)
    items = [pending(str(rng.choice(["a", "b", "c"])), int(rng.integers(500, 9000))) for _ in range(40)]
    found = queues(items, groups)
    assert sorted(number for queue in found for number in queue) == list(range(40))
    assert len(found) <= groups
    assert found == queues(items, groups)


def test_ac_het_04_it_ends_with_everybody_placed_or_waiting() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        items = [
            pending(str(rng.choice(["a", "b", "c"])), int(rng.integers(1, 9)), float(rng.integers(0, 60)))
            for _ in range(int(rng.integers(1, 30)))
        ]
        room, seated, asked = int(rng.integers(0, 60)), list[int](), 0

        def seat(number: int) -> bool:
            nonlocal room, asked
            asked += 1
            if items[number].memory_mib > room:  # noqa: B023 - called at once
                return False
            room -= items[number].memory_mib  # noqa: B023 - called at once
            seated.append(number)  # noqa: B023 - called at once
            return True

        left = seat_all(items, queues(items), 8, seat)
        assert sorted([*seated, *left]) == list(range(len(items)))
        assert all(items[number].memory_mib > room for number in left)
        assert asked <= (len(items) + 1) ** 2


def test_one_success_gives_everybody_another_try() -> None:
    items, tries = [pending("a", 1), pending("b", 1)], list[int]()

    def only_after_the_other(number: int) -> bool:
        tries.append(number)
        return number == 1 or 1 in tries

    assert seat_all(items, [[0], [1]], 1, only_after_the_other) == []


def test_ac_het_04_no_queue_starves_under_constant_arrivals() -> None:
    """One place per round; a long queue and a lone instance: the lone one is served before long."""
    waits = {"many": [0.0] * 6, "lone": [0.0]}
    served: list[str] = []
    for _ in range(200):
        items = [pending(name, 1, wait) for name, known in waits.items() for wait in known]
        taken: list[int] = []

        def seat(number: int) -> bool:
            if taken:  # noqa: B023 - called at once
                return False
            taken.append(number)  # noqa: B023 - called at once
            return True

        seat_all(items, queues(items), 8, seat)
        served.append(items[taken[0]].model)
        waits = {
            name: [15.0 + item.waited_s for at, item in enumerate(items) if item.model == name and at not in taken]
            for name in waits
        }
        # Whoever was served is followed by one of its kind: as many come as go.
        waits[served[-1]].append(0.0)
    gaps = np.diff([-1, *(at for at, name in enumerate(served) if name == "lone"), len(served)])
    assert served.count("lone") >= 5
    assert gaps.max() <= 40
