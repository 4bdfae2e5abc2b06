"""`mesh agent …`: run an agent's code, add one to the fleet, see who is there, show a prompt."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from mesh import ops
from mesh.agent._runtime import Runtime
from mesh.agent.definition import Agent, key_suffices, load
from mesh.cli.exits import Exit, Leave
from mesh.cli.options import (
    A_PATH,
    PEOPLE,
    READERS,
    Where,
    framed,
    grace_option,
    request_option,
    serve,
)
from mesh.cli.output import as_json_text, emit, listing, note, report, say
from mesh.errors import NotFound, UsageWrong
from mesh.fleet.alone import alone, rewrite
from mesh.service.printable import counted
from mesh.settings import FILE_NAME, Sources
from protocol.wire.ids import NAME_RULE, is_name

if TYPE_CHECKING:  # a running agent needs neither pydantic nor what a whole mesh takes
    from mesh.fleet.file import FleetFile

app = click.Group(help="Agents: run one, add one, see who is there, show a prompt.")

agent_argument = click.argument("name", metavar="NAME", help="The agent's name in the fleet file.")


@app.command("run")
@click.argument("reference", metavar="MODULE:NAME", help="The agent's code: an Agent, or an async function.")
@grace_option(25.0)
@framed
def run(where: Where, *, reference: str, grace: float, health: str | None) -> None:
    """Take turns until a signal. SIGTERM finishes running turns and gives the rest back."""

    agent, model = load(reference), ""
    access = where.default_name(agent.name).access("agent")
    if access.name != agent.name:
        raise UsageWrong(
            f"{reference} is the agent {agent.name!r}, and these are the credentials of {access.name!r}"
        )
    with key_suffices():
        if agent.model or agent.prompt_version:  # an agent without a model loads nothing of models
            from mesh.model.choice import driven_by

            model = driven_by(agent)
        serve(access, lambda bus: Runtime(bus, agent, model=model), grace_s=grace, health=health)


@app.command("add")
@agent_argument
@click.option("--module", help="MODULE:NAME of its code.")
@click.option("--description", help="One line for models and people.")
@click.option("--to", multiple=True, help="An agent that it may hand to; without it, any agent.")
@click.option("--clearance", multiple=True, help="A label that it may see.")
@click.option("--file", type=A_PATH, default=Path("mesh.toml"), show_default=True, help="The fleet file.")
@click.option(
    "--out",
    type=A_PATH,
    default=Path(".mesh"),
    show_default=True,
    help="Where `mesh setup --out` keeps keys and accounts.conf.",
)
@click.option("--apply", "apply_now", is_flag=True, help="Also apply it to the bus, as the admin.")
@click.option(
    "--bundle", type=A_PATH, metavar="FILE.tgz", help="Also write what it needs on another machine here."
)
@framed
async def add(
    where: Where,
    *,
    name: str,
    file: Path,
    out: Path,
    apply_now: bool,
    bundle: Path | None,
    as_json: bool,
    **section: Any,
) -> None:
    """Add an agent: its section in mesh.toml, its key, and what to do next.

    With --bundle it also writes one file for another machine: key, certificates, variables, a unit for
    systemd, and how to start it. --url is the bus as it is reached from there. For an agent that the fleet
    file has already, it writes that file alone.
    """
    from mesh.fleet.handover import hand_over
    from mesh.fleet.setup import ACCOUNTS, KEYS, apply

    url = None if bundle is None else Sources(where.flags).url
    if bundle is not None and url is None:
        raise UsageWrong("--bundle: name the bus as it is reached from the other machine, with --url")
    if bundle is not None and url is not None and _has(file, name):
        _write_bundle(file, out, name, bundle, url, section, apply_now, as_json)
        return
    changed = _add(file, name, section, out)
    if bundle is not None and url is not None:
        from mesh.fleet.bundle import write_bundle

        write_bundle(bundle, changed, out, name, url)
    key, changes = out / KEYS / f"{name}.nk", []
    is_claimed = changed.bus.auth == "jwt"
    if apply_now:
        access = where.access("admin")
        if is_claimed:
            await hand_over(access.url, out, access.tls)
        async with await access.connect() as bus:
            changes = await apply(bus, changed)
    lines = [f"added [agents.{name}] to {file}; its key: {key}"]
    lines += [f"{change.action} {change.what}" for change in changes]
    if bundle is not None:
        lines.append(f"its bundle: {bundle}; unpack it on the other machine, and read {name}/README")
    if apply_now and is_claimed:
        lines.append("the servers have its account")
    elif is_claimed:
        lines.append(f"next: `mesh setup --out {out}`, which hands its account to the servers, then run it:")
        lines.append(f"  MESH_CREDENTIALS={key} mesh agent run {section['module'] or 'MODULE:NAME'}")
    elif apply_now:
        lines.append(f"the server still has to read {out / ACCOUNTS}, twice, before it knows the new key")
    else:
        lines.append(f"next: reload the server with {out / ACCOUNTS}, twice, then `mesh setup`, then run it:")
        lines.append(f"  MESH_CREDENTIALS={key} mesh agent run {section['module'] or 'MODULE:NAME'}")
    done = [{"action": change.action, "what": change.what} for change in changes]
    report(
        {"agent": name, "file": str(file), "key": str(key), "applied": apply_now, "changes": done},
        "\n".join(lines),
        as_json=as_json,
        lines=True,
    )


def _has(file: Path, name: str) -> bool:
    """Return True if a fleet file has an agent of that name. A file that is wrong is `_add`'s to report."""
    from mesh.fleet.file import load_fleet

    return file.exists() and name in load_fleet(file).agents


def _write_bundle(
    file: Path,
    out: Path,
    name: str,
    bundle: Path,
    url: str,
    section: Mapping[str, Any],
    apply_now: bool,
    as_json: bool,
) -> None:
    """Write the bundle of an agent that the fleet has. Raises UsageWrong, DeploymentImpossible."""
    from mesh.fleet.bundle import write_bundle
    from mesh.fleet.file import load_fleet

    if apply_now or any(section.values()):
        raise UsageWrong(f"{file} already has an agent named {name!r}: edit it there, then write its bundle")
    write_bundle(bundle, load_fleet(file), out, name, url)
    report(
        {"agent": name, "bundle": str(bundle)},
        f"the bundle of {name}: {bundle}; unpack it on the other machine, and read {name}/README",
        as_json=as_json,
    )


def _add(file: Path, name: str, section: Mapping[str, Any], out: Path) -> "FleetFile":
    """Add an agent at the end of a fleet file, make its key, and return the fleet.

    The rest of the file stays as it is, including comments. Raises UsageWrong, FleetFileError.
    """
    from mesh.fleet.setup import prepare, prepare_held

    if not is_name(name):
        raise UsageWrong(f"not an agent's name: {name!r}; {NAME_RULE}")
    folder = file.resolve().parent
    with alone(folder):  # for the accounts, too: those of a file without the last agent would be written last
        changed = _add_section(file, name, section)
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
        (prepare_held if out.samefile(folder) else prepare)(changed, out)
    return changed


def _add_section(file: Path, name: str, section: Mapping[str, Any]) -> "FleetFile":
    """Add an agent at the end of a fleet file, and return the fleet. Raises UsageWrong, FleetFileError."""
    from mesh.fleet.file import FleetFileError, parse_fleet

    try:
        before = file.read_text()
    except OSError as missing:
        raise UsageWrong(f"{file}: {missing.strerror}") from missing
    fleet = parse_fleet(before, str(file))
    if name in {*fleet.agents, *fleet.clients, *fleet.operators, *fleet.viewers, "admin", "guard"}:
        raise UsageWrong(f"{file} already has a member named {name!r}")
    keys = ("module", "description", "clearance", "to")
    fields = [f"{key} = {json.dumps(section[key])}" for key in keys if section[key]]
    text = "\n".join((before.rstrip("\n"), "", f"[agents.{name}]", *fields, ""))
    try:
        changed = parse_fleet(text, str(file))
    except FleetFileError as wrong:
        raise UsageWrong(f"{file} would be invalid with it: {wrong}") from wrong
    rewrite(file, text)
    return changed


@app.command("ls")
@framed
async def ls(where: Where, *, as_json: bool) -> None:
    """List the fleet's agents: how each describes itself, and how many instances are alive."""
    async with await where.connect(*PEOPLE) as bus:
        members = await ops.roster.roster(bus)
    listing(
        members,
        {
            "agent": lambda member: member.name,
            "alive": lambda member: "?" if member.instances is None else len(member.instances),
            "waiting": lambda member: member.waiting,
            "version": lambda member: member.card and member.card.version,
            "model": lambda member: member.card and member.card.model,
            "hands to": lambda member: "anybody" if member.entry.to is None else ", ".join(member.entry.to),
            "description": lambda member: (
                member.entry.description or (member.card and member.card.description)
            ),
        },
        as_json=as_json,
        spare=("version", "model", "hands to"),
    )


@app.command("show")
@agent_argument
@framed
async def show(where: Where, *, name: str, as_json: bool) -> None:
    """Show one agent: its entry in the fleet file, its card, its instances."""
    async with await where.connect(*PEOPLE) as bus:
        member = next((each for each in await ops.roster.roster(bus) if each.name == name), None)
    if member is None:
        raise NotFound(f"there is no agent {name!r} in the fleet")
    if as_json:
        emit(member)
    else:
        _lines(msgspec.to_builtins(member))
    if member.instances == ():
        wait = "waits" if member.waiting == 1 else "wait"
        note(f"nobody serves {name}; {counted(member.waiting, 'handoff')} {wait} for it")
        raise Leave(Exit.FAILED)


def _lines(value: dict[str, Any], indent: str = "") -> None:
    for key, inner in value.items():
        several = inner if isinstance(inner, list | tuple) else [inner]
        if several and isinstance(several[0], dict):
            for each in several:
                say(f"{indent}{key}:")
                _lines(each, indent + "  ")
        else:
            say(f"{indent}{key}: {', '.join('' if each is None else str(each) for each in several)}")


# --- the prompt of a turn -------------------------------------------------------------------------


@app.command("prompt")
@agent_argument
@request_option
@click.option(
    "--move",
    type=int,
    metavar="N",
    help="The event of the move that the round led to; by default the newest round.",
)
@click.option("--call", type=int, help="The number of the round's model call; by default the last.")
@click.option("--module", help="MODULE:NAME of its code; by default that of the fleet file.")
@click.option("--fleet", help="A fleet file, or a reference fleet's name; else ./mesh.toml.")
@framed
async def prompt(
    where: Where,
    *,
    name: str,
    request: str,
    move: int | None,
    call: int | None,
    module: str | None,
    fleet: str | None,
    as_json: bool,
) -> None:
    """Show the exact prompt that the agent's model got, by running its code over the turn's journal."""

    def code() -> Agent:
        return _code_of(name, module, fleet)

    async with await where.connect(*READERS) as bus:
        found = await ops.prompt.sent_to_model(bus, name, code, request, n=move, call=call)
    if as_json:
        emit(ops.prompt.as_program_reads(found, request))
    else:
        for line in _prompt_lines(found, request):
            say(line, lines=True)
    if not found.exact:
        raise Leave(Exit.FAILED)


def _code_of(name: str, module: str | None, fleet: str | None) -> Agent:
    """Return the agent's code. Raises UsageWrong, AgentNotFound, FleetFileError."""
    from mesh.local.project import find_fleet

    if module is None:
        if fleet is None and not Path(FILE_NAME).is_file():
            raise UsageWrong(f"where is {name}'s code? There is no {FILE_NAME} here; use --module or --fleet")
        file, search = find_fleet([] if fleet is None else [fleet])
        sys.path[:0] = [str(path) for path in search if str(path) not in sys.path]
        section = file.agents.get(name)
        module = None if section is None else section.module
        if module is None:
            raise UsageWrong(f"the fleet file names no module of {name!r}; use --module")
    agent = load(module)
    if agent.name != name:
        raise UsageWrong(f"{module} is the agent {agent.name!r}, not {name!r}")
    return agent


def _prompt_lines(found: "ops.prompt.ShownPrompt", request: str) -> list[str]:
    """Return a prompt line by line: the head, then what the vendor gets, in the vendor's order."""
    sent = found.sent
    work = found.work
    versions = f"prompt version {found.prompt_version or found.agent.prompt_version or '?'}"
    head = [
        f"{request}: {found.agent.name}, turn {work.turn}, round {work.round}, "
        f"model call {found.call} of {len(found.rebuilt.sent)}",
        f"model {sent.name}, {versions}, agent version {found.rebuilt.version or found.agent.version}",
    ]
    head += (
        [f"exact: this is what was sent, to the letter (SHA-256 {sent.digest}); limits are today's"]
        if found.exact
        else [f"NOT KNOWN TO BE WHAT WAS SENT: {line}" for line in found.differs]
    )
    if sent.name == "scripted" and found.sections:
        head.append("rules stood in for the model; this is how the vendor would have got it")
    lines = [*head, ""]
    if not found.sections:
        return [*lines, as_json_text(found.request or sent.prompt)]
    for section in found.sections:
        parts = [part if isinstance(part, str) else as_json_text(part) for part in section.parts]
        lines += [f"=== {section.heading}", *parts, ""]
    return lines[:-1]
