"""A registry of metrics with what every process tells: what it is and what it uses."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, disable_created_metrics

from solvers.version import VERSION


def process_registry() -> CollectorRegistry:
    """Never the process-wide default one."""
    # A moment of creation beside every counter doubles the page and tells no more than the start of the process.
    disable: Callable[[], None] = disable_created_metrics
    disable()
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    built = Gauge("headroom_build_info", "What runs here.", ("version",), registry=registry)
    built.labels(VERSION).set(1.0)
    return registry
