"""The built-in library as a value: what our own code fitted to public measurements, each with source and error.

The numbers themselves are data that the shell ships and loads, and what they mean is known to `solvers.models.belief`.
Here is also when two names mean one network or one product. Numbers without a source are refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Annotated

from solvers.domain.value import NAME, NOT_NEGATIVE, TEXT, check_distinct, value
from solvers.errors import FieldError


@value
class LibraryEntry:
    """What is known of one model on one GPU type.

    `parameters` are those of the belief's shape, in its order; `spread` the standard deviation of each, on the scale
    that the shape learns on (logarithms where it says so).
    """

    model: Annotated[str, NAME]
    gpu_type: Annotated[str, NAME]
    parameters: tuple[float, ...]
    spread: tuple[float, ...]
    error_pct_mean: Annotated[float, NOT_NEGATIVE]
    points: Annotated[int, NOT_NEGATIVE]
    source: Annotated[str, TEXT]
    licence: Annotated[str, TEXT]

    def __post_init__(self) -> None:
        if len(self.parameters) != len(self.spread):
            raise FieldError("spread", "spread must have as many numbers as parameters")


@value
class Library:
    """Entries and what all models have in common: mean and covariance (rows) of the shape's parameters over models."""

    version: Annotated[str, TEXT]
    shape_version: Annotated[str, TEXT]
    population_mean: tuple[float, ...]
    population_covariance: tuple[tuple[float, ...], ...]
    entries: tuple[LibraryEntry, ...] = ()

    def __post_init__(self) -> None:
        check_distinct("entries", ((entry.model, entry.gpu_type) for entry in self.entries))
        if any(len(row) != len(self.population_mean) for row in self.population_covariance):
            raise FieldError("population_covariance", "population_covariance must be as wide as population_mean")

    def entry(self, model: str, gpu_type: str) -> LibraryEntry | None:
        """What is known of this model on this GPU type, however the names are written."""
        key = name_key(model), gpu_key(gpu_type)
        return next((entry for entry in self.entries if (name_key(entry.model), gpu_key(entry.gpu_type)) == key), None)


_SAME_NETWORK = {
    "bert": "bertbase",
    "bertbaseuncased": "bertbase",
    "bertlargeuncased": "bertlarge",
    "efficientnet": "efficientnetb0",
    "gpt2small": "gpt2",
    "inception": "inceptionv3",
    "mobilenet": "mobilenetv1",
    "resnet50v1.5": "resnet50",
    "rn50": "resnet50",
    "roberta": "robertabase",
    "ssd": "ssdresnet50",
    "transformer": "transformermt",
    "vitbase": "vitb16",
    "vitlarge": "vitl16",
    "yolov5": "yolov5s",
}
_SAME_PRODUCT = {
    "a100.80gb": "a100",
    "a100sxm": "a100",
    "a100sxm80gb": "a100",
    "a100sxm4.80gb": "a100",
    "a100sxm40gb": "a100.40gb",
    "a100sxm4.40gb": "a100.40gb",
    "a100pcie": "a100pcie40gb",
    "a100.80gbpcie": "a100pcie80gb",
    "a6000": "rtxa6000",
    "h100sxm": "h100",
    "h100sxm5": "h100",
    "h100.80gb": "h100",
    "h100.80gbhbm3": "h100",
    "p100pcie": "p100",
    "p100pcie16gb": "p100",
    "titanx": "titanxpascal",
    "v100.32gb": "v100",
    "v100sxm2": "v100",
    "v100sxm2.16gb": "v100.16gb",
    "v100sxm2.32gb": "v100",
    "v100pcie": "v100pcie16gb",
}
_VENDOR = re.compile(r"^(?:nvidia|tesla|geforce)[\W_]+")


@lru_cache(maxsize=4096)
def _key(name: str) -> str:
    # Between two digits a separator tells 1.6 from 16, elsewhere it is taste.
    parted = re.sub(r"(?<=\d)[^a-z0-9]+(?=\d)", ".", name.lower())
    return re.sub(r"[^a-z0-9.]|(?<!\d)\.|\.(?!\d)", "", parted)


@lru_cache(maxsize=4096)
def name_key(name: str) -> str:
    """What stays of a model's name when only spelling differs: `ResNet-50`, `resnet_50` and `resnet50` have one key,
    `regnet_x_1_6gf` and `regnet_x_16gf` two.
    """
    key = _key(name)
    return _SAME_NETWORK.get(key, key)


@lru_cache(maxsize=1024)
def gpu_key(name: str) -> str:
    """The same for GPU types: vendor and brand do not count, and the usual longer names of some products are known."""
    bare = name.lower()
    while (shorter := _VENDOR.sub("", bare)) != bare:
        bare = shorter
    key = _key(bare)
    return _SAME_PRODUCT.get(key, key)


def spelled(name: str, names: Collection[str]) -> str | None:
    """Which of `names` is meant by `name`: itself, the one with the same key, or else the longest of which `name` is a
    variant (`resnet50-int8` of `resnet50`).
    """
    known = {name_key(item): item for item in names}
    whole = name_key(name)
    if whole in known:
        return known[whole]
    # A variant is named by what follows a separator, so cut there, from the right. Short forms are none of that: a
    # `bert-tiny` is no `bert-base`, though `bert` alone is.
    plain = {_key(item): item for item in names}
    for end in sorted((match.start() for match in re.finditer(r"[^A-Za-z0-9]+", name)), reverse=True):
        if (found := plain.get(_key(name[:end]))) is not None:
            return found
    return None


def one_spelling(name: str, names: Collection[str]) -> str:
    """The same for every spelling of a network: as `names` has it, a variant's with what it adds, of others the key."""
    network = spelled(name, names)
    if network is None or name_key(name) == name_key(network):
        return network or name_key(name)
    return f"{network}-{_key(name).removeprefix(_key(network)).lstrip('.')}"
