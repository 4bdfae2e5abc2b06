"""Proposals on their way to the guard: made readable, made to fit, stored for as long as it takes."""

import asyncio

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.jetstream import Code
from mesh.errors import PASSING, ApiError, Denied, Malformed, MeshError, TooLarge
from mesh.service import tracing
from mesh.service.conditions import Kind
from mesh.service.logger import get_logger
from protocol.wire import codec, subjects
from protocol.wire.commands import Failure, Proposal, Report, ReportFailure
from protocol.wire.ids import TurnId

_log = get_logger(__name__)

STORE_AGAIN_S = (0.05, 0.1, 0.2, 0.5, 1.0)
NOT_STORED = Kind("proposal_not_stored", "proposal_stored", "proposals are not stored: {}")
MESSAGE_CHARS = 512
_UNSOUND = (MeshError, msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError)
"""What encoding a handler's move may raise, and reading it as the guard will."""


def sound(proposal: Proposal) -> Proposal:
    """Return the proposal, or where the guard could not read it, the failure that says so.

    The guard would fail the round, too, but not with the reason that names the handler.
    """
    try:
        codec.parse_proposal(codec.encode(proposal))
    except _UNSOUND as error:
        reason = str(error) if isinstance(error, Malformed) else type(error).__name__
        _log.error("proposal_unsound", turn=proposal.turn, reason=reason)
        failure = Failure(code="bug", message=f"the handler's move cannot be read: {reason}"[:MESSAGE_CHARS])
        return ReportFailure(
            turn=proposal.turn, round=proposal.round, error=failure, report=_readable(proposal.report)
        )
    return proposal


def _readable(report: Report) -> Report:
    """Return the report if it can be read by itself, else an empty one."""
    try:
        alone = ReportFailure(turn=TurnId("turn"), round=0, error=Failure(code="bug"), report=report)
        codec.parse_proposal(codec.encode(alone))
    except _UNSOUND:
        return Report()
    return report


def _too_large(proposal: Proposal) -> ReportFailure:
    """Return the failure that stands in for a proposal which the bus cannot hold."""
    failure = Failure(
        code="proposal_too_large",
        message="too large for the bus; pass large things on as artifacts",
        permanent=True,
    )
    spent = Report(usage=proposal.report.usage)  # the rest may be what is too large
    return ReportFailure(turn=proposal.turn, round=proposal.round, error=failure, report=spent)


async def store(bus: Bus, agent: str, request: str, proposal: Proposal, trace: str = "") -> None:
    """Store a proposal, for as long as it takes: the guard knows a second one for the first.

    Args:
        trace: the `traceparent` of what is answered; passed on if it is one, and nothing is traced here.

    Raises Denied.
    """
    subject = subjects.prop(agent, request)
    headers = tracing.headers(otherwise=tracing.sound(trace)) or None
    attempt = 0
    while True:
        try:
            await bus.publish_durable(subject, codec.encode(proposal), headers)
        except TooLarge:
            proposal = _too_large(proposal)
        except Denied:
            raise
        except PASSING:  # the bus has said it
            await asyncio.sleep(STORE_AGAIN_S[min(attempt, len(STORE_AGAIN_S) - 1)])
            attempt += 1
        except ApiError as error:
            if error.err_code != Code.MESSAGE_EXCEEDS_MAXIMUM:
                bus.conditions.raise_(NOT_STORED, error.code, held=subject, err_code=error.err_code)
                await asyncio.sleep(STORE_AGAIN_S[-1])
            else:
                proposal = _too_large(proposal)
        else:
            return
