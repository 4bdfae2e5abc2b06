"""Facts, artifacts, budgets and times as people write them on a command line; the options of a submit.

A time is `2026-11-21T02:00Z`, or a span: `90s`, `10m`, `2h`, `1d`. A fact is `key=text`, or `key:=json` for
anything but text.
"""

import functools
import re
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import click
import msgspec

from mesh.cli.options import Command, Option, together
from mesh.errors import UsageWrong
from mesh.service.printable import moment, span_s
from protocol.wire.commands import Submit
from protocol.wire.handoff import Artifact, Budget, Constraints, Fact
from protocol.wire.prices import LARGEST_AMOUNT

_NANO = 9
"""Decimal places of a dollar that are counted: a nano-dollar is the smallest amount."""
_NUMBERS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def parse_artifacts(given: Sequence[str]) -> tuple[Artifact, ...]:
    """Return artifacts, each written `name=uri`. Raises UsageWrong."""
    artifacts: dict[str, Artifact] = {}
    for each in given:
        name, _, uri = each.partition("=")
        if not name or not uri:
            raise UsageWrong(f"not an artifact: {each!r}; write name=uri")
        if name in artifacts:
            raise UsageWrong(f"two artifacts are called {name!r}")
        artifacts[name] = Artifact(name=name, uri=uri)
    return tuple(artifacts.values())


def parse_budget(given: Sequence[str]) -> Budget | None:
    """Return a budget from `dollars=0.50`, `tokens=20000`, `model_calls=10`; None if none is given.

    Raises UsageWrong, also for more decimal places of a dollar than are counted.
    """

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
                f"{kind}: {number!r} is not an amount of 0 or more with at most {places} decimal places"
            )
        name = "nano_dollars" if kind == "dollars" else kind
        if name in amounts:
            raise UsageWrong(f"two budgets of {kind}")
        amounts[name] = int(amount)
    return Budget(**amounts) if amounts else None


def parse_facts(given: Sequence[str]) -> tuple[Fact, ...]:
    """Return facts, each written `key=text` or `key:=json`. Raises UsageWrong."""
    facts: dict[str, Fact] = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals or not key.rstrip(":"):
            raise UsageWrong(f"not a fact: {each!r}; write key=text or key:=json")
        is_json, key = key.endswith(":"), key.rstrip(":")
        if key in facts:
            raise UsageWrong(f"two facts are called {key!r}")
        try:
            facts[key] = Fact(key=key, value=msgspec.json.decode(value) if is_json else value)
        except msgspec.DecodeError as wrong:
            raise UsageWrong(f"{key}: not JSON: {value!r}") from wrong
    return tuple(facts.values())


def read_json(value: str) -> Any:
    """Return a value that was given as JSON. Raises UsageWrong."""
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError as wrong:
        raise UsageWrong(f"not JSON: {value!r}") from wrong


# --- times ----------------------------------------------------------------------------------------


def _moment(written: str) -> datetime:
    at = moment(written)
    if at is None:
        raise UsageWrong(f"not a time: {written!r}; write 2026-11-21T02:00Z, or 90s, 10m, 2h, 1d")
    return at


def server_time(written: str) -> str:
    """Return a time as the server reads it. Raises UsageWrong."""
    return _moment(written).isoformat().replace("+00:00", "Z")


def microseconds_at(written: str) -> int:
    """Return a time as events hold it, in UTC µs. Raises UsageWrong."""
    return int(_moment(written).timestamp() * 1e6)


def _future(written: str) -> int:
    """Return a time to come, `+2h` or ISO-8601, in UTC µs. Raises UsageWrong."""
    ahead_s = span_s(written.removeprefix("+")) if written.startswith("+") else None
    if ahead_s is not None:
        return time.time_ns() // 1000 + ahead_s * 1_000_000
    if span_s(written) is not None or (at := moment(written)) is None:
        raise UsageWrong(f"not a time to come: {written!r}; write 2026-11-21T02:00Z, or +90s, +10m, +2h, +1d")
    return int(at.timestamp() * 1e6)


def _deadline(written: str) -> int:
    """Return a moment in UTC µs. Raises UsageWrong, also for a span of time."""
    if span_s(written) is not None:
        raise UsageWrong(f"--deadline is a time; write --within {written}")
    return microseconds_at(written)


def seconds_in(written: str) -> float:
    """Return a span of time in seconds. Raises UsageWrong."""
    span = span_s(written)
    if not span:
        raise UsageWrong(f"not a span of time: {written!r}; write 90s, 10m, 2h, 1d")
    return float(span)


def numbers_in(written: str) -> Callable[[int], bool]:
    """Return a function that checks if a number is one of `3,5-7`, or of `all`. Raises UsageWrong."""
    if written == "all":
        return lambda number: True
    spans = [_NUMBERS.fullmatch(part) for part in written.split(",") if part]
    if not all(spans):
        raise UsageWrong(f"not numbers: {written!r}; write 3,5-7 or all")
    found = [(int(span[1]), int(span[2] or span[1])) for span in spans if span]
    return lambda number: any(first <= number <= last for first, last in found)


# --- options --------------------------------------------------------------------------------------


def _option(parse: Callable[[Any], Any], *names: str, **settings: Any) -> Option:
    """Return an option whose value `parse` reads; without a value it stays None."""
    return click.option(
        *names, **settings, callback=lambda context, option, given: None if given is None else parse(given)
    )


def budget_option(help: str) -> Option:
    """Return the option of a budget; `{}` in its help stands for the ways to write one."""
    ways = "dollars=0.50, tokens=20000 or model_calls=10"
    return _option(parse_budget, "--budget", multiple=True, metavar="KIND=N", help=help.format(ways))


def since_option(parse: Callable[[str], Any], help: str) -> Option:
    """Return the option of a time to begin at."""
    return _option(parse, "--since", help=f"{help}: a time (ISO-8601), or 90s, 10m, 2h, 1d ago.")


def at_option(help: str) -> Option:
    """Return the option of a time to come."""
    return _option(
        _future, "--at", "at_us", metavar="TIME", help=f"{help}: +90s, +10m, +2h, +1d, or ISO-8601."
    )


def new_facts_option(*names: str) -> Option:
    """Return an option of facts: its names, and its help."""
    *options, help = names
    return _option(parse_facts, *options, multiple=True, metavar="K=V", help=help)


facts_option = new_facts_option("--fact", "facts", "A fact: key=text, or key:=json.")
_submit_options = together(
    click.argument("text", help="What you want done."),
    click.option("--to", help="The agent that begins."),
    facts_option,
    _option(
        parse_artifacts,
        "--artifact",
        "artifacts",
        multiple=True,
        metavar="NAME=URI",
        help="A reference to something large.",
    ),
    click.option("--intent", help="The kind of work."),
    click.option("--policy", default="default", show_default=True, help="The policy that judges it."),
    click.option(
        "--conversation", help="A name that groups it with other requests; it begins with what they left."
    ),
    click.option(
        "--continue-with",
        type=click.Choice(["last", "entry"]),
        help="Who gets it without --to: the agent that spoke last in the conversation, or the entry agent.",
    ),
    budget_option("The most it may spend: {}."),
    _option(seconds_in, "--within", help="How long it may take: 90s, 10m, 2h, 1d."),
    _option(_deadline, "--deadline", help="When it must be done: a time (ISO-8601)."),
    click.option("--allow", multiple=True, metavar="ACTION", help="The only tools that may be called."),
    click.option(
        "--must-carry", multiple=True, metavar="KEY", help="A fact that every handoff carries unchanged."
    ),
)


def with_submit(command: Command) -> Command:
    """Give a command the options of a submit, which it gets as one `wanted`.

    A mistake in one of them is wrong usage, before anything is sent.
    """

    @_submit_options
    @functools.wraps(command)
    def run(**options: Any) -> Any:
        return command(wanted=_submit(options), **options)

    return run


def _submit(options: dict[str, Any]) -> Submit:
    """Remove the options of a submit from `options` and return it."""

    constraints = Constraints(
        deadline=options.pop("deadline"),
        max_resolution_time_s=options.pop("within"),
        allowed_actions=options.pop("allow") or None,
        budget=options.pop("budget"),
        must_carry=options.pop("must_carry"),
    )
    if options["continue_with"] == "last" and options["conversation"] is None:
        raise UsageWrong("--continue-with last needs a --conversation")
    names = ("text", "to", "intent", "facts", "artifacts", "policy", "conversation", "continue_with")
    return Submit(constraints=constraints, **{name: options.pop(name) for name in names})
