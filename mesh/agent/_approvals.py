"""Approvals: an effect that waits for somebody's yes.

The yes is bound to one effect by its digest, which is the effect's idempotency key: it derives from the
turn, the tool, the arguments and how many equal calls came before. Other arguments are another effect, and
nobody has approved it. The guard says which digest a reply answers (`RoundOutcome.asked`), not the replier.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from mesh.agent._step_store import Recorded, as_json
from mesh.agent.errors import ApprovalNeeded
from protocol.wire.commands import Ask
from protocol.wire.events import RoundOutcome
from protocol.wire.handoff import Refusal
from protocol.wire.ids import HUMAN, AgentName

if TYPE_CHECKING:
    from mesh.agent.tools import Tool

SHOWN_CHARS = 4_000
"""Of the arguments, in the question."""
NOT_APPROVED = "not_approved"
EXPIRED = "approval_expired"


def approval_of(
    tool: "Tool", arguments: Mapping[str, Any], key: str, *, agent: str, client: AgentName
) -> Ask:
    """Return the ask for one effect. The question shows the tool and its arguments, defaults included."""
    whole = {name: arguments.get(name, value) for name, value in tool.check(arguments).items()}
    shown = msgspec.json.encode(whole, enc_hook=as_json).decode()
    if len(shown) > SHOWN_CHARS:
        shown = f"{shown[:SHOWN_CHARS]}… (cut: {len(shown)} characters in all)"
    return Ask(
        to_agent=client if tool.approve == "client" else HUMAN,
        question=f"{agent} asks for approval: {tool.name} {shown}",
        schema={"type": "boolean"},
        expires_s=tool.approve_within_s,
        digest=key,
        action=tool.name,
    )


def require(ask: Ask, past: Iterable[RoundOutcome]) -> None:
    """Return if the newest word on this approval is yes.

    Raises ApprovalNeeded when nobody was asked yet; Recorded, the effect's outcome, when the reply was
    anything but `true`, when none came in time, and when the guard refused to let the question be asked.
    """
    for ended in reversed(tuple(past)):
        if ended.asked == ask.digest:
            if ended.how == "expired":
                raise Recorded(EXPIRED, f"nobody approved {ask.action} in time")
            if ended.reply is True:
                return
            raise Recorded(NOT_APPROVED, f"{ended.by or ask.to_agent} did not approve {ask.action}")
        if isinstance(ended.move, Ask) and ended.move.digest == ask.digest:
            why = ended.refusal
            said = f"{why.rule}: {why.detail}" if isinstance(why, Refusal) else "the guard refused it"
            raise Recorded(NOT_APPROVED, f"nobody could be asked to approve {ask.action}: {said}")
    raise ApprovalNeeded(ask)
