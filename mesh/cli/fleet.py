"""The mesh as a whole: `mesh setup`, `doctor`, `freeze` and `thaw`."""

import contextlib
from pathlib import Path

import click

from mesh import ops
from mesh.bus.credentials import read_key, seed_file
from mesh.bus.provision import Change
from mesh.bus.roles import ADMIN, names
from mesh.cli.exits import Exit, Leave
from mesh.cli.options import A_PATH, PEOPLE, Where, agreed, framed, wrong_key
from mesh.cli.output import emit, note, remark, report, say
from mesh.errors import AuthenticationFailed, TlsFailed, Unreachable, UsageWrong
from mesh.fleet.certificates import certify
from mesh.fleet.deployment import CA, TLS, Deployment, Target, Tls
from mesh.fleet.file import FleetFile, FleetFileError, load_fleet
from mesh.fleet.generated import files_of, update
from mesh.fleet.handover import hand_over, lacking_accounts
from mesh.fleet.leavers import HeldRequest, held_by_leavers
from mesh.fleet.nodes import certificate_hosts
from mesh.fleet.setup import ACCOUNTS, KEYS, apply, prepare, small_streams
from mesh.local.project import with_client
from mesh.service.printable import counted
from mesh.settings import DEFAULT_URL, FILE_NAME, Access, NoCredentials, Sources, running_dev


@click.command()
@framed
async def freeze(where: Where, *, reason: str, by: str, as_json: bool) -> None:
    """Freeze the whole mesh: guards decide nothing until the thaw.

    Running turns finish. Their proposals wait in the queues, as do new requests and timers. Guards still
    obey control messages (cancel, resolve, reply …).
    """
    await _set_freeze(where, True, reason, by, as_json)


@click.command()
@framed
async def thaw(where: Where, *, reason: str, by: str, as_json: bool) -> None:
    """Thaw the whole mesh: guards decide the messages that waited, in order."""
    await _set_freeze(where, False, reason, by, as_json)


async def _set_freeze(where: Where, frozen: bool, reason: str, by: str, as_json: bool) -> None:
    async with await where.connect("operator") as bus:
        before = current = await ops.roster.mesh_freeze(bus)
        if before.frozen is not frozen:
            current = await ops.control.set_mesh_freeze(bus, frozen, by=by, reason=reason)
    if before.frozen is frozen:
        note(f"nothing to do: it is {f'frozen already, {before.in_words}' if frozen else 'not frozen'}")
        if not as_json:
            return
    words = (
        f"the mesh is frozen {current.in_words}"
        if frozen
        else f"the mesh goes on; it was frozen {before.in_words}"
    )
    report(current, words, as_json=as_json)


# --- setup ----------------------------------------------------------------------------------------


@click.command()
@click.option("--dry-run", is_flag=True, help="Only list what would be done.")
@click.option("--out", type=A_PATH, help="Write keys/ and accounts.conf for the server here.")
@click.option(
    "--file",
    type=A_PATH,
    default=Path("mesh.toml"),
    show_default=True,
    help="The fleet file, or its directory.",
)
@click.option(
    "--for",
    "target",
    type=click.Choice(("compose", "systemd", "kubernetes")),
    help="With --out: also write the files of a deployment.",
)
@click.option(
    "--nodes", type=click.Choice(("1", "3", "5")), default="1", show_default=True, help="Servers of the bus."
)
@click.option(
    "--tls",
    type=click.Choice(("none", "dev", "files", "cert-manager")),
    help="Where certificates come from: setup makes them (dev), you do (files), or cert-manager does. "
    "By default none with one node, else dev.",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask, even if agents that leave hold open requests.")
@framed
async def setup(
    where: Where,
    *,
    dry_run: bool,
    out: Path | None,
    file: Path,
    target: str | None,
    nodes: str,
    tls: str | None,
    yes: bool,
    by: str,
    as_json: bool,
) -> None:
    """Create or update keys, accounts and the bus from the fleet file.

    With --out it creates missing keys and writes the server's accounts; that needs no bus. If a bus is
    named (NATS_URL, --url, --context), it then creates streams, consumers, the fleet document and the
    policies, as the admin. With [bus] auth = "jwt" it first hands the accounts over to the servers. A second
    run changes nothing.

    With --for it also writes what runs the mesh: configurations of the servers, certificates, and a compose
    file, systemd units or Kubernetes manifests. A file that you edited is kept, and the new text goes beside
    it. An agent whose public key is in the fleet file runs elsewhere, so it is left out.

    An agent that the file no longer has loses its work at once: people get its open requests. They are
    listed, and you are asked, before anything is written.
    """

    if out is None and target is not None:
        raise UsageWrong("--for writes files: say where with --out")
    if target is None and (nodes != "1" or tls is not None):
        raise UsageWrong("--nodes and --tls go with --for")
    fleet, url = load_fleet(file), None
    is_alone = out is not None and Sources(where.flags).url is None
    held = [] if is_alone else await _held_by_leavers(where, fleet, out)
    if held and not dry_run and not yes and not await agreed("go on", "to take their work from them"):
        note("nothing was changed")
        raise Leave(Exit.FAILED)
    edited: list[Path] = []
    deployment = None if target is None else _deployment(fleet, file, target, int(nodes), tls)
    changes = [] if out is None else _write(fleet, out, dry_run)
    if out is not None and deployment is not None:
        written, edited = _write_deployment(deployment, out, dry_run)
        changes += written
    _list_changes(changes, as_json)
    if is_alone:
        note("no bus is named, so nothing was applied")
    else:
        applied = await _apply(where, fleet, out, dry_run, by)
        if applied is not None:
            url, done = applied
            changes += done
            _list_changes(done, as_json)
            if not done and not as_json:
                say(f"the bus at {url} is up to date with {fleet.name}")
    if as_json:
        made = [change._asdict() for change in changes]
        listed = {
            "changes": made,
            "edited": [str(path) for path in edited],
            "held": [each._asdict() for each in held],
        }
        emit({"dry_run": dry_run, "bus": url, **listed})


def _list_changes(changes: list[Change], as_json: bool) -> None:
    for change in changes if not as_json else ():
        say(f"{change.action} {change.what}")
        for line in change.detail:
            say(f"  {line}")


async def _held_by_leavers(where: Where, fleet: FleetFile, out: Path | None) -> list[HeldRequest]:
    """List the open requests of agents that leave; none if no bus can be asked before --out has written."""

    access = _admin(where, out)
    if not access.credentials.exists():
        return []
    try:
        async with await access.connect() as bus:
            held = await held_by_leavers(bus, fleet.fleet)
    except (Unreachable, AuthenticationFailed, TlsFailed):
        if out is None:
            raise
        return []
    for agent in dict.fromkeys(each.agent for each in held):
        requests = [each.request for each in held if each.agent == agent]
        note(f"{agent} leaves the fleet and holds {counted(len(requests), 'open request')}:")
        for request in requests:
            remark(f"  {request}")
    return held


def _write(fleet: FleetFile, out: Path, dry_run: bool) -> list[Change]:
    """Write missing keys and the server's accounts; return what was written, or would be."""

    seeds = [seed_file(out / KEYS, name) for name in names(fleet.fleet) if name not in fleet.given_keys]
    missing = [seed for seed in seeds if not seed.exists()]
    accounts = out / ACCOUNTS
    before = accounts.read_text() if accounts.exists() else None
    changed = bool(missing) or before is None
    if not dry_run:
        out.mkdir(parents=True, exist_ok=True)
        prepare(fleet, out)
        changed = accounts.read_text() != before
    changes = [Change("create", str(seed)) for seed in missing]
    return [*changes, Change("write", str(accounts))] if changed else changes


def _deployment(fleet: FleetFile, file: Path, target: str, nodes: int, tls: str | None) -> Deployment:
    source = file / FILE_NAME if file.is_dir() else file
    chosen = Tls(tls) if tls is not None else Tls.NONE if nodes == 1 else Tls.DEV
    deployment = Deployment(fleet, source, Target(target), nodes, chosen)
    deployment.check()
    return deployment


def _write_deployment(deployment: Deployment, out: Path, dry_run: bool) -> tuple[list[Change], list[Path]]:
    """Write the files of a deployment, and its certificates; say what was edited, and what is missing.

    Return the changes, and the files that were edited.
    """

    accounts = out / ACCOUNTS
    files = files_of(deployment, accounts.read_text() if accounts.exists() else "")
    changes, edited = update(out, deployment.target, files, dry_run=dry_run)
    hosts = certificate_hosts(deployment) if deployment.is_secured else {}
    if deployment.tls is Tls.DEV:
        changes += certify(out / TLS, hosts, dry_run=dry_run)
    elif deployment.tls is Tls.FILES:
        own = [CA, *(f"{name}{end}" for name in hosts for end in (".pem", "-key.pem"))]
        for path in (out / TLS / name for name in own):
            if not path.is_file():
                note(f"put your own file at {path}")
    for path in edited:
        note(f"{path} was edited and is kept; see what is new: diff -u {path} {path}.new")
    replicas = deployment.file.log.replicas
    if replicas < deployment.nodes:
        note(
            f"{deployment.source}: log.replicas is {replicas}: with {deployment.nodes} nodes say "
            f"{min(deployment.nodes, 3)}, or a lost disk loses the log"
        )
    return changes, edited


async def _apply(
    where: Where, fleet: FleetFile, out: Path | None, dry_run: bool, by: str
) -> tuple[str, list[Change]] | None:
    """Return the bus and what was applied to it, or would be; None if it cannot be reached after --out."""
    access = _admin(where, out)
    handed = list[str]()
    try:
        if out is not None and fleet.bus.auth == "jwt":
            give = lacking_accounts if dry_run else hand_over
            handed = await give(access.url, out, access.tls)
        bus = await access.connect()
    except (Unreachable, AuthenticationFailed, TlsFailed) as failed:
        if out is None:
            raise
        note(f"nothing was applied to the bus at {access.url}: {failed}")
        return None
    async with bus:
        running = _as_run_at(access.url, fleet)
        changes = await apply(bus, running, by=by, dry_run=dry_run)
        remarks = [] if dry_run else [await small_streams(bus, running), await ops.fleet_checks.unpriced(bus)]
    for each in filter(None, remarks):
        note(each)
    return access.url, [*(Change("update", f"account {name}") for name in handed), *changes]


def _admin(where: Where, out: Path | None) -> Access:
    """Return how to reach the bus as the admin, whose key may be the one that was just written."""

    try:
        return where.access("admin")
    except NoCredentials:
        if out is None:
            raise
    sources = Sources(where.flags)
    url = sources.url or DEFAULT_URL
    return Access(url, ADMIN, seed_file(out / KEYS, ADMIN), sources.tls(url))


# --- doctor ---------------------------------------------------------------------------------------


@click.command()
@click.option("--monitor", help="URLs of the servers' monitoring: http://…:8222,…")
@click.option("--file", type=A_PATH, help="The fleet file to compare with; else ./mesh.toml.")
@click.option(
    "--out",
    type=A_PATH,
    default=Path(".mesh"),
    show_default=True,
    help="Where `mesh setup --out` keeps accounts.conf, which each server should have read.",
)
@framed
async def doctor(where: Where, *, monitor: str | None, file: Path | None, out: Path, as_json: bool) -> None:
    """Check a mesh and report what is wrong with it; exit status 1 if anything is.

    It checks connection, server, streams, documents, durability, keys, limits, archive, guards, agents,
    rules, people, dead letters, prices, artifacts and clocks. Work that waits for people is reported; an
    effect in doubt is a finding.

    The admin's key compares streams and consumers with those of `mesh setup`; an operator's or a viewer's
    key checks that they are there. Only the server's monitoring shows the durability.
    """
    dev = running_dev(Path.cwd())
    access = where.access("admin", "operator", "viewer")
    if monitor is None and dev is not None and dev.url == access.url:
        monitor = dev.monitor
    fleet, unread = None, []
    try:
        fleet = _fleet(file)
    except FleetFileError as broken:
        if file is not None:
            raise
        unread = [ops.health.Finding(check="fleet file", state="found", text=str(broken))]
    if fleet is not None:
        fleet = _as_run_at(access.url, fleet)
    keys: ops.servers.KeyFile | ops.servers.SignedAccounts | None = None
    with contextlib.suppress(OSError, ValueError):  # connecting says what is wrong with the key
        own = read_key(access.credentials)
        if fleet is not None and fleet.bus.auth == "jwt":
            is_here = read_key(seed_file(out / KEYS, access.name)).public == own.public
            keys = ops.servers.SignedAccounts(access.url, out, access.tls) if is_here else None
        else:
            keys = ops.servers.key_file(out / ACCOUNTS, own.public)
    findings = [*unread, *await ops.health.examine(access, fleet, monitor, keys)]
    if as_json:
        emit(findings)
    else:
        for finding in findings:
            state = "FOUND" if finding.state == "found" else finding.state
            say(f"{state:<7}  {finding.check}: {finding.text}")
    if ops.health.cannot_look(findings) and (wrong := wrong_key(access.name, PEOPLE)) is not None:
        raise wrong
    if any(finding.state == "found" for finding in findings):
        raise Leave(Exit.FAILED)


def _as_run_at(url: str, fleet: FleetFile) -> FleetFile:
    """Return a fleet as the `mesh dev` of this folder runs it, if that is the bus."""

    dev = running_dev(Path.cwd())
    return with_client(fleet, runs=dev.clients) if dev is not None and dev.url == url else fleet


def _fleet(named: Path | None) -> FleetFile | None:
    """Return the fleet to compare with: of the named file, else of the one here, if there is one."""

    if named is None and not Path(FILE_NAME).is_file():
        return None
    return load_fleet(named or Path(FILE_NAME))
