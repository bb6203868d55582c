"""The locks pin everything by hash, name no registry and no machine, and agree with each other."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements.lock", "requirements-server.lock", "requirements-dev.lock")
LEARNING = "requirements-rl.lock"
"""Beside the others: what training needs is too large for every developer."""
PIN = re.compile(
    r"^(?P<name>[a-z0-9][a-z0-9._-]*(?:\[[a-z0-9,_-]+\])?)==(?P<version>[^\s;\\]+)(?P<marker> ; [^\\]+)? \\$"
)
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}(?: \\)?$")
VIA = re.compile(r"^    # via [a-zA-Z0-9._,\[\]() -]+$")


def lines(lock: str) -> list[str]:
    return (ROOT / lock).read_text(encoding="utf-8").splitlines()


def pins(lock: str) -> dict[str, str]:
    return {match["name"]: match["version"] for line in lines(lock) if (match := PIN.match(line))}


def wanted(*extras: str) -> set[str]:
    """Names that pyproject.toml asks for, as the locks write them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = list(project["dependencies"])
    for extra in extras:
        asked += project["optional-dependencies"][extra]
    return {re.split(r"[<>=!~\[ ;]", requirement, maxsplit=1)[0].lower().replace("_", "-") for requirement in asked}


@pytest.mark.parametrize("lock", [*LOCKS, LEARNING])
def test_a_lock_holds_pins_hashes_and_reasons_only(lock: str) -> None:
    strange = [line for line in lines(lock) if line and not (PIN.match(line) or HASH.match(line) or VIA.match(line))]

    assert strange == []


@pytest.mark.parametrize("lock", [*LOCKS, LEARNING])
def test_every_requirement_carries_a_hash(lock: str) -> None:
    content = lines(lock)

    bare = [
        line
        for line, after in zip(content, [*content[1:], ""], strict=True)
        if PIN.match(line) and not HASH.match(after)
    ]

    assert bare == []
    assert len(pins(lock)) >= 10


@pytest.mark.parametrize("lock", [*LOCKS, LEARNING])
def test_a_lock_names_no_address_and_no_path(lock: str) -> None:
    text = "\n".join(lines(lock))

    assert "://" not in text
    assert "--index" not in text
    assert "--extra-index" not in text
    assert "--find-links" not in text
    assert "--trusted-host" not in text
    assert not re.search(r"(?:^|[\s'\"=])/[a-z]", text)


def test_the_smaller_locks_are_parts_of_the_larger_ones() -> None:
    base, server, dev = (pins(lock) for lock in LOCKS)

    assert base.items() < server.items()
    assert server.items() < dev.items()


def test_training_runs_on_the_same_pins() -> None:
    server, dev, learning = (pins(lock) for lock in (*LOCKS[1:], LEARNING))

    assert server.items() < learning.items()
    assert {name: version for name, version in learning.items() if name in dev}.items() <= dev.items()
    assert "torch" in learning.keys() - dev.keys()


def test_each_lock_covers_what_the_project_asks_for() -> None:
    for lock, extras in zip(LOCKS, [(), ("server", "build"), ("server", "convex", "build", "dev")], strict=True):
        names = {name.split("[")[0].lower() for name in pins(lock)}
        assert wanted(*extras) <= names


def lacking(lock: str, extras: tuple[str, ...]) -> set[str]:
    """What the project's and all pinned packages need, by what they say of themselves, and the lock does not pin."""
    pinned = {name.split("[")[0] for name in pins(lock)}
    left, met, missed = [("headroom-gpu", extra) for extra in ("", *extras)], set(), set()
    while left:
        name, extra = asked = left.pop()
        if asked in met:
            continue
        met.add(asked)
        for line in requires(name) or ():
            needed = Requirement(line)
            if needed.marker is not None and not needed.marker.evaluate({"extra": extra}):
                continue
            key = re.sub(r"[-_.]+", "-", needed.name).lower()
            if key == "headroom-gpu" or key in pinned:
                left += [(key, further) for further in ("", *needed.extras)]
            else:
                missed.add(key)
    return missed


@pytest.mark.parametrize(
    ("lock", "extras"),
    list(zip(LOCKS, [(), ("server", "build"), ("server", "convex", "build", "dev")], strict=True)),
)
def test_a_lock_is_whole_for_nothing_is_resolved_when_it_is_installed(lock: str, extras: tuple[str, ...]) -> None:
    assert lacking(lock, extras) == set()


def test_what_installs_a_lock_looks_for_nothing_beside_it() -> None:
    installs = [
        line
        for file in ("Makefile", "Dockerfile")
        for line in (ROOT / file).read_text(encoding="utf-8").splitlines()
        if "--require-hashes" in line
    ]

    assert len(installs) == 5
    assert all("--no-deps" in line for line in installs)


def test_a_server_carries_nothing_of_the_laboratory() -> None:
    laboratory = ("cvxpy", "scikit-learn", "torch", "numba", "pyarrow")
    assert pins("requirements-server.lock").keys().isdisjoint(laboratory)


def test_the_solver_pins_are_the_set_that_coexists() -> None:
    dev = pins("requirements-dev.lock")

    assert {name: dev[name] for name in ("ortools", "pulp", "cvxpy", "highspy")} == {
        "ortools": "9.15.6755",
        "pulp": "3.3.2",
        "cvxpy": "1.9.1",
        "highspy": "1.12.0",
    }
