"""An agent's code over one recorded turn: what it calls, and what it comes to, is as it was recorded.

`mesh export-test` writes the files that use it.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from mesh.agent._effects import require_approval
from mesh.agent._execution import Execution
from mesh.agent._journal import Produce
from mesh.agent._steps import Recorded, given, raised_again
from mesh.agent.definition import Agent
from mesh.agent.tools import Tool
from mesh.local.in_memory import MemorySteps, turn_of
from mesh.model.choice import replaced_by
from mesh.model.port import Hear, Model, Prompt, Reply
from protocol.wire.commands import MoveProposed, Proposal, ReportFailure
from protocol.wire.config import Fleet
from protocol.wire.event_parts import Assignment
from protocol.wire.records import RAISED, Reads

T = TypeVar("T")
_SETTLING = 20
"""Turns of the event loop in which calls that began side by side come to their answers."""


def assert_as_recorded(
    agent: Agent, request: str, fleet: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]
) -> None:
    """Run an agent's code over the rounds of one turn. No tool runs, and no model is asked.

    Args:
        fleet: the fleet as it was then, as JSON has it.
        rounds: each with its `work`, the `calls` that tools and models answered, in order, and what it
            `comes_to`: a move, or `{"failed": code}`.

    Raises AssertionError at the first call or move that is another one, and what the code raises.
    """
    asyncio.run(_run(agent, request, msgspec.convert(dict(fleet), Fleet), rounds))


async def _run(agent: Agent, request: str, fleet: Fleet, rounds: Sequence[Mapping[str, Any]]) -> None:
    steps, asked = MemorySteps(), dict[int, str]()
    for each in rounds:
        work = msgspec.convert(_with_digests(each["work"], asked), Assignment)
        answers = Answers(each["calls"])
        proposal = await _came_to(agent, request, work, fleet, steps, answers, each["comes_to"])
        answers.done()
        was, now = (_counted(fleet, work, ending) for ending in (each["comes_to"], _ending(proposal)))
        assert now == was, f"round {work.round} comes to {now}, and came to {was}"
        if isinstance(proposal, MoveProposed) and (digest := getattr(proposal.move, "digest", None)):
            asked[work.round] = digest


def _with_digests(work: Mapping[str, Any], asked: Mapping[int, str]) -> dict[str, Any]:
    """Return a round's work in which an approval is of the very call that asked for it here."""
    past = [
        {**each, "asked": asked.get(each["round"], each["asked"])} if each.get("asked") else each
        for each in work.get("past", ())
    ]
    return {**work, "past": past}


async def _came_to(
    agent: Agent,
    request: str,
    work: Assignment,
    fleet: Fleet,
    steps: MemorySteps,
    answers: "Answers",
    wanted: Mapping[str, Any],
) -> Proposal:
    """Return what a round's code proposes. Raises what it raises, unless it failed then, too."""

    def made(*given: Any, **known: Any) -> Execution:
        return AnsweredExecution(*given, answers=answers, **known)

    turn = turn_of(request, work, fleet, steps, version=agent.version, execution=made)
    execution = turn.execution
    with replaced_by(lambda *_: _StandIn()):
        try:
            move = await agent(turn)
            await execution.journal.finish()
            return execution.moved(move, agent.handler)
        except Exception as raised:
            answers.check()
            error = execution.journal.broken or raised
            proposal = execution.stopped(error)
            is_wanted = "failed" in wanted or not isinstance(proposal, ReportFailure)
            if is_wanted:
                return proposal
            raise error from None
        finally:
            execution.close()


def _ending(proposal: Proposal) -> dict[str, Any]:
    """Return what a proposal asks for, as JSON has it."""
    if isinstance(proposal, MoveProposed):
        said: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(proposal.move))
        return said
    if isinstance(proposal, ReportFailure):
        return {"failed": proposal.error.code}
    return {"in doubt": True}


def _counted(fleet: Fleet, work: Assignment, ending: Mapping[str, Any]) -> dict[str, Any]:
    """Return an ending as a guard counts it: facts by key with all their labels, without those given so.

    An approval's digest is left out: it is of the call's arguments, which stand-ins may have changed.
    """
    given = {fact.key: _labelled(fleet, msgspec.to_builtins(fact), ()) for fact in work.handoff.facts}
    said = {name: value for name, value in ending.items() if name not in ("digest", "facts")}
    facts = {
        fact["key"]: _labelled(fleet, fact, given.get(fact["key"], {}).get("labels", ()))
        for fact in ending.get("facts", ())
    }
    said["facts"] = {key: fact for key, fact in facts.items() if not _same(fact, given.get(key))}
    said["artifacts"] = {artifact["name"]: artifact for artifact in ending.get("artifacts", ())}
    said["drop"] = sorted(key for key in ending.get("drop", ()) if key in given)
    return {name: value for name, value in said.items() if value not in ([], {}, None)}


def _labelled(fleet: Fleet, fact: Mapping[str, Any], labels: Iterable[str]) -> dict[str, Any]:
    """Return a fact with the labels that its key has in the fleet file, and had before."""
    found = {*fact.get("labels", ()), *fleet.labels.get(fact["key"], ()), *labels}
    return {"value": fact.get("value"), "labels": sorted(found)}


class Answers:
    """What tools and models answered in a round, in order."""

    def __init__(self, calls: Sequence[Mapping[str, Any]]) -> None:
        self._left = [dict(call) for call in calls if not {"now", "random"} & set(call)]
        self._notes = [dict(call) for call in calls if {"now", "random"} & set(call)]
        self._mistake = ""

    async def next(self, kind: str, name: str, arguments: Any = None) -> dict[str, Any]:
        """Return the answer to the next call. Raises AssertionError if it is none that was recorded next."""
        for _ in range(_SETTLING):  # another one that began before it may come a moment later
            if not self._left or self._is(self._left[0], kind, name, arguments):
                break
            await asyncio.sleep(0)
        if not self._left:
            raise self._wrong(f"{kind} {name} is called, and nothing more was: {arguments}")
        first = self._left[0]
        if not self._is(first, kind, name, arguments):
            raise self._wrong(f"{_called(kind, name, arguments)} instead of {_recorded(first)}")
        return self._left.pop(0)

    @staticmethod
    def _is(call: Mapping[str, Any], kind: str, name: str, arguments: Any) -> bool:
        if kind == "model":
            return "model" in call
        if call.get(kind) != name:
            return False
        return "arguments" not in call or _same(call["arguments"], arguments)

    def note(self, kind: str, otherwise: Any) -> Any:
        """Return the next recorded time or random number; the real one where none is left."""
        for at, each in enumerate(self._notes):
            if kind in each:
                return self._notes.pop(at)[kind]
        return otherwise

    def _wrong(self, what: str) -> AssertionError:
        self._mistake = self._mistake or what
        return AssertionError(what)

    def check(self) -> None:
        """Raise AssertionError at the first mistake, whatever the code made of it."""
        assert not self._mistake, self._mistake

    def done(self) -> None:
        """Raise AssertionError if there was a mistake, or a call was left out."""
        self.check()
        left = [_recorded(each) for each in self._left]
        assert not left, f"not called: {', '.join(left)}"


def _same(one: Any, other: Any) -> bool:
    """Return True for equal JSON: `1` is not `true`."""
    encoded = (msgspec.json.encode(each, order="deterministic") for each in (one, other))
    return len(set(encoded)) == 1


def _called(kind: str, name: str, arguments: Any) -> str:
    return f"{kind} {name}" if arguments is None else f"{kind} {name} {arguments}"


def _recorded(call: Mapping[str, Any]) -> str:
    kind = next(kind for kind in ("call", "effect", "model") if kind in call)
    return _called(kind, call[kind], call.get("arguments"))


class AnsweredExecution(Execution):
    """A round whose tools and models answer what they answered then."""

    is_watched = False

    def __init__(self, *given: Any, answers: Answers, **known: Any) -> None:
        super().__init__(*given, **known)
        self._answers = answers

    async def _run(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        key: str,
        forbidden: str,
        for_model: bool,
        caught: list[Exception],
        reads: Reads | None,
    ) -> Any:
        if not forbidden and tool.effect is None and tool.approve is not None:
            require_approval(self.work, self.request, tool, arguments, key)
        shown = given(arguments, tool.secret).arguments
        decoded = None if shown is None else msgspec.json.decode(shown)
        kind = "call" if tool.effect is None else "effect"
        answer = await self._answers.next(kind, tool.name, decoded)
        error = answer.get("error")
        if error is None:
            return answer["result"]
        raised = None
        if error["code"] == RAISED:
            raised = raised_again(error.get("type", ""), error["message"])
            caught.append(raised)
        raise Recorded(error["code"], error["message"], raised=raised)

    async def model(
        self, name: str, prompt: Any, produce: Produce, kind: type[T], **rest: Any
    ) -> tuple[T, bool]:
        async def answered() -> Any:
            answer = await self._answers.next("model", name)
            return msgspec.convert(answer["reply"], kind)

        return await super().model(name, prompt, answered, kind, **rest)

    async def note(self, kind: str, value: Any, about: str = "") -> Any:
        return await super().note(kind, self._answers.note(kind, value), about)


class _StandIn(Model):
    """In the place of each model. Its replies are answered by the record."""

    mode = "recorded"

    async def reply(self, prompt: Prompt, hear: Hear | None = None) -> Reply:
        raise AssertionError("the record answers for models")
