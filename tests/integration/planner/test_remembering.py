"""How long demand is remembered is learned of what gateways counted, and is what plans are made for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import text

from app.services.planning.planning import Leader
from app.services.planning.remembering import RESTS, DemandMemory
from app.services.planning.snapshots import StoreObserver
from app.store import telemetry
from solvers.domain.telemetry import Demand, DemandOrigin
from tests.integration.planner.world import BOOT, CLUSTER, World
from tests.memory import MemoryClock
from tests.unit.app.services.whatif.small_fleet import POLICY, service

pytestmark = pytest.mark.integration

LEADER = Leader(holder="me", fencing=1)
WAVE = "300 + 200 * cos(2 * pi() * (age_s - 300) / 1800)"
"""Requests/s so many seconds ago: its last peak of 500 was five minutes ago."""
SPIKES = "CASE WHEN age_s % 400 < 20 THEN 400 ELSE 100 END"


def counted(world: World, name: str, rate_rps: str, *, past_s: float = 3700.0) -> None:
    """A gateway counted so much of a service, every five seconds."""
    with world.database.transaction() as session:
        session.execute(
            text(
                "INSERT INTO rate_samples (received_at, observed_at, gateway, boot_id, sequence, service, project,"
                " arrived, interval_s, unrouted)"
                " SELECT now() - make_interval(secs => age_s), now() - make_interval(secs => age_s), :gateway, :boot,"
                f" age_s::bigint, :service, 'vision', 5 * ({rate_rps}), 5, 0 "
                "FROM generate_series(0.5, CAST(:past_s AS numeric), 5) AS age_s"
            ),
            {"gateway": f"edge of {name}", "boot": BOOT, "service": f"vision/{name}", "past_s": past_s},
        )


def learned(world: World) -> dict[str, float]:
    DemandMemory(world.database, MemoryClock()).learn(LEADER)
    return world.database.read(telemetry.memories_s)


def seen(world: World) -> dict[str, Demand]:
    return {each.service: each for each in StoreObserver(world.database, CLUSTER).observe().demands}


def test_a_wave_is_let_go_sooner_and_spikes_are_not(world: World) -> None:
    world.build(service("labels"), service("search"))
    counted(world, "labels", WAVE)
    counted(world, "search", SPIKES)
    before = seen(world)
    assert before["vision/labels"].rate_rps_upper == pytest.approx(500.0, rel=0.01)
    assert learned(world) == {"vision/labels": 60.0}
    after = seen(world)
    assert after["vision/labels"].rate_rps_upper == pytest.approx(300.0 + 200.0 * 0.67, rel=0.03)
    assert after["vision/labels"].window_s == 60.0
    assert after["vision/labels"].rate_rps_mean == pytest.approx(before["vision/labels"].rate_rps_mean, rel=0.01)
    assert after["vision/search"].rate_rps_upper == before["vision/search"].rate_rps_upper == pytest.approx(400.0)
    assert after["vision/search"].window_s == pytest.approx(600.0, abs=6.0)


def test_a_policy_may_have_all_of_it_remembered(world: World) -> None:
    """Also where it was learned before; and no longer than the policy says."""
    world.build(service("labels"))
    counted(world, "labels", WAVE)
    assert learned(world) == {"vision/labels": 60.0}
    world.policy = replace(POLICY, demand_lookback_learned=False)
    world.declare(world.policy)
    assert seen(world)["vision/labels"].window_s == pytest.approx(600.0, abs=6.0)
    assert learned(world) == {}
    world.declare(POLICY)
    assert learned(world) == {"vision/labels": 60.0}
    world.declare(replace(POLICY, demand_lookback_s=30.0))
    assert seen(world)["vision/labels"].window_s == pytest.approx(30.0, abs=6.0)
    assert learned(world) == {}


def test_what_is_known_of_a_service_ends_with_it_and_with_its_past(world: World) -> None:
    world.build(service("labels"))
    counted(world, "labels", WAVE)
    counted(world, "gone", WAVE)
    assert learned(world) == {"vision/labels": 60.0}
    world.rows("DELETE FROM rate_samples WHERE received_at < now() - interval '15 min' RETURNING 1")
    assert learned(world) == {}


def test_times_in_which_nobody_counted_show_nothing(world: World) -> None:
    """Twice nobody counted a steady load for eleven minutes; a wave was counted for ten, and once an hour ago."""
    world.build(service("labels"), service("search"))
    counted(world, "labels", "100")
    counted(world, "search", WAVE)
    gone = "DELETE FROM rate_samples WHERE service = :service AND extract(epoch FROM now() - received_at) % 1500 < 660"
    world.rows(gone.replace(":service", "'vision/labels'") + " RETURNING 1")
    old = "received_at BETWEEN now() - interval '58 min' AND now() - interval '10 min'"
    world.rows(f"DELETE FROM rate_samples WHERE service = 'vision/search' AND {old} RETURNING 1")
    assert learned(world) == {}


def test_however_short_the_memory_who_was_counted_in_the_last_minute_has_that_rate(world: World) -> None:
    world.policy = replace(POLICY, demand_lookback_s=30.0)
    world.build(service("labels"), world.policy)
    counted(world, "labels", WAVE)
    world.rows("DELETE FROM rate_samples WHERE received_at > now() - interval '45 s' RETURNING 1")
    (found,) = seen(world).values()
    assert found.origin is DemandOrigin.OBSERVED
    assert found.rate_rps_upper == pytest.approx(300.0 + 200.0 * 0.62, rel=0.03)


def test_nobody_looks_at_an_hour_again_at_once(world: World) -> None:
    """A look took a tick; it rests for a hundred."""
    world.build(service("labels"))
    clock = MemoryClock()
    remembering = DemandMemory(world.database, clock)
    remembering.learn(LEADER)
    counted(world, "labels", WAVE)
    for _ in range(int(RESTS) - 1):
        remembering.learn(LEADER)
    assert world.database.read(telemetry.memories_s) == {}
    for _ in range(2):
        remembering.learn(LEADER)
    assert world.database.read(telemetry.memories_s) == {"vision/labels": 60.0}
