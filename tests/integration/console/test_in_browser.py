"""The console as its users meet it: Debian's Chromium in front of a real API process.

Windows collect what goes wrong in them (errors and warnings of the browser, refused scripts and styles, failed and
foreign requests, answers above 400), and every test ends by asking that there was nothing, but for what it expected.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from fastapi.responses import HTMLResponse
from playwright.sync_api import Route, expect

from app.api.console import overview
from app.store.tokens import Role
from tests.integration.api.world import NODE, OWN
from tests.integration.console.conftest import LONG, Served
from tests.integration.console.visitor import SIGN_IN, SIGN_OUT, Entrance, Visitor

pytestmark = pytest.mark.integration

PHONE_PX = 390
STREAM = "/console/stream"
PANELS = ["Services", "Offline tasks in line", "Training and offline work"]


@pytest.fixture
def viewer(entrance: Entrance, served: Served) -> Visitor:
    """Somebody who looks at the whole cluster."""
    visitor = entrance.window()
    visitor.sign_in(served.tokens["viewer"])
    return visitor


# -- the door ---------------------------------------------------------------------------------------------------------


def test_a_token_opens_the_console_until_one_signs_out(entrance: Entrance, served: Served) -> None:
    visitor = entrance.window()
    visitor.open()
    assert not visitor.inside()
    visitor.page.get_by_label("Token").fill(f"  {served.tokens['viewer']} ")
    visitor.page.get_by_role("button", name=SIGN_IN).click()
    visitor.link().to_have_text("live")
    assert visitor.inside()
    assert visitor.page.evaluate("document.cookie") == ""
    visitor.page.reload()
    assert visitor.inside()
    visitor.page.get_by_role("button", name=SIGN_OUT).click()
    expect(visitor.page.get_by_role("button", name=SIGN_IN)).to_be_visible()
    assert visitor.page.context.cookies() == []
    for again in (visitor.page.reload, visitor.page.go_back, visitor.open):
        again()
        assert not visitor.inside()


def test_a_token_that_is_no_good_is_refused_in_the_form(entrance: Entrance, served: Served) -> None:
    house = served.house
    expired, revoked = house.token(Role.VIEWER, ttl_s=1e-6), house.token(Role.OPERATOR)
    house.change("UPDATE tokens SET revoked_at = now() WHERE role = 'operator' AND name = 'test-operator'")
    refused = {
        "hr_" + "x" * 43: "unknown, expired or revoked",
        expired: "unknown, expired or revoked",
        revoked: "unknown, expired or revoked",
        served.tokens["join"]: "may not use the console",
    }
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


def test_whoever_loses_the_token_is_shown_out(entrance: Entrance, served: Served) -> None:
    visitor = entrance.window()
    visitor.sign_in(served.house.token(Role.VIEWER, project=OWN))
    visitor.link().to_have_text("live")
    served.house.change("UPDATE tokens SET revoked_at = now() WHERE role = 'viewer' AND name = 'test-viewer'")
    expect(visitor.page.get_by_role("button", name=SIGN_IN)).to_be_visible()


@pytest.mark.parametrize("path", ["/session", "/session/end"])
def test_a_form_on_another_site_does_nothing(entrance: Entrance, served: Served, path: str) -> None:
    visitor = entrance.window()
    visitor.sign_in(served.tokens["viewer"])
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


def test_every_page_is_reached_by_clicking(viewer: Visitor) -> None:
    seen: set[str] = set()
    waiting = ["/"]
    while waiting:
        path = waiting.pop()
        seen.add(path)
        viewer.open(path)
        links = viewer.page.get_by_role("link").evaluate_all("(all) => all.map((link) => link.href)")
        waiting += {urlsplit(link).path for link in links if link.startswith(viewer.address)} - seen - {*waiting}
    pages = {route.path for route in overview.router.routes if getattr(route, "response_class", None) is HTMLResponse}
    assert pages == seen


def test_the_numbers_of_the_fleet_are_on_the_page(viewer: Visitor) -> None:
    _check_numbers(viewer)
    viewer.link().to_have_text("live")


def test_without_scripts_the_page_shows_the_same(entrance: Entrance, served: Served) -> None:
    visitor = entrance.window(java_script_enabled=False)
    visitor.sign_in(served.tokens["viewer"])
    _check_numbers(visitor)
    visitor.link().to_have_text("reload for newer numbers")


def _check_numbers(visitor: Visitor) -> None:
    numbers = visitor.numbers()
    assert numbers["requests within SLO, 5 min"] == "98.0 %"
    assert numbers["GPU power"].endswith(" W")
    vision = visitor.row(f"{OWN}/vision")
    assert vision[1:6] == ["p99 ≤ 60 ms", "98.0 %", "42.5", "30.0", "1 / 1"]
    assert visitor.page.get_by_role("img", name="75 percent of the SMs held").is_visible()
    assert visitor.page.get_by_text("the last change is too recent").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_any_light_and_on_a_phone_everything_can_be_read(entrance: Entrance, served: Served, scheme: str) -> None:
    visitor = entrance.window(color_scheme=scheme)
    visitor.open()
    for inside in (False, True):
        if inside:
            visitor.sign_in(served.tokens["viewer"])
            assert visitor.page.get_by_role("cell", name=LONG).count() == 1
        for width in (PHONE_PX, 1280):
            visitor.page.set_viewport_size({"width": width, "height": 900})
            assert (visitor.wide(), visitor.pale(), visitor.unreachable()) == ([], [], [])


def test_the_keyboard_is_enough(entrance: Entrance, served: Served) -> None:
    visitor = entrance.window(width=PHONE_PX)
    visitor.open()
    assert visitor.focused() == "Token"
    assert visitor.tab() == SIGN_IN
    visitor.page.keyboard.press("Shift+Tab")
    visitor.type_token(served.tokens["viewer"])
    visitor.link().to_have_text("live")
    reached = [visitor.tab()]
    while reached[-1] != PANELS[-1]:
        reached.append(visitor.tab())
    assert [name for name in reached if name in (SIGN_OUT, *PANELS)] == [SIGN_OUT, *PANELS]
    visitor.page.get_by_role("button", name=SIGN_OUT).focus()
    visitor.page.keyboard.press("Enter")
    expect(visitor.page.get_by_role("button", name=SIGN_IN)).to_be_visible()


# -- the stream -------------------------------------------------------------------------------------------------------


def test_changes_come_by_themselves_and_disturb_nobody(entrance: Entrance, served: Served) -> None:
    visitor = entrance.window(width=PHONE_PX)
    visitor.sign_in(served.tokens["viewer"])
    visitor.link().to_have_text("live")
    panel = visitor.page.get_by_role("region", name="Services")
    panel.focus()
    panel.evaluate("(panel) => { panel.scrollLeft = 60; }")
    visitor.page.get_by_role("heading", name="Services").select_text()
    served.house.change(f"UPDATE nodes SET spec = jsonb_set(spec, '{{rack}}', '\"rack-new\"') WHERE id = '{NODE}'")
    expect(visitor.page.get_by_role("heading", name="rack-new")).to_be_visible()
    kept = "[getSelection().toString(), document.activeElement.ariaLabel, document.activeElement.scrollLeft]"
    assert visitor.page.evaluate(kept) == ["Services", "Services", 60]


def test_a_server_that_went_away_is_waited_for(entrance: Entrance, served: Served) -> None:
    visitor = entrance.window()
    visitor.sign_in(served.tokens["viewer"])
    away = {STREAM: 1, "/": 1}

    def refuse(route: Route) -> None:
        path = urlsplit(route.request.url).path
        if route.request.resource_type == "document" or not away[path]:
            route.continue_()
        else:
            away[path] -= 1
            route.fulfill(status=502)

    visitor.page.route(f"**{STREAM}", refuse)
    visitor.page.route(f"{visitor.address}/", refuse)
    with visitor.expecting(f"status: 502 .*{STREAM}", "status: 502 .*/$", "console: .* 502"):
        visitor.open()
        visitor.link().to_have_text("connection lost, trying again")
        visitor.link().to_have_text("live")
    assert not any(away.values())
