"""`mesh ui`: the page, served by itself or beside `mesh dev`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import click

from mesh.cli.exits import ended_by_signals
from mesh.cli.options import A_PATH, PEOPLE, READERS, Where, framed, store_option
from mesh.cli.output import note, say
from mesh.errors import UsageWrong
from mesh.local.fleet import LocalFleet
from mesh.local.project import port_of
from mesh.local.server import if_free
from mesh.settings import Access, NoCredentials
from mesh.ui import USUAL_PORT, Keys, Options, UiNotInstalled, keys_in, require_installed, secret, serving


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=int, help="The port to listen on; by default 8420 if it is free.")
@click.option("--name", "names", multiple=True, help="A further host name under which browsers reach it.")
@click.option(
    "--token-file", type=A_PATH, help="A file with the token that visitors enter; by default a token is made."
)
@click.option("--allow-write/--read-only", default=False, help="Let visitors act, with an operator's key.")
@click.option("--admin-key", type=A_PATH, help="The admin's key, to resend dead letters with.")
@click.option("--by", "person", default="", help="The name that acts; by default each visitor enters one.")
@store_option("The folder of the list that the page keeps of requests.")
@click.option("--rebuild", is_flag=True, help="Make that list anew from the log.")
@framed
async def ui(
    where: Where,
    *,
    host: str,
    port: int | None,
    names: tuple[str, ...],
    token_file: Path | None,
    allow_write: bool,
    admin_key: Path | None,
    person: str,
    store: Path,
    rebuild: bool,
) -> None:
    """Serve the web UI: requests, people, agents and the mesh, until Ctrl-C."""

    require_installed()
    options = Options(
        host=host,
        port=if_free(USUAL_PORT, host) if port is None else port,
        token=_token(token_file),
        allow_write=allow_write,
        by=person,
        names=names,
        store=store,
        rebuild=rebuild,
    )

    query = ""
    if options.token is None and options.is_loopback:  # elsewhere it is not printed where others could see it
        options = options._replace(**secret()._asdict())
        query = f"/?token={options.token}"

    def access(name: str) -> Access | None:
        if name == "admin" and admin_key is not None:
            return reader._replace(name=name, credentials=admin_key)
        try:
            return where.named(name).access()
        except NoCredentials:
            return None

    reader = where.access(*(PEOPLE if allow_write else READERS))
    keys = Keys(reader, access, reader.name if allow_write else None)
    async with ended_by_signals(), serving(keys, options) as address:
        say(f"the page is at {address}{query}")
        note("Ctrl-C ends it" if allow_write else "it only shows: --allow-write lets it act. Ctrl-C ends it")
        await asyncio.Event().wait()


def _token(path: Path | None) -> str | None:
    """Return the token in a file. Raises UsageWrong."""
    if path is None:
        return None
    try:
        mode = path.stat().st_mode & 0o777
        if mode & 0o077:
            note(f"others could read {path} ({mode:o}); {_closed(path)}")
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as wrong:
        raise UsageWrong(f"--token-file {path} cannot be read: {wrong}") from wrong


def _closed(path: Path) -> str:
    """Let only the owner of a file read it; return what was done."""
    try:
        path.chmod(0o600)
    except OSError as wrong:  # such as a mounted secret
        return f"its mode cannot be changed to 600: {wrong.strerror}"
    return "it has mode 600 now"


@contextlib.asynccontextmanager
async def page_of(mesh: LocalFleet) -> AsyncIterator[str]:
    """Serve the page of a mesh while the block runs; yield its address, empty without the extra `ui`.

    It acts with an operator's key. Other users of this machine can reach the port, too, but have no token.
    """

    people = (*mesh.file.operators, *mesh.file.viewers)
    try:
        require_installed()
    except UiNotInstalled:
        people = ()
    if not people:
        yield ""
        return
    operator = next(iter(mesh.file.operators), None)
    token, session_key = secret(mesh.keys / "page.token")
    options = Options(
        port=if_free(port_of(mesh.directory) + 1),
        token=token,
        session_key=session_key,
        ended_sessions=mesh.keys / "page.ended",
        allow_write=operator is not None,
        store=mesh.directory,
        file=mesh.file,
        monitor=mesh.server.monitor_url,
    )
    keys = keys_in(mesh.url, mesh.keys, reader=people[0], operator=operator)
    async with serving(keys, options) as address:
        yield f"{address}/?token={token}"
