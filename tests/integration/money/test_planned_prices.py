"""What a plan says that an hour costs is what the ledger bills for an hour of it, whoever plans the device.

Two implementations of one rule: Python before, SQL after. Everything that a price depends on is drawn: rows by price
kind and region, policies with pools and price kinds of their own, prices by the hour, carbon, cooling, slices of GPUs,
time slices, shares and memory; documents may leave out what has its default.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, text
from sqlalchemy.orm import Session

from app import kinds
from app.store.engine import Database
from app.store.tables import TABLES, node_targets
from solvers.domain.codec import to_plain
from solvers.domain.device import Device, DeviceMode, Label, MigSlice, Node, PriceKind, PriceRow
from solvers.domain.ids import DeviceId, GpuTypeName, NodeId, PolicyName
from solvers.domain.ownership import owners_of
from solvers.domain.plan import Assignment, DeviceSetting
from solvers.domain.policy import CostBasis, Policy, Pool
from solvers.domain.snapshot import Snapshot
from solvers.models.worth import cost_by_device
from solvers.problems.fleet import open_fleet
from tests import builders
from tests.integration.money.telemetry import T0, Fleet, Holding, make_gpu_type

pytestmark = pytest.mark.integration

REPORT_S = 300
GRID_USD = 60 * 4e-12
"""Every amount of each of sixty minutes is cut to twelve decimals."""
MAY_BE_LEFT_OUT = (
    "energy_usd_per_kwh", "energy_usd_per_kwh_by_hour", "power_usage_effectiveness", "carbon_g_per_kwh",
    "carbon_usd_per_t", "price_kind",
)  # fmt: skip
MEMORY_MIB = {"a100": 81920, "t4": 15360}
NODES = ("n0", "n1")
REGIONS = ("default", "eu")
PARTS = {"whole": 1.0, "cut": 1.0, "half": 0.5, "eighth": 0.125}
"""The devices of a node: a whole GPU, and one in two slices; by part of the GPU's memory."""

usd_per_kwh = st.just(0.12) | st.integers(0, 999).map(lambda thousandths: thousandths / 1000)
rows_of_a_region = st.tuples(
    *(
        st.none()
        | st.builds(
            PriceRow, kind=st.just(kind), usd_per_h=st.integers(1, 99_999).map(lambda thousandths: thousandths / 1000)
        )
        for kind in PriceKind
    )
)
price_rows = st.tuples(*(rows_of_a_region for _ in REGIONS)).map(
    lambda found: tuple(
        replace(row, region=region)
        for region, rows in zip(REGIONS, found, strict=True)
        for row in rows
        if row is not None
    )
)
labels = st.sampled_from([(), (Label(key="pool", value="a"),), (Label(key="pool", value="b"),)])
nodes = st.tuples(
    *(
        st.builds(
            Node,
            id=st.just(NodeId(name)),
            region=st.sampled_from(["default", "eu", "us"]),
            price_kind=st.sampled_from(PriceKind),
            labels=labels,
        )
        for name in NODES
    )
)
pools = st.builds(
    Pool,
    devices=st.sampled_from([(), (DeviceId("n0-half"), DeviceId("n1-whole"))]),
    nodes=st.sampled_from([(), (), (NodeId("n1"),)]),
    gpu_types=st.sampled_from([(), (GpuTypeName("t4"),), (GpuTypeName("a100"), GpuTypeName("t4"))]),
    labels=st.just((Label(key="pool", value="a"),)),
) | st.sampled_from(
    [
        Pool(devices=(DeviceId("n0-half"), DeviceId("n1-whole"))),
        Pool(nodes=(NodeId("n0"),)),
        Pool(nodes=(NodeId("n0"), NodeId("n1"))),
    ]
)


def policies(name: str, pool: st.SearchStrategy[Pool | None]) -> st.SearchStrategy[Policy]:
    """Whatever a policy says of money."""
    return st.builds(
        Policy,
        name=st.just(PolicyName(name)),
        pool=pool,
        price_kind=st.none() | st.sampled_from(PriceKind),
        energy_usd_per_kwh=usd_per_kwh,
        energy_usd_per_kwh_by_hour=st.just(()) | st.lists(usd_per_kwh, min_size=24, max_size=24).map(tuple),
        power_usage_effectiveness=st.sampled_from([1.0, 1.3, 1.57]),
        carbon_g_per_kwh=st.sampled_from([0.0, 417.3]),
        carbon_usd_per_t=st.sampled_from([0.0, 95.5]),
    )


def replicas(device: Device) -> st.SearchStrategy[tuple[Assignment, ...]]:
    """Up to three on a device, which may be more than it has."""
    one = st.builds(
        lambda share_pct, memory_part, power_w: builders.assignment(
            "x#0", device,
            share_pct_sm=share_pct, memory_mib_limit=int(memory_part * device.memory_mib), power_w_planned=power_w,
        ),
        st.sampled_from([100, 5, 20, 35, 50]),
        st.sampled_from([0.05, 0.21, 0.5, 0.9]),
        st.sampled_from([0.0, 13.7, 90.0, 400.0]),
    )  # fmt: skip
    return st.lists(one, max_size=3).map(
        lambda found: tuple(
            replace(item, replica=f"demo/{device.id}-{number}#0", workload=f"demo/{device.id}-{number}")
            for number, item in enumerate(found)
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A fleet with what stands on it, and how its documents were written."""

    picture: Snapshot
    left_out: frozenset[str]
    """Fields that documents of policies leave out where they have their default."""
    default_declared: bool


@st.composite
def standings(draw: st.DrawFn) -> Standing:
    """Two nodes of any type in any region, up to three policies, and replicas anywhere but on a GPU that is cut."""
    hosts, devices = draw(nodes), list[Device]()
    for host in hosts:
        kind = draw(st.sampled_from(sorted(MEMORY_MIB)))
        devices += _devices(host, kind, draw(st.sampled_from([DeviceMode.MPS, DeviceMode.TIME_SLICED])))
    used = [item for item in devices if not item.id.endswith("cut")]
    modes = {item.id: draw(st.sampled_from([None, DeviceMode.MPS, DeviceMode.TIME_SLICED])) for item in used}
    declared = draw(st.booleans())
    bound = [draw(policies(name, pools)) for name in draw(st.sets(st.sampled_from(["a-pool", "b-pool"])))]
    start = T0.replace(hour=draw(st.integers(0, 23)))
    picture = builders.snapshot(
        devices,
        nodes=hosts,
        profiles=(),
        taken_at_s=start.timestamp(),
        policy=draw(policies("default", st.none())) if declared else Policy(name=PolicyName("default")),
        policies=tuple(sorted(bound, key=lambda policy: policy.name)),
        gpu_types=tuple(
            make_gpu_type(name, memory_mib, draw(price_rows))
            for name, memory_mib in sorted(MEMORY_MIB.items())
            if any(item.gpu_type == name for item in devices)
        ),
        target=builders.target(
            [item for device in used for item in draw(replicas(device))],
            settings=tuple(
                DeviceSetting(device=name, mode=mode) for name, mode in sorted(modes.items()) if mode is not None
            ),
        ),
    )
    left_out = draw(st.sets(st.sampled_from(MAY_BE_LEFT_OUT)))
    return Standing(picture=picture, left_out=frozenset(left_out), default_declared=declared)


def _devices(host: Node, kind: str, mode: DeviceMode) -> Iterator[Device]:
    for index, (name, part) in enumerate(PARTS.items()):
        yield Device(
            id=DeviceId(f"{host.id}-{name}"),
            node=host.id,
            gpu_type=GpuTypeName(kind),
            index=index,
            memory_mib=int(part * MEMORY_MIB[kind]),
            sm_count=10,
            mig=None if part == 1.0 else MigSlice(parent=DeviceId(f"{host.id}-cut"), profile=name),
            mode=mode,
        )


def planned(picture: Snapshot, basis: CostBasis) -> dict[str, float]:
    """$/h of every device in use, each by the policy that decides on it, had it this cost basis."""
    owners, held = owners_of(picture), {item.device: item for item in picture.target.settings}
    found: dict[str, float] = {}
    for policy in owners.policies:
        mine = tuple(item for item in picture.target.assignments if owners.policy_at(item.device) is policy)
        part = replace(picture, policy=replace(policy, cost_basis=basis), policies=())
        found.update(cost_by_device(part, open_fleet(part, held), mine, held))
    return found


def _write(session: Session, standing: Standing, start: datetime) -> None:
    picture = standing.picture
    documents: dict[kinds.Kind, list[dict[str, Any]]] = {
        kinds.GPU_TYPE: [{"name": item.name, "spec": to_plain(item)} for item in picture.gpu_types],
        kinds.POLICY: [
            {"name": item.name, "spec": _spec(item, standing.left_out)}
            for item in (*([picture.policy] if standing.default_declared else []), *picture.policies)
        ],
        kinds.NODE: [{"id": item.id, "spec": to_plain(item)} for item in picture.nodes],
        kinds.DEVICE: [
            {"uuid": item.id, "node_id": item.node, "gpu_type": item.gpu_type, "spec": to_plain(item)}
            | {"billed_from": start}
            for item in picture.devices
        ],
    }
    for kind, found in documents.items():
        if found:
            session.execute(insert(TABLES[kind]), found)
    for node in picture.nodes:
        settings = [item for item in picture.target.settings if item.device.startswith(f"{node.id}-")]
        document = {"devices": [{"uuid": item.device, "mode": item.mode.value} for item in settings]}
        session.execute(insert(node_targets).values(node_id=node.id, generation=1, document=document))


def _spec(policy: Policy, left_out: frozenset[str]) -> Mapping[str, Any]:
    usual = to_plain(Policy(name=policy.name))
    assert isinstance(usual, dict)
    spec = to_plain(policy)
    assert isinstance(spec, dict)
    return {name: item for name, item in spec.items() if name not in left_out or item != usual[name]}


def _report(session: Session, picture: Snapshot, start: datetime) -> None:
    """An hour of telemetry that says what was planned: shares, memory, and the energy of the planned power."""
    fleet, types = Fleet(session), picture.gpu_types_by_name()
    holdings: dict[str, list[Holding]] = defaultdict(list)
    watts: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    devices = picture.devices_by_id()
    for item in picture.target.assignments:
        node = devices[item.device].node
        watts[node][item.device] += item.power_w_planned
        used = {"share_pct_sm": item.share_pct_sm, "memory_mib_used": float(item.memory_mib_limit)}
        holdings[node].append(Holding(replica=item.replica, uuid=item.device, **used))
    for node, added in watts.items():
        energies = {}
        for uuid, added_w in added.items():
            kind, part = types[devices[DeviceId(uuid)].gpu_type], PARTS[uuid.rpartition("-")[2]]
            energies[uuid] = REPORT_S * min(kind.power_limit_w_max * part, kind.idle_w * part + added_w)
        for nth in range(1, 13):
            at = start + timedelta(seconds=REPORT_S * nth)
            fleet.report(node, at, energies, holdings[node], interval_s=REPORT_S)
    fleet.write()


def billed(session: Session) -> dict[str, dict[CostBasis, Decimal]]:
    """What every device and its holders were billed in all."""
    found = session.execute(
        text("""
            SELECT b.device_uuid, b.usd + b.usd_energy AS device, l.share, l.memory
            FROM (SELECT device_uuid, sum(usd) AS usd, sum(usd_energy) AS usd_energy FROM device_bills GROUP BY 1) b
            JOIN (SELECT device_uuid, sum(usd_share) AS share, sum(usd_memory) AS memory FROM ledger
                WHERE subject <> '' GROUP BY 1) l USING (device_uuid)""")
    )
    return {row.device_uuid: {basis: getattr(row, basis.value) for basis in CostBasis} for row in found}


@settings(max_examples=40, deadline=None)
@given(standing=standings())
def test_an_hour_is_billed_at_what_it_was_planned_to_cost(money: Database, standing: Standing) -> None:
    """Every device in use, by each cost basis, at the prices of the policy that decides on it."""
    picture = standing.picture
    start = datetime.fromtimestamp(picture.taken_at_s, T0.tzinfo)
    owners = owners_of(picture)
    with money.transaction() as session:
        _write(session, standing, start)
        _report(session, picture, start)
        session.execute(
            text("SELECT headroom_account_minutes(:start, :end)"), {"start": start, "end": start + timedelta(hours=1)}
        )
        paid = billed(session)
        decides = {row.uuid: row.policy for row in session.execute(text("SELECT uuid, policy FROM device_policies"))}
        differences = session.execute(text("SELECT max(abs(difference_usd)) FROM ledger_check")).scalar_one()
        session.rollback()
    assert decides == {item.id: owners.policy_at(item.id).name for item in picture.devices}
    for basis in CostBasis:
        expected = planned(picture, basis)
        assert set(paid) == set(expected)
        for uuid, usd_per_h in expected.items():
            assert float(paid[uuid][basis]) == pytest.approx(usd_per_h, rel=1e-9, abs=GRID_USD), (uuid, basis)
    assert differences == 0
