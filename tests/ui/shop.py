"""A shop's mesh with requests of every kind: what a browser is shown, and the pictures of the docs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mesh.agent import Turn, tool
from mesh.agent.definition import Agent
from mesh.agent.tools import Tool
from mesh.model import ClaudeAgent
from mesh.model.prompt import Instructions
from mesh.testing import EmbeddedBus
from protocol.wire import events, subjects
from protocol.wire.commands import Doubt, ReplyToAsk, Report, ReportInDoubt, Usage
from protocol.wire.config import AgentEntry, Fleet, Policy
from protocol.wire.handoff import Budget, Fact
from protocol.wire.ids import AgentName
from protocol.wire.moves import Ask, Complete, Escalate, Fail, HandBack, Move, Transfer
from tests.guard.stage import Stage, staged
from tests.vendors.claude import StubClaude
from tests.vendors.stand_in import Answer, calls, says

ACTORS = ("triage", "billing", "refunds", "sales")
FLEET = Fleet(
    name="shop",
    entry=AgentName("triage"),
    agents={
        name: AgentEntry(
            name=AgentName(name),
            to=None if to is None else tuple(map(AgentName, to)),
            clearance=clearance,
            actions={"payments": ("find_charge", "pay_back"), "advice": ("look_it_up",)}.get(name, ()),
        )
        for name, to, clearance in (
            ("triage", ("billing", "refunds", "sales", "payments", "warehouse"), ("pii",)),
            ("billing", ("refunds", "payments", "triage"), ("pii",)),
            ("refunds", ("billing", "warehouse", "triage"), ("pii",)),
            ("sales", ("triage",), ()),
            ("payments", (), ("pii",)),
            ("warehouse", ("refunds",), ()),
            ("advice", (), ()),
        )
    },
    clients=(AgentName("webshop"),),
    operators=(AgentName("ops"),),
    viewers=(AgentName("audit"),),
    human=True,
)
POLICIES = (
    Policy(budget=Budget(nano_dollars=50_000_000, tokens=40_000, model_calls=20)),
    Policy(name="unpriced"),
)


@tool(effect="idempotent", approve="human")
async def pay_back(order: str, amount: float, idempotency_key: str = "") -> str:
    """Pay money back."""
    return f"R-{order}"


@tool
async def find_charge(order: str) -> dict[str, Any]:
    """Find what was charged for an order."""
    return {"order": order, "amount": 42.5}


async def _pays(turn: Turn) -> Move:
    charge = await turn.call(find_charge, order="1042")
    return turn.complete(await turn.call(pay_back, order="1042", amount=charge["amount"]))


payments = Agent("payments", _pays, tools=(find_charge, pay_back), version="3.2.0")


@contextlib.asynccontextmanager
async def open_shop(directory: Path) -> AsyncIterator["Shop"]:
    """Give a mesh in which every request has happened."""
    async with EmbeddedBus(FLEET, directory) as mesh:
        async with mesh.connected_as("admin") as admin:
            for policy in POLICIES:
                await admin.publish_durable(subjects.policy(policy.name), msgspec.json.encode(policy))
        async with staged(mesh, guards=1) as stage:
            shop = Shop(stage)
            await shop.open()
            yield shop
        await mesh.server.kill()


class Advice:
    """An agent that Claude drives: it says that it looks, again and again, until `heard` is set."""

    def __init__(self) -> None:
        self.heard = asyncio.Event()
        self.claude = StubClaude(self._answer)
        self.agent = ClaudeAgent(
            "advice", instructions=Instructions("1", "Advise."), tools=[self._look()], max_calls=200
        )

    def _look(self) -> Tool:
        @tool
        async def look_it_up() -> str:
            """Look something up."""
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.heard.wait(), 1.0)
            return "It is blue."

        return look_it_up

    def _answer(self, body: Mapping[str, Any]) -> Answer:
        if self.heard.is_set():
            return says("The sky is blue <b>today</b>.")
        return calls(("look_it_up", {}), text="Let me look it up, I said.", pause_s=0.02)


class Shop:
    """Requests of the shop, each brought to where its name says; agents say what their author wrote here."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.requests: dict[str, str] = {}

    async def open(self) -> None:
        """Let every request happen."""
        for name in ACTORS:
            await self.stage.actor(name, served=True)
        await self.stage.runtime(payments)
        self.requests = {
            "refund": await self.refund(),
            "asked": await self.asked(),
            "doubted": await self.doubted(),
            "failed": await self.failed(),
            "escalated": await self.escalated(),
            "approval": await self.approval(),
            "unserved": await self.unserved(),
        }
        for text in ("Where is my parcel 7731?", "Do you ship to Norway?", "The invoice of May, please"):
            self.requests[text] = await self.simple(text)
        self.requests["open"] = await self.begun("My voucher does not work")
        await (await self.stage.bus("billing")).publish_durable(
            subjects.prop("billing", self.requests["open"]), b'{"kind":"move","move":'
        )
        await self.stage.buried("protocol.malformed")

    async def begun(self, text: str, *facts: Fact, to: str | None = None, policy: str = "default") -> str:
        """Return a request that is in the log."""
        client = await self.stage.client("webshop")
        request = await client.submit(text, to=to, facts=facts, policy=policy)
        await self.stage.reaches(request, "request.opened")
        return request

    async def hop(
        self,
        request: str,
        agent: str,
        move: Move,
        *,
        nth: int = 0,
        round_: int = 0,
        spent: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        """Let an agent move in a round of its `nth` turn; it has spent nano-dollars, tokens and calls."""
        actor = await self.stage.actor(agent)
        work = await actor.work(request, nth=nth, round_=round_)
        usage = Usage(nano_dollars=spent[0], tokens=spent[1], model_calls=spent[2])
        await actor.propose(request, work, move, report=Report(usage=usage))

    async def refund(self) -> str:
        """A request that billing would have sent in a circle; the guard stopped it, and it went on."""
        request = await self.begun(
            "I was charged twice for order 1042",
            Fact(key="order", value="1042"),
            Fact(key="email", value="ada@example.com", labels=("pii",)),
        )
        give = Transfer(
            to_agent=AgentName("billing"),
            summary="Customer was charged twice for order 1042; check the charges",
            facts=(Fact(key="intent", value="refund"),),
        )
        await self.hop(request, "triage", give, spent=(2_100_000, 1_420, 1))
        back = Transfer(to_agent=AgentName("triage"), summary="Ask the customer which card was used")
        await self.hop(request, "billing", back, spent=(4_800_000, 3_310, 2))
        on = Transfer(
            to_agent=AgentName("refunds"),
            summary="Two charges of 42.50 on 3 May, ten seconds apart; refund the second",
            facts=(Fact(key="charge", value={"id": "ch_88", "amount": 42.5}),),
        )
        await self.hop(request, "billing", on, round_=1, spent=(7_200_000, 5_100, 3))
        question = Ask(to_agent=AgentName("webshop"), question="To the card that ends in 4242?")
        await self.hop(request, "refunds", question, spent=(3_000_000, 2_000, 1))
        asked = await self.stage.reached(request, events.TurnSuspended)
        yes = ReplyToAsk(id="yes", by="Grace", turn=asked.turn, round=asked.round, value="yes, please")
        await self.stage.control(request, yes, sender="webshop")
        found = HandBack(summary="Refunded 42.50 to the card that ends in 4242", facts=())
        await self.hop(request, "refunds", found, round_=1, spent=(5_500_000, 3_900, 2))
        done = Complete(answer="We refunded the second charge of 42.50 to your card.")
        await self.hop(request, "billing", done, nth=1, spent=(1_200_000, 800, 1))
        await self.stage.reaches(request, "request.completed")
        return request

    async def asked(self) -> str:
        """A request whose agent asks people for something of a form."""
        request = await self.begun("Please cancel my subscription and give me the rest back")
        schema = {
            "type": "object",
            "properties": {
                "grant": {"type": "boolean", "title": "Give it back"},
                "amount": {"type": "number", "title": "Amount", "minimum": 0, "maximum": 500},
                "reason": {"type": "string", "enum": ["goodwill", "contract", "error"]},
            },
            "required": ["grant", "reason"],
        }
        question = Ask(to_agent=AgentName("human"), question="May we give back the rest?", schema=schema)
        await self.hop(request, "triage", question, spent=(1_900_000, 1_200, 1))
        await self.stage.reaches(request, "turn.suspended")
        return request

    async def doubted(self) -> str:
        """A request with an effect of which nobody knows whether it happened."""
        request = await self.begun("Send the replacement for order 977")
        give = Transfer(to_agent=AgentName("refunds"), summary="Replacement for order 977")
        await self.hop(request, "triage", give)
        actor = await self.stage.actor("refunds")
        work = await actor.work(request)
        doubt = Doubt(step="0-2", action="send_parcel", key="k-977")
        await actor.say(request, ReportInDoubt(turn=work.turn, round=0, effect=doubt))
        await self.stage.reaches(request, "effect.doubted")
        return request

    async def failed(self) -> str:
        request = await self.begun("Change my order after it was shipped")
        await self.hop(request, "triage", Fail(reason="a shipped order cannot be changed"))
        await self.stage.reaches(request, "request.failed")
        return request

    async def escalated(self) -> str:
        """A request that an agent gives to a person."""
        request = await self.begun("I want to talk to somebody about my complaint <b>now</b>")
        move = Escalate(summary="A complaint that wants a person")
        await self.hop(request, "triage", move, spent=(800_000, 600, 1))
        await self.stage.reaches(request, "escalation.raised")
        return request

    async def approval(self) -> str:
        """A request whose effect waits for somebody's yes."""
        request = await self.begun("Pay me back for order 1042")
        await self.hop(request, "triage", Transfer(to_agent=AgentName("payments"), summary="Pay back 42.50"))
        await self.stage.reaches(request, "turn.suspended")
        return request

    async def unserved(self) -> str:
        """A request before an agent that nobody serves."""
        request = await self.begun("Is the blue chair in stock?")
        await self.hop(request, "triage", Transfer(to_agent=AgentName("warehouse"), summary="Blue chair?"))
        await self.stage.reaches(request, "handoff.admitted")
        return request

    async def simple(self, text: str) -> str:
        request = await self.begun(text)
        await self.hop(
            request, "triage", Transfer(to_agent=AgentName("sales"), summary=text), spent=(600_000, 500, 1)
        )
        await self.hop(request, "sales", Complete(answer="Here it is."), spent=(900_000, 700, 1))
        await self.stage.reaches(request, "request.completed")
        return request
