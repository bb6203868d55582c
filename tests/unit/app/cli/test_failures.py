"""Exit codes and one-line errors: every expected error has its code, and its sentence names what helps."""

from __future__ import annotations

import pytest

from app.cli.output import CommandError, Exit, exit_code_of, sentence_of
from app.client import ApiError, UnreachableError
from solvers.errors import (
    EngineError,
    FieldError,
    InputError,
    InvariantError,
    LeaseLostError,
    NotFoundError,
    SupersededError,
    TransientError,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ApiError(401, {}), Exit.REFUSED),
        (ApiError(403, {}), Exit.REFUSED),
        (ApiError(404, {}), Exit.NOT_FOUND),
        (ApiError(409, {}), Exit.CONFLICT),
        (ApiError(412, {}), Exit.CONFLICT),
        (ApiError(413, {}), Exit.USAGE),
        (ApiError(422, {}), Exit.USAGE),
        (ApiError(429, {}), Exit.FAILED),
        (ApiError(500, {}), Exit.FAILED),
        (ApiError(503, {}), Exit.FAILED),
        (UnreachableError("x"), Exit.UNREACHABLE),
        (TransientError("x"), Exit.UNREACHABLE),
        (NotFoundError("x"), Exit.NOT_FOUND),
        (SupersededError("x"), Exit.CONFLICT),
        (LeaseLostError("x"), Exit.CONFLICT),
        (InputError("x"), Exit.USAGE),
        (FieldError("f", "x"), Exit.USAGE),
        (EngineError("x"), Exit.FAILED),
        (InvariantError("x"), Exit.FAILED),
        (CommandError("x", Exit.FOUND_WRONG), Exit.FOUND_WRONG),
        (ModuleNotFoundError("x", name="sqlalchemy.orm"), Exit.NEEDS_EXTRA),
        (ModuleNotFoundError("x", name="pyarrow.parquet"), Exit.NEEDS_EXTRA),
        (ModuleNotFoundError("x", name="app.nonsense"), Exit.FAILED),
        (ValueError("x"), Exit.FAILED),
    ],
)
def test_every_error_has_its_exit_code(error: Exception, code: Exit) -> None:
    assert exit_code_of(error) is code


def test_a_problem_is_told_with_its_fields() -> None:
    faults = [{"pointer": "/rate", "detail": "must not be negative"}, {"pointer": "", "detail": "no more"}]
    error = ApiError(422, {"detail": "2 fields are invalid", "code": "field-invalid", "errors": faults})
    assert sentence_of(error) == "2 fields are invalid; /rate: must not be negative; no more (field-invalid)"


def test_a_server_fault_is_told_with_its_request() -> None:
    error = ApiError(500, {"detail": "broken", "code": "internal", "request_id": "r-1"})
    assert sentence_of(error) == "broken (internal, request r-1)"


def test_a_missing_extra_is_told_with_the_cure() -> None:
    sentence = sentence_of(ModuleNotFoundError("No module", name="fastapi"))
    assert sentence is not None
    assert "needs headroom[server]" in sentence


def test_files_are_named_and_bugs_are_not_explained_away() -> None:
    assert (
        sentence_of(FileNotFoundError(2, "No such file or directory", "x.yaml")) == "x.yaml: No such file or directory"
    )
    assert sentence_of(ValueError("x")) is None
    assert sentence_of(ModuleNotFoundError("x", name="app.nonsense")) is None


@pytest.mark.parametrize(("module", "extra"), [("numpy.linalg", "server"), ("pyarrow", "arena")])
def test_a_missing_extra_is_named(module: str, extra: str) -> None:
    sentence = sentence_of(ModuleNotFoundError("x", name=module))
    assert sentence is not None
    assert sentence.endswith(f'pip install "headroom[{extra}]"')
