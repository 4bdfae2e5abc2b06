"""Options that many commands share, and the frame that every command on the bus runs in.

`with_where` gives a command `--url`, `--context`, `--as` and the `--tls-…` files, handed to it as one
`Where`; `on_the_bus` does so for a coroutine, and runs it. Where the bus refuses what a key of the wanted
role may do, the command ends with a word about the key. Nothing heavy is imported before a command runs.
"""

import functools
import inspect
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, NamedTuple, ParamSpec

import typer

from mesh.cli.output import Format
from mesh.cli.wrong_key import note, wrong_keys_named

if TYPE_CHECKING:
    from mesh.bus.connection import Bus
    from mesh.service.run import Worker
    from mesh.settings import Access, Flags

P = ParamSpec("P")

Output = Annotated[Format, typer.Option("-o", "--output", help="How to show it.")]
AsJson = Annotated[bool, typer.Option("--json", help="The same as -o json.")]
Health = Annotated[
    str | None,
    typer.Option("--health", help="HOST:PORT to answer probes on; else MESH_HEALTH.", show_default=False),
]
By = Annotated[str, typer.Option("--by", help="Your name, for the record; by default your login.")]
Tier = Annotated[
    str | None, typer.Option("--tier", help="Only what this tier of people has.", show_default=False)
]
RequestArgument = Annotated[str, typer.Argument(metavar="ID", help="The request's id.")]
SourceArgument = Annotated[
    str, typer.Argument(metavar="ID|FILE", help="A request's id, or a file of exported events.")
]

_Url = Annotated[str | None, typer.Option("--url", "-s", help="The bus; else NATS_URL.", show_default=False)]
_Context = Annotated[
    str | None, typer.Option("--context", help="A context of the nats command line.", show_default=False)
]
_As = Annotated[
    str | None,
    typer.Option("--as", help="Whose credentials to use; else MESH_NAME, else by role.", show_default=False),
]
_TlsCa = Annotated[
    Path | None,
    typer.Option("--tls-ca", help="Whose signature the bus's certificate has, PEM.", show_default=False),
]
_TlsCert = Annotated[
    Path | None, typer.Option("--tls-cert", help="Our certificate for the bus, PEM.", show_default=False)
]
_TlsKey = Annotated[
    Path | None, typer.Option("--tls-key", help="Its key, unless it is in there.", show_default=False)
]


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
        from mesh.bus.tls import TlsFiles
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
        """Return where anything says that the bus is; None when nothing does."""
        from pathlib import Path

        from mesh.settings import find_url, load_settings, running_dev

        here = Path.cwd()
        return find_url(self.flags, load_settings(), running_dev(here), here)

    async def connect(self, *roles: str) -> "Bus":
        """Return a connection as one of `roles`.

        Raises Unreachable, TlsFailed, AuthenticationFailed, NoCredentials.
        """
        return await self.access(*roles).connect()


def with_where(command: Callable[Concatenate[Where, P], None]) -> Callable[..., None]:
    """Give a command whose first parameter is a `Where` the options that fill it."""
    own = list(inspect.signature(command).parameters.values())[1:]
    asked = {
        "url": _Url,
        "context": _Context,
        "as_": _As,
        "tls_ca": _TlsCa,
        "tls_cert": _TlsCert,
        "tls_key": _TlsKey,
    }
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in asked.items()
    ]
    whole = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own] + added

    def run(**arguments: Any) -> None:
        where = Where(*(arguments.pop(name) for name in asked))
        with wrong_keys_named():
            command(where, **arguments)  # type: ignore[call-arg]  # by name, as the signature has them

    run.__signature__ = inspect.Signature(whole)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in whole}
    run.__doc__, run.__name__, run.__module__ = command.__doc__, command.__name__, command.__module__
    return run


def on_the_bus(command: Callable[Concatenate[Where, P], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a coroutine whose first parameter is a `Where` a command."""

    def run(where: Where, /, *arguments: P.args, **named: P.kwargs) -> None:
        run_quietly(command(where, *arguments, **named))

    functools.update_wrapper(run, command)
    return with_where(run)


def run_quietly(work: Coroutine[Any, Any, None]) -> None:
    """Run a command's coroutine; of the runtime's own log only errors are shown, unless asked otherwise."""
    import asyncio

    from mesh.service.logs import configure_logging
    from mesh.service.telemetry import configure_telemetry
    from mesh.settings import load_settings

    try:
        settings = load_settings()
        configure_logging(settings.log_format, settings.log_level or "critical")
        telemetry = configure_telemetry("mesh-cli")
    except BaseException:
        work.close()
        raise
    with telemetry:
        asyncio.run(work)


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
