"""A model server that is none: one process, one queue, batches that take as long as they are told to.

Owns the endpoints and metrics of each adapter, a start and a drain that take time, and the ways in which a real server
goes wrong: never ready, hanging, ending by itself, deaf to SIGTERM, aborting what it has, children of its own. Where
HEADROOM_STANDIN_CUDA names a library it opens a CUDA context through it, so that it counts as a client of that device.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields

BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
BODY_BYTES_MAX = 2**20
MIB_HELD = 100
"""Device memory that the driver's stand-in says is used."""


@dataclass(slots=True)
class Options:
    """One `name=value` argument each."""

    adapter: str = "http"
    host: str = "127.0.0.1"
    port: int = 8000
    metrics_offset: int = -1
    """Where metrics are; below 0: 2 for triton and torchserve, else 0. Management of torchserve is one above the port
    unless metrics are on the port itself."""
    batch: int = 1
    model: str = "model"
    replica: str = ""
    start_s: float = 0.0
    step_ms: float = 1.0
    item_ms: float = 0.0
    drain_s: float = 0.0
    """From SIGTERM to the end, at least."""
    term: str = "drain"
    """What SIGTERM does: drain, abort or ignore."""
    crash_s: float = 0.0
    """Ends by itself so long after its start; 0: never."""
    exit_status: int = 3
    never_ready: int = 0
    children: int = 0
    """Processes of its own, in its session, which end when told to by SIGTERM (with `term=ignore`: only by SIGKILL)."""
    log_lines: int = 0
    iteration_ms: float = 0.0
    """Trains: an iteration takes so long; 0: serves only."""
    iterations: int = 0
    """Ends with status 0 after so many; 0: never."""
    latency_ms_limit: float = 0.0
    fail_tune: int = 0

    @classmethod
    def of(cls, arguments: Iterable[str]) -> Options:
        """Read `name=value` arguments."""
        options = cls()
        known = {item.name for item in fields(cls)}
        for name, text in (argument.split("=", 1) for argument in arguments):
            if name not in known:
                raise SystemExit(f"no option {name}")
            setattr(options, name, type(getattr(options, name))(text))
        return options

    def metrics_port(self) -> int:
        """The port on which metrics are."""
        default = 2 if self.adapter in ("triton", "torchserve") else 0
        return self.port + (default if self.metrics_offset < 0 else self.metrics_offset)


@dataclass(slots=True)
class Counts:
    """All that metrics are made of."""

    received: int = 0
    completed: int = 0
    failed: int = 0
    violated: int = 0
    batches: int = 0
    executed_s: float = 0.0
    execution_s_of_requests: float = 0.0
    waited_s: float = 0.0
    latency_s_sum: float = 0.0
    iterations: int = 0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_MS) + 1))

    def answered(self, latency_s: float, waited_s: float, limit_ms: float) -> None:
        """Count a request."""
        self.completed += 1
        self.latency_s_sum += latency_s
        self.waited_s += waited_s
        self.violated += 0.0 < limit_ms < 1000.0 * latency_s
        position = next((at for at, bound in enumerate(BOUNDS_MS) if 1000.0 * latency_s <= bound), len(BOUNDS_MS))
        self.buckets[position] += 1

    def cumulative(self, scale: float) -> Iterable[tuple[str, int]]:
        """Histogram buckets as Prometheus counts them; bounds in milliseconds times `scale`."""
        total = 0
        for bound, count in zip((*BOUNDS_MS, None), self.buckets, strict=True):
            total += count
            yield ("+Inf" if bound is None else repr(bound * scale)), total


@dataclass(slots=True)
class Waiting:
    """A request in the queue."""

    since_s: float
    answer: Callable[[int, bytes], None]


class Server:
    """The queue, its executor and the routes."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.counts = Counts()
        self.queue: asyncio.Queue[Waiting] = asyncio.Queue()
        self.executing = 0
        self.batch = options.batch
        self.limit_ms = options.latency_ms_limit
        self.begun_s = time.monotonic()
        self.draining = self.hanging = False
        self.loaded = True
        self.ended = asyncio.Event()
        self.listeners: list[asyncio.Server] = []
        self.children: list[int] = []

    @property
    def pending(self) -> int:
        """Accepted and not answered."""
        return self.queue.qsize() + self.executing

    @property
    def ready(self) -> bool:
        """Would answer readiness well."""
        started = time.monotonic() - self.begun_s >= self.options.start_s
        return started and not self.options.never_ready and not self.draining and self.loaded

    def route(self, method: str, target: str, body: bytes, answer: Callable[[int, bytes], None]) -> None:
        """Answer now or later."""
        path, _, query = target.partition("?")
        if self.hanging:
            return
        if path.startswith("/standin/"):
            answer(*self._told(path.removeprefix("/standin/"), dict(p.split("=", 1) for p in query.split("&") if p)))
        elif path in (self._ready_path(), "/v2/health/live", "/v1/models"):
            answer(200 if self.ready else 503, self._readiness())
        elif method == "GET" and path == self._metrics_path():
            answer(200, metrics(self).encode())
        elif (control := self._control(method, path, query, body)) is not None:
            answer(*control)
        elif not self.ready and not self.draining:
            answer(503, b"not ready")
        else:
            self.counts.received += 1
            self.queue.put_nowait(Waiting(time.monotonic(), answer))

    def _ready_path(self) -> str:
        return {
            "triton": "/v2/health/ready",
            "torchserve": "/ping",
            "tensorflow_serving": f"/v1/models/{self.options.model}",
        }.get(self.options.adapter, "/health")

    def _metrics_path(self) -> str:
        return "/monitoring/prometheus/metrics" if self.options.adapter == "tensorflow_serving" else "/metrics"

    def _readiness(self) -> bytes:
        state = "AVAILABLE" if self.ready else "LOADING"
        return json.dumps({"status": "Healthy", "model_version_status": [{"version": "1", "state": state}]}).encode()

    def _told(self, verb: str, how: dict[str, str]) -> tuple[int, bytes]:
        """What only a stand-in can be told."""
        if verb == "crash":
            os._exit(int(how.get("status", "3")))
        if verb == "hang":
            self.hanging = True
        if verb == "log":
            sys.stdout.write("x" * 79 + "\n" if "bytes" not in how else ("x" * 79 + "\n") * (int(how["bytes"]) // 80))
            sys.stdout.flush()
        if verb == "reset":
            self.counts = Counts()
        if verb == "step":
            self.options.step_ms = float(how["ms"])
        told = {"pid": os.getpid(), "pending": self.pending, "batch": self.batch, "limit_ms": self.limit_ms}
        return 200, json.dumps(told).encode()

    def _control(self, method: str, path: str, query: str, body: bytes) -> tuple[int, bytes] | None:
        """The server's own ways of changing what it does."""
        if self.options.fail_tune and method != "GET":
            return 500, b"no"
        model = self.options.model
        if self.options.adapter == "http" and method == "POST" and path == "/headroom/batch":
            told = json.loads(body)
            self.batch, self.limit_ms = int(told["batch"]), float(told.get("latency_ms_limit") or 0.0)
            return 200, json.dumps({"batch": self.batch}).encode()
        if self.options.adapter == "http" and method == "POST" and path == "/headroom/drain":
            self.draining = True
            return 200, b"{}"
        if self.options.adapter == "triton" and path == f"/v2/models/{model}/config":
            return 200, json.dumps({"name": model, "max_batch_size": self.batch}).encode()
        if self.options.adapter == "triton" and path == f"/v2/repository/models/{model}/load":
            self.batch = int(json.loads(json.loads(body)["parameters"]["config"])["max_batch_size"])
            return 200, b""
        if self.options.adapter == "torchserve" and path.startswith("/models"):
            return self._registration(method, query)
        return None

    def _registration(self, method: str, query: str) -> tuple[int, bytes]:
        if method == "GET":
            told = {"modelName": self.options.model, "modelUrl": "model.mar", "batchSize": self.batch, "minWorkers": 1}
            return (200, json.dumps([told]).encode()) if self.loaded else (404, b"{}")
        if method == "POST":
            self.batch = int(dict(p.split("=", 1) for p in query.split("&"))["batch_size"])
        self.loaded = method == "POST"
        return 200, b"{}"

    async def execute(self) -> None:
        """Take batches from the queue for ever."""
        while True:
            taken = [await self.queue.get()]
            while len(taken) < self.batch and not self.queue.empty():
                taken.append(self.queue.get_nowait())
            self.executing = len(taken)
            begun_s = time.monotonic()
            await asyncio.sleep((self.options.step_ms + self.options.item_ms * len(taken)) / 1000.0)
            now_s = time.monotonic()
            self.executing = 0
            self.counts.batches += 1
            self.counts.executed_s += now_s - begun_s
            self.counts.execution_s_of_requests += (now_s - begun_s) * len(taken)
            told = json.dumps({"pid": os.getpid(), "replica": self.options.replica, "batch": len(taken)}).encode()
            for request in taken:
                self.counts.answered(now_s - request.since_s, begun_s - request.since_s, self.limit_ms)
                request.answer(200, told)

    async def train(self) -> None:
        """Count iterations until there are enough."""
        while not self.options.iterations or self.counts.iterations < self.options.iterations:
            await asyncio.sleep(self.options.iteration_ms / 1000.0)
            self.counts.iterations += self.ready
        self.leave(0)

    def terminate(self) -> None:
        """SIGTERM."""
        if self.options.term == "ignore":
            return
        self.draining = True
        for listener in self.listeners:
            listener.close()
        if self.options.term == "abort":
            self.leave(0)
        asyncio.get_running_loop().call_later(self.options.drain_s, self._finish)

    def _finish(self) -> None:
        if self.pending:
            asyncio.get_running_loop().call_later(0.005, self._finish)
        else:
            self.leave(0)

    def leave(self, status: int) -> None:
        """End, children first."""
        for child in self.children:
            os.kill(child, signal.SIGTERM)
        os._exit(status)


class Connection(asyncio.Protocol):
    """One keep-alive connection; answers in the order of its requests, one at a time."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.received = b""
        self.busy = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None

    def data_received(self, data: bytes) -> None:
        self.received += data
        self._next()

    def _next(self) -> None:
        head, found, rest = self.received.partition(b"\r\n\r\n")
        if self.busy or not found or self.transport is None:
            return
        lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): text.strip() for name, _, text in (line.partition(":") for line in lines[1:])}
        length = int(headers.get("content-length", "0"))
        if length > BODY_BYTES_MAX:
            self.transport.close()
        if len(rest) < length:
            return
        self.received, self.busy = rest[length:], True
        method, target, version = lines[0].split(" ", 2)
        closing = headers.get("connection", "").lower() == "close" or version == "HTTP/1.0"
        self.server.route(method, target, rest[:length], lambda status, body: self._answer(status, body, closing))

    def _answer(self, status: int, body: bytes, closing: bool) -> None:
        self.busy = False
        if self.transport is None:
            return
        closing = closing or self.server.draining
        head = f"HTTP/1.1 {status} Standin\r\nContent-Length: {len(body)}\r\nContent-Type: application/json\r\n"
        self.transport.write(head.encode() + (b"Connection: close\r\n" if closing else b"") + b"\r\n" + body)
        if closing:
            self.transport.close()
        else:
            self._next()


def metrics(server: Server) -> str:
    """The page of the server's adapter."""
    page = {
        "triton": _triton,
        "vllm": _vllm,
        "torchserve": _torchserve,
        "tensorflow_serving": _tensorflow,
    }.get(server.options.adapter, _headroom)
    return "\n".join(page(server)) + "\n"


def _histogram(counts: Counts, name: str, scale: float, labels: str) -> Iterable[str]:
    inner = labels + "," if labels else ""
    yield f"# TYPE {name} histogram"
    for bound, total in counts.cumulative(scale):
        yield f'{name}_bucket{{{inner}le="{bound}"}} {total}'
    yield f"{name}_sum{{{labels}}} {counts.latency_s_sum * 1000.0 * scale}"
    yield f"{name}_count{{{labels}}} {counts.completed}"


def _headroom(server: Server) -> Iterable[str]:
    counts = server.counts
    yield "# TYPE headroom_requests_total counter"
    yield f"headroom_requests_total {counts.completed}"
    yield f"headroom_requests_failed_total {counts.failed}"
    if server.limit_ms > 0.0:
        yield f"headroom_requests_violated_total {counts.violated}"
    yield f"headroom_requests_pending {server.pending}"
    yield f"headroom_batches_total {counts.batches}"
    yield f"headroom_batch_execution_seconds_total {counts.executed_s}"
    yield from _histogram(counts, "headroom_request_latency_seconds", 0.001, "")
    if server.options.iteration_ms:
        yield f"headroom_iterations_total {counts.iterations}"


def _triton(server: Server) -> Iterable[str]:
    counts, labels = server.counts, f'{{model="{server.options.model}",version="1"}}'
    yield "# HELP nv_inference_request_success Number of successful inference requests, all batch sizes"
    yield f"nv_inference_request_success{labels} {counts.completed}"
    yield f'nv_inference_request_failure{{model="{server.options.model}",reason="OTHER",version="1"}} {counts.failed}'
    yield f"nv_inference_count{labels} {counts.completed}"
    yield f"nv_inference_exec_count{labels} {counts.batches}"
    yield f"nv_inference_request_duration_us{labels} {int(counts.latency_s_sum * 1e6)}"
    yield f"nv_inference_queue_duration_us{labels} {int(counts.waited_s * 1e6)}"
    yield f"nv_inference_compute_input_duration_us{labels} 0"
    yield f"nv_inference_compute_infer_duration_us{labels} {int(counts.execution_s_of_requests * 1e6)}"
    yield f"nv_inference_compute_output_duration_us{labels} 0"
    yield f"nv_inference_pending_request_count{labels} {server.queue.qsize()}"
    yield 'nv_energy_consumption{gpu_uuid="GPU-0"} 12.5'


def _vllm(server: Server) -> Iterable[str]:
    counts, labels = server.counts, f'engine="0",model_name="{server.options.model}"'
    yield f"vllm:num_requests_running{{{labels}}} {float(server.executing)}"
    yield f"vllm:num_requests_waiting{{{labels}}} {float(server.queue.qsize())}"
    yield f'vllm:request_success_total{{{labels},finished_reason="stop"}} {float(counts.completed)}'
    yield f'vllm:request_success_total{{{labels},finished_reason="abort"}} {float(counts.failed)}'
    yield from _histogram(counts, "vllm:e2e_request_latency_seconds", 0.001, labels)
    yield f"vllm:generation_tokens_total{{{labels}}} {counts.completed}"
    yield f"vllm:iteration_tokens_total_count{{{labels}}} {counts.batches}"
    yield f"vllm:iteration_tokens_total_sum{{{labels}}} {counts.completed}"
    yield f"vllm:inter_token_latency_seconds_sum{{{labels}}} {counts.execution_s_of_requests}"
    yield f"vllm:inter_token_latency_seconds_count{{{labels}}} {counts.completed}"


def _torchserve(server: Server) -> Iterable[str]:
    counts, labels = server.counts, f'{{model_name="{server.options.model}",model_version="default",hostname="h"}}'
    yield f"ts_inference_requests_total{labels} {counts.received}"
    yield f"ts_inference_latency_microseconds{labels} {counts.latency_s_sum * 1e6}"
    yield f"ts_queue_latency_microseconds{labels} {counts.waited_s * 1e6}"
    yield f'Requests2XX{{Level="Host",Hostname="h"}} {counts.completed}'
    yield f'Requests5XX{{Level="Host",Hostname="h"}} {counts.failed}'
    mean_ms = 1000.0 * counts.executed_s / counts.batches if counts.batches else 0.0
    yield f'PredictionTime{{ModelName="{server.options.model}",Level="Model",Hostname="h"}} {mean_ms}'


def _tensorflow(server: Server) -> Iterable[str]:
    counts, model = server.counts, server.options.model
    yield f':tensorflow:serving:request_count{{model_name="{model}",status="OK"}} {counts.completed}'
    yield f':tensorflow:serving:request_count{{model_name="{model}",status="INTERNAL"}} {counts.failed}'
    name = ":tensorflow:serving:request_latency"
    yield from _histogram(counts, name, 1000.0, f'model_name="{model}",API="predict",entrypoint="REST"')


def open_device(path: str) -> list[object]:
    """Open a context on the first visible device through a library that looks like libcuda; what must be kept."""
    import ctypes

    library = ctypes.CDLL(path)
    device, context = ctypes.c_int(), ctypes.c_void_p()
    steps: tuple[tuple[str, tuple[object, ...]], ...] = (
        ("cuInit", (0,)),
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), device)),
    )
    for name, arguments in steps:
        status = library[name](*arguments)
        if status != 0:
            sys.stderr.write(f"{name}: CUDA error {status}\n")
            sys.exit(1)
    return [library, context]


def open_device_if_told() -> list[object]:
    """Open the device where the environment says how, and be listed on it where it says by which driver's stand-in."""
    path = os.environ.get("HEADROOM_STANDIN_CUDA")
    kept = open_device(path) if path else []
    root = os.environ.get("STANDIN_NVML")
    if kept and root:
        from pathlib import Path

        fresh = Path(root, "processes", os.environ["CUDA_VISIBLE_DEVICES"], f"new.{os.getpid()}")
        shared = int("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in os.environ)
        fresh.write_text(f"{MIB_HELD} {shared} 0\n", encoding="ascii")
        fresh.rename(fresh.with_name(str(os.getpid())))
    return kept


def wait_as_child(options: Options) -> None:
    """A child: hold the device until ended."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN if options.term == "ignore" else signal.SIG_DFL)
    kept = open_device_if_told()
    while os.getppid() != 0 or kept:
        signal.pause()


def fork_children(options: Options) -> list[int]:
    """Start the children before anything else is there; they wait to be ended."""
    pids = []
    for _ in range(options.children):
        pid = os.fork()
        if pid == 0:
            wait_as_child(options)
        pids.append(pid)
    return pids


async def serve(options: Options, children: list[int]) -> None:
    """Listen, execute, until something ends the process."""
    server = Server(options)
    server.children = children
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, server.terminate)
    ports = {options.port, options.metrics_port()}
    if options.adapter == "torchserve" and options.metrics_port() > options.port:
        ports.add(options.port + 1)
    for port in sorted(ports):
        server.listeners.append(
            await loop.create_server(lambda: Connection(server), options.host, port, reuse_address=True, backlog=1024)
        )
    sys.stdout.write(f"serving {options.model} on {options.host}:{options.port}\n")
    sys.stdout.writelines(f"line {line}\n" for line in range(options.log_lines))
    sys.stdout.flush()
    if options.crash_s > 0.0:
        loop.call_later(options.crash_s, _crash, options.exit_status)
    tasks = [asyncio.ensure_future(server.execute())]
    if options.iteration_ms > 0.0:
        tasks.append(asyncio.ensure_future(server.train()))
    await asyncio.gather(*tasks)


def _crash(status: int) -> None:
    sys.stderr.write("\x1b[31mfatal:\x1b[0m out of everything\n")
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    """Run until ended."""
    options = Options.of(sys.argv[1:])
    children = fork_children(options)
    # A library that was opened before the fork would not know of the children's contexts.
    kept = open_device_if_told()
    asyncio.run(serve(options, children))
    kept.clear()


if __name__ == "__main__":
    main()
