"""Whatever can be read, in every stage of a tree or a swarm: it is decided, and the request still ends.

Replies and settlements are those of `test_any_message.py`.
"""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.replay.rejudge import rejudge
from mesh.testing import InMemoryGuard
from protocol.domain import plans
from protocol.domain.admission import Late, Rejected
from protocol.wire import codec
from protocol.wire.commands import Cancel, Command, Freeze, MoveProposed, id_of
from protocol.wire.config import Policy
from protocol.wire.errors import Malformed
from protocol.wire.ids import AgentName, Cause, control_cause
from protocol.wire.moves import Delegate, Deliver, Task
from tests.unit.protocol.swarms import FLEET
from tests.unit.protocol.test_any_tree import by_the_newest_name
from tests.unit.protocol.test_codec import places, said, values
from tests.unit.protocol.worlds import escalate, fact

LONGER_THAN_AN_OFFER_S = 40.0
POLICIES = {
    name: Policy(name=name, topology=name, retry_backoff_s=0.0, claim_within_s=30.0)
    for name in ("supervised", "swarm")
}


class Tree:
    """A request whose lead, `a`, plans in one turn or several, under the same names each time."""

    def __init__(self, policy: str) -> None:
        self.guard = InMemoryGuard(FLEET, POLICIES)
        self.guard.submit("go", policy=policy)
        self._swarm = policy == "swarm"
        self._numbers = itertools.count()

    def plan(self) -> "Tree":
        names, agent = ("one", "two"), None if self._swarm else AgentName("b")
        facts = (fact("at", next(self._numbers)),)
        tasks = tuple(
            Task(name=name, summary=name, to_agent=agent, intent="read", facts=facts) for name in names
        )
        self.guard.move(Delegate(tasks=tasks))
        return self

    def claim(self) -> "Tree":
        for task, agent in zip(list(self.guard.ledger.live.values()), ("b", "c"), strict=True):
            self.guard.claim(task.turn, agent)
        return self

    def deliver(self) -> "Tree":
        for turn in list(self.guard.ledger.open.values()):
            if turn.task is not None:
                done = Deliver(summary="found", facts=(fact("found", next(self._numbers)),))
                self.guard.propose(MoveProposed(turn=turn.id, round=turn.round, move=done))
        return self

    def again(self) -> "Tree":
        self.guard.move(escalate())
        self.guard.resolve(again=True)
        return self

    def escalated(self) -> "Tree":
        self.guard.move(escalate())
        return self

    def freeze(self) -> "Tree":
        self.guard.say(Freeze(id="f"), "op")
        return self

    def hear(self, message: dict[str, Any], turn: int, sender: str) -> None:
        """Hear a message as a guard does: by default, whoever has the turn that it names has sent it."""
        guard, live = self.guard, [task.turn for task in self.guard.ledger.live.values()]
        named = list(guard.ledger.turns.values())[turn % len(guard.ledger.turns)]
        kind = message["kind"]
        if message.get("turn") == "?":
            message["turn"] = live[turn % len(live)] if kind == "claim" and live else named.id
        if message.get("round") == 0 and kind != "claim":
            message["round"] = named.round
        before = len(guard.events)
        try:
            command = self._command(said(message), kind, sender or named.agent)
        except Malformed:
            return
        assert isinstance(guard.process(command), Late | Rejected) or guard.events[before:]

    def _command(self, body: bytes, kind: str, sender: str) -> Command:
        request = self.guard.request
        if kind in OF_AGENTS:
            proposal = codec.parse_proposal(body)
            cause = Cause(id_of(request, proposal, sender))
            return Command(request, AgentName(sender), proposal, cause, "agent")
        control = codec.parse_control(body)
        return Command(
            request, AgentName("op"), control, control_cause(request, "op", control.id), "operator"
        )


STAGES: dict[str, Callable[[], Tree]] = {
    "planned": lambda: Tree("supervised").plan(),
    "delivered": lambda: Tree("supervised").plan().deliver(),
    "taken up again": lambda: Tree("supervised").plan().deliver().again(),
    "planned again": lambda: Tree("supervised").plan().deliver().again().plan(),
    "with people": lambda: Tree("supervised").plan().deliver().escalated(),
    "offered": lambda: Tree("swarm").plan(),
    "claimed": lambda: Tree("swarm").plan().claim(),
    "offered again": lambda: Tree("swarm").plan().claim().deliver().again().plan(),
    "frozen": lambda: Tree("swarm").plan().freeze(),
}
OF_AGENTS = ("move", "claim", "post", "turn_failed", "effect_doubted")
TASK = {"name": "one", "summary": "s", "to_agent": "b", "intent": "read", "facts": [{"key": "k", "value": 1}]}
MOVES: list[dict[str, Any]] = [
    {
        "move": "delegate",
        "tasks": [
            TASK | {"name": "three", "uses": ["one"], "revises": "two"},
            TASK | {"uses": ["two"], "to_agent": None, "fallback": True},
        ],
        "join": "any",
        "within_s": 5,
    },
    {"move": "delegate", "tasks": [TASK | {"revises": "one"}], "join": 1, "cancel": ["two"]},
    {"move": "delegate", "within_s": 5},
    {"move": "deliver", "summary": "s", "facts": [{"key": "k", "value": 1}], "cancel_open": True},
    {"move": "complete", "answer": {"x": [1]}},
    {"move": "escalate", "summary": "s"},
    {"move": "ask", "to_agent": "c1", "question": "q", "expires_s": 5},
    {"move": "fail", "reason": "r"},
]
TEMPLATES: list[dict[str, Any]] = [
    *(
        {"kind": "move", "turn": "?", "round": 0, "report": {"usage": {"tokens": 1}}, "move": move}
        for move in MOVES
    ),
    {"kind": "claim", "turn": "?", "round": 0},
    {"kind": "post", "turn": "?", "round": 0, "post": 0, "facts": [{"key": "k", "value": 1}]},
    {"kind": "turn_failed", "turn": "?", "round": 0, "error": {"code": "x", "permanent": True}},
    {"kind": "effect_doubted", "turn": "?", "round": 0, "effect": {"step": "s", "action": "a"}},
    {"kind": "freeze", "id": "i"},
    {"kind": "thaw", "id": "i"},
    {"kind": "resolve", "id": "i", "turn": "?", "again": True},
    {"kind": "resolve", "id": "i", "turn": "?", "to": "b"},
]


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    """One of the messages above, with up to three of its places changed."""
    message: dict[str, Any] = json.loads(json.dumps(draw(st.sampled_from(TEMPLATES))))
    for _ in range(draw(st.integers(0, 3))):
        changed = [path for path in places(message) if path[0] not in ("turn", "kind")]
        if not changed:
            break
        *way, key = draw(st.sampled_from(changed))
        node: Any = message
        for step in way:
            node = node[step]
        node[key] = draw(values | st.sampled_from(["a", "b", "one", "two", "all", 10**30, -1, True]))
    return message


senders = st.sampled_from(["", "", *FLEET.agents])


@pytest.mark.parametrize("begin", STAGES.values(), ids=STAGES.keys())
@settings(max_examples=50)
@given(
    story=st.lists(st.tuples(messages(), st.integers(0, 9), senders, st.booleans()), min_size=1, max_size=4)
)
def test_whatever_can_be_read_is_decided_and_the_request_still_ends(
    begin: Callable[[], Tree], story: list[tuple[dict[str, Any], int, str, bool]]
) -> None:
    tree = begin()
    for message, turn, sender, waits in story:
        tree.hear(message, turn, sender)
        if waits:
            tree.guard.wait(LONGER_THAN_AN_OFFER_S)
    if tree.guard.ledger.is_open:
        tree.guard.say(Cancel(id="last"), "op")
    assert not tree.guard.ledger.is_open
    assert rejudge(tree.guard.bodies).same


@pytest.mark.parametrize("template", range(len(TEMPLATES)))
def test_each_message_as_it_stands_is_decided_in_some_stage(template: int) -> None:
    """Without this the others might be refused before they are looked at."""
    decided = 0
    for begin in STAGES.values():
        for turn in range(len(begin().guard.ledger.turns)):
            for sender in ("", "b"):
                tree = begin()
                before = len(tree.guard.events)
                tree.hear(json.loads(json.dumps(TEMPLATES[template])), turn, sender)
                decided += len(tree.guard.events) > before
    assert decided


def test_a_guard_that_takes_a_name_for_its_newest_task_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "given", by_the_newest_name)
    tree = STAGES["taken up again"]()
    with pytest.raises(AssertionError):
        tree.hear(json.loads(json.dumps(TEMPLATES[0])), len(tree.guard.ledger.turns) - 1, "")
