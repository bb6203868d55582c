"""Every reason and every hold can be said in words."""

import pytest

from app.services.explaining.sentences import facts_text, hold_sentence, mode_sentence, sentence
from solvers.cycle.record import HoldReason
from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.workload import ServiceMode


def test_every_code_has_a_sentence_of_its_own() -> None:
    said = [sentence(Reason(code=code, subject="x")) for code in ReasonCode]
    assert len(set(said)) == len(said) == len(ReasonCode)
    assert all(text.endswith(".") for text in said)
    held = [hold_sentence(reason) for reason in HoldReason]
    assert len(set(held)) == len(held) == len(HoldReason)


def test_facts_come_with_their_units() -> None:
    facts = (
        Fact(name="usd_per_h", value=0.35),
        Fact(name="latency_ms_best", value=12.5),
        Fact(name="budget_usd_per_h", value=1.0),
        Fact(name="share_pct_sm", value=40.0),
        Fact(name="memory_mib", value=4000.0),
        Fact(name="profile_kind", value="tokens"),
    )
    assert facts_text(facts) == (
        " (cost 0.35 $/h, latency best 12.5 ms, budget 1 $/h, share 40 % of the SMs, memory 4000 MiB,"
        " profile kind tokens)"
    )
    assert facts_text(()) == ""


@pytest.mark.parametrize(
    ("mode", "plan_id", "words"),
    [
        (ServiceMode.APPROVE, "sha256:a", "plan sha256:a waits for somebody to apply it"),
        (ServiceMode.APPROVE, None, "no plan for it waits"),
        (ServiceMode.SHADOW, "sha256:a", "the newest is sha256:a"),
        (ServiceMode.SHADOW, None, "there is none yet"),
        (ServiceMode.OFF, None, "nobody plans for it"),
    ],
)
def test_a_mode_that_holds_a_workload_back_is_told(mode: ServiceMode, plan_id: str | None, words: str) -> None:
    told = mode_sentence("demo/vision", mode, plan_id)
    assert told is not None
    assert told.startswith(f"demo/vision is o{'ff' if mode is ServiceMode.OFF else f'n {mode.value}'}")
    assert words in told


def test_a_workload_on_auto_waits_for_nobody() -> None:
    assert mode_sentence("demo/vision", ServiceMode.AUTO, None) is None
