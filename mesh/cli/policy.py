"""`mesh policy …`: policies, and the shadows that are tried beside them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from mesh import ops
from mesh.cli.arguments import microseconds_at, since_option
from mesh.cli.exits import Exit, Leave
from mesh.cli.options import A_PATH, READERS, Where, agreed, framed
from mesh.cli.output import DIGITS, At, as_json_text, emit, listing, note, report, say, table
from mesh.errors import UsageWrong
from mesh.ops.conf import ConfEntry
from mesh.ops.policies import StandingPolicy, StandingShadow
from mesh.ops.shadows import ShadowReport
from mesh.replay.whatif import judgement_in_words, most
from mesh.service.printable import counted, one_line, short, when

app = click.Group(help="Policies and their shadows: list, show, shadow, report, promote.")
name_argument = click.argument("name", metavar="NAME", help="The policy's name.")


@app.command("ls")
@framed
async def ls(where: Where, *, as_json: bool) -> None:
    """List the policies as they are now, and which have a shadow."""
    async with await where.connect(*READERS) as bus:
        found = await ops.policies.policies(bus)
    listing(
        found,
        {
            "policy": lambda each: each.name,
            "rev": lambda each: each.rev,
            "digest": lambda each: each.digest[:DIGITS] or "unreadable",
            "at": lambda each: At(each.at),
            "by": lambda each: each.by,
            "revisions": lambda each: each.revisions,
            "shadow": lambda each: "" if each.shadow is None else _numbers(each.shadow),
        },
        as_json=as_json,
        spare=("revisions", "by"),
    )


@app.command("show")
@name_argument
@framed
async def show(where: Where, *, name: str, as_json: bool) -> None:
    """Show a policy's numbers, those of its shadow, and the revisions of both."""
    async with await where.connect(*READERS) as bus:
        found = await ops.policies.shown(bus, name)
    if as_json:
        emit(found)
        return
    standing = found.standing
    say(f"policy {one_line(name)}, revision {standing.rev}, digest {standing.digest}")
    numbers = ops.policies.whole(found.policy)
    beside = numbers if standing.shadow is None else ops.policies.whole(standing.shadow.policy)
    table(
        ("number", "policy", "shadow"),
        [
            (field, _value(value), _value(beside[field]) if beside[field] != value else "")
            for field, value in numbers.items()
            if field != "name"
        ],
    )
    if standing.shadow is not None:
        say(_about(standing.shadow))
    history = [(each.rev, each.what, At(each.at), each.by, _now(each)) for each in found.history]
    table(("rev", "what", "at", "by", ""), history)


@app.command("shadow")
@name_argument
@click.argument("file", type=A_PATH, metavar="[FILE]", required=False, help="A policy, or a fleet file.")
@click.option("--stop", is_flag=True, help="End the shadow of this policy.")
@framed
async def shadow(where: Where, *, name: str, file: Path | None, stop: bool, by: str, as_json: bool) -> None:
    """Have guards judge by the policy in FILE beside the policy NAME. It decides nothing.

    FILE is TOML: a policy's numbers, or a fleet file with a policy of that name. Numbers that it leaves out
    are the usual ones. It takes the admin's credentials.
    """
    if (file is None) is not stop:
        raise UsageWrong("name a FILE to begin a shadow, or --stop to end it")
    wanted = None if file is None else ops.policies.policy_at(file, name)
    async with await where.connect("admin") as bus:
        if wanted is None:
            done = await ops.shadows.end_shadow(bus, name, by=by)
        else:
            done = await ops.shadows.begin_shadow(bus, wanted, by=by)
    report(done, _done(done), as_json=as_json)


@app.command("report")
@name_argument
@since_option(microseconds_at, "Only what was decided since")
@framed
async def report_on(where: Where, *, name: str, since: int | None, as_json: bool) -> None:
    """Report how often the newest shadow of a policy would have decided otherwise.

    Guards count what each of them decides; the numbers are theirs together. They store counts by the minute.
    """
    async with await where.connect(*READERS) as bus:
        found = await ops.shadows.report(bus, name, since or 0)
    if as_json:
        emit(found)
    else:
        _tell(found, say)


@app.command("promote")
@name_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@framed
async def promote(where: Where, *, name: str, yes: bool, by: str, as_json: bool) -> None:
    """Make the shadow of a policy the policy, for requests that begin from now on, and end the shadow.

    The policy's new revision names the digest of the report, which is shown first. It takes the admin's
    credentials. The fleet file still has the old numbers, and the next `mesh setup` follows it.
    """
    async with await where.connect("admin") as bus:
        found = await ops.shadows.report(bus, name)
        _tell(found, note)
        if not yes and not await agreed(f"make it the policy {name}", "to promote it all the same"):
            note("nothing was changed")
            raise Leave(Exit.FAILED)
        done = await ops.shadows.promote(bus, found, by=by)
    report(done, f"the shadow is the policy {name} now: revision {done.rev}", as_json=as_json)
    note("write its numbers into the fleet file, too: the next mesh setup follows that")


def _tell(found: ShadowReport, line: Callable[[str], None]) -> None:
    ended = "" if found.stands else ", ended"
    line(f"shadow of {found.policy} since {when(found.began)}{ended}, digest {found.shadow}")
    share = f" ({found.disagreed / found.judged:.1%})" if found.judged else ""
    counts = f"{found.judged} judged, {found.agreed} agreed, {found.disagreed} disagreed{share}"
    guards = counted(found.guards, "guard")
    line(f"{guards}, {counts}, {found.dropped} dropped, {found.failed} failed, since {when(found.since)}")
    for guard in found.stopped:
        line(f"judges by it no more: {guard}")
    if found.unkept or found.kept != found.disagreed:
        line(f"{counted(found.kept, 'disagreement')} stored, in {counted(found.requests, 'request')}")
    for kind, counts_by in (("rule", found.by_rule), ("agent", found.by_agent), ("edge", found.by_edge)):
        if counts_by:
            line(f"by {kind}: {most(counts_by)}")
    for each in found.examples:
        giver = each.agent or each.client
        who = f"{giver} → {each.to}" if each.to else giver
        was, would = judgement_in_words(each.was), judgement_in_words(each.would)
        line(f"{each.request} event {each.n}: was {was}, would be {would}; {who}; {each.detail}")
    line(f"report {found.digest}")


def _done(done: StandingPolicy) -> str:
    if done.shadow is None:
        return f"the policy {done.name} has no shadow any more"
    return f"the policy {done.name} has a shadow: {_numbers(done.shadow)}"


def _about(shadow: StandingShadow) -> str:
    by = f" by {shadow.by}" if shadow.by else ""
    differ = counted(len(shadow.differs), "number differs", "numbers differ")
    return one_line(f"shadow since {when(shadow.at)}{by}, digest {shadow.digest}: {differ}")


def _numbers(shadow: StandingShadow) -> str:
    """Return where a shadow differs from its policy, as text."""
    differs = shadow.differs.items()
    return one_line(", ".join(f"{place} {_value(was)} → {_value(would)}" for place, (was, would) in differs))


def _now(each: ConfEntry) -> str:
    return "stands" if each.current else ""


def _value(value: Any) -> str:
    return short(as_json_text(value), 60)
