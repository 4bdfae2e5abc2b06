"""What a round shows while it works: live notes for its client; spans, counts and times for operators.

A live note is a hint for display, sent over core NATS and never through the log. It may be lost, nothing
depends on it, and labels do not withhold what a model writes in it. It goes to the request's own client. A
turn never waits for a listener. Spans hold only names, ids and codes. A model may ask for an agent that does
not exist, so only agents of the fleet are named.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import msgspec
from opentelemetry.trace import Span, get_current_span

from mesh.agent._steps import RoundKey
from mesh.service.logs import get_logger
from mesh.tasks import Alarms, ArmedAlarm
from mesh.telemetry import export as telemetry
from mesh.telemetry import tracing
from protocol.wire.commands import MoveProposed, Proposal, ReportFailure, asked_for
from protocol.wire.config import Fleet
from protocol.wire.ids import HUMAN, submitter_of
from protocol.wire.moves import Escalate, HandBack, Transfer
from protocol.wire.records import LiveNote, Record, What
from protocol.wire.subjects import live

if TYPE_CHECKING:
    from mesh.bus.consumer import Message

_log = get_logger(__name__)

# --- live notes -----------------------------------------------------------------------------------

BEGAN_S = 0.05
"""A round that reaches its move sooner and shows nothing else is not shown: no viewer would see it."""
TEXT_S = 0.05
"""The shortest interval between texts while many notes are sent; faster pieces are joined."""
SOON_S = 0.015
"""The same while few notes are sent, so that a token every 20 ms goes out at once."""
MOST_A_SECOND = 100
"""Limit of a round's notes in a second. More are not sent, and the gap shows in the numbers of the others."""
FEW_OF_A_ROUND = MOST_A_SECOND // 2
"""Up to so many notes of a round in a second count as few: text leaves room for what else it shows."""
FEW_A_SECOND = 200
"""Up to so many notes of all rounds of a process in a second count as few."""
NOTE_CHARS = 4_000
MOST_CHARS = 16 * NOTE_CHARS
"""Limit of text waiting to be sent; a model's text beyond that is not shown."""
_NAME_CHARS = 128

Send = Callable[[str, bytes], object]
"""Publishes (subject, data) without waiting."""


class SecondCount:
    """Counts within each second of the monotonic clock."""

    def __init__(self) -> None:
        self._second, self._count = 0, 0

    def now(self) -> int:
        """Return the count of the current second."""
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._count = second, 0
        return self._count

    def add(self) -> int:
        """Count one more; return the count of the current second."""
        self._count = self.now() + 1
        return self._count


class LiveOutput:
    """The notes of one run of a round. Its methods return at once and raise nothing.

    Args:
        send: None for a turn without listeners.
        of_all: counts the notes of all rounds of the process; by default only this one's.
    """

    def __init__(
        self,
        send: Send | None,
        key: RoundKey,
        *,
        of_all: SecondCount | None = None,
    ) -> None:
        self._key, self._send, self._subject = key, send, ""
        self._n = 0
        self._sent, self._of_all = SecondCount(), of_all or SecondCount()
        self._text: list[str] = []
        self._chars = 0
        self._last_text = 0.0
        """When text was last sent (monotonic seconds)."""
        self._timer: asyncio.TimerHandle | None = None
        self._beginning: ArmedAlarm | None = None
        """Set until the round's beginning is shown."""

    def began(self, beginnings: Alarms) -> None:
        """Show that the round's code begins, after `beginnings` or before the first other note."""
        if self._send is not None:
            self._beginning = beginnings.set(self._begin)

    def _begin(self) -> None:
        if self._beginning is not None:
            self._beginning.cancel()
            self._beginning = None
            self._publish("began", {})

    def hear(self, piece: str | None) -> None:
        """Show another piece of a model's reply; None voids all earlier pieces."""
        if self._send is None:
            return
        if piece is None:
            self._text.clear()
            self._chars = 0
            self._show("text", again=True)
            return
        if self._chars < MOST_CHARS:
            self._text.append(piece[: MOST_CHARS - self._chars])
            self._chars += len(self._text[-1])
        if self._timer is None:
            with contextlib.suppress(RuntimeError):  # without a loop it is sent with the next note
                few = self._sent.now() < FEW_OF_A_ROUND and self._of_all.now() < FEW_A_SECOND
                wait_s = self._last_text + (SOON_S if few else TEXT_S) - time.monotonic()
                self._timer = asyncio.get_running_loop().call_later(max(0.0, wait_s), self._flush)

    @contextlib.contextmanager
    def doing(self, what: What, name: str) -> Iterator[None]:
        """Show that a tool or model is called, and how the call ends. Its arguments are not shown."""
        self._show("step", what=what, name=name[:_NAME_CHARS], state="called")
        state = "failed"
        try:
            yield
            state = "returned"
        finally:
            self._show("step", what=what, name=name[:_NAME_CHARS], state=state)

    def ended(self, proposal: Proposal) -> None:
        """Show the round's proposal; a move only if something was shown before."""
        if isinstance(proposal, MoveProposed):
            if self._beginning is not None:
                return
            move = proposal.move
            self._show("ended", move=move.name[:_NAME_CHARS], to=(move.to_agent or "")[:_NAME_CHARS])
        else:
            code = proposal.error.code if isinstance(proposal, ReportFailure) else "in_doubt"
            self._show("ended", failed=code[:_NAME_CHARS])

    def close(self) -> None:
        """Send the text that waits, and nothing after it. Idempotent."""
        if self._text:
            self._flush()
        if self._beginning is not None:
            self._beginning.cancel()
            self._beginning = None

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        text = "".join(self._text)
        self._text.clear()
        self._chars = 0
        if text:
            self._begin()
        for at in range(0, len(text), NOTE_CHARS):
            self._last_text = time.monotonic()
            self._publish("text", {"text": text[at : at + NOTE_CHARS]})

    def _show(self, kind: str, **fields: object) -> None:
        if self._send is not None:
            self._begin()
            self._flush()
            self._publish(kind, fields)

    def _publish(self, kind: str, fields: dict[str, object]) -> None:
        n, self._n = self._n, self._n + 1
        self._of_all.add()
        if self._sent.add() > MOST_A_SECOND and kind != "ended":
            return
        try:
            if not self._subject:
                agent, request, turn = self._key[:3]
                self._subject = live(submitter_of(request), request, agent, turn)
            note = LiveNote(
                v=1,
                turn=self._key.turn,
                round=self._key.round,
                n=n,
                at=time.time_ns() // 1000,
                kind=kind,  # type: ignore[arg-type]  # one of them
                **fields,  # type: ignore[arg-type]  # fields of a note
            )
            assert self._send is not None
            self._send(self._subject, msgspec.json.encode(note))
        except Exception as error:  # any error: no turn may fail because of a note
            _log.debug("live_note_lost", error=type(error).__name__)


SILENT = LiveOutput(None, RoundKey("", "", "", 0))
"""For turns without listeners."""


# --- spans, counts and times ----------------------------------------------------------------------

_PROPOSES = "mesh.prop.{sender}.{request}"


def _identity(key: RoundKey) -> dict[str, str | int]:
    return {tracing.AGENT: key.agent, tracing.CONVERSATION: key.request, tracing.REQUEST: key.request}


def round_span(
    key: RoundKey, message: "Message", *, version: str, depth: int, trace: str
) -> AbstractContextManager[Span]:
    """Open the span of one delivery of a round, and record how long the event waited for its first one.

    Args:
        version: version of the agent.
        trace: `traceparent` of the event that opened it.
    """
    if message.delivered == 1:
        waited_s = max(0.0, time.time() - message.stored_us / 1e6)
        telemetry.queue_time.record(waited_s, {tracing.AGENT: key.agent})
    tracing.conversation.set(key.request)  # in the task of this delivery
    if not tracing.traced():
        return tracing.OFF
    fields = _identity(key) | {
        tracing.OPERATION: tracing.INVOKE_AGENT,
        tracing.AGENT_VERSION: version,
        tracing.TURN: key.turn,
        tracing.ROUND: key.round,
        tracing.DEPTH: depth,
        tracing.DELIVERY: message.delivered,
    }
    return tracing.span(f"{tracing.INVOKE_AGENT} {key.agent}", parent=trace, came=trace, attributes=fields)


def proposal_span(key: RoundKey, proposal: Proposal, fleet: Fleet) -> AbstractContextManager[Span]:
    """Open the span in which a proposal is stored. A handoff is a tool's span, as in GenAI conventions."""
    if not tracing.traced():
        return tracing.OFF
    asked = asked_for(proposal)
    turn = get_current_span()
    turn.set_attribute(tracing.MOVE, asked)
    if isinstance(proposal, ReportFailure):
        tracing.failed(turn, proposal.error.code)
    fields = _identity(key) | {
        tracing.TURN: key.turn,
        tracing.ROUND: key.round,
        tracing.MOVE: asked,
    }
    target, tool = "", ""
    match proposal.move if isinstance(proposal, MoveProposed) else None:
        case Transfer(to_agent=wanted):
            target = str(wanted) if wanted in fleet.agents else "unknown"
            tool = f"transfer_to_{target}"
        case Escalate():
            target, tool = HUMAN, f"transfer_to_{HUMAN}"
        case HandBack():  # the guard finds the receiver
            tool = "hand_back"
        case _:
            sends = tracing.messaging(tracing.SEND, _PROPOSES, sender=key.agent, request=key.request)
            return tracing.span(tracing.SUBMIT, tracing.PRODUCER, attributes={**fields, **sends})
    fields |= {
        tracing.OPERATION: tracing.EXECUTE_TOOL,
        tracing.TOOL: tool,
        tracing.TOOL_TYPE: tracing.FUNCTION,
        tracing.TRANSFER_MODE: tracing.PASS_CONTROL,
    }
    if target:
        fields[tracing.TRANSFER_TARGET] = target
    return tracing.span(f"{tracing.EXECUTE_TOOL} {tool} {target}".strip(), attributes=fields)


def proposed(key: RoundKey, version: str, proposal: Proposal, took_s: float) -> None:
    """Record the duration of a round whose proposal is stored now.

    Args:
        version: version of the agent.
    """
    ran = {tracing.AGENT: key.agent, tracing.AGENT_VERSION: version}
    telemetry.turn_duration.record(took_s, {**ran, tracing.MOVE: asked_for(proposal)})


def tool_span(key: RoundKey, tool: str, call: str) -> AbstractContextManager[Span]:
    """Open the span of one run of a tool, without its arguments and result.

    Args:
        call: the key of the call; the same however often the tool runs.
    """
    if not tracing.traced():
        return tracing.OFF
    fields = _identity(key) | {
        tracing.OPERATION: tracing.EXECUTE_TOOL,
        tracing.TOOL: tool,
        tracing.TOOL_TYPE: tracing.FUNCTION,
        tracing.TOOL_CALL: call,
    }
    return tracing.span(f"{tracing.EXECUTE_TOOL} {tool}", attributes=fields)


def replayed(step: str, record: Record) -> None:
    """Mark in the round's span that a step was taken from the journal: nothing ran."""
    if not tracing.traced():
        return
    fields = {tracing.STEP: step, tracing.KIND: record.kind}
    if record.kind in ("call", "effect"):
        fields[tracing.TOOL] = record.name
    tracing.happened(tracing.REPLAYED, fields)
