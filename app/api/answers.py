"""Answers: what a service found, as the JSON that its route describes."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi.responses import JSONResponse

from app.records import plain


def answer(found: object, status: int = 200, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """A record, a page of them, or a value of the core."""
    return JSONResponse(plain(found), status_code=status, headers=dict(headers or {}))
