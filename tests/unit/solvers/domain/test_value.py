"""The checks that all values share: what they let through, what they refuse, and that they name the field."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Annotated

import pytest

from solvers.domain.device import Label
from solvers.domain.value import (
    NAME,
    check_distinct,
    check_finite,
    check_name,
    check_not_negative,
    check_positive,
    check_range,
    check_text,
    distinct,
    each,
    rising,
    value,
    within,
)
from solvers.errors import FieldError

NUMBERS: dict[str, Callable[[float | None], None]] = {
    "finite": lambda number: check_finite("field", number),
    "positive": lambda number: check_positive("field", number),
    "not negative": lambda number: check_not_negative("field", number),
    "range": lambda number: check_range("field", number, 0, 10),
}
TEXTS: dict[str, Callable[[str], None]] = {
    "name": lambda text: check_name("field", text),
    "text": lambda text: check_text("field", text, 8),
}


def _refused(check: Callable[..., None], item: object) -> bool:
    """Whether the check refuses it; if so, the field must be named."""
    try:
        check(item)
    except FieldError as error:
        return (error.field, error.message.split()[0]) == ("field", "field")
    return False


@pytest.mark.parametrize("check", NUMBERS.values(), ids=NUMBERS)
def test_no_number_check_lets_nan_or_infinity_through(check: Callable[[float | None], None]) -> None:
    assert all(_refused(check, number) for number in (math.nan, math.inf, -math.inf))
    assert not any(_refused(check, number) for number in (None, 1e-9, 10.0))


@pytest.mark.parametrize(
    ("kind", "number", "refused"),
    [
        ("positive", 0.0, True),
        ("positive", -1e-9, True),
        ("not negative", 0.0, False),
        ("not negative", -1e-9, True),
        ("range", 0.0, False),
        ("range", 10.0, False),
        ("range", -1e-9, True),
        ("range", 10.000001, True),
        ("finite", -5.0, False),
    ],
)
def test_bounds_belong_to_the_range(kind: str, number: float, refused: bool) -> None:
    assert _refused(NUMBERS[kind], number) is refused


@pytest.mark.parametrize("name", ["a", "0", "resnet-50.v1_b", "a" * 63])
def test_a_name_may_stand_in_a_path(name: str) -> None:
    assert not _refused(TEXTS["name"], name)


@pytest.mark.parametrize("name", ["", "A", "-a", "a-", "a/b", "a b", "a\n", "ä", "a" * 64, ".."])
def test_what_could_not_stand_in_a_path_is_no_name(name: str) -> None:
    assert _refused(TEXTS["name"], name)


def test_text_is_printable_and_bounded() -> None:
    assert not any(_refused(TEXTS["text"], text) for text in ("x", "GPU-1 ä", "x" * 8))
    assert all(_refused(TEXTS["text"], text) for text in ("", "x" * 9, "a\tb", "a\x7f"))


def test_a_repeated_item_is_named() -> None:
    check_distinct("field", (1, "1", None))
    with pytest.raises(FieldError, match="names t4 twice"):
        check_distinct("field", iter(["t4", "l4", "t4"]))


def test_values_are_keyword_only_closed_and_do_not_change() -> None:
    label = Label(key="team", value="vision")
    with pytest.raises(FrozenInstanceError):
        label.value = "speech"  # type: ignore[misc]
    with pytest.raises(TypeError):
        Label("team", "vision")  # type: ignore[call-arg]
    assert Label.__pydantic_config__ == {"extra": "forbid"}  # type: ignore[attr-defined]
    assert not hasattr(label, "__dict__")


@value
class Limited:
    """Limits of every form."""

    share_pct: Annotated[int, within(1, 100)] = 1
    names: Annotated[tuple[str, ...], each(NAME)] = ()
    labels: Annotated[tuple[Label, ...], distinct("key")] = ()
    sizes: Annotated[tuple[int, ...], rising(64)] = (1,)


@value
class Narrower(Limited):
    """One more rule, told by itself."""

    def __post_init__(self) -> None:
        if len(self.sizes) > 2:
            raise FieldError("sizes", "sizes are two at most")


@pytest.mark.parametrize("kind", [Limited, Narrower])
@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("share_pct", 0),
        ("names", ("good", "No Name")),
        ("labels", (Label(key="a", value="1"), Label(key="a", value="2"))),
        ("sizes", ()),
        ("sizes", (2, 1)),
        ("sizes", (0, 1)),
        ("sizes", (1, 65)),
    ],
)
def test_limits_beside_types_hold_for_the_class_and_for_what_is_made_of_it(
    kind: type[Limited], field: str, wrong: object
) -> None:
    with pytest.raises(FieldError) as caught:
        kind(**{field: wrong})
    assert caught.value.field == field


def test_a_class_keeps_its_own_rules_beside_limits() -> None:
    assert Limited(sizes=(1, 2, 4)).sizes == (1, 2, 4)
    with pytest.raises(FieldError, match="two at most"):
        Narrower(sizes=(1, 2, 4))
