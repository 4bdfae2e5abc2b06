"""Scenarios of trees: a lead delegates, workers deliver, fail, fall back, and are called off."""

from protocol.domain.turns import TurnState
from protocol.wire.commands import Cancel, MoveProposed, Report, Usage
from protocol.wire.handoff import Artifact, Budget, Constraints, Fact
from protocol.wire.ids import AgentName
from protocol.wire.moves import Complete, Delegate, Deliver, Fail, Move, Task
from tests.contract.script import Script


def _worker(script: Script, name: str) -> TurnState:
    ledger = script.guard.ledger
    return next(turn for turn in ledger.open.values() if turn.task is not None and turn.task.name == name)


def _say(script: Script, name: str, move: Move, *, tokens: int = 0, effects: tuple[str, ...] = ()) -> None:
    """The turn that does a task asks for a move."""
    turn = _worker(script, name)
    report = Report(usage=Usage(tokens=tokens), actions=effects, effects=effects)
    script.say(turn.agent, MoveProposed(turn=turn.id, round=turn.round, move=move, report=report))


def supervised(script: Script) -> None:
    """Three levels: one result is not all its reader's, one task is called off, one gives up."""
    script.submit(policy="tree", facts=(Fact(key="ssn", value="123"), Fact(key="plan", value="gold")))
    script.move(
        Delegate(
            tasks=(
                Task(
                    name="search",
                    summary="find what was said",
                    to_agent=AgentName("b"),
                    facts=(Fact(key="focus", value="dates"),),
                    carry=("text", "ssn"),
                    constraints=Constraints(budget=Budget(tokens=400), must_carry=("focus",)),
                ),
                Task(name="bill", summary="what is owed", intent="bill"),
            ),
            join="any",
            within_s=600.0,
        ),
        tokens=100,
    )
    check = Task(
        name="check",
        summary="is it true",
        to_agent=AgentName("c"),
        constraints=Constraints(read_only=True, max_resolution_time_s=300.0),
    )
    _say(script, "search", Delegate(tasks=(check,)), tokens=10)
    _say(script, "check", Deliver(summary="changed", facts=()), effects=("pay",))
    _say(
        script,
        "check",
        Deliver(
            summary="it is true",
            facts=(Fact(key="ssn", value="456"), Fact(key="true", value=True)),
            artifacts=(Artifact(name="proof", uri="s3://b/proof"),),
        ),
        tokens=20,
    )
    _say(
        script,
        "search",
        Deliver(summary="it was said", facts=(Fact(key="said", value=["a", "b"]),)),
        tokens=30,
    )
    again = Task(
        name="again",
        summary="with the year, please",
        to_agent=AgentName("b"),
        facts=(Fact(key="feedback", value="the year is missing"),),
        uses=("search",),
        revises="search",
    )
    script.move(Delegate(tasks=(again,), cancel=("bill",)), tokens=150)
    _say(script, "again", Fail(reason="nobody says the year"), tokens=7)
    script.move(Complete(answer="a or b, of an unknown year"), tokens=160)


def fallen_back(script: Script) -> None:
    """A task breaks twice: its second agent breaks too; the root gives up on it and answers."""
    script.submit(policy="tree")
    script.move(Delegate(tasks=(Task(name="look", summary="look", intent="bill", fallback=True),)))
    for _ in range(2):
        turn = _worker(script, "look")
        _say(script, "look", Fail(reason=f"{turn.agent} cannot"), tokens=1)
    script.move(Complete(answer="nobody can"))


def tree_cancelled(script: Script) -> None:
    """The request ends with three levels open; a result comes late."""
    script.submit(policy="tree")
    script.move(Delegate(tasks=(Task(name="two", summary="two", to_agent=AgentName("b")),)))
    three = Task(name="three", summary="three", to_agent=AgentName("c"))
    _say(script, "two", Delegate(tasks=(three,)))
    late = _worker(script, "three")
    script.control(Cancel, reason="enough")
    script.say("c", MoveProposed(turn=late.id, round=0, move=Deliver(summary="late")))
