"""One table from errors to HTTP: status, title and problem type of every exception the core or the shell may raise on
purpose.

Nothing is guessed: a test asserts that every subclass of `HeadroomError` in the shell and the core is listed or derives
from a listed one by its own entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.records import record
from solvers.errors import (
    EngineError,
    FieldError,
    HeadroomError,
    InputError,
    InvariantError,
    LeaseLostError,
    NotFoundError,
    StateError,
    SupersededError,
    TransientError,
)


class UnauthenticatedError(HeadroomError):
    """No token, or one that is unknown, expired or revoked."""

    code = "unauthenticated"


class JoinTokenExpiredError(UnauthenticatedError):
    """A join token whose time is over."""

    code = "join-token-expired"


class CertificateError(UnauthenticatedError):
    """A node came without the certificate that it must show, or with another; the code says which."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ForbiddenError(HeadroomError):
    """The token is good, but its role does not allow this."""

    code = "forbidden"


class NodeRevokedError(ForbiddenError):
    """The node was turned out."""

    code = "node-revoked"


class JoinTokenUsedError(ForbiddenError):
    """As many nodes have joined with this token as may."""

    code = "join-token-used"


class PreconditionError(StateError):
    """If-Match or If-None-Match does not hold for the stored version."""

    code = "precondition-failed"


class ReferencedError(StateError):
    """What is to be deleted is still used by something else."""

    code = "still-referenced"


class NodeTakenError(StateError):
    """Another living agent already reports under this node id."""

    code = "node-id-taken"


class ClockBackwardsError(StateError):
    """A report is older than one already accepted from the same boot."""

    code = "clock-backwards"


class KeyReusedError(InputError):
    """An Idempotency-Key was sent again with a different body."""

    code = "idempotency-key-reused"


class InProgressError(StateError):
    """The first request with this Idempotency-Key has not been answered yet."""

    code = "idempotency-in-progress"
    retryable = True


class FieldsError(InputError):
    """Several fields of a body or query are wrong; each has its pointer, code and detail."""

    code = "field-invalid"

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__(faults[0].detail if len(faults) == 1 else f"{len(faults)} fields are invalid")
        self.faults = faults

    @staticmethod
    def of(pointer: str, detail: str, code: str = "value-invalid") -> FieldsError:
        return FieldsError((Fault(pointer=pointer, code=code, detail=detail),))

    @staticmethod
    def unknown(pointer: str, detail: str) -> FieldsError:
        return FieldsError.of(pointer, detail, "reference-unknown")


class MalformedError(InputError):
    """The request cannot be read at all: no JSON, no such encoding, a header out of shape."""

    code = "request-malformed"


class BodyTooLargeError(InputError):
    code = "body-too-large"


class MediaTypeError(InputError):
    """The body's Content-Type is not one this route reads."""

    code = "media-type-unsupported"


class RateLimitedError(HeadroomError):
    """More requests than the token may send."""

    code = "rate-limited"
    retryable = True

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.retry_after_s = retry_after_s


@record
class Fault:
    """One offending field."""

    pointer: str
    """JSON pointer into the body, or `query:name`, `path:name`, `header:name`."""
    code: str
    detail: str


class Faults:
    """Collects what is wrong with fields, and raises it at once."""

    def __init__(self) -> None:
        self._found: list[Fault] = []

    def add(self, pointer: str, detail: str, code: str = "value-invalid") -> None:
        self._found.append(Fault(pointer=pointer, code=code, detail=detail))

    def settle(self) -> None:
        """Raise FieldsError when anything was wrong."""
        if self._found:
            raise FieldsError(tuple(self._found))


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorStatus:
    status: int
    title: str


STATUSES: Mapping[type[HeadroomError], ErrorStatus] = {
    HeadroomError: ErrorStatus(status=500, title="Something went wrong here"),
    InputError: ErrorStatus(status=422, title="The request is invalid"),
    FieldError: ErrorStatus(status=422, title="A field is invalid"),
    FieldsError: ErrorStatus(status=422, title="A field is invalid"),
    MalformedError: ErrorStatus(status=422, title="The request cannot be read"),
    KeyReusedError: ErrorStatus(status=422, title="The idempotency key was used for another request"),
    BodyTooLargeError: ErrorStatus(status=413, title="The body is too large"),
    MediaTypeError: ErrorStatus(status=415, title="This media type is not read here"),
    UnauthenticatedError: ErrorStatus(status=401, title="A valid bearer token is needed"),
    JoinTokenExpiredError: ErrorStatus(status=401, title="The join token has expired"),
    CertificateError: ErrorStatus(status=401, title="A certificate of this node is needed"),
    NodeRevokedError: ErrorStatus(status=403, title="This node was turned out"),
    JoinTokenUsedError: ErrorStatus(status=403, title="The join token is used up"),
    ForbiddenError: ErrorStatus(status=403, title="This token may not do that"),
    StateError: ErrorStatus(status=409, title="The current state does not allow this"),
    NotFoundError: ErrorStatus(status=404, title="There is no such thing"),
    SupersededError: ErrorStatus(status=409, title="Something newer took its place"),
    LeaseLostError: ErrorStatus(status=409, title="A newer leader has written"),
    PreconditionError: ErrorStatus(status=412, title="The stored version is another one"),
    ReferencedError: ErrorStatus(status=409, title="It is still in use"),
    NodeTakenError: ErrorStatus(status=409, title="This node id is taken"),
    ClockBackwardsError: ErrorStatus(status=409, title="The sender's clock runs backwards"),
    InProgressError: ErrorStatus(status=409, title="The first request with this key is still running"),
    RateLimitedError: ErrorStatus(status=429, title="Too many requests"),
    EngineError: ErrorStatus(status=503, title="No planner could answer"),
    TransientError: ErrorStatus(status=503, title="Please try again shortly"),
    InvariantError: ErrorStatus(status=500, title="Something went wrong here"),
}

FRAMEWORK_STATUSES: Mapping[int, tuple[str, str]] = {
    400: ("request-malformed", "The request cannot be read"),
    404: ("not-found", "There is no such thing"),
    405: ("method-not-allowed", "This route does not take this method"),
    408: ("request-late", "The request came too slowly"),
    413: ("body-too-large", "The body is too large"),
    431: ("head-too-large", "The request's head is too large"),
}
"""Codes and titles of what the web framework answers by itself."""


def status_of(error: HeadroomError) -> ErrorStatus:
    for kind in type(error).__mro__:
        if kind in STATUSES:
            return STATUSES[kind]
    raise AssertionError("unreachable: HeadroomError is listed")
