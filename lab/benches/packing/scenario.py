"""Scenario files of kind `packing`: hosts and pods, spelt out or read from the openb cluster (Alibaba 2023).

Owns the form and the reading: CPU, memory and GPUs of hosts; CPU, memory, GPUs and allowed GPU models of pods.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from lab.arena.loading import Document, Heading, ScenarioForm
from lab.benches.packing.allocation import WHOLE_MILLI, Asks, EmptyHost
from lab.benches.packing.bench import PodPacking
from lab.outcome import Bench, Better

FOLDER = "alibaba-gpu-v2023-openb"
MIB_PER_GIB = 1024
CPU_MILLI = 1000
Count = Annotated[int, Field(ge=1, le=100_000)]
Pod = tuple[int, int, int, int, tuple[str, ...]]
"""CPU (thousandths), memory (MiB), GPUs, thousandths of each, models allowed (none: any)."""


class HostForm(ScenarioForm):
    """Equal hosts."""

    gpu_model: str
    count: Count = 1
    cpus: Annotated[int, Field(ge=1, le=1024)]
    memory_gib: Annotated[int, Field(ge=1, le=65_536)]
    gpus: Annotated[int, Field(ge=1, le=16)]


class PodForm(ScenarioForm):
    """Equal pods."""

    count: Count = 1
    cpus: Annotated[int, Field(ge=0, le=1024)]
    memory_gib: Annotated[int, Field(ge=0, le=65_536)] = 0
    gpus: Annotated[int, Field(ge=0, le=16)] = 1
    gpu_milli: Annotated[int, Field(ge=1, le=WHOLE_MILLI)] = WHOLE_MILLI
    """Of one GPU; pods of several have whole ones."""
    gpu_models: tuple[str, ...] = ()


class OpenbForm(ScenarioForm):
    """The openb cluster with one of its lists of pods."""

    pods: Literal["default", "gpushare60", "gpuspec33", "multigpu50"] = "default"


class PackingForm(Heading):
    """Pods that come one by one."""

    kind: Literal["packing"]
    goal: str = "allocated_pct_at_100"
    better: Better = Better.HIGHER
    openb: OpenbForm | None = None
    hosts: tuple[HostForm, ...] = ()
    pods: tuple[PodForm, ...] = ()
    arrived_pct: Annotated[float, Field(ge=10, le=200)] = 130.0
    """Until so much of all GPUs was asked for."""
    drawn: bool = False
    """Every pod is drawn from the list, instead of the list in a random order first."""


FORM = PackingForm


def build(form: PackingForm, document: Document) -> Bench:
    """The bench of a file. Raises InputError."""
    if form.openb is not None and (form.hosts or form.pods):
        raise document.refusal(("openb",), "say hosts and pods, or openb")
    if form.openb is None and not (form.hosts and form.pods):
        raise document.refusal((), "needs hosts and pods, or openb")
    hosts = _openb_hosts(document) if form.openb is not None else _hosts(form)
    pods = _openb_pods(document, form.openb.pods) if form.openb is not None else _pods(form)
    models = sorted({model for model, _ in hosts})
    for index, each in enumerate(form.pods):
        for model in each.gpu_models:
            if model not in models:
                raise document.refusal(("pods", index, "gpu_models"), f"no host has a {model}")
    kinds = sorted(set(pods))
    number = {kind: index for index, kind in enumerate(kinds)}
    return PodPacking(
        about=form.about(),
        asks=_asks(kinds, models),
        hosts=tuple(EmptyHost(models.index(model), *sizes) for model, sizes in hosts),
        pods=np.array([number[pod] for pod in pods], dtype=np.int64),
        arrived_part=form.arrived_pct / 100,
        drawn=form.drawn,
    )


def _asks(kinds: list[Pod], models: list[str]) -> Asks:
    return Asks(
        cpu_milli=np.array([kind[0] for kind in kinds], dtype=np.int64),
        memory_mib=np.array([kind[1] for kind in kinds], dtype=np.int64),
        gpus=np.array([kind[2] for kind in kinds], dtype=np.int64),
        gpu_milli=np.array([kind[3] for kind in kinds], dtype=np.int64),
        allowed=np.array([[not kind[4] or model in kind[4] for model in models] for kind in kinds], dtype=np.bool_),
    )


def _hosts(form: PackingForm) -> list[tuple[str, tuple[int, int, int]]]:
    return [
        (each.gpu_model, (each.cpus * CPU_MILLI, each.memory_gib * MIB_PER_GIB, each.gpus))
        for each in form.hosts
        for _ in range(each.count)
    ]


def _pods(form: PackingForm) -> list[Pod]:
    return [
        (
            each.cpus * CPU_MILLI,
            each.memory_gib * MIB_PER_GIB,
            each.gpus,
            0 if each.gpus == 0 else each.gpu_milli if each.gpus == 1 else WHOLE_MILLI,
            tuple(sorted(set(each.gpu_models))),
        )
        for each in form.pods
        for _ in range(each.count)
    ]


def _openb_hosts(document: Document) -> list[tuple[str, tuple[int, int, int]]]:
    read = document.rows(("openb",), FOLDER, "openb_node_list_gpu_node.csv")
    return [(row["model"], (int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]))) for row in read]


def _openb_pods(document: Document, name: str) -> list[Pod]:
    read = document.rows(("openb", "pods"), FOLDER, f"openb_pod_list_{name}.csv")
    return [
        (
            int(row["cpu_milli"]),
            int(row["memory_mib"]),
            int(row["num_gpu"]),
            int(row["gpu_milli"]) if int(row["num_gpu"]) else 0,
            tuple(sorted({model for model in (row.get("gpu_spec") or "").split("|") if model})),
        )
        for row in read
    ]
