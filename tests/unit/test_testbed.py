"""The testbed's files: they parse, hold no secret, and run nobody as root."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())  # type: ignore[no-any-return]


def test_every_secret_comes_from_the_environment(compose: dict[str, Any]) -> None:
    secret_names = re.compile(r"(PASSWORD|TOKEN)$")
    seen = 0
    for service in compose["services"].values():
        for name, value in service.get("environment", {}).items():
            if secret_names.search(name) or "DATABASE_URL" in name:
                seen += 1
                assert re.search(r"\$\{[A-Z_]+:\?", value), f"{name} must come from .env and be required"
    assert seen >= 8


def test_own_images_are_read_only_without_privileges(compose: dict[str, Any]) -> None:
    own = {name: service for name, service in compose["services"].items() if "build" in service}
    assert {"api", "planner", "migrate", "traffic", "node-a1"} <= set(own)
    for name, service in own.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name


def test_the_demo_is_declared_once_and_says_what_it_waits_for(compose: dict[str, Any], tmp_path: Path) -> None:
    """What a user changes or deletes stays so when the testbed comes up again."""
    demo = compose["services"]["demo"]
    assert demo["volumes"] == ["demo:/var/lib/headroom"]
    assert "demo" in compose["volumes"]
    # It is not ready at first; then it is.
    fake = tmp_path / "headroom"
    fake.write_text(
        '#!/bin/sh\necho "$1" >>"$CALLS"\n'
        '[ "$1" != status ] || [ -e asked ] || { touch asked; echo away >&2; exit 6; }\n'
    )
    fake.chmod(0o755)
    home, calls = tmp_path / "home", tmp_path / "calls"
    home.mkdir()
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(calls)}
    command = [*demo["entrypoint"], demo["command"][0].replace("sleep", ":")]
    said = [subprocess.run(command, check=True, cwd=home, env=environment, capture_output=True) for _ in range(2)]
    assert calls.read_text().split() == ["status", "status", "apply"]
    assert [each.stderr for each in said] == [b"away\n", b""]


def test_images_run_as_an_ordinary_user() -> None:
    stages = re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.M)[1:]
    final = [stage for stage in stages if re.search(r"AS (agent|server)\n", stage)]
    assert len(final) == 2
    for stage in final:
        assert re.search(r"^USER 10001$", stage, flags=re.M)


def test_images_carry_everything_that_a_wheel_does() -> None:
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    copied = re.findall(r"^COPY (\S+) \1$", (ROOT / "Dockerfile").read_text(), flags=re.M)
    assert sorted(copied) == sorted(about["wheel"]["only-include"])
    # What is built from gets what is copied: nothing else is sent.
    ways = re.findall(r"^COPY (?!--)(.+) \S+$", (ROOT / "Dockerfile").read_text(), flags=re.M)
    sent = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"}
    assert {path for way in ways for path in way.split()} == sent
    carried = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert {"app/openapi_bundle/openapi.json", "app/examples_bundle/demo/services.yaml"} < carried
    assert "headroom_client/pyproject.toml" not in carried
    carried = {f"/{part}" for part in about["wheel"]["only-include"]}
    assert carried <= set(about["sdist"]["include"])


def test_ports_are_bound_to_this_machine_only(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_prometheus_is_optional_and_scrapes_the_api(compose: dict[str, Any]) -> None:
    for name in ("prometheus", "grafana"):
        assert compose["services"][name]["profiles"] == ["metrics"]
        assert re.fullmatch(r"[a-z./]+:v?\d+\.\d+\.\d+", compose["services"][name]["image"]), "pinned"
    scraped = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    assert scraped["scrape_configs"][0]["static_configs"][0]["targets"] == ["api:8080"]


def test_new_env_makes_fresh_private_secrets_and_keeps_them(tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    script = tmp_path / "deploy" / "new-env.sh"
    script.write_text((ROOT / "deploy/new-env.sh").read_text())
    environment = {"PATH": os.environ["PATH"]}
    subprocess.run(["sh", str(script)], check=True, env=environment, capture_output=True)
    made = (tmp_path / ".env").read_text()
    assert (tmp_path / ".env").stat().st_mode & 0o077 == 0
    values = [line.split("=", 1)[1] for line in made.splitlines()]
    assert len(values) == len(set(values)) == 4
    assert all(len(value) >= 48 for value in values)
    subprocess.run(["sh", str(script)], check=True, env=environment, capture_output=True)
    assert (tmp_path / ".env").read_text() == made
