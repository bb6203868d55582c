"""Somebody at the console: a page of a real browser, and everything that went wrong in it.

Looks and types as people do. It refuses to know how the pages are made: what it measures holds for any page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, Request, Response, expect

SIGN_IN = "Sign in"
SIGN_OUT = "Sign out"

# Text that is hard to read: its contrast with what it stands on, by WCAG 2 (4.5 is level AA).
_PALE = """(least) => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const under = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const found = parts(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const pale = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const element = text.parentElement;
    if (!text.data.trim() || !element.checkVisibility() || element.closest("svg, script, noscript")) continue;
    const pair = [light(parts(getComputedStyle(element).color)), light(under(element))].sort((a, b) => b - a);
    const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (contrast < least) pale.push(`${text.data.trim()}: ${contrast.toFixed(2)}`);
  }
  return pale;
}"""

# What reaches beyond the right edge, but for the inside of panels that people can scroll; the page itself first.
_WIDE = """() => {
  const page = document.documentElement, wide = page.scrollWidth > innerWidth ? [`page ${page.scrollWidth}`] : [];
  for (const element of document.body.querySelectorAll("*")) {
    const scrolled = element.parentElement.closest("[tabindex='0']");
    if (!scrolled && element.getBoundingClientRect().right > innerWidth + 0.5) {
      wide.push(`${element.tagName} ${element.className} ${element.textContent.trim().slice(0, 40)}`);
    }
  }
  return wide;
}"""

# What scrolls inside the page although the keyboard cannot get there.
_UNREACHABLE = """() => [...document.body.querySelectorAll("*")].filter((element) =>
  ["auto", "scroll"].includes(getComputedStyle(element).overflowX) && element.scrollWidth > element.clientWidth
  && (element.tabIndex < 0 || !element.getAttribute("aria-label"))).map((element) => element.className)"""

# Digits of the summary that lead nowhere: to no page, or to a place that is not on this one. "5 min" and "24 h" are of
# the question, not of its answer.
_UNEXPLAINED = """() => {
  const lost = [];
  const leads = ({ hash, pathname }) => !hash || pathname !== location.pathname || document.querySelector(hash);
  for (const strip of document.querySelectorAll(".number")) {
    const texts = document.createTreeWalker(strip, NodeFilter.SHOW_TEXT);
    for (let text = texts.nextNode(); text; text = texts.nextNode()) {
      const link = text.parentElement.closest("a[href]"), said = text.data.replace(/\\b(5 min|last 24 h|p99)\\b/, "");
      if (/\\d/.test(said) && !(link && leads(link))) lost.push(text.data.trim());
    }
  }
  return lost;
}"""

# Words as programs write them, outside of what is code or the name of a row.
_CODED = """() => {
  const found = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const named = text.parentElement.closest("code, pre, .mono, script, option, tr[id] > td:first-child");
    if (!named) found.push(...(text.data.match(/\\b(?!x86_64)[a-z0-9]+(_[a-z0-9]+)+\\b/g) || []));
  }
  return found;
}"""

_FOCUS = """() => {
  const at = document.activeElement, style = getComputedStyle(at);
  const ring = style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth);
  const name = at.getAttribute("aria-label") || (at.labels?.length ? at.labels[0].textContent : at.textContent);
  return [name.trim(), at.matches(":focus-visible") ? ring : 0];
}"""


class Visitor:
    """One browser window with its own cookies; `wrong` tells what no visit may bring about."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.wrong: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.wrong.append(f"script: {error}"))
        page.on("request", self._asked)
        page.on("requestfailed", self._failed)
        page.on("response", self._answered)

    def open(self, path: str = "/") -> None:
        """Type an address."""
        self.page.goto(f"{self.address}{path}")

    def drop_folded(self) -> None:
        """Take away what nobody sees before it is unfolded: no rule judges it, but each walks through all of it."""
        folded = "details:not([open]) > :not(summary)"
        self.page.locator(folded).evaluate_all("(all) => all.forEach((part) => part.remove())")

    def sign_in(self, token: str) -> None:
        """Fill in the form and press Enter."""
        self.open()
        self.type_token(token)
        expect(self.page.get_by_role("button", name=SIGN_OUT)).to_be_visible()
        self.page.wait_for_load_state()

    def type_token(self, token: str) -> None:
        """Fill in the form that is open and press Enter."""
        self.page.get_by_label("Token").fill(token)
        self.page.keyboard.press("Enter")

    def inside(self) -> bool:
        """Whether the fleet is on the page, and not the form."""
        outside = self.page.get_by_role("button", name=SIGN_IN).is_visible()
        inside = self.page.get_by_role("button", name=SIGN_OUT).is_visible()
        assert inside is not outside
        return inside

    def link(self) -> Any:
        """What the page says of its own freshness."""
        return expect(self.page.get_by_role("status"))

    def tab(self) -> str:
        """Press Tab: the name of what has the focus now, of which everybody must see that it has."""
        self.page.keyboard.press("Tab")
        return self.focused()

    def focused(self) -> str:
        """The name of what has the focus; its ring must be seen."""
        name, ring_px = self.page.evaluate(_FOCUS)
        assert ring_px >= 2, f"no focus ring around {name!r}"
        return str(name)

    def pale(self, least: float = 4.5) -> list[str]:
        """Texts with less contrast than this."""
        return list(self.page.evaluate(_PALE, least))

    def wide(self) -> list[str]:
        """What reaches beyond the right edge of the window, once it is drawn."""
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return list(self.page.evaluate(_WIDE))

    def unreachable(self) -> list[str]:
        """What can be scrolled by a mouse alone, or has no name."""
        return list(self.page.evaluate(_UNREACHABLE))

    def unexplained(self) -> list[str]:
        """Numbers of the summary that no link explains."""
        return list(self.page.evaluate(_UNEXPLAINED))

    def coded(self) -> list[str]:
        """Words of programs that are shown to people."""
        return list(self.page.evaluate(_CODED))

    def axe(self, source: Path, *rules: str) -> list[str]:
        """What axe finds that keeps somebody out, by all of its rules unless some are named."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(source.read_text(encoding="utf-8"))
        asked = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
        found = self.page.evaluate("(asked) => axe.run(asked).then((found) => found.violations)", asked)
        return [f"{item['id']}: {node['html'][:160]}" for item in found for node in item["nodes"]]

    def numbers(self) -> dict[str, str]:
        """The summary: every number by what stands below it."""
        found = self.page.locator(".number").all_inner_texts()
        return {words: number for number, words in (text.split("\n", 1) for text in found)}

    def row(self, first: str) -> list[str]:
        """The cells of the table row that begins with this."""
        cell = self.page.get_by_role("cell", name=first, exact=True).first
        return [text.strip() for text in cell.locator("xpath=..").get_by_role("cell").all_inner_texts()]

    @contextmanager
    def expecting(self, *patterns: str) -> Iterator[None]:
        """Each of these goes wrong in the block, and nothing else."""
        before, self.wrong = self.wrong, []
        yield
        unmatched = [line for line in self.wrong if not any(re.search(pattern, line) for pattern in patterns)]
        missing = [pattern for pattern in patterns if not any(re.search(pattern, line) for line in self.wrong)]
        assert not unmatched + missing, f"went wrong: {unmatched}; did not: {missing}"
        self.wrong = before

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.wrong.append(f"console: {message.text}")

    def _asked(self, request: Request) -> None:
        if not request.url.startswith((f"{self.address}/", "data:")):
            self.wrong.append(f"foreign: {request.url}")

    def _failed(self, request: Request) -> None:
        # A page that is left breaks off what it was about to get, its stream above all.
        if request.failure != "net::ERR_ABORTED":
            self.wrong.append(f"failed: {request.url} {request.failure}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400:
            self.wrong.append(f"status: {response.status} {response.url}")


class Entrance:
    """Opens windows of one browser to one console, and looks after all of them."""

    def __init__(self, browser: Browser, address: str, known: dict[str, BrowserContext] | None = None) -> None:
        self._browser = browser
        self._address = address
        self._visitors: list[Visitor] = []
        self._known = {} if known is None else known
        """Who is signed in already, by token: to begin anew costs as much as ten pages."""
        self._seen: list[Visitor] = []

    def window(self, *, width: int = 1280, **terms: Any) -> Visitor:
        """A new window that shares nothing with others."""
        context = self._browser.new_context(viewport={"width": width, "height": 900}, **terms)
        context.set_default_timeout(60_000)
        visitor = Visitor(context.new_page(), self._address)
        self._visitors.append(visitor)
        return visitor

    def signed_in(self, token: str, *, width: int = 1280) -> Visitor:
        """A new page of a window that others use, too: one page for all of them hung in some orders of tests."""
        if token in self._known:
            visitor = Visitor(self._known[token].new_page(), self._address)
        else:
            visitor = self.window()
            self._visitors.pop()
            visitor.sign_in(token)
            self._known[token] = visitor.page.context
        visitor.page.set_viewport_size({"width": width, "height": 900})
        self._seen.append(visitor)
        return visitor

    def close(self) -> None:
        """Close every window, or its page. Raises AssertionError with what went wrong in any of them."""
        wrong = []
        for visitor in self._seen:
            visitor.page.close()
            wrong += visitor.wrong
        for visitor in self._visitors:
            wrong += visitor.wrong
            try:
                visitor.page.context.close()
            except Error as error:
                wrong.append(f"window: {error}")
        assert not wrong, "\n".join(wrong)
