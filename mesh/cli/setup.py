"""`mesh setup`: keys and the server's accounts as files, streams and documents on the bus. Idempotent."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mesh.cli.options import A_PATH, Where, json_option, on_the_bus
from mesh.cli.output import emit, remark, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh.fleet.file import FleetFile
    from mesh.settings import Access


@click.command()
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--out", type=A_PATH, help="Write keys/ and accounts.conf for the server here.")
@click.option(
    "--file",
    type=A_PATH,
    default=Path("mesh.toml"),
    show_default=True,
    help="The fleet file, or its directory.",
)
@json_option
@on_the_bus
async def setup(where: Where, *, dry_run: bool, out: Path | None, file: Path, as_json: bool) -> None:
    """Bring files and bus to the fleet file.

    With --out it creates missing keys and writes the server's accounts; that needs no bus. It then
    brings a bus that is named (NATS_URL, --url, --context) to the fleet file, as the admin: streams,
    consumers, the fleet document, the policies. A second time it changes nothing.
    """
    from mesh.fleet.file import load_fleet

    fleet = load_fleet(file)
    done = _Done(as_json)
    if out is not None:
        _write(fleet, out, dry_run, done)
    if out is not None and where.named_url() is None:
        remark("mesh: no bus is named, so that nothing was applied to one")
    else:
        await _apply(where, fleet, out, dry_run, done)
    if as_json:
        emit({"dry_run": dry_run, "bus": done.bus, "changes": done.changes})


class _Done:
    """What was done, or would be: said at once to people, and to programs in the end."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self.bus: str | None = None
        """Where it was applied; None if it was applied nowhere."""
        self.changes: list[dict[str, Any]] = []

    def add(self, action: str, what: str, detail: "Sequence[str]" = ()) -> None:
        self.changes.append({"action": action, "what": what, "detail": list(detail)})
        self.tell(f"{action} {what}", *(f"  {line}" for line in detail))

    def tell(self, *lines: str) -> None:
        """Say something to people."""
        for line in lines if not self._as_json else ():
            say(line)


def _write(fleet: "FleetFile", out: Path, dry_run: bool, done: _Done) -> None:
    from mesh.bus.credentials import seed_file
    from mesh.bus.roles import names
    from mesh.fleet.setup import ACCOUNTS, KEYS, prepare

    missing = [
        name
        for name in names(fleet.fleet)
        if name not in fleet.given_keys and not seed_file(out / KEYS, name).exists()
    ]
    accounts = out / ACCOUNTS
    before = accounts.read_text() if accounts.exists() else None
    if not dry_run:
        out.mkdir(parents=True, exist_ok=True)
        prepare(fleet, out)
    for name in missing:
        done.add("create", str(seed_file(out / KEYS, name)))
    if (missing or before is None) if dry_run else accounts.read_text() != before:
        done.add("write", str(accounts))


async def _apply(where: Where, fleet: "FleetFile", out: Path | None, dry_run: bool, done: _Done) -> None:
    from mesh.errors import AuthenticationFailed, TlsFailed, Unreachable
    from mesh.fleet.setup import apply
    from mesh.ops.fleet_health import unpriced, unpriced_in_words

    access = _admin(where, out)
    try:
        bus = await access.connect()
    except (Unreachable, AuthenticationFailed, TlsFailed) as failed:
        if out is None:
            raise
        remark(f"mesh: nothing was applied to the bus at {access.url}: {failed}")
        return
    async with bus:
        changes = await apply(bus, fleet, dry_run=dry_run)
        unpaid = {} if dry_run else await unpriced(bus)
    done.bus = access.url
    for change in changes:
        done.add(change.action, change.what, change.detail)
    if not changes:
        done.tell(f"the bus at {access.url} is as {fleet.name} wants it")
    if unpaid:
        remark(f"mesh: {unpriced_in_words(unpaid)}")


def _admin(where: Where, out: Path | None) -> "Access":
    """Return how to get on the bus as the admin, whose key may be the one that was just written."""
    from mesh.bus.credentials import seed_file
    from mesh.bus.roles import ADMIN
    from mesh.fleet.setup import KEYS
    from mesh.settings import DEFAULT_URL, Access, NoCredentials, find_tls, load_settings

    try:
        return where.access("admin")
    except NoCredentials:
        if out is None:
            raise
    url = where.named_url() or DEFAULT_URL
    files = find_tls(url, where.flags, load_settings(), Path.cwd())
    return Access(url, ADMIN, seed_file(out / KEYS, ADMIN), files)
