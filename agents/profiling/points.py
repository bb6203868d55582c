"""What is measured and what came out: configurations, results, their form as profile points, and what the control plane
is asked and told of a run.

Results are kept in a file, one JSON line each, so that a run that was cut off goes on where it was. Calls are made as
the node itself. What the control plane does not answer is asked again by the caller; what it refuses is a
`RefusedError` with its own words.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agents.errors import AgentError, StateFileError
from agents.servers import SpreadConnection
from agents.transport import HttpAnswer, UnreachableError
from agents.wire import ProfileOrder, WireError, decode, decode_items

SOURCE = "headroom profile"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuringPoint:
    """A configuration of one worker. `clock_mhz_sm` None: the device's highest."""

    batch: int
    share_pct_sm: int
    clock_mhz_sm: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    service: str
    """`project/name`."""
    model: str
    gpu_type: str
    uuid: str
    clock_mhz_sm_max: int
    """What a point at the device's own clock counts as."""
    origin: str = "measured"
    """`simulated` where the device is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a point gave. Latency is that of executing one batch; `half_width_pct` is half the 95 % interval of its
    mean. `problem`: why there is no result, or what makes it doubtful.
    """

    point: MeasuringPoint
    latency_ms_mean: float | None
    half_width_pct: float | None = None
    batch_mean: float | None = None
    throughput_rps: float | None = None
    memory_mib: float | None = None
    power_w: float | None = None
    """What it added to the device with the idle process."""
    clock_mhz_sm: int = 0
    """As it was read during the measurement."""
    sm_count: int = 0
    problem: str = ""
    model: str = ""
    """Whose: that of the run, or the neighbour's in a pair."""

    @property
    def usable(self) -> bool:
        return self.latency_ms_mean is not None and not self.problem


def profile_points(subject: Subject, results: Iterable[Measured]) -> list[dict[str, Any]]:
    rows = []
    for item in results:
        if not item.usable:
            continue
        row: dict[str, Any] = {
            "model": item.model or subject.model,
            "gpu_type": subject.gpu_type,
            "batch": item.point.batch,
            "share_pct_sm": item.point.share_pct_sm,
            "clock_mhz_sm": item.point.clock_mhz_sm or subject.clock_mhz_sm_max,
            "latency_ms_mean": item.latency_ms_mean,
            "memory_mib": item.memory_mib,
            "power_w": item.power_w,
            "throughput_rps": item.throughput_rps,
            "origin": subject.origin,
            "source": SOURCE,
        }
        rows.append({name: found for name, found in row.items() if found is not None})
    return rows


def pair_points(subject: Subject, pairs: Iterable[tuple[Measured, Measured]]) -> list[dict[str, Any]]:
    rows = []
    for one, other in pairs:
        if not (one.usable or other.usable):
            continue
        row: dict[str, Any] = {"gpu_type": subject.gpu_type, "origin": subject.origin, "source": SOURCE}
        for side, item in (("a", one), ("b", other)):
            row |= {
                f"model_{side}": item.model,
                f"batch_{side}": item.point.batch,
                f"share_pct_{side}": item.point.share_pct_sm,
                f"latency_ms_{side}": item.latency_ms_mean if item.usable else None,
            }
        rows.append(row)
    return rows


class ResultFile:
    """Results as they come, one JSON line each; a line cut off by a crash is left out when it is read again."""

    def __init__(self, path: Path, subject: Subject) -> None:
        self._path = path
        self._subject = asdict(subject)

    def read(self) -> list[Measured]:
        """What earlier runs of the same subject measured. Raises StateFileError when the file is of another one."""
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise StateFileError(f"cannot read {self._path}: {error}") from None
        found = []
        for line in lines:
            try:
                item: object = json.loads(line)
            except ValueError:
                continue
            if isinstance(item, dict):
                if item.pop("subject", None) != self._subject:
                    raise StateFileError(f"{self._path} holds results of something else")
                with suppress(WireError):
                    found.append(decode(Measured, item))
        return found

    def add(self, item: Measured) -> None:
        """Append a result; it is on disk when this returns."""
        line = json.dumps({"subject": self._subject, **asdict(item)}, separators=(",", ":"))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                # After a line that was cut off, so that this one is whole.
                file.write(line + "\n" if _ends_line(self._path) else "\n" + line + "\n")
                file.flush()
        except OSError as error:
            raise StateFileError(f"cannot write {self._path}: {error.strerror}") from None


def _ends_line(path: Path) -> bool:
    content = path.read_bytes() if path.exists() else b""
    return not content or content.endswith(b"\n")


class RefusedError(AgentError):
    """The control plane does not take what a run told, or does not answer what it asked."""

    code = "refused"


class Control:
    """Calls to the control plane. Not thread-safe."""

    def __init__(self, connection: SpreadConnection) -> None:
        self._connection = connection

    def use_token(self, token: str) -> None:
        self._connection.token = token

    def orders(self) -> tuple[ProfileOrder, ...]:
        """What this node has to measure. Raises RefusedError and UnreachableError."""
        try:
            return decode_items(ProfileOrder, self._call("GET", "/v1/agent/profile-runs").json())
        except WireError as error:
            raise RefusedError(f"an order cannot be read: {error}") from None

    def points(self, run: int) -> tuple[MeasuringPoint, ...]:
        """The points to measure next, most useful first. Raises RefusedError and UnreachableError."""
        try:
            return decode_items(MeasuringPoint, self._call("GET", f"/v1/agent/profile-runs/{run}/points").json())
        except WireError as error:
            raise RefusedError(f"points cannot be read: {error}") from None

    def tell(self, run: int, news: dict[str, Any], points: Sequence[Any] = (), pairs: Sequence[Any] = ()) -> bool:
        """How far a run got, with what it measured since; whether to go on. Raises RefusedError, UnreachableError."""
        body = {**news, "points": list(points), "pairs": list(pairs)}
        found = self._call("POST", f"/v1/agent/profile-runs/{run}", body).json()
        return isinstance(found, dict) and found.get("going_on") is True

    def _call(self, method: str, path: str, body: object = None) -> HttpAnswer:
        answer = self._connection.call(method, path, body)
        if answer.ok:
            return answer
        if answer.later:
            raise UnreachableError(answer.reason())
        raise RefusedError(answer.reason())
