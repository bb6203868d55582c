"""Offline tasks on the wire: what is submitted, and where each of them is."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from app.store.tasks import TaskState
from solvers.domain.device import Taint
from solvers.domain.value import NAME_PATTERN
from solvers.domain.worker import WorkerCommand
from solvers.domain.workload import ServiceMode, Slo

_NameText = Annotated[str, Field(pattern=NAME_PATTERN)]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NewTask(_Closed):
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


class TaskGroupLine(_Closed):
    """Where a task runs, in which configuration, and which tasks share the device with it."""

    device: str
    gpu_type: str | None
    tasks: list[str]
    batch: int
    share_pct_sm: int
    memory_mib_limit: int


class TaskStatusLine(_Closed):
    """A task and where it is. Predictions are the standing plan's; `latency_ms` is of one batch."""

    id: str
    project: str
    name: str
    model: str
    mode: str
    state: TaskState
    priority: int
    class_lambda: float
    submitted_at: datetime
    begun_at: datetime | None
    finished_at: datetime | None
    deadline_at: datetime | None
    deadline_kept: bool | None = Field(description="null while that is open, and where there is no deadline.")
    throughput_rps_min: float | None
    inputs_total: int
    inputs_done: float
    evictions: int
    queue_position: int | None = Field(description="1 is next; null for tasks that have a place or are done.")
    group: TaskGroupLine | None
    rate_rps_predicted: float | None
    latency_ms_predicted: float | None
    latency_ms_measured: float | None
    finish_at_predicted: datetime | None
    why: list[str]
