"""Makes golden files for event types that have none yet. What is there already is never touched.

Run by hand, once, when an event type or version is new:  python -m tests.golden.make
"""

import json
from pathlib import Path

from msgspec.structs import replace

from protocol.wire import codec
from protocol.wire.commands import (
    Assign,
    Cancel,
    Complete,
    Freeze,
    Reply,
    Report,
    Resolve,
    Settle,
    Thaw,
    Usage,
)
from protocol.wire.config import Policy
from protocol.wire.events import AnyEvent, type_of
from protocol.wire.handoff import Artifact, Budget, Constraints, Fact
from protocol.wire.ids import AgentName
from protocol.wire.prices import Tokens, metered
from tests.unit.protocol.worlds import (
    Court,
    agent,
    ask,
    escalate,
    fact,
    give_up,
    hand_back,
    seconds,
    transfer,
)

HERE = Path(__file__).parent
EVENTS = HERE / "events" / "v1"
BAD = HERE / "events" / "bad"
LOGS = HERE / "logs"

CARD = Fact(key="card", value={"number": "4111", "ends": [12, 2027]}, labels=("pci", "pii"))
RECEIPT = Artifact(
    name="receipt",
    uri="s3://store/receipt.pdf",
    media_type="application/pdf",
    digest="sha256:9f86d081",
    size=48_213,
    labels=("pii",),
)
FLEET = {
    "triage": agent("triage", clearance=("pii",), to=("billing", "refunds"), description="Reads the post."),
    "billing": agent("billing", clearance=("pci", "pii"), intents=("refund",), actions=("lookup", "pay")),
    "refunds": agent("refunds"),
}
POLICY = Policy(
    name="careful",
    version=3,
    max_depth=4,
    escalation_sla_s=3600.0,
    budget=Budget(nano_dollars=5_000_000_000, tokens=200_000, model_calls=40),
)


def spent(tokens: int) -> Report:
    usage = Usage(nano_dollars=tokens * 3000, tokens=tokens, model_calls=1 + tokens // 1000)
    return Report(usage=usage, actions=("lookup",), steps=4, digest="ab" * 32)


def court() -> Court:
    prices = {"claude-x": {"input": 3000, "output": 15_000}}
    return Court(fleet=dict(FLEET), entry="triage", policy=POLICY, longest_s=1_296_000.0, prices=prices)


def submit(played: Court) -> AnyEvent:
    return played.submit(
        "Refund order 1042\nIt came broken.",
        facts=(fact("order", 1042), CARD),
        artifacts=(RECEIPT,),
        intent="refund",
        constraints=Constraints(max_resolution_time_s=7200.0, must_carry=("order", "card")),
        conversation="conv-7",
        digest="ef" * 32,
    )


def long_story() -> Court:
    """A request in which most things happen, and that is answered in the end."""
    played = court()
    submit(played)
    played.now += seconds(2.5)
    played.move(transfer("sales", summary="sell more"), spent(900))
    played.now += seconds(1)
    narrow = Constraints(
        max_resolution_time_s=1800.0,
        allowed_actions=("lookup", "pay"),
        budget=Budget(tokens=50_000),
        must_carry=("amount",),
    )
    played.move(
        transfer(
            "billing",
            fact("amount", 12.5, "pii"),
            summary="check the amount and pay it back",
            intent="refund",
            constraints=narrow,
            return_to="triage",
        ),
        spent(1900),
    )
    played.now += seconds(4)
    played.fail("model.overloaded", retry_after_s=2.0, report=spent(500))
    played.wait(2)
    played.move(ask("c1", schema={"type": "boolean"}, expires_s=600.0, digest="cd" * 32), spent(1500))
    played.now += seconds(30)
    played.control(Reply, sender="c1", turn=played.turn, round=1, value=True, by="Rosa")
    played.doubt("pay", spent(2500))
    played.control(Settle, turn=played.turn, round=2, outcome="done", result={"ref": "R-7"}, by="Ada")
    played.control(Freeze, by="Ada", reason="the bank is down")
    played.move(hand_back(fact("paid", True), artifacts=(RECEIPT,), drop=("text",)), spent(3500))
    played.now += seconds(60)
    played.control(Thaw, by="Ada", reason="it is back")
    played.move(escalate(fact("doubt", "is it the right customer?")), spent(200))
    played.control(Assign, turn=played.turn, to="Ada", by="Bo")
    played.wait(3600)
    played.control(
        Resolve,
        turn=played.turn,
        to=AgentName("refunds"),
        by="Ada",
        summary="it is; write to them",
        facts=(fact("checked", "yes"),),
    )
    played.move(Complete(answer={"refunded": 12.5, "text": "Done."}), spent(100))
    return played


def modelled_story() -> Court:
    """A request whose agents say which prompt and which models they had."""
    played = court()
    submit(played)
    played.now += seconds(2)
    played.move(transfer("billing", summary="check the amount"), modelled(900, "3"))
    played.now += seconds(3)
    played.move(Complete(answer="Done."), modelled(1200, "2026-11.1"))
    return played


def modelled(tokens: int, prompt: str) -> Report:
    model = metered(Tokens(input=tokens - 100, cache_read=60, output=40, thinking=15), tokens * 3000)
    usage = Usage(nano_dollars=tokens * 3000, tokens=tokens, model_calls=1, models={"claude-x": model})
    return Report(usage=usage, actions=("lookup",), steps=2, digest="ab" * 32, prompt=prompt)


def traced_story() -> Court:
    """A request that guards traced: a refusal, a failure and what follows from it, a freeze, an answer."""
    played = court()
    played.traced = True
    submit(played)
    played.move(transfer("sales", summary="sell more"), spent(900))
    played.fail("model.overloaded", report=spent(1000))
    played.wait(60)
    played.control(Freeze, by="Ada", reason="the bank is down")
    played.move(Complete(answer="Done."), spent(1100))
    played.control(Thaw, by="Ada", reason="it is back")
    return played


def priced_story() -> Court:
    """A request whose holders are told in every round what models cost, also after a person let one go on."""
    played = court()
    submit(played)
    played.move(transfer("sales", summary="sell more"), spent(900))
    played.move(transfer("billing", summary="check the amount"), spent(1900))
    played.fail("model.overloaded", report=spent(500))
    played.wait(60)
    played.move(ask("c1"), spent(1500))
    played.control(Reply, sender="c1", turn=played.turn, round=1, value=True, by="Rosa")
    played.doubt("pay", spent(2500))
    played.control(Settle, turn=played.turn, round=2, outcome="done", by="Ada")
    played.move(escalate(), spent(3000))
    played.control(Resolve, turn=played.turn, again=True, by="Ada", summary="go on")
    played.move(Complete(answer="Done."), spent(100))
    return played


def answered_story() -> Court:
    """A request whose end names the submit that it answers."""
    played = court()
    submit(played)
    played.move(Complete(answer="Done."), spent(100))
    return played


def granted_story() -> Court:
    """A request that nobody took up, that a person gave more to spend, and whose deadline met a doubt."""
    played = court()
    submit(played)
    played.served = played.begun = False
    played.wait(3600)
    played.control(
        Resolve, turn=played.turn, by="Ada", summary="they are back", budget=Budget(tokens=500_000)
    )
    played.served = played.begun = True
    played.now += seconds(10)
    soon = Constraints(max_resolution_time_s=60.0)
    played.move(transfer("billing", summary="check the amount", constraints=soon), spent(900))
    played.doubt("pay", spent(500))
    played.wait(60)
    played.control(Resolve, turn=played.turn, complete=True, answer="Done by hand.", by="Ada")
    return played


def given_up_story() -> Court:
    """A request that its client was asked about and that ends at an escalation too many."""
    played = court()
    played.policy = replace(POLICY, max_escalations=0)
    submit(played)
    played.move(ask("c1"), spent(100))
    played.control(Reply, sender="c1", turn=played.turn, round=0, value="no", by="Rosa")
    played.move(escalate(fact("doubt", "is it the right customer?", "pii")), spent(200))
    return played


def specimens() -> dict[str, AnyEvent]:
    """Return one event of each type that can happen now, with as many fields set as can be."""
    failed, expired, cancelled, refused = court(), court(), court(), court()
    for played in (failed, expired, cancelled):
        submit(played)
    failed.move(give_up(), spent(10))
    expired.wait(7200)
    cancelled.control(Cancel, by="Ada", reason="wrong order")
    refused.breakers["triage"] = "open"
    submit(refused)
    found: dict[str, AnyEvent] = {}
    for played in (long_story(), failed, expired, cancelled, refused):
        for event in played.events:
            known = found.get(type_of(event))
            if known is None or fullness(event) > fullness(known):
                found[type_of(event)] = event
    return found


def fullness(event: AnyEvent) -> int:
    """Return how many of its fields are said."""
    return len(json.loads(codec.encode(event)))


def pretty(event: AnyEvent) -> str:
    return json.dumps(json.loads(codec.encode(event)), indent=2, ensure_ascii=False) + "\n"


def add_missing() -> list[Path]:
    """Write each event type and each log that there is no file of; return what is new."""
    made = []
    for type_, event in specimens().items():
        path = EVENTS / f"{type_}.json"
        if not path.exists():
            path.write_text(pretty(event))
            made.append(path)
    stories = (
        ("long-story", long_story),
        ("modelled-story", modelled_story),
        ("traced-story", traced_story),
        ("priced-story", priced_story),
        ("granted-story", granted_story),
        ("answered-story", answered_story),
        ("given-up-story", given_up_story),
    )
    for name, story in stories:
        log = LOGS / f"{name}.jsonl"
        if not log.exists():
            log.write_bytes(b"".join(body + b"\n" for body in story().bodies))
            made.append(log)
    return made


if __name__ == "__main__":
    for path in add_missing():
        print(path.relative_to(HERE))  # noqa: T201 - run by hand
