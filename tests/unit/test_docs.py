"""Pages lead somewhere: every relative link meets a file and, where it names one, a heading of it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from solvers.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("app", "solvers", "agents", "lab", "headroom_client")
MODULES = [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]
PAGES = sorted((*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(text: str) -> set[str]:
    """How GitHub names the headings of a page."""
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text))
    return {word.replace(" ", "-") for word in words}


def broken(page: Path) -> Iterator[str]:
    """Links of a page that lead nowhere."""
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        missing = not target.exists()
        if missing or (anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8"))):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert list(broken(page)) == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# One `two`\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text("[a](there.md) [b](there.md#one-two) [c](gone.md) [d](there.md#three) [e](#four)", encoding="utf-8")
    assert list(broken(page)) == ["gone.md", "there.md#three", "#four"]


def test_no_page_installs_what_belongs_to_somebody_else() -> None:
    """`headroom` and `headroom-ai` on PyPI are other people's programs."""
    pages = [*PAGES, *(ROOT / "deploy").rglob("*.md"), *MODULES]
    foreign = re.compile(r"pip install[^`\n]*[ \"']headroom(-ai)?(\[|[\"'`\s]|$)", re.MULTILINE)
    assert [str(page) for page in pages if foreign.search(page.read_text(encoding="utf-8"))] == []
    assert foreign.search('pip install "headroom[rl]"')
    assert foreign.search("/opt/headroom/bin/pip install headroom\n")


def test_what_is_built_has_a_name_of_its_own() -> None:
    """Which nobody needs to look a version up by: it stands in the code, and the wheel takes it from there."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert (about["project"]["name"], about["project"]["scripts"]["headroom"]) == ("headroom-gpu", "app.cli:main")
    assert f'VERSION = "{VERSION}"\n' in (ROOT / about["tool"]["hatch"]["version"]["path"]).read_text(encoding="utf-8")
    beside = [
        tomllib.loads((ROOT / each / "pyproject.toml").read_text())["project"] for each in ("headroom_client", "lab")
    ]
    assert [(each["name"], each["version"]) for each in beside] == [
        ("headroom-gpu-client", VERSION),
        ("headroom-lab", VERSION),
    ]
    assert [str(file) for file in MODULES if 'version("headroom' in file.read_text(encoding="utf-8")] == []


def test_decisions_have_each_a_number() -> None:
    numbers = [page.name[:4] for page in sorted((ROOT / "docs" / "decisions").glob("*.md"))]
    assert numbers == [f"{number:04}" for number in range(1, len(numbers) + 1)]
