"""The admin's documents in CONF, read whole: one definition of a valid policy, fleet and price list.

The fleet file, guards, agents and commands all read them here. Numbers have their ranges
in the types; here is what no type can say. A document with a mistake is refused with all that was found.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from protocol.wire.config import TOPOLOGIES, BreakerEntry, Fleet, FreezeEntry, Policy, RateLimitEntry
from protocol.wire.errors import READ_ERRORS, Malformed
from protocol.wire.handoff import TEXT_FACT, Budget
from protocol.wire.ids import is_label, is_name, is_token
from protocol.wire.prices import LARGEST_AMOUNT, Price

T = TypeVar("T")
_PLACED = re.compile(r"(?P<what>.*) - at `(?:key in )?\$(?P<path>.*)`", re.DOTALL)
_QUOTED = re.compile(r"'.*'", re.DOTALL)


class DocumentInvalid(Malformed):
    """A document with mistakes; each names its place."""

    code = "protocol.document_invalid"

    def __init__(self, *mistakes: str) -> None:
        super().__init__("; ".join(mistakes))
        self.mistakes = mistakes


# --- a policy -------------------------------------------------------------------------------------


def policy_of(said: object, name: str) -> Policy:
    """Return the policy `name` that a document says. Raises DocumentInvalid with every mistake.

    Args:
        said: the document as TOML or JSON has it; it may leave out its name.
    """
    if not isinstance(said, Mapping):
        raise DocumentInvalid("a policy is a table of rules and their numbers")
    mistakes = list(_policy_mistakes(said, name))
    if mistakes:
        raise DocumentInvalid(*mistakes)
    return msgspec.convert({**said, "name": name}, Policy)


def read_policy(body: bytes, name: str) -> Policy:
    """Return the policy `name` in `body`. Raises DocumentInvalid with every mistake."""
    return policy_of(read(body, Any), name)


def _policy_mistakes(said: Mapping[str, Any], name: str) -> Iterator[str]:
    if not isinstance(name, str) or not is_token(name):
        yield "a policy's name is 1 to 64 characters of A-Z a-z 0-9 _ -"
    if said.get("name", name) != name:
        yield f"name: it is another one than {name!r}, under which it stands"
    for field, value in said.items():
        try:
            policy = msgspec.convert({field: value}, Policy)
        except READ_ERRORS as wrong:
            yield _in_words(wrong)
            continue
        if policy.topology not in TOPOLOGIES:
            yield f"topology: known is {', '.join(TOPOLOGIES)}"
        if field == "budget" and isinstance(value, Mapping):
            yield from _budget_mistakes(value)


def _budget_mistakes(said: Mapping[str, Any]) -> Iterator[str]:
    """Check a ceiling. (Its type is also that of a rest, which may be negative.)"""
    for field, amount in said.items():
        if field not in Budget.__struct_fields__:
            yield f"budget: unknown field `{field}`"
        elif amount is not None and not 0 <= amount <= LARGEST_AMOUNT:
            yield f"budget.{field}: expected 0 to 2^62"


# --- the fleet ------------------------------------------------------------------------------------


def read_fleet(body: bytes) -> Fleet:
    """Return the fleet in `body`. Raises DocumentInvalid with every mistake that the types let pass."""
    fleet = read(body, Fleet)
    mistakes = fleet_mistakes(fleet)
    if mistakes:
        raise DocumentInvalid(*mistakes)
    return fleet


def fleet_mistakes(fleet: Fleet) -> list[str]:
    """Return what is wrong with a fleet whose numbers are in range."""
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
                wrong.append(f"{role}: {name!r} is no name: 1 to 24 characters of a-z 0-9 -, and not `human`")
            elif uses[name] > 1:
                wrong.append(f"{role}.{name}: two members of the fleet have this name")
    if fleet.entry not in fleet.agents:
        wrong.append(f"entry: {fleet.entry!r} is no agent of this fleet")
    for name, agent in fleet.agents.items():
        if agent.name != name:
            wrong.append(f"agents.{name}.name: it is another one")
        unknown = (to for to in agent.to or () if to not in fleet.agents)
        wrong += [f"agents.{name}.to: {to!r} is no agent of this fleet" for to in unknown]
    unknown = (name for name in fleet.breakers if name not in fleet.agents)
    wrong += [f"breakers.{name}: {name!r} is no agent of this fleet" for name in unknown]
    return wrong + list(_label_mistakes(fleet))


def _label_mistakes(fleet: Fleet) -> Iterator[str]:
    said = [(f"agents.{name}.clearance", agent.clearance) for name, agent in fleet.agents.items()]
    said += [(f"labels.{key}", labels) for key, labels in fleet.labels.items()]
    for where, labels in said:
        for label in labels:
            if not is_label(label):
                yield f"{where}: {label!r} is no label: 1 to 64 characters of A-Z a-z 0-9 _ . : / -"
    if TEXT_FACT in fleet.labels:
        yield (
            f"labels.{TEXT_FACT}: a submit's own words are free text: let the entry agent label or drop them"
        )
    if "" in fleet.labels:
        yield 'labels."": no fact has an empty key'


# --- prices ---------------------------------------------------------------------------------------


def read_prices(body: bytes) -> dict[str, Any]:
    """Return what models cost by id, as it stands. Raises DocumentInvalid with every mistake."""
    said = read(body, dict[str, Any])
    mistakes = []
    for model, price in said.items():
        try:
            msgspec.convert(price, Price)
        except READ_ERRORS as wrong:
            mistakes.append(f"{model}: {_in_words(wrong)}")
    if mistakes:
        raise DocumentInvalid(*mistakes)
    return said


# --- entries that guards write --------------------------------------------------------------------


def read_freeze(body: bytes) -> FreezeEntry:
    """Return whether the mesh is frozen. Raises DocumentInvalid."""
    return read(body, FreezeEntry)


def read_breaker(body: bytes) -> BreakerEntry:
    """Return an agent's breaker. Raises DocumentInvalid."""
    return read(body, BreakerEntry)


def read_rate_limit(body: bytes) -> RateLimitEntry:
    """Return the shares of a model's rate limits; agents write them. Raises DocumentInvalid."""
    return read(body, RateLimitEntry)


# --- reading --------------------------------------------------------------------------------------


def read(body: bytes, type_: type[T]) -> T:
    """Return a document that its type defines wholly. Raises DocumentInvalid."""
    try:
        return msgspec.json.decode(body, type=type_)
    except READ_ERRORS as wrong:
        raise DocumentInvalid(_in_words(wrong)) from wrong


def _in_words(wrong: Exception) -> str:
    """Return msgspec's words, its path in front and what stood there left out."""
    if not isinstance(wrong, msgspec.MsgspecError):
        return "it cannot be read as JSON"
    text = _QUOTED.sub("'…'", str(wrong))
    placed = _PLACED.fullmatch(text)
    if placed is None:
        return text
    what, path = placed["what"], placed["path"].removeprefix(".")
    return f"{path}: {what[:1].lower()}{what[1:]}" if path else what
