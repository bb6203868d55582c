"""Who is told of what happens: an address, the events that go there, where the secret lies that signs them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated
from urllib.parse import urlsplit

from solvers.domain.ids import ProjectName
from solvers.domain.value import DISTINCT, NAME, at_most, text, value
from solvers.errors import FieldError

ALARMS = ("slo.at_risk", "planner.stood_in", "node.lost", "budget.*", "plan.awaits_approval")
"""What is told where a webhook names no events."""
SECRET_PREFIX = "HEADROOM_WEBHOOK_SECRET_"
_EVENT = re.compile(r"[a-z][a-z0-9_]{0,62}\.(\*|[a-z][a-z0-9_]{0,62})")


@value
class Webhook:
    """An address that hears of events. The secret is a file's name below HEADROOM_WEBHOOK_SECRETS_DIR of the planner's
    process, or a variable of it; never the secret itself.
    """

    name: Annotated[str, NAME]
    url: Annotated[str, text(2048)]
    events: Annotated[tuple[str, ...], at_most(32), DISTINCT] = ALARMS
    """Names of audit events; `budget.*` means all of a noun."""
    project: ProjectName | None = None
    """Of which project alone; None: of all, and of what belongs to none."""
    secret_file: str | None = None
    secret_environment: str | None = None
    enabled: bool = True

    def _rules(self) -> Iterator[FieldError]:
        for number, name in enumerate(self.events):
            if not _EVENT.fullmatch(name):
                yield FieldError(f"events/{number}", f"{name!r} is no name of an event, such as node.lost or budget.*")
        if (self.secret_file is None) == (self.secret_environment is None):
            yield FieldError("secret_file", "a webhook has either a secret_file or a secret_environment")
        if self.secret_file is not None and not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}", self.secret_file):
            yield FieldError("secret_file", "the name of a file, without folders")
        named = self.secret_environment
        if named is not None and not re.fullmatch(rf"{SECRET_PREFIX}[A-Z0-9_]{{1,64}}", named):
            yield FieldError("secret_environment", f"the name of a variable that begins with {SECRET_PREFIX}")
        _check_url(self.url)


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise FieldError("url", "the address cannot be read") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise FieldError("url", "an address begins with https:// or http:// and names a host")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise FieldError("url", "an address holds no user, password or fragment")
    if not url.isascii() or re.search(r"[\x00-\x20\x7f\\]", url):
        raise FieldError("url", "an address is written in printable ASCII, everything else escaped")
