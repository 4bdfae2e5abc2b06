"""What a new request says, from the command line: the text, its facts and artifacts, and what limits it."""

import functools
import inspect
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mesh.cli.facts import FactOption, parse_facts

if TYPE_CHECKING:
    from protocol.wire.commands import Submit
    from protocol.wire.handoff import Artifact, Budget, Constraints

_NANO = 9
"""Decimal places of a dollar that can be counted: a nano-dollar is the smallest amount."""

_OPTIONS: dict[str, tuple[Any, Any]] = {
    "text": (Annotated[str, typer.Argument(help="What is wanted.")], inspect.Parameter.empty),
    "to": (
        Annotated[str | None, typer.Option("--to", help="The agent to begin with.", show_default=False)],
        None,
    ),
    "fact": (FactOption, None),
    "artifact": (
        Annotated[
            list[str] | None,
            typer.Option(
                "--artifact", metavar="NAME=URI", help="A reference to something large.", show_default=False
            ),
        ],
        None,
    ),
    "intent": (
        Annotated[str | None, typer.Option("--intent", help="What kind of work it is.", show_default=False)],
        None,
    ),
    "policy": (Annotated[str, typer.Option("--policy", help="The policy to be judged by.")], "default"),
    "conversation": (
        Annotated[
            str | None,
            typer.Option("--conversation", help="What groups it with other requests.", show_default=False),
        ],
        None,
    ),
    "budget": (
        Annotated[
            list[str] | None,
            typer.Option(
                "--budget",
                metavar="KIND=N",
                help="What it may spend: dollars=0.50, tokens=20000 or model_calls=10.",
                show_default=False,
            ),
        ],
        None,
    ),
    "within": (
        Annotated[
            str | None,
            typer.Option("--within", help="How long it may take: 90s, 10m, 2h, 1d.", show_default=False),
        ],
        None,
    ),
    "deadline": (
        Annotated[
            str | None,
            typer.Option("--deadline", help="When it has to be done: a time (ISO-8601).", show_default=False),
        ],
        None,
    ),
    "allow": (
        Annotated[
            list[str] | None,
            typer.Option(
                "--allow", metavar="ACTION", help="The only tools that may be called.", show_default=False
            ),
        ],
        None,
    ),
    "must_carry": (
        Annotated[
            list[str] | None,
            typer.Option(
                "--must-carry",
                metavar="KEY",
                help="A fact that every handoff carries unchanged.",
                show_default=False,
            ),
        ],
        None,
    ),
}
"""By parameter: its annotation and its default."""


def with_submit(command: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Any]:
    """Give a command, whose second parameter is a `Submit`, the options that fill it.

    What is wrong with one of them is wrong usage, before anything is sent.
    """
    first, _, *own = inspect.signature(command).parameters.values()
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in _OPTIONS.items()
    ]

    @functools.wraps(command)
    async def run(where: Any, **arguments: Any) -> None:
        submit = _submit(**{name: arguments.pop(name) for name in _OPTIONS})
        await command(where, submit, **arguments)

    rest = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
    run.__signature__ = inspect.Signature([first, *added, *rest])  # type: ignore[attr-defined]
    return run


def _submit(**said: Any) -> "Submit":
    """Return the submit that the options make. Raises UsageWrong."""
    from protocol.wire.commands import Submit
    from protocol.wire.handoff import Fact
    from protocol.wire.ids import AgentName

    facts = parse_facts(said["fact"])
    return Submit(
        text=said["text"],
        to=None if said["to"] is None else AgentName(said["to"]),
        intent=said["intent"],
        facts=tuple(Fact(key=key, value=value) for key, value in facts.items()),
        artifacts=parse_artifacts(said["artifact"]),
        constraints=_constraints(said),
        policy=said["policy"],
        conversation=said["conversation"],
    )


def _constraints(said: dict[str, Any]) -> "Constraints":
    from mesh.cli.times import is_span, microseconds_at, seconds_in
    from mesh.ops.errors import UsageWrong
    from protocol.wire.handoff import Constraints

    deadline = said["deadline"]
    if deadline is not None and is_span(deadline):
        raise UsageWrong(f"--deadline is a time; write --within {deadline}")
    return Constraints(
        deadline=None if deadline is None else microseconds_at(deadline),
        max_resolution_time_s=None if said["within"] is None else seconds_in(said["within"]),
        allowed_actions=None if said["allow"] is None else tuple(said["allow"]),
        budget=parse_budget(said["budget"]),
        must_carry=tuple(said["must_carry"] or ()),
    )


def parse_artifacts(given: Sequence[str] | None) -> "tuple[Artifact, ...]":
    """Return artifacts, each written `name=uri`. Raises UsageWrong."""
    from mesh.ops.errors import UsageWrong
    from protocol.wire.handoff import Artifact

    artifacts: dict[str, Artifact] = {}
    for each in given or ():
        name, _, uri = each.partition("=")
        if not name or not uri:
            raise UsageWrong(f"not an artifact: {each!r}; write name=uri")
        if name in artifacts:
            raise UsageWrong(f"two artifacts are called {name!r}")
        artifacts[name] = Artifact(name=name, uri=uri)
    return tuple(artifacts.values())


def parse_budget(given: Sequence[str] | None) -> "Budget | None":
    """Return a budget from `dollars=0.50`, `tokens=20000`, `model_calls=10`; None if nothing is said.

    Raises UsageWrong, also for more decimal places of a dollar than can be counted.
    """
    from decimal import Decimal

    from mesh.ops.errors import UsageWrong
    from protocol.wire.handoff import Budget
    from protocol.wire.values import LARGEST_AMOUNT

    amounts: dict[str, int] = {}
    for each in given or ():
        kind, _, number = each.partition("=")
        places = {"dollars": _NANO, "tokens": 0, "model_calls": 0}.get(kind)
        if places is None:
            raise UsageWrong(f"not a budget: {each!r}; write dollars=0.50, tokens=20000 or model_calls=10")
        try:
            amount = Decimal(number).scaleb(places)
            fits = 0 <= amount <= LARGEST_AMOUNT and amount == amount.to_integral_value()
        except ArithmeticError:
            fits = False
        if not fits:
            raise UsageWrong(
                f"{kind}: {number!r} is no amount from 0 on with {places} decimal places at most"
            )
        name = "nano_dollars" if kind == "dollars" else kind
        if name in amounts:
            raise UsageWrong(f"two budgets of {kind}")
        amounts[name] = int(amount)
    return Budget(**amounts) if amounts else None
