"""`python -m benchmarks.supply audit|sbom|vendor [--lock FILE] [--out FILE]`.

`audit` looks at every lock: pins, hashes, repeats, licences, and versions below a committed list of known-bad ranges
(`known.json`, each with its source). It asks nobody, so it cannot know what was found since that list was written, nor
whether a release was yanked: `pip-audit` where the advisory service can be reached does. `sbom` writes a lock as
CycloneDX 1.6 JSON, the same bytes each time. `vendor` fetches what stands in the tree of others (`vendored`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
import uuid
from pathlib import Path
from typing import Any

from benchmarks.supply import vendored
from benchmarks.supply.locked import LOCKS, ROOT, faults, licence, packages
from solvers.version import VERSION

KNOWN = Path(__file__).with_name("known.json")
NAMESPACE = uuid.UUID("6f1d5b1e-6d0e-5f0a-9d2c-5c6e6d6f6d65")


def sbom(lock: Path, licences: dict[str, str]) -> dict[str, Any]:
    """The components of the product as a lock installs them. Its serial number is made of what it says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    root = f"pkg:pypi/{project['name']}@{VERSION}"
    pinned = sorted(packages(lock), key=lambda package: package.name)
    components = []
    for package in pinned:
        name = licences.get(package.name) or licence(package.name)
        components.append(
            {
                "type": "library",
                "bom-ref": f"pkg:pypi/{package.name}@{package.version}",
                "name": package.name,
                "version": package.version,
                "purl": f"pkg:pypi/{package.name}@{package.version}",
                "licenses": [{"license": {"name": name}}] if name else [],
                "externalReferences": [
                    {"type": "distribution", "url": f"pkg:pypi/{package.name}@{package.version}",
                     "hashes": [{"alg": "SHA-256", "content": content} for content in package.hashes]}
                ],
            }
        )  # fmt: skip
    refs = {package.name: f"pkg:pypi/{package.name}@{package.version}" for package in pinned}
    edges: dict[str, list[str]] = {root: [], **{ref: [] for ref in refs.values()}}
    for package in pinned:
        for parent in package.via.replace("-r ", "").split(", "):
            edges[refs.get(parent.partition("[")[0].lower(), root)].append(refs[package.name])
    serial = uuid.uuid5(NAMESPACE, json.dumps([root, components], sort_keys=True))
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "bom-ref": root, "name": project["name"],
                          "version": VERSION, "purl": root,
                          "licenses": [{"license": {"id": project["license"]}}]},
        },
        "components": components,
        "dependencies": [{"ref": ref, "dependsOn": sorted(set(found))} for ref, found in sorted(edges.items())],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.supply", description=__doc__)
    parser.add_argument("what", choices=("audit", "sbom", "vendor"))
    parser.add_argument("--lock", type=Path, default=ROOT / "requirements-server.lock")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if asked.what == "vendor":
        sys.stdout.write("".join(f"{path}\n" for path in vendored.fetch()))
        differing = vendored.differing()
        sys.stderr.write("".join(f"{path} is not what the lock says\n" for path in differing))
        return 1 if differing else 0
    known = json.loads(KNOWN.read_text(encoding="utf-8"))
    if asked.what == "sbom":
        text = json.dumps(sbom(asked.lock, known["licences"]), indent=1, sort_keys=True) + "\n"
        asked.out.write_text(text, encoding="utf-8") if asked.out else sys.stdout.write(text)
        return 0
    found = [line for lock in LOCKS for line in faults(ROOT / lock, known["bad"], known["licences"])]
    sys.stdout.write("".join(f"{line}\n" for line in found))
    sys.stdout.write(f"{len(LOCKS)} locks, {len(found)} findings; known-bad ranges as of {known['as_of']}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
