"""What other distributions offer is found by name, and a user's own policy exactly as the published ones are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from solvers import extensions
from solvers.errors import EngineError, InputError
from solvers.models.suite import Suite, suites
from solvers.planners import registry
from tests import laws

POLICY = """
from solvers.planners.greedy.planner import Greedy
from solvers.planners.base import PlannerSpec

class Mine(Greedy):
    @property
    def spec(self):
        return PlannerSpec(name="mine", version="1", about="as greedy", knobs=())
"""


@pytest.fixture
def fresh() -> Iterator[None]:
    extensions.found.cache_clear()
    yield
    extensions.found.cache_clear()


def _installed(folder: Path, name: str, entry_points: str) -> None:
    told = folder / f"{name}-1.dist-info"
    told.mkdir()
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (told / "entry_points.txt").write_text(entry_points)


@pytest.mark.usefixtures("fresh")
def test_a_users_policy_is_found_as_the_published_ones_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_policy_of_a_user.py").write_text(POLICY)
    _installed(tmp_path, "own-policy", "[headroom.planners]\nmine = own_policy_of_a_user:Mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert {"mine", "inss", "joint"} <= set(registry.names())
    listed = registry.listing(registry.create("mine"))
    assert (listed.name, listed.about) == ("mine", "as greedy")


@pytest.mark.usefixtures("fresh")
def test_two_distributions_cannot_offer_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(tmp_path, "impostor", "[headroom.planners]\njoint = elsewhere:Joint\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"joint is offered to .* twice"):
        registry.names()


@pytest.mark.usefixtures("fresh")
def test_without_the_laboratory_the_product_still_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    every = extensions.entry_points

    def of_the_product(*, group: str) -> list[extensions.EntryPoint]:
        return [entry for entry in every(group=group) if not entry.value.startswith("lab.")]

    monkeypatch.setattr(extensions, "entry_points", of_the_product)
    published = {"hetsev", "inss", "morak", "mudi", "oltunes"}
    assert published | {"joint", "greedy", "keep-target"} <= set(registry.names())
    with pytest.raises(EngineError):
        registry.create("gavel")
    assert "mf" not in suites()
    assert all(Suite.fresh(name, laws.facts()).name == name for name in suites())


@pytest.mark.usefixtures("fresh")
def test_files_that_were_copied_and_not_installed_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_nobody(*, group: str) -> list[extensions.EntryPoint]:
        return []

    monkeypatch.setattr(extensions, "entry_points", of_nobody)
    with pytest.raises(InputError, match="copied here, not installed"):
        Suite.fresh("headroom", laws.facts())
    assert not extensions.found(extensions.COMMANDS)
