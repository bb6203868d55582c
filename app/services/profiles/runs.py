"""Runs that measure a service's process on a device of the fleet: order, look, cancel, and what their nodes tell.

While a run holds a device, nothing is planned there (`PROFILING`), and a device with replicas in the target is taken
only when the order says to drain it. Nodes measure, and hand in profile points like everybody else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from agents.wire import ProfileOrder, ProfileSubject
from app import kinds
from app.errors import FieldsError
from app.records import record_of
from app.services.declared.tokens import Deed
from app.services.planning.rollout import worker_target
from app.services.profiles.profiles import Placed, models_of
from app.store import documents, nodes, profile_runs, targets
from app.store.engine import Database
from app.store.pages import PageOrder, StoredPage
from app.store.profile_runs import NewRun, ProfileRunLine, ProfileRunProgress
from solvers.domain.codec import from_plain
from solvers.domain.device import Device, Taint
from solvers.domain.workload import ModelVariant, Service
from solvers.errors import NotFoundError, StateError

PROFILING = Taint(key="headroom.profiling")
"""Keeps everything off a device while it is measured on."""
PATIENCE_S = 1800.0
"""Beyond its budget a run may take so long for draining, starting and cleaning up before it counts as given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedProfileRun:
    """A run somebody asks for. `device` None: the node's first free device that fits."""

    service: str
    node: str
    budget_s: float
    device: str | None = None
    beside: str | None = None
    drain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedAbout:
    """`own_clock`: the device's agent may not set another."""

    model: str
    gpu_type: str
    own_clock: bool


class ProfileRuns:
    def __init__(self, database: Database, cluster: str) -> None:
        self._database = database
        self._cluster = cluster

    def get(self, run_id: int) -> ProfileRunLine:
        """One run. Raises NotFoundError."""
        return self._database.read(profile_runs.get, run_id)

    def page(self, order: PageOrder) -> StoredPage[ProfileRunLine]:
        return self._database.read(profile_runs.page, order)

    def order(self, wanted: WantedProfileRun, deed: Deed) -> ProfileRunLine:
        """Order a run. Raises FieldsError for what does not exist or says too little, StateError for a device that is
        taken or carries live traffic.
        """
        with self._database.transaction() as session:
            profile_runs.end_overdue(session)
            service = _service(session, "/service", wanted.service)
            if wanted.beside is not None:
                _service(session, "/beside", wanted.beside)
            uuid = self._device(session, wanted, service)
            patience_s = wanted.budget_s + PATIENCE_S
            new = record_of(
                NewRun, wanted, node_id=wanted.node, uuid=uuid, created_by=deed.actor, patience_s=patience_s
            )
            run = profile_runs.create(session, new)
            _note(session, "ordered", run, deed)
            return run

    def cancel(self, run_id: int, deed: Deed) -> None:
        """End a run; its node stops at the next look. Raises NotFoundError; cancelling twice is no error."""
        with self._database.transaction() as session:
            run = profile_runs.get(session, run_id)
            if profile_runs.cancel(session, run_id):
                _note(session, "cancelled", run, deed)

    def orders_of(self, node: str) -> tuple[ProfileOrder, ...]:
        """What a node has to carry out. A run whose service is gone since is left out."""
        with self._database.reading() as session:
            found = []
            for run in profile_runs.of_node(session, node):
                subject = _subject(session, run.service)
                beside = None if run.beside is None else _subject(session, run.beside)
                if subject is not None and (run.beside is None or beside is not None):
                    found.append(record_of(ProfileOrder, run, run=run.id, subject=subject, beside=beside))
            return tuple(found)

    def hear(self, node: str, run_id: int, told: ProfileRunProgress, deed: Deed) -> bool:
        """Note what a node tells of its run; False when the run has ended, so that the node stops. Raises
        NotFoundError for a run of another node.
        """
        with self._database.transaction() as session:
            run = own(session, node, run_id)
            going_on = profile_runs.advance(session, run_id, told)
            if going_on and told.state.value not in profile_runs.ACTIVE:
                _note(session, told.state.value, run, deed)
            return going_on

    def check_handed_in(self, node: str, run_id: int, rows: tuple[Placed, ...]) -> None:
        """A node hands in what its run is about and nothing else. Raises FieldsError and NotFoundError."""
        with self._database.reading() as session:
            run = own(session, node, run_id)
            subjects = [_subject(session, name) for name in (run.service, run.beside) if name is not None]
            gpu_type = _gpu_type(session, run.uuid)
        models = {subject.model for subject in subjects if subject is not None}
        for row in rows:
            named, of_type = {*models_of(row.item)}, row.item.gpu_type
            if not named <= models or of_type != gpu_type:
                told = f"run {run_id} does not measure {', '.join(sorted(named))} on {of_type}"
                raise FieldsError.unknown(row.place, told)

    def asked_about(self, node: str, run_id: int) -> AskedAbout:
        """What points of a node's run are to be about. Raises NotFoundError."""
        with self._database.reading() as session:
            run = own(session, node, run_id)
            subject = _subject(session, run.service)
            gpu_type = _gpu_type(session, run.uuid)
            if subject is None or gpu_type is None:
                raise NotFoundError(f"the service or device of profile run {run_id} is gone", run=run_id)
            own_clock = nodes.refuse(session, "set_clock", uuid=run.uuid)
            return AskedAbout(model=subject.model, gpu_type=gpu_type, own_clock=own_clock)

    def own_clock(self, gpu_type: str) -> bool:
        """Whether no agent of the fleet may set clocks on its devices of a type, though there are some."""
        return self._database.read(lambda session: nodes.refuse(session, "set_clock", gpu_type=gpu_type))

    def _device(self, session: Session, wanted: WantedProfileRun, service: Service) -> str:
        if nodes.find(session, wanted.node) is None:
            raise FieldsError.unknown("/node", f"there is no node {wanted.node}")
        listed = nodes.devices_of(session, wanted.node)
        if wanted.device is not None and wanted.device not in listed:
            raise FieldsError.unknown("/device", f"node {wanted.node} has no device {wanted.device}")
        busy = {item.device for item in targets.current(session, self._cluster).assignments}
        among = listed if wanted.device is None else (wanted.device,)
        fitting = [uuid for uuid in among if _fits(session, uuid, service)]
        if not fitting:
            raise FieldsError.unknown("/node", f"node {wanted.node} has no device on which {wanted.service} may run")
        fitting = [uuid for uuid in fitting if uuid not in profile_runs.held_devices(session)]
        if not fitting:
            raise StateError("another run goes on on every device that would do")
        free = [uuid for uuid in fitting if uuid not in busy]
        if not free and not wanted.drain:
            raise StateError(f"{fitting[0]} carries live traffic; order with drain to have it moved away first")
        return (free or fitting)[0]


def held_by_runs(session: Session, devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """The devices as planning shall see them: those that are measured on are tainted."""
    held = profile_runs.held_devices(session)
    if not held:
        return devices
    return tuple(_tainted(device) if device.id in held else device for device in devices)


def own(session: Session, node: str, run_id: int) -> ProfileRunLine:
    """A node's run. Raises NotFoundError, also for those of others."""
    run = profile_runs.get(session, run_id)
    if run.node_id != node:
        raise NotFoundError(f"no profile run {run_id}", run=run_id)
    return run


def _tainted(device: Device) -> Device:
    others = tuple(taint for taint in device.taints if taint.key != PROFILING.key)
    return replace(device, taints=(*others, PROFILING))


def _fits(session: Session, uuid: str, service: Service) -> bool:
    gpu_type = _gpu_type(session, uuid)
    return gpu_type is not None and (not service.gpu_types_allowed or gpu_type in service.gpu_types_allowed)


def _gpu_type(session: Session, uuid: str) -> str | None:
    stored = documents.find(session, kinds.DEVICE, (uuid,))
    return None if stored is None else str(stored.spec["gpu_type"])


def _found(session: Session, service: str) -> Service | None:
    project, _, name = service.partition("/")
    stored = documents.find(session, kinds.SERVICE, (project, name))
    return None if stored is None else from_plain(Service, stored.spec)


def _service(session: Session, pointer: str, service: str) -> Service:
    found = _found(session, service)
    if found is None:
        raise FieldsError.unknown(pointer, f"there is no service {service}")
    return found


def _subject(session: Session, service: str) -> ProfileSubject | None:
    found = _found(session, service)
    if found is None:
        return None
    model = documents.find(session, kinds.MODEL, (found.model,))
    return ProfileSubject(
        service=service,
        project=found.project,
        model=found.model,
        launch_s=from_plain(ModelVariant, model.spec).launch_s if model is not None else 30.0,
        worker=None if found.worker is None else worker_target(found.worker),
    )


def _note(session: Session, name: str, run: ProfileRunLine, deed: Deed) -> None:
    facts = {"service": run.service, "node": run.node_id, "device": run.uuid}
    deed.note(session, f"profile_run.{name}", f"profile-runs/{run.id}", facts, run.service.partition("/")[0])
