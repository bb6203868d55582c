"""Every reason and every hold can be said in words."""

from app.services.sentences import facts_text, hold_sentence, sentence
from solvers.cycle.record import HoldReason
from solvers.domain.evidence import Fact, Reason, ReasonCode


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
