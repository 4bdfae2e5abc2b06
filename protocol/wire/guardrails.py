"""Guardrails: what a policy demands or forbids of the words and facts that a move hands over.

A guardrail names places, and conditions that each of them has to meet. It is judged by the guard, within the
decision. So it calls nothing, and its time is bounded by the size of what it looks at: patterns are of an
engine that does not go back (the crate `regex` of Rust, in pydantic-core), at most MOST_PATTERN long.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated

import msgspec

from protocol.wire.errors import Malformed
from protocol.wire.ids import AgentName, is_label, is_token
from protocol.wire.moves import TOPOLOGIES, Move
from protocol.wire.prices import Bytes

SUBMIT = "submit"
"""Stands among the names of moves for the message that begins a request."""
WORDS = tuple(dict.fromkeys(kind.says for kind in Move.__args__ if kind.says))
"""Places of words: the field of a move that is written for its reader."""
FACTS, OF_KEY, OF_LABEL = "facts", "facts.", "labels."
"""Places of facts: all of them, the one with a key, those with a label."""
MOST_GUARDRAILS = 32
MOST_BYTES = 8_192
"""Limit of a policy's guardrails as JSON: the first event of each request has them."""
MOST_PATTERN = 256
MOST_HINT = 500
_MOVES = frozenset({SUBMIT, *(name for moves in TOPOLOGIES.values() for name in moves)})
_UNREADABLE = "guards do not know how to judge by it"


class GuardrailWhen(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Which moves a guardrail is for. None: for all moves of agents."""

    to: tuple[AgentName, ...] | None = None
    """Who gets the work, the question, the result or the answer: agents, clients, `human`."""
    moves: tuple[str, ...] | None = None
    """Names of moves. `submit`, the message that begins a request, is meant only if it is named."""


class Guardrail(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One rule of an admin's own. Each condition that is set has to hold at each place."""

    name: str
    looks_at: tuple[str, ...]
    """Places: `summary`, `question`, `answer`, `reason`; `facts`, `facts.<key>`, `labels.<label>`."""
    pattern: str | None = None
    """What is there has to match it somewhere. Text is matched as it is, any other value as JSON."""
    forbid_pattern: str | None = None
    """It may match nowhere."""
    max_bytes: Bytes | None = None
    """Of each text and each fact's value, as UTF-8."""
    required: bool = False
    """There has to be something: text that is not blank, a fact with this key or label."""
    forbid_labels: tuple[str, ...] = ()
    """No fact with any of these labels may be there, nor the value of one that the mover knows."""
    when: GuardrailWhen = GuardrailWhen()
    hint: Annotated[str, msgspec.Meta(max_length=MOST_HINT)] = ""
    """What to do instead, in the admin's words."""


class PatternInvalid(Malformed):
    """A pattern that the engine cannot have."""

    code = "protocol.pattern_invalid"


class Pattern:
    """A compiled pattern, which is searched for in time that grows with the text alone."""

    def __init__(self, text: str) -> None:
        # Only guards of policies with a pattern pay for it: an agent or a client never loads it.
        from pydantic_core import SchemaError, SchemaValidator, core_schema

        try:
            self._engine = SchemaValidator(core_schema.str_schema(pattern=text, regex_engine="rust-regex"))
        except SchemaError as wrong:
            raise PatternInvalid(_last_line(str(wrong))) from wrong

    def found_in(self, text: str) -> bool:
        """Return True if the pattern matches somewhere in a text."""
        return self._engine.isinstance_python(text)


@lru_cache(256)
def compiled(pattern: str) -> Pattern:
    """Return a pattern, ready to be searched for. Raises PatternInvalid."""
    if len(pattern) > MOST_PATTERN:
        raise PatternInvalid(f"it has {len(pattern)} characters of at most {MOST_PATTERN}")
    return Pattern(pattern)


def guardrail_mistakes(guardrails: Sequence[Guardrail], topology: str) -> Iterator[str]:
    """Yield every mistake of a policy's guardrails, each with its place.

    Args:
        topology: the policy's; a guardrail for none of its moves would never be asked.
    """
    if len(guardrails) > MOST_GUARDRAILS:
        yield f"guardrails: {len(guardrails)} of at most {MOST_GUARDRAILS}"
    size = len(msgspec.json.encode(guardrails))
    if size > MOST_BYTES:
        yield f"guardrails: they have {size} bytes of at most {MOST_BYTES}"
    moves = {SUBMIT, *TOPOLOGIES.get(topology, _MOVES)}
    names = set[str]()
    for place, each in enumerate(guardrails):
        where = f"guardrails[{place}]"
        if each.name in names:
            yield f"{where}.name: another guardrail is called {each.name!r}"
        names.add(each.name)
        yield from (f"{where}.{wrong}" for wrong in own_mistakes(each))
        for name in _MOVES.difference(moves).intersection(each.when.moves or ()):
            yield f"{where}.when.moves: the topology {topology!r} has no move {name!r}"


@lru_cache(256)
def own_mistakes(guardrail: Guardrail) -> tuple[str, ...]:
    """Return every mistake of one guardrail by itself. A guard judges by none that has any."""
    return tuple(_own_mistakes(guardrail))


def _own_mistakes(guardrail: Guardrail) -> Iterator[str]:
    if not is_token(guardrail.name):
        yield "name: 1 to 64 characters of A-Z a-z 0-9 _ -"
    if not guardrail.looks_at:
        yield "looks_at: name one place at least"
    for place in guardrail.looks_at:
        if not _is_place(place):
            places = ", ".join((*WORDS, FACTS, f"{OF_KEY}<key>", f"{OF_LABEL}<label>"))
            yield f"looks_at: {place!r}: {_UNREADABLE}; places are {places}"
    if guardrail == Guardrail(
        name=guardrail.name, looks_at=guardrail.looks_at, when=guardrail.when, hint=guardrail.hint
    ):
        yield "pattern, forbid_pattern, max_bytes, required, forbid_labels: set one at least"
    for field in ("pattern", "forbid_pattern"):
        text = getattr(guardrail, field)
        if text is not None:
            try:
                compiled(text)
            except PatternInvalid as wrong:
                yield f"{field}: {wrong}"
    for label in guardrail.forbid_labels:
        if not is_label(label):
            yield f"forbid_labels: {label!r} is no label: 1 to 64 characters of A-Z a-z 0-9 _ . : / -"
    for name in guardrail.when.moves or ():
        if name not in _MOVES:
            yield f"when.moves: {name!r}: {_UNREADABLE}; moves are {', '.join(sorted(_MOVES))}"


def _is_place(place: str) -> bool:
    if place.startswith(OF_LABEL):
        return is_label(place.removeprefix(OF_LABEL))
    return place in (*WORDS, FACTS) or (place.startswith(OF_KEY) and place != OF_KEY)


def _last_line(text: str) -> str:
    """Return the end of what the engine says: before it, it repeats the pattern and points into it."""
    return text.strip().rpartition("\n")[2].strip().removeprefix("error: ").removeprefix("SchemaError: ")
