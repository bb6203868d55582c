"""Learning, in a child process of its own for each fit: minutes of arithmetic hold up neither plans nor requests."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

from app.services.beliefs.beliefs import Evidence, Fit, fitted
from app.workers.solve_pool import die_with
from solvers.errors import EngineError
from solvers.models.suite import Suite

FIT_S_MAX = 1800.0
NICENESS = 10
SUITE_BYTES_MAX = 1 << 30
AGAIN_AFTER_S = (5.0, 60.0)


class ChildEndedError(EngineError):
    """A child that ended without an answer: somebody killed it, for lack of memory perhaps."""


def fit_apart(
    evidence: Evidence, fit: Fit = fitted, limit_s: float = FIT_S_MAX, again_after_s: Sequence[float] = AGAIN_AFTER_S
) -> Suite:
    """The suite that has learned the evidence, once a child has done it; one that was killed is followed by another
    after each of these pauses. `fit` is a module's function. Raises EngineError when the child fails, ends without an
    answer or takes too long.
    """
    for pause_s in again_after_s:
        try:
            return _fit_once(evidence, fit, limit_s)
        except ChildEndedError:
            time.sleep(pause_s)
    return _fit_once(evidence, fit, limit_s)


def _fit_once(evidence: Evidence, fit: Fit, limit_s: float) -> Suite:
    context = multiprocessing.get_context("spawn")
    answers, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_learn, args=(theirs, os.getpid(), fit, evidence), name="headroom-fit", daemon=True)
    try:
        child.start()
        theirs.close()
        if not answers.poll(limit_s):
            raise EngineError("learning what was measured took too long", limit_s=limit_s)
        found: object = pickle.loads(answers.recv_bytes(SUITE_BYTES_MAX))
    except (OSError, EOFError, pickle.PickleError) as error:
        child.join(1.0)
        raise ChildEndedError("the process that learns ended without an answer", exit_code=child.exitcode) from error
    finally:
        answers.close()
        if child.pid is not None:
            child.kill()
            child.join()
            child.close()
    if not isinstance(found, Suite):
        raise EngineError(f"what was measured cannot be learned: {found}")
    return found


def _learn(answers: Connection[object, object], parent_pid: int, fit: Fit, evidence: Evidence) -> None:
    """The child's life. The answer is a suite, or what went wrong in words."""
    die_with(parent_pid)
    # Ctrl-C reaches the whole process group; the parent decides when the child ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    found: object
    try:
        found = fit(evidence)
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent tells it
        found = f"{type(error).__name__}: {error}"
    answers.send_bytes(pickle.dumps(found))
