"""POSTs that may be sent again: with an Idempotency-Key the first request does the work and repeats get its answer.

Owns when an answer is kept: successes and refusals that would be the same again. Failures of ours give the key back,
so that the repeat may succeed. Secrets are never kept: a repeat of a request that made one gets the answer without
it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Header, Request, Response

from app.api.deps import context_of
from app.services.declared.tokens import Actor
from app.store import idempotency
from app.store.engine import Database
from app.store.idempotency import StoredAnswer

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=128,
        pattern=r"^[\x21-\x7e]+$",
        description="Repeats of the request with this key get the first answer.",
    ),
]
REPLAYED = "idempotency-replayed"
_KEPT_HEADERS = ("content-type", "etag", "location")


@dataclass(frozen=True, slots=True)
class Posted:
    """A POST as it came in."""

    request: Request
    actor: Actor
    key: str | None
    body: bytes


def once(posted: Posted, work: Callable[[], Response], secret_field: str | None = None) -> Response:
    """Do the work, or answer as the first request with this key was answered.

    Raises KeyReusedError for another request under the key, InProgressError while the first one runs.
    """
    request, key = posted.request, posted.key
    if key is None:
        return work()
    database = context_of(request).database
    claim = idempotency.Request(
        token_id=posted.actor.token_id, key=key, method=request.method, path=request.url.path, body=posted.body
    )
    with database.transaction() as session:
        before = idempotency.reserve(session, claim)
    if before is not None:
        return Response(before.body, status_code=before.status, headers={**before.headers, REPLAYED: "true"})
    try:
        response = work()
    except BaseException:
        _give_back(database, claim)
        raise
    kept = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
    shown = _without(bytes(response.body), secret_field)
    with database.transaction() as session:
        idempotency.finish(session, claim, StoredAnswer(status=response.status_code, headers=kept, body=shown))
    return response


def _give_back(database: Database, claim: idempotency.Request) -> None:
    with database.transaction() as session:
        idempotency.abandon(session, claim)


def _without(body: bytes, secret_field: str | None) -> bytes:
    if secret_field is None:
        return body
    plain = json.loads(body)
    plain[secret_field] = None
    return json.dumps(plain).encode()
