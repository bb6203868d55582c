"""Reads the shipped step costs of LLMs. The file is written by `make library`; `docs/reference/library.md` says from
what."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from solvers.domain.codec import from_json
from solvers.models.serving.token_library import LlmLibrary

FILE = "llm.json"


@cache
def load_llm_library() -> LlmLibrary:
    """The library of LLMs."""
    return from_json(LlmLibrary, files(__package__).joinpath(FILE).read_text(encoding="utf-8"))
