"""Which option wins for which ask."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers.problems.choice import ChoiceAsk, OptionChoice, Options, choose, replicas_for


def options(*rows: tuple[float, float, float], room: tuple[float, ...] = ()) -> Options:
    """Rows of capacity, weight and latency; the price is the weight, a GPU share a tenth per row."""
    capacity, weight, latency = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    whole = np.arange(len(rows), dtype=np.int64) + 1
    return Options(
        device_class=np.zeros_like(whole),
        batch=whole,
        share_pct=10 * whole,
        memory_mib=64 * whole,
        latency_ms=latency,
        capacity_rps=capacity,
        power_w=np.ones(len(rows)),
        usd_per_h=weight,
        weight_usd_per_h=weight,
        gpus=whole / 10,
        room_gpus=np.array(room, dtype=np.float64) if room else np.ones(len(rows)),
        batch_min=whole,
        batch_max=whole,
    )


SMALL_AND_LARGE = options((10.0, 1.0, 5.0), (100.0, 7.0, 5.0))


def ask(rate_rps: float, **changes: object) -> ChoiceAsk:
    made = ChoiceAsk(rate_rps=rate_rps, floor=0, ceiling=16, room=np.full(2, 16.0))
    return replace(made, **changes)  # type: ignore[arg-type]


def chosen(wanted: ChoiceAsk, among: Options = SMALL_AND_LARGE) -> OptionChoice:
    choice = choose(among, wanted)
    assert choice is not None
    return choice


def test_the_cheapest_total_wins_not_the_cheapest_rate() -> None:
    assert (chosen(ask(15.0)).option, chosen(ask(15.0)).replicas) == (0, 2)
    assert (chosen(ask(95.0)).option, chosen(ask(95.0)).replicas) == (1, 1)


def test_a_hair_above_a_whole_number_is_not_another_replica() -> None:
    assert replicas_for(20.0 + 1e-9, np.array([10.0]))[0] == 2
    assert replicas_for(20.1, np.array([10.0]))[0] == 3


def test_serving_more_comes_before_price() -> None:
    assert chosen(ask(60.0, ceiling=5)).option == 1
    partial = chosen(ask(60.0, ceiling=5, room=np.array([5.0, 0.0])))
    assert (partial.option, partial.replicas, partial.short_rps) == (0, 5, pytest.approx(10.0))


def test_floor_budget_and_quota_bound_the_count() -> None:
    assert chosen(ask(0.0, floor=3)).replicas == 3
    assert chosen(ask(95.0, budget_usd_per_h=4.0)).replicas == 4
    assert chosen(ask(95.0, budget_usd_per_h=4.0)).option == 0
    assert chosen(ask(95.0, quota_gpus=0.1)).replicas == 1
    assert choose(SMALL_AND_LARGE, ask(95.0, budget_usd_per_h=0.5)) is None


def test_nothing_wanted_or_possible_is_no_choice() -> None:
    assert choose(SMALL_AND_LARGE, ask(0.0)) is None
    assert choose(SMALL_AND_LARGE, ask(10.0, room=np.zeros(2))) is None


def test_fewest_prefers_few_large_replicas() -> None:
    assert chosen(ask(15.0, fewest=True)).option == 1


def test_at_one_price_more_capacity_then_less_latency_wins() -> None:
    among = options((20.0, 1.0, 5.0), (30.0, 1.0, 9.0))
    assert chosen(ask(15.0), among).option == 1
    among = options((30.0, 1.0, 9.0), (30.0, 1.0, 5.0))
    assert chosen(ask(15.0), among).option == 1


def test_free_devices_always_fit_a_budget() -> None:
    among = options((20.0, 0.0, 5.0), (30.0, 1.0, 9.0))
    assert chosen(ask(15.0, budget_usd_per_h=0.0), among).option == 0


def test_where_nothing_costs_anything_the_least_room_wins() -> None:
    among = options((90.0, 0.0, 5.0), (30.0, 0.0, 9.0), room=(1.0, 0.2))
    assert chosen(ask(15.0), among).option == 1
