"""What the site has beside the pages of `docs`: pages that stand elsewhere in the checkout, the API's reference, the
list of decisions, and the files that pages link to.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from benchmarks.site import api

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?P<words>!?\[(?:[^\[\]]|\[[^\[\]]*\])*\])\((?P<path>(?![a-z]+:|#)[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "deploy/systemd/README.md": "reference/systemd.md",
    "benchmarks/results/predictors.md": "lab/predictors.md",
}
"""Pages that stand outside of `docs`, and their places in the site; other files keep theirs below `files`."""


class TwoSpaces(Extension):
    """Lists are indented by two, as those have it who read the pages in the checkout."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802  (Markdown's own name)
        md.tab_length = 2


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Every decision has its place below their list."""
    extensions: list[Any] = config.markdown_extensions
    extensions.append(TwoSpaces())
    assert config.nav is not None
    below = ["decisions/index.md", *(f"decisions/{page.name}" for page in _decisions())]
    config.nav.append({"Decisions": below})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Bring in what is not in `docs`."""
    made = {**api.pages(ROOT / "openapi" / "openapi.json"), "decisions/index.md": "\n".join(_listed())}
    for place, text in made.items():
        files.append(File.generated(config, place, content=text))
    for path, place in ELSEWHERE.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    linked = {target for page in files.documentation_pages() for target in _targets(page) if target.is_file()}
    for target in sorted(linked):
        place = _place(target)
        if place is not None and files.get_file_from_path(place) is None:
            files.append(File.generated(config, place, abs_src_path=str(target)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Links lead to where their targets are in the site; a folder has no page, so that its name alone stays."""

    def led(match: re.Match[str]) -> str:
        target = (_source(page.file).parent / match["path"]).resolve()
        place = _place(target) if target.exists() else match["path"]
        if place is None:
            return match["words"][1:-1]
        here = os.path.relpath(place, Path(page.file.src_uri).parent) if target.exists() else place
        return f"{match['words']}({here}{match['anchor'] or ''})"

    return LINK.sub(led, markdown)


def _source(file: File) -> Path:
    """Where the text of a page stands in the checkout, for links begin there."""
    elsewhere = {place: path for path, place in ELSEWHERE.items()}
    return ROOT / elsewhere[file.src_uri] if file.src_uri in elsewhere else DOCS / file.src_uri


def _targets(file: File) -> Iterator[Path]:
    for match in LINK.finditer(file.content_string):
        yield (_source(file).parent / match["path"]).resolve()


def _place(target: Path) -> str | None:
    """Where something of the checkout is in the site."""
    path = target.relative_to(ROOT).as_posix()
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    if target == DOCS / "decisions":
        return "decisions/index.md"
    if target.is_dir():
        return None
    return target.relative_to(DOCS).as_posix() if target.is_relative_to(DOCS) else f"files/{path}"


def _decisions() -> list[Path]:
    return sorted((DOCS / "decisions").glob("[0-9]*.md"))


def _listed() -> Iterator[str]:
    yield "# Decisions\n\nWhat was chosen, why, and what was not; one page each.\n"
    for page in _decisions():
        title = page.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        yield f"* [{title}]({page.name})"
