"""`mesh fork`: a new request that goes on from an old one."""

import click

from mesh import ops
from mesh.cli.arguments import new_facts_option
from mesh.cli.exits import Exit, Leave
from mesh.cli.options import Where, agreed, framed, request_argument
from mesh.cli.output import as_json_text, note, remark, report
from mesh.client import Client
from mesh.ops.fork import Effects
from mesh.service.printable import counted, one_line, when
from protocol.wire.handoff import Fact


@click.command()
@request_argument
@click.option("--at", type=click.IntRange(min=0), required=True, metavar="N", help="The event to go on from.")
@new_facts_option("--set", "facts", "A new or changed fact: key=text, or key:=json; `text` is the request's.")
@click.option("--drop", multiple=True, metavar="KEY", help="A fact to leave out.")
@click.option("--to", help="The agent that goes on, if not the one that has the work after the event.")
@click.option("--policy", help="The policy that judges it; by default that of the old request.")
@click.option(
    "--effects",
    type=click.Choice(("recorded", "refuse", "run")),
    default="recorded",
    show_default=True,
    help="recorded: answer calls and effects by what came of them then, and refuse other effects. refuse: "
    "refuse each effect. run: let effects happen again.",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask, where effects are to happen again.")
@framed
async def fork(
    where: Where,
    *,
    request: str,
    at: int,
    facts: tuple[Fact, ...] | None,
    drop: tuple[str, ...],
    to: str | None,
    policy: str | None,
    effects: Effects,
    yes: bool,
    as_json: bool,
) -> None:
    """Submit a request that goes on from an old one after event N; print its id.

    The new request is yours, and linked to the old one, which stays as it is. It begins at the agent that had
    the work after the event, with the facts, artifacts, conversation and limits of that moment; its turn
    begins anew. With --effects recorded its agents' calls are answered by what they recorded then, as long as
    they are equal. Anything else that only reads is called, and models are asked. No effect happens, except
    with --effects run, which lists the effects of the rest and asks first.
    """
    async with await where.connect("operator") as bus:
        bodies = await ops.log.whole_request(bus, request)
        happened = ops.log.decoded(bodies)
        wanted = ops.fork.fork_of(
            happened, bodies, at, facts=facts or (), drop=drop, to=to, policy=policy, effects=effects
        )
        await ops.fork.require_forkable(bus, happened, bodies, wanted)
        again = list[ops.rerun.Effect]()
        if effects == "run":
            again = await ops.fork.effects_since(bus, happened, wanted)
            _warn(request, at, again)
        begins = f"the new request begins at {wanted.to}, under policy {wanted.policy}"
        note(f"{begins}; its answer goes to {bus.name}")
        if not ops.log.has_ended(bodies[-1]):
            note(f"{request} is open, and goes on beside it")
        if effects == "recorded":
            note("where the record has no equal call, reading tools are called and models are asked")
        allowed = effects != "run" or yes or await agreed("let effects happen again", "to let them happen")
        if not allowed:
            note("nothing was submitted")
            raise Leave(Exit.FAILED)
        new = await Client(bus, bus.name).submit_whole(wanted)
    found = {"request": new, "forked_from": {"request": request, "n": at}, "effects": again}
    report(found, new, as_json=as_json)


def _warn(request: str, n: int, effects: list[ops.rerun.Effect]) -> None:
    """List what a fork may do to the world a second time."""
    if not effects:
        note(f"the journals of {request} have no effect after event {n}; what is new will run")
        return
    note(f"{counted(len(effects), 'effect')} of {request} after event {n} can happen again, under new keys:")
    for effect in effects:
        state = "done" if effect.state == "done" else "begun, and nobody knows whether it was done"
        given = "" if effect.arguments is None else f"  {as_json_text(effect.arguments)}"
        action = one_line(effect.action)
        remark(f"  {when(effect.at)}  {effect.agent}  {action}  step {effect.step}  {state}{given}")
