"""`mesh agent …`: run an agent's code, add one to the fleet, see who is there."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mesh.cli.exits import Exit, Leave
from mesh.cli.options import (
    Where,
    health_option,
    json_option,
    on_the_bus,
    output_options,
    run_quietly,
    serve,
    with_where,
)
from mesh.cli.output import emit, remark, say, table
from mesh.errors import NotFound, UsageWrong
from mesh.service.printable import counted

if TYPE_CHECKING:
    from mesh.agent.definition import Agent
    from mesh.conformance.checks import Finding
    from mesh.fleet.file import FleetFile
    from mesh.ops.prompt import Shown
    from mesh.ops.roster import Member

app = click.Group(help="Agents: run one, add one, see who is there.")

agent_argument = click.argument("name", metavar="NAME", help="The agent's name in the fleet file.")


@app.command("run")
@click.argument("reference", metavar="MODULE:NAME", help="Where its code is: an Agent, or an async function.")
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=25.0,
    show_default=True,
    help="Seconds to finish turns that run.",
)
@health_option
@with_where
def run(where: Where, *, reference: str, grace: float, health: str | None) -> None:
    """Take turns until told to end; SIGTERM finishes those that run, and gives the rest back."""
    from mesh.agent._runtime import Runtime
    from mesh.agent.definition import key_will_do, load

    agent = load(reference)
    access = where.default_name(agent.name).access("agent")
    if access.name != agent.name:
        raise UsageWrong(
            f"{reference} is the agent {agent.name!r}, and these are the credentials of {access.name!r}"
        )
    with key_will_do():
        model = _driven_by(agent)
        serve(access, lambda bus: Runtime(bus, agent, model=model), grace_s=grace, health=health)


def _driven_by(agent: "Agent") -> str:
    """Return what drives an agent, for its card. For one without a model nothing of models is loaded."""
    if not agent.model and not agent.prompt_version:
        return ""
    from mesh.model.agent import ModelUnavailable, driven_by

    try:
        return driven_by(agent.model, agent.prompt_version)
    except ModelUnavailable as unavailable:
        raise UsageWrong(str(unavailable)) from unavailable


@app.command("add")
@agent_argument
@click.option("--module", help="MODULE:NAME of its code.")
@click.option("--description", default="", help="One line for models and people.")
@click.option("--to", multiple=True, help="Whom it may hand to; everybody if left out.")
@click.option("--clearance", multiple=True, help="A label that it may see.")
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    default=Path("mesh.toml"),
    show_default=True,
    help="The fleet file.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path(".mesh"),
    show_default=True,
    help="Where `mesh setup --out` keeps keys and accounts.conf.",
)
@click.option("--apply", "apply_now", is_flag=True, help="Also apply it to the bus, as the admin.")
@json_option
@on_the_bus
async def add(
    where: Where,
    *,
    name: str,
    module: str | None,
    description: str,
    to: tuple[str, ...],
    clearance: tuple[str, ...],
    file: Path,
    out: Path,
    apply_now: bool,
    as_json: bool,
) -> None:
    """Add an agent: its section in mesh.toml, its key, and what to do next."""
    from mesh.cli.fleet_text import with_agent
    from mesh.fleet.setup import ACCOUNTS, KEYS, apply

    text = with_agent(
        file, name, module=module, description=description, to=list(to) or None, clearance=clearance
    )
    changed = _write(file, text, out)
    key = out / KEYS / f"{name}.nk"
    if not as_json:
        say(f"added [agents.{name}] to {file}; its key: {key}")
    changes = []
    if apply_now:
        async with await where.connect("admin") as bus:
            changes = await apply(bus, changed)
    if as_json:
        told = [{"action": change.action, "what": change.what} for change in changes]
        emit({"agent": name, "file": str(file), "key": str(key), "applied": apply_now, "changes": told})
    elif apply_now:
        for change in changes:
            say(f"{change.action} {change.what}")
        say(f"the server still has to read {out / ACCOUNTS}, twice, before it knows the new key")
    else:
        say(f"next: let the server read {out / ACCOUNTS} anew, twice, then `mesh setup`, then run it:")
        say(f"  MESH_CREDENTIALS={key} mesh agent run {module or 'MODULE:NAME'}")


def _write(file: Path, text: str, out: Path) -> "FleetFile":
    """Write a changed fleet file and create the keys that it lacks; return the fleet."""
    from mesh.fleet.file import load_fleet
    from mesh.fleet.setup import prepare

    file.write_text(text)
    changed = load_fleet(file)
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    prepare(changed, out)
    return changed


@app.command("ls")
@output_options
@on_the_bus
async def ls(where: Where, *, as_json: bool) -> None:
    """List the fleet's agents: what they say of themselves, and how many of each are alive."""
    from mesh.ops.roster import roster

    async with await where.connect("operator", "viewer", "admin") as bus:
        members = await roster(bus)
    if as_json:
        emit(members)
        return
    table(
        ("agent", "alive", "waiting", "version", "model", "hands to", "description"),
        [
            (
                member.name,
                _alive(member),
                member.waiting,
                member.card.version if member.card else "",
                member.card.model if member.card else "",
                "anybody" if member.entry.to is None else ", ".join(member.entry.to),
                member.entry.description or (member.card.description if member.card else ""),
            )
            for member in members
        ],
    )


@app.command("prompt")
@agent_argument
@click.option("--request", required=True, help="The request's id.")
@click.option(
    "--move",
    type=int,
    metavar="N",
    help="What the agent came to, by the event's number; else its newest round.",
)
@click.option("--call", type=int, help="Which of that round's model calls; else the last.")
@click.option("--module", help="MODULE:NAME of its code; else by the fleet file.")
@click.option("--fleet", help="A fleet file, or a reference fleet's name; else ./mesh.toml.")
@output_options
@on_the_bus
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
    """Show exactly what its model was sent: the agent's own code, run over what the turn journaled."""
    from mesh.ops.prompt import as_program_reads, sent_to_model

    def code() -> "Agent":
        return _code_of(name, module, fleet)

    async with await where.connect("viewer", "operator", "admin") as bus:
        found = await sent_to_model(bus, name, code, request, n=move, call=call)
    if as_json:
        emit(as_program_reads(found, request))
    else:
        for line in _prompt_lines(found, request):
            say(line, lines=True)
    if not found.exact:
        raise Leave(Exit.FAILED)


def _code_of(name: str, module: str | None, fleet: str | None) -> "Agent":
    """Return the agent's code. Raises UsageWrong, AgentNotFound, FleetFileError."""
    import sys

    from mesh.agent.definition import load
    from mesh.fleet import FILE_NAME
    from mesh.local.choice import find_fleet

    if module is None:
        if fleet is None and not Path(FILE_NAME).is_file():
            raise UsageWrong(f"where is {name}'s code? There is no {FILE_NAME} here; say --module or --fleet")
        file, search = find_fleet([] if fleet is None else [fleet])
        sys.path[:0] = [str(path) for path in search if str(path) not in sys.path]
        section = file.agents.get(name)
        module = None if section is None else section.module
        if module is None:
            raise UsageWrong(f"the fleet file names no module of {name!r}; say --module")
    agent = load(module)
    if agent.name != name:
        raise UsageWrong(f"{module} is the agent {agent.name!r}, not {name!r}")
    return agent


def _prompt_lines(found: "Shown", request: str) -> list[str]:
    """Return a prompt line by line: the head, then what the vendor gets, in its order."""
    from mesh.ops.prompt import differences

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
        else [f"NOT KNOWN TO BE WHAT WAS SENT: {line}" for line in differences(found)]
    )
    if not found.request:
        import msgspec

        return [*head, "", msgspec.json.format(msgspec.json.encode(sent.prompt), indent=2).decode()]
    if sent.name == "scripted":
        head.append("rules stood in for the model; this is how the vendor would have got it")
    body = dict(found.request)
    system, tools, messages = body.pop("system", []), body.pop("tools", []), body.pop("messages")
    lines = [*head, "", f"=== {_as_line(body)}"]
    for block in system:
        lines += ["", "=== system" + _mark(block), block["text"]]
    if tools:
        lines += ["", "=== tools"]
        lines += [_as_line(tool) for tool in tools]
    for message in messages:
        for block in message["content"]:
            lines += ["", f"=== {message['role']}{_mark(block)}"]
            lines.append(block["text"] if block["type"] == "text" else _as_line(block))
    return lines


def _mark(block: Mapping[str, Any]) -> str:
    return " (cached up to here)" if "cache_control" in block else ""


def _as_line(value: Any) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()


def _alive(member: "Member") -> object:
    return "?" if member.instances is None else len(member.instances)


@app.command("show")
@agent_argument
@output_options
@on_the_bus
async def show(where: Where, *, name: str, as_json: bool) -> None:
    """Show one agent: its entry in the fleet file, its card, its instances."""
    import msgspec

    from mesh.ops.roster import roster

    async with await where.connect("operator", "viewer", "admin") as bus:
        member = next((each for each in await roster(bus) if each.name == name), None)
    if member is None:
        raise NotFound(f"there is no agent {name!r} in the fleet")
    if as_json:
        emit(member)
    else:
        _lines(msgspec.to_builtins(member))
    if member.instances == ():
        wait = "waits" if member.waiting == 1 else "wait"
        remark(f"nobody serves {name}; {counted(member.waiting, 'handoff')} {wait} for it")
        raise Leave(Exit.FAILED)


def _lines(value: dict[str, Any], indent: str = "") -> None:
    for key, inner in value.items():
        if isinstance(inner, dict):
            say(f"{indent}{key}:")
            _lines(inner, indent + "  ")
        elif isinstance(inner, list | tuple) and inner and isinstance(inner[0], dict):
            for each in inner:
                say(f"{indent}{key}:")
                _lines(each, indent + "  ")
        else:
            shown = ", ".join(map(str, inner)) if isinstance(inner, list | tuple) else inner
            say(f"{indent}{key}: {'' if shown is None else shown}")


# --- an agent in any language, held against the protocol -------------------------------------------


@click.command()
@click.argument("name", metavar="NAME", help="The agent's name.")
@click.option("--run", required=True, metavar="CMD", help="A shell command that runs the agent.")
@click.option("--kill", help="What ends it as a crash would, where SIGKILL to CMD does not.")
@output_options
def check_agent(*, name: str, run: str, kill: str | None, as_json: bool) -> None:
    """Try an agent in any language: does it keep to the protocol?

    A scratch mesh of its own is started, with a real guard, and CMD is run with NATS_URL, MESH_NAME and
    MESH_CREDENTIALS (a seed file). Its code does what the fact `do` of a request says: docs/protocol.md,
    section 15. It is refused, killed, frozen, cancelled, sent what it cannot know, and everything it says on
    the bus is read along. About a minute. Exit status 1 if something is wrong.
    """
    run_quietly(_check(name, run, kill, as_json=as_json))


async def _check(name: str, command: str, kill: str | None, *, as_json: bool) -> None:
    from mesh.conformance.checks import check_agent
    from protocol.wire.ids import is_name

    if not is_name(name):
        raise click.BadParameter(f"not a name: {name!r}", param_hint="NAME")
    found: list[Finding] = []
    with tempfile.TemporaryDirectory(prefix="mesh-check-") as directory:
        async for finding in check_agent(name, command, Path(directory), kill=kill):
            found.append(finding)
            if not as_json:
                say(_verdict(finding))
    if as_json:
        emit([finding._asdict() for finding in found])
    if not all(finding.ok for finding in found):
        raise Leave(Exit.FAILED)


def _verdict(finding: "Finding") -> str:
    if finding.ok:
        return f"ok     {finding.check}"
    return f"WRONG  {finding.check}: {finding.wrong} (docs/protocol.md, {finding.section})"
