"""The documentation as a site, built once as `make docs` builds it: whole, and asking nobody else for anything."""

from __future__ import annotations

import logging
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

ROOT = Path(__file__).resolve().parents[2]
POLICY = "default-src 'self';"
FOREIGN = re.compile(r"^(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
IN_STYLE = re.compile(r"(?:url\(|@import)\s*[\"']?((?:[a-z]+:)?//[^\"')\s]+)", re.IGNORECASE)


class Asked(HTMLParser):
    """What a browser fetches for a page, and whether the page forbids it to fetch from elsewhere before it does."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.foreign: list[str] = []
        self.inside: list[str] = []
        self.forbids = False
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in attrs}
        if tag == "meta" and told.get("http-equiv") == "Content-Security-Policy":
            self.forbids = told["content"].startswith(POLICY) and not (self.foreign or self.inside)
        if tag == "a":
            return
        for name in ("src", "href", "srcset", "data", "poster"):
            if name in told and not told[name].startswith("data:"):
                (self.foreign if FOREIGN.match(told[name]) else self.inside).append(told[name])
        self.foreign += IN_STYLE.findall(told.get("style", ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(built)))
    return built


def test_no_page_asks_another_host_for_anything(site: Path) -> None:
    asked = {page: Asked(page) for page in site.rglob("*.html")}
    assert len(asked) > 70
    assert {str(page): found.foreign for page, found in asked.items() if found.foreign or not found.forbids} == {}
    # What they do ask for is there.
    for page, found in asked.items():
        missing = [
            path for path in found.inside if not (page.parent / path.partition("#")[0].partition("?")[0]).exists()
        ]
        assert page.name == "404.html" or missing == [], page
    styles = {style: IN_STYLE.findall(style.read_text(encoding="utf-8")) for style in site.rglob("*.css")}
    assert styles
    assert not any(styles.values())


def test_what_pages_and_the_api_say_is_in_it(site: Path) -> None:
    operations = (site / "api" / "operations.html").read_text(encoding="utf-8")
    assert 'id="put_service"' in operations
    assert 'href="schemas.html#service"' in operations.lower()
    assert (site / "files" / "examples" / "pools.yaml").read_bytes() == (ROOT / "examples" / "pools.yaml").read_bytes()
    start = (site / "index.html").read_text(encoding="utf-8")
    for place in ("tutorial.html", "reference/hardware.html", "decisions/index.html", "reference/upgrade.html"):
        assert f'href="{place}"' in start
    listed = (site / "decisions" / "index.html").read_text(encoding="utf-8")
    assert all(f'href="{page.stem}.html"' in listed for page in (ROOT / "docs" / "decisions").glob("[0-9]*.md"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[there](gone.md)", "'gone.md', but the target is not found"),
        ("[there](guide.md#nowhere)", "guide.md#nowhere', but there is no such anchor"),
        ("", r"not included in the \"nav\""),
    ],
)
def test_what_leads_nowhere_or_is_reached_from_nowhere_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str, said: str
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "guide.md").write_text(f"# Guide\n\n{text}\n", encoding="utf-8")
    (docs / "lost.md").write_text("# Lost\n", encoding="utf-8")
    nav = ["guide.md", *(["lost.md"] if text else [])]
    config = load_config(
        str(ROOT / "mkdocs.yml"), docs_dir=str(docs), site_dir=str(tmp_path / "site"), nav=nav, hooks=[], plugins=[]
    )
    with caplog.at_level(logging.WARNING), pytest.raises(Abort):
        build(config)
    assert re.search(said, caplog.text)
