"""A small fleet whose code is mutated, and the record that the unchanged code left.

Every mutant is one change of the source below; `MUTANTS` says which kind of difference it has to be.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from mesh.agent import Agent, tool
from mesh.agent.errors import ToolError
from mesh.testing import FleetHarness, InMemoryGuard, calls, fleet_of, says
from protocol.wire.config import Policy

SOURCE = """
import asyncio
import datetime
import os
import random
import socket
import subprocess
import time
import uuid
from pathlib import Path

from mesh.agent import Retry, Turn, agent
from mesh.model import ClaudeAgent, Instructions
from tests.unit.replay.shop import ask_small, find, history, mail, refund


def note(order):
    return f"refund order {order['id']}"


@agent(name="front", version="1")
async def front(turn):
    order = await turn.call(find, order=turn.facts["order"])
    past, open_ = await asyncio.gather(
        turn.call(history, customer=order["customer"], year=2026),
        turn.call(history, customer=order["customer"], year=2025),
    )
    at = await turn.now()
    asked = {"text": turn.facts["text"], "past": past}
    kind, _ = await turn.model("small", asked, ask_small, str)
    if kind == "refund":
        years = len(past) + len(open_)
        facts = {"owner": order["customer"], "cents": order["cents"], "at": at, "years": years}
        return turn.transfer("billing", summary=note(order), facts=facts)
    return turn.complete("nothing to do")


@agent(name="billing", version="1")
async def billing(turn):
    cents = turn.facts["cents"]
    if turn.reply is None and cents > 1000:
        return turn.ask("Refund that much?", schema={"type": "boolean"})
    if cents > 1000 and not turn.reply:
        return turn.fail("the client does not want it")
    done = await turn.call(refund, customer=turn.facts["owner"], cents=cents)
    await turn.call(mail, to=turn.facts["owner"])
    return turn.transfer("writer", summary="Tell them", facts={"refund": done})


writer = ClaudeAgent(
    "writer",
    instructions=Instructions("1", "You write to customers. Be kind."),
    tools=[history],
    version="1",
)
AGENTS = {"front": front, "billing": billing, "writer": writer}
"""


async def ask_small() -> str:
    """Reply as a small model does."""
    return "refund"


@tool
async def find(order: str) -> dict[str, Any]:
    """Find an order."""
    return {"id": order, "customer": "c-7", "cents": 4200}


@tool
async def history(customer: str, year: int) -> list[str]:
    """List a customer's orders of a year."""
    return [f"{customer}-{year}-{n}" for n in range(2)]


@tool(effect="idempotent")
async def refund(customer: str, cents: int, idempotency_key: str = "") -> str:
    """Give money back."""
    if cents < 0:
        raise ToolError("less than nothing")
    return f"r-{cents}"


@tool(effect="once")
async def mail(to: str) -> None:
    """Mail."""


REFUND = '    done = await turn.call(refund, customer=turn.facts["owner"], cents=cents)\n'
MAIL = '    await turn.call(mail, to=turn.facts["owner"])\n'
NOW = "    at = await turn.now()\n"
ASK = '    asked = {"text": turn.facts["text"], "past": past}\n'
ASK += '    kind, _ = await turn.model("small", asked, ask_small, str)\n'
TELL = 'return turn.transfer("writer", summary="Tell them", facts={"refund": done})'


class Mutant(NamedTuple):
    """One change of the source."""

    was: str
    now: str
    agent: str
    kind: str
    says: str
    """A part of what the difference says."""


MUTANTS = {
    # route
    "another target": Mutant(
        '"billing", summary', '"refunds", summary', "front", "move", "to billing → refunds"
    ),
    "a target that is none": Mutant(
        '"billing", summary', '"nobody", summary', "front", "move", "to billing → nobody"
    ),
    "another branch": Mutant('== "refund"', '!= "refund"', "front", "move", "transfer to billing → complete"),
    "another kind of move": Mutant(
        TELL,
        'return turn.escalate("Tell them")',
        "billing",
        "move",
        "transfer to writer → escalate",
    ),
    "no question": Mutant("cents > 1000:", "cents > 10000:", "billing", "move", "ask to client → fail"),
    "another limit": Mutant("cents > 1000 and not", "cents > 1000 and", "billing", "tool", "effect refund"),
    "another summary": Mutant('f"refund order', 'f"pay back order', "front", "move", "summary"),
    "another fact": Mutant('"owner": order["customer"]', '"owner": order["id"]', "front", "move", "facts"),
    "a fact less": Mutant(', "at": at,', ",", "front", "move", "facts"),
    "a fact more": Mutant(
        'facts={"refund": done}', 'facts={"refund": done, "sure": True}', "billing", "move", "facts"
    ),
    "another question": Mutant("Refund that much?", "Refund?", "billing", "move", "question"),
    "another schema": Mutant('{"type": "boolean"}', '{"type": "string"}', "billing", "move", "schema"),
    "a term for the reply": Mutant(
        'schema={"type": "boolean"}', "expires_s=5", "billing", "move", "expires_s"
    ),
    # arguments and tools
    "another argument": Mutant("year=2025", "year=2024", "front", "arguments", "year 2025 → 2024"),
    "an argument of another type": Mutant(
        "year=2026", 'year="2026"', "front", "arguments", 'year 2026 → "2026"'
    ),
    "another order": Mutant(
        'order=turn.facts["order"]', 'order=turn.facts["order"].lower()', "front", "arguments", "order"
    ),
    "another amount": Mutant("cents=cents)", "cents=cents + 1)", "billing", "arguments", "cents 4200 → 4201"),
    "another addressee": Mutant(
        'to=turn.facts["owner"]', 'to="boss"', "billing", "arguments", '"c-7" → "boss"'
    ),
    "another tool": Mutant(
        'turn.call(mail, to=turn.facts["owner"])',
        'turn.call(find, order="o")',
        "billing",
        "tool",
        "effect mail → call find",
    ),
    "a tool less": Mutant(MAIL, "", "billing", "tool", "mail"),
    "a tool twice": Mutant(
        "done = await turn.call(refund",
        'await turn.call(find, order="x")\n    done = await turn.call(refund',
        "billing",
        "tool",
        "find",
    ),
    "a call once more": Mutant(
        f"    {TELL}",
        f"{MAIL}    {TELL}",
        "billing",
        "stops",
        "effect mail",
    ),
    "no time": Mutant("at = await turn.now()", "at = 7", "front", "tool", "now"),
    "a random number": Mutant("at = await turn.now()", "at = await turn.random()", "front", "tool", "random"),
    # order
    "effects the other way round": Mutant(
        REFUND + MAIL,
        MAIL + REFUND,
        "billing",
        "order",
        "effect mail before effect refund",
    ),
    "the time before the model": Mutant(
        NOW + ASK,
        ASK + NOW,
        "front",
        "order",
        "model small before now",
    ),
    # prompt and model
    "another prompt of its own": Mutant('"past": past}', '"past": len(past)}', "front", "prompt", "small"),
    "another model of its own": Mutant(
        'turn.model("small"', 'turn.model("large"', "front", "prompt", "small → large"
    ),
    "other instructions": Mutant("Be kind.", "Be brief.", "writer", "prompt", "instructions"),
    "a tool less for the model": Mutant("    tools=[history],\n", "", "writer", "prompt", "tools"),
    "a tool more for the model": Mutant(
        "tools=[history]", "tools=[history, find]", "writer", "prompt", "tools"
    ),
    "fewer peers for the model": Mutant(
        "    tools=[history],", '    tools=[history], handoffs=["front"],', "writer", "prompt", ""
    ),
    # exceptions
    "a key that is not there": Mutant(
        'turn.facts["cents"]', 'turn.facts["sum"]', "billing", "raises", "shop_mutant.py:"
    ),
    "an exception": Mutant(
        "        return turn.fail",
        '        pass\n    raise ValueError("no")\n    if False:\n        return turn.fail',
        "billing",
        "raises",
        "ValueError",
    ),
    "another try": Mutant(
        "done = await", 'raise Retry("later")\n    done = await', "billing", "raises", "retry: later"
    ),
    "nothing returned": Mutant(
        'return turn.transfer("writer"', 'turn.transfer("writer"', "billing", "raises", "NotAMove"
    ),
    "the end of the process": Mutant(
        "    done = await", "    raise SystemExit(3)\n    done = await", "billing", "raises", "SystemExit"
    ),
    "a tool that there is not": Mutant(
        "turn.call(mail,", "turn.call(post,", "billing", "raises", "NameError"
    ),
    # outside
    "the wall clock": Mutant(
        "at = await turn.now()", "at = time.time()", "front", "reads outside", "time.time"
    ),
    "today": Mutant(
        "at = await turn.now()", "at = datetime.date.today().year", "front", "reads outside", "today"
    ),
    "chance": Mutant(
        "at = await turn.now()", "at = random.choice([1, 2])", "front", "reads outside", "choice"
    ),
    "an id": Mutant("at = await turn.now()", "at = str(uuid.uuid4())", "front", "reads outside", "uuid4"),
    "a file": Mutant(
        "at = await turn.now()", "at = Path(__file__).read_text()", "front", "reads outside", "open"
    ),
    "a socket": Mutant(
        "at = await turn.now()",
        'at = socket.getaddrinfo("localhost", 80)',
        "front",
        "reads outside",
        "getaddrinfo",
    ),
    "a process": Mutant(
        "at = await turn.now()", 'at = subprocess.run(["true"])', "front", "reads outside", "Popen"
    ),
    "entropy": Mutant(
        "at = await turn.now()", "at = os.urandom(2).hex()", "front", "reads outside", "urandom"
    ),
}


def agents_in(source: str, folder: Path, name: str = "shop_mutant") -> dict[str, Agent]:
    """Return the agents of a source, which is written to a file of its own."""
    path = folder / f"{name}.py"
    path.write_text(source)
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    exec(compile(source, str(path), "exec"), vars(module))
    found: dict[str, Agent] = module.AGENTS
    return found


def mutated(mutant: Mutant) -> str:
    assert SOURCE.count(mutant.was) == 1, mutant.was
    return SOURCE.replace(mutant.was, mutant.now)


REPLIES = (calls(("history", {"customer": "c-7", "year": 2026})), says("It is on its way."))


async def played(agents: Mapping[str, Agent]) -> FleetHarness:
    """Play the request that every mutant is tried on."""
    policy = Policy(budget=None)
    guard = InMemoryGuard(fleet_of("front", "billing", "writer", "refunds", human=True), {"default": policy})
    walk = FleetHarness(guard, agents)
    return await walk.go("It broke", facts={"order": "O-1"}, replies=[True])
