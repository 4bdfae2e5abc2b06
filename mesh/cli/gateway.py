"""`mesh gateway …`: requests over HTTP, and the tokens of those who may send them."""

from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import click

from mesh.bus.credentials import seed_file
from mesh.cli.options import A_PATH, Where, framed, grace_option, store_option
from mesh.cli.output import At, listing, note, report, say
from mesh.gateway import TOKENS, USUAL_PORT, A2AOptions, GatewayOptions, require_installed
from mesh.gateway.clients import ClientPool
from mesh.gateway.tokens import TokenBook, TokenEntry, TokenLimits, add_token, read_tokens, revoke_token
from mesh.local.server import if_free
from mesh.ops.checks import web_url
from mesh.settings import DEFAULT_URL, Access, Sources, load_settings

app = click.Group(help="Requests over HTTP, and the tokens of those who may send them.")

_USUAL = TokenLimits()
tokens_option = click.option(
    "--tokens", type=A_PATH, default=Path(".mesh") / TOKENS, show_default=True, help="The file of the tokens."
)


@app.command("run")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=int, help=f"The port to listen on; by default {USUAL_PORT} if it is free.")
@click.option(
    "--keys", type=A_PATH, help="The folder of the clients' keys; by default those that commands find."
)
@click.option("--a2a", is_flag=True, help="Be an agent by A2A 1.0 too (extra `a2a`).")
@click.option("--fleet", type=A_PATH, help="A2A: the fleet file of the card; else ./mesh.toml.")
@click.option("--public-url", metavar="URL", help="A2A: the address in the card; else where it listens.")
@tokens_option
@store_option("The folder of what the gateway keeps: which Idempotency-Key stands for which request.")
@grace_option(5.0)
@framed
def run(
    where: Where,
    *,
    host: str,
    port: int | None,
    keys: Path | None,
    a2a: bool,
    fleet: Path | None,
    public_url: str | None,
    tokens: Path,
    store: Path,
    grace: float,
    health: str | None,
) -> None:
    """Answer requests over HTTP until a signal: submit, follow, reply and cancel, with a token for each.

    Put a proxy with TLS before it where others on the network reach it. With --a2a the fleet is an agent for
    other agents: its card is at /.well-known/agent-card.json, and /a2a answers JSON-RPC.
    """
    from mesh.service.run import run_service

    require_installed(a2a=a2a)
    from mesh.gateway.server import Gateway

    options = GatewayOptions(
        host=host,
        port=if_free(USUAL_PORT, host) if port is None else port,
        store=store,
        tokens=tokens,
        a2a=_as_agent(fleet, public_url) if a2a else None,
    )
    book, settings = TokenBook(tokens), load_settings()
    if not book.clients:
        note(f"{tokens} has no token yet, so nothing is answered: `mesh gateway token CLIENT` makes one")
    pool = ClientPool(lambda name: _access(where, keys, name))
    run_service(
        "gateway",
        lambda: pool.open(book.clients),
        lambda clients: Gateway(clients, options, book, lambda address: say(f"the gateway is at {address}")),
        grace_s=grace,
        health=health or settings.health or None,
        log_format=settings.log_format,
        log_level=settings.log_level or "info",
    )


def _as_agent(fleet: Path | None, public_url: str | None) -> A2AOptions:
    """Return what A2A needs. Raises FleetFileError, UsageWrong."""
    from mesh.fleet.file import load_fleet

    url = "" if public_url is None else web_url(public_url, "--public-url")
    return A2AOptions(load_fleet(fleet or Path.cwd()).fleet, url)


def _access(where: Where, keys: Path | None, name: str) -> Access:
    """Return how to reach the bus as a client. Raises NoCredentials."""
    if keys is None:
        return where.named(name).access("client", "operator")
    sources = Sources(where.flags)
    url = sources.url or DEFAULT_URL
    return Access(url, name, seed_file(keys, name), sources.tls(url))


@app.command("token")
@click.argument("client")
@click.option("--note", "what_for", default="", help="What it is for, shown in the list.")
@click.option(
    "--per-second",
    type=click.FloatRange(min=0, min_open=True),
    default=_USUAL.per_second,
    show_default=True,
    help="Calls a second.",
)
@click.option(
    "--body-kib",
    type=click.IntRange(1, 1 << 20),
    default=_USUAL.body_kib,
    show_default=True,
    help="The largest body, in KiB.",
)
@click.option(
    "--streams",
    type=click.IntRange(min=0),
    default=_USUAL.streams,
    show_default=True,
    help="Open streams of events.",
)
@click.option("--post", metavar="URL", help="Post its requests' questions and ends to this URL, signed.")
@tokens_option
@framed
def token(
    *,
    client: str,
    what_for: str,
    per_second: float,
    body_kib: int,
    streams: int,
    post: str | None,
    tokens: Path,
    as_json: bool,
) -> None:
    """Make a token for a CLIENT of the fleet, and print it. It is shown this once; the file has its digest.

    A running gateway takes it at once. With --post a second line is the secret of the posts, which have the
    form of Standard Webhooks.
    """
    limits = TokenLimits(per_second=per_second, body_kib=body_kib, streams=streams)
    made, entry = add_token(tokens, client, note=what_for, limits=limits, post=post)
    secret = {} if entry.hook is None else {"secret": entry.hook.secret}
    text = "\n".join((made, *secret.values()))
    report({"token": made, **secret, **_shown(entry)}, text, as_json=as_json, lines=True)
    if not as_json:
        note(f"{entry.id}: its callers are {client}; `mesh gateway revoke {entry.id}` ends it")


@app.command("tokens")
@tokens_option
@framed
def ls(*, tokens: Path, as_json: bool) -> None:
    """List the tokens: whom each stands for, what it may use, and what it is for."""
    columns: dict[str, Callable[[dict[str, Any]], object]] = {
        "id": itemgetter("id"),
        "client": itemgetter("client"),
        "made": lambda each: At(each["made"] * 1_000_000),
        "a second": itemgetter("per_second"),
        "body KiB": itemgetter("body_kib"),
        "streams": itemgetter("streams"),
        "posts to": itemgetter("post"),
        "note": itemgetter("note"),
    }
    listing([_shown(each) for each in read_tokens(tokens)], columns, as_json=as_json)


@app.command("revoke")
@click.argument("token_id", metavar="ID")
@tokens_option
@framed
def revoke(*, token_id: str, tokens: Path, as_json: bool) -> None:
    """Revoke a token by its ID in the list. A running gateway refuses it from now on."""
    entry = revoke_token(tokens, token_id)
    report(_shown(entry), f"{entry.id} of {entry.client} is revoked", as_json=as_json)


def _shown(entry: TokenEntry) -> dict[str, Any]:
    """Return an entry without its digest, which tells nobody anything."""
    limits = entry.limits
    return {
        "id": entry.id,
        "client": entry.client,
        "made": entry.made,
        "note": entry.note,
        "per_second": limits.per_second,
        "body_kib": limits.body_kib,
        "streams": limits.streams,
        "post": "" if entry.hook is None else entry.hook.url,
    }
