"""Cursors come back as the key they were made of, and nothing else passes for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.store.pages import cut, decode_cursor, encode_cursor
from solvers.errors import FieldError

PRINTABLE = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(st.text("abc", min_size=1), PRINTABLE, st.integers(-(2**63), 2**63))
def test_a_cursor_gives_its_key_back(listing: str, name: str, number: int) -> None:
    assert decode_cursor(listing, encode_cursor(listing, (name, number)), (str, int)) == (name, number)


@given(PRINTABLE, st.integers(0, 200), st.sampled_from("Aa0-_"))
def test_an_edited_cursor_is_refused(name: str, place: int, letter: str) -> None:
    cursor = encode_cursor("plans", (name,))
    at = place % len(cursor)
    edited = cursor[:at] + letter + cursor[at + 1 :]
    if edited == cursor:
        edited += "A"
    with pytest.raises(FieldError):
        decode_cursor("plans", edited, (str,))


@pytest.mark.parametrize("cursor", ["", "x", "%%%", "nul\x00", "é", encode_cursor("other", ("a",)), "A" * 10_000])
def test_anything_else_is_refused(cursor: str) -> None:
    with pytest.raises(FieldError) as caught:
        decode_cursor("plans", cursor, (str,))
    assert caught.value.field == "cursor"


@pytest.mark.parametrize("key", [("a", "b"), (1,), ()])
def test_a_key_of_another_shape_is_refused(key: tuple[str | int, ...]) -> None:
    with pytest.raises(FieldError):
        decode_cursor("plans", encode_cursor("plans", key), (str,))


def test_a_page_knows_whether_more_follows() -> None:
    full = cut("plans", ["a", "b", "c"], 2, lambda name: (name,))
    assert full.items == ("a", "b")
    assert full.next_cursor == encode_cursor("plans", ("b",))
    last = cut("plans", ["a", "b"], 2, lambda name: (name,))
    assert (last.items, last.next_cursor) == (("a", "b"), None)
    assert cut("plans", [], 2, str).next_cursor is None  # type: ignore[arg-type]
