"""`python -m tests.contract [--roles admin,node] [--examples N] [--seed S]`: every operation, in every phase.

A real API over a PostgreSQL of its own, with a small fleet in it. Each role's run goes on to its end (examples,
coverage, fuzzing and stateful phases) and is judged by: no 5xx, statuses, media types and bodies as described. Streams
are left out, since they do not end. What is wrong is told with the request that shows it.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from app.store.tokens import Purpose, Role
from tests.integration.faults.fleet import seed
from tests.integration.faults.house import House, Postgres
from tests.integration.faults.reporters import Reporter

PHASES = "examples,coverage,fuzzing,stateful"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
STREAMS = ("listen_doorbell", "follow_events", "get_routes", "get_service_routes")
ROLES: dict[str, dict[str, Any]] = {
    "admin": {"role": Role.ADMIN},
    "operator": {"role": Role.OPERATOR},
    "viewer": {"role": Role.VIEWER},
    "project": {"role": Role.OPERATOR, "project": "vision"},
    "reporter": {"role": Role.REPORTER},
    "join": {"role": Role.AGENT, "purpose": Purpose.JOIN},
    "node": {"role": Role.AGENT, "purpose": Purpose.NODE, "subject": "node-x"},
    "gateway": {"role": Role.AGENT, "purpose": Purpose.GATEWAY, "subject": "edge"},
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.contract", description=__doc__)
    parser.add_argument("--roles", default=",".join(ROLES), help=f"of {', '.join(ROLES)}; default: all")
    parser.add_argument("--examples", type=int, default=30, help="of each operation's fuzzing; default: 30")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    broken = []
    postgres = Postgres()
    try:
        for name in asked.roles.split(","):
            began_s = time.monotonic()
            if _run(postgres, name, asked.examples, asked.seed):
                broken.append(name)
            told = "BROKEN" if name in broken else "as described"
            sys.stdout.write(f"{name}: {told}, {time.monotonic() - began_s:.0f} s\n")
            sys.stdout.flush()
    finally:
        postgres.end()
    return 1 if broken else 0


def _run(postgres: Postgres, name: str, examples: int, number: int) -> int:
    """One role, against a house of its own: what an administrator may delete is gone for nobody else."""
    house = House(postgres, {"HEADROOM_RATE_LIMIT_PER_S": "0"})
    try:
        house.start_api()
        with house.client() as client:
            seed(client)
        Reporter(house.address, "node-x", house.join, random.Random(number)).close()
        token = house.token(**ROLES[name])
        with tempfile.TemporaryDirectory() as folder:
            # Derived when it is first asked for, which takes longer than schemathesis waits on a busy machine.
            description = Path(folder) / "openapi.json"
            description.write_bytes(httpx.get(f"{house.address}/v1/openapi.json", timeout=120.0).content)
            command = [
                str(Path(sys.executable).with_name("schemathesis")), "run", str(description), "--url", house.address,
                "--phases", PHASES, "--checks", CHECKS, "--max-examples", f"{examples}", "--seed", f"{number}",
                "--header", f"Authorization: Bearer {token}", "--request-timeout", "60", "--no-color",
                "--continue-on-failure", "--workers", "1",
            ]  # fmt: skip
            for stream in STREAMS:
                command += ["--exclude-operation-id", stream]
            return subprocess.run(command, check=False, cwd=folder).returncode
    finally:
        house.close()


if __name__ == "__main__":
    sys.exit(main())
