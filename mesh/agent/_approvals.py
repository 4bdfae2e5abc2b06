"""Approvals: an effect that waits for somebody's yes before it happens.

The yes is bound to that effect by its digest: the effect's idempotency key. It derives from the turn, the
tool, the arguments and the number of equal calls before. Other arguments are another effect, which nobody has
approved. The guard names the digest that a reply answers (`RoundOutcome.asked`).
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from mesh.agent._step_store import Recorded, as_json
from mesh.agent.errors import ApprovalNeeded
from mesh.agent.tools import Tool
from protocol.wire.commands import Ask
from protocol.wire.event_parts import Assignment
from protocol.wire.handoff import Refusal
from protocol.wire.ids import HUMAN, submitter_of

SHOWN_CHARS = 4_000
"""Of an effect's arguments, in the question that asks for its approval."""


def require_approval(
    work: Assignment, request: str, tool: Tool, arguments: Mapping[str, Any], key: str
) -> None:
    """Return if the newest word on this effect is yes.

    Args:
        work: the round in which the tool is called.
        key: the effect's, under which it was asked for.

    Raises ApprovalNeeded if nobody was asked yet. Raises Recorded, the effect's outcome, for any other reply
    than `true`, if none came in time, and if the guard refused the question.
    """
    to = submitter_of(request) if tool.approve == "client" else HUMAN
    for ended in reversed(work.past):
        if ended.asked == key:
            if ended.how == "expired":
                raise Recorded("approval_expired", f"nobody approved {tool.name} in time")
            if ended.reply is True:
                return
            said = f": {ended.reason}" if ended.reason else ""
            raise Recorded("not_approved", f"{ended.by or to} did not approve {tool.name}{said}")
        if isinstance(ended.move, Ask) and ended.move.digest == key:
            why = ended.refusal
            said = f"{why.rule}: {why.detail}" if isinstance(why, Refusal) else "the guard refused it"
            raise Recorded("not_approved", f"nobody could be asked to approve {tool.name}: {said}")
    whole = {name: arguments.get(name, value) for name, value in tool.check(arguments).items()}
    shown = msgspec.json.encode(whole, enc_hook=as_json).decode()
    if len(shown) > SHOWN_CHARS:
        shown = f"{shown[:SHOWN_CHARS]}… (cut: {len(shown)} characters in all)"
    raise ApprovalNeeded(
        Ask(
            to_agent=to,
            question=f"{work.handoff.to_agent} asks for approval: {tool.name} {shown}",
            schema={"type": "boolean"},
            expires_s=tool.approve_within_s,
            digest=key,
            action=tool.name,
        )
    )
