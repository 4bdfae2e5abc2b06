"""`mesh why`: what a verdict rested on, and what would have been allowed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from mesh.cli.options import Where, on_the_bus, one_of, output_options, source_argument
from mesh.cli.output import emit, say
from mesh.service.printable import counted, one_line, when

if TYPE_CHECKING:
    from mesh.ops.explain import Explanation
    from protocol.wire.config import AgentEntry
    from protocol.wire.events import Grounds
    from protocol.wire.handoff import Budget


@click.command()
@source_argument
@click.argument(
    "n",
    type=int,
    required=False,
    metavar="N",
    help="The event; by default the last refusal, else the last verdict.",
)
@output_options
@on_the_bus
async def why(where: Where, *, source: str, n: int | None, as_json: bool) -> None:
    """Explain a verdict, and what would be allowed."""
    from mesh.ops.explain import explain
    from mesh.ops.log import decoded

    found = explain(decoded(await one_of(where, source)), n)
    if as_json:
        emit(found)
        return
    for sentence in sentences(found):
        say(sentence)


def sentences(why: "Explanation") -> Iterator[str]:
    """Yield the reasons, a plain sentence or two a line, whatever those wrote who are quoted in it."""
    for sentence in _sentences(why):
        yield one_line(sentence)


def _sentences(why: "Explanation") -> Iterator[str]:
    asked = f"{why.move} to {why.to}" if why.to else why.move
    yield f"{why.request}, event {why.n} ({why.type}) at {when(why.at)}."
    if why.rerun_of is not None:
        yield f"It does {why.rerun_of} again."
    said = f"{asked} ({why.summary})" if why.summary else asked
    yield f"{why.who}: {said}." if why.verdict == "recorded" else f"{why.who} asked for: {said}."
    yield from _verdict(why)
    if why.path:
        most = why.policy["max_depth"]
        yield f"The path then: {' → '.join(why.path)}; {_hops(why.depth)} of at most {most}."
    if why.edges:
        taken = ", ".join(f"{giver} → {taker}" for giver, taker in why.edges)
        yield f"Handed over in this segment until then: {taken}."
    if why.grounds is not None:
        yield from _grounds(why.grounds)
    yield f"Policy {why.policy['name']!r}, version {why.policy['version']}: {_numbers_of(why.policy)}."
    if why.followed:
        yield f"What came of it: {why.followed}."


def _verdict(why: "Explanation") -> Iterator[str]:
    if why.rule is not None:
        yield f"Refused by rule `{why.rule}`: {why.detail}."
        if why.numbers:
            yield (
                "Numbers: "
                + ", ".join(f"{key} = {_shown(value)}" for key, value in why.numbers.items())
                + "."
            )
        if why.hint:
            yield f"What would be allowed: {why.hint}."
    elif why.verdict == "admitted" and why.rules:
        yield f"Admitted: none of the rules that judge this move refused it ({', '.join(why.rules)})."
    elif why.verdict == "admitted":
        yield "Admitted."
    elif why.verdict == "deferred":
        yield "Deferred: the request is frozen. It is judged by every rule after the thaw."
    else:
        yield "Recorded; no rule judges this" + (f": {why.detail}." if why.detail else ".")
    if why.failure:
        yield f"The turn had failed: {why.failure.rstrip('.')}."


def _hops(depth: int) -> str:
    return "no hop" if depth == 0 else "1 hop" if depth == 1 else f"{depth} hops"


def _grounds(grounds: "Grounds") -> Iterator[str]:
    yield f"It rested on fleet revision {grounds.fleet}" + (
        "; people read the human queue." if grounds.human else "; nobody reads a human queue."
    )
    if grounds.sender is not None:
        yield f"The sender, as the fleet file has it: {_entry(grounds.sender)}."
    if grounds.target is not None:
        yield f"The target: {_entry(grounds.target)}; its breaker was {grounds.breaker}."


def _entry(entry: "AgentEntry") -> str:
    said = [f"{entry.name}"]
    said.append("may hand to anybody" if entry.to is None else f"may hand to {_listed(entry.to)}")
    said.append("takes every intent" if entry.intents is None else f"takes intents {_listed(entry.intents)}")
    said.append("every action" if entry.actions is None else f"actions {_listed(entry.actions)}")
    said.append(f"sees labels {_listed(entry.clearance)}")
    return ", ".join(said)


def _listed(names: Sequence[str]) -> str:
    return "/".join(names) or "none"


def _numbers_of(policy: Mapping[str, Any]) -> str:
    shown = ("max_depth", "max_refusals", "max_retries", "max_asks", "max_escalations", "max_handoff_bytes")
    said = [f"{name} = {policy[name]}" for name in shown]
    if policy["budget"] is not None:
        said += [f"budget = {_granted(policy['budget'])}", f"on_budget = {policy['on_budget']}"]
    return ", ".join(said)


def _granted(grant: "Budget") -> str:
    said = [] if grant.nano_dollars is None else [f"{grant.nano_dollars / 1e9:.6f} dollars"]
    said += [] if grant.tokens is None else [counted(grant.tokens, "token")]
    said += [] if grant.model_calls is None else [counted(grant.model_calls, "model call")]
    return " and ".join(said) or "no limit"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " → ".join(map(str, value))
    return str(value)
