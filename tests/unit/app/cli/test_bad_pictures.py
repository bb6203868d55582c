"""Pictures as nobody should send them, through `headroom plan --snapshot`: an answer in which everything that is asked
for is served or told why not, or one line that names the place.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.cli import files
from app.cli.output import Exit
from benchmarks.instances.family_snapshot import family_snapshot
from solvers.domain.codec import canonical_json, from_json
from solvers.domain.plan import Plan
from tests.unit.app.cli.conftest import Headroom

Picture = dict[str, Any]
Change = Callable[[Picture], object]
FAMILY = canonical_json(family_snapshot(4, 3, 1))
UNITS = ("--planner", "joint", "--work-units", "60", "--seed", "1")


def _all(items: str, **fields: Any) -> Change:
    return lambda picture: [item.update(fields) for item in picture[items]]


def _inside(items: str, part: str, **fields: Any) -> Change:
    return lambda picture: [item[part].update(fields) for item in picture[items]]


def _in_policy(**fields: Any) -> Change:
    return lambda picture: picture["policy"].update(fields)


def _priced(usd_per_h: float) -> Change:
    return lambda picture: [row.update(usd_per_h=usd_per_h) for item in picture["gpu_types"] for row in item["prices"]]


def _twice(items: str) -> Change:
    return lambda picture: picture.update({items: [*picture[items], *picture[items]]})


def _at_latencies(made: Callable[[list[float]], Iterable[float]]) -> Change:
    def change(picture: Picture) -> None:
        for profile in picture["profiles"]:
            profile["grid"]["latency_ms"] = list(made(profile["grid"]["latency_ms"]))

    return change


def _tables(batches: int, clocks: int, shares: int, profiles: int | None = None) -> Change:
    """So many profiles, or all, as a table of so many options."""
    grid = {
        "batches": list(range(1, batches + 1)),
        "clocks_mhz_sm": list(range(1000, 1000 + clocks)),
        "shares_pct_sm": list(range(101 - shares, 101)),
        "latency_ms": [10.0 + batch for _ in range(clocks * shares) for batch in range(batches)],
        "latency_ms_p99": [],
        "power_w": [],
        "memory_mib": [1000.0] * batches,
    }
    return lambda picture: [item["grid"].update(grid) for item in picture["profiles"][:profiles]]


def _old(picture: Picture) -> None:
    """As one was written before most of these fields were known."""
    picture["schema_version"] = 0
    for name in ("token_profiles", "offers", "tasks", "power_caps", "job_statuses", "device_telemetry", "target"):
        del picture[name]
    for device in picture["devices"]:
        del device["colocation"], device["taints"]


def _alternatives(picture: Picture) -> None:
    """A million networks, each as good as the other."""
    picture["services"][0]["alternatives"] = [f"net-{number}" for number in range(10**6)]


ANSWERED: dict[str, Change] = {
    "almost no rate": _all("services", rate_rps_declared=1e-12),
    "the largest rate": _all("services", rate_rps_declared=1e9),
    "an SLO below any device": _inside("services", "slo", latency_ms=1e-6),
    "an SLO beyond all time": _inside("services", "slo", latency_ms=1e9),
    "no devices": lambda picture: picture.update(devices=[], nodes=[]),
    "devices of a mebibyte": _all("devices", memory_mib=1),
    "nothing has a price": _priced(0.0),
    "no prices at all": _all("gpu_types", prices=[]),
    "nothing was measured": lambda picture: picture.update(profiles=[]),
    "latencies that fall with the batch": _at_latencies(reversed),
    "latencies of nothing": _at_latencies(lambda cells: [0.0] * len(cells)),
    "the smallest latencies": _at_latencies(lambda cells: [1e-6] * len(cells)),
    "replicas by the thousand": _all("services", replicas_min=1024),
    "more batches than are usual": _tables(100, 1, 10),
    "an older form": _old,
}
SERVED = (
    "almost no rate", "an SLO beyond all time", "nothing has a price", "no prices at all", "the smallest latencies",
    "an older form",
)  # fmt: skip

REFUSED: dict[str, tuple[Change, str]] = {
    "an absurd rate": (_all("services", rate_rps_declared=1e12), "/services/0/rate_rps_declared: "),
    "a negative rate": (_all("services", rate_rps_declared=-1), "/services/0/rate_rps_declared: "),
    "no time at all": (_inside("services", "slo", latency_ms=0), "/services/0/slo/latency_ms: "),
    "a negative price": (_priced(-1.0), "/gpu_types/0/prices/0/usd_per_h: "),
    "a price beyond money": (_priced(1e300), "/gpu_types/0/prices/0/usd_per_h: "),
    "a floor beyond all rates": (
        _all("services", slo={"kind": "throughput", "throughput_rps_min": 1e308}),
        "/services/0/slo/throughput_rps_min: ",
    ),
    "energy beyond money": (_in_policy(energy_usd_per_kwh=1e300), "/policy/energy_usd_per_kwh: "),
    "carbon beyond money": (_in_policy(carbon_usd_per_t=1e300), "/policy/carbon_usd_per_t: "),
    "a silence beyond all time": (_in_policy(device_silent_after_s=1e300), "/policy/device_silent_after_s: "),
    "a million alternatives": (_alternatives, "/services/0/alternatives: alternatives may list 64 at most"),
    "a million options": (_tables(100, 100, 100, 1), "/profiles/0/grid/cells: "),
    "two profiles that contradict each other": (_twice("profiles"), "/profiles: "),
    "a device twice": (_twice("devices"), "/devices: "),
    "a service twice": (_twice("services"), "/services: "),
    "a latency of almost nothing": (_at_latencies(lambda cells: [1e-300] * len(cells)), "/profiles/0/grid/latency_ms"),
    "a latency beyond all time": (_at_latencies(lambda cells: [1e300] * len(cells)), "/profiles/0/grid/latency_ms"),
    "a negative latency": (_at_latencies(lambda cells: [-1.0] * len(cells)), "/profiles/0/grid/latency_ms"),
    "a type that is not there": (_all("devices", gpu_type="none"), "/devices/0/gpu_type: there is no gpu_type none"),
    "a node that is not there": (_all("devices", node="none"), "/devices/0/node: there is no node none"),
    "a network that is not there": (_all("services", model="none"), "/services/0/model: there is no model none"),
    "a form of the future": (lambda picture: picture.update(schema_version=999), "/schema_version: "),
    "a whole number without end": (_all("services", replicas_max=10**400), "/services/0/replicas_max"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A picture in a file, and where the plan goes."""

    picture: Picture
    file: Path
    out: Path


def _sent(change: Change, folder: Path) -> Sent:
    picture = json.loads(FAMILY)
    change(picture)
    sent = Sent(picture=picture, file=folder / "s.json", out=folder / "p.json")
    sent.file.write_text(json.dumps(picture))
    return sent


@pytest.mark.parametrize("case", ANSWERED)
def test_an_odd_picture_is_answered_and_nobody_is_dropped(case: str, tmp_path: Path, headroom: Headroom) -> None:
    sent = _sent(ANSWERED[case], tmp_path)
    said = headroom("plan", "--snapshot", str(sent.file), *UNITS, "-o", "json", "-q", "--out", str(sent.out))
    assert said.status == Exit.OK, said.err
    assert (said.err, said.json["planner"], said.json["verified"]) == ("", "joint", True)
    plan = from_json(Plan, sent.out.read_text())
    short = {str(item.workload): item.reasons for item in plan.unplaced}
    served = {str(item.workload) for item in plan.assignments} - short.keys()
    assert served | short.keys() == {f"{item['project']}/{item['name']}" for item in sent.picture["services"]}
    assert all(short.values())
    assert bool(short) is (case not in SERVED)
    assert plan.bound_usd_per_h is not None
    assert 0 <= plan.bound_usd_per_h <= plan.objective.cost_usd_per_h + 1e-9


@pytest.mark.parametrize("case", REFUSED)
def test_a_picture_that_cannot_be_meant_is_one_line(case: str, tmp_path: Path, headroom: Headroom) -> None:
    change, told = REFUSED[case]
    sent = _sent(change, tmp_path)
    said = headroom("plan", "--snapshot", str(sent.file), *UNITS, "--out", str(sent.out))
    assert (said.status, said.out) == (Exit.USAGE, "")
    assert said.err.startswith(f"headroom: {sent.file}: {told}")
    assert len(said.err.splitlines()) == 1
    assert not sent.out.exists()


TEXTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not JSON: "),
    "no text": (b'"\xff\xfa"', "not UTF-8 text"),
    "infinite": (FAMILY.replace('"taken_at_s":', '"taken_at_s":1e999,"cluster":"c","x":').encode(), ""),
    "not a number": (FAMILY.replace('"taken_at_s":', '"taken_at_s":NaN,"x":').encode(), "not JSON: NaN is not"),
    "an endless number": (b'{"taken_at_s":' + b"9" * 5000 + b"}", "not JSON: "),
    "deep lists": (b"[" * 100_000, "nested too deeply"),
    "deep objects": (b'{"a":' * 100_000, "nested too deeply"),
    "deep and closed": (FAMILY.replace('"demands":[', '"demands":[' + "[" * 900 + "]" * 900).encode(), "/demands/0"),
    "cut": (gzip.compress(FAMILY.encode())[:-200], "damaged gzip data"),
    "beyond its end": (gzip.compress(FAMILY.encode()) + b"more", "damaged gzip data"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_what_is_no_picture_is_one_line(case: str, tmp_path: Path, headroom: Headroom) -> None:
    body, told = TEXTS[case]
    file = tmp_path / "s.json"
    file.write_bytes(body)
    said = headroom("plan", "--snapshot", str(file), *UNITS)
    assert (said.status, said.out) == (Exit.USAGE, "")
    assert said.err.startswith(f"headroom: {file}: {told}")
    assert len(said.err.splitlines()) == 1


def test_a_small_file_does_not_become_an_endless_one(
    tmp_path: Path, headroom: Headroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BYTES_MAX", 10**6)
    (tmp_path / "s.json.gz").write_bytes(gzip.compress(FAMILY.encode() + b" " * 10**6))
    said = headroom("plan", "--snapshot", f"{tmp_path}/s.json.gz", *UNITS)
    assert said.status == Exit.USAGE
    assert said.err == f"headroom: {tmp_path}/s.json.gz: more than 1 MB of text\n"
