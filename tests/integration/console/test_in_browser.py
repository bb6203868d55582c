"""The console as its users meet it: Debian's Chromium in front of a real API process.

Windows collect what goes wrong in them (errors and warnings of the browser, refused scripts and styles, failed and
foreign requests, answers above 400), and every test ends by asking that there was nothing, but for what it expected.
"""

from __future__ import annotations

import gzip
import json
import re
from html.parser import HTMLParser
from itertools import islice, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Page, Request, Route, expect

from app.api.console import catalogue, machines, money, overview, plans, reference, workloads
from app.api.console.door import COOKIE, PLACES
from app.store.tokens import Role
from headroom_client import Client
from solvers.domain.device import PowerScope
from tests import builders
from tests.integration.api.world import CLUSTER, DEVICE, NODE, OWN
from tests.integration.console.conftest import LONG, WORK, Served
from tests.integration.console.visitor import SIGN_IN, SIGN_OUT, Entrance, Visitor
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

WIDTHS = (1440, 1024, 390)
LOOKS = [("light", WIDTHS[0]), ("dark", WIDTHS[2])]
"""On the desk and on the phone, and one of them dark: what one clicks is the same between them and in both colours, and
those and all widths are looked at on every page by `test_every_page_can_be_read_by_everybody_and_everywhere`.
"""
STREAM = "/console/events"
ORGANISATION = "Sign in with your organisation"
# Tables that scroll sideways, and times that are broken into lines.
CRAMPED = """[[".panel", (at) => at.scrollWidth > at.clientWidth], ["td time", (at) => at.getClientRects().length > 1]]
  .flatMap(([what, is]) => [...document.querySelectorAll(what)].filter(is).map((at) => at.ariaLabel || at.dateTime))"""
GROUND = "getComputedStyle(document.body).backgroundColor"
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
STATIC = Path(overview.__file__).parent / "static"
PAGES = [
    "/", "/services", f"/services/{OWN}/vision", "/plans", "/fleet", f"/nodes/{NODE}", f"/gpus/{DEVICE}", "/what-if",
    "/costs", "/work", f"/work/{OWN}/train", "/models", "/policies", "/audit", "/settings", "/docs",
]  # fmt: skip
REFERENCE = PAGES[-1]
"""Twelve thousand elements, nearly all of them folded."""


@pytest.fixture(autouse=True)
def fresh(served: Served) -> None:
    """What was reported was so just now, however long the tests take."""
    tables = ("node_samples", "rate_samples")
    served.house.change(";".join(f"UPDATE {table} SET received_at = now()" for table in tables))


@pytest.fixture
def viewer(entrance: Entrance, served: Served) -> Visitor:
    """Somebody who looks at the whole cluster."""
    return entrance.signed_in(served.tokens["viewer"])


@pytest.fixture(params=LOOKS, ids=lambda look: f"{look[0]}-{look[1]}")
def operator(request: pytest.FixtureRequest, entrance: Entrance, served: Served) -> Visitor:
    """Somebody who decides, on every screen."""
    scheme, width = request.param
    visitor = entrance.signed_in(served.tokens["operator"], width=width)
    visitor.page.emulate_media(color_scheme=scheme)
    return visitor


# -- the door ---------------------------------------------------------------------------------------------------------


def test_a_token_opens_the_console_until_one_signs_out(entrance: Entrance, served: Served) -> None:
    visitor = entrance.window()
    visitor.open("/services?q=vision")
    assert not visitor.inside()
    visitor.page.get_by_label("Token").fill(f"  {served.tokens['viewer']} ")
    visitor.page.get_by_role("button", name=SIGN_IN).click()
    # It leads to where one wanted to go.
    expect(visitor.page.get_by_role("searchbox", name="Find")).to_have_value("vision")
    visitor.link().to_have_text("live")
    (cookie,) = visitor.page.context.cookies()
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == (COOKIE, True, "Strict")
    assert served.tokens["viewer"] not in cookie["value"]
    assert visitor.page.evaluate("document.cookie") == ""
    visitor.page.reload()
    assert visitor.inside()
    visitor.page.get_by_role("button", name=SIGN_OUT).click()
    expect(visitor.page.get_by_role("button", name=SIGN_IN)).to_be_visible()
    assert visitor.page.context.cookies() == []
    for again in (visitor.page.reload, visitor.page.go_back, visitor.open):
        again()
        assert not visitor.inside()
    # Whoever kept the cookie has nothing.
    visitor.page.context.add_cookies([{"name": COOKIE, "value": cookie["value"], "url": visitor.address}])
    visitor.open()
    assert not visitor.inside()


@pytest.mark.parametrize(("scheme", "width"), LOOKS)
def test_whoever_signs_in_goes_everywhere_by_clicks(
    entrance: Entrance, served: Served, scheme: Any, width: int
) -> None:
    visitor = entrance.window(color_scheme=scheme, width=width)
    visitor.open()
    visitor.page.get_by_label("Token").fill(served.tokens["operator"])
    visitor.page.get_by_role("button", name=SIGN_IN).click()
    heading = visitor.page.get_by_role("heading", level=1)
    expect(heading).to_contain_text("Overview")
    menu = "Menu" if width == WIDTHS[-1] else "Pages"
    links = visitor.page.locator(f"nav[aria-label='{menu}'] a")
    paths = links.evaluate_all("(all) => all.map((link) => link.getAttribute('href'))")
    assert paths == [place.path for place in PLACES]
    for path in paths:
        if menu == "Menu":
            visitor.page.get_by_text(menu, exact=True).click()
        visitor.page.locator(f"nav[aria-label='{menu}'] a[href='{path}']").click()
        expect(visitor.page).to_have_url(f"{visitor.address}{path}")
        expect(heading).to_be_visible()
    visitor.page.get_by_role("button", name=SIGN_OUT).click()
    expect(visitor.page.get_by_label("Token")).to_be_visible()


def test_a_link_of_the_command_line_opens_it_once(entrance: Entrance, served: Served) -> None:
    asked = ("open", "--print", "--server", served.house.address, "--token", served.tokens["viewer"])
    link = served.house.run(*asked).stdout.strip()
    visitor = entrance.window()
    visitor.page.goto(link)
    visitor.link().to_have_text("live")
    assert visitor.inside()
    other = entrance.window()
    with other.expecting("status: 401 .*/session/link", "console: .* 401"):
        other.page.goto(link)
        expect(other.page.get_by_role("alert")).to_contain_text("ask for a new one")
    assert not other.inside()


def test_a_token_that_is_no_good_is_refused_in_the_form(entrance: Entrance, served: Served) -> None:
    refused = {"hr_" + "x" * 43: "unknown, expired or revoked", served.tokens["join"]: "may not use the console"}
    visitor = entrance.window()
    visitor.open()
    for token, reason in refused.items():
        with visitor.expecting("status: 401 .*/session", "console: Failed to load resource.* 401"):
            visitor.type_token(token)
            expect(visitor.page.get_by_role("alert")).to_contain_text(reason)
            expect(visitor.page.get_by_label("Token")).to_have_value("")
            assert not visitor.inside()
            assert visitor.page.context.cookies() == []
        assert visitor.focused() == "Token"
    visitor.type_token(served.tokens["viewer"])
    visitor.link().to_have_text("live")


def test_whoever_is_signed_out_elsewhere_is_shown_out(entrance: Entrance, served: Served) -> None:
    token = served.house.token(Role.VIEWER, project=OWN)
    here, there = entrance.window(), entrance.window()
    for visitor in (here, there):
        visitor.sign_in(token)
        visitor.link().to_have_text("live")
    there.open("/settings")
    rows = there.page.get_by_role("row").filter(has_text="Mozilla")
    expect(rows).to_have_count(2)
    rows.filter(has_not_text="this one").get_by_role("button", name="End").click()
    # Its stream ends, it asks again, and is answered that it is refused.
    with here.expecting(f"status: 401 .*{STREAM}", "console: .* 401"):
        expect(here.page.get_by_role("button", name=SIGN_IN)).to_be_visible()
    assert there.inside()


def test_who_was_signed_out_while_deciding_comes_back_to_it(entrance: Entrance, served: Served) -> None:
    # With scripts the page itself finds out within seconds.
    visitor, token = entrance.window(java_script_enabled=False), served.house.token(Role.OPERATOR)
    visitor.sign_in(token)
    visitor.open(f"/nodes/{NODE}")
    (cookie,) = visitor.page.context.cookies()
    visitor.page.context.add_cookies([cookie | {"value": f"{cookie['value'][:-4]}over"}])
    visitor.page.get_by_text("Drain it").click()
    with visitor.expecting("status: 401 .*/drain", "status: 401 .*/session", "console: .* 401"):
        visitor.page.get_by_role("button", name=f"Yes, drain {NODE}").click()
        expect(visitor.page.get_by_text("You are signed out, and nothing was changed: sign in again.")).to_be_visible()
        visitor.type_token("hr_" + "x" * 43)
        expect(visitor.page.get_by_role("alert")).to_be_visible()
        visitor.type_token(token)
        expect(visitor.page.get_by_role("heading", level=1)).to_contain_text(NODE)
    expect(visitor.page.get_by_text("Drain it")).to_be_visible()


def test_an_account_of_the_organisation_opens_the_console(entrance: Entrance, served: Served) -> None:
    visitor = entrance.window()
    visitor.open("/services?q=vision")
    with visitor.expecting(f"foreign: {served.provider.issuer}/authorize"):
        visitor.page.get_by_role("link", name=ORGANISATION).press("Enter")
        visitor.page.get_by_role("link", name="Go on").click()
        # It leads to where one wanted to go, although the way came from another site.
        expect(visitor.page.get_by_role("searchbox", name="Find")).to_have_value("vision")
    visitor.link().to_have_text("live")
    own = visitor.page.get_by_role("link", name="ada@example.org by sign-in")
    expect(own).to_have_attribute("title", "Signed in as ada@example.org by sign-in, operator")
    own.click()
    expect(visitor.page.get_by_text("ada@example.org by sign-in, operator")).to_be_visible()
    (cookie,) = visitor.page.context.cookies()
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == (COOKIE, True, "Strict")
    mine = "SELECT count(*) FROM tokens WHERE created_by = 'oidc:u-1' AND revoked_at IS NULL"
    assert served.house.one(mine) == 1
    visitor.page.get_by_role("button", name=SIGN_OUT).click()
    expect(visitor.page.get_by_role("link", name=ORGANISATION)).to_be_visible()
    # What was made for this sign-in is over with it.
    assert (visitor.page.context.cookies(), served.house.one(mine)) == ([], 0)


def test_an_account_that_is_not_let_in_is_told_why_on_a_page(
    entrance: Entrance, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    visitor = entrance.window(width=390)
    visitor.open()

    def refused(words: str, status: int, way: str = "Go on", **lies: object) -> None:
        monkeypatch.setattr(served.provider, "claims", {**served.provider.claims, **lies})
        with visitor.expecting(
            f"foreign: {served.provider.issuer}/authorize", f"status: {status} .*/back", f"console: .* {status}"
        ):
            visitor.page.get_by_role("link", name=ORGANISATION).click()
            visitor.page.get_by_role("link", name=way).click()
            told(words)
        monkeypatch.undo()

    def told(words: str) -> None:
        expect(visitor.page.get_by_role("alert")).to_contain_text(words)
        assert not visitor.inside()
        assert COOKIE not in {cookie["name"] for cookie in visitor.page.context.cookies()}

    refused("the identity provider did not sign you in", 401, "Cancel")
    refused("it answers another attempt; try again", 401, nonce="another")
    refused("nothing in your groups lets you look here; ask who runs this", 403, groups=["strangers"])
    assert (visitor.axe(AXE), visitor.wide(), visitor.pale()) == ([], [], [])
    # The address of an attempt that is over, and one that somebody else began.
    for state in (parse_qs(urlsplit(visitor.page.url).query)["state"][0], "somebody-elses"):
        with visitor.expecting("status: 401 .*/back", "console: .* 401"):
            answer = visitor.page.goto(f"{visitor.address}/session/oidc/back?code=x&state={state}")
            told("this browser began no such attempt, or it is over; try again")
            assert answer is not None
            assert "unsafe" not in answer.headers["content-security-policy"]
    # The way in stays open.
    with visitor.expecting(f"foreign: {served.provider.issuer}/authorize"):
        visitor.page.get_by_role("link", name=ORGANISATION).click()
        visitor.page.get_by_role("link", name="Go on").click()
        visitor.link().to_have_text("live")
    assert visitor.inside()


@pytest.mark.parametrize("path", ["/session", "/session/end", "/plans/resume"])
def test_a_form_on_another_site_does_nothing(entrance: Entrance, served: Served, path: str) -> None:
    visitor = entrance.signed_in(served.tokens["operator"])
    held = visitor.page.context.cookies()
    action = f'method="post" action="{visitor.address}{path}"'
    form = f'<form {action}><input name="token" value="x"><button>Win</button></form>'
    visitor.page.route("http://elsewhere.test/", lambda route: route.fulfill(content_type="text/html", body=form))
    with visitor.expecting("foreign: http://elsewhere.test/", f"status: 403 .*{path}", "console: .* 403"):
        visitor.page.goto("http://elsewhere.test/")
        visitor.page.get_by_role("button", name="Win").click()
        expect(visitor.page.get_by_text("this form came from another site")).to_be_visible()
    assert visitor.page.context.cookies() == held
    visitor.open()
    assert visitor.inside()


# -- the pages --------------------------------------------------------------------------------------------------------


class Links(HTMLParser):
    """Where the links of a page lead that are in it without scripts, but for files."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        if tag == "a" and ".csv" not in (told.get("href") or ".csv"):
            self.found.add(told["href"] or "")


def test_every_page_is_reached_by_clicking(entrance: Entrance, served: Served) -> None:
    visitor = entrance.signed_in(served.tokens["operator"])
    cookies = {each["name"]: each["value"] for each in visitor.page.context.cookies()}
    seen: set[str] = set()
    waiting = ["/"]
    with httpx.Client(base_url=visitor.address, cookies=cookies, timeout=60.0, follow_redirects=True) as client:
        while waiting:
            path = waiting.pop()
            seen.add(path)
            answer = client.get(path, headers={"Accept": "text/html"})
            assert (path, answer.status_code) == (path, 200)
            if not answer.headers["content-type"].startswith("text/html"):
                continue
            links = {urljoin(str(answer.url), link) for link in Links(answer.text).found}
            waiting += {urlsplit(link).path for link in links if link.startswith(visitor.address)} - seen - {*waiting}
    templates = {
        route.path
        for module in (catalogue, machines, money, overview, plans, reference, workloads)
        for route in module.router.routes
        if "GET" in getattr(route, "methods", ()) and not route.path.endswith(".csv")
    }
    parts = [path.strip("/").split("/") for path in seen]
    for template in templates:
        wanted = template.strip("/").split("/")
        assert any(
            len(part) == len(wanted) and all(b.startswith("{") or a == b for a, b in zip(part, wanted, strict=True))
            for part in parts
        ), template


def test_every_page_can_be_read_by_everybody_and_everywhere(entrance: Entrance, served: Served) -> None:
    """In the dark its colours, on the desk and on the phone: all else is as in the light."""
    visitor = entrance.window(color_scheme="dark", width=WIDTHS[0])
    visitor.open()
    assert visitor.axe(AXE, "color-contrast") == []
    visitor.page.emulate_media(color_scheme="light")
    assert visitor.axe(AXE) == []
    visitor.sign_in(served.tokens["operator"])
    grounds = set()
    for path in (*PAGES, undecided(served)):
        visitor.open(path)
        expect(visitor.page.get_by_role("heading", level=1)).to_be_visible()
        if path == REFERENCE:
            visitor.drop_folded()
        else:
            assert (path, visitor.unexplained(), visitor.coded()) == (path, [], [])
        for width in WIDTHS:
            visitor.page.set_viewport_size({"width": width, "height": 900})
            assert (path, width, visitor.wide(), visitor.pale(), visitor.unreachable()) == (path, width, [], [], [])
            # On the desk every table is seen whole, on the phone the audit.
            cramped = visitor.page.evaluate(CRAMPED) if width != WIDTHS[-1] or path == "/audit" else []
            assert (path, width, cramped) == (path, width, [])
            # Between phone and desk nothing is there that is on neither.
            assert (path, width, visitor.axe(AXE) if width != WIDTHS[1] else []) == (path, width, [])
            grounds.add(visitor.page.evaluate(GROUND))
            visitor.page.emulate_media(color_scheme="dark")
            assert (path, width, visitor.pale() if width != WIDTHS[1] else []) == (path, width, [])
            assert (path, width, visitor.axe(AXE, "color-contrast") if width == WIDTHS[0] else []) == (path, width, [])
            grounds.add(visitor.page.evaluate(GROUND))
            visitor.page.emulate_media(color_scheme="light")
    assert len(grounds) == 2


def undecided(served: Served) -> str:
    """The page of a plan that waits for a decision."""
    with served.house.client(served.tokens["operator"]) as client:
        return f"/plans/{client.plan({'lane': 'act'})['id']}"


def test_the_reference_opens_where_a_link_leads(entrance: Entrance) -> None:
    """Whoever is not signed in may read it, also on a phone."""
    visitor = entrance.window(width=WIDTHS[-1])
    visitor.open("/docs#put_service")
    operation = visitor.page.locator("#put_service")
    expect(operation).to_be_in_viewport()
    assert visitor.page.locator("#get_service").is_hidden()
    operation.get_by_role("link", name="Service").first.click()
    expect(visitor.page.locator("#Service").get_by_text("rate_rps_declared")).to_be_visible()
    assert (visitor.wide(), visitor.pale(), visitor.unreachable()) == ([], [], [])


def test_a_name_as_long_as_names_may_be_has_room_on_a_phone(entrance: Entrance, served: Served) -> None:
    visitor = entrance.signed_in(served.tokens["viewer"], width=WIDTHS[-1])
    visitor.open(f"/services/{OWN}/{LONG}")
    expect(visitor.page.get_by_text(f"headroom logs {OWN}/{LONG}")).to_be_visible()
    assert visitor.wide() == []


def test_what_is_not_there_is_a_page(viewer: Visitor) -> None:
    for path in ("/nowhere", f"/services/{OWN}/nobody", "/gpus/GPU-none", f"/plans/sha256:{'0' * 64}"):
        with viewer.expecting(f"status: 404 .*{path}", "console: .* 404"):
            viewer.open(path)
            expect(viewer.page.get_by_role("alert")).to_be_visible()
        assert viewer.inside()


def test_the_numbers_are_on_the_pages_without_scripts_too(entrance: Entrance, served: Served) -> None:
    visitor = entrance.window(java_script_enabled=False)
    visitor.sign_in(served.tokens["viewer"])
    numbers = visitor.numbers()
    assert numbers["requests within SLO, 5 min"] == "98.0 %"
    assert numbers["GPU power, no cap"].endswith(" W")
    visitor.link().to_have_text("reload for newer numbers")
    visitor.open("/services")
    assert visitor.row(f"{OWN}/vision")[1:7] == ["p99 ≤ 60 ms", "98.0 %", "200.0 %", "42.5", "30.0", "1 / 1"]
    assert visitor.row(LONG if "/" in LONG else f"{OWN}/{LONG}")[6] == "none planned"
    visitor.open("/fleet")
    assert visitor.page.get_by_role("img", name="75 percent of the SMs held").is_visible()
    # Nothing is there that only scripts could bring to life.
    expect(visitor.page.locator("#heat-says")).to_have_text("The map needs scripts; what is below has the same.")
    for dead in ("#heat", "#colour"):
        expect(visitor.page.locator(dead)).to_be_hidden()
    visitor.open(f"/services/{OWN}/vision")
    assert visitor.unexplained() == []


def test_the_map_names_the_gpu_that_one_points_at(viewer: Visitor) -> None:
    viewer.open("/fleet")
    canvas = viewer.page.locator("#heat")
    expect(canvas).to_have_attribute("height", re.compile("[1-9]"))
    canvas.hover(position={"x": 6, "y": 20})
    expect(viewer.page.locator("#heat-says")).to_contain_text(f"{NODE} #0 t4: 75 % held")
    # Of a GPU whose memory nothing tells it is not said that none is used.
    unknown = {"topic": "devices", "data": {"set": {DEVICE: {"memory_mib_used": None}}}}
    viewer.page.evaluate("told => document.dispatchEvent(new CustomEvent('headroom', {detail: told}))", unknown)
    canvas.hover(position={"x": 7, "y": 20})
    expect(viewer.page.locator("#heat-says")).to_contain_text(", – used,")
    canvas.click(position={"x": 6, "y": 20})
    expect(viewer.page.get_by_role("heading", level=1)).to_contain_text(f"{NODE} #0")


def test_the_map_of_a_project_opens_nothing_that_it_may_not_see(entrance: Entrance, served: Served) -> None:
    visitor = entrance.signed_in(served.tokens["own viewer"])
    visitor.open("/fleet")
    canvas = visitor.page.locator("#heat")
    expect(visitor.page.locator("#heat-says")).to_have_text("Point at a GPU.")
    canvas.click(position={"x": 6, "y": 20})
    expect(visitor.page.locator("#heat-says")).to_contain_text(f"{NODE} #0 t4")
    assert canvas.evaluate("(map) => map.style.cursor") == "default"
    # What others hold beside it is not seen, and so not called free.
    expect(visitor.page.get_by_text("free, or of other projects", exact=True)).to_be_visible()


def test_the_keyboard_is_enough(entrance: Entrance, served: Served) -> None:
    visitor = entrance.window(width=390)
    visitor.open()
    assert visitor.focused() == "Token"
    assert visitor.tab() == SIGN_IN
    visitor.page.keyboard.press("Shift+Tab")
    visitor.type_token(served.tokens["viewer"])
    visitor.link().to_have_text("live")
    while visitor.tab() != "Menu":
        pass
    visitor.page.keyboard.press("Enter")
    while visitor.tab() != "Services":
        pass
    visitor.page.keyboard.press("Enter")
    expect(visitor.page.get_by_role("heading", name="Services")).to_be_visible()
    visitor.page.get_by_role("searchbox", name="Find").press_sequentially("speech")
    expect(visitor.page.get_by_role("link", name="other/speech")).to_be_visible()
    expect(visitor.page.get_by_role("link", name=f"{OWN}/vision", exact=True)).to_have_count(0)
    assert visitor.page.evaluate("document.activeElement.id") == "find"
    visitor.page.go_back()
    expect(visitor.page.get_by_role("link", name=f"{OWN}/vision", exact=True)).to_be_visible()


def test_light_and_dark_are_chosen_and_remembered(viewer: Visitor) -> None:
    found = set()
    viewer.open()
    for name in ("dark", "light"):
        viewer.page.get_by_role("button", name=name, exact=True).click()
        expect(viewer.page.get_by_role("button", name=name, exact=True)).to_have_attribute("aria-pressed", "true")
        viewer.open("/services")
        found.add(viewer.page.evaluate(GROUND))
    assert len(found) == 2


def test_scripts_are_small() -> None:
    scripts = [path.read_bytes() for path in STATIC.rglob("*.js")]
    assert len(scripts) >= 5
    assert sum(len(gzip.compress(script, 9)) for script in scripts) <= 150_000


def test_pictures_for_the_documentation(
    browser: Browser, served: Served, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Taken of what the tests have, or by `make pictures` of a fleet that lives, into the folder that pages show."""
    folder, home = (request.config.getoption(name) for name in ("--pictures", "--pictures-of"))
    told = json.loads((home / "client.json").read_text()) if home else {}
    server, token = told.get("server", served.house.address), told.get("token", served.tokens["operator"])
    entrance = Entrance(browser, server)
    visitor = entrance.window(color_scheme="light", width=1200)
    visitor.sign_in(token)
    visitor.open("/services")
    first = visitor.page.locator("tbody a[href^='/services/']").first.get_attribute("href")
    service = first if home else f"/services/{OWN}/vision"
    with Client(server, token) as client:
        plans = [client.plan({"lane": "act"})["id"], *(plan["id"] for plan in islice(client.items("plans"), 20))]
        # One that can be approved and would change something tells more.
        differs = (plan for plan in plans if (diff := client.diff_plan(plan).body)["workloads"] and diff["fits"])
        plan = next(differs, plans[0])
    shown = {"overview": "/", "service": service, "plan": f"/plans/{plan}", "fleet": "/fleet", "cost": "/costs"}
    for name, path in shown.items():
        visitor.open(str(path))
        expect(visitor.page.get_by_role("heading", level=1)).to_be_visible()
        if name in ("overview", "service"):
            visitor.link().to_have_text("live")
        if name == "service" and home:
            chart = visitor.page.locator(".chart").filter(has_text="Requests per second").locator(".uplot")
            expect(chart).to_have_attribute("data-last", re.compile(r"\d"))
        visitor.wide()
        picture = visitor.page.screenshot(path=(folder or tmp_path) / f"{name}.png", animations="disabled")
        # Small enough to be kept beside the text, and not an empty page.
        assert 10_000 < len(picture) <= 150_000, name
    entrance.close()


# -- what people decide -----------------------------------------------------------------------------------------------


def test_what_workers_write_is_followed_and_disturbs_nobody(entrance: Entrance, served: Served) -> None:
    visitor = entrance.signed_in(served.tokens["viewer"], width=390)
    visitor.open(f"/services/{OWN}/vision")
    served.written.lines = [f"line {number} <b>of many</b>" for number in range(300)]
    lines = visitor.page.get_by_role("region", name="Lines of its workers")
    expect(lines).to_be_hidden()
    visitor.page.get_by_text("Follow it here").focus()
    visitor.page.keyboard.press("Enter")
    # The last ones, with their markup as text, and the newest in sight.
    expect(lines).to_contain_text("#0 line 299 <b>of many</b>")
    expect(lines).not_to_contain_text("line 99 ")
    assert lines.evaluate("(at) => at.scrollTop + at.clientHeight >= at.scrollHeight - 4")
    assert (visitor.wide(), visitor.pale(), visitor.unreachable(), visitor.axe(AXE)) == ([], [], [], [])
    lines.locator("span", has_text="line 150 ").select_text()
    lines.evaluate("(at) => { at.scrollTop = 40; }")
    kept = "[getSelection().toString().trim(), document.querySelector('#log pre').scrollTop]"
    before = visitor.page.evaluate(kept)
    served.written.lines.append("one more")
    # The page itself is asked for anew meanwhile.
    with visitor.page.expect_response(visitor.page.url):
        add_service(served, "later")
    expect(lines).to_contain_text("one more")
    assert visitor.page.evaluate(kept) == before == ["#0 line 150 <b>of many</b>", 40]
    visitor.page.locator("#log select").select_option(f"{OWN}/vision#0")
    expect(lines).to_contain_text("one more")
    expect(lines).not_to_contain_text("#0")
    # Nobody is asked when nobody reads.
    visitor.page.get_by_text("Follow it here").press("Enter")
    served.house.await_true("nobody reads", lambda: served.house.one("SELECT count(*) FROM log_requests") == 0)


def test_what_jobs_and_tasks_write_is_followed_on_their_pages(viewer: Visitor, served: Served) -> None:
    for work in WORK:
        served.written.lines = [f"{work} begins"]
        viewer.open(f"/work/{work}")
        viewer.page.get_by_text("Follow it here").click()
        lines = viewer.page.get_by_role("region", name="Lines of its workers")
        expect(lines).to_contain_text(f"#0 {work} begins")
        served.written.lines.append("goes on")
        expect(lines).to_contain_text("#0 goes on")


def test_what_workers_wrote_is_read_without_scripts(entrance: Entrance, served: Served) -> None:
    visitor = entrance.window(java_script_enabled=False)
    visitor.sign_in(served.tokens["viewer"])
    served.written.lines = ["started", "\N{SNOWMAN} <b>"]
    visitor.open(f"/services/{OWN}/vision")
    visitor.page.get_by_role("link", name="The last lines as text").click()
    shown = [f"{OWN}/vision#0: {line}" for line in served.written.lines]
    assert visitor.page.inner_text("body").splitlines() == shown
    with visitor.expecting("status: 404 .*/logs/", "console: .* 404"):
        visitor.open(f"/logs/{OWN}/{LONG}")
        expect(visitor.page.get_by_role("alert")).to_contain_text("no node holds a replica")


def test_a_plan_that_waits_is_rejected_by_clicks(operator: Visitor, served: Served) -> None:
    plan, page = served.waits(), operator.page
    operator.open("/plans")
    row = page.get_by_role("region", name="Waits for approval").get_by_role("row").filter(has_text=plan[7:19])
    heads = row.locator("td").evaluate_all("(all) => all.map((cell) => getComputedStyle(cell, '::before').content)")
    # Where the row is broken into lines, each value says what it is.
    assert ["made" in heads[1], "until" in heads[3]] == [page.viewport_size == {"width": 390, "height": 900}] * 2
    row.get_by_role("link").first.click()
    expect(page.get_by_text("Workloads, before and after")).to_be_visible()
    page.get_by_label("Why not").fill("too dear")
    page.get_by_role("button", name="Reject").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("rejected")


def test_plans_are_approved_taken_back_and_planning_let_go_by_clicks(operator: Visitor, served: Served) -> None:
    page, plan = operator.page, served.waits()
    heading = page.get_by_role("heading", level=1)
    operator.open(f"/plans/{plan}")
    page.get_by_label("Comment").fill("as agreed")
    page.get_by_role("button", name="Approve").click()
    expect(heading).to_contain_text("promoted, generation")
    stands = int(heading.inner_text().rpartition(" ")[2])
    operator.open("/plans")
    expect(heading).to_contain_text(f"generation {stands} stands")
    expect(page.get_by_label("To generation")).to_have_value(str(stands - 1))
    page.get_by_label("Why").fill("was better")
    page.get_by_role("button", name="Roll back").click()
    expect(heading).to_contain_text(f"generation {stands + 1}")
    operator.open("/plans")
    held = page.get_by_text("Nobody but people change the plan until")
    expect(held).to_contain_text("operator")
    page.get_by_role("button", name="Let the planner act again").click()
    expect(held).to_have_count(0)


def test_what_was_decided_is_in_the_audit(entrance: Entrance, served: Served) -> None:
    visitor, plan = entrance.signed_in(served.tokens["operator"]), served.waits()
    with served.house.client(served.tokens["operator"]) as client:
        client.reject_plan(plan, "too dear")
    visitor.open("/audit")
    row = visitor.page.get_by_role("row").filter(has_text=plan[7:19])
    expect(row).to_contain_text("too dear")
    # As long as people read it, and whole where one points at it.
    expect(row.get_by_role("link")).to_have_text(f"plans/{plan[7:19]}")
    expect(row.get_by_role("link")).to_have_attribute("title", f"plans/{plan}")


def test_what_came_between_looking_and_approving_is_said_and_nothing_done(entrance: Entrance, served: Served) -> None:
    visitor = entrance.signed_in(served.tokens["operator"], width=390)
    with served.house.client(served.tokens["operator"]) as client:
        plan, generation = client.plan({"lane": "act"})["id"], client.fleet()["generation"]
        visitor.open(f"/plans/{plan}")
        approve = visitor.page.get_by_role("button", name="Approve")
        expect(approve).to_be_enabled()
        client.drain(NODE)
        try:
            with visitor.expecting("status: 409 .*/apply", "console: .* 409"):
                approve.click()
                fault = f"the plan no longer fits: device unschedulable ({NODE} GPU 0)"
                expect(visitor.page.get_by_role("alert")).to_contain_text(fault)
            assert (visitor.wide(), visitor.pale(), visitor.axe(AXE)) == ([], [], [])
            visitor.page.get_by_role("link", name="Back to where you were").click()
            expect(approve).to_be_disabled()
            expect(visitor.page.get_by_text("It cannot be approved now")).to_be_visible()
            assert client.fleet()["generation"] == generation
            visitor.open(f"/nodes/{NODE}")
            expect(visitor.page.get_by_text("It is being emptied")).to_be_visible()
            assert visitor.axe(AXE) == []
        finally:
            client.uncordon(NODE)


def test_a_question_has_its_answers_side_by_side_and_an_address(operator: Visitor) -> None:
    visitor = operator
    visitor.open("/what-if")
    visitor.page.get_by_label("GPUs of option 1").fill("1")
    visitor.page.get_by_label("type of option 1").select_option("t4")
    visitor.page.get_by_label("load of option 2").fill("2")
    visitor.page.get_by_role("button", name="Plan them").press("Enter")
    answers = visitor.page.get_by_role("region", name="Answers")
    expect(answers.get_by_role("columnheader")).to_have_text(["", "as it is", "option 1: 1 × t4", "option 2, load × 2"])
    # Whoever asked by the keyboard goes on from there to the answers.
    assert (visitor.focused(), visitor.tab()) == ("Plan them", "Answers")
    assert visitor.row("GPUs in use, of all")[2].endswith("/ 2")
    assert visitor.row("worth of jobs undone, $/h")[1:] == ["0.02"] * 3
    assert "gpus1=1" in visitor.page.url


def test_a_question_that_asks_nothing_says_what_is_missing(operator: Visitor) -> None:
    visitor = operator
    visitor.open("/what-if")
    ask = visitor.page.get_by_role("button", name="Plan them")
    ask.click()
    expect(visitor.page.get_by_role("alert")).to_contain_text("Nothing is asked yet.")
    visitor.page.get_by_label("type of option 2").select_option("t4")
    ask.click()
    field = visitor.page.get_by_label("GPUs of option 2")
    expect(field).to_have_accessible_description("say how many of this type to add")
    expect(visitor.page.get_by_role("alert")).to_have_count(1)
    visitor.page.mouse.move(0, 0)
    assert (visitor.wide(), visitor.pale(), visitor.axe(AXE)) == ([], [], [])


def test_a_bill_by_a_label_keeps_what_else_was_chosen(operator: Visitor) -> None:
    operator.open("/costs?by=node&label=team")
    expect(operator.page.locator("#items")).to_have_text("By team")
    expect(operator.page.locator("#by")).to_have_value("node")


def test_the_bill_is_taken_along_as_files(operator: Visitor) -> None:
    operator.open("/costs?by=model")
    for name, header in (("CSV", "model,usd,"), ("FOCUS CSV", "BilledCost,")):
        with operator.page.expect_download() as told:
            operator.page.get_by_role("link", name=name, exact=True).click()
        assert told.value.suggested_filename.startswith("headroom-")
        assert Path(told.value.path()).read_text().startswith(header)


@pytest.mark.parametrize("path", ["/costs", "/costs?by=day", "/models", "/services", "/what-if"])
def test_who_was_signed_out_meanwhile_is_asked_to_sign_in_by_every_form(
    entrance: Entrance, served: Served, path: str
) -> None:
    visitor = entrance.signed_in(served.tokens["operator"])
    held = visitor.page.context.cookies()
    visitor.open(path)
    visitor.page.context.add_cookies([{"name": COOKIE, "value": "over", "url": visitor.address}])
    try:
        if path == "/what-if":
            visitor.page.get_by_label("load of option 1").fill("2")
            visitor.page.get_by_role("button", name="Plan them").click()
        elif path == "/costs?by=day":
            visitor.page.get_by_role("link", name="CSV", exact=True).click()
        elif path == "/costs":
            visitor.page.locator("#by").select_option("model")
        else:
            visitor.page.get_by_role("searchbox", name="Find").press_sequentially("vis")
        expect(visitor.page.get_by_text("You are signed out: sign in again.")).to_be_visible()
        assert "?" in visitor.page.url
    finally:
        visitor.page.context.add_cookies(held)
    # A stream that asks anew meanwhile is refused as well.
    visitor.wrong = [line for line in visitor.wrong if not re.search(f"status: 401 .*{STREAM}|console: .* 401", line)]


def test_a_form_that_is_refused_or_not_answered_says_so(viewer: Visitor) -> None:
    viewer.open("/costs")
    viewer.page.route(f"{viewer.address}/costs?**", lambda route: route.abort("connectionrefused"))
    with viewer.expecting("failed: .*/costs", "console: .*"):
        viewer.page.locator("#by").select_option("model")
        viewer.link().to_have_text("nobody answered, nothing changed: try again")
    viewer.page.unroute_all()
    viewer.page.locator("#by").select_option("node")
    viewer.link().to_have_text("")
    expect(viewer.page.locator("#items")).to_have_text("By node")
    with viewer.expecting("status: 422 .*/costs", "console: .*"):
        viewer.page.get_by_label("Label").fill("no name!")
        viewer.page.keyboard.press("Tab")
        expect(viewer.page.get_by_role("heading", level=1)).to_have_text("A field is invalid")


def test_a_node_is_drained_and_put_back_with_a_second_thought(operator: Visitor) -> None:
    page = operator.page
    operator.open(f"/nodes/{NODE}")
    sure = page.get_by_role("button", name=f"Yes, drain {NODE}")
    expect(sure).to_be_hidden()
    page.get_by_text("Drain it").click()
    page.get_by_label("Why").fill("a new fan")
    sure.click()
    expect(page.get_by_text("It is being emptied")).to_be_visible()
    expect(page.get_by_text("a new fan").first).to_be_visible()
    assert (operator.wide(), operator.pale(), operator.unreachable()) == ([], [], [])
    # By the keyboard as well.
    page.get_by_text("Put it back into use").press("Enter")
    page.get_by_role("button", name=f"Yes, uncordon {NODE}").press("Enter")
    expect(page.get_by_text("Drain it")).to_be_visible()


def add_service(served: Served, name: str) -> None:
    spec = f"jsonb_set(spec, '{{name}}', '\"{name}\"')"
    source = f"SELECT project, '{name}', {spec} FROM services WHERE name = 'vision'"
    served.house.change(f"INSERT INTO services (project, name, spec) {source}")


# -- the stream -------------------------------------------------------------------------------------------------------


def test_changes_come_by_themselves_and_disturb_nobody(entrance: Entrance, served: Served) -> None:
    visitor = entrance.signed_in(served.tokens["viewer"], width=390)
    visitor.open("/services")
    visitor.link().to_have_text("live")
    panel = visitor.page.get_by_role("region", name="Services")
    panel.focus()
    panel.evaluate("(panel) => { panel.scrollLeft = 60; }")
    visitor.page.get_by_role("columnheader", name="within SLO").select_text()
    selected = visitor.page.evaluate("getSelection().toString()")
    rate = visitor.page.locator(f'[data-live="services/{OWN}/vision/rate_rps"]')
    before = rate.inner_text()
    served.house.change("UPDATE rate_samples SET arrived = arrived * 2 WHERE service = 'demo/vision'")
    expect(rate).not_to_have_text(before)
    # A service that came is a row that came.
    add_service(served, "new")
    expect(visitor.page.get_by_role("link", name=f"{OWN}/new")).to_be_visible()
    kept = "[getSelection().toString(), document.activeElement.ariaLabel, document.activeElement.scrollLeft]"
    assert visitor.page.evaluate(kept) == [selected, "Services", 60]
    # What has the focus stays the same, whatever comes before it and wherever it goes.
    visitor.open("/services?sort=-rate_rps")
    visitor.link().to_have_text("live")
    link = visitor.page.get_by_role("link", name=f"{OWN}/vision")
    link.focus()
    served.house.change("UPDATE rate_samples SET service = 'demo/new' WHERE service = 'demo/vision'")
    add_service(served, "newer")
    expect(visitor.page.get_by_role("link", name=f"{OWN}/newer")).to_be_visible()
    expect(visitor.page.locator("tbody tr").first).to_contain_text(f"{OWN}/new")
    expect(link).to_be_focused()
    served.house.change("UPDATE rate_samples SET service = 'demo/vision' WHERE service = 'demo/new'")


SHARE = """
UPDATE sample_shapes SET replica_share_pct_sm = ARRAY(
    SELECT CASE name WHEN 'demo/vision#0' THEN share {} ELSE share END
    FROM unnest(replica_name, replica_share_pct_sm) WITH ORDINALITY AS each (name, share, place) ORDER BY place)
"""


def test_bars_follow_who_holds_what(viewer: Visitor, served: Served) -> None:
    viewer.open("/fleet")
    expect(viewer.page.locator("#link")).to_have_text("live")
    expect(viewer.page.get_by_role("img", name="75 percent of the SMs held")).to_be_visible()
    served.house.change(SHARE.format("- 20"))
    try:
        expect(viewer.page.get_by_role("img", name="55 percent of the SMs held")).to_be_visible()
    finally:
        served.house.change(SHARE.format("+ 20"))


STREAM_KEPT = "window.EventSource = class extends EventSource { constructor(at) { super(at); window.stream = this; } };"
TELL = """([topic, set]) => stream.dispatchEvent(
    new MessageEvent(topic, { data: JSON.stringify({ set, gone: [] }) }))"""


def test_a_number_beside_a_bar_changes_with_it(viewer: Visitor) -> None:
    viewer.page.add_init_script(STREAM_KEPT)
    viewer.open("/fleet")
    expect(viewer.page.locator("#link")).to_have_text("live")
    number = viewer.page.locator(f'[data-live="devices/{DEVICE}/share_pct_sm_held"]')
    expect(number).to_have_text("75")
    with viewer.page.expect_request(lambda request: request.url.endswith("/fleet"), timeout=15_000):
        # What the stream tells first, the page that draws the bar says when it is fetched.
        viewer.page.evaluate(TELL, ["devices", {DEVICE: {"share_pct_sm_held": 41.0}}])
        assert number.inner_text() == "75"


def test_a_part_is_told_with_what_it_is_a_part_of(viewer: Visitor, served: Served) -> None:
    viewer.page.add_init_script(STREAM_KEPT)
    viewer.open("/work")
    viewer.link().to_have_text("live")
    row = viewer.page.get_by_role("row").filter(has=viewer.page.get_by_role("link", name=WORK[0], exact=True))
    viewer.page.evaluate(TELL, ["work", {WORK[0]: {"done": builders.job().iterations_total / 4}}])
    expect(row.get_by_role("cell", name="25.0 %")).to_be_visible()
    viewer.page.evaluate(TELL, ["work", {WORK[0]: {"done": builders.job().iterations_total * 2}}])
    expect(row.get_by_role("cell", name="100.0 %")).to_be_visible()
    with viewer.page.expect_request(lambda request: request.url.endswith("/work"), timeout=15_000):
        viewer.page.evaluate(TELL, ["work", {WORK[0]: {"evictions": 904}}])
    cap = {"scope": PowerScope.CLUSTER.value, "subject": CLUSTER, "limit_w": 1000.0}
    with served.house.client(served.tokens["operator"]) as client:
        client.put("power-cap", cap)
        try:
            viewer.open("/")
            viewer.link().to_have_text("live")
            viewer.page.evaluate(TELL, ["fleet", {"fleet": {"power_w": 1250.0}}])
            expect(viewer.page.get_by_role("link", name="125.0 % of the cap of 1 000 W")).to_be_visible()
        finally:
            client.delete("power-cap", "cluster", CLUSTER)


def test_what_is_used_of_an_error_budget_follows_and_who_breaks_it_is_asked_for(viewer: Visitor) -> None:
    viewer.page.add_init_script(STREAM_KEPT)
    viewer.open("/services")
    viewer.link().to_have_text("live")
    row = viewer.page.get_by_role("row").filter(has=viewer.page.get_by_role("link", name=f"{OWN}/vision", exact=True))
    with viewer.page.expect_request(lambda request: request.url.endswith("/services"), timeout=15_000):
        viewer.page.evaluate(TELL, ["services", {f"{OWN}/vision": {"slo_attainment": 0.999}}])
        expect(row.get_by_role("cell", name="10.0 %", exact=True)).to_be_visible(timeout=900)


def test_the_first_page_of_a_project_follows_its_work_and_its_sums(entrance: Entrance, served: Served) -> None:
    visitor = entrance.signed_in(served.tokens["own viewer"])
    visitor.page.add_init_script(STREAM_KEPT)
    visitor.page.clock.install()
    visitor.open()
    visitor.link().to_have_text("live")

    def is_page(request: Request) -> bool:
        return request.resource_type == "fetch" and urlsplit(request.url).path == "/"

    with visitor.page.expect_request(is_page, timeout=15_000):
        visitor.page.evaluate(TELL, ["work", {WORK[0]: {"evictions": 905}}])
    with visitor.page.expect_request(is_page, timeout=15_000):
        visitor.page.clock.fast_forward(80_000)


def test_shares_that_overlap_are_drawn_whole_and_said(viewer: Visitor, served: Served) -> None:
    served.house.change(SHARE.format("+ 90"))
    try:
        viewer.open(f"/gpus/{DEVICE}")
        viewer.link().to_have_text("live")
        shown = viewer.page.get_by_role("img", name="165 percent of the SMs held")
        expect(shown).to_be_visible()
        expect(viewer.page.get_by_text("165 % together: shares overlap while processes hand over")).to_be_visible()
        ends = shown.locator("rect[width]:not(.texture)").evaluate_all(
            "(all) => all.slice(1).map((at) => at.x.baseVal.value + at.width.baseVal.value)"
        )
        assert max(ends) <= 100
    finally:
        served.house.change(SHARE.format("- 90"))


def test_news_of_many_numbers_costs_one_layout(viewer: Visitor, served: Served) -> None:
    viewer.open("/services")
    viewer.link().to_have_text("live")
    # Layouts that the page's scripts force while they tell what one piece of news changed.
    viewer.page.evaluate(
        """() => {
          const told = Object.getOwnPropertyDescriptor(HTMLElement.prototype, "offsetWidth");
          window.forced = 0, window.heard = 0;
          document.addEventListener("headroom", () => { window.heard += 1; });
          const counted = { get() { window.forced += 1; return told.get.call(this); } };
          Object.defineProperty(HTMLElement.prototype, "offsetWidth", counted);
        }"""
    )
    rates = [
        viewer.page.locator(f'[data-live="services/{name}/rate_rps"]') for name in (f"{OWN}/vision", "other/speech")
    ]
    before = [rate.inner_text() for rate in rates]
    served.house.change("UPDATE rate_samples SET arrived = arrived * 3")
    for rate, was in zip(rates, before, strict=True):
        expect(rate).not_to_have_text(was)
    forced, heard = viewer.page.evaluate("[window.forced, window.heard]")
    assert 1 <= forced <= heard


def test_tabs_that_nobody_sees_keep_no_connection(viewer: Visitor, served: Served) -> None:
    hide = """(hidden) => {
      Object.defineProperty(document, "hidden", { get: () => hidden, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    viewer.open("/services")
    viewer.link().to_have_text("live")
    address, others = viewer.page.url, list[Page]()
    try:
        for _ in range(7):
            viewer.page.evaluate(hide, True) if not others else others[-1].evaluate(hide, True)
            others.append(viewer.page.context.new_page())
            others[-1].goto(address, timeout=15_000)
            expect(others[-1].locator("#link")).to_have_text("live", timeout=15_000)
    finally:
        for page in others:
            page.close()
    rate = viewer.page.locator(f'[data-live="services/{OWN}/vision/rate_rps"]')
    before = rate.inner_text()
    served.house.change("UPDATE rate_samples SET arrived = arrived * 2")
    viewer.page.evaluate(hide, False)
    expect(rate).not_to_have_text(before)


def test_a_rate_that_changes_is_on_the_chart(viewer: Visitor, served: Served) -> None:
    viewer.open(f"/services/{OWN}/vision")
    viewer.link().to_have_text("live")
    chart = viewer.page.locator(".chart").filter(has_text="Requests per second").locator(".uplot")
    rate = viewer.page.locator(f'[data-live="services/{OWN}/vision/rate_rps"]')
    before = rate.inner_text()
    served.house.change("UPDATE rate_samples SET arrived = arrived + 30 WHERE service = 'demo/vision'")
    expect(rate).not_to_have_text(before)
    assert f"{float(chart.get_attribute('data-last') or 0):.1f}" == rate.inner_text()
    assert viewer.page.locator(".chart canvas").count() == 7
    # The same as a table, the newest first.
    figure = viewer.page.locator(".chart").filter(has_text="Requests per second")
    figure.get_by_text("As a table").click()
    expect(figure.get_by_role("columnheader")).to_have_text(["UTC", "offered", "served", "dropped"])
    # It is written anew each minute, under whoever reads it.
    figure.get_by_role("region").focus()
    viewer.page.get_by_label("charts in local time").evaluate("(choice) => choice.click()")
    expect(figure.get_by_role("columnheader").first).to_have_text("local time")
    assert viewer.page.evaluate("document.activeElement.ariaLabel") == "Requests per second"


WRITTEN = """window.written = [];
  const write = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
    if (text.startsWith("generation")) {
      const wide = this.measureText(text).width;
      window.written.push([this.canvas, text, x, x + wide, y, this.canvas.width]);
    }
    return write.call(this, text, x, y, ...rest);
  };"""
LAST_WRITTEN = """() => {
  const first = window.written.findLast(([canvas]) => canvas.isConnected)?.[0], drawn = new Map();
  for (const [canvas, text, ...place] of window.written) if (canvas === first) drawn.set(text, place);
  return [...drawn].map(([text, place]) => [text, ...place]);
}"""


@pytest.mark.parametrize("width", [1280, 800])
def test_plans_that_follow_closely_are_named_legibly(entrance: Entrance, served: Served, width: int) -> None:
    ages_s = (3000, 1500, 130, 100, 70, 40)
    values = ", ".join(
        f"({900 + number}, {899 + number}, now() - interval '{age_s} s')" for number, age_s in enumerate(ages_s)
    )
    elsewhen = "UPDATE target_history SET promoted_at = promoted_at {} interval '1 day' WHERE generation < 900"
    served.house.change(elsewhen.format("-"))
    served.house.change(
        "INSERT INTO target_history (generation, plan_id, parent_generation, promoted_at, promoted_by)"
        " SELECT generation, plan_id, parent, at, 'test' FROM (SELECT plan_id FROM target_history LIMIT 1) AS any_plan,"
        f" (VALUES {values}) AS made (generation, parent, at)"
    )
    try:
        visitor = entrance.signed_in(served.tokens["viewer"], width=width)
        visitor.page.add_init_script(WRITTEN)
        visitor.open(f"/services/{OWN}/vision")
        visitor.link().to_have_text("live")
        # The browser's own waiting asks by `eval`, which the page forbids whenever the first answer is not yet.
        wait_until(lambda: visitor.page.evaluate("window.written.length > 0"), "the chart is drawn")
        visitor.wide()
        drawn = sorted(visitor.page.evaluate(LAST_WRITTEN), key=lambda item: item[1])
    finally:
        served.house.change(f"DELETE FROM target_history WHERE generation >= 900; {elsewhen.format('+')}")
    # The newest, and of the others those with room: nothing lies over another, nor beyond the edge.
    assert [text for text, *_ in drawn][-1] == "generation 905"
    assert "generation 900" in [text for text, *_ in drawn]
    assert len(drawn) < len(ages_s)
    assert all(one[2] < other[1] for one, other in pairwise(drawn))
    assert all(left >= 0 and right <= wide and line > 0 for _, left, right, line, wide in drawn)


def test_a_server_that_went_away_is_waited_for(viewer: Visitor) -> None:
    away = {STREAM: 1, "/": 1}

    def refuse(route: Route) -> None:
        path = urlsplit(route.request.url).path
        if route.request.resource_type == "document" or not away[path]:
            route.continue_()
        else:
            away[path] -= 1
            route.fulfill(status=502)

    viewer.page.route(f"**{STREAM}**", refuse)
    viewer.page.route(f"{viewer.address}/", refuse)
    with viewer.expecting(f"status: 502 .*{STREAM}", "status: 502 .*/$", "console: .* 502"):
        viewer.open()
        viewer.link().to_have_text("connection lost, trying again")
        viewer.link().to_have_text("live")
    viewer.page.unroute_all()
    assert not any(away.values())


def test_what_came_to_stand_while_the_stream_was_broken_is_on_the_page(viewer: Visitor) -> None:
    viewer.page.add_init_script(STREAM_KEPT)
    viewer.open()
    viewer.link().to_have_text("live")
    tell = "(data) => stream.dispatchEvent(new MessageEvent('fleet', { data: JSON.stringify(data) }))"

    def is_page(request: Request) -> bool:
        return request.resource_type == "fetch" and urlsplit(request.url).path == "/"

    # A stream that is opened anew begins with everything.
    whole = [{"whole": True, "set": {"fleet": {"generation": at}}, "gone": []} for at in (904, 905)]
    viewer.page.evaluate(tell, whole[0])
    with viewer.page.expect_request(is_page, timeout=15_000):
        viewer.page.evaluate(tell, whole[1])
