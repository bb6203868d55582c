"""Documents keep every kind of domain value, guard their versions and refuse dangling references."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from app import kinds
from app.errors import PreconditionError, ReferencedError
from app.kinds import Kind
from app.store import documents
from app.store.documents import Precondition
from app.store.engine import Database
from app.store.pages import PageOrder
from solvers.domain.budget import MonthlyBudget
from solvers.domain.codec import from_plain
from solvers.domain.device import Label, Node, PowerCap, PowerScope
from solvers.domain.ids import ModelName, NodeId, PolicyName, ProjectName
from solvers.domain.policy import Policy
from solvers.domain.workload import ModelVariant, Project
from solvers.errors import FieldError, InputError, NotFoundError
from tests.builders import webhook
from tests.integration.store.samples import device, gpu_type, job, put, put_project, service, spec_of, task

pytestmark = pytest.mark.integration

ONE_OF_EACH: dict[Kind, tuple[object, tuple[str, ...]]] = {
    kinds.GPU_TYPE: (gpu_type(), ("t4",)),
    kinds.MODEL: (
        ModelVariant(name=ModelName("resnet"), family="resnet", parameters_million=25.6, memory_mib_weights=98.0),
        ("resnet",),
    ),
    kinds.POLICY: (Policy(name=PolicyName("default")), ("default",)),
    kinds.PROJECT: (Project(name=ProjectName("vision"), description="Ünïcode ☃"), ("vision",)),
    kinds.POWER_CAP: (PowerCap(scope=PowerScope.RACK, subject="rack-0", limit_w=900.5), ("rack", "rack-0")),
    kinds.NODE: (Node(id=NodeId("n1")), ("n1",)),
    kinds.DEVICE: (device("GPU-1", "n1"), ("GPU-1",)),
    kinds.SERVICE: (service("a"), ("vision", "a")),
    kinds.JOB: (job("train"), ("vision", "train")),
    kinds.TASK: (task("embed"), ("vision", "embed")),
    kinds.WEBHOOK: (webhook("pager"), ("pager",)),
    kinds.BUDGET: (MonthlyBudget(name="ears", usd_per_month=9.5, label=Label(key="team", value="é")), ("ears",)),
}  # fmt: skip


def test_every_kind_is_kept_and_read_back_as_it_was(database: Database) -> None:
    assert set(ONE_OF_EACH) == set(kinds.KINDS)
    with database.transaction() as session:
        for kind, (item, key) in ONE_OF_EACH.items():
            assert documents.key_of(kind, spec_of(item)) == key
            assert put(session, kind, item).key == key
    with database.reading() as session:
        for kind, (item, key) in ONE_OF_EACH.items():
            stored = documents.get(session, kind, key)
            assert from_plain(kind.domain, stored.spec) == item
            assert [each.key for each in documents.all_specs(session, kind)] == [key]
            assert kind.in_project == (key[0] == "vision" and len(key) == 2)
    with database.transaction() as session:
        for kind, (_, key) in reversed(ONE_OF_EACH.items()):
            documents.delete(session, kind, key)
            assert documents.find(session, kind, key) is None
            with pytest.raises(NotFoundError):
                documents.get(session, kind, key)


def test_putting_again_raises_the_version_only_when_something_changed(database: Database) -> None:
    project = Project(name=ProjectName("vision"))
    with database.transaction() as session:
        first = documents.put(session, kinds.PROJECT, spec_of(project))
    with database.transaction() as session:
        same = documents.put(session, kinds.PROJECT, spec_of(project))
    with database.transaction() as session:
        other = documents.put(session, kinds.PROJECT, spec_of(replace(project, quota_gpus=2.5)))
    assert (first.created, first.changed) == (True, True)
    assert (same.created, same.changed, same.stored) == (False, False, first.stored)
    assert (other.created, other.changed) == (False, True)
    assert other.stored.version > first.stored.version
    assert other.stored.created_at == first.stored.created_at
    assert other.stored.updated_at > first.stored.updated_at


def test_preconditions_are_held(database: Database) -> None:
    spec = spec_of(Project(name=ProjectName("vision")))
    with database.transaction() as session:
        with pytest.raises(PreconditionError) as missing:
            documents.put(session, kinds.PROJECT, spec, Precondition(version=1))
        assert missing.value.context["version"] is None
        stored = documents.put(session, kinds.PROJECT, spec, Precondition(absent=True)).stored
        with pytest.raises(PreconditionError) as present:
            documents.put(session, kinds.PROJECT, spec, Precondition(absent=True))
        assert present.value.context["version"] == stored.version
        with pytest.raises(PreconditionError):
            documents.put(session, kinds.PROJECT, spec, Precondition(version=stored.version + 1))
        documents.put(session, kinds.PROJECT, {**spec, "description": "x"}, Precondition(version=stored.version))
        with pytest.raises(PreconditionError):
            documents.delete(session, kinds.PROJECT, ("vision",), Precondition(version=stored.version))
        with pytest.raises(NotFoundError):
            documents.delete(session, kinds.PROJECT, ("nobody",))


def test_a_version_never_comes_back(database: Database) -> None:
    spec = spec_of(Project(name=ProjectName("vision")))
    with database.transaction() as session:
        first = documents.put(session, kinds.PROJECT, spec).stored
        documents.delete(session, kinds.PROJECT, ("vision",))
        second = documents.put(session, kinds.PROJECT, spec).stored
        assert second.version > first.version
        with pytest.raises(PreconditionError):
            documents.put(session, kinds.PROJECT, {**spec, "description": "x"}, Precondition(version=first.version))


def test_of_many_rivals_with_one_version_exactly_one_writes(database: Database) -> None:
    with database.transaction() as session:
        put_project(session)
        before = documents.get(session, kinds.PROJECT, ("vision",))

    def run(number: int) -> str:
        try:
            with database.transaction() as session:
                spec = {**before.spec, "description": f"writer {number}"}
                documents.put(session, kinds.PROJECT, spec, Precondition(version=before.version))
        except PreconditionError:
            return "lost"
        return "won"

    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(run, range(6)))
    assert sorted(outcomes) == ["lost"] * 5 + ["won"]


def test_of_many_rivals_making_the_same_thing_exactly_one_creates(database: Database) -> None:
    def run(number: int) -> bool:
        with database.transaction() as session:
            spec = spec_of(Project(name=ProjectName("vision"), description=f"writer {number}"))
            return documents.put(session, kinds.PROJECT, spec).created

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(run, range(6))) == [False] * 5 + [True]


def test_references_must_exist_and_hold_what_they_name(database: Database) -> None:
    with database.transaction() as session:
        with pytest.raises(InputError, match="vision"):
            put(session, kinds.SERVICE, service("a"))
        put_project(session)
        put(session, kinds.SERVICE, service("a"))
        with pytest.raises(ReferencedError) as caught:
            documents.delete(session, kinds.PROJECT, ("vision",))
        assert caught.value.context["used_by"] == "services"
        put(session, kinds.NODE, Node(id=NodeId("n1")))
        with pytest.raises(InputError):
            put(session, kinds.DEVICE, device("GPU-1", "n1"))
        put(session, kinds.GPU_TYPE, gpu_type())
        put(session, kinds.DEVICE, device("GPU-1", "n1"))
        with pytest.raises(InputError):
            put(session, kinds.DEVICE, device("GPU-1", "n2"))
    with database.reading() as session:
        assert documents.get(session, kinds.DEVICE, ("GPU-1",)).spec["node"] == "n1"
        assert documents.find(session, kinds.SERVICE, ("vision", "a")) is not None


def test_a_node_takes_its_devices_with_it(database: Database) -> None:
    with database.transaction() as session:
        put(session, kinds.GPU_TYPE, gpu_type())
        put(session, kinds.NODE, Node(id=NodeId("n1")))
        put(session, kinds.DEVICE, device("GPU-1", "n1"))
        documents.delete(session, kinds.NODE, ("n1",))
        assert documents.find(session, kinds.DEVICE, ("GPU-1",)) is None


def test_pages_walk_everything_once_in_key_order(database: Database) -> None:
    with database.transaction() as session:
        for project in ("audio", "vision"):
            put_project(session, project)
            for name in ("c", "a", "b"):
                put(session, kinds.SERVICE, service(name, project))
    with database.reading() as session:
        seen, cursor = [], None
        while True:
            page = documents.page(session, kinds.SERVICE, PageOrder(limit=2, cursor=cursor))
            seen += [stored.key for stored in page.items]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert seen == [(project, name) for project in ("audio", "vision") for name in ("a", "b", "c")]
        own = documents.page(session, kinds.SERVICE, PageOrder(limit=9), project="vision")
        assert [stored.key for stored in own.items] == [("vision", name) for name in ("a", "b", "c")]
        assert own.next_cursor is None
        assert [
            stored.key for stored in documents.page(session, kinds.PROJECT, PageOrder(limit=9), project="audio").items
        ] == [("audio",)]


def test_a_cursor_of_another_list_is_refused(database: Database) -> None:
    with database.transaction() as session:
        for name in ("a", "b"):
            put_project(session, name)
        foreign = documents.page(session, kinds.PROJECT, PageOrder(limit=1)).next_cursor
        assert foreign is not None
        with pytest.raises(FieldError):
            documents.page(session, kinds.GPU_TYPE, PageOrder(limit=1, cursor=foreign))


@pytest.mark.parametrize("bad", ["nul \x00", "surrogate \ud800"])
def test_specs_that_json_columns_refuse_are_the_callers_fault(database: Database, bad: str) -> None:
    with pytest.raises(InputError), database.transaction() as session:
        documents.put(session, kinds.PROJECT, {"name": "vision", "description": bad, "quota_gpus": None})


def test_every_float_survives_the_way_through_json_columns(database: Database) -> None:
    numbers = [0.1, 1e-7, 1 / 3, 123456789.123456789, 5e-324, 1e9]
    with database.transaction() as session:
        for index, number in enumerate(numbers):
            put(session, kinds.PROJECT, Project(name=ProjectName(f"p{index}"), quota_gpus=number))
        specs = [documents.get(session, kinds.PROJECT, (f"p{index}",)).spec for index in range(len(numbers))]
    assert [from_plain(Project, spec).quota_gpus for spec in specs] == numbers
