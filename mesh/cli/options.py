"""Options that many commands share, and the frame that every command on the bus runs in.

`with_where` gives a command `--url`, `--context`, `--as` and the `--tls-…` files, handed to it as one
`Where`; `on_the_bus` does so for a coroutine, and runs it. Where the bus refuses what a key of the wanted
role may do, the command ends with a word about the key. Nothing heavy is imported before a command runs.
"""

import functools
import os
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mesh.cli.output import remark
from mesh.cli.wrong_key import note, wrong_keys_named
from mesh.errors import UsageWrong
from mesh.service.printable import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from mesh.bus.connection import Bus
    from mesh.service.run import Worker
    from mesh.settings import Access, Flags, Settings
    from protocol.views.entries import StepEntry
    from protocol.wire.events import AnyEvent

Command = Callable[..., Any]
A_PATH = click.Path(path_type=Path)

json_option = click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
health_option = click.option("--health", help="HOST:PORT to answer probes on; else MESH_HEALTH.")
by_option = click.option("--by", default="", help="Your name, for the record; by default your login.")
reason_option = click.option("--reason", default="", help="Why, for the record.")
tier_option = click.option("--tier", help="Only what this tier of people has.")
request_argument = click.argument("request", metavar="ID", help="The request's id.")
source_argument = click.argument(
    "source", metavar="ID|FILE", help="A request's id, or a file of exported events."
)

READERS = ("viewer", "operator", "admin")
"""Roles that may read the log, the least mighty first."""


def output_options(command: Command) -> Command:
    """Give a command `-o` and `--json`, handed to it as one `as_json`."""

    @click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="How to show it.",
    )
    @json_option
    @functools.wraps(command)
    def run(*, output: str, as_json: bool, **arguments: Any) -> Any:
        return command(as_json=as_json or output == "json", **arguments)

    return run


class Where(NamedTuple):
    """What a command line says about the bus and about who asks."""

    url: str | None = None
    context: str | None = None
    name: str | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None

    @property
    def flags(self) -> "Flags":
        from mesh.bus.credentials import TlsFiles
        from mesh.settings import Flags

        return Flags(self.url, self.context, self.name, TlsFiles(self.tls_ca, self.tls_cert, self.tls_key))

    def default_name(self, name: str) -> "Where":
        """Return the same for somebody who is `name` unless anything else is said."""
        from mesh.settings import load_settings

        settings = load_settings()
        said = self.name or settings.name or settings.credentials or self.context
        return self if said else self._replace(name=name)

    def access(self, *roles: str) -> "Access":
        """Return how to get on the bus as one of `roles`, the best first.

        Raises NoCredentials; of these DevStopped, where a `mesh dev` would have said it and has stopped.
        """
        from mesh.settings import find_access

        access = find_access(roles, self.flags)
        note(access.name, roles)
        return access

    def named_url(self) -> str | None:
        """Return the bus's URL if anything names it."""
        from mesh.settings import find_url, load_settings, running_dev

        here = Path.cwd()
        return find_url(self.flags, load_settings(), running_dev(here), here)

    async def connect(self, *roles: str) -> "Bus":
        """Return a connection as one of `roles`.

        Raises Unreachable, TlsFailed, AuthenticationFailed, NoCredentials.
        """
        return await self.access(*roles).connect()


_WHERE = {
    "url": click.option("--url", "-s", help="The bus; else NATS_URL."),
    "context": click.option("--context", help="A context of the nats command line."),
    "as_": click.option("--as", "as_", help="Whose credentials to use; else MESH_NAME, else by role."),
    "tls_ca": click.option("--tls-ca", type=A_PATH, help="Whose signature the bus's certificate has, PEM."),
    "tls_cert": click.option("--tls-cert", type=A_PATH, help="Our certificate for the bus, PEM."),
    "tls_key": click.option("--tls-key", type=A_PATH, help="Its key, unless it is in there."),
}
"""By field of `Where`, in its order."""


def with_where(command: Command) -> Command:
    """Give a command whose first parameter is a `Where` the options that fill it."""

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        where = Where(*(arguments.pop(name) for name in _WHERE))
        with wrong_keys_named():
            command(where, **arguments)

    decorated: Command = run
    for option in reversed(_WHERE.values()):
        decorated = option(decorated)
    return decorated


def on_the_bus(command: Callable[..., Coroutine[Any, Any, None]]) -> Command:
    """Make a coroutine whose first parameter is a `Where` a command."""

    @functools.wraps(command)
    def run(where: Where, **arguments: Any) -> None:
        run_quietly(command(where, **arguments))

    return with_where(run)


def run_quietly(work: Coroutine[Any, Any, None]) -> None:
    """Run a command's coroutine; of the runtime's own log only errors are shown, unless asked otherwise."""
    import asyncio

    from mesh.settings import load_settings

    try:
        settings = load_settings()
        _configure_logging(settings)
        telemetry = _configured_telemetry()
    except BaseException:
        work.close()
        raise
    with telemetry:
        asyncio.run(work)


def _configure_logging(settings: "Settings") -> None:
    from mesh.service import logs

    if settings.log_level is None:
        logs.silence()
    else:
        logs.configure_logging(settings.log_format, settings.log_level)


def _configured_telemetry() -> AbstractContextManager[object]:
    """Return what ends telemetry; it is loaded only where a variable of OpenTelemetry's is set."""
    if not any(name.startswith("OTEL_") for name in os.environ):
        return nullcontext()
    from mesh.service.telemetry import configure_telemetry

    return configure_telemetry("mesh-cli")


def serve(
    access: "Access", make: "Callable[[Bus], Worker]", *, grace_s: float, health: str | None = None
) -> None:
    """Run a service with these credentials until a signal ends it. Raises as `run_service`."""
    from mesh.service.run import run_service
    from mesh.settings import load_settings

    run_service(
        access.name,
        functools.partial(access.connect, wait=True),
        make,
        settings=load_settings(),
        grace_s=grace_s,
        health=health,
    )


def person(by: str) -> str:
    """Return who asks, for the record."""
    import getpass

    return by or getpass.getuser()


# --- a request's id, or a file of exported events --------------------------------------------------


def is_file(source: str) -> bool:
    """Return True if a source is a file rather than an id. Raises UsageWrong when it is neither."""
    from protocol.wire.ids import is_request_id

    if is_request_id(source):
        return False
    if Path(source).is_file():
        return True
    raise UsageWrong(f"{source!r} is neither a request's id nor a file")


async def bodies_of(where: Where, source: str) -> dict[str, list[bytes]]:
    """Return the stored events of each request in a source. Raises NotFound, Malformed, UsageWrong."""
    from mesh.ops.log import request_bodies
    from mesh.replay.load import load

    if is_file(source):
        return load(Path(source))
    async with await where.connect(*READERS) as bus:
        return {source: await request_bodies(bus, source)}


async def one_of(where: Where, source: str) -> list[bytes]:
    """Return the stored events of the one request in a source, from its first on.

    Raises as `bodies_of`, and Impossible where one of them is missing.
    """
    from mesh.ops.log import check_numbers, whole_request
    from mesh.replay.load import load

    if not is_file(source):
        async with await where.connect(*READERS) as bus:
            return await whole_request(bus, source)
    found = load(Path(source))
    if len(found) != 1:
        raise UsageWrong(f"{source} holds {counted(len(found), 'request')}; this command takes one")
    bodies = next(iter(found.values()))
    check_numbers(source, bodies)
    return bodies


async def steps_of(
    where: Where, source: str, happened: "Sequence[AnyEvent]", until: int | None
) -> "dict[str, tuple[StepEntry, ...]]":
    """Return the steps of a source's one request, by journal; remark on those that were passed over.

    Args:
        happened: its events, from the first on.
        until: leave out what was journaled later (UTC µs).

    Raises BusError.
    """
    from mesh.ops.log import journals_in, journals_of

    if is_file(source):
        found = journals_in(Path(source), happened, until)
    else:
        async with await where.connect(*READERS) as bus:
            found = await journals_of(bus, happened, until)
    remark_passed_over(found.passed_over)
    return found.steps


def remark_passed_over(steps: "Collection[str]") -> None:
    """Remark on steps of journals that are not shown."""
    if steps:
        remark(
            f"mesh: {counted(len(steps), 'step')} passed over: they cannot be read, cannot be true, or are "
            "not by the agent whose turn it is"
        )


def remark_unreadable(requests: list[str]) -> None:
    """Remark on requests that could not be looked into."""
    for request in requests:
        remark(f"mesh: {request} is left out: it cannot be read; look with mesh log verify {request}")
