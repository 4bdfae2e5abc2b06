"""The drill's own agents: they do what the request's script says, one operation after the other.

The script is a fact that travels with the work, and so is the place in it (`at`) and what was done (`done`).
A turn walks from its place to the next move; after a refusal, a retry or a reply it walks from there
again, and its journal gives back what was done. Every tool writes into the drill's ledger in the middle
of what it does, and every move is written down before it is returned.
"""

import asyncio
import os
import time
from pathlib import Path
from typing import Any, cast

import msgspec

from mesh.agent.definition import Agent, agent
from mesh.agent.errors import Permanent, Retry, ToolError, ToolRefused
from mesh.agent.tools import NOT_DONE, tool
from mesh.agent.turn import Turn
from mesh.service.failpoints import VARIABLE
from protocol.wire.commands import Usage
from protocol.wire.handoff import Constraints
from protocol.wire.moves import Move, Task
from tests.drill import ledger, stalls
from tests.drill.evidence import Kind
from tests.drill.stories import BRIEFLY_S
from tests.drill.temptations import TEMPTATIONS

_LOOK_S = 0.01


class NotToday(ToolError):
    """What a tool says that has been told to say no."""

    code = "not_today"


async def _work(slow: float) -> None:
    await asyncio.sleep(slow / 2)


async def _do(kind: Kind, tool: str, request: str, call: str, slow: float, key: str = "") -> dict[str, Any]:
    """Do what a tool is there for: it is written down in the middle of the time that it takes."""
    began = time.time_ns() // 1000
    await _work(slow)
    ledger.note(kind, tool, key=key, request=request, call=call, began=began)
    await _work(slow)
    return {"call": call}


@tool
async def look(request: str, call: str, slow: float) -> dict[str, Any]:
    """Read something."""
    return await _do("read", "look", request, call, slow)


@tool
async def deny(request: str, call: str, slow: float) -> dict[str, Any]:
    """Say no."""
    await _work(slow)
    raise NotToday(f"not today: {call}")


@tool(effect="idempotent")
async def pay(request: str, call: str, slow: float, idempotency_key: str) -> dict[str, Any]:
    """Change the world once for each key."""
    return await _do("idempotent", "pay", request, call, slow, idempotency_key)


def shipped(key: str) -> object:
    """Say what became of a shipment."""
    for deed in ledger.deeds(Path(os.environ[ledger.VARIABLE])):
        if deed.kind == "reconcilable" and deed.key == key:
            return {"call": deed.call}
    return NOT_DONE


@tool(effect="reconcilable", reconcile=shipped)
async def ship(request: str, call: str, slow: float, idempotency_key: str) -> dict[str, Any]:
    """Change the world in a way that can be asked for later."""
    return await _do("reconcilable", "ship", request, call, slow, idempotency_key)


@tool(effect="reconcilable", reconcile=shipped, approve="human")
async def sign(request: str, call: str, slow: float, idempotency_key: str) -> dict[str, Any]:
    """Change the world, if somebody says yes."""
    return await _do("reconcilable", "sign", request, call, slow, idempotency_key)


@tool(effect="reconcilable", reconcile=shipped, approve="human", approve_within_s=BRIEFLY_S)
async def seal(request: str, call: str, slow: float, idempotency_key: str) -> dict[str, Any]:
    """Change the world, if somebody says yes soon."""
    return await _do("reconcilable", "seal", request, call, slow, idempotency_key)


@tool(effect="once")
async def post(request: str, call: str, slow: float) -> dict[str, Any]:
    """Change the world in a way that nobody can tell afterwards."""
    return await _do("once", "post", request, call, slow)


async def _until_unarmed(name: str) -> None:
    """Wait until a process has died in a failpoint.

    Where two things go on at once in one process, this keeps the turn from what the death would repeat.
    """
    while (Path(os.environ[VARIABLE]) / name).exists():  # noqa: ASYNC110 - another process takes it away
        await asyncio.sleep(_LOOK_S)


_PLANS = ("delegate", "gather", "call-off", "all-failed", "none-failed")
TOOLS = {each.name: each for each in (look, deny, pay, ship, sign, seal, post)}
MODEL = "stand-in"
"""What stands in for a model: it says yes, and writes into the ledger that it was paid."""


class _Walk:
    """One round's walk through the script."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.done: list[str] = list(turn.facts.get("done", ()))
        self.refused = len(turn.refusals)
        self.retried = sum(failure.code == Retry.code for failure in turn.failures)
        self.mended = sum(failure.code == Permanent.code for failure in turn.failures)
        self.answered = sum(past.how == "replied" and not past.asked for past in turn.past)

    async def move(self) -> Move:
        script = self.turn.facts["script"]
        for at in range(self.turn.facts.get("at", 0), len(script)):
            name, *said = script[at]
            if name in TOOLS:
                await self._call(name, *said)
            elif name == "model":
                await self._ask_model(*said)
            elif name == "board":
                await self.turn.post({said[0]: self.turn.agent})
            elif name == "slow":
                await asyncio.sleep(said[0])
            elif name == "unarmed":
                await _until_unarmed(said[0])
            elif name in _PLANS:
                if (move := self._plan(name, said)) is not None:
                    return move
            elif (move := self._move(name, said, {"at": at + 1, "done": self.done})) is not None:
                return move
        if self.turn.task_name:
            return self.turn.deliver(
                "as the script says", facts={"done": self.done}, cancel_open=bool(self.turn.waiting)
            )
        return self.turn.complete({"done": self.done}, cancel_open=bool(self.turn.waiting))

    async def _call(self, name: str, call: str, slow: float) -> None:
        turn = self.turn
        if name == "post":
            # For the check that a remark is kept.
            await turn.remark(call)
        try:
            found = await turn.call(TOOLS[name], request=turn.request, call=call, slow=slow)
        except ToolRefused as no:
            if no.reason not in (NotToday.code, "approval_expired"):  # the drill held the guards for too long
                raise
            return
        self._note(found["call"])

    async def _ask_model(self, call: str, slow: float) -> None:
        request = self.turn.request

        async def produce() -> dict[str, Any]:
            return await _do("model", MODEL, request, call, slow)

        found = await self.turn.model(MODEL, call, produce, dict, cost=lambda _: Usage(model_calls=1))
        self._note(found[0]["call"])

    def _note(self, call: str) -> None:
        if call not in self.done:
            self.done.append(call)

    def _plan(self, name: str, said: list[Any]) -> Move | None:
        """Return the move that an operation on tasks asks for; None where its join lies behind this round."""
        turn, move = self.turn, None
        match name:
            case "delegate":
                names, terms = [task["name"] for task in said[0]], dict(said[1]) if len(said) > 1 else {}
                if not any(each in turn.results or each in turn.waiting for each in names):
                    move = turn.delegate([self._task(**task) for task in said[0]], **terms)
                elif terms.get("join", "all") == "all" and set(names) & set(turn.waiting):
                    move = turn.delegate()
            case "gather" if turn.waiting:
                move = turn.delegate()
            case "call-off" if said[0] in turn.waiting:
                move = turn.delegate(cancel=[said[0]])
            case "all-failed" if any(result.delivered for result in turn.results.values()):
                move = turn.fail(f"a task of {turn.agent} came to something")
            case "none-failed" if not all(result.delivered for result in turn.results.values()):
                move = turn.fail(f"a task of {turn.agent} came to nothing")
        for result in turn.results.values():
            for call in cast(list[str], result.facts["done"]) if result.delivered else ():
                self._note(str(call))
        return move

    def _task(self, name: str, script: list[Any], *, read_only: bool = False, **terms: Any) -> Task:
        return self.turn.task(
            name,
            summary="as the script says",
            facts={"script": script},
            carry=(),
            constraints=Constraints(read_only=read_only),
            **terms,
        )

    def _move(self, name: str, said: list[Any], facts: dict[str, Any]) -> Move | None:
        """Return the move that an operation asks for; None where it lies behind this round."""
        turn = self.turn
        match name:
            case "to":
                terms = dict(said[1]) if len(said) > 1 else {}
                asked = msgspec.convert(terms.pop("constraints", {}), Constraints)
                return turn.transfer(
                    said[0], summary="go on with the script", facts=facts, constraints=asked, **terms
                )
            case "back":
                return turn.hand_back("go on with the script", facts=facts)
            case "tempt" if not self.refused:
                return TEMPTATIONS[said[0]].move(turn)
            case "tempt":
                self.refused -= 1
            case "spend":
                if not turn.round:  # a report sums up every round
                    turn.spend(tokens=said[0])
            case "retry" if not self.retried:
                raise Retry("as the script says")
            case "retry":
                self.retried -= 1
            case "break-for-good":
                raise Permanent("as the script says")
            case "broken" if not self.mended:
                raise Permanent("as the script says")
            case "broken":
                self.mended -= 1
            case "ask" if not self.answered:
                terms = dict(said[1]) if len(said) > 1 else {}
                return turn.ask("go on?", of=None if said[0] == "client" else said[0], **terms)
            case "ask":
                self.answered -= 1
            case "escalate":
                return turn.escalate("as the script says", facts={**facts, "person": said[0]})
            case "remember":
                return turn.complete({"done": self.done}, remember={said[0]: self.done})
            case "fail":
                return turn.fail("as the script says")
            case "sees" if said[0] not in turn.facts:
                return turn.fail(f"{turn.agent} was not given {said[0]}")
            case "blind" if said[0] in turn.facts:
                return turn.fail(f"{turn.agent} was given {said[0]}")
            case "sees" | "blind":
                pass
            case _:
                raise Permanent(f"no such operation: {name}")
        return None


async def _walk(turn: Turn) -> Move:
    stalls.watch(turn.agent)
    move = await _Walk(turn).move()
    ledger.note_move(turn.request, turn.id, turn.round, move)
    return move


def _made(name: str) -> Agent:
    return agent(
        name=name, version="1", description="Does what the script says.", tools=tuple(TOOLS.values())
    )(_walk)


front, back, vault = (_made(name) for name in ("front", "back", "vault"))
claimant = _made("claimant")
"""Played by the drill itself (`tests.drill.claimant`); its code never runs."""
