"""Values as people write them on a command line: facts, artifacts, budgets, times; and what makes a submit.

A time is `2026-11-21T02:00Z`, or a span: `90s`, `10m`, `2h`, `1d`. A fact is `key=text`, or `key:=json` for
anything that is not text.
"""

import functools
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from mesh.errors import UsageWrong

if TYPE_CHECKING:
    from protocol.wire.commands import Submit
    from protocol.wire.handoff import Artifact, Budget, Constraints

_NANO = 9
"""Decimal places of a dollar that can be counted: a nano-dollar is the smallest amount."""
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_SPAN = re.compile(r"([0-9]{1,9})([smhd])")

fact_option = click.option("--fact", multiple=True, metavar="K=V", help="A fact: key=text, or key:=json.")
_SUBMIT = {
    "text": click.argument("text", help="What is wanted."),
    "to": click.option("--to", help="The agent to begin with."),
    "fact": fact_option,
    "artifact": click.option(
        "--artifact", multiple=True, metavar="NAME=URI", help="A reference to something large."
    ),
    "intent": click.option("--intent", help="What kind of work it is."),
    "policy": click.option(
        "--policy", default="default", show_default=True, help="The policy to be judged by."
    ),
    "conversation": click.option("--conversation", help="What groups it with other requests."),
    "budget": click.option(
        "--budget",
        multiple=True,
        metavar="KIND=N",
        help="What it may spend: dollars=0.50, tokens=20000 or model_calls=10.",
    ),
    "within": click.option("--within", help="How long it may take: 90s, 10m, 2h, 1d."),
    "deadline": click.option("--deadline", help="When it has to be done: a time (ISO-8601)."),
    "allow": click.option(
        "--allow", multiple=True, metavar="ACTION", help="The only tools that may be called."
    ),
    "must_carry": click.option(
        "--must-carry", multiple=True, metavar="KEY", help="A fact that every handoff carries unchanged."
    ),
}
"""The options of a submit, in their order."""


def with_submit(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a submit, handed to it as one `wanted`.

    What is wrong with one of them is wrong usage, before anything is sent.
    """

    @functools.wraps(command)
    def run(**arguments: Any) -> Any:
        wanted = submit_of({name: arguments.pop(name) for name in _SUBMIT})
        return command(wanted=wanted, **arguments)

    decorated: Callable[..., Any] = run
    for option in reversed(_SUBMIT.values()):
        decorated = option(decorated)
    return decorated


def submit_of(said: dict[str, Any]) -> "Submit":
    """Return the submit that the options of `with_submit` make. Raises UsageWrong."""
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
    from protocol.wire.handoff import Constraints

    deadline = said["deadline"]
    if deadline is not None and is_span(deadline):
        raise UsageWrong(f"--deadline is a time; write --within {deadline}")
    return Constraints(
        deadline=None if deadline is None else microseconds_at(deadline),
        max_resolution_time_s=None if said["within"] is None else seconds_in(said["within"]),
        allowed_actions=tuple(said["allow"]) or None,
        budget=parse_budget(said["budget"]),
        must_carry=tuple(said["must_carry"]),
    )


def parse_artifacts(given: Sequence[str]) -> "tuple[Artifact, ...]":
    """Return artifacts, each written `name=uri`. Raises UsageWrong."""
    from protocol.wire.handoff import Artifact

    artifacts: dict[str, Artifact] = {}
    for each in given:
        name, _, uri = each.partition("=")
        if not name or not uri:
            raise UsageWrong(f"not an artifact: {each!r}; write name=uri")
        if name in artifacts:
            raise UsageWrong(f"two artifacts are called {name!r}")
        artifacts[name] = Artifact(name=name, uri=uri)
    return tuple(artifacts.values())


def parse_budget(given: Sequence[str]) -> "Budget | None":
    """Return a budget from `dollars=0.50`, `tokens=20000`, `model_calls=10`; None if nothing is said.

    Raises UsageWrong, also for more decimal places of a dollar than can be counted.
    """
    from decimal import Decimal

    from protocol.wire.handoff import Budget
    from protocol.wire.prices import LARGEST_AMOUNT

    amounts: dict[str, int] = {}
    for each in given:
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


def parse_facts(given: Sequence[str]) -> dict[str, Any]:
    """Return facts by key. Raises UsageWrong."""
    import msgspec

    facts: dict[str, Any] = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals or not key.rstrip(":"):
            raise UsageWrong(f"not a fact: {each!r}; write key=text or key:=json")
        is_json, key = key.endswith(":"), key.rstrip(":")
        if key in facts:
            raise UsageWrong(f"two facts are called {key!r}")
        try:
            facts[key] = msgspec.json.decode(value) if is_json else value
        except msgspec.DecodeError as wrong:
            raise UsageWrong(f"{key}: not JSON: {value!r}") from wrong
    return facts


# --- times ----------------------------------------------------------------------------------------


def moment(written: str) -> datetime:
    """Return a time, UTC unless it says otherwise. Raises UsageWrong."""
    ago = _SPAN.fullmatch(written)
    try:
        at = datetime.now(UTC) - _span(ago) if ago is not None else datetime.fromisoformat(written)
    except (ValueError, OverflowError):
        raise UsageWrong(f"not a time: {written!r}; write 2026-11-21T02:00Z, or 90s, 10m, 2h, 1d") from None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def server_time(written: str) -> str:
    """Return a time as the server reads it. Raises UsageWrong."""
    return moment(written).isoformat().replace("+00:00", "Z")


def microseconds_at(written: str) -> int:
    """Return a time as events have it: UTC µs. Raises UsageWrong."""
    return int(moment(written).timestamp() * 1e6)


def is_span(written: str) -> bool:
    """Return True if this is a span of time, and not a moment."""
    return _SPAN.fullmatch(written) is not None


def seconds_in(written: str) -> float:
    """Return a span of time in seconds. Raises UsageWrong."""
    span = _SPAN.fullmatch(written)
    if span is None or not int(span[1]):
        raise UsageWrong(f"not a span of time: {written!r}; write 90s, 10m, 2h, 1d")
    return _span(span).total_seconds()


def _span(found: re.Match[str]) -> timedelta:
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
