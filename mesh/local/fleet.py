"""A whole mesh on this machine: bus, guards and agents, each in its own process, and all gone at the end.

What runs here runs as it would anywhere: the same commands, the same credentials, the same permissions.
Nothing is known to be up because time has passed; a guard is ready when it waits for work at the bus,
an agent when it answers there.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

import mesh
from mesh.agent.definition import load
from mesh.bus.connection import Bus, connect
from mesh.bus.credentials import VARIABLES as TLS_VARIABLES
from mesh.bus.credentials import seed_file
from mesh.bus.presence import ping
from mesh.bus.provision import standing_queues
from mesh.bus.roles import ADMIN, GUARD
from mesh.bus.streams import QUEUE_CONSUMERS, inbox_consumer
from mesh.errors import BusError, MeshError, UsageWrong
from mesh.fleet.file import AgentSection, FleetFile, HumanSection, Member, Sender, load_fleet
from mesh.fleet.setup import KEYS, apply, prepare
from mesh.local.server import VENDOR_KEYS, EmbeddedServer, Lifecycle, ParentDeath
from mesh.model.agent import VARIABLE, Mode, mode
from mesh.settings import FILE_NAME

_LOOK_S = 0.02
_RESTART_S = (0.5, 1.0, 2.0, 5.0, 15.0)
_SETTLED_S = 30.0
"""A service that ran this long before it ended is restarted as if it had never ended before."""
_READY_S = 60.0
"""How long services may take to be ready."""
_TAIL_LINES = 12
COMMAND = (sys.executable, "-m", "mesh")
"""How a service's process begins; what it is to run follows."""
_NOT_INHERITED = (
    "MESH_NAME",
    "MESH_CREDENTIALS",
    "NATS_URL",
    "MESH_LOG_FORMAT",
    "MESH_HEALTH",
    *TLS_VARIABLES,
)
"""What is of one process: nobody can share a name, or a port to answer probes on."""
_CHECKOUT = Path(mesh.__file__).resolve().parents[1]
"""The checkout, if there is one."""
KEEPING_DATA = ("support", "recruiting")
"""Reference fleets with a database, which `<FLEET>_DB` names."""


class LaunchFailed(MeshError):
    """A service ended, or was not ready in time; the text ends with the last lines of its log."""

    code: ClassVar[str] = "launch.failed"


class Service:
    """One guard or agent: a process that can be started, watched and ended."""

    def __init__(
        self,
        name: str,
        identity: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.name = name
        """Whose credentials it has."""
        self.identity = identity
        """What this process is called: several may have one name."""
        self.log = log
        self._arguments = (*command, *arguments)
        self._environment = dict(environment)
        self._process: Process | None = None
        self._parent_death = ParentDeath()

    @property
    def pid(self) -> int:
        """Raises LaunchFailed when it was never started."""
        if self._process is None:
            raise LaunchFailed(f"{self.identity} is not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the process, in a session of its own: a Ctrl-C at the terminal is for the launcher."""
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._arguments,
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
                preexec_fn=self._parent_death.preexec,
            )
        self._parent_death.watch(self._process.pid)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self._process is not None and self.running:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def ended(self) -> int:
        """Wait for its end and return its exit status; negative for a signal."""
        assert self._process is not None
        status = await self._process.wait()
        self._parent_death.release()
        return status

    async def stop(self, grace_s: float) -> None:
        """End it: SIGTERM, and SIGKILL after `grace_s`. Idempotent."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(grace_s):
                await self.ended()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self.ended()

    def tail(self) -> str:
        """Return the last lines that it wrote."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
        return ""


class LocalFleet(Lifecycle):
    """`async with LocalFleet(file, directory) as mesh:` then `await mesh.connect_as("app")`.

    Args:
        file: the fleet. Agents without a `module` are left to others (`unserved`).
        directory: keys, store and logs; a second start finds them again.
        guards: how many guard processes.
        sync_always: fsync each message. Without it the store counts as thrown away at the end.
        port: of the server; 0 lets the system choose.
        anonymous: the client that connections without credentials are.
        instances: how many processes of each agent; `billing-1`, `billing-2` if several.
        commands: by name, `guard` or an agent's, how their processes begin instead of with `COMMAND`.
        restart: start a service that died again, with growing pauses.
        environment: added to the environment of every service.
        agent_environment: the same for agents alone; None takes a variable away.
        search: directories in which services look for agents' modules.
        on_trouble: told in one line whenever a service dies, or cannot be started again.
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
        restart: bool = False,
        environment: Mapping[str, str] | None = None,
        agent_environment: Mapping[str, str | None] | None = None,
        search: Sequence[Path] = (),
        on_trouble: Callable[[str], None] | None = None,
    ) -> None:
        self.file = file
        self.directory = directory.resolve()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.logs = self.directory / "logs"
        self.logs.mkdir(exist_ok=True)
        self.prepared = prepare(file, self.directory, anonymous=anonymous)
        self.server = EmbeddedServer(
            self.prepared.accounts,
            self.directory / "store",
            port=port,
            sync_always=sync_always,
            probe_seed=self.prepared.keys[ADMIN].seed,
        )
        self.services: dict[str, Service] = {}
        """By identity: `guard-1`, `billing`."""
        self.unserved = tuple(name for name, section in file.agents.items() if section.module is None)
        self.died = asyncio.Event()
        """Set when a service ended that nobody asked to."""
        self._guards = guards
        self._instances = instances
        self._commands = dict(commands or {})
        self._lasting = sync_always
        self._restart = restart
        self._environment = dict(environment or {})
        self._agent_environment = dict(agent_environment or {})
        self._search = tuple(search)
        self._on_trouble = on_trouble or (lambda line: None)
        self._keepers: list[asyncio.Task[None]] = []
        self._stopping = False

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def keys(self) -> Path:
        """Directory of everybody's seeds."""
        return self.directory / KEYS

    async def connect_as(self, name: str) -> Bus:
        """Return a connection with the credentials of `name`; the caller closes it."""
        return await connect(self.url, name=name, seed=self.prepared.keys[name].seed)

    # --- starting ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start everything and wait until it is ready. Raises ServerError, ProvisionError, LaunchFailed."""
        await self.server.start()
        async with await self.connect_as(ADMIN) as admin:
            await apply(admin, self.file)
            for number in range(1, self._guards + 1):
                identity = f"{GUARD}-{number}"
                self._add(GUARD, identity, ("guard", "run", "--identity", identity))
            for name, section in self.file.agents.items():
                for number in range(1, self._instances + 1) if section.module is not None else ():
                    identity = name if self._instances == 1 else f"{name}-{number}"
                    self._add(name, identity, ("agent", "run", str(section.module)))
            for service in self.services.values():
                await service.start()
            await self._ready(admin)
        kept: list[Service | EmbeddedServer] = [self.server, *self.services.values()]
        self._keepers = [asyncio.create_task(self._keep(each)) for each in kept]

    def _add(self, name: str, identity: str, arguments: Sequence[str]) -> None:
        kept = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
        paths = [*map(str, self._search), *filter(None, [kept.get("PYTHONPATH")])]
        own = {
            "NATS_URL": self.url,
            "MESH_NAME": name,
            "MESH_CREDENTIALS": str(seed_file(self.keys, name)),
            "MESH_LOG_FORMAT": "json",
            "PYTHONPATH": os.pathsep.join(paths),
        }
        log = self.logs / f"{identity}.log"
        command = self._commands.get(name, COMMAND)
        environment = kept | own | self._environment
        changed = dict.fromkeys(VENDOR_KEYS) if name == GUARD else self._agent_environment
        environment = {key: value for key, value in (environment | changed).items() if value is not None}
        self.services[identity] = Service(name, identity, arguments, environment, log, command)

    async def _ready(self, admin: Bus) -> None:
        """Wait until every service waits for work. Raises LaunchFailed as soon as one ends instead."""
        agents = dict.fromkeys(each.name for each in self.services.values() if each.name != GUARD)
        pending = [partial(self._guards_wait, admin, stream) for stream in await standing_queues(admin)]
        pending += [partial(self._answers, admin, name) for name in agents]
        try:
            async with asyncio.timeout(_READY_S):
                while pending := [check for check in pending if not await check()]:
                    for each in self.services.values():
                        if not each.running:
                            status = await each.ended()
                            text = f"{each.identity} ended with {status} as it started"
                            raise LaunchFailed(f"{text}\n{each.tail()}")
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise LaunchFailed(f"not everything was ready within {_READY_S:g} s: {self.logs}") from None

    async def _guards_wait(self, admin: Bus, stream: str) -> bool:
        """Return True if as many guards as were started wait for work in every partition of a queue."""
        with contextlib.suppress(BusError):
            page = await admin.api(f"CONSUMER.LIST.{stream}")
            waiting = (each["num_waiting"] for each in page["consumers"] if each["name"] in QUEUE_CONSUMERS)
            return bool(min(waiting, default=0) >= self._guards)
        return False

    async def _answers(self, admin: Bus, name: str) -> bool:
        """Return True if an agent answers, and all its instances wait for work."""
        if not await ping(admin, name):
            return False
        info = await admin.api(f"CONSUMER.INFO.LOG.{inbox_consumer(name)}")
        return bool(info["num_waiting"] >= self._instances)

    # --- watching ---------------------------------------------------------------------------------

    async def _keep(self, each: Service | EmbeddedServer) -> None:
        """Say it when a process dies, and start it again if that was asked for.

        A server gets its port and store again, and its connections wait for that. A process that cannot be
        started at all, for want of room say, is tried again like one that ends at once.
        """
        tries = 0
        while True:
            started, pid = time.monotonic(), each.pid
            why = _exit_words(await each.ended())
            if self._stopping:
                return
            self.died.set()
            self._on_trouble(f"{each.identity} (process {pid}) {why}; its log: {each.log}")
            if not self._restart:
                return
            ran_s, runs = time.monotonic() - started, False
            while not runs:
                tries, pause_s = next_try(tries, ran_s)
                await asyncio.sleep(pause_s)
                try:
                    await each.start()
                    runs = True
                except (OSError, subprocess.SubprocessError, MeshError) as failed:
                    why = str(failed).partition("\n")[0]  # a server's last lines follow
                    self._on_trouble(f"{each.identity} cannot be started, and is tried again: {why}")
                    ran_s = 0.0
            self._on_trouble(f"{each.identity} runs again as process {each.pid}")

    # --- ending -----------------------------------------------------------------------------------

    async def stop(self, grace_s: float = 5.0) -> None:
        """End agents, then guards, then the server; each has `grace_s` to finish what it holds."""
        self._stopping = True
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        grace_s = grace_s if self.server.running else 0.0  # without a bus there is nothing left to finish
        for guards in (False, True):
            ending = [each for each in self.services.values() if (each.name == GUARD) is guards]
            await asyncio.gather(*(service.stop(grace_s) for service in ending))
        if self._lasting:
            await self.server.stop()
        else:
            await self.server.kill()  # a clean end takes half a second, and nobody looks at this store again


def next_try(tries: int, ran_s: float) -> tuple[int, float]:
    """Return how many starts in a row the next one of a service makes, and the pause (s) before it.

    Args:
        tries: starts in a row before this end.
        ran_s: how long the service ran; after a long run the shortest pause comes first again.
    """
    tries = 1 if ran_s > _SETTLED_S else tries + 1
    return tries, _RESTART_S[min(tries, len(_RESTART_S)) - 1]


def _exit_words(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-status).name}"
    return f"was killed by signal {-status}"


# --- which fleet, and which model ------------------------------------------------------------------


def reference_fleet(name: str) -> Path:
    """Return the directory of a fleet under agents/. Raises UsageWrong outside of a checkout."""
    for root in (Path.cwd(), _CHECKOUT):
        directory = root / "agents" / name
        if (directory / FILE_NAME).is_file():
            return directory
    raise UsageWrong(
        f"there is no fleet agents/{name}/ here; the reference fleets are in a checkout, "
        "not in the installed package"
    )


def find_fleet(named: Sequence[str]) -> tuple[FleetFile, tuple[Path, ...]]:
    """Return a fleet and the directories that hold its modules.

    Args:
        named: nothing, for mesh.toml here; a fleet file or its directory; the name of a reference
            fleet; or `MODULE:NAME` once or several times, for a fleet made of just these agents.

    Raises UsageWrong, FleetFileError, AgentNotFound.
    """
    here = Path.cwd()
    if not named:
        if not (here / FILE_NAME).is_file():
            raise UsageWrong(
                f"there is no {FILE_NAME} here; name a fleet with --fleet FILE or --fleet MODULE:NAME"
            )
        return load_fleet(here), (here,)
    if len(named) == 1:
        path = Path(named[0])
        if path.exists():
            home = path.resolve() if path.is_dir() else path.resolve().parent
            return load_fleet(path), (here, home, *_package_root(home))
        if ":" not in named[0]:
            return load_fleet(reference_fleet(named[0])), (here, reference_fleet(named[0]).parents[1])
    return _fleet_of(named), (here,)


def _package_root(home: Path) -> tuple[Path, ...]:
    """Return the directory that holds the package which `home` is part of, if it is part of one."""
    if not (home / "__init__.py").is_file():
        return ()
    root = home
    while (root / "__init__.py").is_file():
        root = root.parent
    return (root,)


def _fleet_of(modules: Sequence[str]) -> FleetFile:
    agents = {}
    for module in modules:
        found = load(module)
        agents[found.name] = AgentSection(module=module, description=found.description)
    return FleetFile(
        name="dev",
        entry=next(iter(agents)),
        agents=agents,
        clients={"app": Sender()},
        operators={"ops": Sender()},
        viewers={"audit": Member()},
        human=HumanSection(),
    )


def data_environment(directory: Path) -> dict[str, str]:
    """Return the variables that keep the reference fleets' data in `directory`; those that are set stay."""
    own = {f"{fleet.upper()}_DB": str(directory.absolute() / f"{fleet}.db") for fleet in KEEPING_DATA}
    return {name: value for name, value in own.items() if name not in os.environ}


def model_environment(kind: Mode) -> dict[str, str | None]:
    """Return the variables of agents that such a model drives; None takes a variable away.

    Nothing is spent unasked: agents that rules drive do not get the key. Raises ModelUnavailable.
    """
    return {VARIABLE: mode(kind), **(dict.fromkeys(VENDOR_KEYS) if kind == "scripted" else {})}
