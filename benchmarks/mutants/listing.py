"""The list of mutants: one text of a module in place of another, and which tests or claims should turn red."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

FOLDER = Path(__file__).with_name("seeded")
CLAIM = "tests/claims/test_catalogue.py::test_a_quick_claim_comes_out_as_it_did[{}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeded:
    """One mutant. `catch`: files of tests, tests in them, or quick claims by number (`AC-HET-01`)."""

    system: str
    what: str
    file: str
    old: str
    new: str
    catch: tuple[str, ...]

    def applied(self, source: str) -> str:
        """The module's text with the fault in it. Raises ValueError unless its place is there exactly once."""
        if source.count(self.old) != 1 or self.old == self.new:
            raise ValueError(f"{self.system}, {self.what}: {self.file} has {source.count(self.old)} places for it")
        return source.replace(self.old, self.new)

    @property
    def tests(self) -> tuple[str, ...]:
        """What pytest is given."""
        return tuple(CLAIM.format(each) if each.startswith("AC-") else each for each in self.catch)


def seeded(folder: Path = FOLDER) -> tuple[Seeded, ...]:
    """All mutants, by system. In a file, `file` and `catch` hold for the mutants below them."""
    found = []
    for path in sorted(folder.glob("*.yaml")):
        for group in yaml.safe_load(path.read_text(encoding="utf-8")):
            for each in group["mutants"]:
                catch = tuple(each.get("catch", group["catch"]))
                found.append(
                    Seeded(
                        system=path.stem,
                        what=each["what"],
                        file=group["file"],
                        old=each["old"],
                        new=each["new"],
                        catch=catch,
                    )
                )
    return tuple(found)
