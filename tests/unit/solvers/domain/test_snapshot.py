"""What a snapshot looks up: values by id."""

from __future__ import annotations

from tests import builders


def test_values_are_found_by_their_own_ids() -> None:
    picture = builders.lab([builders.service()], jobs=(builders.job(),), tasks=(builders.task(),))
    assert picture.devices_by_id()["GPU-b-1"].gpu_type == "v100"  # type: ignore[index]
    assert set(picture.services_by_id()) == {"demo/vision"}
    assert set(picture.tasks_by_id()) == {"demo/batch"}
    assert set(picture.profiles_by_key()) == {("resnet50", name) for name in ("a100", "l4", "t4", "v100")}
    assert picture.demands_by_service() == {}
