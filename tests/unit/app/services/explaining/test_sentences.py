"""Every code has a sentence, and who owns which knob is told in one for devices that are alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.services.explaining.sentences import (
    demand_sentence,
    facts_text,
    gap_words,
    given_words,
    hold_sentence,
    mode_sentence,
    owner_sentences,
    owner_words,
    problem_sentences,
    sentence,
)
from solvers.cycle.owners import KNOBS, StandingOwners, knob_owners
from solvers.cycle.record import HoldReason
from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.ids import DeviceId, NodeId, PolicyName, WorkloadId
from solvers.domain.ownership import Owners, owners_of
from solvers.domain.plan import Assignment, PlanPart, Unplaced
from solvers.domain.policy import Objective, Policy, Pool, Term
from solvers.domain.telemetry import DemandOrigin
from solvers.domain.workload import ServiceMode, WorkloadKind
from solvers.planners.writer import pinned_as
from tests import builders


def test_every_code_has_a_sentence_of_its_own() -> None:
    said = [sentence(Reason(code=code, subject="x")) for code in ReasonCode]
    assert len(set(said)) == len(said) == len(ReasonCode)
    assert all(text.endswith(".") for text in said)
    held = [hold_sentence(reason) for reason in HoldReason]
    assert len(set(held)) == len(held) == len(HoldReason)


def test_what_must_be_served_is_told_with_how_far_that_looks_back() -> None:
    policy = builders.policy()
    seen = builders.demand("demo/vision", 300.0, rate_rps_upper=411.36, window_s=597.2)
    assert policy.demand_lookback_s == 600.0
    rate = "411.4 requests/s must be served now"
    assert demand_sentence(seen, policy) == f"{rate}, the most in any ten of the last 597 seconds"
    shorter = demand_sentence(replace(seen, window_s=60.0), policy)
    assert shorter == f"{rate}, the most in any ten of the last 60 seconds; its policy looks back 600 s at most"
    declared = replace(seen, origin=DemandOrigin.DECLARED, window_s=0.0)
    assert demand_sentence(declared, policy) == f"{rate}, as declared: nobody has counted any lately"


def test_who_is_short_although_nothing_bars_it_hears_what_would_help() -> None:
    facts = (Fact(name="rate_rps_short", value=91.7),)
    said = sentence(Reason(code=ReasonCode.WAITS_IN_LINE, subject="vision/edge", facts=facts))
    assert "waits in line" not in said
    assert all(word in said for word in ("only part of its rate", "91.7", "would help", "anti_affinity"))


@pytest.mark.parametrize(
    ("room", "words"),
    [(688.0, "no t4 has more than 688 MiB to plan with"), (-8.0, "memory_margin_mib leaves nothing of any t4")],
)
def test_who_fits_on_no_device_hears_what_there_is_to_plan_with(room: float, words: str) -> None:
    facts = (Fact(name="memory_mib_needed", value=832.0), Fact(name="memory_mib_device", value=room))
    said = sentence(Reason(code=ReasonCode.NO_MEMORY_LEFT, subject="t4", facts=facts))
    assert said == f"one replica needs 832 MiB, and {words}."


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
    # No powers of ten.
    assert facts_text([Fact(name="memory_mib", value=10_048.5)]) == " (memory 10048 MiB)"


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


EDGE = builders.policy(
    name=PolicyName("edge"), planners=("morak", "greedy"), governor="dfs", pool=Pool(nodes=(NodeId("a"),))
)
HERE = builders.device("a", 0, "t4")
THERE = builders.device("b", 0, "v100")


def owners() -> Owners:
    return owners_of(builders.lab([builders.service()], policies=(EDGE,)))


def standing(*items: Assignment, planner: str | None = "greedy", parts: tuple[PlanPart, ...] = ()) -> StandingOwners:
    return StandingOwners.of(items, planner, parts)


def words(device: str, stands: StandingOwners) -> dict[str, str]:
    return owner_words(knob_owners(owners(), DeviceId(device), stands))


def part(planner: str) -> PlanPart:
    return PlanPart(policy=EDGE.name, planner=planner, planner_version="1", objective=Objective())


def test_an_empty_device_belongs_to_whoever_will_plan_it() -> None:
    found = words(HERE.id, standing(planner=None))
    assert list(found) == [knob.value for knob in KNOBS]
    assert set(found.values()) == {"edge: planner morak"}
    assert set(words(THERE.id, standing(planner=None)).values()) == {"default: planner greedy"}


def test_what_an_envelope_leaves_open_is_the_controllers() -> None:
    closed = builders.assignment("demo/vision#0", HERE)
    clock = closed.envelope.clock_mhz_sm_max
    assert words(HERE.id, standing(closed))["batch"] == "edge: governor dfs"
    assert words(HERE.id, standing(closed))["clock"] == "edge: planner greedy"
    fixed = replace(closed, envelope=replace(closed.envelope, batch_min=8))
    assert set(words(HERE.id, standing(fixed)).values()) == {"edge: planner greedy"}
    both = replace(closed, envelope=replace(closed.envelope, clock_mhz_sm_min=clock - 600))
    assert words(HERE.id, standing(both))["clock"] == "edge: governor dfs"
    # A neighbour whose clock is fixed fixes it for all.
    assert words(HERE.id, standing(both, replace(closed, replica=both.replica)))["clock"] == "edge: planner greedy"
    # Nobody moves the batch of a training job.
    job = replace(closed, kind=WorkloadKind.JOB)
    assert words(HERE.id, standing(job))["batch"] == "edge: planner greedy"


def test_the_planner_is_the_one_that_made_the_part_that_stands() -> None:
    item = builders.assignment("demo/vision#0", HERE)
    assert words(HERE.id, standing(item, planner="pools", parts=(part("greedy"),)))["share"] == "edge: planner greedy"
    # Who is no more in the chain, or only kept what stood, decides on nothing from now on.
    for gone in ("keep-target", "hetsev"):
        assert words(HERE.id, standing(item, planner="pools", parts=(part(gone),)))["share"] == "edge: planner morak"


def test_sentences_put_like_devices_together() -> None:
    items = (builders.assignment("demo/vision#0", THERE), builders.assignment("demo/vision#1", HERE))
    places = {str(HERE.id): "a GPU 0", str(THERE.id): "b GPU 0"}
    assert owner_sentences(owners(), standing(*items), "demo/vision", places) == [
        "batch on a GPU 0 is owned by policy edge: governor dfs",
        "placement, replicas, share, memory, clock and power on a GPU 0 are owned by policy edge: planner greedy",
        "batch on b GPU 0 is owned by policy default: governor morak",
        "placement, replicas, share, memory, clock and power on b GPU 0 are owned by policy default: planner greedy",
    ]
    assert owner_sentences(owners(), standing(*items), "demo/other", places) == []


def test_who_pursues_no_savings_is_told_to() -> None:
    content = builders.policy(name="default", planners=("inss", "greedy"))
    item = builders.assignment("demo/vision#0", THERE)

    def told(policy: Policy, made_by: str) -> str:
        picture = builders.lab([builders.service()], policy=policy)
        stands = standing(item, planner=made_by)
        return owner_sentences(owners_of(picture), stands, "demo/vision", {str(THERE.id): "b GPU 0"})[-1]

    assert (
        told(content, "inss")
        == told(content, "joint")
        == (
            "policy default names no objective, and inss does not pursue cost: "
            "its plans need only be no worse in unserved and slo_risk"
        )
    )
    assert "owned by" in told(content, "greedy")
    assert "owned by" in told(replace(content, objective=(Term.UNSERVED, Term.SLO_RISK, Term.COST)), "inss")


def test_a_gap_says_which_plans_it_is_among() -> None:
    on = builders.device("a", 0, "t4")
    free = builders.assignment("demo/free#0", on)
    pinned = [pinned_as(builders.assignment(f"demo/{name}#0", on)) for name in ("held", "kept")]
    one = " with 1 workload that is not on auto left as it is"
    assert given_words([free, pinned[0], pinned[0]], (), pooled=False) == one
    several = " with 2 workloads that are not on auto left as they are"
    assert given_words(pinned, (), pooled=True) == f" of its pools{several}"
    # Staying for other reasons than its mode takes nothing as given.
    assert not given_words([free, pinned_as(free, ReasonCode.KEPT_STANDING)], (), pooled=False)
    waits = Unplaced(kind=WorkloadKind.JOB, workload=WorkloadId("demo/tune"), rate_rps_short=0.0, reasons=())
    runs = replace(free, kind=WorkloadKind.JOB)
    assert given_words([free], [waits], pooled=False) == given_words([runs], (), pooled=False) == " that trains as much"
    assert given_words([*pinned, runs], (), pooled=True) == f" of its pools that trains as much{several}"
    above = "at most 0.2 % above the optimum"
    assert gap_words(5.41, 5.4, "") == f"{above}, which costs $5.40/h or more"
    assert gap_words(5.41, 5.4, one) == f"{above}{one}, which costs $5.40/h or more"
    assert gap_words(5.41, None, one) == gap_words(5.41, 0.0, one) == "how far from the optimum was not proven"
    assert gap_words(0.0, None, "") == "nothing is cheaper"
    assert gap_words(5.39, 5.4, "").startswith("at most 0.0 % above")


def test_a_project_hears_of_its_processes_without_the_names_of_others() -> None:
    """A node that asks for another division of a GPU names who should give, and to whom."""
    cure = "GPU-0: latency limit broken; demo/vision#0 needs about 10 % more share, from other/speech#1"
    own = "GPU-0 demo/vision#0: the last worker failed: /opt/demo/run.sh: no models/a"
    told = {"n1": (cure, own, "GPU-1 other/speech#1: it ends at once")}
    mine = "node n1: GPU-0: latency limit broken; demo/vision#0 needs about 10 % more share, from "
    assert problem_sentences(told, "demo/", "demo") == (f"{mine}a process of another project", f"node n1: {own}")
    assert problem_sentences(told, "demo/") == (f"{mine}other/speech#1", f"node n1: {own}")
    assert "demo/" not in problem_sentences(told, "other/", "other")[0]
