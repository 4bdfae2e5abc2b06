"""Plays under a policy with guardrails, and what a guardrail refuses in them."""

from typing import Any

from mesh.replay.rejudge import rejudge
from protocol.wire.config import Policy
from protocol.wire.documents import parse_policy
from protocol.wire.events import RequestOpened
from protocol.wire.handoff import Refusal, Rule
from protocol.wire.ids import AgentName
from protocol.wire.moves import Ask
from tests.certain import is_
from tests.unit.protocol.happened import refused
from tests.unit.protocol.oracle.audit import Auditor
from tests.unit.protocol.worlds import Play


def policy(*guardrails: dict[str, Any], **numbers: Any) -> Policy:
    named = [{"name": f"g{place}", **each} for place, each in enumerate(guardrails)]
    return parse_policy({"guardrails": named, "max_refusals": 50, **numbers}, numbers.get("name", "default"))


def play(*guardrails: dict[str, Any], facts: tuple[Any, ...] = (), **rest: Any) -> Play:
    """Return a play under these guardrails, whose client brought these facts."""
    made = Play(policy=policy(*guardrails), **rest)
    is_(made.submit(facts=facts), RequestOpened)
    return made


def sound(played: Play) -> None:
    """Require that the oracle has no complaint, and that the log alone gives the same verdicts."""
    auditor = Auditor()
    for event in played.events:
        auditor.follow(event, played.heard.get(event.cause))
    assert auditor.found == [], auditor.found
    assert rejudge(played.bodies).same


def ask(to: str, question: str) -> Ask:
    return Ask(to_agent=AgentName(to), question=question)


def no(played: Play, move: Any) -> Refusal:
    found = refused(played.move(move))
    assert found.rule == Rule.GUARDRAIL
    return found
