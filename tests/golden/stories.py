"""Stories of one request that the golden logs tell, beside the contract's scenarios."""

from collections.abc import Callable
from typing import Any

from mesh.ops.fork import fork_of
from mesh.testing import Conversations, InMemoryGuard
from protocol.wire.commands import Assign, Freeze, ReplyToAsk, Report, Resolve, Settle, Thaw, Usage
from protocol.wire.config import AgentEntry, Policy
from protocol.wire.handoff import Artifact, Budget, Constraints
from protocol.wire.ids import AgentName
from protocol.wire.moves import Complete
from protocol.wire.prices import Metered
from tests.contract.scenarios import FLEET
from tests.unit.protocol.worlds import (
    Play,
    agent,
    ask,
    complete,
    escalate,
    fact,
    hand_back,
    transfer,
)

RECEIPT = Artifact(
    name="receipt",
    uri="s3://store/receipt.pdf",
    media_type="application/pdf",
    digest="sha256:9f86d081",
    size=48_213,
    labels=("pii",),
)
SHOP: dict[str, AgentEntry] = {
    "triage": agent(
        "triage",
        clearance=("pii",),
        to=(AgentName("billing"), AgentName("refunds")),
        description="Reads the post.",
    ),
    "billing": agent("billing", clearance=("pci", "pii"), intents=("refund",), actions=("lookup", "pay")),
    "refunds": agent("refunds"),
}
SELL = transfer("sales", summary="sell more")
CHECK = transfer("billing", summary="check the amount")
CARRY_ON = transfer("b", summary="look for it")
DOUBT = fact("doubt", "is it the right customer?")
MODEL = "claude-x"


def refund(*, to: str = "triage", traced: bool = False, served: bool = True, **policy: Any) -> Play:
    """Submit a request for a refund. Its entry agent may not see the card."""
    budget = Budget(nano_dollars=5_000_000_000, tokens=200_000, model_calls=40)
    careful = {"name": "careful", "version": 3, "max_depth": 4, "escalation_sla_s": 3600.0, **policy}
    play = Play(
        fleet=dict(SHOP),
        entry="triage",
        policy=Policy(budget=budget, **careful),
        prices={MODEL: {"input": 3000, "output": 15_000}},
        traced=traced,
        served=served,
        begun=served,
    )
    play.submit(
        "Refund order 1042\nIt came broken.",
        digest="ef" * 32,
        to=AgentName(to),
        intent="refund",
        facts=(fact("order", 1042), fact("card", {"number": "4111", "ends": [12, 2027]}, "pci", "pii")),
        artifacts=(RECEIPT,),
        constraints=Constraints(max_resolution_time_s=7200.0, must_carry=("card", "order")),
        conversation="conv-7",
    )
    return play


def spent(tokens: int, model_calls: int = 1) -> Report:
    usage = Usage(nano_dollars=3000 * tokens, tokens=tokens, model_calls=model_calls)
    return Report(usage=usage, actions=("lookup",), steps=4, digest="ab" * 32)


def prompted(tokens: int, prompt: str) -> Report:
    """Return the report of one call to a model, with the prompt's version."""
    nano = 3000 * tokens
    of_model = Metered(input=tokens - 100, cache_read=60, output=40, thinking=15, calls=1, nano_dollars=nano)
    usage = Usage(nano_dollars=nano, tokens=tokens, model_calls=1, models={MODEL: of_model})
    return Report(
        usage=usage,
        actions=("lookup",),
        steps=2,
        digest="ab" * 32,
        prompt=prompt,
        version="2",
        build="4f2a91c",
    )


def long_story() -> list[bytes]:
    """Nearly everything: refused, failed, asked, in doubt, frozen, handed back, two escalations, answered."""
    play = refund()
    play.now += 2_500_000
    play.move(SELL, spent(900))
    play.now += 1_000_000
    asked = Constraints(
        max_resolution_time_s=1800.0,
        allowed_actions=("lookup", "pay"),
        budget=Budget(tokens=50_000),
        must_carry=("amount",),
    )
    amount = fact("amount", 12.5, "pii")
    play.move(
        transfer(
            "billing",
            amount,
            summary="check the amount and pay it back",
            intent="refund",
            constraints=asked,
            return_to=AgentName("triage"),
        ),
        spent(1900, 2),
    )
    play.now += 4_000_000
    play.fail("model.overloaded", retry_after_s=2.0, report=spent(500))
    play.wait(2)
    play.move(ask(schema={"type": "boolean"}, expires_s=600.0, digest="cd" * 32), spent(1500, 2))
    play.now += 30_000_000
    play.control(ReplyToAsk, "c1", turn=play.turn, round=1, value=True, by="Rosa")
    play.doubt(report=spent(2500, 3))
    play.control(Settle, turn=play.turn, round=2, outcome="done", result={"ref": "R-7"}, by="Ada")
    play.control(Freeze, by="Ada", reason="the bank is down")
    play.move(hand_back(fact("paid", True), artifacts=(RECEIPT,), drop=("text",)), spent(3500, 4))
    play.now += 60_000_000
    play.control(Thaw, by="Ada", reason="it is back")
    play.move(escalate(DOUBT), spent(200))
    play.control(Assign, turn=play.turn, to="Ada", by="Bo")
    play.wait(3600)
    checked = fact("checked", "yes")
    play.control(
        Resolve,
        turn=play.turn,
        to=AgentName("refunds"),
        summary="it is; write to them",
        facts=(checked,),
        by="Ada",
    )
    play.move(complete({"refunded": 12.5, "text": "Done."}), spent(100))
    return play.bodies


def priced_story() -> list[bytes]:
    """Every kind of event that gives work tells the prices."""
    play = refund()
    play.move(SELL, spent(900))
    play.move(CHECK, spent(1900, 2))
    play.fail("model.overloaded", report=spent(500))
    play.wait(60)
    play.move(ask(), spent(1500, 2))
    play.control(ReplyToAsk, "c1", turn=play.turn, round=1, value=True, by="Rosa")
    play.doubt(report=spent(2500, 3))
    play.control(Settle, turn=play.turn, round=2, outcome="done", by="Ada")
    play.move(escalate(), spent(3000, 4))
    play.control(Resolve, turn=play.turn, again=True, summary="go on", by="Ada")
    play.move(complete("Done."), spent(100))
    return play.bodies


def granted_story() -> list[bytes]:
    """Nobody serves the first turn, which costs nothing; a person grants a budget and ends it by hand."""
    play = refund(served=False)
    play.wait(3600)
    granted = Budget(tokens=500_000)
    play.control(Resolve, turn=play.turn, summary="they are back", budget=granted, by="Ada")
    play.served = play.begun = True
    play.now += 10_000_000
    within = Constraints(max_resolution_time_s=60.0)
    play.move(transfer("billing", summary="check the amount", constraints=within), spent(900))
    play.doubt(report=spent(500))
    play.wait(60)
    play.control(Resolve, turn=play.turn, complete=True, answer="Done by hand.", by="Ada")
    return play.bodies


def refused_story() -> list[bytes]:
    """A submit that cannot be taken is kept whole."""
    return refund(to="sales").bodies


def answered_story() -> list[bytes]:
    """The answer names its submit."""
    play = refund()
    play.move(complete("Done."), spent(100))
    return play.bodies


def given_up_story() -> list[bytes]:
    """An escalation that the policy does not allow ends the request, and the client is not told why."""
    play = refund(max_escalations=0)
    play.move(ask(), spent(100))
    play.control(ReplyToAsk, "c1", turn=play.turn, round=0, value="no", by="Rosa")
    play.move(escalate(fact("doubt", "is it the right customer?", "pii")), spent(200))
    return play.bodies


def modelled_story() -> list[bytes]:
    """Reports by model, with the versions of their prompts."""
    play = refund()
    play.now += 2_000_000
    play.move(CHECK, prompted(900, "3"))
    play.now += 3_000_000
    play.move(complete("Done."), prompted(1200, "2026-11.1"))
    return play.bodies


def traced_story() -> list[bytes]:
    """Each event says by which span it was decided."""
    play = refund(traced=True)
    play.move(SELL, spent(900))
    play.fail("model.overloaded", report=spent(1000, 2))
    play.wait(60)
    play.control(Freeze, by="Ada", reason="the bank is down")
    play.move(complete("Done."), spent(1100, 2))
    play.control(Thaw, by="Ada", reason="it is back")
    return play.bodies


def conversation() -> list[bytes]:
    """The second request of a conversation begins with what the first one left, less what is withheld."""
    memory = Conversations()
    fleet, policies = FLEET, {"default": Policy()}
    first = InMemoryGuard(fleet, policies, memory=memory)
    known = (fact("order", 4711), fact("plan", "gold"), fact("ssn", "123"))
    first.submit("Where is it?", conversation="c-1")
    first.move(Complete(answer="I'll look", remember=known))
    guard = InMemoryGuard(fleet, policies, memory=memory, number=2)
    guard.submit("And my parcel?", to=AgentName("b"), facts={"plan": "silver"}, conversation="c-1")
    guard.move(Complete(answer="on its way", remember_keys=("order",)))
    return guard.bodies


def chat_story() -> list[bytes]:
    """The second message goes to whoever answered the first; its end tells the cost and the path."""
    memory = Conversations()
    policies = {"default": Policy(continue_with="last", tell_client=("usage", "path"))}
    first = InMemoryGuard(FLEET, policies, memory=memory)
    first.submit("I want another seat", conversation="c-17")
    first.move(transfer("b", summary="change the seat"), spent(400))
    first.move(complete("You are in 12A."))
    guard = InMemoryGuard(FLEET, policies, memory=memory, number=2)
    guard.submit("And my bag?", conversation="c-17")
    guard.move(ask("c1", schema={"type": "string"}), prompted(900, "3"))
    guard.reply("the blue one")
    guard.move(transfer("c", summary="find the bag"), prompted(1200, "3"))
    guard.move(complete("It is on board."), spent(100))
    return guard.bodies


def forked_story() -> list[bytes]:
    """An operator's request goes on from another one, and each turn is told its own part of that."""
    old = InMemoryGuard(FLEET, {"default": Policy()})
    old.submit("Where is it?", to=AgentName("a"), facts={"order": 4711})
    old.move(CARRY_ON, spent(900))
    fork = fork_of(old.events, old.bodies, 1, facts=(fact("order", 4712),))
    guard = InMemoryGuard(FLEET, {"default": Policy()}, client="op", number=2)
    guard.submit_whole(fork)
    guard.move(transfer("c", summary="find it"), spent(100))
    return guard.bodies


STORIES: tuple[Callable[[], list[bytes]], ...] = (
    long_story,
    priced_story,
    granted_story,
    refused_story,
    answered_story,
    given_up_story,
    modelled_story,
    traced_story,
    conversation,
    chat_story,
    forked_story,
)
