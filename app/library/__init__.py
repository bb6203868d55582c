"""What every installation knows before anything is measured: GPU types with prices, networks, fitted coefficients, step
costs of LLMs.

`docs/reference/library.md` says what the files hold and where it comes from. They are written by `make library` and
never by hand.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from solvers.domain.codec import Plain, from_json, from_plain
from solvers.domain.device import GpuType
from solvers.domain.workload import ModelVariant
from solvers.models.base import Facts
from solvers.models.library import Library
from solvers.models.serving.token_library import LlmLibrary


def _plain(name: str) -> Plain:
    found: Plain = json.loads(files(__name__).joinpath(name).read_text(encoding="utf-8"))
    return found


def _items(name: str) -> list[Plain]:
    plain = _plain(name)
    assert isinstance(plain, list)
    return plain


@cache
def load_gpu_types() -> tuple[GpuType, ...]:
    """The GPU catalogue, in rising order of names."""
    return tuple(from_plain(GpuType, item) for item in _items("gpu_types.json"))


@cache
def load_models() -> tuple[ModelVariant, ...]:
    """Public networks, in rising order of names."""
    return tuple(from_plain(ModelVariant, item) for item in _items("models.json"))


@cache
def load_library() -> Library:
    """Coefficients fitted to public measurements, each with source, licence and fit error."""
    return from_plain(Library, _plain("library.json"))


def facts() -> Facts:
    """All of it, as performance models take it."""
    return Facts(
        gpu_types={gpu_type.name: gpu_type for gpu_type in load_gpu_types()},
        models={model.name: model for model in load_models()},
        library=load_library(),
    )


@cache
def load_llm_library() -> LlmLibrary:
    return from_json(LlmLibrary, files(__name__).joinpath("llm.json").read_text(encoding="utf-8"))
