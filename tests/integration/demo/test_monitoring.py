"""The demo's fleet watched by a real Prometheus with the tree's rules, which is asked every query of the dashboards."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.demo.conftest import Machine
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]
DEPLOY = Path(__file__).parents[3] / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
SPARSE = {"headroom_device_temperature_celsius"}
"""What simulated devices do not tell."""


@dataclass(frozen=True, slots=True)
class Watcher:
    """A Prometheus."""

    address: str

    def ask(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(f"{self.address}{path}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
            return json.load(answer)["data"]

    def series(self, query: str) -> int:
        return len(self.ask("/api/v1/query", query=query)["result"])


@contextmanager
def watching(folder: Path, targets: dict[str, list[str]]) -> Iterator[Watcher]:
    """Prometheus over these targets, as often as it may, with the rules of the tree."""
    program = shutil.which("prometheus")
    assert program, "prometheus is missing; on Debian: apt-get install prometheus"
    rules = [str(DEPLOY / "prometheus" / name) for name in ("recording.yml", "alerts.yml")]
    jobs = [{"job_name": job, "static_configs": [{"targets": each}]} for job, each in targets.items()]
    file, port = folder / "prometheus.yml", free_port()
    every = {"scrape_interval": "2s", "evaluation_interval": "2s"}
    file.write_text(yaml.safe_dump({"global": every, "rule_files": rules, "scrape_configs": jobs}))
    where = [
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([program, *where], stdout=log, stderr=log)
    try:
        yield Watcher(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(30)


def queries(dashboard: Path) -> list[str]:
    """Every query of a dashboard, its variables as they are for all."""
    board = json.loads(dashboard.read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(found) >= len(board["panels"]) > 10
    filled = [re.sub(r"\$(project|service|node)\b", ".*", each).replace("$__rate_interval", "30s") for each in found]
    assert not [each for each in filled if "$" in each]
    return filled


def test_prometheus_sees_the_fleet_and_every_panel_has_data(machine: Machine, tmp_path: Path) -> None:
    planner_port = free_port()
    watched = Machine(machine.home, machine.port, {"HEADROOM_PLANNER_METRICS_PORT": str(planner_port)})
    watched.do("up")
    nodes = json.loads(watched.do("nodes", "-o", "json"))
    targets = {
        "headroom-api": [f"127.0.0.1:{machine.port}"],
        "headroom-planner": [f"127.0.0.1:{planner_port}"],
        "headroom-agent": [node["endpoint"].removeprefix("http://") for node in nodes],
    }
    with watching(tmp_path, targets) as prometheus:
        asked = {query: path.name for path in DASHBOARDS for query in queries(path)}
        assert {path.stem for path in DASHBOARDS} == {"fleet", "services", "planner"}
        empty = dict(asked)

        def full() -> bool:
            for query in [each for each in empty if SPARSE.isdisjoint(re.findall(r"headroom_\w+", each))]:
                if prometheus.series(query):
                    del empty[query]
            return not [each for each in empty if SPARSE.isdisjoint(re.findall(r"headroom_\w+", each))]

        wait_until(lambda: is_up(prometheus) and full(), lambda: f"data for {empty}\n{watched.logs()}", 150.0, 1.0)
        assert prometheus.series("headroom_agent_device_power_watts") == 12
        assert prometheus.series("count by (service) (headroom_service_info)") == 8
        rules = [rule for group in prometheus.ask("/api/v1/rules")["groups"] for rule in group["rules"]]
        assert len(rules) >= 30
        assert {rule["name"]: rule["lastError"] for rule in rules if rule["health"] == "err"} == {}
        firing = {
            alert["labels"]["alertname"]
            for alert in prometheus.ask("/api/v1/alerts")["alerts"]
            if alert["state"] == "firing"
        }
        assert firing.isdisjoint(
            {"HeadroomApiDown", "HeadroomDatabaseDown", "HeadroomAgentSilent", "HeadroomPowerOverCap"}
        )


def is_up(prometheus: Watcher) -> bool:
    try:
        up = prometheus.ask("/api/v1/query", query="up")["result"]
    except OSError:
        return False
    return len(up) == 6 and all(sample["value"][1] == "1" for sample in up)
