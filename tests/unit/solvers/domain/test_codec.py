"""Decoding is strict and says where: a JSON pointer for every wrong type, unknown or missing field and broken rule."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from solvers.domain.codec import canonical_json, digest, from_json, from_plain, picture_digest, to_plain
from solvers.domain.device import PriceKind, PriceRow
from solvers.domain.ids import Digest
from solvers.domain.profile import ProfileGrid
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Service
from solvers.errors import FieldError
from tests import builders

PLAIN: Any = to_plain(builders.lab([builders.service()]))

WRONG: dict[str, tuple[tuple[str | int, ...], Any]] = {
    "/devices/1/memory_mib": (("devices", 1, "memory_mib"), "much"),
    "/devices/0/schedulable": (("devices", 0, "schedulable"), 1),
    "/devices/0/index": (("devices", 0, "index"), True),
    "/gpu_types/0/sm_count": (("gpu_types", 0, "sm_count"), 40.5),
    "/gpu_types/0/prices": (("gpu_types", 0, "prices"), {"kind": "spot"}),
    "/gpu_types/0/prices/0/kind": (("gpu_types", 0, "prices", 0, "kind"), "stolen"),
    "/services/0/slo/latency_ms": (("services", 0, "slo", "latency_ms"), -1),
    "/services/0/slo": (("services", 0, "slo"), None),
    "/services/0/surprise": (("services", 0, "surprise"), 1),
    "/policy/stale_after_s": (("policy", "stale_after_s"), "30"),
    "/profiles/0/points/2/batch": (("profiles", 0, "points", 2, "batch"), 0),
    "/target/generation": (("target", "generation"), None),
}


@pytest.mark.parametrize("pointer", sorted(WRONG))
def test_a_wrong_place_is_pointed_at(pointer: str) -> None:
    plain = copy.deepcopy(PLAIN)
    *path, last = WRONG[pointer][0]
    place = plain
    for step in path:
        place = place[step]
    place[last] = WRONG[pointer][1]
    with pytest.raises(FieldError) as caught:
        from_plain(Snapshot, plain)
    assert caught.value.field == pointer


def test_a_missing_field_is_pointed_at() -> None:
    plain = copy.deepcopy(PLAIN)
    del plain["devices"][3]["gpu_type"]
    with pytest.raises(FieldError, match="missing") as caught:
        from_plain(Snapshot, plain)
    assert caught.value.field == "/devices/3/gpu_type"


@pytest.mark.parametrize("text", ["[]", "null", '"text"', "5"])
def test_what_is_no_object_is_refused_at_the_root(text: str) -> None:
    with pytest.raises(FieldError) as caught:
        from_json(Service, text)
    assert caught.value.field == "/"


def test_older_documents_take_defaults_and_null_stays_null() -> None:
    plain = {key: item for key, item in PLAIN["services"][0].items() if key not in ("priority", "affinity")}
    assert from_plain(Service, {**plain, "policy": None}) == builders.service()


def test_a_retired_field_of_an_older_document_is_read_over_in_its_place_alone() -> None:
    plain = copy.deepcopy(PLAIN)
    plain["gpu_types"][0] |= {"architecture": "Turing", "l2_mib": 4, "clocks_mhz_memory": [405, 5001]}
    assert from_plain(Snapshot, plain) == from_plain(Snapshot, PLAIN)
    plain["devices"][0]["architecture"] = "Turing"
    with pytest.raises(FieldError, match="/devices/0/architecture: unknown field"):
        from_plain(Snapshot, plain)


def test_equal_numbers_have_one_text() -> None:
    row = PriceRow(kind=PriceKind.SPOT, usd_per_h=2.0)
    assert '"usd_per_h":2}' in canonical_json(row)
    assert digest(row) == digest(replace(row, usd_per_h=2))
    assert digest(replace(row, usd_per_h=-0.0)) == digest(replace(row, usd_per_h=0))
    assert digest(replace(row, usd_per_h=2.0000001)) != digest(row)


def test_keys_are_sorted_and_order_of_writing_does_not_matter() -> None:
    backwards = dict(reversed(list(PLAIN.items())))
    assert digest(from_plain(Snapshot, backwards)) == digest(from_plain(Snapshot, PLAIN))
    keys = list(json.loads(canonical_json(builders.lab())))
    assert keys == sorted(keys)


def test_what_has_no_canonical_form_is_refused() -> None:
    with pytest.raises(FieldError, match="set has no canonical form"):
        canonical_json({1, 2})
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json(float("nan"))


class Mass(float):
    """A number of another type, as numerical libraries have them."""


def test_long_lists_of_numbers_keep_types_texts_and_pointers() -> None:
    grid = ProfileGrid(
        clocks_mhz_sm=(600, 1200),
        shares_pct_sm=(50, 100),
        batches=(1,),
        latency_ms=(4.0, 2.5, Mass(3.25), -0.0),
        memory_mib=(900.5,),
    )
    text = canonical_json(grid)
    assert '"latency_ms":[4,2.5,3.25,0]' in text
    back = from_json(ProfileGrid, text)
    assert back == grid
    assert {type(number) for number in back.latency_ms} == {float}
    assert {type(number) for number in back.clocks_mhz_sm} == {int}


@pytest.mark.parametrize(
    ("field", "numbers", "pointer"),
    [
        ("latency_ms", [1.0, 2.0, "3", 4.0], "/latency_ms/2"),
        ("latency_ms", [1.0, True, 3.0, 4.0], "/latency_ms/1"),
        ("batches", [1.0], "/batches/0"),
        ("batches", [True], "/batches/0"),
    ],
)
def test_a_wrong_entry_of_a_long_list_is_pointed_at(field: str, numbers: list[object], pointer: str) -> None:
    plain = {
        "clocks_mhz_sm": [600, 1200],
        "shares_pct_sm": [50, 100],
        "batches": [1],
        "latency_ms": [1.0, 2.0, 3.0, 4.0],
        "memory_mib": [900.5],
    }
    from_plain(ProfileGrid, copy.deepcopy(plain))
    with pytest.raises(FieldError) as caught:
        from_plain(ProfileGrid, {**plain, field: numbers})
    assert caught.value.field == pointer


def test_the_digest_of_the_latest_picture_is_its_own() -> None:
    one = builders.lab([builders.service()])
    other = replace(one, taken_at_s=one.taken_at_s + 1)
    found = [picture_digest(item) for item in (one, one, other, one, replace(one))]
    assert found == [digest(item) for item in (one, one, other, one, one)]
    assert found[0] != found[2]


def test_a_digest_found_elsewhere_is_waited_for_once_and_for_that_picture_alone() -> None:
    one, other = builders.lab([builders.service()]), builders.lab([builders.service("speech")])
    told = Digest("sha256:told")
    waited: list[object] = []

    def wait(item: object) -> Digest:
        waited.append(item)
        return told

    picture_digest.found_elsewhere(one, wait)
    assert picture_digest(other) == digest(other)
    assert [picture_digest(one), picture_digest(one)] == [told, told]
    assert waited == [one]
    assert picture_digest(other) == digest(other)
    assert picture_digest(one) == digest(one)


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_long_lists_written_some_at_a_time_are_the_same_text(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    picture = builders.lab([builders.service()])
    whole = json.dumps(to_plain(picture), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    monkeypatch.setattr("solvers.domain.codec.AT_ONCE", at_once)
    assert canonical_json(picture) == whole
    mixed = f"[{canonical_json(picture.services)},[],[1,2.5,null]]"
    assert canonical_json((picture.services, (), (1.0, 2.5, None))) == mixed
