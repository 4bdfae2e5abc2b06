"""The agent under test: its process, and everything that it says on the bus."""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from typing import NamedTuple

from mesh.bus.connection import Bus
from mesh.bus.nats_protocol import Incoming

_ENDS_WITHIN_S = 15.0


class Said(NamedTuple):
    """One message of the agent's."""

    at: float
    """Monotonic seconds."""
    subject: str
    data: bytes

    @property
    def request(self) -> str:
        return self.subject.rpartition(".")[2]


class Ack(NamedTuple):
    """What it said of one delivery: `+ACK`, `+WPI`, `-NAK`, `+TERM`."""

    at: float
    deliveries: int
    """Which delivery of the event it speaks of, counted from 1."""
    seq: int
    """Of the event, in the log."""
    payload: str


class Process:
    """Runs a shell command, as often as it is started. `kill` is for what a signal does not reach."""

    def __init__(self, command: str, environment: Mapping[str, str], *, kill: str | None = None) -> None:
        self._command, self._kill = command, kill
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            shell=True,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # a signal then reaches what the shell starts
        )

    async def kill(self) -> None:
        """End it as a crash would."""
        if self._kill is not None:
            await asyncio.to_thread(subprocess.run, self._kill, shell=True, check=False)
        await self._signal(signal.SIGKILL)

    async def stop(self) -> bool:
        """Ask it to end; False if it had to be killed."""
        try:
            await self._signal(signal.SIGTERM, _ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            await self.kill()
            return False
        return True

    async def _signal(self, number: signal.Signals, within_s: float | None = None) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
        await asyncio.to_thread(self._process.wait, within_s)


class Overheard:
    """What the agent `name` says, in its order, as the streams' own account hears it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.proposals: list[Said] = []
        self.letters: list[Said] = []
        self.acks: list[Ack] = []

    async def listen(self, bus: Bus) -> None:
        """Hear everything from now on; `bus` is the admin's."""
        await bus.subscribe(f"mesh.prop.{self.name}.*", self._proposed)
        await bus.subscribe(f"mesh.dead.{self.name}", self._buried)
        await bus.subscribe(f"$JS.ACK.LOG.in-{self.name}.>", self._acknowledged)

    def of(self, request: str) -> list[Said]:
        """Return what was proposed for a request."""
        return [said for said in self.proposals if said.request == request]

    def acks_of(self, seq: int) -> list[Ack]:
        """Return what was said of the event at a place of the log."""
        return [ack for ack in self.acks if ack.seq == seq]

    def _proposed(self, message: Incoming) -> None:
        self.proposals.append(Said(time.monotonic(), message.subject, bytes(message.data)))

    def _buried(self, message: Incoming) -> None:
        self.letters.append(Said(time.monotonic(), message.subject, bytes(message.data)))

    def _acknowledged(self, message: Incoming) -> None:
        deliveries, seq = message.subject.split(".")[4:6]
        payload = bytes(message.data).decode(errors="replace") or "+ACK"  # so the server takes an empty one
        self.acks.append(Ack(time.monotonic(), int(deliveries), int(seq), payload))
