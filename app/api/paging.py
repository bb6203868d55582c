"""Pages of lists: how many items, and the opaque cursor to go on from. Cursors are the store's; the limit is capped
here.
"""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

from fastapi import Depends, Query, Request
from pydantic import BaseModel, ConfigDict

from app.store.pages import PageOrder

T = TypeVar("T")
PAGE_SIZE = 100


class Page(BaseModel, Generic[T]):
    """Items and where to go on; a null cursor ends the list."""

    model_config = ConfigDict(extra="forbid")

    items: list[T]
    next_cursor: str | None


def page_order(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1_000_000, description="Most items; capped by the server.")] = PAGE_SIZE,
    cursor: Annotated[
        str | None,
        Query(max_length=2000, pattern=r"^[A-Za-z0-9_-]+$", description="`next_cursor` of the page before."),
    ] = None,
) -> PageOrder:
    """Read limit and cursor."""
    cap: int = request.app.state.context.settings.page_size_max
    return PageOrder(limit=min(limit, cap), cursor=cursor)


Paging = Annotated[PageOrder, Depends(page_order)]
