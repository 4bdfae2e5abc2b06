"""The oracle's opinion on guardrails, by another engine and by the letter of their page."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from protocol.wire.guardrails import Guardrail
from protocol.wire.handoff import Fact

SHORTEST = 4
"""Characters of a labelled value that is looked for."""
WORDS = ("summary", "question", "answer", "reason")


@dataclass(frozen=True)
class Given:
    """What one move gives to one reader."""

    move: str
    to: str
    said: Any
    """The move; None for a submit, whose text is a fact."""
    facts: tuple[Fact, ...]
    """Those that the mover knows of."""
    hidden: tuple[Fact, ...]
    sees: tuple[Fact, ...]
    """What the mover was shown."""


def is_against(guardrail: Guardrail, given: Given) -> bool:
    """Return True if a guardrail forbids what is given."""
    when = guardrail.when
    if when.moves is None and given.move == "submit":
        return False
    if when.moves is not None and given.move not in when.moves:
        return False
    if when.to is not None and given.to and given.to not in when.to:
        return False
    return any(_is_wrong(guardrail, place, given) for place in guardrail.looks_at)


def _is_wrong(guardrail: Guardrail, place: str, given: Given) -> bool:
    if place in WORDS:
        if not hasattr(given.said, place):
            return False
        value = getattr(given.said, place)
        if guardrail.required and (value is None or str(value).isspace() or value == ""):
            return True
        return _is_bad(guardrail, value, (), given)
    hands_over = given.move in ("transfer", "hand_back", "escalate", "delegate", "deliver", "submit")
    there, beside = _under(place, given.facts), _under(place, given.hidden)
    if guardrail.required and hands_over and not there and not beside:
        return True
    return any(_is_bad(guardrail, fact.value, fact.labels, given) for fact in there)


def _under(place: str, facts: tuple[Fact, ...]) -> list[Fact]:
    kind, _, name = place.partition(".")
    if kind == "labels":
        return [fact for fact in facts if name in fact.labels]
    return [fact for fact in facts if not name or fact.key.lower() == name.lower()]


def _is_bad(guardrail: Guardrail, value: Any, labels: tuple[str, ...], given: Given) -> bool:
    text = _written(value)
    if guardrail.max_bytes is not None and len(text.encode()) > guardrail.max_bytes:
        return True
    if guardrail.pattern is not None and re.search(guardrail.pattern, text) is None:
        return True
    if guardrail.forbid_pattern is not None and re.search(guardrail.forbid_pattern, text) is not None:
        return True
    if set(labels) & set(guardrail.forbid_labels):
        return True
    secret = [fact for fact in (*given.sees, *given.facts) if set(fact.labels) & set(guardrail.forbid_labels)]
    leaves = [leaf for fact in secret for leaf in _leaves(fact.value)]
    return any(form in text for leaf in leaves for form in (leaf, _written([leaf])[2:-2]))


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for each in value.values():
            yield from _leaves(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each)
    elif value is not None and not isinstance(value, bool) and len(_written(value)) >= SHORTEST:
        yield _written(value)


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
