"""The import contracts catch what they forbid: planted violations of every contract, in a copy of the packages.

A contract that is kept proves little by itself, because a misspelt module name would keep it as well. So the copy is
first shown to keep every contract, then every forbidden import is planted, each in a module of its own, and the
contract it breaks must name that module. All of them are looked at in one run, because reading the packages is what
takes time. The same holds for the calls banned in the core, which ruff watches.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("app", "headroom_client", "solvers", "agents", "lab")
BIN = Path(sys.executable).parent
CONTRACTS = {
    contract["id"]: contract["name"]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
}
"""Their names by their ids."""


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
    Planted("client-alone", "headroom_client.planted", "import app.kinds"),
    Planted("client-alone", "headroom_client.planted", "import yaml"),
    Planted("shell-layers", "app.unplanned.planted", "import app.kinds"),
    Planted("console-apart", "app.api.console.planted", "import app.store.engine"),
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
    Planted("agents-alone", "agents.crew.planted", "import solvers.control"),
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


def copied(folder: Path) -> Path:
    """A copy of what the linters read: the packages and the settings."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in which nothing forbidden is imported."""
    return copied(tmp_path_factory.mktemp("house"))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """What is said of each contract, by its name, where every violation is planted."""
    house = copied(tmp_path_factory.mktemp("planted"))
    for number, planted in enumerate(PLANTED):
        plant(house, replace(planted, module=numbered(planted.module, number)))
    run = lint_imports(house)
    assert run.returncode == 1, run.stdout + run.stderr
    _, _, broken = run.stdout.partition("Broken contracts\n----------------\n")
    _, *parts = re.split(r"^(\S.*)\n-+$", broken, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def numbered(module: str, number: int) -> str:
    """A planted module's name, which nothing else in the copy has."""
    return f"{module}_{number}"


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


def lint_imports(house: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / "lint-imports", "--no-cache"],
        cwd=house,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        # Wide enough for every line to be one line.
        env={"PYTHONPATH": str(house), "PATH": "", "COLUMNS": "1000"},
    )


def banned_calls(house: Path, path: Path) -> subprocess.CompletedProcess[str]:
    command = [BIN / "ruff", "check", "--no-cache", "--select", "TID251", "--output-format", "concise", str(path)]
    return subprocess.run(command, cwd=house, capture_output=True, text=True, timeout=60, check=False)


def test_the_house_keeps_every_contract(house: Path) -> None:
    run = lint_imports(house)

    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"Contracts: (\d+) kept, 0 broken", run.stdout)


def test_every_contract_has_a_planted_violation() -> None:
    assert {planted.contract for planted in PLANTED} == set(CONTRACTS)


@pytest.mark.parametrize(
    ("number", "planted"),
    list(enumerate(PLANTED)),
    ids=[f"{planted.contract}: {planted.module} {planted.statement}" for planted in PLANTED],
)
def test_a_planted_import_breaks_its_contract(report: Mapping[str, str], number: int, planted: Planted) -> None:
    said = report[CONTRACTS[planted.contract]]

    *room, _ = planted.module.split(".")
    guilty = ".".join(room) if room[-1] == "unplanned" else f"{numbered(planted.module, number)} -> "
    assert re.search(rf"^- +{re.escape(guilty)}", said, flags=re.MULTILINE), said


def test_agreed_exceptions_keep_every_contract(tmp_path: Path) -> None:
    house = copied(tmp_path)
    for number, allowed in enumerate(ALLOWED):
        plant(house, replace(allowed, module=numbered(allowed.module, number)))

    run = lint_imports(house)

    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("source", BANNED_CALLS, ids=lambda source: source.splitlines()[-1])
def test_a_planted_call_is_banned_in_the_core_and_only_there(tmp_path: Path, source: str) -> None:
    for setting in ("pyproject.toml", "solvers/ruff.toml"):
        (tmp_path / setting).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / setting, tmp_path / setting)
    inside, outside = tmp_path / "solvers" / "planners" / "planted.py", tmp_path / "app" / "services" / "planted.py"
    for path in (inside, outside):
        path.parent.mkdir(parents=True)
        path.write_text(f'"""Planted."""\n\n{source}\n', encoding="utf-8")

    in_core, in_shell = banned_calls(tmp_path, inside), banned_calls(tmp_path, outside)

    assert in_core.returncode == 1, in_core.stdout + in_core.stderr
    assert "TID251" in in_core.stdout
    assert in_shell.returncode == 0, in_shell.stdout + in_shell.stderr


def test_the_core_makes_no_banned_call(house: Path) -> None:
    run = banned_calls(house, house / "solvers")

    assert run.returncode == 0, run.stdout + run.stderr
