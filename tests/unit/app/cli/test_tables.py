"""Words that stand in tables: what is cheaper is called cheaper, with what speaks against it."""

from __future__ import annotations

from typing import Any

import pytest

from app.cli.tables import candidate_table, forced_line
from headroom_client import Document


def _item(more: float, **fact: float) -> Document:
    facts = [{"name": name, "value": value} for name, value in fact.items()]
    candidate = {
        "workload": "a/b", "gpu_type": "l4", "model": "m", "chosen": False, "feasible": True, "replicas": 1.5,
        "share_pct_sm": 20, "batch": 8, "clock_mhz_sm": 1000, "latency_ms": 9.0, "usd_per_h": 0.5,
        "usd_per_h_more": more, "reasons": [{"code": "rejected_alternative", "subject": "l4", "facts": facts}],
    }  # fmt: skip
    return {"candidate": candidate, "sentence": ""}


@pytest.mark.parametrize(
    ("more", "less", "cell", "words"),
    [
        (-0.1423, 0.1423, "-0.1423", "cheaper by 0.1423 in parts of devices, but no plan found gains by it"),
        (0.0, 0.0, "0", "costs the same"),
        (-1e-6, 1e-6, "0", "costs the same"),
    ],
)
def test_a_candidate_that_is_no_dearer(more: float, less: float, cell: str, words: str) -> None:
    (table,) = candidate_table([_item(more, usd_per_h_less_at_shadow_prices=less)])
    (line,) = table.lines
    assert (str(line[-2]), line[-1]) == (cell, words)


@pytest.mark.parametrize(
    ("more", "short", "unserved", "words"),
    [
        (0.5, 0.0, 0.0, "$3.00/h: $0.5000/h more."),
        (0.0, 0.0, 0.0, "$3.00/h: no more than now."),
        (-0.5, 4.0, 4.0, "$3.00/h: $0.5000/h less, but 4 requests/s of it are not served."),
        (-0.5, 0.0, 4.0, "$3.00/h: $0.5000/h less, but others are served less for it."),
        (0.5, 4.0, 4.0, "$3.00/h: $0.5000/h more, and 4 requests/s of it are not served."),
    ],
)
def test_what_a_forced_type_costs(more: float, short: float, unserved: float, words: str) -> None:
    forced: dict[str, Any] = {
        "workload": "a/b", "gpu_type": "l4", "cost_usd_per_h": 3.0, "cost_usd_per_h_more": more,
        "rate_rps_short": short, "unserved_more": unserved,
    }  # fmt: skip
    assert forced_line(forced).endswith(words)
