"""The demo's fleet: which simulated nodes there are, what is declared about them and their services, and where the
example files lie.

The nodes' documents are `examples/demo/fleet.yaml`. Seeding never takes back what a user changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app.client.documents import PROFILES, read_documents
from headroom_client import ApiError, Client
from solvers.errors import NotFoundError


def examples_path() -> Path:
    """The folder of examples. Raises NotFoundError when this installation brings none."""
    package = Path(__file__).resolve().parents[1]
    candidates = (package / "examples_bundle", package.parent / "examples", Path("/usr/share/headroom/examples"))
    for candidate in candidates:
        if (candidate / "traffic.yaml").is_file():
            return candidate
    raise NotFoundError(f"no examples beside {package}; run from a checkout, or name files yourself")


GATEWAY = "demo-traffic"
"""Name under which the demo's traffic reports offered load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoNode:
    name: str
    rack: str
    failure_domain: str
    gpus: tuple[str, ...]


NODES = (
    DemoNode(name="node-a1", rack="rack-a", failure_domain="zone-a", gpus=("T4", "T4", "V100")),
    DemoNode(name="node-a2", rack="rack-a", failure_domain="zone-a", gpus=("L4", "L4", "A100")),
    DemoNode(name="node-b1", rack="rack-b", failure_domain="zone-b", gpus=("T4", "T4", "V100")),
    DemoNode(name="node-b2", rack="rack-b", failure_domain="zone-b", gpus=("L4", "L4", "A100")),
)


def seed(client: Client) -> int:
    """Declare the demo; returns how many documents were written. A blank control plane takes all of it, its default
    policy included; in any other, only what is missing is added.
    """
    only_create = not is_blank(client)
    made = 0
    for document in read_documents([str(examples_path() / "demo")]):
        if document.kind == PROFILES:
            client.import_profiles(csv=document.csv, points=document.fields.get("points"))
            continue
        try:
            client.put(document.kind, document.fields, only_create=only_create)
            made += 1
        except ApiError as error:
            if error.status != 412:
                raise
    return made


def is_blank(client: Client) -> bool:
    """Whether there never was a node nor a service; GPU types, networks and a project are built in."""
    return all(next(client.items(kind, limit=1), None) is None for kind in ("nodes", "services"))
