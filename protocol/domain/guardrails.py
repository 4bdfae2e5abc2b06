"""The rule `guardrail`: what a policy's guardrails have against a move or a submit.

A guardrail looks at what the mover knows: its words, the facts that it was shown and those that it adds. What
is withheld from the mover goes along unjudged and is taken to be as required. Otherwise a refusal would tell
what a hidden fact holds, and an agent could guess at it.

A refusal names the guardrail and the place. It quotes no value, and no pattern that is forbidden.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from protocol.domain.carried import NOTHING, merge
from protocol.domain.case import Case
from protocol.domain.tasks import result_of
from protocol.wire.config import Policy
from protocol.wire.guardrails import FACTS, OF_KEY, OF_LABEL, SUBMIT, Guardrail, compiled, own_mistakes
from protocol.wire.handoff import Fact, Handoff, Refusal, Rule
from protocol.wire.moves import Complete, Delegate, Deliver, Task

SHORTEST_VALUE = 4
"""Characters of the shortest labelled value that is searched for: shorter ones are in every text."""
MOST_SEARCHED = 1 << 27
"""Labelled values times the length of a text, summed up over a verdict: more could take a guard seconds."""
_MOST_MISTAKES = 5


class Looked(NamedTuple):
    """What a move gives to one reader, as its mover knows it."""

    move: str
    to: str
    """Who gets it; empty if nobody in particular, such as for a task that is offered."""
    words: dict[str, Any]
    """What is written for the reader, by place."""
    facts: tuple[Fact, ...]
    carried: tuple[Fact, ...] | None
    """Everything that goes along, also out of the mover's sight. None for an answer or a question: it hands
    nothing over, so no fact can be required of it."""
    task: str = ""


class Breach(NamedTuple):
    """What one guardrail has against one place."""

    guardrail: Guardrail
    task: str
    place: str
    what: str


# --- the two that are judged --------------------------------------------------------------------------


def guardrail(case: Case) -> Refusal | None:
    """Refuse a move that breaks guardrails of its request's policy."""
    if not case.policy.guardrails:
        return None
    looked = list(_tasks(case) if type(case.move) is Delegate else _whole(case))
    seen = _Values(_shown(case), (fact for each in looked for fact in each.facts))
    return _refusal(case.policy, looked, seen)


def guardrail_of_submit(policy: Policy, handoff: Handoff) -> Refusal | None:
    """Refuse a submit that breaks guardrails of the policy that it names.

    Args:
        handoff: what the submit asks for, without what its conversation remembers: the client did not say it.
    """
    if not policy.guardrails:
        return None
    looked = Looked(SUBMIT, handoff.to_agent, {}, handoff.facts, handoff.facts)
    return _refusal(policy, [looked], _Values(handoff.facts, ()))


# --- what is looked at --------------------------------------------------------------------------------


def _whole(case: Case) -> Iterator[Looked]:
    """Yield a move that is no plan."""
    move, turn = case.move, case.turn
    words = {move.says: getattr(move, move.says)} if move.says else {}
    carried: tuple[Fact, ...] | None
    if case.known is not None:
        assert case.handoff is not None
        facts, carried = case.known.facts, case.handoff.facts
    else:
        added = (fact for payload in move.payloads() for fact in payload.facts)
        kept = move.remember_keys if type(move) is Complete else ()
        again = (fact for fact in turn.work.handoff.facts if fact.key in kept)
        labels = case.ledger.history.labels
        facts = merge(merge(NOTHING, again), added, labels=labels).fact_tuple
        carried = facts if type(move) is Deliver else None
    if case.target is not None:
        to = case.target
    else:
        lead = None if turn.task is None else case.ledger.turns[turn.task.lead].agent
        to = str(case.ledger.client if lead is None else lead)
    yield Looked(move.name, to, words, facts, carried)


def _tasks(case: Case) -> Iterator[Looked]:
    for planned in case.plan:
        task: Task = planned.task
        held = planned.work
        yield Looked(
            case.move.name,
            planned.planned.agent,
            {"summary": task.summary},
            held.known.facts,
            held.handoff.facts,
            task.name,
        )


def _shown(case: Case) -> Iterator[Fact]:
    """Yield the facts that the mover was shown: what was handed over, results, and what is on a board."""
    turn, sender = case.turn, case.world.grounds.sender
    yield from turn.work.handoff.facts
    for result in turn.work.results:
        yield from result.facts
    yield from (posted.fact for posted in turn.work.board)
    clearance = () if sender is None else sender.clearance
    for task in turn.known_tasks.values():
        if not task.is_open:
            yield from result_of(task, clearance).facts


class _Values:
    """The labelled values that a mover knows.

    Args:
        shown: what it was shown. Facts beyond its clearance are not among it.
        added: what it adds.
    """

    def __init__(self, shown: Iterable[Fact], added: Iterable[Fact]) -> None:
        self._facts = (*shown, *added)
        self._known = dict[tuple[str, ...], set[str]]()
        self._left = MOST_SEARCHED

    def against(self, labels: tuple[str, ...], text: str) -> str:
        """Return what is wrong with a text that may have no value with these labels; empty if nothing is."""
        forbidden = self._with_labels(labels)
        self._left -= len(forbidden) * len(text)
        if forbidden and self._left < 0:
            return f"is too long to be searched for {len(forbidden)} labelled values"
        if any(each in text for each in forbidden):
            return f"has the value of a fact with a label that is forbidden: {', '.join(labels)}"
        return ""

    def _with_labels(self, labels: tuple[str, ...]) -> set[str]:
        """Return the texts that may stand nowhere, as they are and as JSON writes them within a text."""
        if labels not in self._known:
            self._known[labels] = self._read(labels)
        return self._known[labels]

    def _read(self, labels: Collection[str]) -> set[str]:
        found, wanted = set[str](), frozenset(labels)
        for fact in self._facts:
            if not wanted.isdisjoint(fact.labels):
                found.update(_leaves(fact.value))
        return found | {msgspec.json.encode(text).decode()[1:-1] for text in found}


def _leaves(value: Any) -> Iterator[str]:
    """Yield the texts and numbers in a value that are long enough to be searched for."""
    level = [value]
    while level:
        node = level.pop()
        if isinstance(node, dict):
            level.extend(node.values())
        elif isinstance(node, list | tuple):
            level.extend(node)
        elif isinstance(node, str | int | float) and not isinstance(node, bool):
            text = _text(node)
            if len(text) >= SHORTEST_VALUE:
                yield text


# --- judging ------------------------------------------------------------------------------------------


def _refusal(policy: Policy, looked: list[Looked], seen: _Values) -> Refusal | None:
    found = [
        wrong
        for guardrail in policy.guardrails
        for each in looked
        if _is_for(guardrail, each)
        for wrong in _judged(guardrail, each, seen)
    ]
    if not found:
        return None
    first, shown = found[0], found[:_MOST_MISTAKES]
    more = f"; and {len(found) - len(shown)} more" if len(found) > len(shown) else ""
    mistakes = [f"{each.guardrail.name}: {_place(each)} {each.what}" for each in shown]
    numbers: dict[str, Any] = {} if not first.task else {"task": first.task}
    numbers |= {"guardrail": first.guardrail.name, "at": first.place, "mistakes": mistakes}
    hints = dict.fromkeys(each.guardrail.hint or _hint(each) for each in shown)
    plural = "s" if len(found) > 1 else ""
    return Refusal(
        rule=Rule.GUARDRAIL,
        detail=f"against the guardrail{plural} of policy {policy.name!r}: {'; '.join(mistakes)}{more}",
        numbers=numbers,
        hint="; ".join(hints),
    )


def _place(wrong: Breach) -> str:
    return f"task {wrong.task!r}: {wrong.place}" if wrong.task else wrong.place


def _hint(wrong: Breach) -> str:
    """Return what to do if the admin said nothing."""
    guardrail, where = wrong.guardrail, wrong.place
    if wrong.what == _MISSING:
        return f"bring {where}"
    if guardrail.forbid_labels:
        return f"leave out of {where} what is labelled {', '.join(guardrail.forbid_labels)}"
    return f"change {where}"


def _is_for(guardrail: Guardrail, looked: Looked) -> bool:
    when, moves = guardrail.when, guardrail.when.moves
    is_meant = looked.move != SUBMIT if moves is None else looked.move in moves
    return is_meant and (when.to is None or not looked.to or looked.to in when.to)  # an offer is for anyone


_MISSING = "is missing"


def _judged(guardrail: Guardrail, looked: Looked, seen: _Values) -> Iterator[Breach]:
    if own_mistakes(guardrail):  # of a newer guard's log: what cannot be judged is not let pass
        yield Breach(guardrail, looked.task, guardrail.looks_at[0] if guardrail.looks_at else "", _UNJUDGED)
        return
    for place in guardrail.looks_at:
        if guardrail.required and _lacks(place, looked):
            yield Breach(guardrail, looked.task, place, _MISSING)
        for name, value, labels in _there(place, looked):
            for what in _against(guardrail, value, labels, seen):
                yield Breach(guardrail, looked.task, name, what)


_UNJUDGED = "cannot be judged by this guard"


def _there(place: str, looked: Looked) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Yield what is at a place: its own name, its value and its labels."""
    if place in looked.words:
        yield place, looked.words[place], ()
    for fact in _at(place, looked.facts):
        yield f"{OF_KEY}{fact.key}", fact.value, fact.labels


def _at(place: str, facts: Iterable[Fact]) -> list[Fact]:
    """Return the facts at a place. Keys are compared without case, as the fleet file's labels are."""
    if place == FACTS:
        return list(facts)
    if place.startswith(OF_LABEL):
        return [fact for fact in facts if place.removeprefix(OF_LABEL) in fact.labels]
    key = place.removeprefix(OF_KEY).casefold() if place.startswith(OF_KEY) else None
    return [fact for fact in facts if fact.key.casefold() == key]


def _lacks(place: str, looked: Looked) -> bool:
    if place in looked.words:
        value = looked.words[place]
        return value is None or (isinstance(value, str) and not value.strip())
    is_of_facts = place == FACTS or place.startswith((OF_KEY, OF_LABEL))
    return is_of_facts and looked.carried is not None and not _at(place, looked.carried)


def _against(guardrail: Guardrail, value: Any, labels: tuple[str, ...], seen: _Values) -> Iterator[str]:
    """Yield what a guardrail has against one value, without quoting it."""
    text = _text(value)
    if guardrail.max_bytes is not None:
        size = len(text.encode())
        if size > guardrail.max_bytes:
            yield f"has {size} bytes of at most {guardrail.max_bytes}"
    if guardrail.pattern is not None and not compiled(guardrail.pattern).found_in(text):
        yield f"does not match the pattern {guardrail.pattern}"
    if guardrail.forbid_pattern is not None and compiled(guardrail.forbid_pattern).found_in(text):
        yield "matches a pattern that is forbidden"
    has = sorted(set(labels).intersection(guardrail.forbid_labels))
    if has:
        yield f"has the label {', '.join(has)}, which is forbidden"
    elif guardrail.forbid_labels and (wrong := seen.against(guardrail.forbid_labels, text)):
        yield wrong


def _text(value: Any) -> str:
    """Return what a value is matched as: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
