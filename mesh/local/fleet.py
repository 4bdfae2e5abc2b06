"""A whole mesh on this machine: bus, guards and agents, each a process, all ended together.

What runs here runs as it would anywhere: with the same commands, credentials and permissions. Nothing is
taken to be up because time has passed: a guard is ready when it waits for work at the bus, an agent when it
answers there.
"""

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from mesh.bus.connection import Bus, connect
from mesh.bus.credentials import VARIABLES as TLS_VARIABLES
from mesh.bus.credentials import seed_file
from mesh.bus.lane import ping, statistics
from mesh.bus.provision import Change, stored_queues
from mesh.bus.roles import ADMIN, GUARD
from mesh.bus.streams import inbox_consumer, queue_consumers
from mesh.errors import BusError, MeshError, OldForm
from mesh.fleet.file import FleetFile
from mesh.fleet.setup import KEYS, apply, prepare
from mesh.local.server import EmbeddedServer, Lifecycle
from mesh.local.service import COMMAND, LaunchFailed, ServiceProcess, describe_exit, near, next_try
from mesh.model.vendors import secrets
from mesh.settings import load_settings

_POLL_S = 0.02
_GRACE_S = 5.0
_READY_S = 60.0
"""How long services may take to be ready (s)."""
_NOT_INHERITED = (
    "MESH_NAME",
    "MESH_CREDENTIALS",
    "NATS_URL",
    "MESH_LOG_FORMAT",
    "MESH_LOG_LEVEL",
    "MESH_HEALTH",
    *TLS_VARIABLES,
)
"""Settings of a single process: several processes cannot share a name, or a port for probes."""


def store_of(directory: Path) -> Path:
    """Return the server's store of a mesh that keeps everything in `directory`."""
    return directory / "store"


class LocalFleet(Lifecycle):
    """`async with LocalFleet(file, directory) as mesh:` then `await mesh.connect_as("app")`.

    Args:
        file: the fleet. Agents without a `module` are run elsewhere (`unserved`).
        directory: keys, store and logs; a second start finds them again.
        guards: number of guard processes.
        sync_always: fsync each message. Without it the store is discarded at the end.
        port: the server's; 0 lets the system choose.
        anonymous: the client that connections without credentials act as.
        instances: number of processes of each agent; `billing-1`, `billing-2` if several.
        commands: by name, `guard` or an agent's: how their processes begin, instead of with `COMMAND`.
        restart_s: pauses before a service that died is started again; with none it stays dead.
        environment: added to the environment of every service.
        agent_environment: the same for agents alone; None removes a variable.
        search: directories in which services look for agents' modules.
        on_trouble: called with one line whenever a service dies or cannot be started again.
        on_ready: called for the server and for each service once it is ready, during the start.
    """

    def __init__(
        self,
        file: FleetFile,
        directory: Path,
        *,
        guards: int = 1,
        sync_always: bool = True,
        port: int = 0,
        anonymous: str | None = None,
        instances: int = 1,
        commands: Mapping[str, Sequence[str]] | None = None,
        restart_s: Sequence[float] = (),
        environment: Mapping[str, str] | None = None,
        agent_environment: Mapping[str, str | None] | None = None,
        search: Sequence[Path] = (),
        on_trouble: Callable[[str], None] | None = None,
        on_ready: Callable[[ServiceProcess | EmbeddedServer], None] | None = None,
    ) -> None:
        self.file = file
        self.directory = directory.resolve()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.logs = self.directory / "logs"
        self.logs.mkdir(exist_ok=True)
        self.prepared = prepare(file, self.directory, anonymous=anonymous, auth="nkeys")
        self.server = EmbeddedServer(
            self.prepared.accounts,
            store_of(self.directory),
            port=port,
            sync_always=sync_always,
            probe_seed=self.prepared.keys[ADMIN].seed,
        )
        self.services: dict[str, ServiceProcess] = {}
        """By identity: `guard-1`, `billing`."""
        self.died = asyncio.Event()
        """Set when a service ended without being asked to."""
        self._guards = guards
        self._instances = instances
        self._commands = dict(commands or {})
        self._lasting = sync_always
        self._restart_s = restart_s
        self._environment = dict(environment or {})
        self._agent_environment = dict(agent_environment or {})
        self._search = tuple(search)
        self._on_trouble = on_trouble or (lambda line: None)
        self._on_ready = on_ready or (lambda service: None)
        self._anonymous = anonymous
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._stopping = False

    @property
    def unserved(self) -> tuple[str, ...]:
        """Agents that are run elsewhere: the fleet file names no module for them."""
        return tuple(name for name, section in self.file.agents.items() if section.module is None)

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def artifacts(self) -> str:
        """The store of artifacts: from the environment or the fleet file, else a folder here."""
        named = load_settings().artifacts or self.file.artifacts.store
        return named or str(self.directory / "artifacts")

    @property
    def keys(self) -> Path:
        """Directory of all members' seeds."""
        return self.directory / KEYS

    async def connect_as(self, name: str) -> Bus:
        """Return a connection with the credentials of `name`; the caller closes it."""
        return await connect(self.url, name=name, seed=self.prepared.keys[name].seed)

    # --- starting ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start everything and wait until it is ready. Raises ServerError, ProvisionError, LaunchFailed."""
        await self.server.start()
        self._on_ready(self.server)
        async with await self.connect_as(ADMIN) as admin:
            try:
                await apply(admin, self.file)
            except OldForm as old:
                store = store_of(self.directory)
                text = f"{store} is left as it is: {old}: move it away, to {store}-form-{old.version} say"
                raise LaunchFailed(text) from old
            for number in range(1, self._guards + 1):
                identity = f"{GUARD}-{number}"
                self._add(GUARD, identity, ("guard", "run", "--identity", identity))
            for name in self.file.agents:
                self._add_agent(name)
            for service in self.services.values():
                await service.start()
            await self._ready(admin)
        kept: list[ServiceProcess | EmbeddedServer] = [self.server, *self.services.values()]
        for each in kept:
            self._keepers[each.identity] = asyncio.create_task(self._keep(each))

    def _add_agent(self, name: str) -> list[ServiceProcess]:
        """Add an agent's processes, not started yet; none if it is run elsewhere."""
        module = self.file.agents[name].module
        numbers = range(1, self._instances + 1) if module is not None else ()
        identities = [name if self._instances == 1 else f"{name}-{number}" for number in numbers]
        return [self._add(name, identity, ("agent", "run", str(module))) for identity in identities]

    def _add(self, name: str, identity: str, arguments: Sequence[str]) -> ServiceProcess:
        kept = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
        paths = [*map(str, self._search), *filter(None, [kept.get("PYTHONPATH")])]
        own = {
            "NATS_URL": self.url,
            "MESH_NAME": name,
            "MESH_CREDENTIALS": str(seed_file(self.keys, name)),
            "MESH_ARTIFACTS": self.artifacts,
            "MESH_LOG_FORMAT": "json",
            "MESH_LOG_LEVEL": "debug" if os.environ.get("MESH_LOG_LEVEL") == "debug" else "info",
            "PYTHONPATH": os.pathsep.join(paths),
        }
        log = self.logs / f"{identity}.log"
        command = self._commands.get(name, COMMAND)
        environment = kept | own | self._environment
        changed = dict.fromkeys(secrets()) if name == GUARD else self._agent_environment
        environment = {key: value for key, value in (environment | changed).items() if value is not None}
        service = ServiceProcess(name, identity, arguments, environment, log, command)
        self.services[identity] = service
        return service

    async def _ready(self, admin: Bus) -> None:
        """Wait until every service waits for work. Raises LaunchFailed as soon as one ends instead."""
        checks = {
            name: [partial(self._answers, admin, name)]
            for name in dict.fromkeys(each.name for each in self.services.values())
        }
        checks[GUARD] = [partial(self._is_guarded, admin, stream) for stream in await stored_queues(admin)]
        checks[GUARD].append(partial(self._all_guards_answer, admin))
        try:
            async with asyncio.timeout(_READY_S):
                while checks:
                    for name, pending in list(checks.items()):
                        checks[name] = [check for check in pending if not await check()]
                        if not checks[name]:
                            del checks[name]
                            for each in (each for each in self.services.values() if each.name == name):
                                self._on_ready(each)
                    for each in self.services.values():
                        if not each.running:
                            status = await each.ended()
                            text = f"{each.identity} ended with {status} as it started"
                            raise LaunchFailed(f"{text}\n{each.tail()}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise LaunchFailed(f"not everything was ready within {_READY_S:g} s: {self.logs}") from None

    async def _is_guarded(self, admin: Bus, stream: str) -> bool:
        """Return True if a guard waits for work in every partition of a queue."""
        with contextlib.suppress(BusError):
            page = await admin.api(f"CONSUMER.LIST.{stream}")
            ours = queue_consumers(self.file.fleet.partitions)
            waiting = (each["num_waiting"] for each in page["consumers"] if each["name"] in ours)
            return bool(min(waiting, default=0) >= 1)
        return False

    async def _all_guards_answer(self, admin: Bus) -> bool:
        """Return True if as many guards answer as were started."""
        if self._guards == 1:
            return bool(await ping(admin, GUARD))
        return len(await statistics(admin, GUARD)) >= self._guards

    async def _answers(self, admin: Bus, name: str) -> bool:
        """Return True if an agent answers, and all its instances wait for work."""
        if not await ping(admin, name):
            return False
        info = await admin.api(f"CONSUMER.INFO.LOG.{inbox_consumer(name)}")
        return bool(info["num_waiting"] >= self._instances)

    # --- watching ---------------------------------------------------------------------------------

    async def _keep(self, each: ServiceProcess | EmbeddedServer) -> None:
        """Report when a process dies, and start it again if that was asked for.

        A server gets its port and store again, and its connections wait for that. A process that cannot be
        started at all, such as for lack of memory, is tried again like one that ends at once.
        """
        tries = 0
        while True:
            started, pid = time.monotonic(), each.pid
            why = describe_exit(await each.ended())
            if self._stopping:
                return
            self.died.set()
            self._on_trouble(f"{each.identity} (process {pid}) {why}; its log: {near(each.log)}")
            if not self._restart_s:
                return
            ran_s, runs = time.monotonic() - started, False
            while not runs:
                tries, pause_s = next_try(tries, ran_s, self._restart_s)
                await asyncio.sleep(pause_s)
                try:
                    await each.start()
                    runs = True
                except (OSError, subprocess.SubprocessError, MeshError) as failed:
                    why = str(failed).partition("\n")[0]  # without the server's last lines
                    self._on_trouble(f"{each.identity} cannot be started, and is tried again: {why}")
                    ran_s = 0.0
            self._on_trouble(f"{each.identity} runs again as process {each.pid}")

    # --- changing ---------------------------------------------------------------------------------

    async def renew(self, service: ServiceProcess) -> bool:
        """Start a new process of a service, and end the old one once the new one takes work.

        Returns False if the new process ended instead: then the old one continues.
        """
        fresh = service.another()
        await fresh.start()
        try:
            while not any('"agent_ready"' in line for line in fresh.written()):
                if not fresh.running:
                    await fresh.ended()
                    return False
                await asyncio.sleep(_POLL_S)
        except BaseException:
            await fresh.stop(0.0)
            raise
        await self._forget(service)
        self._begin(fresh)
        return True

    async def adopt(self, file: FleetFile) -> list[Change]:
        """Change to another fleet file: members join and leave, and all of them learn of it.

        Returns the changes on the bus. Raises as `prepare` and `apply`, ServerFailed, LaunchFailed.
        """
        self.prepared = prepare(file, self.directory, anonymous=self._anonymous, auth="nkeys")
        await self.server.reload(self.prepared.accounts)
        async with await self.connect_as(ADMIN) as admin:
            changes = await apply(admin, file)
        before, self.file = self.file, file
        modules = {name: section.module for name, section in file.agents.items()}
        for each in list(self.services.values()):
            if each.name != GUARD and modules.get(each.name) != before.agents[each.name].module:
                await self._forget(each)
        for name in modules.keys() - {each.name for each in self.services.values()}:
            for added in self._add_agent(name):
                await added.start()
                self._begin(added)
        return changes

    def _begin(self, service: ServiceProcess) -> None:
        self.services[service.identity] = service
        self._keepers[service.identity] = asyncio.create_task(self._keep(service))

    async def _forget(self, service: ServiceProcess) -> None:
        """Stop a service that is not to be started again."""
        self.services.pop(service.identity)
        keeper = self._keepers.pop(service.identity)
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
        await service.stop(_GRACE_S)

    # --- ending -----------------------------------------------------------------------------------

    async def stop(self, grace_s: float = _GRACE_S) -> None:
        """End agents, then guards, then the server; each has `grace_s` to finish its work."""
        self._stopping = True
        for keeper in self._keepers.values():
            keeper.cancel()
        await asyncio.gather(*self._keepers.values(), return_exceptions=True)
        grace_s = grace_s if self.server.running else 0.0  # without a bus nothing can be finished
        for guards in (False, True):
            ending = [each for each in self.services.values() if (each.name == GUARD) is guards]
            await asyncio.gather(*(service.stop(grace_s) for service in ending))
        if self._lasting:
            await self.server.stop()
        else:
            await self.server.kill()  # a clean end takes half a second, and this store is not read again
