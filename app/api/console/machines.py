"""The machines: the whole fleet as a map of heat and a table, one node, one GPU, and who held what over time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Query
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from app import kinds
from app.api.auth import CLUSTER_READ, CLUSTER_WRITE
from app.api.console.door import Looking, PageRoute, Visit, by_cookie
from app.api.console.glance import Plain, fleet_of, glances_of, homes_of, paints_of, tile
from app.api.console.lanes import lanes_of_gpu, lanes_of_node
from app.api.deps import deed_of
from app.api.forms import Comment, NodeKey, Uuid
from app.services.seen.series import SUBJECTS_MAX
from app.store.pages import PageOrder
from solvers.domain.device import PowerScope
from solvers.errors import NotFoundError

router = APIRouter(include_in_schema=False, route_class=PageRoute)
Overseeing = Annotated[Visit, Depends(by_cookie(CLUSTER_READ))]
Operating = Annotated[Visit, Depends(by_cookie(CLUSTER_WRITE))]
Said = Annotated[Comment, Form()]
Hours = Annotated[float, Query(ge=0.1, le=720)]
NODES_SHOWN = 60
BARS_MAX = 64
"""So many GPUs are drawn as bars, which say more; all of them in the map."""
LEGEND_MAX = 24
COLOURS_OF = {
    "share": "SM share held", "busy": "busy", "power": "power", "memory": "memory used", "temperature": "temperature",
    "cost": "price", "health": "health",
}  # fmt: skip
POWER = {"name": "Power, W", "fields": ["power_w"], "live": "power_w"}
CHARTS = (
    {"name": "Busy and SM share, %", "fields": ["utilisation_pct", "share_pct_sm_total"], "live": "utilisation_pct"},
    {"name": "Memory used, MiB", "fields": ["memory_mib_used"], "live": "memory_mib_used"},
    {"name": "SM clock, MHz", "fields": ["clock_mhz_sm"], "live": ""},
    {"name": "Temperature, \N{DEGREE SIGN}C", "fields": ["temperature_c"], "live": "temperature_c"},
)


@router.get("/fleet", response_class=HTMLResponse)
def whole_fleet(visit: Looking, colour: str = "share", *, every: bool = False) -> Response:
    """Every GPU, by rack and node; of many nodes those that need somebody, and the first ones, unless all are asked."""
    fleet = fleet_of(visit)
    paints = paints_of(fleet)
    racks = {node["id"]: node["rack"] for node in fleet["nodes"]}
    devices = fleet["devices"]
    few = [tile(device, paints) for device in devices] if len(devices) <= BARS_MAX else []
    nodes = fleet["nodes"] or [{"id": node, "up": True, "age_s": None} for node in sorted({d["node"] for d in devices})]
    return visit.page(
        "fleet.html",
        topics="devices,nodes" if visit.may(CLUSTER_READ) else "",
        fleet=fleet,
        listed=sorted(fleet["nodes"], key=_is_well)[: None if every else NODES_SHOWN],
        heat=_heat(devices, racks),
        colour=colour if colour in COLOURS_OF else "share",
        colours=COLOURS_OF,
        legend=_legend(paints, (at["workload"] for device in few for at in device["replicas"])),
        nodes=[{**node, "tiles": [each for each in few if each["node"] == node["id"]]} for node in nodes],
        few=few,
    )


def _legend(paints: Mapping[str, str], held: Iterable[str]) -> Plain:
    """The colours of those who hold something here, who holds most first, and how many more there are."""
    times = Counter(held)
    there = sorted((name for name in paints if name in times), key=times.__getitem__, reverse=True)
    shown = [(name, paints[name]) for name in there[:LEGEND_MAX]]
    return {"shown": shown, "more": len(there) - len(shown)}


def _is_well(node: Plain) -> bool:
    return bool(node["up"] and node["schedulable"])


def _heat(devices: Sequence[Plain], racks: Mapping[str, str]) -> Plain:
    """What the map draws, by rack and node; what many GPUs share is said once."""
    kinds_of: dict[tuple[str, int], int] = {}
    rows: defaultdict[tuple[str, str], list[list[Any]]] = defaultdict(list)
    for device in sorted(devices, key=lambda item: (racks.get(item["node"], ""), item["node"], item["index"])):
        kind = kinds_of.setdefault((device["gpu_type"], device["memory_mib"]), len(kinds_of))
        rows[racks.get(device["node"], ""), device["node"]].append(
            [
                kind, device["id"], device["index"], device["share_pct_sm_held"], device["utilisation_pct"],
                device["power_w"], device["memory_mib_used"], device["temperature_c"], device["price_usd_per_h"],
                device["up"] and device["healthy"] is not False,
            ]
        )  # fmt: skip
    return {"kinds": list(kinds_of), "nodes": [[*where, row] for where, row in rows.items()]}


@router.get("/nodes/{node}", response_class=HTMLResponse)
def one_node(visit: Overseeing, node: NodeKey, hours: Hours = 6) -> Response:
    """What a node has, does, and was told; how far it is from being empty."""
    fleet = fleet_of(visit)
    line = _known(fleet["nodes"], node, "node")
    paints, history = paints_of(fleet), visit.services.history
    devices = [device for device in fleet["devices"] if device["node"] == node]
    lanes = lanes_of_node(visit, {device["id"]: f"#{device['index']}" for device in devices}, hours, paints)
    there = [at["workload"] for device in devices for at in device["replicas"]]
    there += [part.name for lane in lanes.lanes for part in lane.blocks]
    return visit.page(
        "node.html",
        topics="devices,nodes",
        watch=f"nodes/{node}",
        node=line,
        tiles=[tile(device, paints) for device in devices],
        receipts=history.receipts(PageOrder(limit=12), node, None).items,
        events=history.events(PageOrder(limit=12), f"nodes/{node}", None).items,
        drain=None if line["schedulable"] else visit.services.draining.progress(node),
        lanes=lanes,
        homes=homes_of(fleet) | {f"#{device['index']}": f"/gpus/{device['id']}" for device in devices},
        legend=_legend(paints, there),
        charts=_charts(visit, devices, hours, _cap_w(visit, PowerScope.NODE, node), (POWER | {"live": ""},)),
        hours=hours,
    )


@router.post("/nodes/{node}/drain")
def drain(visit: Operating, node: NodeKey, comment: Said = "") -> Response:
    """Plan nothing on it any more."""
    visit.services.draining.drain(node, comment or None, deed_of(visit.request, visit.actor))
    return _changed(visit, node)


@router.post("/nodes/{node}/uncordon")
def uncordon(visit: Operating, node: NodeKey, comment: Said = "") -> Response:
    """Let plans use it again."""
    visit.services.draining.uncordon(node, comment or None, deed_of(visit.request, visit.actor))
    return _changed(visit, node)


def _changed(visit: Visit, node: str) -> Response:
    glances_of(visit).forget()
    return RedirectResponse(f"/nodes/{node}", status_code=303)


@router.get("/gpus/{uuid}", response_class=HTMLResponse)
def one_gpu(visit: Overseeing, uuid: Uuid, hours: Hours = 1) -> Response:
    """One GPU: who holds it and held it, and how it was used."""
    fleet = fleet_of(visit)
    line, paints = _known(fleet["devices"], uuid, "GPU"), paints_of(fleet)
    return visit.page(
        "gpu.html",
        topics="devices",
        gpu=tile(line, paints),
        plan=fleet["plan"],
        homes=homes_of(fleet),
        lanes=lanes_of_gpu(visit, uuid, hours, paints),
        charts=_charts(visit, [line], hours, _cap_w(visit, PowerScope.DEVICE, uuid), (POWER, *CHARTS)),
        hours=hours,
    )


def _known(lines: Sequence[Plain], wanted: str, word: str) -> Plain:
    found = next((item for item in lines if item["id"] == wanted), None)
    if found is None:
        raise NotFoundError(f"there is no {word} {wanted}")
    return found


def _charts(
    visit: Visit, devices: Sequence[Plain], hours: float, cap_w: float | None, charts: Sequence[Plain]
) -> Plain:
    """What the page's script draws of one GPU, or of all of a node together."""
    lines = visit.services.history.targets(PageOrder(limit=100)).items
    told = [each | {"line": cap_w, "line_name": "cap"} if each["name"] == POWER["name"] else each for each in charts]
    subjects = [f"devices/{device['id']}" for device in devices[:SUBJECTS_MAX]]
    return {
        "subjects": subjects, "topic": subjects[0] if len(subjects) == 1 else "", "hours": hours,
        "together": "each" if len(subjects) == 1 else "sum", "charts": told if subjects else [],
        "marks": [{"at": line.promoted_at.timestamp(), "text": f"generation {line.generation}"} for line in lines],
    }  # fmt: skip


def _cap_w(visit: Visit, scope: PowerScope, subject: str) -> float | None:
    caps = visit.every(kinds.POWER_CAP)
    found = (cap.spec for cap in caps if (cap.spec["scope"], cap.spec["subject"]) == (scope.value, subject))
    return min((spec["limit_w"] for spec in found), default=None)
