"""A user's machine that is the GPU host, too: `headroom up`, `headroom agent`, and the commands of the user.

Owns the processes and their folder. `close` ends whatever is left, and tells what that was.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.client.connection import read_connection
from app.demo.home import Home
from headroom_client import ApiError, Client, UnreachableError
from tests.gpu.whole.services import ROOT
from tests.ports import free_port, port_option
from tests.waiting import wait_until

NODE = "gpu-1"
COMMAND_S_MAX, END_S_MAX = 60.0, 30.0
TAIL_WIDTH = 300
PACE = {"HEADROOM_REPORT_INTERVAL_S": "1", "HEADROOM_ACCOUNT_INTERVAL_S": "5"}
"""A user who watches from close by says so; everything else is as it comes."""
MARK = "HEADROOM_WHOLE"


class Plane:
    """All processes of one run."""

    def __init__(self, kept: Mapping[str, str], agent_options: Sequence[str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hr-whole-", dir="/tmp"))
        self.home = self.folder / "home"
        self.port = free_port()
        self.agent: subprocess.Popen[bytes] | None = None
        self._kept, self._agent_options = kept, agent_options
        self._client: Client | None = None
        own = {name: text for name, text in os.environ.items() if not name.startswith("HEADROOM_") or "STANDIN" in name}
        paths = dict.fromkeys((str(ROOT), *filter(None, own.get("PYTHONPATH", "").split(os.pathsep))))
        self.environment = {
            **own,
            **PACE,
            "HEADROOM_HOME": str(self.home),
            "HEADROOM_PORT": str(self.port),
            "HOME": str(self.folder),
            "PYTHONPATH": os.pathsep.join(paths),
            MARK: str(self.folder),
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`headroom …`, to its end."""
        command = [sys.executable, "-P", "-m", "app", *arguments]
        return subprocess.run(
            command,
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX,
            check=False,
        )

    def do(self, *arguments: str) -> str:
        """`headroom …`, which must succeed; what it printed."""
        done = self.run(*arguments)
        if done.returncode:
            raise AssertionError(f"headroom {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    @property
    def client(self) -> Client:
        """The administrator's, for questions that are asked often."""
        if self._client is None:
            self._client = Client(self.server, self.token)
        return self._client

    @property
    def token(self) -> str:
        """The administrator's."""
        found = read_connection(self.home)
        if found is None:
            raise AssertionError("`headroom up` left no connection")
        return found.token

    @property
    def server(self) -> str:
        """The API's address."""
        return f"http://127.0.0.1:{self.port}"

    def start_agent(self, devices: str) -> None:
        """`headroom agent`, with the join token of the control plane."""
        token = Home(self.home).read_secret("join")
        if token is None:
            raise AssertionError("`headroom up` left no join token")
        command = [sys.executable, "-P", "-m", "app", "agent", "--server", self.server, "--node", NODE]
        command += ["--devices", devices, "--workers-as-agent", "--state-dir", str(self.folder / "agent")]
        command += ["--mps-pipes", str(self.folder / "mps"), "--ports", port_option(), "--route-grace-s", "1"]
        command += ["--environment", ",".join(sorted(self._kept))] if self._kept else []
        with (self.folder / "agent.log").open("ab") as log:
            self.agent = subprocess.Popen(
                [*command, *self._agent_options],
                env={**self.environment, "HEADROOM_TOKEN": token},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def end_agent(self) -> int | None:
        """SIGTERM; its exit status, None where it was none in time and had to be killed."""
        if self.agent is None:
            return 0
        self.agent.send_signal(signal.SIGTERM)
        try:
            return self.agent.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self.agent.kill()
            self.agent.wait(END_S_MAX)
            return None

    def until(self, what: str, true: Callable[[], object], within_s: float) -> None:
        """Wait for a condition; one that cannot be asked does not hold yet. Raises AssertionError."""
        wait_until(lambda: _holds(true), what, within_s, 0.05)

    def receipt(self) -> dict[str, Any]:
        """What the node read back last."""
        found: dict[str, Any] = next(iter(self.client.items("receipts")))["document"]
        return found

    def is_applied(self) -> bool:
        """Whether the node holds the newest target with everything ready."""
        found = self.receipt()
        return bool(found["outcome"] == "applied" and found["generation"] == self.client.fleet()["generation"])

    def replicas(self, service: str) -> list[dict[str, Any]]:
        """Where requests of a service may go."""
        return list(self.client.routes(service=service).body["replicas"])

    def assignments(self) -> dict[str, dict[str, Any]]:
        """What is to be held, by service."""
        return {each["workload"]: each for each in self.client.target()["assignments"]}

    def problems(self) -> list[str]:
        """What the node says is wrong."""
        try:
            return [str(problem) for problem in self.receipt()["problems"]]
        except (ApiError, UnreachableError, StopIteration, AssertionError):
            return []

    def story(self, lines_max: int) -> str:
        """The last words of every process, and what the node complains of."""
        logs = [self.folder / "agent.log", self.folder / "load.log", *sorted((self.home / "logs").glob("*.log"))]
        logs += sorted(path for path in (self.folder / "agent").rglob("*") if path.is_file() and "log" in str(path))
        parts = [f"--- problems of the node: {json.dumps(self.problems())}"]
        for log in filter(Path.exists, logs):
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines_max:]
            if lines:
                parts += [f"--- {log.relative_to(self.folder)}", *(line[:TAIL_WIDTH] for line in lines)]
        return "\n".join(parts)

    def processes(self) -> dict[int, str]:
        """Whatever lives and was begun by this run, by its environment; itself left out."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                environment = (path / "environ").read_bytes()
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
            # Workers do not inherit the mark; their state lies in this folder all the same.
            if os.fsencode(self.folder) in environment and int(path.name) != os.getpid() and command:
                found[int(path.name)] = command
        return found

    def close(self) -> dict[int, str]:
        """End everything, and remove it; what had to be killed."""
        self.end_agent()
        if self._client is not None:
            self._client.close()
        self.run("down")
        left = self.processes()
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        shutil.rmtree(self.folder, ignore_errors=True)
        return left


def _holds(true: Callable[[], object]) -> bool:
    try:
        return bool(true())
    except (ApiError, UnreachableError, StopIteration, OSError):
        return False
