"""The import contracts catch what they forbid: planted violations of every contract, in a copy of the packages.

A contract that is kept proves little by itself, because a misspelt module name would keep it as well. So the copy is
first shown to keep every contract, then one forbidden import at a time is planted and the contract it breaks must say
so. The same holds for the calls banned in the core, which ruff watches.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("app", "solvers", "agents", "lab")
BIN = Path(sys.executable).parent


@dataclass(frozen=True, slots=True)
class Planted:
    """A module that must not exist, and the contract (by id) that must say so."""

    contract: str
    module: str
    statement: str


PLANTED = (
    Planted("pure-core", "solvers.planners.planted", "import app.store"),
    Planted("pure-core", "solvers.planners.planted", "import agents.wire"),
    Planted("pure-core", "solvers.models.planted", "import sqlalchemy"),
    Planted("pure-core", "solvers.cycle.planted", "import logging"),
    Planted("pure-core", "solvers.engines.planted", "from random import random"),
    Planted("core-layers", "solvers.domain.planted", "import solvers.models"),
    Planted("core-layers", "solvers.models.planted", "import solvers.engines"),
    Planted("core-layers", "solvers.planners.planted", "import solvers.cycle"),
    Planted("core-layers", "solvers.unplanned.planted", "import solvers.domain"),
    Planted("independent-verifier", "solvers.verify.planted", "import solvers.problems"),
    Planted("independent-verifier", "solvers.verify.planted", "import solvers.planners"),
    Planted("control-alone", "solvers.control.planted", "import solvers.domain"),
    Planted("control-alone", "solvers.control.planted", "import numpy"),
    Planted("engines-only", "solvers.planners.planted", "from ortools.sat.python import cp_model"),
    Planted("engines-only", "app.services.planted", "import pulp"),
    Planted("core-layers", "solvers.planners.planted", "import solvers.policies"),
    Planted("torch-only", "solvers.models.planted", "import torch"),
    Planted("torch-only", "solvers.policies.inss.planted", "import torch"),
    Planted("torch-only", "lab.arena.planted", "import torch"),
    Planted("lab-apart", "app.cli.planted", "import lab.arena"),
    Planted("lab-apart", "solvers.planners.planted", "from lab.baselines import gpulet"),
    Planted("policies-apart", "solvers.policies.inss.planted", "from solvers.policies.mudi import planner"),
    Planted("policies-apart", "solvers.planners.joint.planted", "from solvers.planners.greedy import planner"),
    Planted("shell-layers", "app.store.planted", "import app.services"),
    Planted("shell-layers", "app.services.planted", "import app.api"),
    Planted("shell-layers", "app.demo.planted", "import app.cli.options"),
    Planted("shell-layers", "app.routing.planted", "import app.demo"),
    Planted("shell-layers", "app.client.planted", "import app.store"),
    Planted("shell-layers", "app.unplanned.planted", "import app.kinds"),
    Planted("wire-only", "app.services.planted", "import agents.devices"),
    Planted("agents-layers", "agents.devices.planted", "import agents.mps"),
    Planted("agents-layers", "agents.profiling.planted", "import agents.loop"),
    Planted("agents-layers", "agents.crew.planted", "import agents.helper"),
    Planted("agents-layers", "agents.unplanned.planted", "import agents.wire"),
    Planted("agents-alone", "agents.planted", "import app.store"),
    Planted("agents-alone", "agents.planted", "import solvers.domain"),
    Planted("agents-alone", "agents.devices.planted", "import solvers.sim.truth.truth"),
    Planted("agents-light", "agents.planted", "import numpy"),
    Planted("truth-hidden", "solvers.planners.planted", "import solvers.sim.truth.truth"),
    Planted("truth-hidden", "solvers.models.planted", "import solvers.sim"),
    Planted("truth-hidden", "lab.baselines.planted", "import lab.world"),
)

ALLOWED = (
    Planted("wire-only", "app.services.planted", "import agents.wire"),
    Planted("agents-alone", "agents.planted", "import solvers.control"),
    Planted("agents-alone", "agents.devices.fake.planted", "import solvers.sim.truth.truth"),
    Planted("engines-only", "solvers.engines.planted", "from ortools.sat.python import cp_model"),
)

BANNED_CALLS = (
    "import time\n\nNOW = time.time()",
    "import time\n\nNOW = time.monotonic()",
    "from time import perf_counter\n\nNOW = perf_counter()",
    "import time\n\ntime.sleep(1)",
    "from datetime import UTC, datetime\n\nNOW = datetime.now(tz=UTC)",
    "import random\n\nDRAW = random.random()",
    "import uuid\n\nNAME = uuid.uuid4()",
    "import logging\n\nLOG = logging.getLogger()",
    "import numpy as np\n\nnp.random.seed(1)",
    "import numpy as np\n\nDRAW = np.random.rand()",
)


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A copy of what the linters read: the three packages and the settings."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def plant(house: Path, planted: Planted) -> Path:
    """Write the module, its packages included, and make what it imports exist where the house has not built it yet."""
    *rooms, _ = planted.module.split(".")
    folder = house
    for room in rooms:
        folder /= room
        module = folder.with_suffix(".py")
        if module.exists():
            folder.mkdir()
            module.rename(folder / "__init__.py")
        open_package(folder)
    imported = re.sub(r"^(?:import|from) (\S+).*", r"\1", planted.statement).split(".")
    if imported[0] in PACKAGES and not (
        house.joinpath(*imported).is_dir() or house.joinpath(*imported).with_suffix(".py").exists()
    ):
        open_package(house.joinpath(*imported[:-1]))
        house.joinpath(*imported).with_suffix(".py").write_text('"""Stands in."""\n', encoding="utf-8")
    path = house.joinpath(*planted.module.split(".")).with_suffix(".py")
    path.write_text(f'"""Planted."""\n\n{planted.statement}\n', encoding="utf-8")
    return path


def open_package(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    if not (folder / "__init__.py").exists():
        (folder / "__init__.py").write_text('"""Stands in."""\n', encoding="utf-8")


def lint_imports(house: Path, *contracts: str) -> subprocess.CompletedProcess[str]:
    chosen = [part for contract in contracts for part in ("--contract", contract)]
    command = [BIN / "lint-imports", "--no-cache", *chosen]
    return subprocess.run(
        command,
        cwd=house,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PYTHONPATH": str(house), "PATH": ""},
    )


def banned_calls(house: Path, path: Path) -> subprocess.CompletedProcess[str]:
    command = [BIN / "ruff", "check", "--no-cache", "--select", "TID251", "--output-format", "concise", str(path)]
    return subprocess.run(command, cwd=house, capture_output=True, text=True, timeout=60, check=False)


def test_the_house_keeps_every_contract(house: Path) -> None:
    run = lint_imports(house)

    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"Contracts: (\d+) kept, 0 broken", run.stdout)


def test_every_contract_has_a_planted_violation() -> None:
    contracts = re.findall(
        r'^id = "([a-z-]+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), flags=re.MULTILINE
    )

    assert sorted({planted.contract for planted in PLANTED}) == sorted(contracts)


@pytest.mark.parametrize(
    "planted", PLANTED, ids=lambda planted: f"{planted.contract}: {planted.module} {planted.statement}"
)
def test_a_planted_import_breaks_its_contract(house: Path, planted: Planted) -> None:
    plant(house, planted)

    run = lint_imports(house, planted.contract)

    assert run.returncode == 1, run.stdout + run.stderr
    assert "0 kept, 1 broken" in run.stdout
    assert ".planted" in run.stdout or "unplanned" in run.stdout


@pytest.mark.parametrize(
    "allowed", ALLOWED, ids=lambda allowed: f"{allowed.contract}: {allowed.module} {allowed.statement}"
)
def test_an_agreed_exception_keeps_its_contract(house: Path, allowed: Planted) -> None:
    plant(house, allowed)

    run = lint_imports(house, allowed.contract)

    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 kept, 0 broken" in run.stdout


@pytest.mark.parametrize("source", BANNED_CALLS, ids=lambda source: source.splitlines()[-1])
def test_a_planted_call_is_banned_in_the_core_and_only_there(house: Path, source: str) -> None:
    content = f'"""Planted."""\n\n{source}\n'
    inside, outside = house / "solvers" / "planners" / "planted.py", house / "app" / "services" / "planted.py"
    for path in (inside, outside):
        path.write_text(content, encoding="utf-8")

    in_core, in_shell = banned_calls(house, inside), banned_calls(house, outside)

    assert in_core.returncode == 1, in_core.stdout + in_core.stderr
    assert "TID251" in in_core.stdout
    assert in_shell.returncode == 0, in_shell.stdout + in_shell.stderr


def test_the_core_makes_no_banned_call(house: Path) -> None:
    run = banned_calls(house, house / "solvers")

    assert run.returncode == 0, run.stdout + run.stderr
