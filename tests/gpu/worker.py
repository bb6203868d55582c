"""A worker with a real network of random weights, for measuring: executes whole batches on request.

`GET /execute?batches=N` runs N batches back to back and answers with what each took; each counts as `--batch` requests
in Headroom's own metrics. So the time of a batch is measured without an HTTP server's limits in it. `GET /infer` runs
one, `GET /allocate?mib=N` tries to hold that much memory. `--captured` replays each batch as one CUDA graph, as engines
do that are compiled ahead; without it PyTorch launches kernel by kernel. `--network train:NAME` trains. Needs PyTorch;
named networks need torchvision, too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TRAINING = "train:"


class Network:
    """A network on the GPU and its counters."""

    def __init__(self, name: str, batch: int, *, captured: bool) -> None:
        import torch

        self._torch = torch
        self._lock = threading.Lock()
        self._captured = captured
        self._train = name.startswith(TRAINING)
        self._model, self._shape = build(torch, name.removeprefix(TRAINING))
        if self._train:
            self._model = self._model.bfloat16().train()
            self._optimiser = torch.optim.SGD(self._model.parameters(), lr=1e-6)
        self.set_batch(batch)
        self.requests = self.batches = 0
        self.seconds = 0.0
        self._held: list[Any] = []
        self.execute(3)
        self.requests = self.batches = 0
        self.seconds = 0.0

    def set_batch(self, batch: int) -> None:
        """Take batches of this size from now on."""
        torch = self._torch
        with self._lock:
            self.batch = batch
            kind = torch.bfloat16 if self._train else torch.float16
            self._input = torch.randn(batch, *self._shape, device="cuda", dtype=kind)
            self._run = self._iterate if self._train else self._recorded() if self._captured else self._forward

    def execute(self, batches: int) -> list[float]:
        """Run batches one after the other; the seconds that each took."""
        took = []
        with self._lock:
            for _ in range(batches):
                begun = time.perf_counter()
                self._run()
                self._torch.cuda.synchronize()
                took.append(time.perf_counter() - begun)
                self.seconds += took[-1]
                self.batches += 1
                self.requests += self.batch
        return took

    def _forward(self) -> None:
        with self._torch.inference_mode():
            self._model(self._input)

    def _iterate(self) -> None:
        self._optimiser.zero_grad(set_to_none=True)
        self._model(self._input).float().mean().backward()
        self._optimiser.step()

    def _recorded(self) -> Callable[[], None]:
        """The forward pass as a graph; the one before it is let go first."""
        self._run = self._forward
        return recorded(self._torch, lambda: self._model(self._input))

    def allocate(self, mib: int) -> str:
        """Hold more memory; what went wrong, else nothing."""
        torch = self._torch
        try:
            self._held.append(torch.empty(mib * 2**20, dtype=torch.uint8, device="cuda"))
            torch.cuda.synchronize()
        except RuntimeError as error:
            return str(error).splitlines()[0]
        return ""

    def facts(self) -> dict[str, Any]:
        """What the device looks like from here."""
        properties = self._torch.cuda.get_device_properties(0)
        free, total = self._torch.cuda.mem_get_info()
        return {
            "sm_count": properties.multi_processor_count,
            "free_mib": free // 2**20,
            "total_mib": total // 2**20,
            "reserved_mib": self._torch.cuda.memory_reserved() // 2**20,
            "batches": self.batches,
            "seconds": self.seconds,
        }


def recorded(torch: Any, forward: Callable[[], Any]) -> Callable[[], None]:
    """A forward pass as one CUDA graph, which keeps what it reads and writes. Nothing else of this process may use the
    device meanwhile.
    """
    cuda, beside = torch.cuda, torch.cuda.Stream()
    beside.wait_stream(cuda.current_stream())
    with torch.inference_mode(), cuda.stream(beside):
        for _ in range(3):
            forward()
    cuda.current_stream().wait_stream(beside)
    cuda.synchronize()
    graph = cuda.CUDAGraph()
    with torch.inference_mode(), cuda.graph(graph):
        kept = forward()

    def replay(_kept: Any = (forward, kept)) -> None:
        graph.replay()

    return replay


def build(torch: Any, name: str) -> tuple[Any, tuple[int, ...]]:
    """A network with random weights and the shape of one input."""
    nn = torch.nn
    if name == "matmul":
        layers = [nn.Linear(4096, 4096, bias=False) for _ in range(8)]
        return nn.Sequential(*layers).cuda().half().eval(), (4096,)
    if name == "convnet":
        widths = [3, 64, 128, 256, 512]
        layers = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.Conv2d(after, after, 3, padding=1)]
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)]
        return nn.Sequential(*layers).cuda().half().eval(), (3, 224, 224)
    if name == "transformer":
        layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True)
        return nn.TransformerEncoder(layer, 12).cuda().half().eval(), (128, 768)
    import torchvision

    return getattr(torchvision.models, name)(weights=None).cuda().half().eval(), (3, 224, 224)


class Handler(BaseHTTPRequestHandler):
    """HTTP around a network."""

    protocol_version = "HTTP/1.1"
    network: Network

    def do_GET(self) -> None:
        """Health, metrics and work."""
        parts = urlsplit(self.path)
        query = {name: found[0] for name, found in parse_qs(parts.query).items()}
        network = self.network
        if parts.path == "/health":
            self._answer("{}")
        elif parts.path == "/metrics":
            self._answer(
                f"headroom_requests_total {network.requests}\nheadroom_batches_total {network.batches}\n"
                f"headroom_batch_execution_seconds_total {network.seconds}\nheadroom_requests_pending 0\n"
            )
        elif parts.path in ("/infer", "/execute"):
            self._answer(json.dumps({"seconds": network.execute(int(query.get("batches", "1")))}))
        elif parts.path == "/allocate":
            self._answer(json.dumps({"problem": network.allocate(int(query["mib"]))}))
        elif parts.path == "/facts":
            self._answer(json.dumps(network.facts()))
        else:
            self._answer("{}", 404)

    def do_POST(self) -> None:
        """A new batch size, or the wish to drain."""
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if self.path == "/headroom/batch":
            self.network.set_batch(int(json.loads(body)["batch"]))
            self._answer(json.dumps({"batch": self.network.batch}))
        else:
            self._answer("{}", 200 if self.path == "/headroom/drain" else 404)

    def _answer(self, text: str, status: int = 200) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


def main() -> int:
    """Serve until ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--network", default="convnet")
    parser.add_argument("--captured", action="store_true")
    found = parser.parse_args()
    Handler.network = Network(found.network, found.batch, captured=found.captured)
    ThreadingHTTPServer((found.host, found.port), Handler).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
