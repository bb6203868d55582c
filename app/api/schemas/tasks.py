"""What is submitted as an offline task."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from app.api.schemas import RequestBody
from solvers.domain.device import Taint
from solvers.domain.value import NAME_PATTERN
from solvers.domain.worker import WorkerCommand
from solvers.domain.workload import ServiceMode, Slo

_NameText = Annotated[str, Field(pattern=NAME_PATTERN)]


class NewTask(RequestBody):
    """An offline task to be done once. What is left out has the defaults of the declarative document."""

    project: _NameText | None = Field(None, description="Without: the token's own project.")
    name: _NameText | None = Field(None, description="Without: one is made up.")
    model: _NameText
    inputs_total: int = Field(ge=1, le=2**53)
    slo: Slo = Field(description="Of kind `deadline` or `throughput`.")
    class_lambda: float = Field(
        0.3, ge=0, lt=1, allow_inf_nan=False, description="Above 0.5: latency counts more than throughput."
    )
    priority: int = Field(50, ge=0, le=1000)
    gpu_types_allowed: tuple[_NameText, ...] = ()
    tolerations: tuple[Taint, ...] = ()
    mode: ServiceMode = ServiceMode.AUTO
    worker: WorkerCommand | None = None
