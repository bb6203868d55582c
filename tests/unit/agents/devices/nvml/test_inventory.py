"""What a device is, and what it can do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from agents.devices.nvml.inventory import PRODUCTS, gpu_type_of, product_key, sm_count_of_cores, sm_count_of_product
from agents.errors import DeviceTimeoutError, DriverError, NotFoundError
from tests.standins.nvml import PRESETS, Lacks, Missing, NvmlStandIn
from tests.unit.agents.devices.nvml.conftest import Opener, with_gpus

CAN = {"set_clock", "set_power", "set_compute_mode", "set_persistence", "mps", "mig", "gpm"}


def test_a_t4_is_a_t4(host: NvmlStandIn, opened: Opener) -> None:
    boards = opened()
    (found,) = boards.inventory()
    assert (found.uuid, found.gpu_type, found.product, found.index) == (host.uuids[0], "t4", "Tesla T4", 0)
    assert (found.memory_mib, found.sm_count) == (15360 - 256, 40)
    assert found.clocks_mhz_sm == tuple(range(300, 1591, 15))
    assert (found.power_limit_w_min, found.power_limit_w_max) == (60.0, 70.0)
    assert (found.parent_uuid, found.mig_profile, found.driver_version) == (None, None, "615.71.05")
    facts = boards.facts(found.uuid)
    assert facts.cuda_version == 13040
    assert facts.sm_count_source == "cores"


@with_gpus("t4", "h100", "rtx-4090", "v100")
def test_every_verb_is_spoken_of(host: NvmlStandIn, opened: Opener) -> None:
    t4, h100, *_ = opened().inventory()
    assert t4.capabilities is not None
    assert h100.capabilities is not None
    assert set(t4.capabilities) == set(h100.capabilities) == CAN
    assert {verb for verb, reason in t4.capabilities.items() if reason} == {"mig", "gpm"}
    assert {verb for verb, reason in h100.capabilities.items() if reason} == {"mig"}
    assert h100.capabilities["mig"] == "MIG is off"
    assert t4.capabilities["mig"] == "this product has no MIG"


@with_gpus(
    replace(PRESETS["t4"], lacks=Lacks.POWER_LIMIT | Lacks.CLOCK_LOCK | Lacks.PERSISTENCE),
    replace(PRESETS["t4"], compute_capability=(6, 1), cores_per_sm=128),
)
def test_laptops_and_old_cards_say_what_they_cannot(host: NvmlStandIn, opened: Opener) -> None:
    laptop, old = opened().inventory()
    assert laptop.capabilities is not None
    assert laptop.capabilities["set_power"] == "this product's power limit cannot be set"
    assert laptop.capabilities["set_clock"] == "this product's SM clock cannot be locked"
    assert laptop.capabilities["set_persistence"] == "this driver has no persistence mode"
    assert laptop.clocks_mhz_sm == (1590,)
    assert laptop.power_limit_w_min == laptop.power_limit_w_max == 70.0
    assert old.capabilities is not None
    assert old.capabilities["mps"] == "shares under MPS need Volta or newer"
    assert old.capabilities["set_clock"] != ""


@with_gpus("a100-40gb-mig", "t4")
def test_mig_devices_are_devices_and_their_gpu_is_none(host: NvmlStandIn, opened: Opener) -> None:
    boards = opened()
    large, small, t4 = boards.inventory()
    assert [large.mig_profile, small.mig_profile, t4.mig_profile] == ["3g.20gb", "1g.5gb", None]
    assert large.parent_uuid == small.parent_uuid == host.uuids[0]
    assert large.uuid.startswith("MIG-")
    assert (large.gpu_type, large.sm_count, large.memory_mib) == ("a100-40gb", 42, 19968)
    assert (small.sm_count, small.memory_mib) == (14, 4864)
    assert boards.facts(small.uuid).sm_count_source == "attributes"
    assert large.capabilities is not None
    assert large.capabilities["set_power"] == large.capabilities["set_clock"] != ""
    assert large.capabilities["set_compute_mode"] == large.capabilities["mig"] == ""


@with_gpus(replace(PRESETS["a100-40gb"], lacks=0), "t4")
def test_a_gpu_in_mig_mode_without_slices_is_left_out(host: NvmlStandIn, opened: Opener) -> None:
    host.gpu(host.uuids[0]).mig_mode = 1
    boards = opened()
    assert [device.uuid for device in boards.inventory()] == [host.uuids[1]]
    assert boards.notes == ("GPU 0 is left out: MIG is on and it has no MIG devices",)


@with_gpus("a100-40gb-mig", "t4")
def test_slices_that_may_not_be_opened_leave_only_their_gpu_out(
    host: NvmlStandIn, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(board: object, slot: int) -> None:
        raise pynvml.NVMLError(4)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigDeviceHandleByIndex", forbidden)
    boards = opened()
    assert [device.uuid for device in boards.inventory()] == [host.uuids[1]]
    assert "GPU 0 is left out" in boards.notes[0]


@with_gpus("a100-40gb-mig")
def test_a_slice_s_geometry_is_worked_out_where_its_name_does_not_say(
    host: NvmlStandIn, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda handle: "NVIDIA A100-SXM4-40GB")
    assert [device.mig_profile for device in opened().inventory()] == ["3g.20gb", "1g.5gb"]


def test_an_old_library_tells_less_and_that_is_enough(host: NvmlStandIn, opened: Opener) -> None:
    host.miss(Missing.CORES | Missing.MEMORY_V2 | Missing.GPM | Missing.TEMPERATURE_V | Missing.EVENT_REASONS)
    boards = opened()
    (found,) = boards.inventory()
    assert (found.sm_count, found.memory_mib) == (40, 15360)
    assert boards.facts(found.uuid).sm_count_source == "table"


@with_gpus(replace(PRESETS["t4"], product="NVIDIA T5000", lacks=Lacks.CORES | Lacks.MIG))
def test_an_sm_count_that_nobody_knows_is_not_invented(host: NvmlStandIn, opened: Opener) -> None:
    boards = opened()
    (facts,) = boards.devices()
    assert facts.sm_count is None
    assert boards.inventory() == ()
    with pytest.raises(DriverError, match="number of SMs is not known"):
        facts.inventory()
    boards.correct_sm_counts({facts.uuid: 44})
    (found,) = boards.inventory()
    assert (found.sm_count, found.gpu_type) == (44, "t5000")
    assert boards.facts(facts.uuid).sm_count_source == "probe"


def test_an_unknown_device_is_not_found(opened: Opener) -> None:
    boards = opened()
    for ask in (boards.settings, boards.reading, boards.processes):
        with pytest.raises(NotFoundError):
            ask("GPU-other")


@pytest.mark.parametrize("code", [9, 18])
def test_a_missing_or_mismatched_driver_is_said(host: NvmlStandIn, opened: Opener, code: int) -> None:
    host.fail_init(code)
    with pytest.raises(DriverError, match=rf"NVML {code}\)"):
        opened()


def test_a_driver_that_hangs_at_the_start_is_said(host: NvmlStandIn, opened: Opener) -> None:
    host.hang(60_000)
    try:
        with pytest.raises(DeviceTimeoutError):
            opened(timeout_s=0.05)
    finally:
        host.hang(0)


# --- Products become the GPU types of the catalogue.


CATALOGUE = json.loads(
    (Path(__file__).resolve().parents[5] / "app" / "library" / "gpu_types.json").read_text(encoding="utf-8")
)


def catalogue() -> list[dict[str, object]]:
    items = CATALOGUE if isinstance(CATALOGUE, list) else next(v for v in CATALOGUE.values() if isinstance(v, list))
    assert len(items) > 40
    return items


def test_the_table_agrees_with_the_catalogue() -> None:
    for item in catalogue():
        product = str(item["product"])
        assert gpu_type_of(product) == item["name"], product
        assert sm_count_of_product(product) == item["sm_count"], product
    assert {name for name, _ in PRODUCTS.values()} == {str(item["name"]) for item in catalogue()}


@pytest.mark.parametrize(
    ("product", "gpu_type"),
    [
        ("Tesla T4", "t4"),
        ("NVIDIA T4", "t4"),
        ("GeForce RTX 2080 Ti", "rtx-2080ti"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080ti"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "a100-40gb"),
        ("NVIDIA Tesla V100-SXM2-32GB", "v100"),
        ("NVIDIA GeForce RTX 3060", "rtx-3060"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("Graphics Device", "graphics-device"),
        ("(?)", "unknown"),
    ],
)
def test_products_have_types(product: str, gpu_type: str) -> None:
    assert gpu_type_of(product) == gpu_type


def test_an_unknown_product_has_no_sm_count() -> None:
    assert sm_count_of_product("NVIDIA GeForce RTX 3060") is None
    assert len(gpu_type_of("x" * 200)) == 63
    assert product_key("NVIDIA RTX PRO 6000 Blackwell Server Edition") == "rtx-pro-6000-blackwell-server-edition"


@pytest.mark.parametrize(
    ("cores", "capability", "sm_count"),
    [
        (2560, (7, 5), 40),
        (5120, (7, 0), 80),
        (6912, (8, 0), 108),
        (9216, (8, 6), 72),
        (16896, (9, 0), 132),
        (18944, (10, 0), 148),
        (24064, (12, 0), 188),
        (6913, (8, 0), None),
        (0, (8, 0), None),
        (1000, (99, 0), None),
    ],
)
def test_cores_give_sms(cores: int, capability: tuple[int, int], sm_count: int | None) -> None:
    assert sm_count_of_cores(cores, capability) == sm_count
