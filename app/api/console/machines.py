"""The machines: the whole fleet as a map of heat and a table, one node, one GPU, and who held what over time."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import HTMLResponse, Response

from app import kinds
from app.api.auth import CLUSTER_READ
from app.api.console.door import Looking, PageRoute, Visit, by_cookie
from app.api.console.glance import fleet_of, paints_of, tile
from app.api.forms import NodeKey, Uuid
from app.records import plain
from app.store.pages import PageOrder
from solvers.errors import NotFoundError

router = APIRouter(include_in_schema=False, route_class=PageRoute)
Overseeing = Annotated[Visit, Depends(by_cookie(CLUSTER_READ))]
BARS_MAX = 64
"""So many GPUs are drawn as bars, which say more; all of them in the map."""
COLOURS_OF = {
    "share": "SM share held", "busy": "busy", "power": "power", "memory": "memory used", "temperature": "temperature",
    "cost": "price", "health": "health",
}  # fmt: skip
CHARTS = (
    {"name": "Power, W", "fields": ["power_w"], "live": "power_w"},
    {"name": "Busy and SM share, %", "fields": ["utilisation_pct", "share_pct_sm_total"], "live": "utilisation_pct"},
    {"name": "Memory used, MiB", "fields": ["memory_mib_used"], "live": "memory_mib_used"},
    {"name": "SM clock, MHz", "fields": ["clock_mhz_sm"], "live": ""},
)


@router.get("/fleet", response_class=HTMLResponse)
def whole_fleet(visit: Looking, colour: str = "share") -> Response:
    """Every GPU, by rack and node."""
    fleet = fleet_of(visit)
    paints = paints_of(fleet)
    racks = {node["id"]: node["rack"] for node in fleet["nodes"]}
    devices = fleet["devices"]
    few = [tile(device, paints) for device in devices] if len(devices) <= BARS_MAX else []
    nodes = fleet["nodes"] or [{"id": node, "up": True, "age_s": None} for node in sorted({d["node"] for d in devices})]
    heat = [
        [
            device["id"], racks.get(device["node"], ""), device["node"], device["index"], device["gpu_type"],
            device["share_pct_sm_held"], device["utilisation_pct"], device["power_w"], device["memory_mib_used"],
            device["memory_mib"], device["temperature_c"], device["price_usd_per_h"],
            device["up"] and device["healthy"] is not False,
        ]
        for device in sorted(devices, key=lambda item: (racks.get(item["node"], ""), item["node"], item["index"]))
    ]  # fmt: skip
    return visit.page(
        "fleet.html",
        topics="devices,nodes" if visit.may(CLUSTER_READ) else "",
        fleet=fleet,
        heat=json.dumps(heat, separators=(",", ":")),
        colour=colour if colour in COLOURS_OF else "share",
        colours=COLOURS_OF,
        paints=[(name, mark) for name, mark in paints.items()],
        nodes=[{**node, "tiles": [each for each in few if each["node"] == node["id"]]} for node in nodes],
        few=few,
    )


@router.get("/nodes/{node}", response_class=HTMLResponse)
def one_node(visit: Overseeing, node: NodeKey) -> Response:
    """What a node has, does, and was told."""
    fleet = fleet_of(visit)
    line = next((item for item in fleet["nodes"] if item["id"] == node), None)
    if line is None:
        raise NotFoundError(f"there is no node {node}")
    paints = paints_of(fleet)
    history = visit.services.history
    return visit.page(
        "node.html",
        topics="devices,nodes",
        node=line,
        tiles=[tile(device, paints) for device in fleet["devices"] if device["node"] == node],
        receipts=history.receipts(PageOrder(limit=12), node, None).items,
        events=history.events(PageOrder(limit=12), f"nodes/{node}", None).items,
        spec=visit.services.documents.get(kinds.NODE, (node,)).spec,
    )


@router.get("/gpus/{uuid}", response_class=HTMLResponse)
def one_gpu(visit: Overseeing, uuid: Uuid, hours: float = 1) -> Response:
    """One GPU: who holds it, and how it was used."""
    fleet = fleet_of(visit)
    line = next((item for item in fleet["devices"] if item["id"] == uuid), None)
    if line is None:
        raise NotFoundError(f"there is no GPU {uuid}")
    span = min(max(hours, 0.1), 720)
    target = visit.services.history.target()
    lines = visit.services.history.targets(PageOrder(limit=100)).items
    charts = {
        "subject": f"devices/{uuid}",
        "hours": span,
        "charts": CHARTS,
        "slo_ms": None,
        "marks": [{"at": line.promoted_at.timestamp(), "text": str(line.generation)} for line in lines],
        "topic": f"devices/{uuid}",
    }
    return visit.page(
        "gpu.html",
        topics="devices",
        gpu=tile(line, paints_of(fleet)),
        planned=[plain(item) for item in target.assignments if item.device == uuid],
        charts=json.dumps(charts),
        hours=span,
    )
