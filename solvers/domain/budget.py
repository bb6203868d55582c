"""What may be spent in a month, by a project, by whoever has a label, or by all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from solvers.domain.device import Label
from solvers.domain.ids import ProjectName
from solvers.domain.value import NAME, POSITIVE, value, within
from solvers.errors import FieldError


@value
class MonthlyBudget:
    """A monthly budget (UTC). Without project and label it is of the whole bill, idle time included."""

    name: Annotated[str, NAME]
    usd_per_month: Annotated[float, POSITIVE, within(0, 1e12)]
    project: ProjectName | None = None
    label: Label | None = None
    """Of workloads that have it, or whose project has it."""

    def _rules(self) -> Iterator[FieldError]:
        if self.project is not None and self.label is not None:
            yield FieldError("label", "a budget is of a project or of a label, not of both")
