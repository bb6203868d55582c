"""The table of errors is complete and its problems say nothing that they should not."""

import importlib
import pkgutil

import agents.wire
import app
import solvers
from app.api.problems import of_error
from app.errors import STATUSES, RateLimitedError, UnauthenticatedError, status_of
from solvers.errors import FieldError, HeadroomError, InvariantError, TransientError

_ON_THE_CALLERS_SIDE = {"app.cli", "app.client", "app.demo", "app.routing", "app.__main__"}


def _all_modules() -> None:
    for package in (solvers, app):
        for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            # What is left of libraries that an earlier version compiled is no module.
            compiled = not info.name.rpartition(".")[2].isidentifier()
            if not compiled and not any(info.name.startswith(prefix) for prefix in _ON_THE_CALLERS_SIDE):
                importlib.import_module(info.name)


def _subclasses(kind: type[HeadroomError]) -> set[type[HeadroomError]]:
    found = {kind}
    for child in kind.__subclasses__():
        found |= _subclasses(child)
    return found


def test_every_error_has_a_status() -> None:
    _all_modules()
    shell_and_core = {
        kind
        for kind in _subclasses(HeadroomError)
        if not any(kind.__module__.startswith(prefix) for prefix in (*_ON_THE_CALLERS_SIDE, "tests"))
    }
    assert len(shell_and_core) >= 15
    for kind in shell_and_core:
        nearest = next(ancestor for ancestor in kind.__mro__ if ancestor in STATUSES)
        assert nearest is not HeadroomError or kind is HeadroomError, f"{kind.__name__} needs an entry of its own"


def test_codes_are_distinct_words() -> None:
    for kind in STATUSES:
        assert kind.code == kind.code.lower()
        assert " " not in kind.code


def test_unauthenticated_asks_for_a_bearer_token() -> None:
    answer = of_error("request-1", UnauthenticatedError("no token"))
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.headers["content-type"] == "application/problem+json"


def test_rate_limit_says_when_to_return() -> None:
    answer = of_error("request-1", RateLimitedError("too many", retry_after_s=2.2))
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")


def test_transient_errors_ask_to_retry() -> None:
    answer = of_error("request-1", TransientError("database is away"))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


def test_inner_failures_tell_nothing_of_the_inside() -> None:
    for answer in (
        of_error("r", InvariantError("secret path /etc/x")),
        of_error("r", ValueError("secret path /etc/x")),
    ):
        assert answer.status_code == 500
        assert b"secret" not in answer.body
        assert b'"code":"internal"' in answer.body


def test_field_errors_carry_a_pointer() -> None:
    assert b'"pointer":"/slo/latency_ms"' in of_error("r", FieldError("slo/latency_ms", "no")).body
    assert status_of(FieldError("x", "y")).status == 422


def test_wire_errors_are_not_ours() -> None:
    assert not issubclass(agents.wire.WireError, HeadroomError)
