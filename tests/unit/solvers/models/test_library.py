"""Names that mean one network or one product, and what the library refuses."""

from __future__ import annotations

import pytest

from solvers.errors import FieldError
from solvers.models.library import Library, LibraryEntry, gpu_key, name_key, spelled

ENTRY = LibraryEntry(
    model="resnet50",
    gpu_type="v100",
    parameters=(1.0, 2.0),
    spread=(0.1, 0.2),
    error_pct_mean=3.0,
    points=12,
    source="a test",
    licence="MIT",
)


def library(*entries: LibraryEntry) -> Library:
    return Library(
        version="1+test",
        shape_version="1",
        population_mean=(0.0, 0.0),
        population_covariance=((1.0, 0.0), (0.0, 1.0)),
        entries=entries,
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ResNet-50", "resnet50"),
        ("resnet_50", "resnet50"),
        ("inception-v3", "inceptionv3"),
        ("BERT_Base", "bert-base"),
        ("bert", "bert-base"),
        ("llama-2-7b", "Llama2-7B"),
        ("llama-3.1-8b", "Llama_3.1_8B"),
    ],
)
def test_spellings_of_one_network(one: str, other: str) -> None:
    assert name_key(one) == name_key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("regnet_x_1_6gf", "regnet_x_16gf"), ("resnet50", "resnet500"), ("llama-3.1-8b", "llama-3-8b")],
)
def test_different_networks(one: str, other: str) -> None:
    assert name_key(one) != name_key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("RTX3090", "rtx-3090"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("A100-80GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("V100-32GB", "v100"),
    ],
)
def test_spellings_of_one_product(one: str, other: str) -> None:
    assert gpu_key(one) == gpu_key(other)


def test_different_products() -> None:
    keys = {gpu_key(name) for name in ("a100", "a100-40gb", "a100-pcie-80gb", "v100", "v100-16gb", "a10", "a10g")}
    assert len(keys) == 7


def test_variants_are_found_by_what_comes_before() -> None:
    names = ("resnet50", "bert-base", "bert-large", "gpt2", "gpt2-medium")
    assert spelled("ResNet-50", names) == "resnet50"
    assert spelled("resnet50-int8", names) == "resnet50"
    assert spelled("bert-large-trt-fp16", names) == "bert-large"
    assert spelled("gpt2-medium-onnx", names) == "gpt2-medium"
    assert spelled("gpt2-onnx", names) == "gpt2"
    assert spelled("bert", names) == "bert-base"
    assert spelled("bert-tiny", names) is None
    assert spelled("resnet500", names) is None


def test_entries_are_found_however_they_are_written() -> None:
    assert library(ENTRY).entry("ResNet-50", "Tesla V100") is ENTRY
    assert library(ENTRY).entry("resnet50", "a100") is None


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(FieldError, match="twice"):
        library(ENTRY, ENTRY)
    with pytest.raises(FieldError, match="wide"):
        Library(version="1", shape_version="1", population_mean=(0.0,), population_covariance=((1.0, 2.0),), entries=())
    with pytest.raises(FieldError, match="as many"):
        LibraryEntry(
            model="m", gpu_type="g", parameters=(1.0,), spread=(), error_pct_mean=0.0, points=0, source="s", licence="l"
        )
