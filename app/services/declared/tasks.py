"""Offline tasks as use cases: submit one, and tell where each of them is.

A task's document, its progress and the standing plan are put side by side: its place in line or the group that it runs
with, when it will be done as far as its plan believes, and whether its deadline was kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from app import kinds
from app.clock import new_id
from app.errors import PreconditionError
from app.records import record, record_of
from app.services.declared.documents import Documents, PutAnswer
from app.services.declared.tokens import Deed
from app.services.explaining.sentences import off_sentence, sentence
from app.store import documents, plans, targets, tasks
from app.store.documents import Precondition
from app.store.engine import Database
from app.store.pages import StoredPage
from app.store.tasks import TaskListing, TaskRow, TaskState
from solvers.domain.evidence import Reason
from solvers.domain.plan import Assignment, Unplaced
from solvers.domain.workload import OfflineTask, ServiceMode, WorkloadKind
from solvers.errors import NotFoundError, StateError

NAME_PREFIX = "task-"
NAME_LETTERS = 12
QUEUE_POSITION = "queue_position"
"""The fact by which a planner that has queues of its own tells a task's place."""


@record
class TaskGroupLine:
    """Where a task runs, in which configuration, and which tasks share the device with it: of its own project alone for
    a project's token.
    """

    device: str
    gpu_type: str | None
    tasks: tuple[str, ...]
    batch: int
    share_pct_sm: int
    memory_mib_limit: int


@record
class TaskStatusLine:
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
    deadline_kept: bool | None
    """null while that is open, and where there is no deadline."""
    throughput_rps_min: float | None
    inputs_total: int
    inputs_done: float
    evictions: int
    queue_position: int | None
    """1 is next; null for tasks that have a place, are done, or are `off` or on `shadow`."""
    group: TaskGroupLine | None
    rate_rps_predicted: float | None
    latency_ms_predicted: float | None
    latency_ms_measured: float | None
    finish_at_predicted: datetime | None
    why: tuple[str, ...]


class Tasks:
    def __init__(self, database: Database, cluster: str, declared: Documents) -> None:
        self._database = database
        self._cluster = cluster
        self._declared = declared

    def submit(self, task: OfflineTask, deed: Deed) -> PutAnswer:
        """Declare a task that is not there yet. Raises StateError where one of its name is, and FieldsError for
        references to nothing.
        """
        try:
            return self._declared.put(kinds.TASK, task, Precondition(absent=True), deed, may_wait=True)
        except PreconditionError:
            raise StateError(f"there is a task {task.id} already; give another name, or none") from None

    def page(self, listing: TaskListing, whose: str | None) -> StoredPage[TaskStatusLine]:
        """Tasks by project and name, as a project's token (None: everybody) may see them. Raises FieldError for a
        foreign cursor.
        """
        with self._database.reading() as session:
            found = tasks.page(session, self._cluster, listing)
            stands = _Standing.read(session, self._cluster, whose) if found.items else _Standing()
        return StoredPage(items=tuple(stands.status(row) for row in found.items), next_cursor=found.next_cursor)

    def get(self, project: str, name: str, whose: str | None) -> TaskStatusLine:
        """One task, likewise. Raises NotFoundError."""
        with self._database.reading() as session:
            row = tasks.find(session, self._cluster, project, name)
            if row is None:
                raise NotFoundError(f"there is no task {project}/{name}", key=f"{project}/{name}")
            return _Standing.read(session, self._cluster, whose).status(row)


def fresh_name() -> str:
    return NAME_PREFIX + new_id().replace("-", "")[:NAME_LETTERS]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    assignments: dict[str, list[Assignment]] = field(default_factory=dict)
    on_device: dict[str, list[str]] = field(default_factory=dict)
    unplaced: dict[str, Unplaced] = field(default_factory=dict)
    gpu_types: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def read(session: Session, cluster: str, whose: str | None) -> _Standing:
        standing = tasks.standing_plan(session, cluster)
        if standing is None:
            return _Standing()
        plan = plans.load(session, standing)
        stands = _Standing(gpu_types=documents.by_name(session, kinds.DEVICE, "gpu_type"))
        for item in plan.assignments:
            if item.kind is WorkloadKind.TASK:
                stands.assignments.setdefault(item.workload, []).append(item)
                if whose in (None, item.workload.partition("/")[0]):
                    stands.on_device.setdefault(item.device, []).append(item.workload)
        short = targets.short(session, cluster)
        stands.unplaced.update({item.workload: item for item in short if item.kind is WorkloadKind.TASK})
        return stands

    def status(self, row: TaskRow) -> TaskStatusLine:
        """A task under this plan; one that is done has no place any more."""
        task = f"{row.project}/{row.name}"
        held = [] if row.state is TaskState.DONE else self.assignments.get(task, [])
        rate_rps = sum(item.capacity_rps for item in held)
        first = held[0] if held else None
        left = max(0.0, row.spec["inputs_total"] - row.inputs_done)
        first_rps = first.capacity_rps if first is not None else 0.0
        placed = first or self.unplaced.get(task)
        reasons = () if placed is None else placed.reasons
        why = tuple(sentence(reason) for reason in reasons)
        if first is None and row.spec["mode"] == ServiceMode.OFF:
            why = (off_sentence(task),)
        return record_of(
            TaskStatusLine,
            row,
            **{name: row.spec[name] for name in ("model", "mode", "priority", "class_lambda", "inputs_total")},
            id=task,
            deadline_kept=_kept(row),
            throughput_rps_min=row.spec["slo"]["throughput_rps_min"],
            queue_position=None if row.rank is None else _told_position(reasons, row.rank),
            group=None
            if first is None
            else record_of(
                TaskGroupLine,
                first,
                gpu_type=self.gpu_types.get(first.device),
                tasks=tuple(sorted(set(self.on_device[first.device]))),
            ),
            rate_rps_predicted=rate_rps if held else None,
            latency_ms_predicted=1000.0 * first.batch / first_rps if first and first_rps > 0.0 else None,
            finish_at_predicted=row.read_at + timedelta(seconds=left / rate_rps) if rate_rps > 0.0 else None,
            why=() if row.state is TaskState.DONE else why,
        )


def _kept(row: TaskRow) -> bool | None:
    """Whether the deadline was kept; None while that is open, and where there is none."""
    if row.deadline_at is None:
        return None
    if row.finished_at is not None:
        return row.finished_at <= row.deadline_at
    return False if row.state is TaskState.LATE else None


def _told_position(reasons: tuple[Reason, ...], rank: int) -> int:
    """The planner's own queue where it has one, else the order of priorities."""
    told = (fact.value for reason in reasons for fact in reason.facts if fact.name == QUEUE_POSITION)
    found = next(told, None)
    return int(found) if isinstance(found, float | int) else rank
