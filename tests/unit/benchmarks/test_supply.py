"""The locks are looked at, and written down the same each time, with what CycloneDX asks for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.supply import vendored
from benchmarks.supply.__main__ import KNOWN, sbom
from benchmarks.supply.locked import LOCKS, ROOT, faults, older, packages

HASH = "    --hash=sha256:" + "a" * 64
REF = re.compile(r"pkg:pypi/[a-z0-9-]+@[\w.+!-]+")
NOTHING: dict[str, list[list[str]]] = {}


def known() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(KNOWN.read_text(encoding="utf-8"))
    return found


def test_our_locks_are_well() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.supply", "audit"], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.count("\n")) == (0, 1), done.stdout


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"pyyaml==6.0.3\n{HASH}\n", []),
        ("pyyaml==6.0.3\n    # via rich\n", ["has no hash"]),
        (f"pyyaml==6.0.3\n{HASH}\nPyYAML==6.0.2\n{HASH}\n", ["pinned 2 times"]),
        (f"pyyaml==5.3\n{HASH}\n", ["older than 5.4: CVE-2020-14343"]),
        (f"no-such-thing==1.0\n{HASH}\n", ["does not say its licence"]),
        (f"pyyaml==main\n{HASH}\n", ["no released version", "older than 5.4"]),
    ],
)
def test_what_is_wrong_with_a_lock_is_told(tmp_path: Path, text: str, told: list[str]) -> None:
    lock = tmp_path / "x.lock"
    lock.write_text(text)
    bad = {"pyyaml": [["5.4", "CVE-2020-14343"]]}
    found = list(faults(lock, bad, {}))
    assert len(found) == len(told)
    assert all(word in line for word, line in zip(told, found, strict=True))


def test_a_requirement_without_a_pin_is_refused(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    lock.write_text("pyyaml>=6\n")
    with pytest.raises(ValueError, match="is no pin"):
        packages(lock)


def test_versions_are_compared_by_their_numbers() -> None:
    assert older("0.9.0", "0.16.0")
    assert not older("0.16.0", "0.16.0")
    assert not older("2026.10.18", "2024.7.4")


@pytest.mark.parametrize("name", LOCKS[:3])
def test_an_sbom_has_what_cyclonedx_asks_for(name: str) -> None:
    lock = ROOT / name
    bom = sbom(lock, known()["licences"])
    assert (bom["bomFormat"], bom["specVersion"], bom["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", bom["serialNumber"])
    root = bom["metadata"]["component"]["bom-ref"]
    refs = [item["bom-ref"] for item in bom["components"]]
    assert len({root, *refs}) == len(refs) + 1 == len(packages(lock)) + 1
    for item in bom["components"]:
        assert {"type", "name", "version", "purl", "licenses"} <= set(item)
        assert item["licenses"], item["name"]
        assert REF.fullmatch(item["purl"]), item
        (reference,) = item["externalReferences"]
        assert all(each["alg"] == "SHA-256" and len(each["content"]) == 64 for each in reference["hashes"])
    edges = {item["ref"]: item["dependsOn"] for item in bom["dependencies"]}
    assert set(edges) == {root, *refs}
    assert {name for found in edges.values() for name in found} == set(refs)


def test_an_sbom_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.supply", "sbom", "--out"]
    for name in ("a", "b"):
        subprocess.run([*command, str(tmp_path / name)], check=True)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_what_others_wrote_is_what_the_lock_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sorted(vendored.differing()) == []
    said = [(entry["licence"], entry["version"], len(entry["integrity"])) for entry in vendored.entries()]
    assert all(licence and version and size > 90 for licence, version, size in said)
    told = {file["path"] for entry in vendored.entries() for file in entry["files"]}
    there = {str(path.relative_to(ROOT)) for path in (ROOT / "app/api/console/static/vendor").iterdir()}
    assert there <= told
    (tmp_path / "lock.json").write_text(vendored.LOCK.read_text().replace('"sha256": "', '"sha256": "0'))
    monkeypatch.setattr(vendored, "LOCK", tmp_path / "lock.json")
    assert set(vendored.differing()) == told
