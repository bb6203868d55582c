"""What a lock says, and what the installed packages say of themselves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements.lock", "requirements-server.lock", "requirements-dev.lock", "requirements-rl.lock")
PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(?P<version>[^\s;\\]+)")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Package:
    """A pin; `hashes` are of every file that it may come as."""

    name: str
    version: str
    hashes: tuple[str, ...]
    via: str


def packages(lock: Path) -> list[Package]:
    """Every pin of a lock, in its order. Raises ValueError for a requirement that is no pin."""
    found = []
    for block in re.split(r"\n(?=\S)", lock.read_text(encoding="utf-8").strip()):
        pin = PIN.match(block)
        if pin is None:
            raise ValueError(f"{lock.name}: {block.splitlines()[0]!r} is no pin")
        via = re.search(r"# via (.+)", block)
        name = re.sub(r"[-_.]+", "-", pin["name"]).lower()
        found.append(Package(name, pin["version"], tuple(sorted(HASH.findall(block))), via[1] if via else ""))
    return found


def licence(name: str) -> str:
    """What an installed package calls its licence; empty where it is not installed or does not say."""
    try:
        told = metadata(name)
    except PackageNotFoundError:
        return ""
    said = told.get("License-Expression") or ""
    classified = [
        text.rpartition("::")[2].strip() for text in told.get_all("Classifier") or () if text.startswith("License")
    ]
    first = (told.get("License") or "").strip().splitlines()
    return said or ", ".join(name for name in classified if name != "OSI Approved") or (first[0][:80] if first else "")


def faults(lock: Path, known_bad: dict[str, list[list[str]]], licences: dict[str, str]) -> Iterator[str]:
    """What is wrong with a lock, as far as that is known here."""
    pinned = packages(lock)
    for name, count in Counter(package.name for package in pinned).items():
        if count > 1:
            yield f"{lock.name}: {name} is pinned {count} times"
    for package in pinned:
        told = f"{lock.name}: {package.name} {package.version}"
        if not package.hashes:
            yield f"{told} has no hash"
        if not re.fullmatch(r"\d[\w.+!-]*", package.version):
            yield f"{told} is no released version"
        for below, source in known_bad.get(package.name, ()):
            if older(package.version, below):
                yield f"{told} is older than {below}: {source}"
        if not (licence(package.name) or licences.get(package.name)):
            yield f"{told} does not say its licence, and benchmarks/supply/known.json does not either"


def older(version: str, other: str) -> bool:
    """Whether a version is below another, by its numbers."""
    mine, theirs = ([int(part) for part in re.findall(r"\d+", text.partition("+")[0])] for text in (version, other))
    return mine < theirs
