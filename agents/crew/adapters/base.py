"""What the crew must know of a model server: how it says that it is ready, what it counts, how it takes another batch
size and how it is drained.

Owns that record and the conversation in which a server is told something. Each server has a module beside this one; the
paths of the worker's own description come before those here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from agents.crew.prometheus import SeriesPage
from agents.crew.tally import Totals
from agents.crew.web import Question, WebAnswer
from agents.devices.base import WorkerSpec
from agents.errors import NotSupportedError, WorkerError

LIVE, RELOAD, RESTART = "live", "reload", "restart"
QUICK_S = 5.0
RELOAD_S = 300.0
"""Loading a model anew takes as long as loading it did."""
_MISSING = (403, 404, 405, 501)


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """A conversation with one server. Waits for answers: not for the thread that watches all workers."""

    ask: Callable[[Question], WebAnswer]
    host: str
    port: int
    management_port: int

    def get(self, path: str, *, management: bool = False) -> object:
        """Decoded JSON of an answer. Raises WorkerError, NotSupportedError where there is no such path."""
        return self._told(Question(host=self.host, port=self._port(management), path=path, timeout_s=QUICK_S))

    def send(
        self, method: str, path: str, content: object = None, *, management: bool = False, timeout_s: float = QUICK_S
    ) -> object:
        """Tell something; the decoded answer. Raises WorkerError, NotSupportedError where there is no such path."""
        question = Question(
            host=self.host,
            port=self._port(management),
            path=path,
            method=method,
            body=b"" if content is None else json.dumps(content).encode(),
            timeout_s=timeout_s,
        )
        return self._told(question)

    def _port(self, management: bool) -> int:
        return self.management_port if management else self.port

    def _told(self, question: Question) -> object:
        answer = self.ask(question)
        if answer.status in _MISSING:
            raise NotSupportedError(f"{question.method} {question.path} {answer.told()}: this server cannot do that")
        if not answer.good:
            told = answer.body[:200].decode("utf-8", "replace")
            raise WorkerError(f"{question.method} {question.path} {answer.told()} {told}".strip())
        try:
            found: object = json.loads(answer.body) if answer.body.strip() else None
        except ValueError:
            return None
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAdapter:
    """A kind of model server. `{model}` in a path is the model's name."""

    name: str
    batch_change: str
    """The least that another batch size takes: live, reload or restart."""
    ready_path: str
    metrics_path: str
    names: tuple[str, ...]
    """What the names of the series read begin with."""
    totals: Callable[[SeriesPage], Totals]
    model_label: str = ""
    """The label that names the model."""
    ready_text: bytes = b""
    """What a good answer to readiness holds."""
    drain_path: str | None = None
    """Asked by POST to finish; servers without one just stop being asked."""
    retune: Callable[[Talk, WorkerSpec], None] | None = None
    """Hands over the batch size and latency limit, and reads back. Raises WorkerError."""

    def is_ready(self, answer: WebAnswer) -> bool:
        """Whether this answer says so."""
        return answer.good and self.ready_text in answer.body
