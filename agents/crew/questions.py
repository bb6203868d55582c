"""The questions a worker is asked, as its description and its adapter want them.

Owns how they are put: one of a kind at a time for each worker, and answers about those who are gone reach nobody.
Asked from the thread that makes the rounds, under the bench's lock; answers take the lock themselves.
"""

from __future__ import annotations

from collections.abc import Callable

from agents.crew.adapters import adapter_of
from agents.crew.bench import Bench
from agents.crew.member import Member, Phase
from agents.crew.prometheus import read_page
from agents.crew.web import Answer, Question
from agents.wire import WarmUpTarget

READY_TIMEOUT_S, METRICS_TIMEOUT_S = 2.0, 2.0

Heard = Callable[[Answer], None]


class Questions:
    """Puts questions to members."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def ready(self, member: Member, heard: Heard) -> None:
        """Whether it is ready."""
        path = member.target.ready_path or adapter_of(member.target).ready_path.replace("{model}", member.spec.model)
        question = Question(host=self._bench.options.host, port=member.port, path=path, timeout_s=READY_TIMEOUT_S)
        self._ask(member, "ready", question, heard)

    def warm_up(self, member: Member, warm_up: WarmUpTarget, heard: Heard) -> None:
        """One warm-up request."""
        question = Question(
            host=self._bench.options.host,
            port=member.port,
            path=warm_up.path,
            method="POST" if warm_up.body else "GET",
            body=warm_up.body.encode(),
            content_type=warm_up.content_type,
            timeout_s=warm_up.timeout_s,
        )
        self._ask(member, "warm", question, heard)

    def finish(self, member: Member) -> None:
        """Tell it to finish; servers that cannot be told just stop being asked."""
        path = adapter_of(member.target).drain_path
        if path is not None:
            question = Question(host=self._bench.options.host, port=member.port, path=path, method="POST")
            self._ask(member, "finish", question, _ignore)

    def metrics(self, member: Member, then: Callable[[], None] | None = None) -> None:
        """Read its metrics into its tally; `then` in any case, also where there are none."""
        if not member.counts or member.process is None:
            member.scrape_wanted = False
            if then is not None:
                then()
            return
        adapter = adapter_of(member.target)
        question = Question(
            host=self._bench.options.host,
            port=member.port + member.target.metrics_port_offset,
            path=member.target.metrics_path or adapter.metrics_path,
            timeout_s=METRICS_TIMEOUT_S,
        )

        def heard(answer: Answer) -> None:
            member.scrape_wanted, member.scraped_s = False, self._bench.now_s()
            member.silent = answer.status == 0
            if answer.good and member.phase is not Phase.DONE:
                page = read_page(answer.body, adapter.names)
                page = page.of_model(member.spec.model, adapter.model_label) if adapter.model_label else page
                member.tally.read(adapter.totals(page), member.scraped_s)
            if then is not None:
                then()

        self._ask(member, "metrics", question, heard)

    def _ask(self, member: Member, what: str, question: Question, heard: Heard) -> None:
        if what in member.asking:
            return
        member.asking.add(what)

        def answered(answer: Answer) -> None:
            with self._bench.lock:
                member.asking.discard(what)
                if self._bench.members.get(member.name) is member:
                    heard(answer)

        self._bench.host.web.ask(question, answered)


def _ignore(answer: Answer) -> None:
    """Nothing follows from it."""
