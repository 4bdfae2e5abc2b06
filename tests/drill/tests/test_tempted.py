"""A guard without a rule is found: the stories tempt every rule, and the oracle judges every verdict."""

import contextlib
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mesh.local.in_memory_guard import InMemoryGuard, NotDecided
from mesh.testing.harness import FleetHarness
from protocol.domain import (
    admission,
    budget,
    carried,
    decider,
    envelope,
    rules,
    submit,
    swarm,
    tasks,
    verdict,
)
from protocol.domain.carried import NOTHING
from protocol.domain.case import Case
from protocol.domain.turns import Segment
from protocol.wire import codec, events
from protocol.wire.commands import Submit
from protocol.wire.config import AgentEntry, BreakerEntry
from protocol.wire.handoff import Fact, Refusal, Rule
from protocol.wire.moves import UnknownMove
from tests.drill import agents, ledger
from tests.drill.agents import TOOLS
from tests.drill.check import BY_NAME
from tests.drill.evidence import Evidence, Submitted
from tests.drill.fleet import SHUT, drill_fleet
from tests.drill.reading import Reading
from tests.drill.stories import STORIES, Op, Story, story
from tests.drill.temptations import TEMPTATIONS

FILE = drill_fleet()
AGENTS = {each.name: each for each in (agents.front, agents.back, agents.vault)}


async def play(
    story: Story, number: int, deeds: Path, harness: type[FleetHarness] = FleetHarness
) -> Evidence:
    """Play one story to its end, or to where a person is asked; return the evidence.

    Args:
        number: tells the requests of one test apart.
        deeds: the ledger, which `ledger.VARIABLE` names.
        harness: what runs the agents.
    """
    play = InMemoryGuard(FILE.fleet, FILE.rules, breakers={SHUT: BreakerEntry(state="open")}, number=number)
    submit = Submit(
        text=story.text,
        to=story.to,  # type: ignore[arg-type]
        facts=story.all_facts,
        constraints=story.constraints,
        policy=story.policy,
        conversation=story.conversation,
    )
    said = {name: getattr(submit, name) for name in submit.__struct_fields__}
    with contextlib.suppress(LookupError, NotDecided):  # a broken guard gave it to nobody, or in circles
        await harness(play, AGENTS).go(replies=[True] * 20, **said)
    return Evidence(
        submitted=(Submitted(play.request, play.now, True, story.name, story.expected, submit),),
        bodies={play.request: play.bodies},
        steps={},
        deeds=(),
        faults=(),
        asked=[each for each in ledger.moves(deeds) if each.request == play.request],
        fleet=FILE.fleet,
    )


TEMPTING = [name for name in STORIES if name.startswith(("tempted", "of-", "to-", "beyond-"))]


@pytest.fixture(autouse=True)
def deeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "ledger.jsonl"
    monkeypatch.setenv(ledger.VARIABLE, str(path))
    return path


async def played(names: list[str], deeds: Path) -> AsyncIterator[Evidence]:
    for number, name in enumerate(names):
        drawn = story(name, random.Random(number))
        yield await play(replace(drawn, script=tuple(map(quick, drawn.script))), number, deeds)


def quick(op: Op) -> Op:
    if op[0] in TOOLS or op[0] == "model":
        return [*op[:2], 0.0]
    if op[0] == "delegate":
        tasks = [{**task, "script": [quick(each) for each in task["script"]]} for task in op[1]]
        return [op[0], tasks, *op[2:]]
    return ["slow", 0.0] if op[0] == "slow" else op


def complaints(evidence: Evidence) -> list[str]:
    return [breach.detail for breach in BY_NAME["verdicts_right"].find(Reading(evidence))]


def refused(evidence: Evidence) -> list[Rule]:
    happened = [codec.decode_event(body) for bodies in evidence.bodies.values() for body in bodies]
    refusals = (event for event in happened if isinstance(event, events.MoveRefused | events.RequestRefused))
    return [event.refusal.rule for event in refusals]


async def test_the_oracle_agrees_with_every_verdict_of_every_story(deeds: Path) -> None:
    async for evidence in played(list(STORIES), deeds):
        assert complaints(evidence) == []


def tempted_by(script: Iterable[Op]) -> Iterator[str]:
    """Yield the temptations of a script, and of the scripts of its tasks."""
    for op in script:
        if op[0] == "tempt":
            yield op[1]
        for task in op[1] if op[0] == "delegate" else ():
            yield from tempted_by(task["script"])


async def test_every_rule_is_tempted_and_every_temptation_is_refused_by_its_own(deeds: Path) -> None:
    asked = {name for each in TEMPTING for name in tempted_by(story(each, random.Random(0)).script)}
    assert asked == set(TEMPTATIONS)
    found = [rule async for evidence in played(TEMPTING, deeds) for rule in refused(evidence)]
    assert set(found) == set(Rule) - {Rule.CLAIMED}  # of claims, which are no moves: `tests/contract`
    for rule in Rule:
        assert found.count(rule) >= sum(each.rule == rule for each in TEMPTATIONS.values())


# --- planted bugs -----------------------------------------------------------------------------------

Breaking = Callable[[pytest.MonkeyPatch], None]


def never(*_: Any) -> None:
    return None


def without(rule: Rule) -> Breaking:
    return lambda patch: patch.setitem(rules.RULES, rule, never)


def replaced(owner: Any, name: str, broken: Any) -> Breaking:
    return lambda patch: patch.setattr(owner, name, broken)


def only_of_the_first_holder(case: Case) -> Refusal | None:
    return rules.hand_back(case) if case.segment.resumed() is None else None


def wrong_hop(case: Case) -> Refusal | None:
    return None if case.segment.depth == case.policy.max_depth else rules.depth(case)


def only_if_dropped(old: Fact | None, new: Fact | None) -> bool:
    return old is not None and new is None


SOUND = rules.judge


def of_another_rule(case: Case) -> Refusal | None:
    found = SOUND(case)
    return found and msgspec.structs.replace(found, rule=Rule.SIZE)


BROKEN: Mapping[str, tuple[Breaking, Rule]] = {
    **{
        f"no {rule}": (without(rule), rule)
        for rule in rules.RULES
        if rule not in (Rule.KNOWN_MOVE, Rule.HAND_BACK, Rule.CLAIMED)
    },
    "a hand-back to anybody": (
        lambda patch: patch.setitem(rules.RULES, Rule.HAND_BACK, only_of_the_first_holder),
        Rule.HAND_BACK,
    ),
    "a repeated edge is no cycle": (replaced(rules, "_repeated_edge", never), Rule.CYCLE),
    "whatever is brought is new": (replaced(rules, "_adds_new_fact", lambda _: True), Rule.CYCLE),
    "no seal": (replaced(Segment, "seal", 0), Rule.NO_RETURN),
    "one hop too many": (
        lambda patch: patch.setitem(rules.RULES, Rule.DEPTH, wrong_hop),
        Rule.DEPTH,
    ),
    "every intent is taken": (replaced(AgentEntry, "takes", lambda *_: True), Rule.KNOWN_AGENT),
    "a changed fact is the same": (replaced(carried, "_is_lost", only_if_dropped), Rule.MUST_CARRY),
    "every submit is taken": (replaced(submit, "_unavailable", never), Rule.AGENT_AVAILABLE),
    "every submit's terms hold": (replaced(submit, "_beyond", never), Rule.CONSTRAINTS),
    "another rule is named": (replaced(rules, "judge", of_another_rule), Rule.SIZE),
}
"""Guards that are broken, and the rule that a complaint has to name."""


@pytest.mark.parametrize("how", BROKEN)
async def test_a_guard_without_a_rule_is_found(
    how: str, deeds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaking, rule = BROKEN[how]
    breaking(monkeypatch)
    found = [detail async for evidence in played(TEMPTING, deeds) for detail in complaints(evidence)]
    assert any(str(rule) in detail for detail in found), found


def test_a_guard_that_admits_what_no_topology_has_breaks_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    without(Rule.KNOWN_MOVE)(monkeypatch)
    guard = InMemoryGuard(FILE.fleet, FILE.rules)
    guard.submit("go")
    with pytest.raises(KeyError, match="UnknownMove"):
        guard.move(UnknownMove(name="teleport"))


def unsealed(verdict: Any, load: Any, **rest: Any) -> Any:
    return HANDOFF_OF(verdict, load, **{**rest, "no_return": False})


HANDOFF_OF = verdict._Verdict._handoff_of
MANGLED: Mapping[str, tuple[Breaking, str, str]] = {
    "a seal is forgotten": (
        replaced(verdict._Verdict, "_handoff_of", unsealed),
        "tempted-past-the-seal",
        "hands over another no_return",
    ),
    "what is hidden is shown": (
        replaced(envelope, "divide", lambda whole, clearance: carried.divide(whole, None)),
        "withheld",
        "hands over another facts",
    ),
    "what the fleet file labels is shown": (
        replaced(decider, "labelled", lambda command, labels: command),
        "labelled",
        "hands over another facts",
    ),
    "a fact is lost": (
        replaced(verdict, "merge", lambda *_, **__: NOTHING),
        "chain",
        "hands over another facts",
    ),
    "all of the budget is granted": (
        replaced(budget, "grant", lambda asked, rest: rest),
        "tempted-beyond-its-terms",
        "hands over another constraints",
    ),
    "a failure is the last": (
        replaced(verdict, "retry_at", never),
        "retried",
        "failure 1 of a turn is not to be tried again",
    ),
}
"""Guards that make something else of what they admit: the story that shows it, and the complaint."""


@pytest.mark.parametrize("how", MANGLED)
async def test_a_guard_that_makes_something_else_of_a_move_is_found(
    how: str, deeds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaking, name, complaint = MANGLED[how]
    breaking(monkeypatch)
    found = [detail async for evidence in played([name], deeds) for detail in complaints(evidence)]
    assert any(complaint in detail for detail in found), found


# --- claims -----------------------------------------------------------------------------------------


class Greedy(FleetHarness):
    """Agents that claim all: what they do not list, what is taken, two at a time, and nothing."""

    async def _claims(self) -> bool:
        ledger = self.guard.ledger
        offers = [task.turn for task in ledger.offers.values() if task.state == "offered"]
        for offer, name in itertools.product((*offers, "nothing") if offers else (), AGENTS):
            with contextlib.suppress(NotDecided):
                self.guard.claim(offer, name)
        return await super()._claims()


async def greedy(deeds: Path) -> Evidence:
    return await play(story("swarm-reads", random.Random(0)), 0, deeds, Greedy)


async def test_claims_that_are_not_to_be_had_are_refused_and_judged(deeds: Path) -> None:
    evidence = await greedy(deeds)
    assert complaints(evidence) == []
    counted = Counter(refused(evidence))
    assert counted == {Rule.CAPABLE: 2}  # no event: what is taken, and claims of who has the other task
    [bodies] = evidence.bodies.values()
    opened = [event for event in map(codec.decode_event, bodies) if isinstance(event, events.TaskOpened)]
    assert sorted(event.name for event in opened) == ["one", "two"]


@pytest.mark.parametrize(
    ("where", "name", "broken", "complaint"),
    [
        (swarm, "_capable", never, "capable is right"),
        (tasks.TaskState, "may_be_claimed", lambda task, offer: task.is_open, "ended is right"),
        (admission, "busy_with", never, "busy is right"),
    ],
    ids=["anybody-claims", "taken-twice", "two-at-a-time"],
)
async def test_a_guard_that_admits_any_claim_is_found(
    where: Any, name: str, broken: Any, complaint: str, deeds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, broken)
    found = complaints(await greedy(deeds))
    assert any(complaint in detail for detail in found), found
