"""`mesh agent …`: run an agent's code, add one to the fleet, see who is there."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mesh.cli.counts import counted
from mesh.cli.exits import Exit
from mesh.cli.options import AsJson, Health, Output, Where, on_the_bus, serve, with_where
from mesh.cli.output import Format, chosen, emit, remark, say, table

if TYPE_CHECKING:
    from mesh.ops.roster import Member

app = typer.Typer(help="Agents: run one, add one, see who is there.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The agent's name in the fleet file.")]


@app.command("run")
@with_where
def run(
    where: Where,
    reference: Annotated[
        str, typer.Argument(metavar="MODULE:NAME", help="Where its code is: an Agent, or an async function.")
    ],
    grace: Annotated[float, typer.Option("--grace", help="Seconds to finish turns that run.", min=0)] = 25.0,
    health: Health = None,
) -> None:
    """Take turns until told to end; SIGTERM finishes those that run, and gives the rest back."""
    from mesh.agent.definition import load
    from mesh.agent.runtime import Runtime
    from mesh.model.agent import ModelUnavailable, driven_by, key_will_do
    from mesh.ops.errors import UsageWrong

    agent = load(reference)
    access = where.default_name(agent.name).access("agent")
    if access.name != agent.name:
        raise UsageWrong(
            f"{reference} is the agent {agent.name!r}, and these are the credentials of {access.name!r}"
        )
    with key_will_do():
        try:
            model = driven_by(agent.model, agent.prompt_version)
        except ModelUnavailable as unavailable:
            raise UsageWrong(str(unavailable)) from unavailable
        serve(access, lambda bus: Runtime(bus, agent, model=model), grace_s=grace, health=health)


@app.command("add")
@on_the_bus
async def add(
    where: Where,
    name: Name,
    module: Annotated[
        str | None, typer.Option("--module", help="MODULE:NAME of its code.", show_default=False)
    ] = None,
    description: Annotated[str, typer.Option("--description", help="One line for models and people.")] = "",
    to: Annotated[
        list[str] | None,
        typer.Option("--to", help="Whom it may hand to; everybody if left out.", show_default=False),
    ] = None,
    clearance: Annotated[
        list[str] | None, typer.Option("--clearance", help="A label that it may see.", show_default=False)
    ] = None,
    file: Annotated[Path, typer.Option("--file", help="The fleet file.")] = Path("mesh.toml"),
    out: Annotated[
        Path, typer.Option("--out", help="Where `mesh setup --out` keeps keys and accounts.conf.")
    ] = Path(".mesh"),
    apply_now: Annotated[
        bool, typer.Option("--apply", help="Also apply it to the bus, as the admin.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Add an agent: its section in mesh.toml, its key, and what to do next."""
    from mesh.cli.fleet_text import with_agent
    from mesh.fleet.file import load_fleet
    from mesh.fleet.setup import ACCOUNTS, KEYS, apply, prepare

    text = with_agent(file, name, module=module, description=description, to=to, clearance=clearance or ())
    file.write_text(text)
    changed = load_fleet(file)
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    prepare(changed, out)
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


@app.command("ls")
@on_the_bus
async def ls(where: Where, output: Output = Format.TABLE, as_json: AsJson = False) -> None:
    """List the fleet's agents: what they say of themselves, and how many of each are alive."""
    from mesh.ops.roster import roster

    async with await where.connect("operator", "viewer", "admin") as bus:
        members = await roster(bus)
    if chosen(output, as_json) is Format.JSON:
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
        whole=("agent",),
    )


@app.command("prompt")
@on_the_bus
async def prompt(
    where: Where,
    name: Name,
    request: Annotated[str, typer.Option("--request", help="The request's id.")],
    move: Annotated[
        int | None,
        typer.Option(
            "--move",
            metavar="N",
            help="What the agent came to, by the event's number; else its newest round.",
            show_default=False,
        ),
    ] = None,
    call: Annotated[
        int | None,
        typer.Option("--call", help="Which of that round's model calls; else the last.", show_default=False),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option("--module", help="MODULE:NAME of its code; else by the fleet file.", show_default=False),
    ] = None,
    fleet: Annotated[
        str | None,
        typer.Option(
            "--fleet", help="A fleet file, or a reference fleet's name; else ./mesh.toml.", show_default=False
        ),
    ] = None,
    output: Output = Format.TABLE,
    as_json: AsJson = False,
) -> None:
    """Show exactly what its model was sent: the agent's own code, run over what the turn journaled."""
    from mesh.ops import prompt as prompts

    async with await where.connect("viewer", "operator", "admin") as bus:
        found = await prompts.shown(bus, name, request, module=module, fleet=fleet, n=move, call=call)
    if chosen(output, as_json) is Format.JSON:
        emit(prompts.as_json(found, request))
    else:
        for line in prompts.as_text(found, request):
            say(line, lines=True)
    if not found.exact:
        raise typer.Exit(Exit.FAILED)


def _alive(member: "Member") -> object:
    return "?" if member.instances is None else len(member.instances)


@app.command("show")
@on_the_bus
async def show(where: Where, name: Name, output: Output = Format.TABLE, as_json: AsJson = False) -> None:
    """Show one agent: its entry in the fleet file, its card, its instances."""
    import msgspec

    from mesh.ops.errors import NotFound
    from mesh.ops.roster import roster

    async with await where.connect("operator", "viewer", "admin") as bus:
        member = next((each for each in await roster(bus) if each.name == name), None)
    if member is None:
        raise NotFound(f"there is no agent {name!r} in the fleet")
    if chosen(output, as_json) is Format.JSON:
        emit(member)
    else:
        _lines(msgspec.to_builtins(member))
    if member.instances == ():
        wait = "waits" if member.waiting == 1 else "wait"
        remark(f"nobody serves {name}; {counted(member.waiting, 'handoff')} {wait} for it")
        raise typer.Exit(Exit.FAILED)


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
