"""The daemon of the MPS stand-in: control, servers and clients of both protocols, on the sockets of a pipe directory.

Keeps what the real one is documented to keep, with its traps: defaults reach only the next server, a server's settings
only its next clients, device names are not checked, one server at a time in protocol 2, a server for a device that is
not there dies after it was "created", a server in fault takes nobody until all its clients have left, `quit` forgets
everything, and errors are texts with exit status 0. Runs without the site packages, so it uses the standard library
alone. What tests want it to do wrong lies in `faults.json` of its root.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(sys.argv[0]).resolve().parents[2]
PIPE = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
PRODUCT = "NVIDIA H100 80GB HBM3"
PID_FILE = PIPE / "nvidia-cuda-mps-control.pid"
NOT_READY, TOO_MANY, NOT_PERMITTED, NO_DEVICE, TERMINATED = 807, 808, 800, 100, 810


@dataclass(slots=True)
class Gpu:
    uuid: str
    sms: int
    memory_mib: int
    granularity: int


@dataclass(slots=True)
class Limits:
    """What clients get: a share, and memory by whatever name somebody gave the device."""

    share_pct: float | None = None
    memory: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Limits:
        return Limits(self.share_pct, dict(self.memory))


@dataclass(slots=True)
class Client:
    pid: int
    uid: int
    namespace: str
    link: socket.socket
    ended: bool = False


@dataclass(slots=True)
class Server:
    name: str
    uid: int
    pid: int
    limits: Limits
    namespaces: dict[str, Limits] = field(default_factory=dict)
    clients: dict[int, Client] = field(default_factory=dict)
    fault: bool = False
    ready_at_s: float = 0.0
    left: list[tuple[float, int]] = field(default_factory=list)

    @property
    def lingering(self) -> list[int]:
        """Clients that ended a moment ago, and are listed still where that is wanted."""
        since_s = time.monotonic() - float(str(faults().get("linger_s", 0.0)))
        return [pid for left_s, pid in self.left if left_s > since_s]

    @property
    def status(self) -> str:
        if self.fault:
            return "FAULT"
        return "ACTIVE" if time.monotonic() >= self.ready_at_s else "INITIALIZING"


def faults() -> dict[str, object]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads((ROOT / "faults.json").read_text())
        return found if isinstance(found, dict) else {}
    return {}


def gpus() -> dict[str, Gpu]:
    found = {}
    for line in (ROOT / "lib" / "gpus").read_text().splitlines():
        uuid, sms, memory, granularity, _ = line.split()
        found[uuid] = Gpu(uuid, int(sms), int(memory), int(granularity))
    return found


def bytes_of(text: str) -> int | None:
    """A memory value such as 10G or 512MB, None when it is none. The real one takes K for M and drops fractions."""
    number = text.strip().upper().removesuffix("B")
    unit = {"G": 2**30, "M": 2**20, "K": 2**20}.get(number[-1:], 0)
    whole = number[:-1].partition(".")[0]
    return int(whole) * unit if unit and whole.isdigit() else None


def shown(size: int) -> str:
    return f"{size // 2**30}G" if size >= 2**30 else f"{size // 2**20}M"


class Daemon:
    """One control daemon."""

    def __init__(self, protocol: int, *, all_users: bool = False) -> None:
        self.all_users = all_users
        self.protocol = protocol
        self.defaults = Limits()
        self.servers: dict[str, Server] = {}
        self.waiting: list[tuple[socket.socket, list[str], str, str]] = []
        self.buffers: dict[socket.socket, bytes] = {}
        self.places: dict[socket.socket, tuple[str, str]] = {}
        self.selector = selectors.DefaultSelector()
        self.running = True
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        table = gpus()
        self.wanted = list(table) if visible is None else visible.split(",")
        self.seen = [gpu for gpu in table.values() if any(gpu.uuid.startswith(name) for name in self.wanted)]

    # Sockets

    def listen(self, directory: Path, server: str, namespace: str, name: str = "control") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        # Takes its name once it listens: between binding and listening it would refuse whoever has found it.
        path = directory / "opening"
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        path.chmod(0o666 if name == "control" else 0o755)
        listener.listen(128)
        listener.setblocking(False)
        path.replace(directory / name)
        self.places[listener] = (server, namespace)
        self.selector.register(listener, selectors.EVENT_READ, self.accept)

    def unlisten(self, server: str, namespace: str | None) -> None:
        for listener, (owner, name) in list(self.places.items()):
            if owner == server and namespace in (None, name) and owner:
                Path(listener.getsockname()).with_name("control").unlink(missing_ok=True)
                self.forget(listener)
                del self.places[listener]

    def accept(self, listener: socket.socket) -> None:
        link, _ = listener.accept()
        link.setblocking(False)
        self.buffers[link] = b""
        place = self.places[listener]
        self.selector.register(link, selectors.EVENT_READ, lambda found: self.read(found, place))

    def forget(self, link: socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(link)
        self.buffers.pop(link, None)
        link.close()

    def read(self, link: socket.socket, place: tuple[str, str]) -> None:
        if link not in self.buffers:
            # Let go by what happened in the same moment.
            return
        try:
            data = link.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.buffers[link] += data
        text = self.buffers[link]
        if text.startswith(b"CLI\0"):
            if not data:
                self.command(link, text[4:])
        elif b"\n" in text and text.startswith(b"HELLO"):
            self.buffers[link] = b""
            self.selector.modify(link, selectors.EVENT_READ, self.client_spoke)
            self.hello(link, text.split(b"\n")[0].decode().split()[1:], *place)
        elif not data:
            self.forget(link)

    # Clients

    def hello(self, link: socket.socket, words: list[str], server_name: str, namespace: str) -> None:
        pid, uid, seen = int(words[0]), int(words[1]), words[4]
        device = self.device_of(seen)
        if device is None:
            return self.refuse(link, NO_DEVICE)
        server = self.servers.get(server_name) if server_name else self.server_for(uid)
        if server is None:
            self.waiting.append((link, words, server_name, namespace))
            return None
        if server.uid != uid and not self.all_users:
            return self.refuse(link, NOT_PERMITTED)
        if server.status != "ACTIVE":
            return self.refuse(link, NOT_READY)
        slots = faults().get("slots", 48)
        if isinstance(slots, int) and len(server.clients) >= slots:
            return self.refuse(link, TOO_MANY)
        share, memory = self.limits_of(server, namespace, words, device)
        rounded = int(device.sms * share / 100.0 + 1e-9) // device.granularity * device.granularity
        sms = device.sms if share >= 100.0 else max(device.granularity, rounded)
        server.clients[pid] = Client(pid, uid, namespace, link)
        note("life", f"client {pid} came")
        # One that has gone meanwhile is taken off when its link is read.
        with contextlib.suppress(OSError):
            link.sendall(f"OK {sms} {memory}\n".encode())
        return None

    def refuse(self, link: socket.socket, code: int) -> None:
        with contextlib.suppress(OSError):
            link.sendall(f"ERR {code}\n".encode())
        self.forget(link)

    def device_of(self, seen: str) -> Gpu | None:
        first = seen.split(",", maxsplit=1)[0]
        if first == "-":
            return self.seen[0] if self.seen else None
        if first.isdigit():
            return self.seen[int(first)] if int(first) < len(self.seen) else None
        return next((gpu for gpu in self.seen if gpu.uuid.startswith(first)), None)

    def limits_of(self, server: Server, namespace: str, words: list[str], device: Gpu) -> tuple[float, int]:
        """Share and bytes (0: no limit) of a new client. Another namespace than the default one has its own alone."""
        own = self.client_memory(words[3], words[4], device)
        share = 100.0 if words[2] == "-" else min(100.0, max(1.0, float(words[2])))
        limits = server.limits if namespace == "default" else server.namespaces[namespace]
        if limits.share_pct is not None:
            share = limits.share_pct if namespace != "default" else min(share, limits.share_pct)
        names = [name for name in limits.memory if self.names(name, device)]
        bounds = [limits.memory[name] for name in names[-1:]] + ([own] if own else [])
        return share, min(bounds) if bounds and own is not None else 0

    def client_memory(self, text: str, seen: str, device: Gpu) -> int | None:
        """A client's own limit; 0 where it has none, None where it named a device it does not see: then none holds."""
        if text == "-":
            return 0
        own = 0
        for pair in text.split(","):
            name, _, value = pair.partition("=")
            if not self.names(name, device):
                return None
            own = bytes_of(value) or 0
        return own

    def names(self, name: str, device: Gpu) -> bool:
        index = self.seen.index(device)
        return name == str(index) or (len(name) > 4 and device.uuid.startswith(name)) or name == "*"

    def client_spoke(self, link: socket.socket) -> None:
        try:
            data = link.recv(64)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or data.startswith(b"BYE"):
            self.leave(link, clean=data.startswith(b"BYE"))

    def leave(self, link: socket.socket, *, clean: bool) -> None:
        self.waiting = [entry for entry in self.waiting if entry[0] is not link]
        for server in self.servers.values():
            for client in [found for found in server.clients.values() if found.link is link]:
                del server.clients[client.pid]
                server.left.append((time.monotonic(), client.pid))
                note("life", f"client {client.pid} left" + ("" if clean else " without a word"))
                if not clean and not client.ended:
                    note("abrupt", client.pid)
            if server.fault and not server.clients:
                server.fault = False
        self.forget(link)
        self.admit_waiting()

    def admit_waiting(self) -> None:
        waiting, self.waiting = self.waiting, []
        for link, words, server, namespace in waiting:
            self.hello(link, words, server, namespace)

    # Servers

    def server_for(self, uid: int) -> Server | None:
        """The one server of protocol 2 (or the unnamed one): replaced when another user comes and nobody is left."""
        current = self.servers.get("")
        if current is not None and current.uid != uid and not self.all_users:
            if current.clients:
                return None
            self.end_server(current)
            current = None
        return current or self.start_server("", uid)

    def start_server(self, name: str, uid: int, allowed: list[str] | None = None) -> Server | None:
        wanted = self.wanted if allowed is None else allowed
        known = all(any(gpu.uuid.startswith(item) for gpu in self.seen) for item in wanted if not item.isdigit())
        arguments = [str(ROOT / "bin" / "nvidia-cuda-mps-server"), str(os.getpid())]
        if faults().get("orphans"):
            arguments.append("--survive")
        process = subprocess.Popen(arguments, start_new_session=True)
        note("pids", process.pid)
        note("life", f"server {process.pid} started")
        late_s = faults().get("slow_server_s", 0.0)
        server = Server(name, uid, process.pid, self.defaults.copy())
        server.ready_at_s = time.monotonic() + (float(late_s) if isinstance(late_s, int | float) else 0.0)
        if not known:
            process.kill()
            process.wait()
            return None
        self.servers[name] = server
        watch = os.pidfd_open(process.pid)
        self.selector.register(watch, selectors.EVENT_READ, lambda descriptor: self.server_died(descriptor, server))
        if name:
            self.listen(PIPE / name, name, "default")
        return server

    def server_died(self, descriptor: int, server: Server) -> None:
        self.selector.unregister(descriptor)
        os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            _, status = os.waitpid(server.pid, 0)
            note("life", f"server {server.pid} ended by {status}")
        for client in list(server.clients.values()):
            self.forget(client.link)
        if self.servers.get(server.name) is server:
            del self.servers[server.name]
            self.unlisten(server.name, None)

    def end_server(self, server: Server) -> None:
        self.servers.pop(server.name, None)
        self.unlisten(server.name, None)
        for client in list(server.clients.values()):
            self.forget(client.link)
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGTERM)

    def terminate(self, client: Client) -> None:
        client.ended = True
        with contextlib.suppress(OSError):
            client.link.send(b"T")
        self.leave(client.link, clean=True)

    def fault(self) -> None:
        for server in self.servers.values():
            server.fault = bool(server.clients)
            for client in server.clients.values():
                client.ended = True
                with contextlib.suppress(OSError):
                    client.link.send(b"F")

    # Commands

    def command(self, link: socket.socket, data: bytes) -> None:
        parts = data.split(b"\0")
        if b"" not in parts:
            # Killed in the midst of asking.
            self.forget(link)
            return
        end = parts.index(b"")
        arguments = [part.decode() for part in parts[:end]]
        lines = b"\0".join(parts[end + 1 :]).decode().splitlines()
        wrong = faults()
        asked = " ".join(arguments) or "\n".join(lines)
        hang, texts = wrong.get("hang"), wrong.get("texts")
        if isinstance(hang, str) and hang and asked.startswith(hang):
            return
        answers = texts if isinstance(texts, dict) else {}
        text = next((str(answer) for start, answer in answers.items() if asked.startswith(start)), None)
        if text is None:
            text = self.obey(arguments, lines)
        note("commands", asked.replace("\n", ";"))
        link.setblocking(True)
        with contextlib.suppress(OSError):
            link.sendall(b"0" + (text + "\n" if text else "").encode())
        self.forget(link)

    def obey(self, arguments: list[str], lines: list[str]) -> str:
        if arguments == ["__fault"]:
            self.fault()
            return ""
        if self.protocol == 3:
            from_argv = arguments or (lines[0].split() if lines else [])
            return self.obey_v3(from_argv)
        return "\n".join(filter(None, (self.obey_v2(line.split()) for line in lines if line.strip())))

    def obey_v2(self, words: list[str]) -> str:
        action = getattr(self, "v2_" + words[0], None)
        if action is None:
            return f'Unknown command "{words[0]}"'
        try:
            answer = action(*words[1:])
        except (TypeError, ValueError):
            return f"Invalid arguments to {words[0]}"
        return str(answer or "")

    def by_pid(self, pid: str) -> Server | None:
        return next((server for server in self.servers.values() if server.pid == int(pid)), None)

    def v2_quit(self) -> None:
        self.running = False

    def v2_get_server_list(self) -> str:
        return "\n".join(str(server.pid) for server in self.servers.values())

    def v2_start_server(self, flag: str, uid: str) -> str:
        if flag != "-uid" or self.servers:
            return "Failed to start server"
        self.start_server("", int(uid))
        return ""

    def v2_get_server_status(self, pid: str) -> str:
        server = self.by_pid(pid)
        return server.status if server else "Server not found"

    def v2_get_client_list(self, pid: str) -> str:
        server = self.by_pid(pid)
        return "\n".join(map(str, [*server.clients, *server.lingering])) if server else "Server not found"

    def v2_ps(self) -> str:
        device = self.seen[0].uuid[:22] if self.seen else "-"
        rows = [
            (pid, number, server.pid, device, 4026531836, command_of(pid))
            for server in self.servers.values()
            for number, pid in enumerate(server.clients, 1)
        ]
        heads = ("PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND")
        return "\n".join("{:<10}{:<10}{:<15}{:<26}{:<15}{:<15}".format(*row) for row in [heads, *rows] if rows)

    def v2_get_device_client_list(self) -> str:
        clients = [pid for server in self.servers.values() for pid in server.clients]
        return "\n".join([f"[0] 00:00.0, {PRODUCT}", *(f"{pid}.1" for pid in clients)] if clients else [])

    def v2_device_query(self) -> str:
        form = "{:<16}{:<15}{:<42}{:<34}{}"
        heads = ("Device Ordinal", "PCI IDs", "UUID", "Name", "Attributes")
        rows = [(index, "0000:00.00.00", gpu.uuid, PRODUCT, "N/A") for index, gpu in enumerate(self.seen)]
        table = "\n".join(form.format(*row) for row in [heads, *rows])
        names = ["Default", *(f"Server {server.pid}" for server in self.servers.values())]
        return "\n\n".join(f"{name}\n{table}" for name in names)

    def v2_set_default_active_thread_percentage(self, share: str) -> str:
        self.defaults.share_pct = float(share)
        return f"{float(share):.1f}"

    def v2_get_default_active_thread_percentage(self) -> str:
        return f"{self.defaults.share_pct or 100.0:.1f}"

    def v2_set_active_thread_percentage(self, pid: str, share: str) -> str:
        server = self.by_pid(pid)
        if server is None:
            return "Server not found"
        server.limits.share_pct = float(share)
        return f"{float(share):.1f}"

    def v2_get_active_thread_percentage(self, pid: str) -> str:
        server = self.by_pid(pid)
        return f"{server.limits.share_pct or 100.0:.1f}" if server else "Server not found"

    def v2_set_default_device_pinned_mem_limit(self, device: str, value: str) -> str:
        return self.set_memory(self.defaults, device, value)

    def v2_get_default_device_pinned_mem_limit(self, device: str) -> str:
        return self.get_memory(self.defaults, device)

    def v2_set_device_pinned_mem_limit(self, pid: str, device: str, value: str) -> str:
        server = self.by_pid(pid)
        return self.set_memory(server.limits, device, value) if server else "Server not found"

    def v2_get_device_pinned_mem_limit(self, pid: str, device: str) -> str:
        server = self.by_pid(pid)
        return self.get_memory(server.limits, device) if server else "Server not found"

    def set_memory(self, limits: Limits, device: str, value: str) -> str:
        size = bytes_of(value)
        if size is None:
            return "Invalid limit"
        limits.memory.pop(device, None)
        limits.memory[device] = size
        return ""

    def get_memory(self, limits: Limits, device: str) -> str:
        return shown(limits.memory[device]) if limits.memory.get(device) else ""

    def v2_terminate_client(self, server_pid: str, pid: str) -> str:
        server = self.by_pid(server_pid)
        client = server.clients.get(int(pid)) if server else None
        if client is None:
            return "Client not found"
        self.terminate(client)
        return ""

    # Protocol 3

    def obey_v3(self, arguments: list[str]) -> str:
        if arguments in (["-q"], ["--quit"]):
            self.running = False
            return ""
        flags = {}
        plain = []
        for item in arguments:
            name, _, value = item.partition("=")
            if item.startswith("-") or value:
                flags[name.lstrip("-")] = value
            else:
                plain.append(item)
        action = getattr(self, "_".join(["v3", *plain[:2]]), None)
        if action is None:
            return f"error: unknown command '{' '.join(plain[:2])}'"
        try:
            return str(action(*plain[2:], **{name.replace("-", "_"): value for name, value in flags.items()}) or "")
        except (TypeError, ValueError):
            return f"error: invalid arguments to {' '.join(plain[:2])}"

    def v3_server_create(self, name: str, uid: str | None = None, allowed_devices: str | None = None) -> str:
        if name in self.servers:
            return f"error: server '{name}' already exists"
        if not named(name):
            return f"error: invalid name '{name}'"
        self.start_server(
            name,
            os.getuid() if uid is None else int(uid),
            (allowed_devices or "").split(",") if allowed_devices else None,
        )
        return f"Server '{name}' created"

    def v3_server_delete(self, name: str, force: str | None = None) -> str:
        server = self.servers.get(name)
        if server is None or (server.clients and force is None):
            return f"error: server '{name}' " + ("has active clients" if server else "does not exist")
        self.end_server(server)
        return ""

    def v3_server_list(self, name: str | None = None, format: str = "table") -> str:
        status = {"ACTIVE": "Ready", "FAULT": "Fault", "INITIALIZING": "Initializing"}
        rows = [
            f"{s.name or 'default'},{s.uid},{s.pid},{status[s.status]},{PIPE / s.name},{';'.join(self.wanted)},-"
            for s in self.servers.values()
            if name in (None, s.name)
        ]
        return "\n".join(rows)

    def v3_server_set(self, name: str, active_thread_percentage: str = "", pinned_memory_limit: str = "") -> str:
        server = self.servers.get(name)
        return self.set_limits(server.limits if server else None, active_thread_percentage, pinned_memory_limit)

    def v3_namespace_create(self, name: str, server: str) -> str:
        owner = self.servers.get(server)
        if owner is None or name in owner.namespaces or not named(name):
            return f"error: cannot create namespace '{name}'"
        owner.namespaces[name] = Limits()
        self.listen(PIPE / server / name, server, name)
        return f"Namespace '{name}' created"

    def v3_namespace_delete(self, name: str, server: str, force: str | None = None) -> str:
        owner = self.servers.get(server)
        if owner is None or name not in owner.namespaces:
            return f"error: namespace '{name}' does not exist"
        inside = [client for client in owner.clients.values() if client.namespace == name]
        if inside and force is None:
            return f"error: namespace '{name}' has active clients"
        for client in inside:
            self.terminate(client)
        self.unlisten(server, name)
        del owner.namespaces[name]
        with contextlib.suppress(OSError):
            (PIPE / server / name).rmdir()
        return ""

    def v3_namespace_set(
        self, name: str, server: str, active_thread_percentage: str = "", pinned_memory_limit: str = ""
    ) -> str:
        owner = self.servers.get(server)
        limits = owner.namespaces.get(name) if owner else None
        return self.set_limits(limits, active_thread_percentage, pinned_memory_limit)

    def set_limits(self, limits: Limits | None, share: str, memory: str) -> str:
        size = bytes_of(memory) if memory else None
        if limits is None or (memory and size is None):
            return "error: cannot set limits"
        if share:
            limits.share_pct = float(share)
        if size is not None:
            limits.memory["*"] = size
        return ""

    def v3_namespace_list(self, server: str, format: str = "table") -> str:
        owner = self.servers.get(server)
        if owner is None:
            return f"error: server '{server}' does not exist"
        return "\n".join(
            f"{name},{server},Ready,{self.v3_namespace_get(name, server, 'pinned-memory-limit')},"
            f"{self.v3_namespace_get(name, server, 'active-thread-percentage')},0,{PIPE / server / name}"
            for name in owner.namespaces
        )

    def v3_namespace_get(self, name: str, server: str, wanted: str) -> str:
        owner = self.servers.get(server)
        limits = owner.namespaces.get(name) if owner else None
        if limits is None:
            return f"error: namespace '{name}' does not exist"
        if wanted == "active-thread-percentage":
            return "-" if limits.share_pct is None else f"{limits.share_pct:g}"
        return shown(limits.memory["*"]) if limits.memory else "-"

    def v3_client_list(self, server: str | None = None, all: str | None = None, format: str = "table") -> str:
        return "\n".join(
            f"{client.pid},{owner.name},0,{client.namespace},worker"
            for owner in self.servers.values()
            if server in (None, owner.name)
            for client in owner.clients.values()
        )

    def v3_client_terminate(self, pid: str) -> str:
        for server in self.servers.values():
            if int(pid) in server.clients:
                self.terminate(server.clients[int(pid)])
                return ""
        return f"error: no client with pid {pid}"

    # Life

    def run(self) -> None:
        (PIPE / "control_lock").touch(0o666)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(PIPE / "log", 0o755)
        self.listen(PIPE, "", "default", "control_privileged")
        self.listen(PIPE, "", "default")
        while self.running or any(server.clients for server in self.servers.values()):
            for key, _ in self.selector.select(0.5 if self.waiting else None):
                key.data(key.fileobj)
        for server in list(self.servers.values()):
            self.end_server(server)


def named(name: str) -> bool:
    return 0 < len(name) <= 64 and all(c in "abcdefghijklmnopqrstuvwxyz0123456789_" for c in name)


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return "-"


def note(kind: str, what: object) -> None:
    """Tell the tests, in a file of lines."""
    with (ROOT / "notes" / kind).open("a") as file:
        file.write(f"{what}\n")


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    arguments = sys.argv[1:]
    protocol = next((arguments[n + 1] for n, item in enumerate(arguments[:-1]) if item in ("-p", "--protocol")), "2")
    protocol = os.environ.get("CUDA_MPS_PROTOCOL_VERSION", protocol)
    PIPE.mkdir(parents=True, exist_ok=True)
    note("pids", os.getpid())
    note("daemons", os.getpid())
    PID_FILE.write_text(str(os.getpid()))
    while faults().get("slow_start"):
        threading.Event().wait(0.01)
    daemon = Daemon(int(protocol), all_users=bool({"-m", "--multiuser", "-multiuser-server"} & set(arguments)))
    daemon.run()
    shutdown()


def shutdown() -> None:
    """Sockets and pid file go; settings were only in memory."""
    for path in [*PIPE.rglob("control*"), PIPE / "log", PID_FILE]:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
