"""The pages' fleet is kept for a moment, and for no longer than it stands."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from app.api.console.door import Visit
from app.api.console.glance import Glances


class Reading:
    """A fleet that is numbered by the reads; what happens within one is the test's."""

    def __init__(self) -> None:
        self.reads = 0
        self.meanwhile: Callable[[], object] = lambda: None

    def fleet(self, _: str | None) -> dict[str, Any]:
        self.reads += 1
        found = {"read": self.reads}
        self.meanwhile()
        return found


def _visit(status: Reading) -> Visit:
    clock = SimpleNamespace(elapsed_ms=lambda: 0.0)
    state = SimpleNamespace(context=SimpleNamespace(clock=clock))
    made = SimpleNamespace(
        actor=SimpleNamespace(project=None),
        request=SimpleNamespace(app=SimpleNamespace(state=state)),
        services=SimpleNamespace(status=status),
    )
    return cast("Visit", made)


def test_a_read_under_way_when_something_changed_is_not_kept() -> None:
    status, glances = Reading(), Glances()
    visit = _visit(status)
    status.meanwhile = glances.forget
    glances.fleet(visit)
    status.meanwhile = lambda: None
    assert [glances.fleet(visit)["read"] for _ in range(2)] == [2, 2]
