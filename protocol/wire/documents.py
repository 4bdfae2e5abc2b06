"""Read the documents in CONF, and name every mistake in them: types alone cannot express all of them.

A reader reports all mistakes of a document at once, each with its path. It leaves the wrong value out, since
a mistake may be printed where the value may not be seen.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec

from protocol.wire.config import LEAST_HANDOFF_BYTES, BreakerEntry, Fleet, Policy
from protocol.wire.errors import Malformed
from protocol.wire.forms import FormInvalid, read_form
from protocol.wire.guardrails import guardrail_mistakes
from protocol.wire.handoff import TEXT_FACT, Budget
from protocol.wire.ids import NAME_RULE, is_label, is_name, is_token
from protocol.wire.moves import TOPOLOGIES
from protocol.wire.prices import LARGEST_AMOUNT, READ_ERRORS, Price

T = TypeVar("T")
_PLACED = re.compile(r"(?P<what>.*) - at `(?:key in )?\$(?P<path>.*)`", re.DOTALL)
_QUOTED = re.compile(r"'.*'", re.DOTALL)


class DocumentInvalid(Malformed):
    """A document with mistakes, each with its place."""

    code = "protocol.document_invalid"

    def __init__(self, *mistakes: str) -> None:
        super().__init__("; ".join(mistakes))
        self.mistakes = mistakes


# --- a policy -------------------------------------------------------------------------------------


def parse_policy(fields: object, name: str) -> Policy:
    """Return the policy `name` with these fields. Raises DocumentInvalid with every mistake.

    Args:
        fields: the policy as read from TOML or JSON; `name` may be missing.
    """
    if not isinstance(fields, Mapping):
        raise DocumentInvalid("a policy is a table of rules and their numbers")
    mistakes = list(_policy_mistakes(fields, name))
    if mistakes:
        raise DocumentInvalid(*mistakes)
    return msgspec.convert({**fields, "name": name}, Policy)


def read_policy(body: bytes, name: str) -> Policy:
    """Return the policy `name` in `body`. Raises DocumentInvalid with every mistake."""
    return parse_policy(read(body, Any), name)


def _policy_mistakes(fields: Mapping[str, Any], name: str) -> Iterator[str]:
    if not isinstance(name, str) or not is_token(name):
        yield "a policy's name is 1 to 64 characters of A-Z a-z 0-9 _ -"
    if fields.get("name", name) != name:
        yield f"name: it is another one than {name!r}, under which it stands"
    for field, value in fields.items():
        try:
            policy = msgspec.convert({field: value}, Policy)
        except READ_ERRORS as wrong:
            yield _in_words(wrong)
            continue
        if policy.topology not in TOPOLOGIES:
            yield f"topology: known is {', '.join(TOPOLOGIES)}"
        if field == "max_handoff_bytes" and policy.max_handoff_bytes < LEAST_HANDOFF_BYTES:
            yield f"max_handoff_bytes: expected at least {LEAST_HANDOFF_BYTES}: nothing fits into less"
        if field == "budget" and isinstance(value, Mapping):
            yield from _budget_mistakes(value)
        if field == "guardrails":
            yield from guardrail_mistakes(policy.guardrails, str(fields.get("topology", policy.topology)))


def _budget_mistakes(amounts: Mapping[str, Any]) -> Iterator[str]:
    """Check a ceiling. (Remaining budgets have the same type and may be negative.)"""
    for field, amount in amounts.items():
        if field not in Budget.__struct_fields__:
            yield f"budget: unknown field `{field}`"
        elif amount is not None and not 0 <= amount <= LARGEST_AMOUNT:
            yield f"budget.{field}: expected 0 to 2^62"


# --- the fleet ------------------------------------------------------------------------------------


def read_fleet(body: bytes) -> Fleet:
    """Return the fleet in `body`. Raises DocumentInvalid with every mistake."""
    fleet = read(body, Fleet)
    mistakes = fleet_mistakes(fleet)
    if mistakes:
        raise DocumentInvalid(*mistakes)
    return fleet


def fleet_mistakes(fleet: Fleet) -> list[str]:
    """Return every mistake in a fleet that its types did not catch."""
    roles = {
        "agents": fleet.agents,
        "clients": fleet.clients,
        "operators": fleet.operators,
        "viewers": fleet.viewers,
    }
    uses = Counter(name for names in roles.values() for name in names)
    wrong = []
    for role, names in roles.items():
        for name in names:
            if not is_name(name):
                wrong.append(f"{role}: {name!r} is no name: {NAME_RULE}")
            elif uses[name] > 1:
                wrong.append(f"{role}.{name}: two members of the fleet have this name")
    if fleet.entry not in fleet.agents:
        wrong.append(f"entry: {fleet.entry!r} is no agent of this fleet")
    for name, agent in fleet.agents.items():
        if agent.name != name:
            wrong.append(f"agents.{name}.name: it is another one")
        unknown = (to for to in agent.to or () if to not in fleet.agents)
        wrong += [f"agents.{name}.to: {to!r} is no agent of this fleet" for to in unknown]
        wrong += _fallback_mistakes(fleet, name)
    wrong += _form_mistakes(fleet)
    unknown = (name for name in fleet.breakers if name not in fleet.agents)
    wrong += [f"breakers.{name}: {name!r} is no agent of this fleet" for name in unknown]
    submitters = {*fleet.clients, *fleet.operators}
    wrong += [
        f"quotas.{name}: {name!r} is no client or operator of this fleet"
        for name in fleet.quotas
        if name not in submitters
    ]
    return wrong + list(_label_mistakes(fleet))


def _fallback_mistakes(fleet: Fleet, name: str) -> list[str]:
    """Return what is wrong with an agent's fallback. A circle is a mistake of each agent in it."""
    chain: list[str] = [name]
    while (after := fleet.agents[chain[-1]].fallback) is not None:
        if after not in fleet.agents:
            wrong = f"agents.{name}.fallback: {after!r} is no agent of this fleet"
            return [wrong] if len(chain) == 1 else []  # else it is told of the agent that names it
        if after in chain:
            circle = "the agent itself" if len(chain) == 1 else f"a circle: {' > '.join((*chain, after))}"
            return [f"agents.{name}.fallback: {circle}"] if after == name else []
        chain.append(after)
    return []


def _form_mistakes(fleet: Fleet) -> Iterator[str]:
    for name, forms in fleet.carries.items():
        for to, form in forms.items():
            where = f"agents.{name}.carries.{to}"
            if name not in fleet.agents or to not in fleet.agents or name == to:
                yield f"{where}: {to!r} is no other agent of this fleet"
                continue
            try:
                read_form(form)
            except FormInvalid as wrong:
                yield f"{where}: {wrong}"


def _label_mistakes(fleet: Fleet) -> Iterator[str]:
    listed = [(f"agents.{name}.clearance", agent.clearance) for name, agent in fleet.agents.items()]
    listed += [(f"labels.{key}", labels) for key, labels in fleet.labels.items()]
    for where, labels in listed:
        for label in labels:
            if not is_label(label):
                yield f"{where}: {label!r} is no label: 1 to 64 characters of A-Z a-z 0-9 _ . : / -"
    for key in (key for key in fleet.labels if key.casefold() == TEXT_FACT):
        yield f"labels.{key}: a submit's own words are free text: the entry agent labels or drops it"
    if "" in fleet.labels:
        yield 'labels."": no fact has an empty key'


# --- prices ---------------------------------------------------------------------------------------


def read_prices(body: bytes) -> dict[str, Any]:
    """Return the prices by model id, unchanged. Raises DocumentInvalid with every mistake."""
    prices = read(body, dict[str, Any])
    mistakes = []
    for model, price in prices.items():
        try:
            msgspec.convert(price, Price)
        except READ_ERRORS as wrong:
            mistakes.append(f"{model}: {_in_words(wrong)}")
    if mistakes:
        raise DocumentInvalid(*mistakes)
    return prices


# --- reading --------------------------------------------------------------------------------------


def read(body: bytes, type_: type[T]) -> T:
    """Return a document that needs no checks beyond its type. Raises DocumentInvalid."""
    try:
        return msgspec.json.decode(body, type=type_)
    except READ_ERRORS as wrong:
        raise DocumentInvalid(_in_words(wrong)) from wrong


def _in_words(wrong: Exception) -> str:
    """Return msgspec's message with the path in front and without the offending value."""
    if not isinstance(wrong, msgspec.MsgspecError):
        return "it cannot be read as JSON"
    text = _QUOTED.sub("'…'", str(wrong))
    placed = _PLACED.fullmatch(text)
    if placed is None:
        return text
    what, path = placed["what"], placed["path"].removeprefix(".")
    return f"{path}: {what[:1].lower()}{what[1:]}" if path else what


read_breaker = partial(read, type_=BreakerEntry)
