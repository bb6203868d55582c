"""Only GPUs that were named are used."""

from __future__ import annotations

import pytest

from agents.devices.nvml.boards import parse_selection
from agents.errors import ConfigError
from tests.standins.nvml import NvmlStandIn
from tests.unit.agents.devices.nvml.conftest import Opener, with_gpus


@pytest.mark.parametrize(
    ("text", "prefixes"),
    [
        ("nvml:all", ()),
        ("nvml:GPU-12ab", ("GPU-12ab",)),
        ("nvml:GPU-12ab, MIG-77", ("GPU-12ab", "MIG-77")),
    ],
)
def test_a_selection_is_read(text: str, prefixes: tuple[str, ...]) -> None:
    assert parse_selection(text) == prefixes


@pytest.mark.parametrize("text", ["nvml:", "nvml", "all", "nvml:0,1", "nvml:GPU-a,", "fake:T4", "nvml:all,GPU-1"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected nvml:all or nvml:GPU-UUID"):
        parse_selection(text)


@with_gpus("t4", "t4", "h100")
def test_the_named_gpus_are_taken(host: NvmlStandIn, opened: Opener) -> None:
    chosen = opened(f"nvml:{host.uuids[2][:12]},{host.uuids[0]}")
    assert [device.uuid for device in chosen.inventory()] == [host.uuids[0], host.uuids[2]]


@with_gpus("t4", "t4")
def test_a_prefix_must_fit_one_gpu(host: NvmlStandIn, opened: Opener) -> None:
    with pytest.raises(ConfigError, match="fits several GPUs"):
        opened("nvml:GPU-")
    with pytest.raises(ConfigError, match="no usable GPU's UUID begins with GPU-zz"):
        opened("nvml:GPU-zz")


@with_gpus("t4", "a100-40gb-mig")
def test_a_cut_gpu_s_uuid_takes_its_slices(host: NvmlStandIn, opened: Opener) -> None:
    parent, (first, second) = host.uuids[1], host.plans[1].migs
    assert [device.uuid for device in opened(f"nvml:{parent}").inventory()] == [first.uuid, second.uuid]
    assert [device.uuid for device in opened(f"nvml:{second.uuid}").inventory()] == [second.uuid]


@with_gpus("t4", "t4")
def test_a_gpu_that_cannot_be_opened_is_left_out_and_named(host: NvmlStandIn, opened: Opener) -> None:
    host.forbid_handle(host.uuids[0])
    boards = opened()
    assert [device.uuid for device in boards.inventory()] == [host.uuids[1]]
    assert len(boards.notes) == 1
    assert "GPU 0 is left out" in boards.notes[0]
    assert "NVML 4" in boards.notes[0]
    with pytest.raises(ConfigError, match="GPU 0 is left out"):
        opened(f"nvml:{host.uuids[0]}")


@with_gpus("t4", "t4")
def test_a_lost_gpu_does_not_take_the_others_along(host: NvmlStandIn, opened: Opener) -> None:
    host.lose(host.uuids[1])
    boards = opened()
    assert [device.uuid for device in boards.inventory()] == [host.uuids[0]]
    assert "NVML 15" in boards.notes[0]


def test_no_usable_gpu_is_an_error(host: NvmlStandIn, opened: Opener) -> None:
    host.forbid_handle(host.uuids[0])
    with pytest.raises(ConfigError, match="no NVIDIA GPU can be used here: GPU 0 is left out"):
        opened()
