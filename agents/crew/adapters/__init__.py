"""Model servers by name, and what a change of a worker's description takes.

Owns the table of adapters and `restart_needed`, by which steps are planned: whether a running process can become the
wanted one at all.
"""

from __future__ import annotations

from dataclasses import replace

from agents.crew.adapters.base import LIVE, RESTART, ServerAdapter, Talk
from agents.crew.adapters.plain import PLAIN
from agents.crew.adapters.tensorflow import TENSORFLOW
from agents.crew.adapters.torchserve import TORCHSERVE
from agents.crew.adapters.triton import TRITON
from agents.crew.adapters.vllm import VLLM
from agents.devices.base import WorkerSpec
from agents.errors import NotSupportedError
from agents.wire import WorkerTarget

__all__ = ["ADAPTERS", "ServerAdapter", "Talk", "adapter_of", "batch_change_of", "batch_untold", "restart_needed"]

ADAPTERS = {adapter.name: adapter for adapter in (PLAIN, TRITON, VLLM, TORCHSERVE, TENSORFLOW)}


def adapter_of(worker: WorkerTarget) -> ServerAdapter:
    """The adapter a worker names. Raises NotSupportedError."""
    adapter = ADAPTERS.get(worker.adapter)
    if adapter is None:
        raise NotSupportedError(f"no adapter {worker.adapter!r}; there are {', '.join(sorted(ADAPTERS))}")
    return adapter


def batch_change_of(worker: WorkerTarget) -> str:
    """How this worker gets another batch size: as it says, but never by less than its server can. A `reload` where
    the server takes it live is live.
    """
    return RESTART if worker.batch_change == RESTART else adapter_of(worker).batch_change


def batch_untold(worker: WorkerTarget) -> bool:
    """Whether nothing in how this worker is started says its batch size, though its server can be told one: then it
    comes up with what its own files say.
    """
    texts = (*worker.command, *(text for _, text in worker.environment))
    if any("{batch}" in text for text in texts) or batch_change_of(worker) == RESTART:
        return False
    # Workers that speak plain HTTP need not take batch sizes; who says that they do is believed.
    return adapter_of(worker).retune is not None and (adapter_of(worker) is not PLAIN or worker.batch_change == LIVE)


def restart_needed(held: WorkerSpec, wanted: WorkerSpec) -> bool:
    """Whether only a new process can be as wanted, by what its server can be told while it runs. Share and memory are
    not looked at: they always need one. Simulated workers, which have no process, never do.
    """
    if held.worker is None or wanted.worker is None:
        return False
    if _started_with(held.worker) != _started_with(wanted.worker):
        return True
    return held.batch != wanted.batch and batch_change_of(wanted.worker) == RESTART


def _started_with(worker: WorkerTarget) -> WorkerTarget:
    """A description without what the agent alone goes by, and may change at any time."""
    return replace(worker, batch_change=None, ready_path=None, metrics_path=None, warm_up=None, drain_s=0.0, stop_s=0.0)
