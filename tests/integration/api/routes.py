"""A request for every route of the application, with everything it names stored before."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from agents.wire import encode
from app import kinds
from app.store import cycles, logs, profile_runs
from app.store.cycles import NewCycle
from app.store.profile_runs import NewRun
from solvers.cycle.record import Lane
from solvers.domain.budget import MonthlyBudget
from solvers.domain.device import PowerCap, PowerScope
from solvers.domain.ids import CycleId
from tests import builders
from tests.integration.api.world import DEVICE, NODE, OWN, World, join_message, spare_policy, spec
from tests.integration.store.samples import device_report, edge_report, report

CSR = """-----BEGIN CERTIFICATE REQUEST-----
MIHGMG4CAQAwDDEKMAgGA1UEAwwBYTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IA
BCggWXo3OeWUNfsrss0V3SVOo0EGWsgfTd3JMUEh122bFILW9oh3PS+Lr8GWiqqZ
TH0lHmm0PqG2lsBtzQPOrDKgADAKBggqhkjOPQQDAgNIADBFAiAOGFX0NM/B6bNH
QoulG4Zs+Ct/SZuc8F8O60+yYHQxWwIhANX6rIXmyDjf9b9+y59vTzAP1HnZxPTV
2jWZ6afvQkbs
-----END CERTIFICATE REQUEST-----
"""
"""Of a key that nobody has any more."""
PATCHES: dict[str, dict[str, Any]] = {
    "budget": {"usd_per_month": 120.0},
    "device": {"schedulable": True},
    "gpu_type": {"idle_w": 9.0},
    "job": {"priority": 20},
    "model": {"accuracy_pct": 76.1},
    "node": {"schedulable": True},
    "policy": {"deadline_s": 10.0},
    "power_cap": {"limit_w": 900.0},
    "project": {"description": "Recommendations."},
    "service": {"rate_rps_declared": 40.0, "labels": [{"key": "team", "value": "retail"}]},
    "task": {"priority": 60},
    "webhook": {"enabled": False},
}
TOLD = f"""
INSERT INTO told_replicas VALUES ('{NODE}', '{DEVICE}', '{OWN}/vision#0', 'service', '{OWN}/vision', 'm', 9, 9, NULL)
"""
"""The node was told to hold a replica."""
_STALE = {"If-Match": '"999999999999"'}


@dataclass(frozen=True, slots=True)
class Route:
    """One operation of the application."""

    operation: str
    method: str
    path: str


_described: dict[str, Any] = {}


def described(world: World) -> Mapping[str, Any]:
    """The application's operations by path and method, as it describes them: all alike, so asked of the first."""
    if not _described:
        _described.update(world.app.openapi()["paths"])
    return _described


def routes_of(world: World) -> list[Route]:
    """Every operation that the application describes."""
    routes = [
        Route(operation["operationId"], method.upper(), path)
        for path, operations in described(world).items()
        for method, operation in operations.items()
    ]
    assert len(routes) > 60
    return routes


@dataclass(frozen=True, slots=True)
class Asked:
    """What an operation is asked: parameters of its path and query, and a body."""

    parameters: dict[str, Any]
    plain: Any


class Requests:
    """A request for every operation that gets past validation: what it answers then is about access alone."""

    def __init__(self, world: World) -> None:
        self._world = world
        cap = PowerCap(scope=PowerScope.RACK, subject="rack-1", limit_w=1000.0)
        self.documents: dict[str, object] = {
            "gpu_type": builders.gpu_type("t4"),
            "model": builders.model(),
            "policy": spare_policy(),
            "node": builders.node(NODE),
            "device": builders.device(NODE, 0, "t4"),
            "power_cap": cap,
            "service": builders.service(),
            "job": builders.job(),
            "task": builders.task(),
            "webhook": builders.webhook(),
            "budget": MonthlyBudget(name="vision", usd_per_month=100.0),
        }
        world.joined(NODE)
        world.put(kinds.POLICY, self.documents["policy"])
        world.put(kinds.POWER_CAP, cap)
        world.put(kinds.WEBHOOK, self.documents["webhook"])
        world.put(kinds.SERVICE, self.documents["service"])
        world.put(kinds.JOB, self.documents["job"])
        world.put(kinds.TASK, self.documents["task"])
        world.put(kinds.BUDGET, self.documents["budget"])
        with world.database.raw() as connection:
            connection.execute(TOLD)
        self.plan = world.call("POST", "/v1/plans", plain={}).json()["id"]
        self._sequence = 0

    def send(self, route: Route, who: str | None) -> int:
        """The status of one request."""
        path, plain, headers = self.request(route)
        # Nobody's identity is remembered: what a request took from somebody shows at the next, however fast they come.
        self._world.app.state.authenticator.forget()
        answer = self._world.call(route.method, path, who, plain=plain, headers=headers)
        if route.operation == "join_node" and answer.is_success:
            self._world.secrets["node"] = str(answer.json()["token"])
        return answer.status_code

    def request(self, route: Route) -> tuple[str, Any, dict[str, str]]:
        """Path, body and headers of a request; what the path names is made where it is not there."""
        asked = self.asked(route)
        query = {name: value for name, value in asked.parameters.items() if f"{{{name}}}" not in route.path}
        path = route.path.format_map(asked.parameters) + (f"?{urlencode(query)}" if query else "")
        headers: dict[str, str] = {}
        if route.operation.startswith(("put_", "patch_", "delete_")) and "profile" not in route.operation:
            # A version that nothing has: whoever is let in gets 412 and nothing changes.
            headers = {**_STALE}
        if route.method == "PATCH":
            headers["Content-Type"] = "application/merge-patch+json"
        return path, asked.plain, headers

    def asked(self, route: Route) -> Asked:
        """What its example asks of an operation; what the path names is made where it is not there."""
        noun = route.operation.partition("_")[2]
        parts = _Parts(self, noun)
        if route.operation == "revoke_node":
            parts["node"] = self.fresh_node()
        parameters = {name: parts[name] for name in re.findall(r"{(\w+)}", route.path)}
        if route.operation == "query_telemetry":
            parameters |= {"subject": f"services/{OWN}/vision", "field": "offered_rps"}
        if route.operation == "follow_events":
            parameters |= {"topics": "services"}
        if route.operation == "read_logs":
            parameters |= {"replica": f"{OWN}/vision#0"}
        if route.method == "PUT":
            document = self.documents.get(noun, {"name": OWN})
            return Asked(parameters, document if isinstance(document, dict) else spec(document))
        if route.method == "PATCH":
            return Asked(parameters, PATCHES[noun])
        return Asked(parameters, self._post(route.operation) if route.method == "POST" else None)

    def _post(self, operation: str) -> Any:
        self._sequence += 1
        point = builders.profile().points[0]
        bodies: dict[str, Any] = {
            "import_profiles": [spec(point)],
            "predict": [{"model": "resnet50", "gpu_type": "t4", "batch": 4, "share_pct_sm": 50.0}],
            "check_documents": {"documents": [{"kind": "service", "document": spec(self.documents["service"])}]},
            "propose_plan": {"lane": "act"},
            "simulate": {"changes": {"rate_factor": 2.0}, "work_units": 100},
            "apply_plan": {},
            "reject_plan": {},
            "roll_back": {"generation": 1},
            "resume_planning": {},
            "create_sign_in_link": {},
            "drain_node": {},
            "uncordon_node": {},
            "explain_plan_anew": {"workload": f"{OWN}/vision", "why_not": "t4", "work_units": 100},
            "create_profile_run": {"service": f"{OWN}/vision", "node": NODE, "budget_s": 60, "drain": True},
            "tell_profile_run": {"state": "running", "measured": 0, "doubtful": 0},
            "submit_task": {
                "project": OWN,
                "model": "resnet50",
                "inputs_total": 10,
                "slo": {"kind": "deadline", "deadline_s": 60.0},
            },
            "create_token": {"name": "new", "role": "viewer"},
            "certify_node": {"csr": CSR},
            "join_node": encode(join_message(NODE)),
            "send_reports": encode(report(NODE, self._sequence, devices=[device_report(DEVICE)])),
            "send_receipt": _receipt(),
            "hand_over_log": {"lines": ["said"]},
            "send_edge_reports": encode(edge_report(self._sequence, {f"{OWN}/vision": 3.0})),
        }
        return bodies.get(operation)

    def fresh_token(self) -> str:
        """A token that may be revoked."""
        made = self._world.call("POST", "/v1/tokens", plain={"name": "x", "role": "viewer"}).json()
        return str(made["id"])

    def fresh_node(self) -> str:
        """A node that may be turned out."""
        self._sequence += 1
        name = f"doomed-{self._sequence}"
        self._world.joined(name)
        return name

    def fresh_run(self) -> str:
        """A profile run that goes on."""
        with self._world.database.transaction() as session:
            for run in profile_runs.of_node(session, NODE):
                profile_runs.cancel(session, run.id)
            new = NewRun(
                node_id=NODE,
                uuid=DEVICE,
                service=f"{OWN}/vision",
                beside=None,
                budget_s=60.0,
                drain=False,
                created_by="test",
                patience_s=600.0,
            )
            return str(profile_runs.create(session, new).id)

    def fresh_log_request(self) -> str:
        """Something that is wanted of the node."""
        self._sequence += 1
        reader = f"reader-{self._sequence}"
        with self._world.database.transaction() as session:
            logs.ask(session, reader, f"{OWN}/vision", f"{OWN}/vision#0", 10)
            logs.take(session, reader)
            return str(logs.wanted_of(session, NODE)[-1].request)

    def fresh_profile(self) -> str:
        """A profile that may be deleted; its model."""
        point = spec(builders.profile().points[0])
        assert self._world.call("POST", "/v1/profiles", plain=[point]).status_code == 200
        return str(point["model"])


class _Parts(dict[str, str]):
    """Path parameters by name, and what they need to exist."""

    def __init__(self, requests: Requests, noun: str) -> None:
        super().__init__(node=NODE, uuid=DEVICE, scope="rack", subject="rack-1", project=OWN, gpu_type="t4")
        self._requests = requests
        self._noun = noun

    def __missing__(self, name: str) -> str:
        if name == "name":
            names = {"gpu_type": "t4", "model": "resnet50", "policy": "spare", "job": "train"}
            names |= dict.fromkeys(("webhook", "deliveries"), "pager")
            if self._noun.startswith("task"):
                return "batch"
            return names.get(self._noun, OWN if self._noun == "project" else "vision")
        if name == "model":
            return self._requests.fresh_profile()
        if name == "run":
            return self._requests.fresh_run()
        if name == "token_id":
            return self._requests.fresh_token()
        if name == "log_request":
            return self._requests.fresh_log_request()
        return {"plan_id": self._requests.plan, "cycle_id": "cycle-1"}[name]


def _receipt() -> dict[str, Any]:
    return {
        "node": NODE,
        "boot_id": "boot-1",
        "generation": 0,
        "plan": None,
        "outcome": "applied",
        "observed_at_s": 1_000_000.0,
        "elapsed_ms": 5.0,
        "devices": [],
        "replicas": [],
    }


def requests_of(world: World) -> Requests:
    """Requests past validation. Streams end at once, for the application looks like one that is about to end."""
    world.app.state.streams.closing.set()
    with world.database.transaction() as session:
        new = NewCycle(id=CycleId("cycle-1"), lane=Lane.ACT, holder="x", fencing_token=1, software_version="1")
        cycles.begin(session, new)
    made = Requests(world)
    # The node joined under its own token; the table's `node` is that of the same node made by an admin.
    world.secrets["node"] = world.secrets[NODE]
    return made
