"""Requests nobody would think of, made from the API's own description: no 5xx, and answers that are as described."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings

from app import kinds
from tests import builders
from tests.integration.api.world import NODE, World

if TYPE_CHECKING:
    import schemathesis

pytestmark = [pytest.mark.integration, pytest.mark.slow]

EXAMPLES, EXAMPLES_BODILESS = 8, 4
"""Drawing a request takes three times as long as answering it, and whoever has no body is about a few short texts.
`make contract` asks each operation many times more, in every phase.
"""
_STREAMS = ("/v1/doorbell", "/v1/events/stream")
_AGENTS = "/v1/agent/"


@pytest.fixture
def described(world: World) -> World:
    """A cluster with something in it, so that more than 404 comes back. The doorbell's streams end at once."""
    world.app.state.streams.closing.set()
    world.joined(NODE, types=("t4", "v100"))
    world.put(kinds.SERVICE, builders.service())
    world.put(kinds.JOB, builders.job())
    assert world.call("POST", "/v1/plans", plain={}).status_code == 201
    return world


def _exercise(world: World, who: str, *, agents: bool) -> int:
    # A large library, which whoever only collects tests need not wait for.
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    wanted = (
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    )
    schema = schemathesis.openapi.from_asgi("/v1/openapi.json", world.app)
    headers = {"Authorization": f"Bearer {world.secrets[who]}"}
    tried = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path in _STREAMS or operation.path.startswith(_AGENTS) != agents:
            continue
        tried += 1

        @settings(
            max_examples=EXAMPLES if operation.body else EXAMPLES_BODILESS,
            database=None,
            deadline=None,
            derandomize=True,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
        )
        @_given(operation)
        def run(case: schemathesis.Case) -> None:
            _repeat_key(case)
            response = case.call(headers=headers)
            case.validate_response(response, checks=wanted)

        run()
    return tried


def _repeat_key(case: schemathesis.Case) -> None:
    """Let the body repeat the path's key, most of the time: otherwise hardly a PUT would get any further."""
    if case.method.upper() != "PUT" or not isinstance(case.body, dict) or len(case.body) % 5 == 0:
        return
    for name, part in (case.path_parameters or {}).items():
        case.body[{"node": "id", "uuid": "id"}.get(name, name)] = part


def _given(operation: schemathesis.APIOperation):  # type: ignore[no-untyped-def,type-arg]
    from hypothesis import given
    from schemathesis import GenerationMode

    return given(case=operation.as_strategy() | operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))


def test_an_admin_breaks_nothing(described: World) -> None:
    """At the agents' doors everybody else is turned away: `test_access` shows it."""
    assert _exercise(described, "admin", agents=False) > 60


def test_an_agent_breaks_nothing(described: World) -> None:
    assert _exercise(described, NODE, agents=True) == 11
