"""Options that many commands share, and the frame that every command runs in.

`framed` gives a command the options that its parameters name: `where` stands for `--url`, `--context`, `--as`
and the `--tls-…` files, `as_json` for `-o` and `--json`. Nothing heavy is imported before a command runs.
"""

import asyncio
import functools
import getpass
import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mesh import ops
from mesh.bus.connection import Bus
from mesh.bus.credentials import TlsFiles
from mesh.cli.exits import mesh_errors
from mesh.cli.output import note, remark, report
from mesh.errors import MeshError, UsageWrong
from mesh.replay import export
from mesh.replay.export import load
from mesh.service import logs
from mesh.service.printable import counted
from mesh.settings import Access, Flags, find_access, load_settings, own_build, running_dev
from protocol.wire.events import AnyEvent
from protocol.wire.ids import is_request_id

if TYPE_CHECKING:
    from mesh.client import Client
    from mesh.service.run import Worker

T = TypeVar("T")
Command = Callable[..., Any]
Option = Callable[[Command], Command]
"""An option or an argument, as click declares it on a command."""
READERS = ("viewer", "operator", "admin")
"""Roles that may read the log, the least powerful first."""
PEOPLE = ("operator", "viewer", "admin")
"""The same, beginning with the role that can also decide."""


def together(*options: Option) -> Option:
    """Return several options as one, shown by `--help` in this order."""
    return lambda command: functools.reduce(lambda made, option: option(made), reversed(options), command)


def _login(context: click.Context, option: click.Parameter, by: str) -> str:
    return by or getpass.getuser()


class Prefix(str):
    """The beginning of a request's id, which `framed` replaces by the whole id."""

    __slots__ = ()


class InArchive(str):
    """A request or a day of an archive, which `framed` replaces by a file that has its events."""

    __slots__ = ()


def _whole_or_prefix(context: click.Context, argument: click.Parameter, typed: Any) -> Any:
    """Return one or several ids as typed, and the beginning of one as a `Prefix`. Raises UsageWrong."""
    if typed is None or isinstance(typed, tuple):
        return typed and tuple(map(id_or_prefix, typed))
    return id_or_prefix(typed)


def id_or_prefix(typed: str) -> str:
    """Return an id unchanged, the beginning of one as a `Prefix`. Raises UsageWrong for any other text."""
    return Prefix(typed) if ops.log.is_prefix(typed) else ops.log.checked_id(typed)


def _id_or_file(context: click.Context, argument: click.Parameter, typed: str | None) -> str | Path | None:
    """Return an id, a `Prefix`, a URL as `InArchive`, or any other text as the path of a file."""
    if typed is None or is_request_id(typed):
        return typed
    if "://" in typed:
        return InArchive(typed)
    return Prefix(typed) if ops.log.is_prefix(typed) and not Path(typed).is_file() else Path(typed)


A_PATH = click.Path(path_type=Path)
AN_ID = "The request's id, or its beginning."
request_argument = click.argument("request", metavar="ID", callback=_whole_or_prefix, help=AN_ID)
maybe_request_argument = click.argument(
    "request", metavar="[ID]", required=False, callback=_whole_or_prefix, help=AN_ID
)
requests_argument = click.argument(
    "requests", nargs=-1, metavar="ID…", callback=_whole_or_prefix, help="The ids of requests."
)
request_option = click.option("--request", required=True, callback=_whole_or_prefix, help=AN_ID)


def source_argument_for(help: str, *, required: bool = True) -> Option:
    """Return the argument that is a request's id, a file, or a request or a day of an archive."""
    metavar = "ID|FILE" if required else "[ID|FILE]"
    return click.argument("source", metavar=metavar, required=required, callback=_id_or_file, help=help)


source_argument = source_argument_for(
    "A request's id, its beginning, a file of exported events, or one request of an archive: URL/ID."
)


def _output_option(*forms: str, help: str = "The output format.") -> Option:
    """Return the option for the format of a command's result; the first form is the default."""
    return together(
        click.option(
            "-o", "--output", type=click.Choice(forms), default=forms[0], show_default=True, help=help
        ),
        click.option("--json", "as_json", is_flag=True, help="The same as -o json."),
    )


_SHARED: dict[str, Option] = {
    "health": click.option("--health", help="HOST:PORT that answers probes; by default MESH_HEALTH."),
    "reason": click.option("--reason", default="", help="Your reason, for the record."),
    "by": click.option(
        "--by", default="", callback=_login, help="Your name, for the record; by default your login."
    ),
    "at_event": click.option(
        "--event",
        "at_event",
        type=int,
        help="The number of the event since which it waits; needed where several wait in a request.",
    ),
    "tier": click.option("--tier", help="Only the work of this tier of people."),
    "as_json": _output_option("table", "json"),
    "form": _output_option(
        "table",
        "json",
        "html",
        "mermaid",
        help="The output format: html is one file for a browser, mermaid the text of a diagram.",
    ),
    "where": together(
        click.option("--url", "-s", help="The URL of the bus; by default NATS_URL."),
        click.option("--context", help="A context of the nats command line to take URL and key from."),
        click.option(
            "--as",
            "as_",
            help="The name whose credentials to use; by default MESH_NAME, then one with the right role.",
        ),
        click.option("--tls-ca", type=A_PATH, help="The authority that signed the bus's certificate, PEM."),
        click.option("--tls-cert", type=A_PATH, help="Your certificate for the bus, PEM."),
        click.option(
            "--tls-key", type=A_PATH, help="The key of your certificate, if its file has none, PEM."
        ),
    ),
}
"""By the parameter of a command that they fill."""


def grace_option(default_s: float) -> Option:
    """Return the option of how long a service may take to end."""
    return click.option(
        "--grace",
        type=click.FloatRange(min=0),
        default=default_s,
        show_default=True,
        help="Seconds to finish the work in hand.",
    )


def store_option(help: str) -> Option:
    """Return the option of the folder that a command keeps its files in."""
    return click.option("--store", type=A_PATH, default=Path(".mesh"), show_default=True, help=help)


def framed(command: Command) -> Command:
    """Give a command the shared options that its parameters name, and run it; it may be a coroutine."""
    names = inspect.signature(command).parameters

    @together(*(option for name, option in _SHARED.items() if name in names))
    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        if "as_json" in names:
            arguments["as_json"] |= arguments.pop("output") == "json"
        if "form" in names:
            form = arguments.pop("output")
            arguments["form"] = "json" if arguments.pop("as_json") else form
        if "where" in names:
            arguments["where"] = _where_of(arguments)
        try:
            work = _work(command, arguments)
            if work is not None:
                run_quietly(work)
        except Exception as error:
            where = arguments.get("where")
            wrong = where and _wrong_key_error(next(mesh_errors(error), None), where)
            if wrong is None:
                raise
            raise wrong from error

    return run


def _work(command: Command, arguments: dict[str, Any]) -> Coroutine[Any, Any, None] | None:
    """Return a command's coroutine, if it is one, with whole ids in place of prefixes.

    What it reads from an archive is a file until the command ends. Raises as `ops.archived.export`.
    """
    for name, value in arguments.items():
        if isinstance(value, InArchive):
            made = tempfile.TemporaryDirectory(prefix="mesh-archive-")
            folder = Path(click.get_current_context().with_resource(made))
            arguments[name] = asyncio.run(ops.archived.export(value, folder))
    several = [value if isinstance(value, tuple) else (value,) for value in arguments.values()]
    if any(isinstance(each, Prefix) for value in several for each in value):
        return _with_whole_ids(command, arguments)
    work: Coroutine[Any, Any, None] | None = command(**arguments)
    return work


async def _with_whole_ids(command: Command, arguments: dict[str, Any]) -> None:
    """Run a command with whole ids in place of their beginnings. Raises NotFound, UsageWrong."""
    async with await arguments["where"].named(None).connect(*READERS) as bus:
        for name, value in arguments.items():
            if isinstance(value, tuple):
                arguments[name] = tuple([await _whole(bus, each) for each in value])
            else:
                arguments[name] = await _whole(bus, value)
    await command(**arguments)


async def _whole(bus: Bus, value: Any) -> Any:
    return await ops.log.whole_id(bus, value) if isinstance(value, Prefix) else value


# --- the bus, and who asks ------------------------------------------------------------------------


class Where:
    """The bus of a command line, and whose credentials it uses there."""

    def __init__(self, flags: Flags, asked: list[tuple[str, tuple[str, ...]]] | None = None) -> None:
        self.flags = flags
        self.asked = [] if asked is None else asked
        """The names whose keys were used so far, and for which roles."""

    def named(self, name: str | None) -> "Where":
        """Return the same for `name`."""
        return Where(self.flags._replace(name=name), self.asked)

    def default_name(self, name: str) -> "Where":
        """Return the same for `name`, unless a flag or a setting gives another name."""
        settings = load_settings()
        named = self.flags.name or settings.name or settings.credentials or self.flags.context
        return self if named else self.named(name)

    def access(self, *roles: str) -> Access:
        """Return how to reach the bus as one of `roles`, the best first.

        Raises NoCredentials; in particular DevStopped, if a stopped `mesh dev` would have had them.
        """
        access = find_access(roles, self.flags)
        self.asked.append((access.name, roles))
        return access

    async def connect(self, *roles: str) -> Bus:
        """Return a connection as one of `roles`.

        Raises Unreachable, TlsFailed, AuthenticationFailed, NoCredentials.
        """
        return await self.access(*roles).connect()

    async def client(self) -> "Client":
        """Return a client of the mesh. Raises as `connect`."""
        access = self.access("client", "operator")
        with access.named_in_errors():
            from mesh.client import Client

            return await Client.connect(access.url, name=access.name, seed=access.seed, tls=access.tls)


def _where_of(options: dict[str, Any]) -> Where:
    """Remove the options of the bus from `options`, and return them."""

    files = TlsFiles(options.pop("tls_ca"), options.pop("tls_cert"), options.pop("tls_key"))
    return Where(Flags(options.pop("url"), options.pop("context"), options.pop("as_"), files))


async def agreed(question: str, to_go_on: str) -> bool:
    """Ask at the terminal. Raises UsageWrong if there is none.

    Args:
        to_go_on: what `--yes` would mean.
    """

    if not sys.stdin.isatty():
        raise UsageWrong(f"there is no terminal to ask at: add --yes {to_go_on}")
    remark(f"{question}? [y/N] ", end="")
    answer = await asyncio.to_thread(sys.stdin.readline)
    return answer.strip().lower() in ("y", "yes")


def run_quietly(work: Coroutine[Any, Any, None]) -> None:
    """Run a command's coroutine. The runtime's own log is silent unless MESH_LOG_LEVEL is set.

    Telemetry is loaded only if a variable of OpenTelemetry's is set.
    """

    with closing(work), ExitStack() as stack:
        settings = load_settings()
        if settings.log_level is None:
            logs.silence()
        else:
            logs.configure_logging(settings.log_format, settings.log_level)
        if any(name.startswith("OTEL_") for name in os.environ):
            from mesh.telemetry.export import configure_telemetry

            stack.enter_context(configure_telemetry("mesh-cli"))
        asyncio.run(work)


def serve(
    access: Access, make: "Callable[[Bus], Worker]", *, grace_s: float, health: str | None = None
) -> None:
    """Run a service with these credentials until a signal ends it. Raises as `run_service`."""
    from importlib.metadata import version

    from mesh.service.run import run_service
    from mesh.telemetry import gauges

    settings = load_settings()
    gauges.show_process(version("handoff-mesh"), own_build(), access.credentials, access.tls.expire)
    run_service(
        access.name,
        functools.partial(access.connect, wait=True, lasts=True),
        make,
        grace_s=grace_s,
        health=health or settings.health or None,
        log_format=settings.log_format,
        log_level=settings.log_level or "info",
    )


def decided(event: AnyEvent, words: str, *, as_json: bool) -> None:
    """Print the event that obeyed an order: for people, what became of its request."""
    report(ops.control.obeyed(event), f"{event.request} {words} (event {event.n})", as_json=as_json)


# --- a key of the wrong role ----------------------------------------------------------------------


def _wrong_key_error(error: MeshError | None, where: Where) -> UsageWrong | None:
    """Return the error to report for a refusal of the bus; None unless another role's key is needed."""
    if error is None or error.code != "bus.denied":
        return None
    wrong = (wrong_key(name, roles, error) for name, roles in reversed(where.asked))
    return next(filter(None, wrong), None)


def wrong_key(name: str, wanted: Sequence[str], denied: MeshError | None = None) -> UsageWrong | None:
    """Return the error of a command whose key has none of the roles that it needs; None if it has one.

    Args:
        denied: the refusal of the bus, reported if nothing here shows which role the name has.
    """
    own = _role_of(name)
    if own in wanted:
        return None
    roles = [role for role in wanted if role != "admin"] or ["admin"]
    needed = f"this needs a key with the role {' or '.join(roles)} (--as, MESH_CREDENTIALS)"
    if own is not None:
        return UsageWrong(f"{name} has the role {own}; {needed}")
    return UsageWrong(f"the key of {name} will not do; {needed}" + (f": {denied}" if denied else ""))


def _role_of(name: str) -> str | None:
    """Return the role of a name in a running `mesh dev` or in the fleet file here; None if neither has it."""
    from mesh.fleet.file import load_fleet

    here = Path.cwd()
    fleets: list[object] = [running_dev(here)]
    with suppress(MeshError):
        fleets.append(load_fleet(here))
    if name in ("admin", "guard"):
        return name
    roles = ("agent", "client", "viewer", "operator")
    return next((role for file in fleets for role in roles if name in getattr(file, f"{role}s", ())), None)


# --- a request's id, or a file of exported events --------------------------------------------------


def file_at(path: Path) -> Path:
    """Return the path of an existing file. Raises UsageWrong."""
    if not path.is_file():
        raise UsageWrong(f"{str(path)!r} is neither a request's id nor a file")
    return path


async def bodies_of(where: Where, source: str | Path) -> dict[str, list[bytes]]:
    """Return the stored events of each request in a source. Raises NotFound, Malformed, UsageWrong."""
    if isinstance(source, Path):
        return load(file_at(source))
    return {source: await _stored_bodies(where, source)}


async def of_each(where: Where, source: str | Path, work: Callable[[list[bytes]], T]) -> list[T]:
    """Return the result of `work` on the stored events of each request in a source. Raises as `bodies_of`."""
    if isinstance(source, Path):
        return await export.of_each(file_at(source), work)
    return [work(await _stored_bodies(where, source))]


async def _stored_bodies(where: Where, request: str) -> list[bytes]:
    async with await where.connect(*READERS) as bus:
        return await ops.log.request_bodies(bus, request)


async def one_of(where: Where, source: str | Path) -> list[bytes]:
    """Return the stored events of the only request in a source, from its first on.

    Raises as `bodies_of`, UsageWrong also for several requests, and Impossible if an event is missing.
    """
    if not isinstance(source, Path):
        async with await where.connect(*READERS) as bus:
            return await ops.log.whole_request(bus, source)
    found = await bodies_of(where, source)
    if len(found) != 1:
        raise UsageWrong(f"{source} holds {counted(len(found), 'request')}; this command takes one")
    (bodies,) = found.values()
    ops.log.check_numbers(str(source), bodies)
    return bodies


async def remark_freeze(bus: Bus) -> None:
    """Remark on a frozen mesh: nothing goes on, whatever a request waits for besides."""
    freeze = await ops.log.patiently(bus, lambda: ops.roster.mesh_freeze(bus))
    if freeze.frozen:
        note(freeze.notice)


def remark_passed_over(steps: Collection[str]) -> None:
    """Remark on steps of journals that are not shown."""
    if steps:
        note(
            f"{counted(len(steps), 'step')} passed over: they cannot be read, cannot be true, or are "
            "not by the agent whose turn it is"
        )


def remark_unreadable(requests: list[str]) -> None:
    """Remark on requests that could not be read."""
    for request in requests:
        note(f"{request} is left out: it cannot be read; look with mesh log verify {request}")
