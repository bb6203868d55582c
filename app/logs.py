"""The shell's voice: one JSON object per line with an event name, the ids bound in this context, and facts.

An event has a name (`noun.past_verb`) and facts instead of a sentence, so that lines can be searched by field. Secrets
are scrubbed.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

from solvers.errors import HeadroomError

Fact = str | int | float | bool | None

_context: ContextVar[Mapping[str, str]] = ContextVar("headroom_log_context", default={})  # noqa: B039 - never mutated, only replaced
_SECRET_NAME = re.compile(r"token$|secret|password|authorization|cookie", re.IGNORECASE)
_SECRET_TEXT = (
    # Credentials inside a URL, libpq's password=…, an Authorization header, our own bearer secrets (prefix, 32 bytes).
    (re.compile(r"(://[^:/@\s]*:)[^@\s]+@"), r"\1***@"),
    (re.compile(r"(password\s*=\s*)\S+", re.IGNORECASE), r"\1***"),
    (re.compile(r"(bearer\s+)\S+", re.IGNORECASE), r"\1***"),
    (re.compile(r"\b([a-z]{1,16}_)[A-Za-z0-9_-]{43}\b"), r"\1***"),
)
_TEXT_LENGTH_MAX = 8_000


@contextmanager
def bound(**ids: str) -> Iterator[None]:
    """Add ids (cycle, cluster, plan, node, request) to every line logged inside."""
    token = _context.set({**_context.get(), **ids})
    try:
        yield
    finally:
        _context.reset(token)


def scrub(text: str) -> str:
    """The text without anything that looks like a credential."""
    for pattern, replacement in _SECRET_TEXT:
        text = pattern.sub(replacement, text)
    return text[:_TEXT_LENGTH_MAX]


class JsonFormatter(logging.Formatter):
    """One line of JSON per record; foreign libraries' messages become the event's `message`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its newline."""
        line: dict[str, Fact] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        facts: Mapping[str, Fact] | None = getattr(record, "facts", None)
        if facts is None:
            line |= {"event": "message.logged", "message": scrub(record.getMessage())}
        else:
            line |= {"event": record.getMessage(), **_context.get()}
            line |= {name: _shown(name, fact) for name, fact in facts.items()}
        if record.exc_info is not None and record.exc_info[1] is not None:
            line["traceback"] = scrub("".join(traceback.format_exception(record.exc_info[1])))
        return json.dumps(line, ensure_ascii=False)


def _shown(name: str, fact: Fact) -> Fact:
    if _SECRET_NAME.search(name):
        return "***"
    return scrub(fact) if isinstance(fact, str) else fact


class EventLog:
    """A logger that takes an event's name and its facts; facts may be called `event` and `error` too."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def info(self, event: str, /, **facts: Fact) -> None:
        """Something happened that an operator may want to find."""
        self._logger.info(event, extra={"facts": facts})

    def warning(self, event: str, error: BaseException | None = None, /, **facts: Fact) -> None:
        """Something went wrong that cures itself or costs little; the error is one line."""
        self._logger.warning(event, extra={"facts": {**facts, **_error_facts(error)}})

    def error(self, event: str, error: BaseException | None = None, /, **facts: Fact) -> None:
        """Something went wrong that a person should look at; the traceback is kept."""
        self._logger.error(event, extra={"facts": {**facts, **_error_facts(error)}}, exc_info=error)


def _error_facts(error: BaseException | None) -> dict[str, Fact]:
    if error is None:
        return {}
    code = error.code if isinstance(error, HeadroomError) else type(error).__name__
    text = str(error).strip()
    return {
        "error_code": code,
        "error": text.splitlines()[0] if text else type(error).__name__,
    }


def configure_logs(level: str, stream: TextIO | None = None) -> None:
    """Send every logger of this process through one JSON handler; call once, from a process's entry."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # APScheduler tells of every wake-up and warns of each that a running loop skips; Alembic greets. None is news.
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.WARNING)


_WARNINGS = frozenset({"planner.failed", "planner.stopped", "plan.refuted", "plan.stood_in"})
"""Events of the core that an operator should hear of."""


class LogReporter:
    def __init__(self, log: EventLog) -> None:
        self._log = log

    def event(self, name: str, **facts: str | float) -> None:
        if name in _WARNINGS:
            self._log.warning(name, None, **facts)
        else:
            self._log.info(name, **facts)
