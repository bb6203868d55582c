"""What a profiling run asks of the control plane and tells it: the workload's process, the next points, the results.

Owns those calls and the reading of their answers. Whatever the control plane refuses ends the run with its own words;
what was measured stays in the result file and is handed over by the next run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from agents.devices.base import WorkerSpec
from agents.errors import ConfigError
from agents.profiling.load import Request
from agents.profiling.points import Measured, Point, Subject, pair_points, profile_points
from agents.transport import Answer, Connection
from agents.wire import WireError, WorkerTarget, decode_worker

PROPOSED_MAX = 16
PAIR_COLUMNS = (
    "gpu_type",
    *("model_a", "batch_a", "share_pct_a", "latency_ms_a"),
    *("model_b", "batch_b", "share_pct_b", "latency_ms_b"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A service as a run needs it. `request` is what load sends: its warm-up request."""

    service: str
    project: str
    model: str
    worker: WorkerTarget
    request: Request
    launch_s: float
    gpu_types_allowed: tuple[str, ...]

    def spec(self, point: Point, memory_mib_limit: int) -> WorkerSpec:
        """The worker that serves it at a point."""
        return WorkerSpec(
            replica=f"profile-{self.project}-{self.service.rpartition('/')[2]}",
            kind="service",
            workload=self.service,
            project=self.project,
            model=self.model,
            share_pct_sm=point.share_pct_sm,
            memory_mib_limit=memory_mib_limit,
            batch=point.batch,
            launch_s=self.launch_s,
            worker=self.worker,
        )


class Control:
    """Calls to the control plane."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def workload(self, service: str) -> Workload:
        """Read a service. Raises ConfigError when it does not exist or does not say how its process is started."""
        project, _, name = service.partition("/")
        if not project or not name:
            raise ConfigError(f"{service!r}: expected PROJECT/NAME")
        document = _object(self._get(f"/v1/services/{quote(project)}/{quote(name)}", f"service {service}"))
        plain = document.get("worker")
        if not isinstance(plain, dict):
            raise ConfigError(f"service {service} has no `worker`: it does not say how its process is started")
        try:
            worker = decode_worker({**plain, "environment": _pairs(plain.get("environment"))})
        except WireError as error:
            raise ConfigError(f"service {service}: {error}") from None
        if worker.warm_up is None:
            raise ConfigError(f"service {service} has no `worker.warm_up`: there is no request to load it with")
        warm_up = worker.warm_up
        return Workload(
            service=service,
            project=project,
            model=str(document.get("model", "")),
            worker=worker,
            request=Request(path=warm_up.path, body=warm_up.body.encode(), content_type=warm_up.content_type),
            launch_s=30.0,
            gpu_types_allowed=tuple(str(name) for name in document.get("gpu_types_allowed") or ()),
        )

    def propose(self, model: str, gpu_type: str) -> tuple[Point, ...]:
        """The points to measure next, most useful first."""
        path = f"/v1/profiles/{quote(model)}/{quote(gpu_type)}/next-points?budget={PROPOSED_MAX}"
        items = _object(self._get(path, f"next points of {model} on {gpu_type}")).get("items")
        points = []
        for item in items if isinstance(items, list) else []:
            clock = item.get("clock_mhz_sm")
            points.append(
                Point(
                    batch=int(item["batch"]),
                    share_pct_sm=int(item["share_pct_sm"]),
                    clock_mhz_sm=None if clock is None else int(clock),
                )
            )
        return tuple(points)

    def deliver(self, subject: Subject, results: Sequence[Measured]) -> None:
        """Store results of workers alone."""
        self._post(profile_points(subject, results))

    def deliver_pairs(self, subject: Subject, pairs: Sequence[tuple[Measured, Measured]]) -> None:
        """Store results of workers side by side."""
        rows = pair_points(subject, pairs)
        if rows:
            lines = [",".join(PAIR_COLUMNS)]
            lines += [",".join("" if row[name] is None else str(row[name]) for name in PAIR_COLUMNS) for row in rows]
            body = ("\n".join(lines) + "\n").encode()
            answer = self._connection.call("POST", "/v1/profiles", body, {"Content-Type": "text/csv"})
            self._accepted(answer, "measured pairs")

    def _post(self, rows: list[dict[str, Any]]) -> None:
        if rows:
            self._accepted(self._connection.call("POST", "/v1/profiles", rows), "profile points")

    def _get(self, path: str, what: str) -> object:
        return self._accepted(self._connection.call("GET", path), what).json()

    def _accepted(self, answer: Answer, what: str) -> Answer:
        if not answer.ok:
            raise ConfigError(f"{what}: {answer.reason()}")
        return answer


def _pairs(environment: object) -> list[list[object]]:
    """The service's variables as the wire has them."""
    listed = environment if isinstance(environment, list) else []
    return [[item.get("name"), item.get("value")] for item in listed if isinstance(item, dict)]


def _object(plain: object) -> Mapping[str, Any]:
    if not isinstance(plain, dict):
        raise ConfigError("the control plane answered something else than an object")
    return plain
