"""The processes of a drill: kept running whatever ends them, and faults that are done to them.

A service that ends is started again at once. How it ended is known: by a fault of the drill, in a failpoint
that it claimed, or by itself, which nobody asked for and is told.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from mesh.bus.roles import GUARD
from mesh.errors import MeshError
from mesh.local.fleet import LocalFleet
from mesh.local.service import LaunchFailed, ServiceProcess
from tests.drill import failpoints
from tests.drill.cluster import Cluster, Node
from tests.drill.damage import DAMAGES, empty
from tests.drill.evidence import SERVER, Fault
from tests.drill.failpoints import Claim

HELD = "held"
"""What a story does to the guards; it counts beside the planned faults."""
READY = ("agent_ready", "guard_ready")
"""Lines of a service's log from which on it takes work."""
_LOOK_S = 0.02
_MOST_MISSING = 5
_STARTS = 5
"""Starts in a row that may come to nothing before it is the program that is wrong."""


class NotCurrent(MeshError, code="drill.not_current"):
    """Another server would be struck while one of the cluster still lacks something."""


def now_us() -> int:
    return time.time_ns() // 1000


class Running:
    """One service, as the drill sees it."""

    def __init__(self, service: ServiceProcess) -> None:
        self.service = service
        self.ready = asyncio.Event()
        """Whether it takes work."""
        self.instance = ""
        """What an agent's process calls itself; it signs the steps that it writes."""
        self.one_at_a_time = asyncio.Lock()
        """Held by whoever does a fault to it."""
        self.asked = False
        """Whether its next end is the drill's doing."""
        self._read = service.log.stat().st_size if service.log.exists() else 0

    @property
    def identity(self) -> str:
        return self.service.identity

    async def start(self) -> bool:
        """Start it and wait until it takes work; False if it ends instead."""
        self._read = self.service.log.stat().st_size
        await self.service.start()
        return await self.until_ready()

    async def until_ready(self, from_start: bool = False) -> bool:
        """Wait until its log says that it is ready; False if it ends instead."""
        if from_start:
            self._read = 0
        while not self._says_ready():
            if not self.service.running:
                return False
            await asyncio.sleep(_LOOK_S)
        self.ready.set()
        return True

    def _says_ready(self) -> bool:
        with self.service.log.open("rb") as log:
            log.seek(self._read)
            for line in log.read().splitlines():
                if any(each.encode() in line for each in READY):
                    with contextlib.suppress(ValueError):
                        self.instance = json.loads(line).get("instance", "")
                    return True
        return False


class Processes:
    """All services of a fleet and its server. `keep` runs until `over`.

    Args:
        cluster: the servers in the place of the fleet's one.
    """

    def __init__(self, fleet: LocalFleet, armed: Path, cluster: Cluster | None = None) -> None:
        self._fleet = fleet
        self.cluster = cluster
        self._armed = armed
        self.running = {identity: Running(service) for identity, service in fleet.services.items()}
        """By identity."""
        self.faults: list[Fault] = []
        self.unasked: list[str] = []
        """Services that ended by themselves, in a line each."""
        self._fault_came = asyncio.Condition()
        self.armed: set[str] = set()
        """Failpoints that wait for somebody to die in them."""
        self.server_lock = asyncio.Lock()
        self.not_current: list[str] = []
        """Servers that did not get what the others have, in a line each."""
        self._detail = ""
        """What the fault in hand does to a server."""
        self._holding = asyncio.Lock()
        self._over = False

    async def ready(self) -> None:
        """Wait until every service has said once that it is ready."""
        await asyncio.gather(*(each.until_ready(from_start=True) for each in self.running.values()))

    async def keep(self) -> None:
        """Start every service again whenever it ends. Raises LaunchFailed when that is in vain."""
        async with asyncio.TaskGroup() as tasks:
            for each in self.running.values():
                tasks.create_task(self._keep(each))

    async def _keep(self, each: Running) -> None:
        in_vain = 0
        died: list[Claim] = []
        while True:
            pid = each.service.pid
            status = await each.service.ended()
            each.ready.clear()
            if self._over:
                return
            claim = self._claim_of(pid)
            if claim is not None:
                died.append(claim)
            elif not each.asked:
                self.unasked.append(
                    f"{each.identity} (process {pid}) ended with {status}\n{each.service.tail()}"
                )
            each.asked = False
            if not await each.start():  # it may even die in a failpoint before it says that it is ready
                in_vain += 1
                if in_vain == _STARTS:
                    raise LaunchFailed(f"{each.identity} does not start\n{each.service.tail()}")
                continue
            in_vain = 0
            await self._say(each, died)
            died.clear()

    def _claim_of(self, pid: int) -> Claim | None:
        """Return the claim of a process that has ended, and put it away: a process id may come again."""
        for claim in failpoints.claims(self._armed):
            if claim.pid == pid:
                (self._armed / f"{claim.failpoint}.{pid}").unlink()
                return claim
        return None

    async def _say(self, each: Running, died: Sequence[Claim]) -> None:
        """Put the deaths of a service that runs again among the faults."""
        for claim in died:
            self.faults.append(Fault(claim.failpoint, each.identity, each.service.name, claim.at, now_us()))
            self.armed.discard(claim.failpoint)
        async with self._fault_came:
            self._fault_came.notify_all()

    @property
    def not_ready(self) -> list[str]:
        """Services that do not take work, by identity."""
        return [identity for identity, each in self.running.items() if not each.ready.is_set()]

    def let_go(self) -> None:
        """Start nothing again from now on, and leave nothing stopped."""
        self._over = True
        for each in self.running.values():
            each.service.signal(signal.SIGCONT)

    async def end(self, grace_s: float) -> None:
        """End every service in good order; none is started again."""
        self.let_go()
        await asyncio.gather(*(each.service.stop(grace_s) for each in self.running.values()))

    def is_alive(self, instance: str) -> bool:
        """Say whether the process that signs with this name still exists, be it stopped."""
        return any(each.instance == instance and each.service.running for each in self.running.values())

    # --- failpoints ----------------------------------------------------------------------------------

    def arm(self, failpoint: str, passes: int = 0) -> None:
        """Let the next process that reaches a failpoint die in it. Raises UnknownFailpoint."""
        failpoints.arm(self._armed, failpoint, passes=passes)
        self.armed.add(failpoint)

    def disarm(self, failpoint: str) -> bool:
        """Take an armed failpoint back; False if somebody is dying in it already."""
        taken_back = failpoints.disarm(self._armed, failpoint)
        if taken_back:
            self.armed.discard(failpoint)
        return taken_back

    def deaths(self, failpoint: str) -> int:
        """Return how often a process died in a failpoint and runs again."""
        return sum(fault.kind == failpoint for fault in self.faults)

    async def died_in(self, failpoint: str, times: int = 1) -> None:
        """Wait until processes have died in a failpoint so often, and run again."""
        async with self._fault_came:
            await self._fault_came.wait_for(lambda: self.deaths(failpoint) >= times)

    # --- faults -----------------------------------------------------------------------------------

    async def kill(self, identity: str) -> None:
        """SIGKILL; returns when it runs again."""
        await self._end_one(identity, "kill", signal.SIGKILL)

    async def restart(self, identity: str) -> None:
        """SIGTERM; returns when it runs again."""
        await self._end_one(identity, "restart", signal.SIGTERM)

    async def _end_one(self, identity: str, kind: str, number: signal.Signals) -> None:
        each = self.running[identity]
        at = now_us()
        each.ready.clear()
        each.asked = True
        each.service.signal(number)
        await each.ready.wait()
        self.faults.append(Fault(kind, identity, each.service.name, at, now_us()))

    async def pause(self, identity: str, pause_s: float) -> None:
        """SIGSTOP, and SIGCONT after `pause_s`."""
        each = self.running[identity]
        at = now_us()
        each.service.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(pause_s)
        finally:
            each.service.signal(signal.SIGCONT)
        self.faults.append(Fault("pause", identity, each.service.name, at, now_us(), each.service.pid))

    @contextlib.asynccontextmanager
    async def guards_held(self) -> AsyncIterator[None]:
        """Stop every guard (SIGSTOP) for the body, as if none was deployed: what is sent lies in a queue."""
        guards = [each for each in self.running.values() if each.service.name == GUARD]
        async with self._holding, contextlib.AsyncExitStack() as stack:
            for each in guards:
                await stack.enter_async_context(each.one_at_a_time)
            at = now_us()
            for each in guards:
                each.service.signal(signal.SIGSTOP)
            try:
                yield
            finally:
                for each in guards:
                    each.service.signal(signal.SIGCONT)
            pauses = (Fault(HELD, each.identity, GUARD, at, now_us(), each.service.pid) for each in guards)
            self.faults.extend(pauses)

    # --- faults of the server ---------------------------------------------------------------------

    async def kill_server(self, whom: str = "") -> None:
        """SIGKILL; returns when it answers again, and has what the others of a cluster have."""
        await self._end_server("kill", whom)

    async def restart_server(self, whom: str = "") -> None:
        """SIGTERM; returns as `kill_server`."""
        await self._end_server("restart", whom)

    async def _end_server(self, kind: str, whom: str) -> None:
        if self.cluster is not None:
            async with self._struck(kind, whom) as node:
                await node.end(signal.SIGKILL if kind == "kill" else signal.SIGTERM)
            return
        async with self.server_lock:
            at = now_us()
            server = self._fleet.server
            try:
                await (server.kill() if kind == "kill" else server.stop())
            finally:  # a drill that has waited long enough needs it to read what there is
                await server.start()
            self.faults.append(Fault(kind, SERVER, SERVER, at, now_us()))

    async def pause_server(self, pause_s: float, whom: str = "") -> None:
        """SIGSTOP, and SIGCONT after `pause_s`; returns as `kill_server`."""
        if self.cluster is not None:
            async with self._struck("pause", whom) as node:
                self._detail = f"for {pause_s:.1f} s"
                node.send(signal.SIGSTOP)
                await asyncio.sleep(pause_s)
            return
        async with self.server_lock:
            at = now_us()
            os.kill(self._fleet.server.pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(pause_s)
            finally:
                os.kill(self._fleet.server.pid, signal.SIGCONT)
            self.faults.append(Fault("pause", SERVER, SERVER, at, now_us()))

    async def damage_server(self, whom: str, how: str, seed: int, *, emptied: bool) -> None:
        """SIGKILL, and damage to what is on its disk; returns as `kill_server`.

        Args:
            how: one of `DAMAGES`.
            seed: draws where.
            emptied: start it on an empty store, as the operator of a damaged disk has to.
        """
        kind = "disk-damaged" if emptied else "disk-damaged-raw"
        async with self._struck(kind, whom) as node:
            await node.end(signal.SIGKILL)
            self._detail = f"{how}: {DAMAGES[how](node.store, random.Random(seed))}"
            if emptied:
                empty(node.store)

    async def part_server(self, whom: str, for_s: float, *, clients: bool) -> None:
        """Cut a server off from the others, and from its clients if these are to be cut off, too."""
        assert self.cluster is not None
        async with self._struck("partition", whom):
            self._detail = f"from {'everything' if clients else 'the other servers'} for {for_s:.1f} s"
            await self.cluster.cut(whom, clients=clients)
            await asyncio.sleep(for_s)

    @contextlib.asynccontextmanager
    async def _struck(self, kind: str, whom: str) -> AsyncIterator[Node]:
        """Do something to one server of a cluster: all are current before it, and waited for afterwards.

        Whatever happens, none is left away: a drill that is broken off needs them to read what there is.
        Raises NotCurrent, and does nothing, if one of them is not current.
        """
        assert self.cluster is not None
        node = self.cluster.nodes[whom]
        async with self.server_lock:
            if not await self._until_current(f"before {kind} of {whom}"):
                raise NotCurrent(f"{kind} of {whom} would be one server too many")
            at, self._detail = now_us(), ""
            try:
                yield node
            finally:
                await self.cluster.mend(whom)
            until = now_us()
            await self._until_current(f"after {kind} of {whom}")
            current = now_us()
            detail = f"{self._detail}; " if self._detail else ""
            detail += f"current {(current - until) / 1e6:.1f} s later"
            self.faults.append(Fault(kind, whom, SERVER, at, current, detail=detail))

    async def _until_current(self, when: str) -> bool:
        """Wait until every server has everything; False if they do not come to that."""
        assert self.cluster is not None
        if missing := await self.cluster.current():
            self.not_current.append(f"{when}: {'; '.join(missing[:_MOST_MISSING])}")
        return not missing
