"""What InSS states, as far as no learned actor is needed: printed errors, worked examples, rules of batches and shares.

Owns the claims with their judges and random questions for the rules. It refuses to judge how well InSS does.
"""

from __future__ import annotations

import numpy as np

from lab.claims.base import Claim, ClaimClass, ClaimEvidence, Effort, found
from lab.claims.inss.exact import judge_01, judge_02
from lab.claims.inss.shadows import judge_04
from solvers.control.bisect import BatchQuestion, bisect_batch, scan_batches, task_latency_ms
from solvers.policies.inss.projecting import project


def _judge_03(effort: Effort) -> ClaimEvidence:
    drawn, wrong, sized, same, monotone = np.random.default_rng(3), list[str](), 0, 0, 0
    for number in range(effort.examples):
        asked, rising = _question(drawn, filling=bool(number % 2))
        answer = bisect_batch(asked)
        if answer.batch is not None:
            sized += 1
            if not asked.holds(answer.batch) or asked.throughput_rps(answer.batch) < asked.rate_rps:
                wrong.append(f"question {number}: batch {answer.batch} breaks a limit")
        if rising:
            monotone += 1
            same += answer.batch == scan_batches(asked).batch
        wanted = drawn.uniform(0, 60, int(drawn.integers(1, 9)))
        units = int(drawn.integers(len(wanted), 101))
        given = project(list(wanted), units, spread=bool(number % 2))
        if sum(given) > units or min(given) < 1 or (number % 2 and sum(given) != units):
            wrong.append(f"projection {number}: {given} of {units}")
    if same < monotone or not sized:
        wrong.append(f"{monotone - same} of {monotone} differ from the scan, {sized} sized")
    told = f"{effort.examples} questions, {sized} sized; {same} of {monotone} rising ones equal to the scan"
    return found(f"{told}; {effort.examples} projections; {len(wrong)} wrong", wrong)


def _question(drawn: np.random.Generator, *, filling: bool) -> tuple[BatchQuestion, bool]:
    """A random replica, and whether its latency rises with the batch; `filling`: a task waits for its batch to fill."""
    fixed, each, rate = drawn.uniform(1, 20), drawn.uniform(0.2, 6), drawn.uniform(5, 400)
    waiting, memory = 1 if filling else int(drawn.integers(1, 40)), drawn.uniform(50, 4000)
    asked = BatchQuestion(
        replica="one",
        execution_ms=lambda batch: fixed + each * batch,
        latency_ms=lambda batch: task_latency_ms(batch, waiting, fixed, rate, fixed + each * batch),
        fits=lambda batch: 100.0 * batch <= memory,
        latency_ms_limit=float(drawn.uniform(10, 250)),
        rate_rps=float(rate),
    )
    latencies = [asked.latency_ms(batch) for batch in range(1, 33)]
    return asked, bool((np.diff(latencies) >= 0).all())


CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="AC-INS-01",
        kind=ClaimClass.EXACT,
        stated="28 printed errors recomputed within 0.02 points, the highest 3.853 %",
        judge=judge_01,
    ),
    Claim(
        id="AC-INS-02",
        kind=ClaimClass.EXACT,
        stated="Eq. 2, traces of the search for batches in at most 6 probes, the knapsack toy at 1150",
        judge=judge_02,
    ),
    Claim(
        id="AC-INS-03",
        kind=ClaimClass.PROPERTY,
        stated="batches keep memory, limit and rate, and are the scan's where latency rises; shares fit, one unit each",
        judge=_judge_03,
    ),
    Claim(
        id="AC-INS-04",
        kind=ClaimClass.PROPERTY,
        stated="new share: no task lost, both processes only where memory holds both, the old goes once the new is up",
        judge=judge_04,
    ),
)
