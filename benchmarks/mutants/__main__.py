"""Applies every seeded fault in a scratch copy and tells, by system, which were noticed.

    python -m benchmarks.mutants [--only hetsev,inss] [--match TEXT] [--jobs 2] [--json FILE] [--again FILE]

A run of tests is a fork of a process that has loaded what the product needs of others, so that a mutant costs what its
tests do. Its tests run in the order of its entry up to the first red one; each must pass without a fault, too. A mutant
that makes a test run for longer than the limit is noticed. Ends with status 1 where a fault stays unnoticed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from benchmarks.mutants.listing import Seeded, seeded

ROOT = Path(__file__).resolve().parents[2]
LOADED = (
    "pytest", "hypothesis", "numpy", "scipy.optimize", "scipy.sparse", "scipy.stats", "pydantic", "yaml", "pyarrow",
    "ortools.sat.python.cp_model", "highspy", "pulp", "typer", "rich.table", "anyio.pytest_plugin",
)  # fmt: skip
HOUSE = ("app", "agents", "solvers", "lab", "tests", "benchmarks")
LIMIT_S = 900.0
NOTICED, MISSED, BROKEN = "noticed", "MISSED", "BROKEN"


def main() -> int:
    reader = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description="Who notices a seeded fault.")
    reader.add_argument("--only", default="", help="systems, with commas between them")
    reader.add_argument("--match", default="", help="mutants whose words or file hold this")
    reader.add_argument(
        "--again", type=Path, action="append", default=[], help="those that this --json tells of as not noticed"
    )
    reader.add_argument("--jobs", type=int, default=2)
    reader.add_argument("--json", type=Path)
    asked = reader.parse_args()
    systems = [name for name in asked.only.split(",") if name]
    missed = {
        (row["file"], row["what"])
        for path in asked.again
        for row in json.loads(path.read_text(encoding="utf-8"))
        if row["came"] != NOTICED
    }
    chosen = [
        each
        for each in seeded()
        if (not asked.again or (each.file, each.what) in missed)
        and (not systems or each.system in systems)
        and asked.match in f"{each.what} {each.file}"
    ]
    if not chosen:
        reader.error("no mutant is called so")
    for name in LOADED:
        importlib.import_module(name)
    answers = judged(chosen, asked.jobs)
    print(table(chosen, answers))
    if asked.json is not None:
        rows = [{**asdict(each), "came": answer} for each, answer in zip(chosen, answers, strict=True)]
        asked.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return int(any(answer != NOTICED for answer in answers))


def judged(chosen: Sequence[Seeded], jobs: int) -> list[str]:
    """What came of each, in so many processes with a copy of their own; told as it comes."""
    answers, workers = [MISSED] * len(chosen), min(jobs, len(chosen))
    near, far = os.pipe()
    for worker in range(workers):
        if not os.fork():
            os.close(near)
            with os.fdopen(far, "w", buffering=1) as out, scratch() as folder:
                for number, answer, took_s in _answers(folder, chosen, range(worker, len(chosen), jobs)):
                    # Lines are shorter than what a pipe takes at once.
                    out.write(f"{number} {answer} {took_s:.1f}\n")
            os._exit(0)
    os.close(far)
    with os.fdopen(near) as told:
        for line in told:
            at, said, spent_s = line.split()
            answers[int(at)] = said
            each = chosen[int(at)]
            print(f"{said:8} {spent_s:>6} s  {each.system}: {each.what}", file=sys.stderr, flush=True)
    for _ in range(workers):
        os.wait()
    return answers


def _answers(folder: Path, chosen: Sequence[Seeded], numbers: Sequence[int]) -> Iterator[tuple[int, str, float]]:
    sound: dict[str, bool] = {}
    for number in numbers:
        begun_s = _spent_s()
        answer = _answer(folder, chosen[number], number, sound)
        yield number, answer, _spent_s() - begun_s


def _answer(folder: Path, each: Seeded, number: int, sound: dict[str, bool]) -> str:
    """One test after the other in the order of its entry, each tried without the fault before it is first believed."""
    for test in each.tests:
        if test not in sound:
            sound[test] = passes(folder, [test])
        if not sound[test]:
            return BROKEN
        if noticed(folder, each, number, test):
            return NOTICED
    return MISSED


def noticed(folder: Path, mutant: Seeded, number: int, test: str) -> bool:
    """Apply, run, and put back."""
    path = folder / mutant.file
    source, when = path.read_text(encoding="utf-8"), path.stat().st_mtime
    try:
        path.write_text(mutant.applied(source), encoding="utf-8")
        # Compiled modules are told apart by the second and the size of their source.
        os.utime(path, (when + 10.0 + number, when + 10.0 + number))
        return not passes(folder, [test])
    finally:
        path.write_text(source, encoding="utf-8")
        os.utime(path, (when, when))


def passes(folder: Path, tests: Sequence[str]) -> bool:
    """Whether the tests pass in the copy, within the limit."""
    child = os.fork()
    if not child:
        os.setsid()
        _run(folder, tests)
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def _run(folder: Path, tests: Sequence[str]) -> None:
    """The life of a child: the copy's modules in place of ours."""
    os.chdir(folder)
    # Compiled once for all of the copy's runs, whatever the caller's environment says of compiled files.
    sys.pycache_prefix, sys.dont_write_bytecode = str(folder / "compiled"), False
    own = str(ROOT)
    sys.path[:] = [str(folder), *(each for each in sys.path if each not in ("", own))]
    for name in [each for each in sys.modules if each.partition(".")[0] in HOUSE]:
        del sys.modules[name]
    said = os.open(folder / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    status = 1
    try:
        import pytest
        from hypothesis import Phase, settings

        # What the tests' own profile builds on: the first example that fails is enough, no smaller one is looked for.
        settings.register_profile("first red", phases=(Phase.explicit, Phase.generate))
        settings.load_profile("first red")
        known = "ignore::pytest.PytestAssertRewriteWarning"
        status = int(pytest.main(["-x", "-q", "-W", known, "-p", "no:cacheprovider", *tests]))
    except Exception:  # noqa: BLE001 - whatever it is, the child ends here
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _spent_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def scratch() -> Iterator[Path]:
    """A copy of what git tracks, and of the compiled parts."""
    listed = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, check=True, capture_output=True).stdout.decode().split("\0")
    built = (str(path.relative_to(ROOT)) for path in (ROOT / "solvers").rglob("*.so"))
    with tempfile.TemporaryDirectory(prefix="mutants-") as made:
        folder = Path(made)
        for name in {*filter(None, names), *built}:
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        yield folder


def table(chosen: Sequence[Seeded], answers: Sequence[str]) -> str:
    """By system, and whatever was not noticed."""
    lines = [f"{'system':10} {'mutants':>8} {'noticed':>8} {'missed':>7}"]
    for system in [*sorted({each.system for each in chosen}), "all"]:
        came = [answer for each, answer in zip(chosen, answers, strict=True) if system in (each.system, "all")]
        got = came.count(NOTICED)
        lines.append(f"{system:10} {len(came):8} {got:8} {len(came) - got:7}   {100 * got / len(came):.1f} %")
    lines += [
        f"{answer}: {each.system}: {each.what} ({each.file})"
        for each, answer in zip(chosen, answers, strict=True)
        if answer != NOTICED
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
