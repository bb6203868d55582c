"""A user's machine and a GPU host: `headroom up` with a real database, API and planner, and real `headroom agent` and
`headroom agent-helper` processes over GPUs that are not there.

Owns the start and the end of everything, and the few questions that tests ask of it. It refuses to promote anything by
itself: plans are the planner's.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from app.client.connection import read_connection
from app.demo.home import Home
from app.store.embedded import embedded_url
from headroom_client import ApiError, Client, UnreachableError
from tests import nursery
from tests.ports import free_port
from tests.standins import servers
from tests.standins.hosts import HostStandIn
from tests.waiting import wait_until

SECRET = "value-of-a-secret-51e0"
NODE, SERVICE = "gpu-1", "vision/labels"
COMMAND_S_MAX, WAIT_S_MAX = 90.0, 90.0
ALONE_AFTER_S = 4.0
CLOCK_MHZ = 1200
QUICK = {
    "HEADROOM_REPORT_INTERVAL_S": "0.5",
    "HEADROOM_PLACE_INTERVAL_S": "2",
    "HEADROOM_TUNE_INTERVAL_S": "1",
}
POLICY = """\
kind: policy
name: default
planners: [joint, greedy]
cost_basis: device
energy_usd_per_kwh: 2
deadline_s: 60
work_units: 200
cooldown_s: 0
gain_usd_per_h_min: 0
gain_pct_min: 0
"""


class WholeHost:
    """All of it. `close` leaves nothing, whatever a test did."""

    def __init__(self, library: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hr-whole-"))
        self.home = self.folder / "home"
        self.host = HostStandIn(self.folder / "host", ("t4", "t4"), library)
        self.socket = self.folder / "helper.sock"
        self.secret = self.folder / "secrets" / SERVICE.split("/", maxsplit=1)[0] / "api-key"
        self.secret.parent.mkdir(parents=True)
        self.secret.write_text(SECRET + "\n", encoding="utf-8")
        self.agent: subprocess.Popen[bytes] | None = None
        self.helper: subprocess.Popen[bytes] | None = None
        self._client: Client | None = None
        self._starts = 0
        self.port = free_port()

    # -- as a user -----------------------------------------------------------------------------------------------------

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of the user, to its end; what it starts begins from nothing."""
        environment = {**_own_environment(), **QUICK}
        environment |= {"HEADROOM_HOME": str(self.home), "HEADROOM_PORT": str(self.port)}
        return nursery.run(("app", *arguments), environment, limit_s=COMMAND_S_MAX)

    def do(self, *arguments: str) -> str:
        """A command that must succeed; what it printed."""
        done = self.run(*arguments)
        assert done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}\n{self.story()}"
        return done.stdout

    def apply(self, name: str, text: str) -> str:
        """Write a file and apply it."""
        file = self.folder / name
        file.write_text(text, encoding="utf-8")
        return self.do("apply", "-f", str(file))

    @property
    def client(self) -> Client:
        """The administrator's, for questions that are asked often."""
        if self._client is None:
            found = read_connection(self.home)
            assert found is not None
            self._client = Client(found.server, found.token)
        return self._client

    def service(self, rate_rps: float, step_ms: float = 4.0) -> str:
        """The service document: a stand-in model server as its process."""
        worker = {
            "command": list(servers.command(step_ms=step_ms, item_ms=0.2)),
            "environment": [
                {"name": "HEADROOM_STANDIN_CUDA", "value": self.host.mps.library},
                {"name": "STANDIN_NVML", "value": str(self.host.nvml.root)},
                {"name": "API_KEY", "from_file": str(self.secret)},
            ],
            "warm_up": {"path": "/v1/infer", "body": "{}", "requests": 2},
            "drain_s": 5.0,
            "stop_s": 2.0,
        }
        project, name = SERVICE.split("/")
        fields = {
            "kind": "service",
            "project": project,
            "name": name,
            "model": "resnet50",
            "slo": {"kind": "latency", "latency_ms": 150},
            "rate_rps_declared": rate_rps,
            "replicas_max": 1,
            "worker": worker,
        }
        # JSON is YAML.
        return json.dumps(fields)

    def profiles(self) -> str:
        """Measurements at two clocks, of which the lower one serves all the same and takes much less energy."""
        points = [
            {
                "model": "resnet50",
                "gpu_type": "t4",
                "batch": batch,
                "share_pct_sm": share,
                "clock_mhz_sm": clock,
                "latency_ms_mean": (4.0 + 2.5 * batch) * (100.0 / share) ** 0.8 * 1590.0 / clock,
                "memory_mib": 1500.0 + 60.0 * batch,
                "power_w": power_w,
            }
            for clock, power_w in ((CLOCK_MHZ, 25.0), (1590, 60.0))
            for share in (10, 25, 50, 100)
            for batch in (1, 2, 4, 8)
        ]
        return json.dumps({"kind": "profiles", "points": points})

    # -- as an operator ------------------------------------------------------------------------------------------------

    def start_agent(self, *options: str, privileged: bool = True) -> None:
        """Start `headroom agent`, with the join token of the control plane."""
        token = Home(self.home).read_secret("join")
        assert token is not None
        hidden = {"HEADROOM_STANDIN_NVML_UNPRIVILEGED": "" if privileged else "1", "HEADROOM_TOKEN": token}
        command = [sys.executable, "-m", "app", "agent", "--server", f"http://127.0.0.1:{self.port}", "--node", NODE]
        command += [*self.host.options(), "--alone-after", str(ALONE_AFTER_S), *options]
        command += ["--secret-dir", str(self.folder / "secrets" / "{project}")]
        self._starts += 1
        with (self.folder / "agent.log").open("ab") as log:
            environment = {**_own_environment(), **self.host.environment(), **hidden}
            self.agent = subprocess.Popen(command, env=environment, stderr=log, stdin=subprocess.DEVNULL)

    def end_helper(self) -> None:
        """Tell the helper to end."""
        assert self.helper is not None
        self.helper.send_signal(signal.SIGTERM)
        assert self.helper.wait(timeout=30) == 0

    def start_helper(self) -> None:
        """Start `headroom agent-helper`, which may write to the devices."""
        command = [sys.executable, "-m", "app", "agent-helper", "--socket", str(self.socket), "--devices", "nvml:all"]
        command += ["--allow-uid", str(os.getuid()), "--state-dir", str(self.folder / "helper-state")]
        command += ["--restore-after", "1"]
        with (self.folder / "helper.log").open("ab") as log:
            environment = {**_own_environment(), **self.host.environment()}
            self.helper = subprocess.Popen(command, env=environment, stderr=log, stdin=subprocess.DEVNULL)
        self.until("the helper listens", self.socket.exists)

    def end_agent(self, how: signal.Signals) -> int:
        """Tell the agent to end, or kill it."""
        assert self.agent is not None
        self.agent.send_signal(how)
        return self.agent.wait(timeout=30)

    def signal_api(self, number: signal.Signals) -> None:
        """The API stops answering (SIGSTOP), or goes on (SIGCONT)."""
        state = Home(self.home).read_state()
        assert state is not None
        os.kill(next(each.pid for each in state.processes if each.name == "api"), number)

    # -- questions -----------------------------------------------------------------------------------------------------

    def replicas(self) -> list[dict[str, Any]]:
        """Where requests for the service may go."""
        return list(self.client.routes(service=SERVICE).body["replicas"])

    def wanted(self) -> list[dict[str, Any]]:
        """Replicas of the target."""
        return [each for each in self.client.target()["assignments"] if each["workload"] == SERVICE]

    def receipt(self) -> dict[str, Any]:
        """What the node read back last."""
        found: dict[str, Any] = next(iter(self.client.items("receipts")))["document"]
        return found

    def heard(self) -> bool:
        """Whether the agent that was started last says that it holds the newest target."""
        started = self.events("agent.started")
        # No reader of the API learns boots.
        boot_id = self.value("SELECT boot_id FROM receipts ORDER BY id DESC LIMIT 1")
        return len(started) == self._starts and boot_id == started[-1]["boot_id"] and self.applied()

    def settings(self) -> dict[str, object]:
        """What is set on the GPU at a lower clock, on whichever the planner put the service, or on the first one."""
        states = [self.host.nvml.state(uuid) for uuid in self.host.uuids]
        found = next((state for state in states if state["clock_mhz_sm"] is not None), states[0])
        return {name: found[name] for name in sorted(found) if name not in ("persistence", "setter_calls")}

    def applied(self) -> bool:
        """Whether the node says that it holds the newest target."""
        found = self.receipt()
        return found["outcome"] == "applied" and found["generation"] == self.client.fleet()["generation"]

    def value(self, query: str) -> Any:
        """One value of the database."""
        with psycopg.connect(embedded_url(self.home), connect_timeout=10) as connection:
            row = connection.execute(query.encode()).fetchone()
        return None if row is None else row[0]

    def completed(self) -> float:
        """Requests that the reports of the node say were answered."""
        return float(self.value(f"SELECT sum(completed) FROM replica_samples WHERE workload = '{SERVICE}'") or 0.0)

    def pids(self) -> list[int]:
        """Worker processes on all devices."""
        return [pid for uuid in self.host.uuids for pid in self.host.pids(uuid)]

    def events(self, name: str) -> list[dict[str, Any]]:
        """What the agents logged under a name."""
        lines = (self.folder / "agent.log").read_text(encoding="utf-8").splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def settled(self) -> bool:
        """Whether nothing is on its way: one worker, which is the one that is routed and wanted."""
        return self.applied() and len(self.pids()) == 1 and len(self.replicas()) == 1

    def told(self, name: str, times: int) -> bool:
        """Whether the agents logged this so often."""
        return len(self.events(name)) >= times

    def until(self, what: str, true: Callable[[], object], within_s: float = WAIT_S_MAX) -> None:
        """Wait for a condition; one that cannot be asked does not hold yet."""
        wait_until(lambda: _holds(true), lambda: f"{what}\n{self.story()}", within_s, 0.05)

    def story(self) -> str:
        """The last words of every process."""
        files = [self.folder / "agent.log", self.folder / "helper.log", *sorted((self.home / "logs").glob("*.log"))]
        parts = []
        for file in files:
            if file.exists():
                lines = file.read_text(encoding="utf-8", errors="replace").splitlines()[-10:]
                parts.append("\n".join([f"--- {file.name}", *(line[:600] for line in lines)]))
        return "\n".join(parts)

    def close(self) -> None:
        """End everything and remove it."""
        for process in (self.agent, self.helper):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait(timeout=30)
        if self._client is not None:
            self._client.close()
        self.run("down")
        self.host.close()
        shutil.rmtree(self.folder)


def send(endpoint: str, requests: int) -> set[int]:
    """Requests to a worker, one after the other; the processes that answered."""
    found = set()
    with closing(http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=10)) as connection:
        for _ in range(requests):
            connection.request("POST", "/v1/infer", "{}")
            answer = connection.getresponse()
            told = json.loads(answer.read())
            assert answer.status == 200
            found.add(int(told["pid"]))
    return found


def _own_environment() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if not name.startswith("HEADROOM_")}


def _holds(true: Callable[[], object]) -> bool:
    try:
        return bool(true())
    except (ApiError, UnreachableError, StopIteration, OSError):
        return False
