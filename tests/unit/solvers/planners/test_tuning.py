"""Parameters by name: what is published can be set, and nothing else."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from solvers.domain.value import value
from solvers.errors import FieldError
from solvers.planners.tuning import Counts, Scalar, Tune, ValueKind, check_tuned, parameters_of, tuned


@value
class Knobs:
    flag: Annotated[bool, Tune("a flag")] = False
    whole: Annotated[int, Tune("a count", 1, 8)] = 2
    number: Annotated[float, Tune("a part", 0, 1)] = 0.5
    word: Annotated[str, Tune("a word", choices=("a", "b"))] = "a"
    sizes: Annotated[tuple[int, ...], Tune("sizes", 1, 100)] = (20, 40)
    each: Annotated[Counts, Tune("a count for each name")] = Counts("a=2")

    def __post_init__(self) -> None:
        check_tuned(self)


def test_a_record_publishes_what_its_fields_say() -> None:
    published = {item.name: item for item in parameters_of(Knobs())}
    assert list(published) == ["flag", "whole", "number", "word", "sizes", "each"]
    assert [item.kind for item in published.values()] == [
        ValueKind.FLAG, ValueKind.WHOLE, ValueKind.NUMBER, ValueKind.CHOICE, ValueKind.WHOLES, ValueKind.COUNTS,
    ]  # fmt: skip
    assert [item.default for item in published.values()] == [False, 2.0, 0.5, "a", "20,40", "a=2"]
    assert published["whole"].allowed == "a whole number from 1 to 8"
    assert published["word"].allowed == "one of a, b"


@pytest.mark.parametrize(
    ("settings", "made"),
    [
        ({}, Knobs()),
        ({"flag": True, "whole": 8}, Knobs(flag=True, whole=8)),
        ({"whole": 3.0, "number": 1}, Knobs(whole=3, number=1.0)),
        ({"word": "b", "sizes": "5,50,100"}, Knobs(word="b", sizes=(5, 50, 100))),
        ({"sizes": 30.0}, Knobs(sizes=(30,))),
        ({"each": "resnet50=8, bert=2"}, Knobs(each=Counts("resnet50=8, bert=2"))),
        ({"each": ""}, Knobs(each=Counts())),
    ],
)
def test_settings_are_read_into_the_record(settings: dict[str, Scalar], made: Knobs) -> None:
    assert tuned(Knobs(), settings, "mine") == made


def test_defaults_can_be_set_as_they_are_published() -> None:
    for item in parameters_of(Knobs()):
        assert tuned(Knobs(), {item.name: item.default}, "mine") == Knobs()


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("flag", 1), ("flag", "true"), ("whole", True), ("whole", 1.5), ("whole", 0), ("whole", 9), ("whole", "2"),
        ("whole", float("inf")), ("number", float("nan")), ("number", 1.01), ("number", False), ("word", "c"),
        ("word", 1), ("sizes", "40,20"), ("sizes", "20,20"), ("sizes", "0,20"), ("sizes", "20,x"), ("sizes", ""),
        ("sizes", 20.5), ("sizes", True), ("each", "a"), ("each", "a=0"), ("each", "a=1,a=2"), ("each", "=1"),
        ("each", 1),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_what_can(name: str, setting: Scalar) -> None:
    with pytest.raises(FieldError, match=f"mine's parameter {name} must be ") as caught:
        tuned(Knobs(), {name: setting}, "mine")
    assert caught.value.field == name


def test_an_unknown_name_is_refused_with_those_that_exist() -> None:
    with pytest.raises(FieldError, match="mine has no parameter size; it has flag, whole, number, word, sizes, each"):
        tuned(Knobs(), {"size": 1}, "mine")
    with pytest.raises(FieldError, match="mine has no parameter size; it has none"):
        tuned(None, {"size": 1}, "mine")


@pytest.mark.parametrize("changes", [{"whole": 0}, {"number": 2.0}, {"word": "c"}, {"sizes": ()}])
def test_code_is_held_to_the_same_ranges(changes: dict[str, Any]) -> None:
    with pytest.raises(FieldError):
        Knobs(**changes)
