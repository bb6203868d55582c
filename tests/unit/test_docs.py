"""Pages lead somewhere: every relative link meets a file and, where it names one, a heading of it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from solvers.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("app", "solvers", "agents", "lab", "headroom_client")
MODULES = [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]
PAGES = sorted((*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
PRESENT = [page for page in PAGES if page.name != "CHANGELOG.md"]
"""Pages that tell what is, not what was."""
FOLDERS = (*ROOMS, "benchmarks", "deploy", "docs", "examples", "migrations", "openapi", "tests")
FILE = re.compile(
    r"`((?:[\w.{},-]+/)+[\w.{},-]+\.(?:c|cfg|css|csv|h|html|js|json|md|py|sh|sql|toml|ya?ml)"
    rf"|(?:{'|'.join(FOLDERS)})/[a-z_/{{}},-]*[a-z_}}])`"
)
"""Code between backticks that is a file with its folder, or begins as one of ours."""
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


def unfound(text: str, there: Collection[str]) -> Iterator[str]:
    """Files that a text names and that are nowhere, `{a,b}` meaning both; their first folders may be left out."""
    for span in FILE.findall(text):
        before, _, rest = span.partition("{")
        names, _, after = rest.partition("}")
        for path in (f"{before}{name}{after}" for name in names.split(",")):
            is_whole = path.split("/")[0] in FOLDERS
            if path not in there and (is_whole or not any(each.endswith(f"/{path}") for each in there)):
                yield path


@pytest.fixture(scope="module")
def there() -> set[str]:
    """Every file and, without its ending, every module."""
    files = {str(file.relative_to(ROOT)) for folder in FOLDERS for file in (ROOT / folder).rglob("*")}
    return files | {name.removesuffix(".py") for name in files}


@pytest.mark.parametrize("page", PRESENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_pages_name_are_there(page: Path, there: set[str]) -> None:
    assert list(unfound(page.read_text(encoding="utf-8"), there)) == []


def test_a_file_that_is_gone_is_seen() -> None:
    text = "`lab/a.py` `a.py` `world/b.py` `lab/{a,b}.py` `lab/gone.py` `world/gone.py` `lab/{a,gone}.py` `lab/gone`"
    told = list(unfound(text, {"lab/a.py", "lab/a", "lab/b.py", "lab/world/b.py"}))
    assert told == ["lab/gone.py", "world/gone.py", "lab/gone.py", "lab/gone"]


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
