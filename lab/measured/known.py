"""What predictors may know of a data set without measuring: GPU specifications and descriptions of its networks.

Owns the match of a source's model names to the shipped descriptions. The built-in library of fitted coefficients is
kept out on purpose: part of it was fitted to the very rows that are asked for here.
"""

from __future__ import annotations

from dataclasses import replace

from app.library import load_gpu_types, load_models
from solvers.domain.ids import ModelName
from solvers.domain.workload import ModelVariant
from solvers.models.base import Facts, Queries

_SAME = {
    "bert": "bert-large", "inceptionv1": "googlenet", "mnasnet": "mnasnet1_0", "mobilenet": "mobilenet_v1",
    "mobilenetv11": "mobilenet_v1", "mobilenetv21": "mobilenet_v2", "resnet50v15": "resnet50", "resnet": "resnet50",
    "resnetv250": "resnet50", "resnetv2152": "resnet152", "ssd": "ssd-resnet50", "vgg": "vgg19", "vggs": "vgg16",
    "bertbaseuncased": "bert-base", "bertlargeuncased": "bert-large", "bertlarge": "bert-large",
}  # fmt: skip
_FRAMEWORKS = ("-pytorch", "-mxnet", "-tensorflow", "-onnx", "-trt", "-paddlepaddle")


def _key(name: str) -> str:
    return "".join(letter for letter in name if letter.isalnum())


def _described(name: str, by_key: dict[str, ModelVariant]) -> ModelVariant | None:
    stem = name
    for framework in _FRAMEWORKS:
        stem = stem.split(framework)[0]
    for candidate in (name, stem, stem.split(".")[0], stem.removesuffix("_v1")):
        key = _key(candidate)
        found = by_key.get(key) or by_key.get(_key(_SAME.get(key, "")))
        if found is not None:
            return found
    return None


def facts_for(queries: Queries) -> Facts:
    """GPU types of the catalogue, and the networks that a table's model names mean, under those names."""
    by_key = {_key(model.name): model for model in load_models()}
    described = {name: _described(name, by_key) for name in queries.models}
    return Facts(
        gpu_types={gpu_type.name: gpu_type for gpu_type in load_gpu_types()},
        models={name: replace(found, name=ModelName(name)) for name, found in described.items() if found is not None},
    )
