"""What stands in the tree although others wrote it: of which package, under which licence, each SHA-256.

`vendored.json` says so, and a test recomputes it. `fetch` brings the files anew with `npm pack`, which nothing but
this needs: neither an installation nor a test does.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
import tempfile
from base64 import b64encode
from pathlib import Path
from typing import Any

from benchmarks.supply.locked import ROOT

LOCK = Path(__file__).with_name("vendored.json")


def entries() -> list[dict[str, Any]]:
    return list(json.loads(LOCK.read_text(encoding="utf-8")))


def differing() -> list[str]:
    """Files that are missing or not what the lock says."""
    files = [file for entry in entries() for file in entry["files"]]
    return [file["path"] for file in files if _sha256(ROOT / file["path"]) != file["sha256"]]


def fetch() -> list[str]:
    """Bring every file at the version of the lock; its tarball must be what npm published. A new version is written
    into the lock by hand, with an empty `integrity` and empty hashes, which are filled in then.
    """
    told = entries()
    for entry in told:
        _fetch(entry)
    LOCK.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return [file["path"] for entry in told for file in entry["files"]]


def _fetch(entry: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        wanted = f"{entry['package']}@{entry['version']}"
        packed = subprocess.run(
            ["npm", "pack", "--silent", "--pack-destination", folder, wanted],
            check=True,
            capture_output=True,
            text=True,
        )
        tarball = Path(folder) / packed.stdout.split()[-1]
        found = "sha512-" + b64encode(hashlib.sha512(tarball.read_bytes()).digest()).decode()
        if (entry["integrity"] or found) != found:
            raise SystemExit(f"{wanted} is not what the lock says: {found}")
        entry["integrity"] = found
        with tarfile.open(tarball) as opened:
            for file in entry["files"]:
                member = opened.extractfile(f"package/{file['from']}")
                assert member is not None
                path = ROOT / file["path"]
                path.write_bytes(member.read())
                file["sha256"] = file["sha256"] or _sha256(path)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"
