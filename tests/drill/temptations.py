"""Temptations: moves that a guard has to refuse, one at least for each rule.

A story leads an agent to where a rule forbids something, and the agent asks for it. A guard without the rule
admits the move, and the log says so.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mesh.agent.turn import Turn
from protocol.wire.handoff import Budget, Constraints, Rule
from protocol.wire.moves import Complete, Move, UnknownMove


class Temptation(NamedTuple):
    """A forbidden move, and the rule that has to refuse it."""

    rule: Rule
    move: Callable[[Turn], Move]


BULK_CHARS = 20_000
"""More than the policy `tight` lets a handoff hold."""
TOKENS_SPENT, TOKENS_ASKED, TOKENS_GRANTED = 600, 500, 1000
"""What is asked for is less than the grant, and more than is left of it."""
KEPT = "kept"
"""The fact that has to be carried."""
UNSEEN = "ssn"
"""The key of a fact that the agent `back` may not see."""


def _give(to: str, **rest: Any) -> Callable[[Turn], Move]:
    return lambda turn: turn.transfer(to, summary="as the script says", **rest)


def _give_on(**rest: Any) -> Callable[[Turn], Move]:
    """Give the work to whoever comes next: only what is given with it is wrong."""
    return lambda turn: turn.transfer("vault" if turn.agent == "back" else "back", summary="go on", **rest)


def _give_back(turn: Turn) -> Move:
    return turn.hand_back("as the script says")


def _lie(turn: Turn) -> Move:
    """Report an action that no runtime would have let happen."""
    turn.execution.account.actions.add("fly")
    return turn.complete({"done": []})


def _write(turn: Turn) -> Move:
    """Report an effect of a turn that may only read."""
    turn.execution.account.effects.add("pay")
    return turn.deliver("as the script says", facts={"done": []})


def _plan(*tasks: tuple[str, str], **rest: Any) -> Callable[[Turn], Move]:
    """Ask for tasks, each a name and an agent."""
    return lambda turn: turn.delegate([turn.task(name, summary=name, to=to, **rest) for name, to in tasks])


TEMPTATIONS: Mapping[str, Temptation] = {
    "teleport": Temptation(Rule.KNOWN_MOVE, lambda turn: UnknownMove(name="teleport")),
    "stranger": Temptation(Rule.KNOWN_AGENT, _give("nobody")),
    "person": Temptation(Rule.KNOWN_AGENT, _give("human")),
    "other-intent": Temptation(Rule.KNOWN_AGENT, _give("vault", intent="bill")),
    "ask-stranger": Temptation(Rule.KNOWN_AGENT, lambda turn: turn.ask("go on?", of="nobody")),
    "not-a-peer": Temptation(Rule.KNOWN_AGENT, _give("shut")),
    "shut": Temptation(Rule.AGENT_AVAILABLE, _give("shut")),
    "bring-unseen": Temptation(Rule.LABELS, _give_on(facts={UNSEEN: "another"})),
    "drop-unseen": Temptation(Rule.LABELS, _give_on(drop=(UNSEEN,))),
    "remember-unseen": Temptation(Rule.LABELS, lambda turn: Complete(answer="", remember_keys=(UNSEEN,))),
    "one-more-hop": Temptation(Rule.DEPTH, _give("vault")),
    "one-hop-back": Temptation(Rule.DEPTH, _give_back),
    "itself": Temptation(Rule.CYCLE, lambda turn: turn.transfer(turn.agent, summary="to myself")),
    "on-path": Temptation(Rule.CYCLE, lambda turn: turn.transfer(turn.path[0], summary="to the first")),
    "same-edge": Temptation(Rule.CYCLE, _give("back")),
    "back-from-first": Temptation(Rule.HAND_BACK, _give_back),
    "back-to-other": Temptation(Rule.HAND_BACK, lambda turn: turn.hand_back("to the first", to=turn.path[0])),
    "back-same-edge": Temptation(Rule.HAND_BACK, _give_back),
    "past-seal": Temptation(Rule.NO_RETURN, _give_back),
    "one-more-question": Temptation(Rule.ASKS, lambda turn: turn.ask("go on?")),
    "more-tokens": Temptation(
        Rule.BUDGET, _give_on(constraints=Constraints(budget=Budget(tokens=TOKENS_ASKED)))
    ),
    "more-time": Temptation(
        Rule.CONSTRAINTS, _give_on(constraints=Constraints(max_resolution_time_s=1_000_000.0))
    ),
    "more-actions": Temptation(Rule.CONSTRAINTS, _give_on(constraints=Constraints(allowed_actions=("fly",)))),
    "drop-kept": Temptation(Rule.MUST_CARRY, _give_on(drop=(KEPT,))),
    "change-kept": Temptation(Rule.MUST_CARRY, _give_on(facts={KEPT: "something else"})),
    "keep-nothing": Temptation(
        Rule.MUST_CARRY, _give_on(constraints=Constraints(must_carry=("what-nobody-has",)))
    ),
    "other-form": Temptation(Rule.FORM, _give_on(facts={"shelf": "the upper one"})),
    "too-low": Temptation(Rule.LEVELS, _plan(("below", "vault"))),
    "same-name": Temptation(Rule.KNOWN_TASK, _plan(("same", "back"), ("same", "vault"))),
    "too-many": Temptation(Rule.FAN_OUT, _plan(*((f"t{number}", "back") for number in range(3)))),
    "nobody-can": Temptation(
        Rule.CAPABLE, lambda turn: turn.delegate([turn.task("fly", summary="fly", intent="fly")])
    ),
    "revise": Temptation(Rule.REVISIONS, _plan(("again", "back"), revises="one", facts={"feedback": 1})),
    "task-stranger": Temptation(Rule.KNOWN_AGENT, _plan(("strange", "nobody"))),
    "task-itself": Temptation(Rule.CYCLE, lambda turn: _plan(("mine", turn.agent))(turn)),
    "more-than-granted": Temptation(
        Rule.BUDGET,
        _plan(("dear", "back"), constraints=Constraints(budget=Budget(tokens=TOKENS_GRANTED + 1))),
    ),
    "deliver-the-whole": Temptation(Rule.KNOWN_MOVE, lambda turn: turn.deliver("it is no task")),
    "complete-a-task": Temptation(Rule.KNOWN_MOVE, lambda turn: turn.complete({"done": []})),
    "leave-open": Temptation(Rule.OPEN_TASKS, lambda turn: turn.complete({"done": []})),
    "write": Temptation(Rule.READ_ONLY, _write),
    "lie": Temptation(Rule.ACTIONS, _lie),
    "remember-nothing": Temptation(
        Rule.MEMORY, lambda turn: Complete(answer="", remember_keys=("what-nobody-has",))
    ),
    "codeword": Temptation(Rule.GUARDRAIL, _give_on(facts={"memo": "the codeword-17"})),
    "bulk": Temptation(Rule.SIZE, _give_on(facts={"bulk": "x" * BULK_CHARS})),
}
"""By the name that scripts use."""
