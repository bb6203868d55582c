"""Learning in a child process: the same suite as here, and every way in which a child can fail to give one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from app.services.beliefs.beliefs import Evidence, Fit, fitted
from app.workers.children import fit_apart
from solvers.errors import EngineError
from solvers.models.base import Groups, GroupSamples, Queries
from solvers.models.suite import Suite
from tests import laws

NOBODY = Queries.of([], [], [], [])
EVIDENCE = Evidence(
    facts=laws.facts(),
    samples=laws.solo(models=("res",), batches=(1, 8), shares=(20, 80)),
    groups=GroupSamples(groups=Groups.pairs(NOBODY, NOBODY), latency_ms=np.zeros(0)),
)


def stumbles(_: Evidence) -> Suite:
    raise np.linalg.LinAlgError("Singular matrix")


def dies(_: Evidence) -> Suite:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def dies_once(evidence: Evidence) -> Suite:
    with suppress(FileExistsError):
        os.close(os.open(os.environ["DIED"], os.O_CREAT | os.O_EXCL))
        dies(evidence)
    return fitted(evidence)


def hangs(_: Evidence) -> Suite:
    threading.Event().wait()
    raise AssertionError


def test_a_child_learns_what_we_would() -> None:
    assert fit_apart(EVIDENCE).dump() == fitted(EVIDENCE).dump()


@pytest.mark.parametrize(
    ("fit", "limit_s", "words"),
    [(stumbles, 60.0, "LinAlgError: Singular matrix"), (dies, 60.0, "without an answer"), (hangs, 0.01, "too long")],
)
def test_a_child_that_fails_is_told_and_gone(fit: Fit, limit_s: float, words: str) -> None:
    others = {child.pid for child in multiprocessing.active_children()}
    with pytest.raises(EngineError, match=words):
        fit_apart(EVIDENCE, fit, limit_s, ())
    assert {child.pid for child in multiprocessing.active_children()} <= others


def test_who_was_killed_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIED", str(tmp_path / "died"))
    with pytest.raises(EngineError, match="without an answer"):
        fit_apart(EVIDENCE, dies_once, again_after_s=())
    (tmp_path / "died").unlink()
    assert fit_apart(EVIDENCE, dies_once, again_after_s=(0.0,)).dump() == fitted(EVIDENCE).dump()
