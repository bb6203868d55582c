"""A real Prometheus with the tree's rules over a demo's fleet, and every query of the dashboards."""

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

import yaml

from tests.ports import free_port

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

    def is_up(self, targets: int) -> bool:
        """Whether it reaches so many, and all that it knows."""
        try:
            up = self.ask("/api/v1/query", query="up")["result"]
        except OSError:
            return False
        return len(up) == targets and all(sample["value"][1] == "1" for sample in up)


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
    """Every query of a dashboard that a demo answers, its variables as they are for all."""
    board = json.loads(dashboard.read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(found) >= len(board["panels"]) > 10
    filled = [re.sub(r"\$(project|service|node)\b", ".*", each).replace("$__rate_interval", "30s") for each in found]
    assert not [each for each in filled if "$" in each]
    return [each for each in filled if SPARSE.isdisjoint(re.findall(r"headroom_\w+", each))]
