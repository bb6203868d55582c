"""The table of what was measured, alone or beside an earlier measurement and what is aimed at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Target = Callable[[float], float]
"""The most there may be, by what there was before."""


def at_most(number: float) -> Target:
    """The same whatever there was."""
    return lambda _: number


def a_third(before: float) -> float:
    """Of what there was."""
    return before // 3


ROWS: dict[str, str] = {
    "product_lines": "product: lines",
    "product_modules": "product: modules",
    "product_median": "product: lines a module, median",
    "product_p90": "product: lines a module, p90",
    "product_max": "product: lines a module, max",
    "laboratory_lines": "laboratory: lines",
    "laboratory_modules": "laboratory: modules",
    "laboratory_median": "laboratory: lines a module, median",
    "laboratory_p90": "laboratory: lines a module, p90",
    "laboratory_max": "laboratory: lines a module, max",
    "house_lines": "product and laboratory: lines",
    "house_modules": "product and laboratory: modules",
    "tests_lines": "tests: lines",
    "tests_modules": "tests: modules",
    "benchmarks_lines": "benchmarks: lines",
    "benchmarks_modules": "benchmarks: modules",
    "migrations_lines": "migrations: lines",
    "migrations_modules": "migrations: modules",
    "single_importers": "modules with one importer",
    "single_importer_siblings": "- a sibling in the same folder",
    "prefix_families": "prefix families of three or more",
    "prefix_family_modules": "- modules in them",
    "classes": "classes",
    "namesake_classes": "- that share their name",
    "namesakes_pct": "- in percent",
    "mixed_tuple_parameters": "parameters that are mixed tuples",
    "mixed_tuple_parameters_in_joint": "- in planners/joint",
    "collections_of_mixed_tuples": "parameters that are collections of mixed tuples",
    "equal_tuple_parameters": "parameters that are tuples of equal types",
    "mixed_tuple_results": "results that are mixed tuples",
    "trip_joint_rooms": "request's way in joint: rooms",
    "trip_joint_returns": "- returns",
    "trip_joint_hops": "- different hops",
    "trip_joint_given": "- rooms handed the very request",
    "trip_solvers_rooms": "request's way in solvers: rooms",
    "trip_solvers_returns": "- returns",
    "trip_solvers_hops": "- different hops",
    "trip_solvers_given": "- rooms handed the very request",
    "joint_reachable_modules": "joint, by imports: modules reached",
    "joint_reachable_folders": "- folders entered",
    "imports": "imports between modules",
    "arrows_against_layers": "- against the layers",
    "circles_of_siblings": "circles between siblings of app and agents",
    "rooms_in_circles": "- rooms in them",
    "functions_over_60_lines": "functions over 60 lines",
    "functions_over_6_arguments": "functions over 6 arguments",
    "unreached_modules": "modules that no entry point reaches",
    "unreached_lines": "- lines",
    "sleeps_in_tests": "time.sleep in tests",
    "type_ignores": "type: ignore",
    "noqas": "noqa",
    "type_ignores_in_tests": "type: ignore in tests",
    "noqas_in_tests": "noqa in tests",
    "server_install_mb": "server install, MB",
    "server_distributions": "- distributions",
}
TARGETS: dict[str, Target] = {
    "product_lines": at_most(80_000),
    "laboratory_lines": at_most(22_000),
    "house_modules": at_most(600),
    "single_importer_siblings": at_most(60),
    "prefix_families": at_most(0),
    "mixed_tuple_parameters": at_most(0),
    "namesakes_pct": at_most(12),
    "trip_joint_rooms": a_third,
    "trip_joint_returns": a_third,
    "arrows_against_layers": at_most(0),
    "circles_of_siblings": at_most(0),
    "server_install_mb": at_most(550),
}
LISTS = ("rooms", "worst_namesakes", "prefix_families", "unreached_modules", "largest_distributions_mb")


def table(found: dict[str, Any], before: dict[str, Any] | None = None) -> str:
    """All rows; with an earlier measurement each beside it, its target and whether that is reached."""
    width = max(map(len, ROWS.values()))
    numbers = found["numbers"]
    if before is None:
        lines = [f"{'revision':{width}}  {found['revision']:>10}"]
        lines += [f"{label:{width}}  {_shown(numbers[name]):>10}" for name, label in ROWS.items()]
        return "\n".join([*lines, *_lists(found["places"])])
    lines = [f"{'':{width}}  {'before':>10}  {'after':>10}  {'target':>10}"]
    lines.append(f"{'revision':{width}}  {before['revision']:>10}  {found['revision']:>10}")
    for name, label in ROWS.items():
        was = before["numbers"].get(name)
        line = f"{label:{width}}  {_shown(was):>10}  {_shown(numbers[name]):>10}"
        if name in TARGETS and was is not None:
            target = TARGETS[name](was)
            line += f"  {'<= ' + _shown(target):>10}  {'reached' if numbers[name] <= target else 'open'}"
        lines.append(line)
    return "\n".join([*lines, *_lists(found["places"])])


def _shown(number: float | None) -> str:
    return "-" if number is None else f"{number:,.1f}".removesuffix(".0")


def _lists(places: dict[str, Any]) -> list[str]:
    lines = []
    for name in LISTS:
        lines += ["", name.replace("_", " ")]
        for item, value in places[name].items():
            shown = (
                ", ".join(f"{key} {_shown(part)}" for key, part in value.items()) if isinstance(value, dict) else value
            )
            lines.append(f"  {item}: {shown}")
    return lines
