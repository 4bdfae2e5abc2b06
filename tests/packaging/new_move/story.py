"""A request with the made-up move. It runs in a copy of the tree that has the move; the first lie raises."""

from typing import Any

from msgspec.structs import replace

from mesh.agent import Fact
from mesh.model.moves import MoveTools
from mesh.model.port import ToolCall
from mesh.ops.explain import explain, sentences
from mesh.ops.words import story as words
from mesh.replay.rejudge import rejudge
from mesh.testing import InMemoryGuard, turn_in
from mesh.ui.drawing.scene import mermaid, scene
from protocol.domain.rules import RULES_FOR
from protocol.domain.turns import MAX_MOVE_BYTES
from protocol.views.spending import Spending
from protocol.views.timeline import timeline
from protocol.wire import codec, moves
from protocol.wire.commands import MoveProposed, Report, Usage
from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.handoff import Constraints
from protocol.wire.ids import AgentName, TurnId
from protocol.wire.moves import MOVES, TOPOLOGIES, Transfer

GoHome: Any = vars(moves)["GoHome"]

A, B, C = AgentName("a"), AgentName("b"), AgentName("c")
FLEET = Fleet(
    name="made-up",
    revision=1,
    agents={name: AgentEntry(name=name, clearance=("pii",)) for name in (A, B, C)},
    clients=(AgentName("app"),),
    entry=A,
    labels={"iban": ("pii",)},
)
LARGE = Fact(key="large", value="x" * (2 * MAX_MOVE_BYTES))


def transfer(to: AgentName, **rest: Any) -> Transfer:
    return Transfer(to_agent=to, summary="go on", **rest)


def main() -> None:
    assert "go_home" in MOVES
    assert [name for name, known in TOPOLOGIES.items() if "go_home" in known] == ["handoff"]

    asked = GoHome(summary="done here", facts=(Fact(key="iban", value="DE00"),), drop=("draft",))
    sent = MoveProposed(turn=TurnId("t"), round=0, move=asked)
    assert codec.parse_proposal(codec.encode(sent)) == sent

    guard = InMemoryGuard(FLEET)
    guard.submit("hello", facts={"draft": 1})
    guard.move(transfer(B, constraints=Constraints(must_carry=("draft",))))
    refused: Any = guard.move(replace(asked, facts=(LARGE,)))
    assert refused.refusal.rule == "must_carry", refused  # by the rules of its row
    told = guard.holder.past[-1].move
    assert told == GoHome(summary="done here", drop=("draft",)), told  # later rounds get its short form

    turn: Any = turn_in(guard)
    tools = MoveTools(turn)
    assert "go_home" in tools
    call = ToolCall(id="1", name="go_home", arguments={"reason": "done here"})
    assert tools.read(call) == turn.go_home("done here") == GoHome(summary="done here")

    spent = Report(usage=Usage(tokens=7))
    guard.move(replace(asked, drop=()), spent)
    event: Any = guard.events[-1]
    assert type(event).__name__ == "WorkSentHome", event
    handed = {fact.key: fact.labels for fact in event.work.handoff.facts}
    assert handed["iban"] == ("pii",), handed  # as the fleet file labels its key
    assert guard.holder.agent == A
    assert guard.holder.segment.names == (A,)
    assert rejudge(guard.bodies).differences == ()

    story = timeline(guard.events)
    entry = story.moves[-1]
    assert (entry.move, entry.from_, entry.to, entry.verdict) == ("go_home", B, A, "admitted")
    assert [fact.key for fact in entry.facts] == ["iban"]
    assert "go_home" in "\n".join(line.plain for line in words(story))
    assert "go_home" in mermaid(scene(story))
    assert [lane for lane, _ in scene(story, folded=False).rows[-1].held] == [A]

    why = explain(guard.events, event.n)
    assert why.rules == tuple(map(str, RULES_FOR[GoHome]))
    assert any("Admitted" in sentence for sentence in sentences(why))

    spending = Spending()
    for each in guard.events:
        spending.take(each)
    assert [line.usage.tokens for line in spending.lines] == [7]


if __name__ == "__main__":
    main()
