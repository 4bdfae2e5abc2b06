"""Arbitrary fleets whose code is drawn from a seed: what they play is replayed by the same code.

An agent draws what it does from its seed, its path, its round and what its tools said: so the same record
leads the same code the same way, and nothing else does.
"""

import asyncio
import random
from collections.abc import Iterable, Mapping
from typing import Any

from mesh.agent import Agent, Turn, agent, tool
from mesh.agent.errors import Permanent, Retry, ToolError
from mesh.replay.code import Replayed, Replayer
from mesh.testing import FleetHarness, InMemoryGuard, Policy
from protocol.wire.commands import Usage
from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.handoff import Budget, Constraints, Fact
from protocol.wire.ids import AgentName
from protocol.wire.moves import Move, Task

NAMES = ("front", "billing", "refunds", "search")
TOPOLOGIES = ("handoff", "handoff", "supervised", "swarm")


class Away(OSError):
    """What a reading tool raises now and then."""


def fleet_of(seed: int) -> tuple[Fleet, Policy]:
    draw = random.Random(f"{seed} fleet")
    entries = {
        name: AgentEntry(
            name=AgentName(name),
            description=f"does {name}",
            clearance=() if draw.random() < 0.4 else ("pii",),
            intents=(name, "any") if draw.random() < 0.5 else None,
            actions=None if draw.random() < 0.8 else ("look", "pay"),
        )
        for name in NAMES
    }
    labels = {"customer": ("pii",)} if draw.random() < 0.5 else {}
    fleet = Fleet(
        name="drawn",
        entry=AgentName(NAMES[0]),
        agents=entries,
        clients=(AgentName("client"),),
        operators=(AgentName("operator"),),
        human=draw.random() < 0.8,
        labels=labels,
        revision=1 + seed % 3,
    )
    policy = Policy(
        topology=draw.choice(TOPOLOGIES),
        budget=Budget(model_calls=draw.choice([2, 8, 40]), tokens=draw.choice([None, 50])),
        max_refusals=draw.choice([1, 3]),
        max_retries=draw.choice([0, 2]),
        retry_backoff_s=0.1,
    )
    return fleet, policy


def agents_of(seed: int, *, version: str = "1") -> dict[str, Agent]:
    return {name: _agent(seed, name, version) for name in NAMES}


def _agent(seed: int, name: str, version: str) -> Agent:
    luck = random.Random(f"{seed} {name} luck")  # of the world: no replay sees it

    @tool
    async def look(what: str, deep: bool = False) -> dict[str, Any]:
        """Look something up."""
        for _ in range(luck.randrange(3)):
            await asyncio.sleep(0)
        if luck.random() < 0.15:
            raise ToolError("nothing of the kind") if luck.random() < 0.5 else Away("the index is away")
        return {"what": what, "found": luck.randrange(4), "when": None if deep else 1.5}

    @tool(effect="idempotent", approve="human" if seed % 5 == 0 else None, secret=["card"])
    async def pay(cents: int, card: str = "4111", idempotency_key: str = "") -> str:
        """Pay."""
        if luck.random() < 0.1:
            raise ToolError("no funds")
        if luck.random() < 0.05:
            raise Away("the bank is away")
        return f"paid {cents}"

    @tool(effect="once")
    async def mail(to: str) -> None:
        """Mail."""
        if luck.random() < 0.1:
            raise Away("the relay is away")

    async def reply() -> dict[str, Any]:
        if luck.random() < 0.05:
            raise Retry("the model is away")
        return {"says": luck.randrange(5)}

    async def step(turn: Turn, draw: random.Random, at: int) -> Any:
        match draw.choice(
            ["look", "look", "many", "pay", "mail", "now", "random", "model", "remark", "spend", "post"]
        ):
            case "look":
                return await turn.call(look, what=f"{name} {at}", deep=draw.random() < 0.3)
            case "many":
                asked = (
                    turn.call(look, what=f"{name} {draw.randrange(3)}") for _ in range(draw.randrange(2, 5))
                )
                return [str(each) for each in await asyncio.gather(*asked, return_exceptions=True)]
            case "pay":
                return await turn.call(pay, cents=draw.randrange(3))
            case "mail":
                return await turn.call(mail, to=name)
            case "now":
                return await turn.now()
            case "random":
                return await turn.random()
            case "model":
                said, _ = await turn.model(
                    "small", [name, at], reply, dict, cost=lambda _: Usage(model_calls=1, tokens=7)
                )
                return said
            case "remark":
                await turn.remark(f"at {at}")
            case "spend":
                turn.spend(tokens=draw.randrange(3))
            case "post" if turn.topology == "swarm":
                await turn.post({f"{name}-{at}": at})
        return None

    @agent(name=name, version=version)
    async def handler(turn: Turn) -> Move:
        draw = random.Random(f"{seed} {name} {turn.path} {turn.round} {turn.task_name} {len(turn.past)}")
        known: list[Any] = [str(turn.reply), sorted(turn.results)]
        for at in range(draw.randrange(4)):
            try:
                known.append(await step(turn, draw, at))
            except (ToolError, Away) as caught:
                if draw.random() < 0.3:
                    raise
                known.append(str(caught))
        end = random.Random(f"{seed} {name} {draw.random()} {known if draw.random() < 0.7 else ''}")
        return _move(turn, end, known)

    return handler


def _move(turn: Turn, draw: random.Random, known: list[Any]) -> Move:
    if draw.random() < 0.12:
        raise draw.choice([Retry("later"), Permanent("never"), KeyError("order"), ValueError(turn.agent)])
    facts = [
        Fact(
            key=draw.choice(["customer", "order", turn.agent]),
            value=draw.choice([1, "x", None, 1.5, str(known)]),
        ),
        Fact(
            key=f"note-{draw.randrange(3)}",
            value=draw.randrange(3),
            labels=("pii",) if draw.random() < 0.3 else (),
        ),
    ][: draw.randrange(3)]
    to, word = draw.choice([*NAMES, "nobody"]), draw.choice(["one", "two"])
    constraints = Constraints(
        read_only=draw.random() < 0.1, budget=Budget(model_calls=draw.choice([1, 5, None]))
    )
    if turn.topology == "handoff":
        match draw.choice(
            ["transfer", "transfer", "back", "ask", "escalate", "complete", "complete", "fail"]
        ):
            case "transfer":
                intent = draw.choice([None, "any", to])
                return turn.transfer(to, summary=word, intent=intent, facts=facts, constraints=constraints)
            case "back":
                return turn.hand_back(word, facts=facts, drop=draw.choice([[], ["order"]]))
            case "ask":
                return turn.ask(f"{word}?", of=draw.choice([None, "human"]), expires_s=draw.choice([None, 5]))
            case "escalate":
                return turn.escalate(word, facts=facts)
            case "complete":
                remember = {"seen": word} if draw.random() < 0.3 else None
                return turn.complete({"known": str(known)}, remember=remember)
        return turn.fail(word)
    if draw.random() < 0.4 and turn.depth < 3 and not turn.waiting:
        return turn.delegate(
            [_task(turn, draw, n) for n in range(draw.randrange(1, 4))], join=draw.choice(["all", "any"])
        )
    if draw.random() < 0.1:
        return turn.ask(word)
    if turn.task_name:
        return turn.deliver(word, facts=facts, cancel_open=True) if draw.random() < 0.8 else turn.fail(word)
    return turn.complete(str(known), cancel_open=True)


def _task(turn: Turn, draw: random.Random, n: int) -> Task:
    to = draw.choice([name for name in NAMES if name != turn.agent])
    open_ = turn.topology == "swarm" and draw.random() < 0.5
    return turn.task(
        f"{turn.agent}-{turn.round}-{n}",
        summary="do",
        to=None if open_ else to,
        intent="any" if open_ else None,
        facts={f"for-{n}": n},
    )


async def played(seed: int) -> FleetHarness:
    """Play one request of an arbitrary fleet."""
    fleet, policy = fleet_of(seed)
    guard = InMemoryGuard(fleet, {"default": policy}, number=seed % 1000)
    walk = FleetHarness(guard, agents_of(seed), keep_going=True)
    draw = random.Random(f"{seed} people")
    facts = (Fact(key="customer", value="c1"), Fact(key="order", value=seed))
    conversation = "talk" if seed % 4 == 0 else None
    replies = [draw.choice([True, False, "yes", 3]) for _ in range(20)]
    return await walk.go("Help", facts=facts, replies=replies, conversation=conversation)


async def replayed(walk: FleetHarness, agents: Mapping[str, Agent]) -> list[Replayed]:
    return await Replayer(agents, walk.recording).replay(walk.guard.bodies)


async def different(seeds: Iterable[int]) -> tuple[list[Replayed], dict[str, int], dict[str, int]]:
    """Play and replay; return the differences, the results and the reasons counted."""
    wrong: list[Replayed] = []
    results: dict[str, int] = {}
    reasons: dict[str, int] = {}
    for seed in seeds:
        walk = await played(seed)
        for each in await replayed(walk, agents_of(seed)):
            results[each.result] = results.get(each.result, 0) + 1
            if each.why:
                reasons[each.why] = reasons.get(each.why, 0) + 1
            if each.difference is not None:
                wrong.append(each._replace(request=f"seed {seed} {each.request}"))
    return wrong, results, reasons
