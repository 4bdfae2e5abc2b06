"""A private network for the servers of a cluster, whose links can be cut.

Each server has a network namespace of its own with two links to a switch: one for its clients, one for the
other servers. The switch is a namespace, too, and this machine has one link to it. A namespace has no name.
It lives as long as a process in it, which the kernel ends with this one, and its links go with it: nothing is
left behind, however a drill ends.
"""

import asyncio
import contextlib
import os
import secrets
import subprocess
from collections.abc import Sequence
from pathlib import Path

from mesh.local.server import Lifecycle, ParentDeath
from tests.drill.evidence import DrillImpossible

HOLD = ("unshare", "--net", "sleep", "infinity")
_LOOK_S = 0.01
_MOST = 13
"""Servers for which a network has addresses."""


class Network(Lifecycle):
    """`async with Network(3) as network:` then `Popen([*network.inside(0), …])`.

    Args:
        hold: a command that makes a namespace and stays in it.

    Raises DrillImpossible where this machine does not allow it.
    """

    def __init__(self, servers: int, hold: Sequence[str] = HOLD) -> None:
        assert servers <= _MOST
        self._servers = range(servers)
        self._hold = hold
        self._held: list[_Namespace] = []
        self._prefix = ""
        self.link = f"drill-{secrets.token_hex(4)}"
        """This machine's end of its link to the switch."""

    @property
    def holders(self) -> list[int]:
        """The processes that hold its namespaces."""
        return [each.pid for each in self._held]

    def inside(self, server: int) -> tuple[str, ...]:
        """Return how a command begins that runs in a server's namespace."""
        return self._held[1 + server].enter

    def clients_host(self, server: int) -> str:
        """Return the address at which clients reach a server."""
        return f"{self._prefix}.{2 + server}"

    def routes_host(self, server: int) -> str:
        """Return the address at which the other servers reach one."""
        return f"{self._prefix}.{18 + server}"

    async def start(self) -> None:
        for _ in range(1 + len(self._servers)):
            self._held.append(_Namespace(self._hold))
            await self._held[-1].ready()
        self._prefix = await asyncio.to_thread(_free_prefix)
        switch = self._held[0]
        await _ip(
            f"link add {self.link} type veth peer name machine netns {switch.pid}",
            f"address add {self._prefix}.1/28 dev {self.link}",
            f"link set {self.link} up",
        )
        lines = ["link add clients type bridge", "link add routes type bridge"]
        for server in self._servers:
            inner = self._held[1 + server].pid
            lines += [f"link add c{server} type veth peer name clients netns {inner}"]
            lines += [f"link add r{server} type veth peer name routes netns {inner}"]
            lines += [f"link set c{server} master clients", f"link set r{server} master routes"]
        ports = [f"{side}{server}" for side in "cr" for server in self._servers]
        lines += ["link set machine master clients"]
        lines += [f"link set {port} up" for port in (*ports, "machine", "clients", "routes")]
        await _ip(*lines, inside=switch.enter)
        for server in self._servers:
            await _ip(
                f"address add {self.clients_host(server)}/28 dev clients",
                f"address add {self.routes_host(server)}/28 dev routes",
                *(f"link set {link} up" for link in ("lo", "clients", "routes")),
                inside=self.inside(server),
            )

    async def stop(self) -> None:
        """Take the network down. Idempotent."""
        if self._held:
            with contextlib.suppress(FileNotFoundError):  # then there is no link either
                await asyncio.to_thread(
                    subprocess.run, ["ip", "link", "delete", self.link], capture_output=True
                )
        for each in self._held:
            each.end()
        self._held.clear()

    async def cut(self, server: int, *, clients: bool) -> None:
        """Cut a server off from the other servers, and from its clients if these are to be cut off, too."""
        await self._set(server, "down", "rc" if clients else "r")

    async def heal(self, server: int) -> None:
        """Join a server's links again."""
        await self._set(server, "up", "rc")

    async def _set(self, server: int, state: str, sides: str) -> None:
        lines = [f"link set {side}{server} {state}" for side in sides]
        await _ip(*lines, inside=self._held[0].enter)


class _Namespace:
    """A network namespace, and the process that it lives as long as."""

    def __init__(self, hold: Sequence[str]) -> None:
        self._guard = ParentDeath()
        try:
            self._process = subprocess.Popen(
                hold,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=self._guard.preexec,
            )
        except FileNotFoundError as missing:
            raise _impossible(str(missing)) from None
        self._guard.watch(self.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def enter(self) -> tuple[str, ...]:
        """How a command begins that runs in here."""
        return "nsenter", f"--net=/proc/{self.pid}/ns/net", "--"

    async def ready(self) -> None:
        """Wait until it exists."""
        ours = os.readlink("/proc/self/ns/net")
        while self._process.poll() is None:
            if _namespace_of(self.pid) not in ("", ours):
                return
            await asyncio.sleep(_LOOK_S)
        assert self._process.stderr is not None
        raise _impossible(self._process.stderr.read().decode())

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._guard.release()
        if self._process.stderr is not None:
            self._process.stderr.close()


def _namespace_of(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""


def _free_prefix() -> str:
    """Return the first three numbers of addresses that this machine does not use.

    198.18.0.0/15 is for tests of networks (RFC 2544): nobody has such an address.
    """
    while True:
        prefix = f"198.{18 + secrets.randbelow(2)}.{secrets.randbelow(256)}"
        if not _run(["ip", "route", "show", "root", f"{prefix}.0/24"], "").strip():
            return prefix


async def _ip(*lines: str, inside: Sequence[str] = ()) -> None:
    """Let `ip` do all of this, in a namespace."""
    await asyncio.to_thread(_run, [*inside, "ip", "-batch", "-"], "\n".join(lines) + "\n")


def _run(command: Sequence[str], text: str) -> str:
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    except FileNotFoundError as missing:
        raise _impossible(str(missing)) from None
    if done.returncode:
        raise _impossible(done.stderr)
    return done.stdout


def _impossible(why: str) -> DrillImpossible:
    first = next(iter(why.strip().splitlines()), "no reason given")
    return DrillImpossible(
        "a partition needs network namespaces, which this machine does not allow here "
        f"({first}): run as root on Linux, or leave `partition` out of --kinds"
    )
